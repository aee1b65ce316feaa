"""Calling a model: what is accepted, what is returned, what is said when it does not fit."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import dlc.runtime
from dlc.core.errors import InputError, UserError
from dlc.core.manifest import TensorSpec
from dlc.core.types import DType
from dlc.runtime import Module
from dlc.runtime.arrays import numpy_dtype

pytestmark = pytest.mark.fast

X = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.array([1, 2, 3], np.float32)
Y = 2 * X + B

Make = Callable[[DType], Module]
DTYPES = [dtype for dtype in DType if dtype not in (DType.INDEX, DType.STR)]


def check(results: Iterable[np.ndarray]) -> None:
    y, total = results
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(total, [Y.sum()])


def test_inputs_in_order_by_name_and_mixed(model: Module) -> None:
    check(model(X, B))
    check(model(X, b=B))
    check(model(b=B, x=X))


def test_several_outputs_are_a_named_tuple(model: Module) -> None:
    results = model(X, B)
    assert results._fields == ("y", "total")
    assert results.y is results[0]


def test_run_returns_the_outputs_by_name_in_order(model: Module) -> None:
    results = model.run({"b": B, "x": X})
    assert list(results) == ["y", "total"]
    check(results.values())


def test_names_that_are_no_identifiers_are_numbered(identity: Make) -> None:
    results = identity(DType.F32)(1.0, np.zeros(2, np.float32))
    assert results._fields == ("_0", "out")
    assert list(identity(DType.F32).run({"scalar": 1, "vector": results.out})) == [
        "same scalar",
        "out",
    ]


def test_results_do_not_change_in_the_next_call(model: Module) -> None:
    first = model(X, B).y
    model(X + 1, B)
    np.testing.assert_array_equal(first, Y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type(identity: Make, dtype: DType) -> None:
    kind = numpy_dtype(dtype)
    vector = np.arange(7).astype(kind)
    scalar = np.array(1).astype(kind)
    same, out = identity(dtype)(scalar, vector)
    assert same.dtype == out.dtype == kind
    assert same.shape == ()
    assert same.tobytes() == scalar.tobytes()
    assert out.tobytes() == vector.tobytes()


def test_an_empty_array(identity: Make) -> None:
    assert identity(DType.F32)(1.0, np.zeros(0, np.float32)).out.shape == (0,)


class ViaArray:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self.array


class ViaInterface:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


class ViaDlpack:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [ViaArray, ViaInterface, ViaDlpack, memoryview, np.asfortranarray])
def test_anything_that_is_an_array(model: Module, wrap: Callable[[np.ndarray], object]) -> None:
    check(model(wrap(X), wrap(B)))


def test_arrays_that_must_be_copied(model: Module) -> None:
    raw = np.zeros(X.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(np.float32).reshape(X.shape)
    unaligned[:] = X
    check(model(unaligned, B))
    check(model(np.repeat(X, 2, axis=0)[::2], np.broadcast_to(B, (2, 3))[1]))
    read_only = X.copy()
    read_only.flags.writeable = False
    check(model(read_only, B))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (DType.F32, 2),
        (DType.F32, 2.5),
        (DType.F16, 65504),
        (DType.F16, -np.inf),
        (DType.F64, True),
        (DType.I64, -3),
        (DType.U8, 255),
        (DType.BOOL, True),
        (DType.BF16, 1.5),
        (DType.F32, np.float32(7)),
        (DType.I32, np.int32(7)),
    ],
)
def test_numbers_for_scalars(identity: Make, dtype: DType, value: object) -> None:
    vector = np.zeros(1, numpy_dtype(dtype))
    assert identity(dtype)(value, vector)[0] == value


@pytest.mark.parametrize(
    ("dtype", "value", "reason"),
    [
        (DType.I64, 2.0, "got the number 2.0"),
        (DType.BOOL, 1, "got the number 1"),
        (DType.U8, 256, "does not fit in uint8"),
        (DType.F16, 65520, "65520 does not fit in float16"),
        (DType.F16, -1e6, "-1000000.0 does not fit in float16"),
        (DType.F32, 10**400, "does not fit in float32"),
        (DType.F32, np.float64(1), "expected float32, got float64"),
        (DType.F32, "text", "cannot be read as an array"),
        (DType.F32, {"scalar": 1.0}, r"expected an array, got a dict\n.*model.run\("),
        (DType.F32, None, r"got None\n.* left out when .*: shapes={'scalar': None}"),
        (DType.F32, [1.0], r"expected an array, got a list\n.*np.array\(scalar, 'float32'\)"),
    ],
)
def test_nothing_is_cast(identity: Make, dtype: DType, value: object, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        identity(dtype)(value, np.zeros(1, numpy_dtype(dtype)))


def test_a_wrong_element_type_comes_with_its_cast(model: Module) -> None:
    with pytest.raises(InputError) as caught:
        model(X.astype(np.float64), B)
    assert caught.value.fields["name"] == "x"
    assert caught.value.hint == "pass x.astype('float32')"


def test_another_byte_order_is_another_type(model: Module) -> None:
    with pytest.raises(InputError, match="expected float32, got >f4"):
        model(X.astype(">f4"), B)


@pytest.mark.parametrize(
    ("array", "reason", "hint"),
    [
        (X[:, :2], r"expected shape \(batch, 3\), got \(4, 2\)", ""),
        (B, r"expected shape \(batch, 3\), got \(3,\)", "add the first dimension: x[None]"),
        (np.zeros((65, 3), np.float32), "'batch' is 65, the model was built for 1 to 64", ""),
        (np.zeros((0, 3), np.float32), "'batch' is 0", ""),
    ],
)
def test_a_wrong_shape(model: Module, array: np.ndarray, reason: str, hint: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        model(array, B)
    assert caught.value.fields["name"] == "x"
    assert caught.value.hint == hint


def test_a_transposed_input_is_recognised() -> None:
    spec = TensorSpec("image", DType.F32, (1, 3, 8, 9))
    with pytest.raises(InputError) as caught:
        dlc.runtime.arrays.check_shape((1, 8, 9, 3), spec)
    assert "transpose" in caught.value.hint


def test_names_that_do_not_exist(model: Module) -> None:
    with pytest.raises(InputError, match="the inputs are x, b") as caught:
        model.run({"x": X, "bb": B})
    assert caught.value.hint == "did you mean 'b'?"
    with pytest.raises(InputError, match="'b': it is missing"):
        model(X)
    with pytest.raises(InputError, match="'b': it is missing"):
        model.run({"x": X})
    with pytest.raises(InputError, match="number 3"):
        model(X, B, B)
    with pytest.raises(InputError, match="both in order and by name"):
        model(X, B, x=X)


@pytest.mark.parametrize("feeds", [X, [X, B], None, "x"])
def test_run_takes_inputs_by_name_alone(model: Module, feeds: Any) -> None:
    with pytest.raises(UserError, match="expected inputs by name") as caught:
        model.run(feeds)
    assert type(feeds).__name__ in str(caught.value)


def test_values_the_model_refuses(model: Module) -> None:
    with pytest.raises(UserError, match=r"^b is not a number$"):
        model(X, np.array([0, np.nan, 0], np.float32))
    with pytest.raises(UserError, match="13 is bad luck"):
        model(np.zeros((13, 3), np.float32), B)
    check(model(X, B))


def test_what_a_model_says_about_itself(model: Module) -> None:
    assert model.inputs[0] == TensorSpec("x", DType.F32, ("batch", 3))
    assert [spec.name for spec in model.outputs] == ["y", "total"]
    assert model.sizes[0].max == 64
    assert model.metadata == {"model": "affine"}
    assert model.output_shapes({"x": X, "b": B}) == {"y": (4, 3), "total": (1,)}
    assert repr(model) == (
        "<dlc.Module (x: f32(batch, 3), b: f32(3,)) -> (y: f32(batch, 3), total: f32(1,))>"
    )


def test_a_binding_reads_and_writes_in_place(model: Module) -> None:
    x, y = X.copy(), np.empty_like(X)
    binding = model.bind({"x": x, "b": B}, {"y": y, "total": np.empty(1, np.float32)})
    binding.run()
    np.testing.assert_array_equal(y, Y)
    x += 1
    binding.run()
    np.testing.assert_array_equal(y, Y + 2)
    assert binding.outputs["y"].ctypes.data == y.ctypes.data


def test_a_binding_allocates_what_is_not_given(model: Module) -> None:
    binding = model.bind({"x": X, "b": B})
    model.close()
    binding.run()
    check(binding.outputs.values())


def test_a_binding_reads_an_array_without_elements(
    identity: Make,
) -> None:  # as a cache before the first token
    vector = np.empty(0, np.float32)
    binding = identity(DType.F32).bind({"scalar": np.float32(1), "vector": vector})
    binding.run()
    assert binding.outputs["out"].shape == (0,)


def test_bindings_that_cannot_be(model: Module) -> None:
    good = {"y": np.empty_like(X), "total": np.empty(1, np.float32)}
    with pytest.raises(InputError, match="would be copied"):
        model.bind({"x": np.asfortranarray(X), "b": B})
    read_only = np.empty_like(X)
    read_only.flags.writeable = False
    for y, reason in [
        (np.empty((3, 4), np.float32), r"expected shape \(4, 3\), got \(3, 4\)"),
        (np.empty((4, 3)), "expected float32, got float64"),
        ([1.0], "got a list"),
        (read_only, "read-only"),
        (np.empty((4, 6), np.float32)[:, ::2], "not contiguous"),
        (X, "shares memory with 'x'"),
    ]:
        with pytest.raises(UserError, match=reason):
            model.bind({"x": X, "b": B}, {**good, "y": y})  # type: ignore[dict-item]
    with pytest.raises(UserError, match="the model has y, total"):
        model.bind({"x": X, "b": B}, {"y": good["y"]})


def test_a_binding_reports_refused_values(model: Module) -> None:
    b = B.copy()
    binding = model.bind({"x": X, "b": b})
    b[1] = np.nan
    with pytest.raises(UserError, match="b is not a number"):
        binding.run()


def test_benchmark_counts_its_rounds(model: Module) -> None:
    timing = model.benchmark(sizes={"batch": 5}, rounds=7, warmup=1)
    assert len(timing.times_ns) == 7
    assert timing.min_ms <= timing.median_ms <= timing.p90_ms
    assert "(7 runs)" in str(timing)
    assert len(model.benchmark({"x": X, "b": B}, rounds=3).times_ns) == 3


def test_shares_of_a_timing() -> None:
    timing = dlc.runtime.Timing(tuple(range(10_000_000, 0, -1_000_000)))
    assert (timing.min_ms, timing.median_ms, timing.p90_ms) == (1, 6, 10)


def test_a_closed_module(model: Module) -> None:
    with model as opened:
        check(opened(X, B))
    for call in (lambda: model(X, B), model.to_bytes, lambda: model.bind({"x": X, "b": B})):
        with pytest.raises(UserError, match="closed"):
            call()


def test_pickling(model: Module) -> None:
    copy = pickle.loads(pickle.dumps(model))
    model.close()
    check(copy(X, B))
    assert copy.manifest == model.manifest
