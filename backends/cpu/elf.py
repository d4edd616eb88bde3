"""Object files in memory, ready to call, without LLVM: ELF for x86-64 on Linux.

What LLVM makes of a kernel is code, constants, and distances between the two, so little has to be done to place it, and
a process that finds all its kernels on disk need not load LLVM, which takes 60 MB and a tenth of a second. An object
file that has anything else in it is refused, and left to LLVM.

Source: System V ABI, chapter 4 (object files); its supplement for AMD64, section 4.4 (relocation).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

_HEADER, _SECTION, _SYMBOL, _RELOCATION = "<16sHHIQQQIHHHHHH", "<IIQQQQIIQQ", "<IBBHQQ", "<QQq"
_X86_64, _RELOCATABLE = 62, 1
_SYMBOLS, _RELOCATIONS, _ZEROS = 2, 4, 8  # kinds of sections
_IN_MEMORY, _WRITABLE = 2, 1  # flags of sections
_ABSOLUTE_64, _RELATIVE_32, _CALL_32 = 1, 2, 4  # kinds of relocations
_THROUGH_TABLE_32 = (9, 41, 42)
# Where a call to a function of the system goes: a jump to the address behind it. That address is an entry of the
# table, too, through which code may ask for it.
_STUB = b"\xff\x25\x02\x00\x00\x00\x90\x90"
_STUB_BYTES = 16
_MOST_BYTES, _LARGEST_ALIGNMENT = 1 << 30, 4096
_PRIVATE = 0x22  # MAP_PRIVATE | MAP_ANONYMOUS


class UnsupportedObjectError(Exception):
    """An object file, or a system, that is left to LLVM."""


def is_supported() -> bool:
    """Whether code of this machine can be placed here."""
    known = sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 1 << 32
    return known and hasattr(mmap, "PROT_READ")  # a Python without it was not built for memory that may hold code


@dataclass
class _Section:
    kind: int
    flags: int
    content: bytes
    size: int
    link: int
    info: int
    alignment: int
    place: int = -1  # from the beginning of the memory


@dataclass
class _Symbol:
    name: str
    section: int
    value: int
    is_global: bool


@dataclass
class _Object:
    sections: list[_Section]
    symbols: list[_Symbol] = field(default_factory=list)

    def place_of(self, symbol: _Symbol) -> int:
        """Where a symbol of this file lies; negative for one of elsewhere, or of no section (its number is larger)."""
        if not 0 < symbol.section < len(self.sections) or self.sections[symbol.section].place < 0:
            return -1
        return self.sections[symbol.section].place + symbol.value


class PlacedCode:
    """The code of several object files in one piece of memory, for as long as this object lives."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        """Raises UnsupportedObjectError."""
        self._addresses: dict[str, int] = {}
        self._stubs: dict[str, int] = {}
        try:
            self._place([_parsed(content) for content in objects])
        except (struct.error, IndexError, ValueError, OverflowError, OSError) as error:
            raise UnsupportedObjectError(f"a damaged object file: {error}") from error

    def _place(self, objects: Sequence[_Object]) -> None:
        size = self._lay_out(objects)
        if size > _MOST_BYTES:
            raise UnsupportedObjectError("more code than distances of 32 bits reach")
        self._size = max(size, 1)
        self._base = _system("mmap", 0, self._size, mmap.PROT_READ | mmap.PROT_WRITE, _PRIVATE, -1, 0)
        # Not at the end of the process: a thread that nobody waits for may still be in the code.
        weakref.finalize(self, _system, "munmap", self._base, self._size).atexit = False
        for each in objects:
            self._fill(each)
        for name, place in self._stubs.items():
            self._write(place, _STUB + struct.pack("<Q", _system_function(name)))
        _system("mprotect", self._base, self._size, mmap.PROT_READ | mmap.PROT_EXEC)

    def address(self, name: str) -> int:
        """Raises KeyError if there is no function of that name."""
        return self._base + self._addresses[name]

    def _lay_out(self, objects: Sequence[_Object]) -> int:
        """Give every section that belongs into memory, and every function of the system, a place; how many bytes."""
        end = 0
        for each in objects:
            for section in each.sections:
                if section.flags & _IN_MEMORY:
                    end += -end % section.alignment
                    section.place = end
                    end += section.size
            for symbol in each.symbols:
                place = each.place_of(symbol)
                if symbol.is_global and place >= 0:
                    self._addresses[symbol.name] = place
        end += -end % _STUB_BYTES
        for each in objects:
            for symbol in each.symbols:
                if symbol.is_global and not symbol.section and symbol.name not in self._stubs:
                    self._stubs[symbol.name] = end
                    end += _STUB_BYTES
        return end

    def _fill(self, each: _Object) -> None:
        for section in each.sections:
            if section.place >= 0 and section.kind != _ZEROS:
                self._write(section.place, section.content)
        for section in each.sections:
            if section.kind == _RELOCATIONS and each.sections[section.info].place >= 0:
                self._relocate(each, section)

    def _relocate(self, each: _Object, section: _Section) -> None:
        start = each.sections[section.info].place
        for offset, what, addend in struct.iter_unpack(_RELOCATION, section.content):
            kind, symbol = what & 0xFFFFFFFF, each.symbols[what >> 32]
            place = start + offset
            is_elsewhere = not symbol.section
            target = self._stubs[symbol.name] if is_elsewhere else each.place_of(symbol)
            if target < 0:
                raise UnsupportedObjectError(f"no place for what {symbol.name!r} stands for")
            if kind in _THROUGH_TABLE_32 and is_elsewhere:
                self._write(place, struct.pack("<i", target + len(_STUB) + addend - place))
            elif kind in (_RELATIVE_32, _CALL_32):
                self._write(place, struct.pack("<i", target + addend - place))
            elif kind == _ABSOLUTE_64:
                self._write(place, struct.pack("<Q", self._base + target + addend))
            else:
                raise UnsupportedObjectError(f"a relocation of kind {kind}")

    def _write(self, place: int, content: bytes) -> None:
        """Raises IndexError for a place that is not in the memory."""
        if place < 0 or place + len(content) > self._size:
            raise IndexError("a relocation outside")
        ctypes.memmove(self._base + place, content, len(content))


def _system(name: str, address: int, *numbers: int) -> int:
    """Call a function of the system on memory. Raises OSError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_ssize_t
    result = int(function(ctypes.c_void_p(address), *map(ctypes.c_ssize_t, numbers)))
    if result == -1:
        raise OSError(ctypes.get_errno(), f"{name} failed")
    return result


def _parsed(content: bytes) -> _Object:
    """Raises UnsupportedObjectError, or an error of `struct` or Python for a file that is damaged."""
    identity, kind, machine, *_, start, _, _, _, _, size, count, _ = struct.unpack_from(_HEADER, content)
    if identity[:6] != b"\x7fELF\x02\x01" or (kind, machine) != (_RELOCATABLE, _X86_64):
        raise UnsupportedObjectError("no object file for x86-64")
    found = _Object([_section(content, start + size * index) for index in range(count)])
    for section in found.sections:
        if section.kind == _SYMBOLS:
            names = found.sections[section.link].content
            for name, info, _, index, value, _ in struct.iter_unpack(_SYMBOL, section.content):
                text = names[name : names.index(b"\0", name)].decode()
                found.symbols.append(_Symbol(text, index, value, info >> 4 > 0))
    return found


def _section(content: bytes, place: int) -> _Section:
    _, kind, flags, _, offset, size, link, info, alignment, _ = struct.unpack_from(_SECTION, content, place)
    if flags & _IN_MEMORY and flags & _WRITABLE and size:
        raise UnsupportedObjectError("a section that may be written to")
    if alignment & (alignment - 1) or alignment > _LARGEST_ALIGNMENT:
        raise UnsupportedObjectError(f"an alignment to {alignment} bytes")
    end = offset if kind == _ZEROS else offset + size
    if end > len(content):
        raise ValueError("a section behind its end")
    return _Section(kind, flags, content[offset:end], size, link, info, max(1, alignment))


def _system_function(name: str) -> int:
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        raise UnsupportedObjectError(f"the system has no function {name}") from None
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
