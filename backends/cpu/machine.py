"""What this machine can do: vector width, features and registers from LLVM, caches from the system, cores it may use.

`TILEWRIGHT_VECTOR_BITS=128|256|512` makes a wide machine behave like a narrower one, `TILEWRIGHT_MATRIX_UNIT=0` one
with a unit for products of matrices of bytes (AMX) like one without.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...graph.diagnostics import UsageError
from ...graph.dtypes import DType
from .host import host_facts

WIDTH_VARIABLE = "TILEWRIGHT_VECTOR_BITS"
UNIT_VARIABLE = "TILEWRIGHT_MATRIX_UNIT"

# Linux's system call arch_prctl, its request for a permission, and the state that AMX needs one for.
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18


@dataclass(frozen=True)
class Machine:
    """`features` is LLVM's text for `cpu` and what is on and off; caches are bytes for one core.

    `matrix_unit` says that this process may use AMX for products of bytes.
    """

    cpu: str
    features: str
    triple: str
    vector_bits: int
    registers: int
    fma: bool
    scalef: bool
    matrix_unit: bool = False
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20

    @property
    def streamed_bytes(self) -> int:
        """From this size on a result goes to memory past the caches: none of it would still be there when it is read.

        Half of the last cache, but 16 MiB at most, as others use it, too; and several times what a core has alone.
        """
        return max(8 * self.l2, min(self.l3 // 2, 16 << 20))

    @property
    def far_bytes(self) -> float:
        """About how many bytes a cycle one core reads from beyond its own caches, as measured."""
        return 8.0 if self.cpu.startswith("znver") else 4.0

    def lanes(self, dtype: DType) -> int:
        """How many numbers of `dtype` one register holds."""
        return max(1, self.vector_bits // dtype.bits)

    @property
    def key(self) -> str:
        """What compiled code depends on."""
        return f"{self.triple}|{self.cpu}|{self.features}|{self.vector_bits}"


def machine() -> Machine:
    """The machine this process runs on, as narrow as the environment asks. Raises UsageError for a strange width."""
    forced = os.environ.get(WIDTH_VARIABLE, "")
    if forced not in ("", "128", "256", "512"):
        raise UsageError("cpu/vector-bits", f"{WIDTH_VARIABLE} is 128, 256 or 512, not {forced!r}")
    return machine_of_width(int(forced or 0))


@cache
def machine_of_width(bits: int) -> Machine:
    """The machine with vectors of at most `bits` (0: as wide as they are)."""
    host = host_facts()
    features = dict(host.features)
    architecture = platform.machine().lower()
    is_x86 = architecture in ("x86_64", "amd64")
    widest = 128
    if is_x86:
        widest = 512 if features.get("avx512f") and features.get("avx512vl") else 256 if features.get("avx2") else 128
    vector_bits = min(bits or widest, widest)
    if vector_bits < 512:
        # Without these, LLVM has 16 registers and no masks to work with, as on a machine that never had them.
        features = {
            name: on and not name.startswith(("avx512", "avx10", "amx", "evex512")) for name, on in features.items()
        }
    wide = vector_bits == 512
    matrix_unit = wide and bool(features.get("amx-int8")) and bool(features.get("amx-tile")) and _may_use_tiles()
    text = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))
    return Machine(
        cpu=host.cpu,
        features=text,
        triple=host.triple,
        vector_bits=vector_bits,
        registers=32 if wide or not is_x86 else 16,
        fma=bool(features.get("fma")) or not is_x86,
        scalef=wide,
        matrix_unit=matrix_unit,
        **_caches(),
    )


def _may_use_tiles() -> bool:
    """Whether the system lets this process use AMX, whose state it keeps for those only who ask."""
    if os.environ.get(UNIT_VARIABLE) == "0" or sys.platform != "linux":
        return False
    try:
        return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0
    except (AttributeError, OSError):
        return False


def _caches() -> dict[str, int]:
    """Sizes of the data caches of the first core, from Linux's /sys; what is not found keeps its default."""
    found: dict[str, int] = {}
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level, kind, size = ((entry / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K") and size[:-1].isdigit():
            found[f"l{level}"] = int(size[:-1]) << 10
    return {name: size for name, size in found.items() if name in ("l1", "l2", "l3")}


@cache
def memory_bytes() -> int:
    """Bytes of memory that a process here can have at most: the machine's, or its control group's limit (Linux).

    Beyond what any machine has where the system does not say.
    """
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        found = 0
    for place in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = Path("/sys/fs/cgroup", place).read_text().strip()
        except OSError:
            continue
        found = min(found, int(limit)) if limit.isdigit() and found > 0 else found
    return found if found > 0 else 1 << 56


def usable_cores() -> int:
    """Cores this process may keep busy: its affinity, and no more than its control group's quota (Linux)."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:
        allowed = os.cpu_count() or 1
    quota = _quota()
    return max(1, min(allowed, quota) if quota else allowed)


def _quota() -> int:
    """The whole cores of the control group's CPU quota, version 2 or 1; 0 if there is none."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        folder = Path("/sys/fs/cgroup/cpu")
        try:
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return 0
    if not limit.isdigit() or not period.isdigit():
        return 0
    return max(1, int(limit) // int(period))
