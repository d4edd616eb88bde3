"""`tilewright cache`: the compiled kernels that are kept on disk."""

from __future__ import annotations

import click


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove all of them.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def cache(clear: bool, as_json: bool) -> None:
    """Show where compiled kernels are kept, how many and how large they are, or remove them.

    TILEWRIGHT_CACHE names another folder; "off" keeps none.

    \b
    tilewright cache
    tilewright cache --clear
    """
    from tilewright.backends.cpu.cache import default_cache
    from tilewright.tools._show import console, print_json, size_text

    found = default_cache()
    if found is None:
        if as_json:
            print_json({"folder": None})
        else:
            console().print("no kernels are kept on disk (TILEWRIGHT_CACHE is off, or its folder cannot be trusted)")
        return
    count, size = found.count(), found.bytes_used()
    removed = found.clear() if clear else 0
    if as_json:
        facts = {"folder": str(found.folder), "entries": count, "bytes": size, "limit": found.max_bytes}
        print_json({**facts, "removed": removed})
        return
    console().print(f"{found.folder}: {count} entries, {size_text(size)} of at most {size_text(found.max_bytes)}")
    if clear:
        console().print(f"removed {removed}")


if __name__ == "__main__":
    from _script import run as run_script

    run_script(cache)
