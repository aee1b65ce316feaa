"""Models whose host must look at data, emulated on a GPU: they give what they give on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dlc.schedule.gpu_program as gpu_program
from dlc.compiler import build
from dlc.runtime import load
from tests.end_to_end.test_control_flow import (
    CASES,
    FALSE,
    GROWING,
    GUARDED,
    NESTED,
    TRIANGLE,
    TRUE,
    X,
    f32,
    i64,
)
from tests.frontend.text_model import model
from tests.runtime.emulated import build_emulated, build_stub, run_on_stub

# The places of what is not 0, a product of as many rows, and a row for each.
FOUND = """(float[n,3] x) => (float[k,2] y, int64[2,k] places)
    <float[3,2] w = {1, 2, 3, 4, 5, 6}, int64[1] at = {0}, int64 zero = {0}> {
    places = NonZero(x)
    rows = Gather(places, zero)
    picked = Gather(x, rows)
    y = MatMul(picked, w)
}"""
# A part whose bounds are elements of two tensors, and a shape of them.
CUT = """(float[n,3] x, int64[2] begin, int64[2] shape) => (float[a,b] y)
    <int64[1] all = {1000}, int64[1] axis = {0}, int64[1] one = {1}, int64[1] zero = {0}> {
    first = Slice(begin, one, all, axis)
    part = Slice(x, first, all, axis)
    wide = Concat<axis=0>(part, part)
    y = Reshape(wide, shape)
}"""
# A scan whose steps choose, by what each row sums up to.
CHOOSING = """(float[3] x, float[k,3] z) => (float[3] y, float[k,3] rows) <float five = {5}> {
    y, rows = Scan(x, z) <num_scan_inputs = 1,
        body = step (float[3] s, float[3] e) => (float[3] t, float[3] row) {
            total = ReduceSum<keepdims=0>(e)
            low = Less(total, five)
            row = If(low) <
                then_branch = yes () => (float[3] a) { a = Neg(e) },
                else_branch = no () => (float[3] b) { b = Mul(e, s) }>
            t = Add(s, row)
        }>
}"""
NO_MEMORY = "there is no memory for 'y_loop"
Calls = Sequence[tuple[np.ndarray, ...]]
ROWS = np.array([[0, 1, 0], [4, 0, 5]], np.float32)
MORE: dict[str, tuple[str, Calls]] = {
    "found": (FOUND, [(ROWS,), (0 * ROWS,)]),
    "cut": (
        CUT,
        [(X, np.array([7, 1]), np.array([3, 2])), (X, np.array([1, 0]), np.array([4, 3]))],
    ),
    "choosing": (CHOOSING, [(X[0], X), (X[0], X[:0])]),
}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


def feeds_of(proto: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return dict(zip((v.name for v in proto.graph.input), arrays, strict=True))


def is_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[name], array) for name, array in wanted.items()
    )


@pytest.mark.parametrize("name", [*CASES, *MORE])
def test_a_gpu_gives_what_a_cpu_gives(
    name: str, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, calls = (CASES | MORE)[name]
    proto = model(text)
    build(proto, tmp_path / "cpu.so")
    build_emulated(proto, tmp_path / "gpu.so", monkeypatch)
    for arrays in calls:
        feeds = feeds_of(proto, arrays)
        wanted = load(tmp_path / "cpu.so").run(feeds)
        found, driver, errors = run_on_stub(tmp_path / "gpu.so", stub, feeds, times=2)
        assert not errors
        assert any(call.startswith("retain") for call in driver)  # not the CPU
        for key, want in wanted.items():
            assert found[key].dtype == want.dtype
            np.testing.assert_array_equal(found[key], want)
        for taken, given in (("allocate", "free"), ("pin", "unpin")):
            counts = [sum(c.split()[0] == word for c in driver) for word in (taken, given)]
            assert counts[0] == counts[1]


# By name: a model, operands, and how many of the values that the host reads change nothing: a loop
# that its condition ends does not get to the trip count.
DECIDING: dict[str, tuple[str, tuple[np.ndarray, ...], int]] = {
    "branch": (NESTED, (X, TRUE, FALSE), 0),
    "loop": (GROWING, (X, f32(50), i64(9), TRUE), 1),
    "size": (CUT, (X, np.array([7, 1]), np.array([3, 2])), 0),
}


@pytest.mark.parametrize("name", DECIDING)
def test_each_value_is_waited_for(
    name: str, stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes come down for each decision, into memory that holds them behind a wait."""
    text, arrays, idle = DECIDING[name]
    proto, path = model(text), tmp_path / "gpu.so"
    feeds = feeds_of(proto, arrays)
    build_emulated(proto, path, monkeypatch)
    wanted, calls, errors = run_on_stub(path, stub, feeds)
    assert not errors
    assert max(int(c.split()[2]) for c in calls if c.startswith("to pinned")) <= 16
    waits = [at for at, call in enumerate(calls) if call == "wait"]
    reads = [n for n, at in enumerate(waits) if calls[at - 1].startswith("to pinned")]
    assert len(reads) == sum(call.startswith("to pinned") for call in calls) > 0
    right = []
    for number in reads:
        found, _, errors = run_on_stub(path, stub, feeds, STUB_CUDA_SKIP_WAIT=str(number))
        right.append(not errors and is_equal(found, wanted))
    assert sum(right) == idle


def test_what_the_host_writes_comes_up(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a step, which its kernels read."""
    proto, path = model(TRIANGLE), tmp_path / "gpu.so"
    feeds = feeds_of(proto, (i64(9),))

    def nothing(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(gpu_program._Copies, "write", nothing)
    build_emulated(proto, path, monkeypatch)
    found, _, errors = run_on_stub(path, stub, feeds)
    assert errors or found["sizes"].tolist() != [min(i, 4) for i in range(9)]


def test_what_fails_is_said(stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the run ends: nothing is decided by what could not be read."""
    for text, arrays, memory, message in (
        (GUARDED, (X, np.array([5, 5]), TRUE), 1 << 20, "the sizes do not fit"),
        (GROWING, (np.ones((500, 3), np.float32), f32(1e9), i64(99), TRUE), 1 << 16, NO_MEMORY),
    ):
        proto, path = model(text), tmp_path / "gpu.so"
        build_emulated(proto, path, monkeypatch)
        feeds = feeds_of(proto, arrays)
        _, _, errors = run_on_stub(path, stub, feeds, STUB_CUDA_MEMORY=str(memory))
        assert message in errors
