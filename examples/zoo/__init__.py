"""Seven well-known networks in `tilewright.nn`, with random weights: `from zoo.build import build`."""
