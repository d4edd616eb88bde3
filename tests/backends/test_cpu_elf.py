"""Object files are placed in memory without LLVM, and what is not understood is left to LLVM."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tilewright.backends.cpu import elf, jit
from tilewright.backends.cpu.elf import PlacedCode, UnsupportedObjectError
from tilewright.backends.cpu.jit import Code, object_code_of_text
from tilewright.backends.cpu.machine import machine

pytestmark = pytest.mark.skipif(not elf.is_supported(), reason="x86-64 on Linux")

FUNCTIONS = """
@table = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
declare i64 @labs(i64)
declare double @cbrt(double)
define internal i64 @own(i64 %x) noinline {
  %y = mul i64 %x, 3
  ret i64 %y
}
define i64 @from_table(i64 %i) {
  %place = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %value = load i64, ptr %place
  %tripled = call i64 @own(i64 %value)
  ret i64 %tripled
}
define i64 @of_the_system(i64 %i) {
  %root = call double @cbrt(double 27.0)
  %three = fptosi double %root to i64
  %positive = call i64 @labs(i64 %i)
  %sum = add i64 %three, %positive
  ret i64 %sum
}
define i64 @address_of_labs() {
  ret i64 ptrtoint (ptr @labs to i64)
}
"""
OTHER = """
define internal i64 @own(i64 %x) noinline {
  %y = mul i64 %x, 100
  ret i64 %y
}
define i64 @hundredfold(i64 %i) {
  %y = call i64 @own(i64 %i)
  ret i64 %y
}
"""


@pytest.fixture(scope="module")
def objects() -> list[bytes]:
    return [object_code_of_text(text, machine()) for text in (FUNCTIONS, OTHER)]


def call(code: Any, name: str, *arguments: int) -> int:
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(code.address(name))
    return int(function(*arguments))


def test_functions_constants_and_the_system(objects: list[bytes]) -> None:
    code = PlacedCode(objects)
    assert [call(code, "from_table", i) for i in range(4)] == [9, 15, 21, 33]
    assert call(code, "of_the_system", -4) == 7
    assert call(code, "hundredfold", 2) == 200
    labs = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(call(code, "address_of_labs"))
    assert labs(-9) == 9
    with pytest.raises(KeyError):
        code.address("own")


def test_llvm_agrees(objects: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    placed = Code(objects, machine())
    assert placed._placed is not None
    monkeypatch.setattr(jit, "is_supported", lambda: False)
    by_llvm = Code(objects, machine())
    assert by_llvm._placed is None
    for name, arguments in (("from_table", (3,)), ("of_the_system", (-1,)), ("hundredfold", (7,))):
        assert call(placed, name, *arguments) == call(by_llvm, name, *arguments)
    for code in (placed, by_llvm):
        with pytest.raises(KeyError):
            code.address("nothing")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("@x = global i64 1\ndefine ptr @f() {\n  ret ptr @x\n}", "written to"),
        ("declare i64 @no_such_function()\ndefine i64 @f() {\n  %x = call i64 @no_such_function()\n  ret i64 %x\n}",
         "no function no_such_function"),
    ],
)  # fmt: skip
def test_what_is_left_to_llvm(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedObjectError, match=reason):
        PlacedCode([object_code_of_text(text, machine())])


def test_damaged_files(objects: list[bytes]) -> None:
    whole = objects[0]
    for content in (b"", b"\x7fELF", whole[:200], whole[:-30], b"x" + whole[1:]):
        with pytest.raises(UnsupportedObjectError):
            PlacedCode([content])
    random = np.random.default_rng(0)
    for _ in range(300):  # whatever is in it, no other error
        broken = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            broken[place] = random.integers(256)
        try:
            PlacedCode([bytes(broken)])
        except UnsupportedObjectError:
            continue


def test_memory_is_given_back(objects: list[bytes]) -> None:
    def mappings() -> int:
        with open("/proc/self/maps") as file:
            return sum(1 for _ in file)

    PlacedCode(objects)
    before = mappings()
    for _ in range(100):
        PlacedCode(objects)
    assert mappings() <= before + 5


@pytest.mark.usefixtures("unchecked")
def test_a_start_from_the_cache_does_not_load_llvm(tmp_path: Any) -> None:
    script = (
        "import os, sys; os.environ['TILEWRIGHT_CACHE'] = sys.argv[1]\n"
        "import numpy as np, tilewright\nfrom tilewright import Builder, f32\n"
        "b = Builder(); x = b.input('x', f32['n', 8])\n"
        "b.output(b.softmax(x @ np.zeros((8, 5), np.float32)), 'y')\n"
        "y = tilewright.compile(b.build(), target='cpu', threads=2).run({'x': np.ones((3, 8), np.float32)})['y']\n"
        "assert np.allclose(y, 0.2)\n"
        "print('llvmlite.binding' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "cache")]
    found = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for _ in range(2)]
    assert found == ["True", "False"]  # few kernels are compiled at once here
