"""What the README tells a newcomer to type works."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import onnx
import pytest

from tilewright import PassManager
from tilewright.passes.registry import rule_class
from tilewright.tools.cli import COMMANDS, load_command

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIGHT_NETWORKS = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_python_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(LIGHT_NETWORKS / "light_squeezenet.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks("python"))
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert (tmp_path / "smaller.onnx").stat().st_size <= (tmp_path / "model.onnx").stat().st_size


def test_every_command_is_shown() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    calls = [shlex.split(line, comments=True) for line in lines if line.startswith("tilewright ")]
    assert {call[1] for call in calls} == set(COMMANDS)


def test_pipelines_in_the_documents_can_be_parsed() -> None:
    text = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8") + README
    pipelines = re.findall(r'(?:--passes |parse\()"([^"]+)"', text)
    pipelines += re.findall(r"^    (\S+repeat\(.*)$", text, re.MULTILINE)
    assert len(pipelines) >= 3
    for pipeline in pipelines:
        assert str(PassManager.parse(pipeline))


@pytest.mark.parametrize("name", COMMANDS)
def test_rules_in_help_texts_exist(name: str) -> None:
    text = load_command(COMMANDS[name]).help or ""
    for rule in re.findall(r"--why (\S+)", text):
        assert rule_class(rule).name == rule


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)", text)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert links
    assert not missing


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for target in {"demo", "test", *re.findall(r"^(?:.*`)?make ([a-z]+)\b", text, re.MULTILINE)}:
        assert f"\n{target}:" in makefile
