"""The command line: finds a command by name, imports only that one, and turns errors into exit codes.

Exit codes: 0 done, 1 the answer is no (parity failed, check failed), 2 bad input or usage, 130 interrupted,
141 the reader of our output went away, 129 and 143 ended by SIGHUP and SIGTERM. `TILEWRIGHT_DEBUG=1` shows an error's
traceback, not its message.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import click

import tilewright

DONE, BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 0, 2, 130, 141
# Of the errors in one model; a file without its weights has one for each of them.
SHOWN_ERRORS = 20


class CommandEntry(NamedTuple):
    """Where a command lives (`module:function` below tilewright.tools) and its line in the list."""

    target: str
    summary: str


# A static table, so that `tilewright --version` and `--help` import no command.
COMMANDS = {
    "bench": CommandEntry("bench:bench", "Time a model on the cpu target, beside other runtimes."),
    "cache": CommandEntry("cache:cache", "Show or clear the compiled kernels kept on disk."),
    "compile": CommandEntry("compile_model:compile_model", "Write an executable that loads without compiling."),
    "diff": CommandEntry("diff:diff", "Show what differs between two models, or two steps of a trace."),
    "gradient": CommandEntry("gradient:gradient", "Extend a model by the gradient of an output."),
    "inspect": CommandEntry("inspect_model:inspect_model", "Inputs, outputs, operators, parameters, FLOPs, size."),
    "ir": CommandEntry("ir:ir", "Print a model as text, after passes too, or why a rule did not apply."),
    "machine": CommandEntry("machine:machine", "What kernels are made for on this machine."),
    "optimize": CommandEntry("optimize:optimize", "Write a smaller, cleaner model and check that it agrees."),
    "parity": CommandEntry("parity:parity", "Check that a model, or two models, compute the same."),
    "profile": CommandEntry("profile_model:profile", "Where the time of a run goes, kernel by kernel."),
    "run": CommandEntry("run:run", "Run a model on given or random inputs."),
    "train": CommandEntry("train:train", "Train a model on arrays, or write its training step as a file."),
}


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        return load_command(entry) if entry else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            ctx.fail(unknown_command(name))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])


def load_command(entry: CommandEntry) -> click.Command:
    """Import the command that a table entry names."""
    module_name, _, function = entry.target.partition(":")
    command = getattr(importlib.import_module(f"tilewright.tools.{module_name}"), function)
    if not isinstance(command, click.Command):
        raise TypeError(f"tilewright.tools.{entry.target} is not a click command")
    return command


def unknown_command(name: str) -> str:
    """The message for a command that does not exist, with the nearest ones that do."""
    import difflib

    if os.path.exists(name):
        return f"{name!r} is a file, not a command. Did you mean: tilewright optimize {name}"
    near = [repr(command) for command in difflib.get_close_matches(name, COMMANDS, n=3, cutoff=0.5)]
    hint = f"Did you mean {' or '.join(near)}?" if near else "`tilewright --help` lists them."
    return f"there is no command {name!r}. {hint}"


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="`tilewright COMMAND --help` shows a command's options with an example.",
)
@click.version_option(tilewright.__version__, prog_name="tilewright", message="%(prog)s %(version)s")
def tilewright_command() -> None:
    """Read a neural network, see it, rewrite it, prove that it still agrees, and run it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `tilewright`: run the command line (default: the process's) and return its exit code."""
    if arguments is None:
        # The process ends after the command; without this, Python looks for cycles in all that it leaves behind.
        atexit.register(gc.freeze)
    return run_command(tilewright_command, arguments, name="tilewright")


def run_command(command: click.Command, arguments: Sequence[str] | None = None, name: str | None = None) -> int:
    """Run one command and return its exit code; every error a user can cause becomes a message on stderr."""
    if arguments is None:
        write_utf8()
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = name or os.path.basename(sys.argv[0]) or command.name
    try:
        with ending_in_order(), plain_warnings(), command.make_context(name, given) as context:
            command.invoke(context)
        if sys.stdout is not None:  # None where the caller has closed it
            sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except Ended as signalled:
        return 128 + signalled.number
    except BrokenPipeError:
        # Python flushes stdout once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        message = user_message(error)
        if message is None or os.environ.get("TILEWRIGHT_DEBUG"):
            raise
        click.echo(message, err=True)
        return BAD_INPUT
    return DONE


def write_utf8() -> None:
    """What goes to a file or pipe is UTF-8, as our own readers take it, whatever the system's usual encoding is.

    A terminal keeps its encoding, as does who asks for one with PYTHONIOENCODING; what that cannot show is escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            keeps = stream.isatty() or "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=stream.encoding if keeps else "utf-8", errors="backslashreplace")


class Ended(BaseException):
    """The process was asked to end by a signal; nothing but `run_command` catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the command, as Ctrl-C does, so that it removes its temporary files.

    A second one ends the process at once. Signals that are ignored (nohup) or handled already are left as they are.
    """
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [number for number in map(partial(getattr, signal), names) if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        numbers = []  # only the main thread may handle signals

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Ended(number)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show the package's own warnings as they read, without the line of ours that gave them."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if category.__module__.startswith("tilewright."):
                click.secho(str(message), fg="yellow", err=True)
            else:
                usual(message, category, *place)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def user_message(error: Exception) -> str | None:
    """What to tell the user about `error`; None if it is a fault of ours, whose traceback must be seen."""
    from tilewright.graph.diagnostics import Diagnostic, TilewrightError

    if isinstance(error, TilewrightError):
        lines = [each.render() for each in error.diagnostics[:SHOWN_ERRORS]]
        more = len(error.diagnostics) - len(lines)
        return "\n".join([*lines, *([f"... and {more} more errors"] if more else [])])
    if isinstance(error, OSError):
        # Writing to a full disk names no file.
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
        return Diagnostic("file/os-error", f"{place}{error.strerror or error}").render()
    if isinstance(error, MemoryError):
        found = f": {error}" if str(error) else ""
        hint = ("--dim and --input-shape choose smaller inputs",)
        return Diagnostic("memory/exhausted", f"there is not enough memory{found}", notes=hint).render()
    return None


if __name__ == "__main__":
    sys.exit(main())
