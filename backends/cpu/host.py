"""What LLVM says of the processor, kept with compiled kernels: asking LLVM means to load it, which takes 60 MB.

What was kept holds until the system starts anew, or shows another processor.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
    from .cache import DiskCache, cache_folder, prepare

    key, folder = _key(), cache_folder()
    disk = DiskCache(folder) if key and folder is not None and not prepare(folder) else None
    kept = disk.read(key) if disk is not None else None
    if kept is not None:
        return HostFacts(**json.loads(kept))
    found = _asked()
    if disk is not None:
        disk.write(key, json.dumps(found).encode())
    return HostFacts(**found)


def _asked() -> dict[str, Any]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return {
        "cpu": llvm.get_host_cpu_name(),
        "features": dict(llvm.get_host_cpu_features()),
        "triple": llvm.get_process_triple(),
    }


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
