"""Well-known networks as ONNX files, built here: no other framework, no download, weights from a seed.

    python examples/zoo/build.py                           # which there are
    python examples/zoo/build.py resnet50 -o resnet50.onnx
    python examples/zoo/build.py bert -o bert.onnx --batch n --size length    # names leave sizes open

In Python, `from zoo.build import build` with examples/ on the path. The architectures are the published ones, down to
the number of parameters; the weights are random, of the sizes that weights have, so they are good for measuring and
comparing, not for recognizing anything.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # A script finds the modules beside it; these are in the package of its folder.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# Name -> the module with its class, and what it is.
NETWORKS = {
    "resnet50": ("resnet", "ResNet-50, images of 224 x 224"),
    "mobilenetv2": ("mobilenet", "MobileNetV2, images of 224 x 224"),
    "efficientnet_b0": ("efficientnet", "EfficientNet-B0, images of 224 x 224"),
    "vit_b16": ("vit", "ViT-B/16, images of 224 x 224"),
    "convnext_t": ("convnext", "ConvNeXt-T, images of 224 x 224"),
    "bert_base": ("bert", "BERT-base, 128 tokens"),
    "gpt2": ("gpt2", "GPT-2, 128 tokens"),
}


def network(name: str, **options: Any) -> Any:
    """The layer called `name`, before any weight is drawn. Raises KeyError for a name that there is not.

    `size` is the side of an image or the number of tokens; other options are those of the class (`layers=2`).
    """
    from zoo.blocks import looking_trained

    module, _ = NETWORKS[name]
    found = import_module(f"zoo.{module}").Model(**options)
    looking_trained(found)
    return found


def build(name: str, batch: int | str = 1, seed: int = 0, **options: Any) -> Any:
    """The network as a `tilewright.Module`; a `str` as `batch` (for text, as `size`, too) is the name of an open dim.

    Raises KeyError for a name that there is not.
    """
    found = network(name, **options).initialize(seed)
    return found.to_model(name, found.outputs, **found.inputs(batch))


def _size(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=NETWORKS)
    parser.add_argument("-o", "--output", type=Path, help="where to write it (default: NAME.onnx)")
    parser.add_argument("--batch", type=_size, default=1, help="a number, or a name that leaves it open")
    parser.add_argument("--size", type=_size, help="side of the image, or number of tokens; this may be a name")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.name is None:
        for name, (_, summary) in NETWORKS.items():
            print(f"{name:16} {summary}")
        return 0
    import tilewright

    path = options.output or Path(f"{options.name}.onnx")
    sizes = {} if options.size is None else {"size": options.size}
    tilewright.save(build(options.name, options.batch, options.seed, **sizes), path)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
