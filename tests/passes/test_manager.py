"""Pipelines: text both ways, order, levels, verification, errors and reproducers, reports and instruments."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest

from tilewright.graph.diagnostics import PassError, UsageError, VerifyError
from tilewright.graph.module import Module
from tilewright.graph.parser import parse
from tilewright.passes import registry
from tilewright.passes.base import Pass, is_allowed
from tilewright.passes.context import PassContext
from tilewright.passes.instruments import CheckChanged, PrintIR, statistics_text, timing_tree
from tilewright.passes.manager import PassManager, Repeat
from tilewright.passes.options import print_options
from tilewright.passes.pipelines import EXACTNESS, PRESETS
from tilewright.passes.reproducer import read_reproducer


@dataclass(frozen=True)
class WithOptions(Pass):
    """Has an option of every kind."""

    name = "with-options"

    max_bytes: int = 4096
    ratio: float = 0.5
    flag: bool = False
    target: str = "cpu"
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (1, 2)
    limit: int | None = None
    mode: Literal["fast", "exact"] = "exact"

    def run(self, module: Module, context: PassContext) -> bool:
        return False


@dataclass(frozen=True)
class Broken(Pass):
    """Fails, in one of several ways."""

    name = "broken"
    how: str = ""

    def run(self, module: Module, context: PassContext) -> bool:
        block = module.main.block
        if self.how == "raise":
            raise ZeroDivisionError("the pass is wrong")
        if self.how == "error":
            raise PassError("broken/said-so", "the pass gives up", next(iter(block)).location)
        if self.how == "invalid":
            first = next(iter(block))
            context.rewriter(module).move(block.terminator, first)
        return True


@dataclass(frozen=True)
class Lower(Pass):
    """Takes the module to another level without changing it."""

    name = "lower"
    level_out = "core"

    def run(self, module: Module, context: PassContext) -> bool:
        return True


@dataclass(frozen=True)
class Later(Pass):
    """Must come after `cse`."""

    name = "later"
    after = ("cse",)
    exactness = "approximate"

    def run(self, module: Module, context: PassContext) -> bool:
        context.count("runs")
        return False


@pytest.fixture(autouse=True)
def _extra_passes() -> Iterator[None]:
    extra = (WithOptions, Broken, Lower, Later)
    for cls in extra:
        registry.register(cls)
    yield
    for cls in extra:
        registry.unregister(cls.name)


def module() -> Module:
    return parse("""func @main(%x: f32[4]) -> (%y: f32[4]) {
      %0 = identity %x : f32[4]         @"copy"#0
      %1 = exp %0 : f32[4]              @"first"#1
      %2 = exp %x : f32[4]              @"second"#2
      %3 = add %1, %2 : f32[4]          @"sum"#3
      return %3
    }""")


def names(subject: Module) -> list[str]:
    return [op.name for op in subject.walk() if not op.is_terminator]


# ---- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cse",
        "remove-identity,cse,dce",
        "repeat{cse,dce}",
        "cse,repeat(max=2){cse,repeat{dce}},dce",
        "with-options{max-bytes=1 ratio=0.25 flag=true target=cuda names=[a, b-c] sizes=[3] limit=7 mode=fast}",
        'with-options{target="two words" names=["a, b", "none"]}',
    ],
)
def test_text_is_parsed_and_printed_back(text: str) -> None:
    manager = PassManager.parse(text)
    assert str(manager) == text
    assert PassManager.parse(str(manager)).steps == manager.steps


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (" cse ,\n dce ", "cse,dce"),
        ("with-options{flag=false, max-bytes=4096}", "with-options"),
        ("with-options{max_bytes=9}", None),
        ("repeat(max=4){cse}", "repeat{cse}"),
        ("with-options{limit=none names=[]}", "with-options"),
    ],
)
def test_text_is_normalized(text: str, printed: str | None) -> None:
    if printed is None:
        with pytest.raises(UsageError):
            PassManager.parse(text)
        return
    assert str(PassManager.parse(text)) == printed


def test_options_have_their_types() -> None:
    text = "with-options{max-bytes=1 ratio=2 flag=true names=[x] sizes=[] limit=3 mode=fast}"
    (step,) = PassManager.parse(text).steps
    assert step == WithOptions(1, 2.0, True, "cpu", ("x",), (), 3, "fast")
    assert print_options(WithOptions()) == ""
    assert len(fields(WithOptions)) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cze", "no pass called 'cze'"),
        ("cse,", "expected the name of a pass"),
        ("cse dce", "expected ',' or the end"),
        ("repeat{cse", "expected '}'"),
        ("repeat{" * 3000 + "cse" + "}" * 3000, "nested deeper than 20 levels"),
        ("repeat(max=x){cse}", "max takes a whole number"),
        ("repeat(rounds=2){cse}", "repeat has no option 'rounds'"),
        ("cse{x=1}", "cse has no option 'x'"),
        ("with-options{max-bytes=many}", "max-bytes takes a whole number, not 'many'"),
        ("with-options{flag=1}", "flag takes true or false"),
        ("with-options{mode=slow}", "mode takes fast or exact"),
        ("with-options{names=a}", "names takes"),
        ("with-options{flag=true flag=true}", "given twice"),
        ("with-options{flag}", "expected name=value"),
        ("O1{x=1}", "the preset O1 has no options"),
        ("later,cse", "later must come after cse"),
    ],
)
def test_mistakes_in_text_are_explained(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        PassManager.parse(text)
    assert message in str(raised.value)


def test_passes_want_a_module() -> None:
    with pytest.raises(UsageError, match="passes run on a Module, not on str"):
        PassManager.parse("cse").run("model.onnx")  # type: ignore[arg-type]


def test_near_names_are_suggested() -> None:
    with pytest.raises(UsageError) as raised:
        PassManager.parse("remove-identitys")
    assert "did you mean remove-identity" in str(raised.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_stand_for_their_passes(preset: str) -> None:
    assert PassManager.parse(preset).steps == PassManager.parse(PRESETS[preset]).steps
    assert preset in ("recompose", "tidy") or int(preset[1]) in EXACTNESS


@pytest.mark.parametrize("name", registry.BUILTIN)
def test_the_table_of_passes_tells_the_truth(name: str) -> None:
    cls = registry.pass_class(name)
    assert cls.name == name
    assert cls.summary
    assert cls() == PassManager.parse(name).steps[0]
    assert all(earlier in registry.names() for earlier in cls.after)


def test_every_pass_module_is_in_the_table() -> None:
    """A class with a name in passes/ that no pipeline can reach would be dead."""
    import tilewright.passes

    folder = Path(tilewright.passes.__file__).parent
    targets = {target.partition(":")[0] for target in registry.BUILTIN.values()}
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    with_pass = {stem for stem, text in texts.items() if "(Pass):" in text or "(RulePass):" in text}
    assert with_pass - {"base"} <= targets


def test_rules_are_found_by_name() -> None:
    assert registry.rule_class("identity-to-input").name == "identity-to-input"
    with pytest.raises(UsageError, match="no rule called 'identity-to-inputs'"):
        registry.rule_class("identity-to-inputs")


@pytest.mark.parametrize(
    ("name", "rule"),
    [("gelu", "recompose-gelu-erf"), ("layernorm", "recompose-normalization"), ("conv add", "conv-add"),
     ("fused conv", "conv-activation")],
)  # fmt: skip
def test_a_part_of_a_name_finds_rules(name: str, rule: str) -> None:
    with pytest.raises(UsageError, match=rf"did you mean .*\b{rule}\b"):
        registry.rule_class(name)


def test_a_letter_finds_no_more_rules_than_one_reads() -> None:
    with pytest.raises(UsageError, match=r"did you mean .* or one of \d+ more\?") as raised:
        registry.rule_class("x")
    assert str(raised.value).count(" or ") == registry.MOST_HINTS


def test_a_name_can_be_taken_once() -> None:
    with pytest.raises(UsageError, match="a pass called 'broken' already"):
        registry.register(Broken)
    with pytest.raises(UsageError, match="has no name"):
        registry.register(type("Nameless", (Pass,), {}))


# ---- running ---------------------------------------------------------------------------------------------------------


def test_passes_run_in_order_and_report() -> None:
    subject = module()
    report = PassManager.parse("remove-identity,cse,dce").run(subject)
    assert names(subject) == ["exp", "add"]
    assert report.module is subject
    assert report.changed
    assert [(row.name, row.changed, row.ops_before, row.ops_after) for row in report.rows] == [
        ("remove-identity", True, 4, 3),
        ("cse", True, 3, 2),
        ("dce", False, 2, 2),
    ]
    assert report.rules == {"identity-to-input": 1, "merge-equal": 1}
    assert 0 < sum(row.seconds for row in report.rows) < report.seconds


def test_a_report_prints_the_passes_that_changed_something() -> None:
    head, *lines = str(PassManager.parse("remove-identity,cse,dce").run(module())).splitlines()
    assert head.startswith("3 passes in ")
    assert head.endswith(" ms, 1 changed nothing")
    assert [line.split()[:3] + line.split()[-1:] for line in lines] == [
        ["4", "->", "3", "remove-identity"],
        ["3", "->", "2", "cse"],
    ]


def test_a_repeat_ends_when_nothing_changes() -> None:
    report = PassManager.parse("repeat(max=9){remove-identity,cse}").run(module())
    assert [(row.name, row.round) for row in report.rows] == [
        ("remove-identity", 1), ("cse", 1), ("remove-identity", 2), ("cse", 2),
    ]  # fmt: skip
    assert not report.diagnostics


def test_a_pass_that_found_nothing_to_do_waits_for_a_change() -> None:
    report = PassManager.parse("dce,dce,repeat{dce,remove-identity,cse}").run(module())
    assert [(row.name, row.changed) for row in report.rows] == [
        ("dce", False), ("remove-identity", True), ("cse", True),
        ("dce", False), ("remove-identity", False), ("cse", False),
    ]  # fmt: skip


def test_passes_with_other_options_are_other_passes() -> None:
    report = PassManager([WithOptions(flag=True), WithOptions(), WithOptions(flag=True)]).run(module())
    assert [row.text for row in report.rows] == ["with-options{flag=true}", "with-options"]


def test_a_repeat_inside_a_repeat_tells_it_whether_anything_changed() -> None:
    report = PassManager.parse("repeat{repeat(max=1){dce}}").run(module())
    assert [(row.name, row.path) for row in report.rows] == [
        ("dce", ("repeat{repeat(max=1){dce}}", "repeat(max=1){dce}")),
    ]


def test_a_repeat_that_is_cut_off_says_so() -> None:
    report = PassManager.parse("repeat(max=1){remove-identity}").run(module())
    (remark,) = report.diagnostics
    assert remark.code == "pass/repeat-bound"


def test_the_same_input_gives_the_same_text() -> None:
    first, second = module(), module()
    for subject in (first, second):
        PassManager.parse("O2").run(subject)
    assert str(first) == str(second)


def test_levels_are_checked_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.graph import verifier

    subject = module()
    with pytest.raises(VerifyError, match="found after lower"):
        PassManager([Lower()], reproducers=False).run(subject)
    assert subject.level == "core"
    monkeypatch.setitem(verifier.LEVELS, "core", lambda definition: True)
    with pytest.raises(PassError, match="takes level onnx, the module is at core"):
        PassManager.parse("cse,broken", reproducers=False).run(subject)


def test_less_exact_passes_are_left_out() -> None:
    manager = PassManager.parse("cse,later")
    assert [row.name for row in manager.run(module(), PassContext(exactness="reassociates")).rows] == ["cse"]
    assert [row.name for row in manager.run(module(), PassContext()).rows] == ["cse", "later"]
    assert is_allowed("bit-exact", "reassociates")
    assert not is_allowed("approximate", "reassociates")


@pytest.mark.parametrize(("how", "kind"), [("raise", ZeroDivisionError), ("error", PassError)])
def test_a_failing_pass_is_named_and_can_be_run_again(how: str, kind: type[Exception], tmp_path: Path) -> None:
    subject = module()
    before = str(subject)
    manager = PassManager.parse(f"remove-identity,broken{{how={how}}},dce", reproducers=tmp_path)
    with pytest.raises(kind) as raised:
        manager.run(subject)
    error = raised.value
    notes = error.diagnostics[0].notes if isinstance(error, PassError) else tuple(error.__notes__)
    assert notes[0] == f"during pass 2, broken{{how={how}}}"
    assert notes[1] == "passes run before it: remove-identity"
    (path,) = tmp_path.iterdir()
    assert notes[2] == f"to reproduce: tilewright ir --reproduce {path}"
    text, pipeline = read_reproducer(path)
    assert pipeline == str(manager)
    assert str(parse(text)) == before
    with pytest.raises(kind):
        PassManager.parse(pipeline, reproducers=False).run(parse(text))


def test_a_file_that_is_no_reproducer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tw").write_text("func @main() -> () { return }")
    with pytest.raises(UsageError, match="a reproducer begins with"):
        read_reproducer(tmp_path / "x.tw")


def test_a_pass_that_breaks_the_ir_is_found_and_named() -> None:
    text = "cse,broken{how=invalid},dce"
    with pytest.raises(VerifyError) as raised:
        PassManager.parse(text, verify_each=True, reproducers=False).run(module())
    assert "during pass 2, broken{how=invalid}" in str(raised.value)
    assert "found after broken" in str(raised.value)
    with pytest.raises(VerifyError, match="found after the last pass"):
        PassManager([Broken("invalid")], reproducers=False).run(module())


def test_a_broken_input_is_found_before_the_first_pass() -> None:
    subject = module()
    context = PassContext()
    context.rewriter(subject).move(subject.main.block.terminator, next(iter(subject.main.block)))
    with pytest.raises(VerifyError, match="found before the first pass"):
        PassManager.parse("cse", reproducers=False).run(subject)


# ---- instruments -----------------------------------------------------------------------------------------------------


def test_the_ir_is_printed_around_passes() -> None:
    before, changes = io.StringIO(), io.StringIO()
    instruments = [PrintIR("before", before, only=["cse"]), PrintIR("on-change", changes)]
    PassManager.parse("dce,remove-identity,cse", instruments=instruments).run(module())
    assert before.getvalue().count("// ---- before 3: cse") == 1
    assert before.getvalue().count("// ----") == 1
    assert changes.getvalue().index("// ---- after 2: remove-identity") < changes.getvalue().index(
        "// ---- after 3: cse"
    )
    assert "dce" not in changes.getvalue()


def test_the_ir_is_printed_into_numbered_files(tmp_path: Path) -> None:
    PassManager.parse("remove-identity,cse", instruments=[PrintIR("after", tmp_path / "ir")]).run(module())
    files = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert files == ["001-after-remove-identity.tw", "002-after-cse.tw"]
    assert names(parse((tmp_path / "ir" / files[1]).read_text())) == ["exp", "add"]


def test_a_pass_that_lies_about_changing_is_caught() -> None:
    with pytest.raises(AssertionError, match="broken says that it changed the module, which is not so"):
        PassManager([Broken()], instruments=[CheckChanged()], reproducers=False).run(module())


def test_times_and_statistics_are_readable() -> None:
    context = PassContext()
    report = PassManager.parse("remove-identity,repeat(max=2){cse,dce},later").run(module(), context)
    tree = timing_tree(report).splitlines()
    assert tree[0].endswith("pipeline")
    assert [line.split("%")[1][2:] for line in tree] == [
        "pipeline",
        "  remove-identity",
        "  repeat(max=2){cse,dce}",
        "    cse x 2",
        "    dce",
        "  later",
        "  checks and bookkeeping",
    ]
    assert statistics_text(context.statistics) == "       1  later: runs"


def test_repeats_can_be_built_in_python() -> None:
    manager = PassManager([Repeat((WithOptions(flag=True),), max=2)])
    assert str(manager) == "repeat(max=2){with-options{flag=true}}"
