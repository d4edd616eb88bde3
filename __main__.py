"""`python -m tilewright NAME ...` is the same as `tilewright NAME ...`."""

from __future__ import annotations

import sys

from .tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
