"""Collects `*.tw` files as tests: IR text with a pipeline to run over it and FileCheck lines for what must come out.

    // RUN: cse,dce                  the pipeline for the cases that follow; empty: only parse, verify and print
    // CHECK: ...                    LLVM FileCheck's language (CHECK-NEXT, CHECK-NOT, CHECK-DAG, CHECK-LABEL, ...)
    // EXPECT-ERROR: text            an error must be raised that contains `text`; at the end of a line of IR or just
                                     above it, the error must also point at that line
    // -----                         separates cases

Everything runs in this process, in debug mode and verified after each pass. A case without CHECK and EXPECT-ERROR
lines is a mistake.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

_RUN = re.compile(r"^\s*// RUN:(.*)$", re.MULTILINE)
_EXPECT = re.compile(r"// EXPECT-ERROR:\s*(.*?)\s*$", re.MULTILINE)
_SEPARATOR = re.compile(r"^// -----[^\n]*$", re.MULTILINE)


class Case(NamedTuple):
    """One case: its pipeline, its text (padded so that line numbers are those of the file), its first line."""

    pipeline: str
    text: str
    line: int


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix != ".tw":
        return None
    return FileCheckFile.from_parent(parent, path=file_path)


def split_cases(text: str) -> Iterator[Case]:
    """The cases of a file. Raises ValueError for one without a RUN line before it."""
    pipeline: str | None = None
    start = 0
    for end in [*_SEPARATOR.finditer(text), None]:
        part = text[start : end.start()] if end is not None else text[start:]
        first = text.count("\n", 0, start) + 1
        for run in _RUN.finditer(part):
            pipeline = run[1].strip()
        if pipeline is None:
            raise ValueError("the file has no line `// RUN: pipeline`")
        yield Case(pipeline, "\n" * (first - 1) + part, first)
        start = end.end() if end is not None else len(text)


class FileCheckFile(pytest.File):
    """A `.tw` file: one test per case, named by the line on which it begins."""

    def collect(self) -> Iterator[pytest.Item]:
        for case in split_cases(self.path.read_text(encoding="utf-8")):
            yield FileCheckItem.from_parent(self, name=f"line {case.line}", case=case)


class FileCheckFailure(Exception):
    """What a case expected and did not get."""


class FileCheckItem(pytest.Item):
    def __init__(self, *, case: Case, **kwargs: object) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]
        self.case = case

    def runtest(self) -> None:
        run_case(self.case, str(self.path))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> object:
        if isinstance(excinfo.value, FileCheckFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.line - 1, f"{self.path.name}, line {self.case.line}"


def run_case(case: Case, source: str) -> None:
    """Run one case. Raises FileCheckFailure if it does not come out as its lines say."""
    from tilewright.graph.diagnostics import TilewrightError

    expected = [(match[1], _line_of(case.text, match)) for match in _EXPECT.finditer(case.text)]
    if not expected and "CHECK" not in case.text:
        raise FileCheckFailure("the case checks nothing: it has neither CHECK nor EXPECT-ERROR lines")
    try:
        output = process(case, source)
    except TilewrightError as error:
        if not expected:
            raise
        for text, line in expected:
            _check_error(error, text, line)
        return
    if expected:
        raise FileCheckFailure(f"expected the error {expected[0][0]!r}, got:\n{output}")
    check_output(output, case.text, source)


def process(case: Case, source: str) -> str:
    """The printed result of a case's pipeline."""
    from tilewright.graph.parser import parse
    from tilewright.passes.context import PassContext
    from tilewright.passes.instruments import CheckChanged
    from tilewright.passes.manager import PassManager

    # An error shows the line it speaks of: what is expected must not be found in the expectation itself.
    module = parse(_EXPECT.sub("", case.text), source=source)
    manager = PassManager.parse(case.pipeline, verify_each=True, instruments=[CheckChanged()], reproducers=False)
    manager.run(module, PassContext(debug=True))
    return str(module)


def check_output(output: str, checks: str, source: str) -> None:
    """Match `output` against the CHECK lines of `checks`. Raises FileCheckFailure with FileCheck's own message."""
    from filecheck.finput import FInput
    from filecheck.matcher import Matcher
    from filecheck.options import Options
    from filecheck.parser import Parser, pattern_for_opts

    options = Options(match_filename=source)
    matcher = Matcher(
        options, FInput("<output>", output), Parser(options, io.StringIO(checks), *pattern_for_opts(options))
    )
    matcher.stderr = io.StringIO()
    if matcher.run() != 0:
        raise FileCheckFailure(f"{matcher.stderr.getvalue()}\nthe output was:\n{output}")


def _line_of(text: str, match: re.Match[str]) -> int:
    """The line that an EXPECT-ERROR comment speaks of: its own, or the next if it stands alone."""
    line = text.count("\n", 0, match.start()) + 1
    alone = text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip() == ""
    return line + alone


def _check_error(error: Exception, text: str, line: int) -> None:
    from tilewright.graph.diagnostics import TilewrightError
    from tilewright.graph.location import FileLocation

    if text not in str(error):
        raise FileCheckFailure(f"expected an error that contains {text!r}, got:\n{error}")
    assert isinstance(error, TilewrightError)
    location = error.diagnostics[0].location
    if isinstance(location, FileLocation) and error.code.startswith("parse/") and location.line != line:
        raise FileCheckFailure(f"expected the error at line {line}, it is at {location.line}:\n{error}")
