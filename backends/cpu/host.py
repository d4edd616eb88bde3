"""What LLVM says of the processor, kept with compiled kernels: asking LLVM means to load it, which takes 60 MB.

What was kept holds until the system starts anew, or shows another processor.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ... import __version__

# What Linux says of a processor and LLVM may go by; the rest is a clock's speed, or which core it is.
_LINES = (
    "vendor", "cpu family", "model", "stepping", "flags", "features", "cpu impl", "cpu arch", "cpu var", "cpu part",
)  # fmt: skip
_PROCESSORS, _BOOT = Path("/proc/cpuinfo"), Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class HostFacts:
    """The processor's name and features, and the triple of this process, as LLVM spells them."""

    cpu: str
    features: dict[str, bool]
    triple: str


@cache
def host_facts() -> HostFacts:
    from . import compile_worker
    from .cache import DiskCache, cache_folder, prepare
    from .compile_queue import asked_once

    key, folder = _key(), cache_folder()
    disk = DiskCache(folder) if key and folder is not None and not prepare(folder) else None
    kept = disk.read(key) if disk is not None else None
    if kept is not None:
        return HostFacts(**json.loads(kept))
    if disk is None:
        return HostFacts(**compile_worker.host_facts())
    found = asked_once() or json.dumps(compile_worker.host_facts()).encode()
    disk.write(key, found)
    return HostFacts(**json.loads(found))


def _key() -> str:
    """What names this processor in this life of the system; empty where that is not known."""
    import llvmlite

    try:
        first = _PROCESSORS.read_text().split("\n\n")[0].lower().splitlines()
        boot = _BOOT.read_text()
    except OSError:
        return ""
    lines = [line for line in first if line.startswith(_LINES)]
    text = "\n".join(("host", boot, llvmlite.__version__, __version__, *lines))
    return hashlib.sha256(text.encode()).hexdigest() if lines else ""
