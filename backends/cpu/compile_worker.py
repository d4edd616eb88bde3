"""LLVM IR to machine code: as a function, and as a process of its own that does it for others.

llvmlite lets one thread at a time into LLVM, so several kernels are compiled at once only in several processes. The
process needs nothing but the standard library and llvmlite, whose folder is its argument, so it starts fast and
whatever the calling program is. It reads tasks from standard input and writes results to standard output: a length of
8 bytes and so many bytes. A task is the target (triple, cpu, features, one a line), an empty line, and the IR; a result
is a byte that says whether it went well, and the object file or the error. The empty task asks for `host_facts`.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import Any, BinaryIO

# Loops are vectorized and unrolled, and functions cut, where they are built. What is left to do before code generation
# is to simplify addresses; LLVM's own list for -O3 gave no faster code, in three times the time.
PASSES = (
    "sroa", "instruction_combine", "simplify_cfg", "loop_simplify", "loop_rotate", "new_gvn", "instruction_combine",
    "dead_code_elimination", "simplify_cfg",
)  # fmt: skip

_LENGTH = struct.Struct("<q")


def host_facts() -> dict[str, Any]:
    """The processor's name and features, and the triple of this process."""
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return {
        "cpu": llvm.get_host_cpu_name(),
        "features": dict(llvm.get_host_cpu_features()),
        "triple": llvm.get_process_triple(),
    }


def target_machine(triple: str, cpu: str, features: str) -> Any:
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small", jit=True)


def optimized(text: str, triple: str, cpu: str, features: str) -> tuple[Any, Any]:
    """The optimized LLVM module of IR `text`, and the target machine it is meant for."""
    from llvmlite import binding as llvm

    target = target_machine(triple, cpu, features)
    module = llvm.parse_assembly(text)
    module.triple = triple
    module.data_layout = str(target.target_data)
    module.verify()
    builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=0))
    passes = llvm.create_new_module_pass_manager()
    for name in PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)
    return module, target


def compiled(text: str, triple: str, cpu: str, features: str) -> bytes:
    """A relocatable object file."""
    module, target = optimized(text, triple, cpu, features)
    return bytes(target.emit_object(module))


def send(stream: BinaryIO, content: bytes) -> None:
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def receive(stream: BinaryIO) -> bytes | None:
    """The next message; None at the end, or if it is cut off."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    return content if len(content) == length else None


def _answer(task: str) -> bytes:
    if not task:
        return json.dumps(host_facts()).encode()
    target, text = task.split("\n\n", 1)
    return compiled(text, *target.split("\n"))


def main() -> None:
    # Whatever else writes to standard output must not come between the results.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.path.insert(0, sys.argv[1])
    while (task := receive(sys.stdin.buffer)) is not None:
        try:
            answer = b"\1" + _answer(task.decode())
        except Exception as error:
            answer = b"\0" + str(error).encode()
        send(results, answer)


if __name__ == "__main__":
    main()
