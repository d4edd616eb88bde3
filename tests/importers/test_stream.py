"""Models are written from mapped files, all or nothing, and with their weights beside them when they are large."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tilewright.graph.data import ArrayData, MappedData, MappedFile
from tilewright.graph.diagnostics import ExportError
from tilewright.graph.dtypes import u8
from tilewright.importers.onnx import stream
from tilewright.importers.onnx.stream import write_bytes, write_model
from tilewright.importers.onnx.wire import mark, read_model


def model_of(*sizes: int, attribute: int = 0) -> ModelProto:
    """A model with float weights w0, w1, ... of these element counts, and one in an attribute if asked."""
    weights = [numpy_helper.from_array(np.full(n, i, np.float32), f"w{i}") for i, n in enumerate(sizes)]
    nodes = [helper.make_node("Identity", ["w0"], ["y"])]
    if attribute:
        value = numpy_helper.from_array(np.full(attribute, 7, np.float32))
        nodes.append(helper.make_node("Constant", [], ["c"], value=value))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [sizes[0]])
    return helper.make_model(helper.make_graph(nodes, "g", [], [y], weights))


def load_lazily(path: Path) -> tuple[ModelProto, list[MappedData]]:
    """The model at `path` with its weights mapped, as the importer reads it."""
    file = MappedFile.open(path)
    model, payloads = read_model(file.view)
    return model, [MappedData(file, offset, length, u8, (length,)) for offset, length in payloads]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def loaded_equal(path: Path, model: ModelProto) -> bool:
    """Whether the written model means the same, wherever its weights are."""
    onnx.checker.check_model(path)
    loaded = onnx.load(path)
    tensors = [*loaded.graph.initializer, *(n.attribute[0].t for n in loaded.graph.node if n.attribute)]
    for tensor in tensors:
        tensor.ClearField("data_location")
    return loaded == model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model file in a folder of its own."""
    folder = tmp_path / "source"
    folder.mkdir()
    onnx.save(model_of(1000, 5, 3000, attribute=2000), folder / "model.onnx")
    return folder / "model.onnx"


def test_a_mapped_model_is_copied_byte_for_byte(source: Path, tmp_path: Path) -> None:
    model, sources = load_lazily(source)
    written = write_model(tmp_path / "out.onnx", model, sources)
    assert (tmp_path / "out.onnx").read_bytes() == source.read_bytes() == write_bytes(model, sources)
    assert (written.path, written.data_path, written.nbytes) == (tmp_path / "out.onnx", None, source.stat().st_size)
    assert names(tmp_path) == ["out.onnx", "source"]


def test_a_model_is_written_over_itself(source: Path) -> None:
    before = source.read_bytes()
    model, sources = load_lazily(source)
    for _ in range(2):
        write_model(source, model, sources, fsync=True)
        assert source.read_bytes() == before
    assert names(source.parent) == ["model.onnx"]


def test_external_data_is_aligned_and_readable_by_onnx(tmp_path: Path) -> None:
    sizes = (1000, 5, 3000, 400_000, 300)
    original = model_of(*sizes, attribute=2000)
    onnx.save(original, tmp_path / "in.onnx")
    model, sources = load_lazily(tmp_path / "in.onnx")
    path = tmp_path / "out.onnx"
    written = write_model(path, model, sources, external=True)
    assert written.data_path == tmp_path / "out.onnx.data"
    assert written.nbytes == path.stat().st_size + written.data_path.stat().st_size
    assert loaded_equal(path, original)
    stored = onnx.load(path, load_external_data=False)
    places = {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in stored.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }
    assert places == {
        "w0": {"location": "out.onnx.data", "offset": "0", "length": "4000"},
        "w2": {"location": "out.onnx.data", "offset": "4096", "length": "12000"},
        "w3": {"location": "out.onnx.data", "offset": "65536", "length": "1600000"},
        "w4": {"location": "out.onnx.data", "offset": str(65536 + 1_600_000), "length": "1200"},
    }
    # An attribute's tensor stays in the model: few readers look for it elsewhere.
    assert stored.graph.node[1].attribute[0].t.raw_data


def test_external_data_is_written_over_itself(tmp_path: Path) -> None:
    original = model_of(1000, 2000)
    path = tmp_path / "m.onnx"
    onnx.save(original, tmp_path / "in.onnx")
    model, sources = load_lazily(tmp_path / "in.onnx")
    write_model(path, model, sources, external=True)
    data = MappedFile.open(tmp_path / "m.onnx.data")
    again = [MappedData(data, 4096, 8000, u8, (8000,)), MappedData(data, 0, 4000, u8, (4000,))]
    mark(model.graph.initializer[0], 1)
    mark(model.graph.initializer[1], 0)
    write_model(path, model, again, external=True)
    assert loaded_equal(path, original)
    assert names(tmp_path) == ["in.onnx", "m.onnx", "m.onnx.data"]


def test_a_shared_source_is_stored_once(tmp_path: Path) -> None:
    model = model_of(1000, 1000)
    for tensor in model.graph.initializer:
        mark(tensor, 0)
    shared = ArrayData(np.arange(1000, dtype=np.float32))
    write_model(tmp_path / "m.onnx", model, [shared], external=True)
    assert (tmp_path / "m.onnx.data").stat().st_size == 4000
    for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer:
        assert np.array_equal(numpy_helper.to_array(tensor), shared.numpy())


def test_size_decides_what_leaves_the_model(source: Path, tmp_path: Path) -> None:
    model, sources = load_lazily(source)
    original = onnx.load(source)
    size = source.stat().st_size
    path = tmp_path / "m.onnx"
    assert write_model(path, model, sources, inline_limit=size).data_path is None
    # One byte too much: the weights leave. Less room than the attribute needs: that leaves as well.
    assert write_model(path, model, sources, inline_limit=size - 1).data_path is not None
    assert (tmp_path / "m.onnx.data").stat().st_size == 4096 + 12000
    assert write_model(path, model, sources, inline_limit=2000).data_path is not None
    assert (tmp_path / "m.onnx.data").stat().st_size == 8192 + 4096 + 12000
    assert loaded_equal(path, original)
    with pytest.raises(ExportError, match="too-large"):
        write_model(path, model, sources, inline_limit=50)
    with pytest.raises(ExportError, match="too-large"):
        write_model(path, model, sources, external=False, inline_limit=size - 1)
    assert loaded_equal(path, original)


def test_bytes_beyond_two_gigabytes_are_refused() -> None:
    class Huge:
        nbytes = 3 << 30

        def write_to(self, file: BinaryIO) -> None:
            raise AssertionError("not to be written")

    model = model_of(1000)
    mark(model.graph.initializer[0], 0)
    with pytest.raises(ExportError, match="2 GiB"):
        write_bytes(model, [Huge()])


class Failing:
    """A source that fails halfway."""

    nbytes = 4000

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def write_to(self, file: BinaryIO) -> None:
        file.write(b"x" * 100)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("external", [True, False])
@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError("disk full"), OSError), (KeyboardInterrupt(), KeyboardInterrupt), (None, RuntimeError)],
)
def test_failure_leaves_the_old_model(
    source: Path, external: bool, error: BaseException | None, raised: type[BaseException]
) -> None:
    model, sources = load_lazily(source)
    write_model(source, model, sources, external=True)
    before = {path: path.read_bytes() for path in source.parent.iterdir()}
    with pytest.raises(raised):
        write_model(source, model, [sources[0], Failing(error), *sources[2:]], external=external)
    assert {path: path.read_bytes() for path in source.parent.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size on Windows")
@pytest.mark.parametrize("external", [True, False])
def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path: Path, external: bool) -> None:
    script = f"""
import resource, signal
import numpy as np
from onnx import helper, numpy_helper
import tilewright
weight = numpy_helper.from_array(np.zeros(20_000, np.float32), "w")
x, y = (helper.make_tensor_value_info(name, 1, [20_000]) for name in "xy")
graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
module = tilewright.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))
try:
    tilewright.save(module, {str(tmp_path / "model.onnx")!r}, external={external})
except OSError as error:
    print(error.filename)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == str(tmp_path / ("model.onnx.data" if external else "model.onnx"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("hard_links", [True, False])
@pytest.mark.parametrize("existing", [True, False])
def test_failure_between_the_renames_restores_the_data_file(
    source: Path, monkeypatch: pytest.MonkeyPatch, existing: bool, hard_links: bool
) -> None:
    model, sources = load_lazily(source)
    if existing:
        write_model(source, model, sources, external=True)
    before = {path: path.read_bytes() for path in source.parent.iterdir()}
    replace = os.replace

    def failing_replace(old: Path, new: Path) -> None:
        if new == source:
            raise PermissionError("in use")
        replace(old, new)

    def no_link(old: Path, new: Path) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(stream.os, "replace", failing_replace)
    if not hard_links:
        monkeypatch.setattr(stream.os, "link", no_link)
    with pytest.raises(PermissionError):
        write_model(source, model, [*sources[:1], *sources[:1], *sources[2:]], external=True)
    assert {path: path.read_bytes() for path in source.parent.iterdir()} == before


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_permissions_are_those_of_open_or_of_the_old_file(source: Path, tmp_path: Path) -> None:
    model, sources = load_lazily(source)
    (tmp_path / "plain").touch()
    write_model(tmp_path / "m.onnx", model, sources)
    assert (tmp_path / "m.onnx").stat().st_mode == (tmp_path / "plain").stat().st_mode
    source.chmod(0o640)
    write_model(source, model, sources)
    assert stat.S_IMODE(source.stat().st_mode) == 0o640


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_written_to_and_not_replaced(source: Path, tmp_path: Path) -> None:
    model, sources = load_lazily(source)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_model(pipe, model, sources)
    reader.join(timeout=20)
    assert received == [source.read_bytes()]
    assert pipe.is_fifo()


def test_errors_name_the_file_that_was_asked_for(source: Path, tmp_path: Path) -> None:
    model, sources = load_lazily(source)
    with pytest.raises(FileNotFoundError, match=r"the folder .*missing does not exist") as error:
        write_model(tmp_path / "missing" / "m.onnx", model, sources)
    assert error.value.filename == str(tmp_path / "missing" / "m.onnx")
    with pytest.raises(OSError, match="too long") as long:
        write_model(tmp_path / f"{'m' * 250}.onnx", model, sources)
    assert long.value.filename == str(tmp_path / f"{'m' * 250}.onnx")


def test_a_folder_is_no_target(source: Path, tmp_path: Path) -> None:
    model, sources = load_lazily(source)
    with pytest.raises(IsADirectoryError):
        write_model(tmp_path, model, sources)
    (tmp_path / "m.onnx.data").mkdir()
    with pytest.raises(IsADirectoryError):
        write_model(tmp_path / "m.onnx", model, sources, external=True)
    assert names(tmp_path) == ["m.onnx.data", "source"]


class Hole:
    """Zeros that take no room on the disk."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def write_to(self, file: BinaryIO) -> None:
        file.seek(self.nbytes, os.SEEK_CUR)
        file.truncate()


LOAD_AND_REPORT = """
import sys
from pathlib import Path
from tilewright.graph.data import MappedData, MappedFile
from tilewright.graph.dtypes import f32
from tilewright.importers.onnx.external import ExternalFiles
from tilewright.importers.onnx.wire import layout, read_model

def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024

layout()
before = peak()
path = Path(sys.argv[1])
model, payloads = read_model(MappedFile.open(path).view)
files = ExternalFiles.beside(path)
weights = []
for tensor in model.graph.initializer:
    place = files.of_tensor(tensor)
    weights.append(MappedData(MappedFile.open(place.path), place.offset, place.length, f32, tuple(tensor.dims)))
assert weights[-1].numpy()[-1] == 0
print(len(weights), sum(w.nbytes for w in weights), peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and needs a file system with holes")
def test_three_gigabytes_are_written_and_loaded_without_memory(tmp_path: Path) -> None:
    elements = 100 << 18  # 100 MiB of float32
    model = ModelProto(ir_version=10)
    for index in range(30):
        tensor = model.graph.initializer.add(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[elements])
        mark(tensor, index)
    path = tmp_path / "large.onnx"
    written = write_model(path, model, [Hole(4 * elements)] * 30)
    assert written.data_path is not None
    assert written.data_path.stat().st_size == 30 * 4 * elements
    assert written.data_path.stat().st_blocks * 512 < 1 << 20
    result = subprocess.run(
        [sys.executable, "-c", LOAD_AND_REPORT, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    count, nbytes, memory = map(int, result.stdout.split())
    assert (count, nbytes) == (30, 30 * 4 * elements)
    assert memory < 16 << 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes to fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_a_file_is_being_mapped_maps_it_too(tmp_path: Path, monkeypatch: Any) -> None:
    path, begun = tmp_path / "weights", threading.Event()
    path.write_bytes(b"weights")
    resolved = Path.resolve

    def slowly(path: Path, strict: bool = False) -> Path:
        if threading.current_thread() is mapping:
            begun.set()
            time.sleep(0.2)
        return resolved(path, strict)

    monkeypatch.setattr(Path, "resolve", slowly)
    mapping = threading.Thread(target=MappedFile.open, args=(path,))
    mapping.start()
    assert begun.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # one that waits for ever is ended
        os._exit(0 if MappedFile.open(path).view == b"weights" else 1)
    mapping.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
