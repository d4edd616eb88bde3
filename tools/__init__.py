"""The commands of tilewright: one small click command per file, each also a script."""
