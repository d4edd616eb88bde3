"""Running a training step: trainer, loop, data, checkpoints, search for the first bad number, charts."""
