"""Planners are imported when a model has a kernel of theirs; the table says which module that is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tilewright
from tilewright.backends.cpu import planner, planners


def test_the_table_names_all_planners() -> None:
    listed = {f"kernel.{kernel}" for kernels in planners.MODULES.values() for kernel in kernels}
    for name in listed:
        planners.register(name)
    assert set(planner._PLANS) == listed
    for name, plan in planner._PLANS.items():
        module = plan.__module__.rpartition(".")[2]
        assert name.removeprefix("kernel.") in planners.MODULES[module]
    folder = Path(planner.__file__).parent
    registering = {path.stem for path in folder.glob("plan_*.py") if "@plans(" in path.read_text()}
    assert registering == set(planners.MODULES)


def test_a_model_imports_the_planners_that_it_needs() -> None:
    program = """
import sys, numpy, tilewright
from tilewright.graph.dtypes import f32
b = tilewright.Builder("model")
b.output(b.relu(b.input("x", f32[4]) + 1.0), "y")
tilewright.compile(b.build())
print(*(name.rpartition(".")[2] for name in sys.modules if ".cpu.plan_" in name))
"""
    folder = Path(tilewright.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, check=True)
    assert done.stdout.split() == ["plan_map"]
