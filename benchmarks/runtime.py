"""Whether optimized models run slower in ONNX Runtime than the originals: interleaved runs, medians, ratios.

    python benchmarks/runtime.py MODEL.onnx ... [--target onnxruntime] [--threads 1] [--repeat 15]

Each model is optimized at the default level into a temporary folder; both run with ONNX Runtime's own optimizations on,
as users run them, on the same inputs. A ratio above 1 means that the optimized model is faster. With one thread the
time of the processor is measured, so that other programs disturb less.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import click
from measure import table


def session(path: Path, threads: int):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def accepted_feeds(model: Path, runner) -> dict:
    """Inputs that the model runs with: the first of the sizes that are tried for parity."""
    import tilewright
    from tilewright.backends.feeds import FeedPlan

    plan = FeedPlan(tilewright.load(model))
    for scenario in plan.scenarios():
        feeds = plan.feeds(scenario)
        try:
            runner.run(None, feeds)
        except Exception as error:
            refusal = error
            continue
        return feeds
    raise click.ClickException(f"{model} runs with no inputs that were tried: {refusal}")


def compare(original: Path, optimized: Path, threads: int, repeat: int) -> tuple[float, float]:
    """Median milliseconds of both models, run in turn on the same inputs."""
    sessions = (session(original, threads), session(optimized, threads))
    feeds = accepted_feeds(original, sessions[0])
    samples: tuple[list[float], list[float]] = ([], [])
    clock = time.thread_time if threads == 1 else time.perf_counter
    for round_index in range(repeat + 2):
        for current, times in zip(sessions, samples, strict=True):
            started = clock()
            current.run(None, feeds)
            if round_index >= 2:
                times.append((clock() - started) * 1e3)
    return statistics.median(samples[0]), statistics.median(samples[1])


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--threads", default=1, show_default=True)
@click.option("--repeat", default=15, show_default=True)
@click.option("--level", default=2, show_default=True)
@click.option("--target", type=click.Choice(["onnx", "onnxruntime"]), default="onnx", show_default=True)
def main(models: tuple[Path, ...], threads: int, repeat: int, level: int, target: str) -> None:
    """Run MODELS before and after optimizing in ONNX Runtime."""
    import tilewright

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            out = Path(folder) / model.name
            module = tilewright.load(model)
            tilewright.optimize(module, level=level, target=target)
            tilewright.save(module, out, target=target)
            before, after = compare(model, out, threads, repeat)
            rows.append([model.name, f"{before:.3f}", f"{after:.3f}", f"{before / after:.3f}"])
            out.unlink()
    title = f"ONNX Runtime, f32, target {target}, {threads} thread(s), milliseconds"
    table(title, ["model", "original", "optimized", "ratio"], rows)


if __name__ == "__main__":
    main()
