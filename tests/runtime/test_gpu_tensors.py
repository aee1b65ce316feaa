"""Tensors and streams of other libraries on a GPU, by a stub of its driver: what is copied."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dlc.codegen.cuda.host import DATA, GPU
from dlc.codegen.llvm.host import ABI_VERSION
from dlc.compiler import build
from dlc.runtime import load
from tests.runtime.emulated import build_emulated, build_stub
from tests.runtime.test_gpu import model, weights

SCRIPT = """
import sys
import numpy as np
import dlc.runtime
from dlc.core.errors import InputError, UserError
from tests.runtime.gpu_tensors import CUDA, GpuTensor, address_of, stream
def note(text):
    open(sys.argv[2], "a").write(f"-- {text}\\n")
model = dlc.runtime.load(sys.argv[1])
x = np.arange(20, dtype=np.float32).reshape(4, 5)
want = model.run({"x": x})["y"]
y = np.zeros_like(want)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of any number of rows."""
    f32 = TensorProto.FLOAT
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    net = model([node], [weights("w", 5, 6)], {"x": (f32, ["n", 5])}, {"y": (f32, ["n", 6])})
    path = tmp_path_factory.mktemp("tensors") / "model.so"
    with pytest.MonkeyPatch.context() as patch:
        build_emulated(net, path, patch)
    return path


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


def calls_of(built: Path, stub: Path, script: str) -> list[list[str]]:
    """The calls of the driver, cut where the script notes something."""
    log = built.with_suffix(".log")
    log.unlink(missing_ok=True)
    root = str(Path(__file__).parents[2])
    env = os.environ | {
        "LD_LIBRARY_PATH": str(stub), "STUB_CUDA_LOG": str(log), "PYTHONPATH": root,
    }  # fmt: skip
    command = [sys.executable, "-c", SCRIPT + script, str(built), str(log)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    parts: list[list[str]] = [[]]
    for line in log.read_text().splitlines():
        if line.startswith("--"):
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def words(calls: list[str]) -> list[str]:
    return [c for c in calls if not c.startswith(("launch", "allocate", "ahead"))]


def test_tensors_on_the_gpu_are_used_where_they_are(built: Path, stub: Path) -> None:
    found = calls_of(built, stub, """
a, b = GpuTensor(x), GpuTensor(y)
note("first")
found = model.run_on_gpu({"x": a}, {"y": b})
note("again")
model.run_on_gpu({"x": a}, {"y": b})
note("other memory")
c = GpuTensor(y)
model.run_on_gpu({"x": a}, {"y": c})
note("end")
assert found["y"] is b and (b.array == want).all() and (c.array == want).all()
assert a.streams == [1, 1, 1]
""")  # fmt: skip
    assert words(found[1])[-2:] == ["record", "replay in the default stream"]
    assert words(found[2]) == ["replay in the default stream"]
    assert words(found[3]) == ["record", "replay in the default stream"]
    assert not any("device 80" in c or "host" in c for part in found[1:] for c in part)


def test_a_stream_of_the_callers_is_worked_in(built: Path, stub: Path) -> None:
    found = calls_of(built, stub, """
a, b, mine = GpuTensor(x), GpuTensor(y), stream()
note("run")
model.run_on_gpu({"x": a}, {"y": b}, stream=mine)
note("end")
assert (b.array == want).all() and a.streams == b.streams == [mine]
""")  # fmt: skip
    assert words(found[1])[-2:] == ["record", "replay"]


def test_a_run_that_is_refused_keeps_what_was_recorded(built: Path, stub: Path) -> None:
    found = calls_of(built, stub, """
a, b = GpuTensor(x), GpuTensor(y)
model.run_on_gpu({"x": a}, {"y": b})
try:
    model.run_on_gpu({"x": a}, {"y": GpuTensor(x)})
except UserError as error:
    assert "expected shape" in str(error), error
else:
    raise AssertionError
note("again")
model.run_on_gpu({"x": a}, {"y": b})
note("end")
""")  # fmt: skip
    assert words(found[1]) == ["replay in the default stream"]


def test_outputs_are_made_on_the_gpu(built: Path, stub: Path) -> None:
    found = calls_of(built, stub, """
made = model.run_on_gpu({"x": GpuTensor(x)})["y"]
note("read")
assert made.shape == (4, 6) and made.dtype == np.float32 and made.__dlpack_device__() == (2, 0)
assert (made.numpy() == want).all()
note("same stream")
address_of(made.__dlpack__(stream=1))
note("another")
held = made.__dlpack__(stream=2)
del made
note("freed last")
address_of(held)
del held
note("end")
""")  # fmt: skip
    assert found[1] == ["to host 96", "wait"]
    assert found[2] == []
    assert found[3] == ["wait"]
    assert found[4] == ["free"]


def test_inputs_of_the_cpu_are_copied_by_way_of_pinned_memory(built: Path, stub: Path) -> None:
    found = calls_of(built, stub, """
note("run")
made = model.run_on_gpu({"x": x[:, :]}, stream=0)["y"]
note("end")
assert (made.numpy() == want).all()
""")  # fmt: skip
    assert "to device 80" in found[1]
    assert found[1][-1] == "wait"
    assert "pin 80" in found[0]  # by the run before
    assert sum(c.startswith("pin") for p in found for c in p) == sum(
        c == "unpin" for p in found for c in p
    )


def test_a_tensor_that_is_not_aligned_is_copied(built: Path, stub: Path) -> None:
    found = calls_of(built, stub, """
a, b = GpuTensor(x, offset=4), GpuTensor(y, offset=8)
note("run")
model.run_on_gpu({"x": a}, {"y": b})
note("end")
assert (b.array == want).all()
""")  # fmt: skip
    assert [c for c in found[1] if c.startswith("on device")] == ["on device 80", "on device 96"]


def test_what_cannot_be_used_is_refused(built: Path, stub: Path) -> None:
    calls_of(built, stub, """
def refused(kind, text, *args, **options):
    try:
        model.run_on_gpu(*args, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(text)
refused(InputError, "not on the first GPU", {"x": GpuTensor(x, device=(2, 1))})
refused(InputError, "not on a GPU", {"x": x}, {"y": y})
refused(UserError, "there is no output 'z'", {"x": x}, {"z": y})
refused(InputError, "expected shape", {"x": GpuTensor(y)})
class Attached(GpuTensor):
    def __dlpack__(self, *, stream=None):
        raise BufferError("it needs its gradient")
refused(InputError, "it needs its gradient", {"x": Attached(x)})
""")  # fmt: skip


def test_a_model_for_the_cpu_has_no_streams(tmp_path: Path) -> None:
    f32 = TensorProto.FLOAT
    node = helper.make_node("Relu", ["x"], ["y"])
    path = tmp_path / "model.so"
    build(model([node], [], {"x": (f32, [3])}, {"y": (f32, [3])}), path, "native")
    with pytest.raises(Exception, match="runs on the CPU"):
        load(path).run_on_gpu({"x": np.zeros(3, np.float32)})


def first_rows() -> onnx.ModelProto:
    """As many rows as an element says."""
    node, f32 = helper.make_node, TensorProto.FLOAT
    nodes = [
        node("Slice", ["x", "at", "behind"], ["element"]),
        node("Cast", ["element"], ["number"], to=TensorProto.INT64),
        node("Reshape", ["number", "one"], ["rows"]),
        node("Slice", ["x", "zero", "rows"], ["y"]),
    ]
    numbers = {"at": [0, 3], "behind": [1, 4], "one": [1], "zero": [0]}
    constants = [numpy_helper.from_array(np.array(v), name) for name, v in numbers.items()]
    return model(nodes, constants, {"x": (f32, ["n", 5])}, {"y": (f32, ["k", 5])})


def test_an_output_of_a_size_from_data_is_written_where_the_caller_wants_it(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.so"
    build_emulated(first_rows(), path, monkeypatch)
    _, calls, _ = calls_of(
        path,
        stub,
        """
np.testing.assert_array_equal(want, x[:3])
b = GpuTensor(y)
note("on the GPU")
model.run_on_gpu({"x": GpuTensor(x)}, {"y": b})
note("done")
np.testing.assert_array_equal(b.array, want)
for outputs, what in (({"y": GpuTensor(y[:2])}, "shape"), (None, "it is not made on the GPU")):
    try:
        model.run_on_gpu({"x": GpuTensor(x)}, outputs)
    except UserError as error:
        assert what in str(error), error
    else:
        raise AssertionError(what)
""",
    )
    assert words(calls) == [
        "wait",
        "to pinned 8",
        "wait",
    ]  # at first for the stream of the run before


def test_a_runtime_that_cannot_read_data_gets_no_model(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.so"
    build_emulated(first_rows(), path, monkeypatch)
    for library, answers in ((built, [True, True, False]), (path, [False, False, True])):
        query = ctypes.CDLL(str(library)).dlc_model_query
        query.restype, query.argtypes = ctypes.c_void_p, [ctypes.c_uint32]
        flags = (0, GPU, DATA)
        assert [query(ABI_VERSION | flag) is not None for flag in flags] == answers
