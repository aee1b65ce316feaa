"""Indices from data on a GPU, by the stub of its driver: bad ones are refused as on a CPU."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlc.codegen.cuda.build as gpu_build
import dlc.codegen.cuda.emit as cuda_emit
from dlc.codegen.cuda.host import CHECKED, DATA, GPU
from dlc.codegen.llvm.host import ABI_VERSION
from dlc.compiler import build
from dlc.core.errors import UserError
from dlc.core.types import DType
from dlc.graph.ops import gather
from dlc.runtime import load
from dlc.te.expr import cast
from tests.frontend.text_model import model
from tests.runtime.emulated import build_emulated, build_stub, run_on_stub

_TRY = """
import json, sys
import numpy as np
import dlc.runtime
from dlc.core.errors import UserError
model, results, *inputs = sys.argv[1:]
module, said = dlc.runtime.load(model), []
for number, path in enumerate(inputs):
    try:
        np.savez(f"{results}.{number}.npz", **module.run(dict(np.load(path))))
        said.append("")
    except UserError as error:
        said.append(str(error))
open(results, "w").write(json.dumps(said))
"""
Feeds = dict[str, Any]
X = np.arange(24, dtype=np.float32).reshape(6, 4)
PLACES = np.array([[3, 1], [-6, -4], [5, 3]])
GATHER = """(float[n,4] x, int64[3,2] i) => (float[3,2,4] y) { y = Gather(x, i) }"""

# By name: a model, operands that are right, and changes that make them wrong.
CASES: dict[str, tuple[str, Feeds, list[Feeds]]] = {
    "gather": (
        GATHER,
        {"x": X, "i": np.array([[5, 0], [-6, 1], [2, 3]])},
        [{"i": np.array([[5, 0], [1, -7], [9, 3]])}, {"x": X[:5]}, {"x": X[:0]}],
    ),
    "gather of int32": (
        "(float[6,4] x, int32[5] i) => (float[6,5] y) { y = Gather<axis=1>(x, i) }",
        {"x": X, "i": np.array([3, 0, -4, 1, 2], np.int32)},
        [{"i": np.array([3, 0, -(2**31), 1, 4], np.int32)}],
    ),
    "gather elements": (
        "(float[6,4] x, int64[2,4] i) => (float[2,4] y) { y = GatherElements<axis=0>(x, i) }",
        {"x": X, "i": np.array([[5, 4, 3, 2], [-6, -1, 0, 1]])},
        [{"i": np.array([[5, 4, 3, 2], [-6, -1, 6, 2**40 + 5]])}],
    ),
    "positions": (
        "(float[n,4] x, int64[3,2] i) => (float[3] y) { y = GatherND(x, i) }",
        {"x": X, "i": PLACES},
        [{"i": PLACES * [[1, 1], [1, 2], [2, 1]]}, {"i": PLACES * [[2, 1], [1, 1], [1, 2]]}],
    ),
    "scatter": (
        """(float[6,4] x, int64[2,4] i, float[2,4] u) => (float[6,4] y)
           { y = ScatterElements<axis=0, reduction: string = "add">(x, i, u) }""",
        {"x": X, "i": np.array([[5, 4, 3, 2], [-6, -1, 0, 1]]), "u": X[:2]},
        [{"i": np.array([[5, 4, 3, 2], [-6, -1, 6, 1]])}],
    ),
    "scatter at positions": (
        "(float[6,4] x, int64[3,2] i, float[3] u) => (float[6,4] y) { y = ScatterND(x, i, u) }",
        {"x": X, "i": PLACES, "u": X[0, :3]},
        [{"i": PLACES - [[0, 0], [0, 1], [0, 0]]}],
    ),
    "maxima put back": (
        """(float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,4,4] y)
           { y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i) }""",
        {"x": X[0].reshape(1, 1, 2, 2), "i": np.array([5, 7, 13, 15]).reshape(1, 1, 2, 2)},
        [{"i": np.array([5, -1, 13, 15]).reshape(1, 1, 2, 2)}],
    ),
    "lengths": (
        """(float[6,4] x, int64[4] i) => (float[6,4] y)
           { y = ReverseSequence<batch_axis=1, time_axis=0>(x, i) }""",
        {"x": X, "i": np.array([6, 0, 1, 3])},
        [{"i": np.array([6, 0, 7, 3])}],
    ),
    "open lengths": (
        """(float[n,4] x, int64[4] i) => (float[n,4] y)
           { y = ReverseSequence<batch_axis=1, time_axis=0>(x, i) }""",
        {"x": X, "i": np.array([6, 0, 1, 3])},
        [{"i": np.array([6, 0, 7, 3])}],
    ),
    "classes": (
        "(float[6,4] x, int64[6] i) => (float y) { y = NegativeLogLikelihoodLoss(x, i) }",
        {"x": X, "i": np.array([0, 3, 1, 2, 2, 1])},
        [{"i": np.array([0, 3, 1, 2, 2, 4])}],
    ),
    "regions": (
        """(float[2,1,4,3] x, float[2,4] r, int64[2] i) => (float[2,1,2,2] y)
           { y = RoiAlign<output_height=2, output_width=2>(x, r, i) }""",
        {
            "x": X.reshape(2, 1, 4, 3), "i": np.array([1, 0]),
            "r": np.array([[0, 0, 2, 2], [1, 1, 2, 3]], np.float32),
        },
        [{"i": np.array([1, 2])}],
    ),
    "a table looked up twice": (
        """(float[6,4] x, int64[3] i, int64[3] j) => (float[3,4] y)
           { a = Gather(x, i) b = Gather(x, j) c = Softmax(a) y = Add(b, c) }""",
        {"x": X, "i": np.array([1, 2, 3]), "j": np.array([5, 5, 0])},
        [{"j": np.array([6, 5, 0])}, {"i": np.array([1, 2, -8]), "j": np.array([9, 9, 9])}],
    ),
    "two tables": (
        """(float[6,4] x, float[4,4] w, int64[3] i) => (float[3,4] y)
           { a = Gather(x, i) b = Gather(w, i) y = Add(a, b) }""",
        {"x": X, "w": X[:4], "i": np.array([1, 2, 3])},
        [{"i": np.array([1, 4, 3])}, {"i": np.array([1, 4, 6])}],
    ),
    "steps": (
        """(float[6,4] x, int64[3,2] i) => (float[3,4] y)
           <int64 three = {3}, bool go = {1}, int64[1] rows = {0}> {
           y = Loop(three, go) <body = step (int64 n, bool c) => (bool d, float[4] row) {
               d = Identity(c) at = Gather(i, n) a = Gather(x, at)
               row = ReduceSum<keepdims=0>(a, rows)
           }> }""",
        {"x": X, "i": np.array([[1, 2], [3, 4], [5, 0]])},
        [{"i": np.array([[1, 2], [3, 4], [5, 6]])}],
    ),
    "a choice": (
        """(float[6,4] x, float[4,4] w, int64[3] i, bool c) => (float[3,4] y) {
           y = If(c) <then_branch = yes () => (float[3,4] a) { a = Gather(x, i) },
                      else_branch = no () => (float[3,4] b) { d = Gather(w, i) b = Softmax(d) }>
           }""",
        {"x": X, "w": X[:4], "i": np.array([1, 2, 3]), "c": np.array(False)},
        [{"i": np.array([1, 4, 3])}, {"i": np.array([1, 9, 3]), "c": np.array(True)}],
    ),
    "a size of data": (
        """(float[n,4] x, int64[3] i) => (float[3,2] y)
           { p = NonZero(x) t = Transpose(p) z = Gather(t, i) y = Cast<to=1>(z) }""",
        {"x": X % 5, "i": np.array([0, 1, -2])},
        [{"i": np.array([0, 1, 20])}],
    ),
    "what a bad index leads to": (
        """(float[6,4] x, int64[3] k, int64[1] i) => (float[m,4] y) <int64[1] zero = {0}>
           { n = Gather(k, i) y = Slice(x, zero, n) }""",
        {"x": X, "k": np.array([1, 2, 3]), "i": np.array([1])},
        [{"i": np.array([3])}],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


def on_stub(path: Path, stub: Path, runs: Sequence[Feeds]) -> tuple[list[str], list[Feeds]]:
    """What each run on a context says, or "", and its results."""
    files = []
    for number, feeds in enumerate(runs):
        files.append(path.with_suffix(f".{number}.in.npz"))
        np.savez(files[-1], **feeds)
    results = path.with_suffix(".json")
    results.unlink(missing_ok=True)
    env = os.environ | {"LD_LIBRARY_PATH": str(stub)}
    command = [sys.executable, "-c", _TRY, str(path), str(results), *map(str, files)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(results.read_text())
    arrays = [Path(f"{results}.{n}.npz") for n in range(len(runs))]
    return said, [dict(np.load(a)) if not s else {} for s, a in zip(said, arrays, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_a_bad_index_is_refused_as_on_a_cpu(
    name: str, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves nothing behind: the next run is right."""
    text, feeds, changes = CASES[name]
    proto = model(text)
    build(proto, tmp_path / "cpu.so")
    build_emulated(proto, tmp_path / "gpu.so", monkeypatch)
    cpu, runs, wanted = load(tmp_path / "cpu.so"), [], []
    for change in changes:
        with pytest.raises(UserError, match=r"an index from the data lies outside") as refused:
            cpu.run(feeds | change)
        runs += [feeds | change, feeds]
        wanted += [str(refused.value), ""]
    said, found = on_stub(tmp_path / "gpu.so", stub, runs)
    assert said == wanted
    for result in found[1::2]:
        np.testing.assert_allclose(result["y"], cpu.run(feeds)["y"], rtol=1e-6)


def launches(calls: Sequence[str]) -> int:
    return sum(call.startswith("launch") for call in calls)


@pytest.mark.parametrize(("name", "count"), [("gather", 1), ("two tables", 1), ("positions", 1)])
def test_looking_costs_no_launch_and_no_copy(
    name: str, count: int, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, feeds, _ = CASES[name]
    build_emulated(model(text), tmp_path / "gpu.so", monkeypatch)
    _, calls, errors = run_on_stub(tmp_path / "gpu.so", stub, feeds, times=2)
    assert not errors
    assert launches(calls) == 2 * count
    assert sum(c.startswith("to device") for c in calls) == 2 * len(feeds)
    assert sum(c.startswith("to host") for c in calls) == 2
    assert sum(c == "wait" for c in calls) == 2


def test_a_model_without_indices_has_no_reports(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = "(float[6,4] x) => (float[2,4] y) <int64[2] i = {5, 1}> { y = Gather(x, i) }"
    for text, feeds, flag in ((fixed, {"x": X}, GPU), (GATHER, CASES["gather"][1], CHECKED)):
        path = tmp_path / f"{flag}.so"
        build_emulated(model(text), path, monkeypatch)
        query = ctypes.CDLL(str(path)).dlc_model_query
        query.restype, query.argtypes = ctypes.c_void_p, [ctypes.c_uint32]
        answers = [f for f in (GPU, DATA, CHECKED) if query(ABI_VERSION | f)]
        assert answers == [flag]  # a runtime that cannot look does not run the model
        assert bool(query(ABI_VERSION)) == (flag == GPU)
        _, calls, _ = run_on_stub(path, stub, feeds)
        assert sum(c.startswith("pin 64") for c in calls) == (flag == CHECKED)


def test_what_no_kernel_on_the_gpu_reads_is_copied_to_be_looked_at(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gpu_build, "why_not_printable", lambda func: "asked" if "gather" in func.name else ""
    )
    for name, extra in (("gather", 1), ("a size of data", 1)):
        text, feeds, changes = CASES[name]
        path = tmp_path / f"{extra}.so"
        build_emulated(model(text), path, monkeypatch)
        build(model(text), tmp_path / "cpu.so")
        with pytest.raises(UserError) as refused:
            load(tmp_path / "cpu.so").run(feeds | changes[0])
        said, found = on_stub(path, stub, [feeds | changes[0], feeds])
        assert said == [str(refused.value), ""]
        np.testing.assert_array_equal(found[1]["y"], load(tmp_path / "cpu.so").run(feeds)["y"])
        _, calls, _ = run_on_stub(path, stub, feeds)
        assert sum(c.startswith("launch copy_i64") for c in calls) >= extra


def test_a_missing_look_is_seen(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it is that a wrong text of it lets through."""
    text, feeds, _ = CASES["gather"]
    look = cuda_emit._Printer.look
    for number, (old, new) in enumerate(
        [("check_indices", "// "), ("<true>", "<false>"), (", 6, 0, 1,", ", 5, 0, 1,"),
         (", 6, 0, 1,", ", 6, 1, 1,"), ("(in1, 6", "(in1, 7")]
    ):  # fmt: skip

        def wrong(self: Any, looked: Any, old: str = old, new: str = new) -> list[str]:
            (line,) = look(self, looked)
            assert old in line
            return [line.replace(old, new)]

        monkeypatch.setattr(cuda_emit._Printer, "look", wrong)
        path = tmp_path / f"{number}.so"
        build_emulated(model(text), path, monkeypatch)
        bad = [np.array([[-7, 0], [0, 0], [0, 0]]), np.array([[0, 0], [0, 0], [0, 6]])]
        said, _ = on_stub(path, stub, [feeds, *(feeds | {"i": i} for i in bad)])
        right = [not said[0], "(it is -7, n is 6)" in said[1], "(it is 6, n is 6)" in said[2]]
        assert not all(right)


def test_an_index_that_is_not_kept_inside_is_seen(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator is what shows that a bad index touches no other memory."""
    text, feeds, changes = CASES["gather"]
    monkeypatch.setattr(gather, "safe_index", lambda value, size: cast(DType.INDEX, value))
    build_emulated(model(text), tmp_path / "gpu.so", monkeypatch)
    said, _ = on_stub(tmp_path / "gpu.so", stub, [feeds | changes[0]])
    assert "out of bounds" in said[0]


def test_a_run_that_nobody_waits_for_fails_with_the_next(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """(float[n,4] x, float[3] i) => (float[3,4] y)
              { [at] j = Cast<to=7>(i) [pick] y = Gather(x, j) }"""
    build_emulated(model(text), tmp_path / "gpu.so", monkeypatch)
    script = """
import sys
import numpy as np
import dlc.runtime
from dlc.core.errors import UserError
from tests.runtime.gpu_tensors import GpuTensor, stream
module, mine = dlc.runtime.load(sys.argv[1]), stream()
x = GpuTensor(np.arange(24, dtype=np.float32).reshape(6, 4))
def run(*at, tensor=GpuTensor):
    i, y = tensor(np.array(at, np.float32)), GpuTensor(np.zeros((3, 4), np.float32))
    module.run_on_gpu({"x": x, "i": i}, {"y": y}, stream=mine)
    return y.array
assert (run(1, 2, 5) == x.array[[1, 2, 5]]).all()
run(1, 9, -8)
for text in ("an earlier run, which was not waited for: node 'pick' (Gather): ", ""):
    try:
        assert (run(0, 3, 1) == x.array[[0, 3, 1]]).all()
    except UserError as error:
        assert text and text in str(error) and "(it is 9, n is 6)" in str(error), error
    else:
        assert not text
try:  # an input of the CPU is waited for
    run(7, 0, 0, tensor=lambda x: x)
except UserError as error:
    assert "(it is 7, n is 6)" in str(error) and "earlier" not in str(error), error
else:
    raise AssertionError
"""
    root = str(Path(__file__).parents[2])
    env = os.environ | {"LD_LIBRARY_PATH": str(stub), "PYTHONPATH": root}
    command = [sys.executable, "-c", script, str(tmp_path / "gpu.so")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
