"""`tilewright inspect`: what is in a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tilewright.passes.inspection import ModelFacts

# An expression longer than this tells a reader less than the names in it.
LONGEST_EXPRESSION = 100


@click.command("inspect")
@click.argument("model", type=click.Path())
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Count FLOPs for this size: batch=1.")
@click.option("--input-shape", "shapes", multiple=True, metavar="INPUT:DIMS", help="Count FLOPs for this: x:1,3,64,64.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def inspect_model(model: str, dims: tuple[str, ...], shapes: tuple[str, ...], as_json: bool) -> None:
    """Show what MODEL (.onnx or .tw) holds: inputs, outputs, operators, parameters, FLOPs, size.

    \b
    tilewright inspect model.onnx
    tilewright inspect model.onnx --dim batch=1 --json
    """
    import tilewright
    from tilewright.tools._inputs import read_sizes
    from tilewright.tools._show import print_json

    facts = tilewright.inspect(model, *read_sizes(dims, shapes))
    if as_json:
        print_json(facts.to_dict())
    else:
        show(facts)


def show(facts: ModelFacts) -> None:
    """The facts for people."""
    from tilewright.tools._show import console, count_text, size_text, table

    out = console()
    for title, ports in [("input", facts.inputs), ("output", facts.outputs)]:
        for port in ports:
            out.print(f"{title:<8} {port.name}: {port.type}{' (has a default)' if port.default else ''}")
    out.print()
    made = table("operator", "nodes")
    for name, count in facts.operators.most_common():
        made.add_row(name, f"{count:,}")
    made.add_section()
    made.add_row("all", f"{facts.nodes:,}")
    out.print(made)
    out.print()
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in facts.opsets.items())
    version = f", IR version {facts.ir_version}" if facts.ir_version is not None else ""
    by_dtype = ", ".join(f"{name} {size_text(size)}" for name, size in facts.dtypes.most_common())
    rows: list[tuple[str, Any]] = [
        ("graph", " ".join(filter(None, [facts.name, f"by {facts.producer}" if facts.producer else ""]))),
        ("opsets", f"{opsets}{version}"),
        ("parameters", f"{count_text(facts.parameters)} in {facts.constants:,} constants" if facts.constants else ""),
        ("weights", f"{size_text(facts.weight_bytes)} ({by_dtype})" if by_dtype else ""),
        ("file", size_text(facts.file_bytes) if facts.file_bytes else ""),
        ("FLOPs", flops_text(facts)),
        ("control flow", counts_text(facts.control_flow)),
        ("functions", ", ".join(facts.functions)),
        ("custom operators", counts_text(facts.custom_operators)),
    ]
    for name, text in rows:
        if text:
            out.print(f"{name:<16} {text}")


def flops_text(facts: ModelFacts) -> str:
    """`8.2 G`, or an expression over the dims, and for which operators it is not known."""
    from tilewright.tools._show import count_text

    unknown = counts_text(facts.unknown_flops)
    missing = f"not counted: {unknown}" if unknown else ""
    if facts.flops is None:
        return missing
    if isinstance(facts.flops, int):
        text = count_text(facts.flops)
    elif len(str(facts.flops)) <= LONGEST_EXPRESSION and "?" not in str(facts.flops):
        text = str(facts.flops)
    elif not facts.unsized_dims:
        text = "depend on sizes that only a run tells"
    else:
        named = [dim for dim in facts.unsized_dims if not dim.startswith("?")]
        text = f"depend on {', '.join(named) or 'the shapes of the inputs'}"
        text += f"; give sizes: {' '.join(f'--dim {dim}=1' for dim in named) or '--input-shape'}"
    return f"{text} ({missing})" if missing else text


def counts_text(counts: Any) -> str:
    return ", ".join(f"{name} x{count}" if count > 1 else name for name, count in counts.most_common())


if __name__ == "__main__":
    from _script import run

    run(inspect_model)
