"""How long optimizing takes, against released tools, and how time and memory grow.

    python benchmarks/optimize.py MODEL.onnx ... --peers PYTHON [--repeat 5]

PYTHON is the interpreter of another environment that has onnxsim and onnxruntime. Whole processes are timed, imports
and file writing included, in turn, and medians are compared. Without MODEL only growth is measured: time as layers are
added, and memory on a model above 2 GiB with external data (Linux; 5 GB of disk).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click
from measure import file_size, interleave, megabytes, peak_memory, table

OURS = [sys.executable, "-m", "tilewright", "optimize", "--no-parity"]

ORT_OFFLINE = """
import sys, onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, sys.argv[3])
options.optimized_model_filepath = sys.argv[2]
options.log_severity_level = 3
ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""


def compare(model: Path, peers: str, repeat: int, folder: Path) -> list[str]:
    """One row: seconds of each tool on `model`, and ratios to ours."""
    out = folder / "out.onnx"

    def clean() -> None:
        for path in folder.iterdir():
            path.unlink()

    commands = {
        "ours": [*OURS, str(model), "-o", str(out)],
        "onnxsim": [peers, "-m", "onnxsim", str(model), str(out)],
        "ORT basic": [peers, "-c", ORT_OFFLINE, str(model), str(out), "ORT_ENABLE_BASIC"],
        "ORT all": [peers, "-c", ORT_OFFLINE, str(model), str(out), "ORT_ENABLE_ALL"],
    }
    samples = interleave(commands, repeat, clean)
    ours = samples["ours"].median
    row = [model.stem, f"{ours:.2f} s" if not samples["ours"].error else samples["ours"].error]
    for name in list(commands)[1:]:
        sample = samples[name]
        row.append(sample.error[:40] or f"{sample.median:.2f} s ({sample.median / ours:.2f}x)")
    return [*row, megabytes(samples["ours"].peak_bytes)]


def encoder(layers: int, width: int, path: Path, *, external: bool | None = None) -> None:
    """Write a transformer encoder of `layers` layers, as an exporter would decompose it."""
    import numpy as np

    import tilewright
    from tilewright import Builder, f32

    generator = np.random.default_rng(0)
    b = Builder("encoder", opset=17)
    x = b.input("x", f32["batch", "length", width])
    heads = 4

    def weight(*shape: int) -> np.ndarray:
        return (generator.random(shape, np.float32) - np.float32(0.5)) * np.float32(0.05)

    def split_heads(tensor):
        shape = b.concat(b.shape(x)[0:1], b.shape(x)[1:2], [heads], [width // heads], axis=0)
        return b.transpose(b.reshape(tensor, shape), perm=(0, 2, 1, 3))

    for _ in range(layers):
        normal = b.layer_normalization(x, weight(width) + 1, weight(width), axis=-1)
        q, k, v = (split_heads(normal @ weight(width, width) + weight(width)) for _ in range(3))
        scores = (q * float((width // heads) ** -0.5)) @ b.transpose(k, perm=(0, 1, 3, 2))
        mixed = b.transpose(b.softmax(scores, axis=-1) @ v, perm=(0, 2, 1, 3))
        mixed = b.reshape(mixed, b.concat(b.shape(x)[0:1], b.shape(x)[1:2], [width], axis=0))
        x_next = x + (mixed @ weight(width, width) + weight(width))
        hidden = b.relu(x_next @ weight(width, 4 * width) + weight(4 * width))
        x = x_next + (hidden @ weight(4 * width, width) + weight(width))
    b.output(x, "y")
    tilewright.save(b.build(), path, external=external)


def growth(repeat: int, folder: Path) -> None:
    """Time for 24 and 48 layers, and start-up time."""
    commands = {"--version": [sys.executable, "-m", "tilewright", "--version"]}
    for layers in (24, 48):
        model = folder / f"encoder{layers}.onnx"
        encoder(layers, 64, model)
        commands[f"{layers} layers"] = [*OURS, str(model), "-o", str(folder / "out.onnx")]
    samples = interleave(commands, repeat, lambda: (folder / "out.onnx").unlink(missing_ok=True))
    rows = [[name, sample.error or f"{sample.median:.3f} s"] for name, sample in samples.items()]
    rows.append(["48 / 24 layers", f"{samples['48 layers'].median / samples['24 layers'].median:.2f}x"])
    table("growth of time", ["", "median"], rows)


def memory(folder: Path) -> None:
    """Peak memory for a model above 2 GiB, whose weights are in a file of their own, and for a small one of its kind.

    The small one stands for what Python, libraries and the graph take; what is left is held against the weights that
    the result does not share with the original, which are those that were computed.
    """
    peaks = []
    for width in (64, 1536):
        model = folder / f"wide{width}.onnx"
        encoder(20, width, model, external=True)
        peaks.append(peak_memory([*OURS, str(model), "-o", str(folder / "wide.out.onnx")]))
    small, large = peaks
    original, result = (weight_samples(path) for path in (model, folder / "wide.out.onnx"))
    rewritten = sum(size for sample, size in result.items() if sample not in original)
    rows = [
        ["model and data file", megabytes(file_size(model))],
        ["peak private memory", megabytes(large.private)],
        ["  of it with small weights", megabytes(small.private)],
        ["peak resident, mapped pages included", megabytes(large.resident)],
        ["rewritten weights", megabytes(rewritten)],
        ["private memory beyond small / rewritten weights", f"{(large.private - small.private) / rewritten:.2f}x"],
    ]
    table("memory on a large model", ["", ""], rows)


def weight_samples(path: Path) -> dict[bytes, int]:
    """The first bytes of each large weight in external data -> its size."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    samples = {}
    with open(f"{path}.data", "rb") as data:
        for tensor in model.graph.initializer:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            if entries:
                data.seek(int(entries["offset"]))
                samples[data.read(1024)] = int(entries["length"])
    return samples


@click.command()
@click.argument("models", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--peers", help="Python of an environment with onnxsim and onnxruntime.")
@click.option("--repeat", default=5, show_default=True)
@click.option("--growth/--no-growth", "with_growth", default=True, show_default=True)
def main(models: tuple[Path, ...], peers: str | None, repeat: int, with_growth: bool) -> None:
    """Time optimizing MODELS against onnxsim and ONNX Runtime, and measure growth."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if models and not peers:
            raise click.UsageError("comparing needs --peers PYTHON")
        rows = [compare(model, peers, repeat, folder) for model in models if peers]
        if rows:
            columns = ["model", "tilewright", "onnxsim", "ORT basic", "ORT all", "our peak memory"]
            table(f"end-to-end optimize --no-parity, medians of {repeat} interleaved runs", columns, rows)
        if with_growth:
            growth(repeat, folder)
            memory(folder)


if __name__ == "__main__":
    main()
