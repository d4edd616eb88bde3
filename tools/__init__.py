"""The commands of tilewright: one small click command per file.

A command file `NAME.py` holds one click command, imports the heavy parts of the package inside its functions,
and ends with

    if __name__ == "__main__":
        from _script import run

        run(NAME)

so that `python tools/NAME.py model.onnx` works too. A row in `cli.COMMANDS` makes it `tilewright NAME`. A
command raises a `tilewright.graph.diagnostics` error for bad input and `SystemExit(1)` when the answer
is no. No file here may bear the name of a standard-library module (`inspect.py`, `profile.py`): a script run
from here would import it in place of the real one.
"""
