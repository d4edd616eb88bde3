"""Lets a command file run by its path: `python tools/optimize.py model.onnx`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def run(command: click.Command) -> None:
    """Run `command` on the process's arguments and exit; says so where the package is not installed."""
    try:
        from tilewright.tools.cli import run_command
    except ModuleNotFoundError as missing:
        print(f"{missing}. Install the package first: pip install -e .", file=sys.stderr)
        sys.exit(2)
    sys.exit(run_command(command))
