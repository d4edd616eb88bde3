"""`tilewright machine`: what the cpu target found out about this machine, on which its kernels depend."""

from __future__ import annotations

from typing import Any

import click


@click.command("machine")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def machine(as_json: bool) -> None:
    """Show the vector width, features, caches and cores that kernels are made for.

    \b
    tilewright machine --json
    TILEWRIGHT_VECTOR_BITS=256 tilewright machine
    """
    from dataclasses import asdict

    from tilewright.backends.cpu.executable import default_threads
    from tilewright.backends.cpu.machine import machine as this_machine
    from tilewright.tools._show import console, print_json, size_text, table

    found = this_machine()
    facts: dict[str, Any] = {**asdict(found), "threads": default_threads()}
    facts["features"] = sorted(name[1:] for name in found.features.split(",") if name.startswith("+"))
    if as_json:
        print_json(facts)
        return
    shown = table("fact", "value", title="this machine")
    shown.columns[1].justify = "left"
    for name, value in facts.items():
        text = size_text(value) if name in ("l1", "l2", "l3") else value
        shown.add_row(name, " ".join(text) if isinstance(text, list) else str(text))
    console().print(shown)


if __name__ == "__main__":
    from _script import run as run_script

    run_script(machine)
