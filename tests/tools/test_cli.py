"""The command line as a whole: the table of commands, errors, exit codes, and running a file by its path."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from pathlib import Path

import click
import pytest

import tilewright
from tilewright import Builder, f32
from tilewright.backends.executable import ModelWarning
from tilewright.graph.diagnostics import Diagnostic, ModelError
from tilewright.tools import cli

TOOLS = Path(cli.__file__).resolve().parent


def command_that_raises(error: BaseException) -> click.Command:
    @click.command("failing")
    def failing() -> None:
        raise error

    return failing


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["optimise"]) == 2
    message = capsys.readouterr().err
    assert "there is no command 'optimise'. Did you mean 'optimize'" in message


def test_command_unlike_any_other_points_to_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["qqqqqq"]) == 2
    assert "`tilewright --help` lists them" in capsys.readouterr().err


def test_a_file_in_the_place_of_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.onnx"
    model.touch()
    assert cli.main([str(model)]) == 2
    assert f"Did you mean: tilewright optimize {model}" in capsys.readouterr().err


def test_no_command_shows_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    captured = capsys.readouterr()
    assert all(name in captured.out + captured.err for name in cli.COMMANDS)


def test_user_error_is_a_message_and_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ModelError("onnx/bad-edge", "value 'x' is never defined", notes=["it is read by node 3"])
    assert cli.run_command(command_that_raises(error), []) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error[onnx/bad-edge]: value 'x' is never defined\n  note: it is read by node 3\n"

    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    with pytest.raises(ModelError):
        cli.run_command(command_that_raises(error), [])


def test_file_error_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @click.command("reading")
    def reading() -> None:
        (tmp_path / "missing.npy").read_bytes()

    assert cli.run_command(reading, []) == 2
    message = capsys.readouterr().err
    assert "missing.npy: No such file or directory" in message
    assert "Traceback" not in message


def test_warnings_are_shown_as_they_read(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command("warning")
    def warning() -> None:
        warnings.warn("%y is declared f32[n]", ModelWarning, stacklevel=1)
        warnings.warn("deprecated", FutureWarning, stacklevel=1)

    with pytest.warns(FutureWarning, match="deprecated"):
        assert cli.run_command(warning, []) == 0
    assert capsys.readouterr().err == "%y is declared f32[n]\n"


def test_of_very_many_errors_the_first_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    error = ModelError.collect([Diagnostic("a/b", f"error {number}") for number in range(50)])
    assert cli.run_command(command_that_raises(error), []) == 2
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("error[a/b]: error 0", "... and 30 more errors")
    assert len(lines) == 21


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "error[file/os-error]: No space left on device"),
        (MemoryError("Unable to allocate 8.00 TiB"), "error[memory/exhausted]: there is not enough memory: Unable to"),
    ],
)
def test_a_full_disk_or_memory_is_a_message(error: Exception, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(command_that_raises(error), []) == 2
    assert capsys.readouterr().err.startswith(message)


def test_our_own_fault_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        cli.run_command(command_that_raises(ZeroDivisionError()), [])


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(command_that_raises(click.exceptions.Exit(1)), []) == 1
    assert cli.run_command(command_that_raises(KeyboardInterrupt()), []) == 130
    assert cli.run_command(command_that_raises(click.FileError("a.npy", "is not a file")), []) == 2
    assert cli.run_command(click.Command("nothing"), []) == 0
    assert cli.run_command(click.Command("nothing"), ["--bogus"]) == 2
    with pytest.raises(SystemExit) as stop:
        cli.run_command(command_that_raises(SystemExit(1)), [])
    assert stop.value.code == 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals that ask a process to end")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_leaves_no_temporary_files(name: str, tmp_path: Path) -> None:
    """The process is asked to end when the result lies in its scratch folder and the old output is still in place."""
    model, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    b = Builder()
    b.output(b.relu(b.input("x", f32[3])), "y")
    tilewright.save(b.build(), model)
    out.write_bytes(b"precious")
    number = getattr(signal, name)
    code = (
        "import os, signal, sys, tilewright\nfrom tilewright.tools import _optimize, cli\n"
        f"signal.signal({int(number)}, signal.default_int_handler if {name == 'SIGINT'} else signal.SIG_DFL)\n"
        "def put(scratch, output):\n"
        "    print(len(list(scratch.iterdir())), flush=True)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "_optimize.put_into_place = put\n"
        f"sys.exit(cli.main(['optimize', {str(model)!r}, '-o', {str(out)!r}, '--no-parity', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (128 + number, "1\n"), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]
    assert out.read_bytes() == b"precious"


def test_signals_are_handled_as_before_afterwards() -> None:
    handled = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert cli.run_command(click.Command("nothing"), []) == 0
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handled


@pytest.mark.skipif(sys.platform == "win32", reason="closed pipes are reported differently on Windows")
@pytest.mark.parametrize("lines", [1, 100_000])
def test_closed_pipe_is_quiet(lines: int) -> None:
    code = (
        "import click, sys, time\nfrom tilewright.tools.cli import run_command\n"
        "@click.command()\ndef talk():\n"
        f"    sys.stdin.read()\n    for i in range({lines}): print(i)\n"
        "sys.exit(run_command(talk, []))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.close()
    _, complaint = child.communicate(b"", timeout=30)
    assert (child.returncode, complaint) == (141, b"")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_command_is_where_the_table_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = cli.load_command(cli.COMMANDS[name])
    assert command.name == name
    assert cli.main([name, "--help"]) == 0
    assert f"tilewright {name} " in capsys.readouterr().out.partition("\n")[2], "its help shows an example"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_command_runs_as_a_script(name: str) -> None:
    script = TOOLS / f"{cli.COMMANDS[name].target.partition(':')[0]}.py"
    done = subprocess.run([sys.executable, str(script), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"Usage: {script.name}" in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_script_without_the_package_says_what_to_do(name: str) -> None:
    script = TOOLS / f"{cli.COMMANDS[name].target.partition(':')[0]}.py"
    code = (
        "import runpy, sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.partition('.')[0] == 'tilewright':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        f"sys.meta_path.insert(0, Hide())\nsys.path[0] = {str(TOOLS)!r}\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Install the package first: pip install -e ." in done.stderr
    assert "Traceback" not in done.stderr


def test_every_command_file_is_in_the_table() -> None:
    in_table = {entry.target.partition(":")[0] for entry in cli.COMMANDS.values()}
    on_disk = {path.stem for path in TOOLS.glob("*.py") if not path.stem.startswith("_")} - {"cli"}
    defining = {stem for stem in on_disk if "@click.command" in (TOOLS / f"{stem}.py").read_text("utf-8")}
    assert defining == in_table
