"""`tilewright diff`: what differs between two models, or between two steps of a trace, and what came from what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tilewright.graph.diff import Change, ModuleDiff


@click.command("diff")
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path(), required=False)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Show at most so many changes.")
@click.option("--color/--no-color", default=None, help="Default: colours on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def diff(before: str, after: str | None, limit: int, color: bool | None, as_json: bool) -> None:
    """Show what differs between two models (.onnx or .tw), or two steps of a trace.

    \b
    tilewright diff model.onnx smaller.onnx
    tilewright diff trace                     first and last step of the trace in the folder `trace`
    tilewright diff trace:input trace:fold    before the first pass, and after the pass `fold`
    tilewright diff trace:3                   what the third pass did

    Operations are matched by the tensors they make and the nodes they come from, so renumbering is no difference.
    Exit code 0: nothing differs; 1: something does.
    """
    report(before, after, limit, color, as_json)


def report(before: str, after: str | None, limit: int, color: bool | None, as_json: bool) -> None:
    """Compare and show. Raises SystemExit(1) if something differs."""
    from tilewright.graph.diff import diff_modules
    from tilewright.tools._show import print_json
    from tilewright.tools._steps import reasons_between, steps_of

    first, second = steps_of(before, after)
    one_trace = first.trace is not None and second.trace is not None and first.trace.directory == second.trace.directory
    found = diff_modules(first.module(), second.module(), same_origin=one_trace)
    reasons = reasons_between(first, second)
    if as_json:
        print_json(as_dict(first.label, second.label, found, reasons))
    else:
        show(first.label, second.label, found, reasons, limit, color)
    if not found.is_empty:
        raise SystemExit(1)


def as_dict(first: str, second: str, found: ModuleDiff, reasons: dict[str, list[str]]) -> dict[str, Any]:
    blocks = []
    for block in found.blocks:
        changes = [vars(change) | {"reasons": reasons_of(change, reasons)} for change in block.changes]
        blocks.append({"path": block.path, "interface": block.interface, "changes": changes})
    return {
        "before": first,
        "after": second,
        "equal": found.is_empty,
        "header": found.header,
        "blocks": blocks,
        "unchanged": found.unchanged,
        "retyped": found.retyped,
        "constants": {"removed": found.constants_removed, "added": found.constants_added},
    }


def reasons_of(change: Change, reasons: dict[str, list[str]]) -> list[str]:
    """Why the trace says the change was made."""
    return list(dict.fromkeys(reason for source in change.sources for reason in reasons.get(source, ())))


def show(
    first: str, second: str, found: ModuleDiff, reasons: dict[str, list[str]], limit: int, color: bool | None
) -> None:
    def line(text: str, style: str = "") -> None:
        click.echo(
            click.style(text, fg=style or None, bold=not style and text.startswith("@")) if style else text, color=color
        )

    line(f"--- {first}", "red")
    line(f"+++ {second}", "green")
    for mine, other in found.header:
        pair(line, mine, other)
    shown = 0
    for block in found.blocks:
        if shown >= limit:
            shown += len(block.changes)
            continue
        line("")
        line(block.path, "cyan")
        for mine, other in block.interface:
            pair(line, mine, other)
        for change in block.changes:
            if shown < limit:
                show_change(line, change, reasons_of(change, reasons))
            shown += 1
    line("")
    if shown > limit:
        line(f"... and {shown - limit} more changes; --limit {shown} shows all")
    line(totals(found))


def show_change(line: Any, change: Change, reasons: list[str]) -> None:
    sources = ", ".join(change.sources[:6]) + (
        f", ... ({len(change.sources)} nodes)" if len(change.sources) > 6 else ""
    )
    rules = f"{', '.join(change.rules)}: " if change.rules else ""
    line(f"@@ {rules}{sources or 'no source'} @@", "magenta")
    for reason in reasons[:3]:
        line(f"   {reason}", "blue")
    for text in change.removed:
        line(f"-  {text}", "red")
    for text in change.added:
        line(f"+  {text}", "green")
    for mine, other in change.modified:
        pair(line, mine, other, " ~")


def pair(line: Any, mine: str, other: str, mark: str = "") -> None:
    if mine:
        line(f"-{mark} {mine}", "red")
    if other:
        line(f"+{mark} {other}", "green")


def totals(found: ModuleDiff) -> str:
    """One line that sums up."""
    if found.is_empty:
        return f"equal: {found.unchanged} operations"
    removed = sum(len(change.removed) for change in found.changes)
    added = sum(len(change.added) for change in found.changes)
    modified = sum(len(change.modified) for change in found.changes)
    parts = [f"{removed} removed", f"{added} added", f"{modified} changed in place", f"{found.unchanged} unchanged"]
    if found.retyped:
        parts.append(f"{found.retyped} of them with another type")
    text = ", ".join(parts)
    if found.constants_removed or found.constants_added:
        text += f"; constants: {found.constants_removed} removed, {found.constants_added} added"
    return text


if __name__ == "__main__":
    from _script import run

    run(diff)
