"""Sizes, axes and counts that come from the data: right, or refused by the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import dlc
from dlc.core.errors import InputError, LimitError, UserError
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate

X = np.arange(12, dtype=np.float32).reshape(3, 4)
XS = np.stack([X, 3 - X])[None]
EMPTY = np.zeros((0, 4), np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def f32(values: object) -> np.ndarray:
    return np.array(values, np.float32)


def scalar(value: float, dtype: type = np.int64) -> np.ndarray:
    return np.array(value, dtype)


BOXES = f32([[[0, 0, 4, 4], [0, 1, 4, 5], [4, 4, 0, 0], [9, 9, 12, 12], [0, 0, 2, 2]]])
SCORES = f32([[[0.5, 0.75, 0.25, 1, 0.625], [0.5, 0, 0, 1.5, 0.375]]])


@dataclass(frozen=True)
class Case:
    """A model, operands it computes, and operands that a run must refuse."""

    text: str
    good: Sequence[Sequence[np.ndarray]]
    bad: Sequence[Sequence[np.ndarray]] = ()
    opset: int = 18

    def model(self) -> onnx.ModelProto:
        head = f'<ir_version: 8, opset_import: ["": {self.opset}]>'
        return parser.parse_model(f"{head}\nmain {self.text}")

    def feeds(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        return dict(zip((v.name for v in self.model().graph.input), arrays, strict=True))


CASES = {
    "product_moved_by_data": Case(
        "(float[n,4] x, int64[4] p) => (float[a,b] y)"
        " <float[4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {"
        " m = MatMul(x, w)\n y = Pad(m, p) }",
        [
            (X, i64(0, 2, 1, 0)),
            (X, i64(1, 0, 0, 20)),
            (X, i64(1, 9, 0, 40)),
            (EMPTY, i64(1, 1, 0, 0)),
        ],
        [(X, i64(-9, 0, 0, 0)), (X, i64(0, 2**62, 0, 2**62))],
    ),
    "sizes_chosen_by_data": Case(
        "(float[n,4] x, bool[2] b) => (float[p,q] y) <int64[2] c = {6, 2}> {"
        " s = Shape(x)\n w = Where(b, s, c)\n y = Reshape(x, w) }",
        [(X, np.array([True, True])), (X, np.array([False, False]))],
        [(X, np.array([True, False])), (EMPTY, np.array([False, False]))],
    ),
    "reshape": Case(
        "(float[n,4] x, int64[2] s) => (float[a,b] y) { r = Reshape(x, s)\n y = Relu(r) }",
        [(X, i64(6, 2)), (X, i64(-1, 3)), (X, i64(0, -1)), (EMPTY, i64(0, 4)), (X, i64(12, 1))],
        [(X, i64(5, 2)), (X, i64(-1, -1)), (X, i64(-5, 2)), (X, i64(2**62, 4)), (X, i64(-1, 7))],
    ),
    "mixed with a known size": Case(
        """(float[n,4] x, int64[1] k) => (float[n,a] y) <int64[1] zero = {0}> {
            all = Shape(x)
            rows = Gather(all, zero)
            s = Concat<axis=0>(rows, k)
            y = Reshape(x, s)
        }""",
        [(X, i64(4)), (X, i64(-1))],
        [(X, i64(3))],
    ),
    "expand": Case(
        "(float[3,1] x, int64[2] s) => (float[a,b] y) { y = Expand(x, s) }",
        [(X[:, :1], i64(3, 5)), (X[:, :1], i64(1, 1)), (X[:, :1], i64(3, 0))],
        [(X[:, :1], i64(2, 5)), (X[:, :1], i64(3, -2))],
    ),
    "tile": Case(
        "(float[n,4] x, int64[2] r) => (float[a,b] y) { y = Tile(x, r) }",
        [(X, i64(2, 3)), (X, i64(0, 1)), (EMPTY, i64(2, 1))],
        [(X, i64(-1, 1)), (X, i64(2**40, 2**40))],
    ),
    "constant of shape": Case(
        "(int64[2] s) => (float[a,b] y) { y = ConstantOfShape(s) }",
        [(i64(2, 3),), (i64(0, 3),)],
        [(i64(-1, 3),), (i64(2**50, 2**50),)],
    ),
    "range": Case(
        "(int64 a, int64 b, int64 d) => (int64[n] y) { y = Range(a, b, d) }",
        [
            tuple(map(scalar, t))
            for t in ((1, 10, 3), (10, 1, -4), (5, 2, 1), (-3, 3, 2), (0, 0, 1))
        ],
        [tuple(map(scalar, (0, 5, 0)))],
    ),
    "range of floats": Case(
        "(float a, float b, float d) => (float[n] y) { y = Range(a, b, d) }",
        [tuple(scalar(v, np.float32) for v in t) for t in ((1, 10, 2.5), (3, -2, -0.5), (5, 2, 1))],
        [
            tuple(scalar(v, np.float32) for v in t)
            for t in ((0, 3, 0), (3, 0, 0), (0, 0, 0), (0, np.nan, 1), (0, np.inf, 1))
        ],
    ),
    "slice": Case(
        "(float[n,4] x, int64[2] a, int64[2] b) => (float[p,q] y) { y = Slice(x, a, b) }",
        [
            (X, i64(1, 1), i64(3, 3)),
            (X, i64(-2, -3), i64(-1, 100)),
            (X, i64(2, 3), i64(1, 0)),
            (X, i64(-100, 0), i64(2**62, 2**62)),
            (EMPTY, i64(0, 1), i64(5, 2)),
        ],
    ),
    "slice with axes and steps": Case(
        "(float[n,4] x, int64[1] a, int64[1] b, int64[1] d, int64[1] s) => (float[p,q] y)"
        "{ y = Slice(x, a, b, d, s) }",
        [
            (X, i64(3), i64(-100), i64(1), i64(-2)),
            (X, i64(0), i64(3), i64(-2), i64(2)),
            (X, i64(1), i64(3), i64(-1), i64(1)),
            (EMPTY, i64(-1), i64(-9), i64(0), i64(-1)),
        ],
        [(X, i64(0), i64(3), i64(0), i64(0))],
    ),
    "split": Case(
        "(float[n,4] x, int64[2] s) => (float[a,4] y, float[b,4] z) { y, z = Split<axis=0>(x, s) }",
        [(X, i64(1, 2)), (X, i64(0, 3)), (EMPTY, i64(0, 0))],
        [(X, i64(1, 1)), (X, i64(4, -1)), (X, i64(2**63 - 1, 4))],
    ),
    "top k": Case(
        "(float[n,4] x, int64[1] k) => (float[n,c] y, int64[n,c] i) { y, i = TopK(x, k) }",
        [(X, i64(2)), (X, i64(0)), (X, i64(4)), (EMPTY, i64(2))],
        [(X, i64(5)), (X, i64(-1))],
    ),
    "one hot": Case(
        "(int64[n] x, int64 d, float[2] v) => (float[n,c] y) { y = OneHot(x, d, v) }",
        [(i64(0, 2, 1), scalar(3), f32([2, 5])), (i64(), scalar(4), f32([0, 1]))],
        [(i64(0), scalar(-3), f32([2, 5]))],
    ),
    "sum": Case(
        "(float[n,4] x, int64[1] a) => (float[p,q] y) { y = ReduceSum(x, a) }",
        [(X, i64(0)), (X, i64(-1)), (EMPTY, i64(1)), (EMPTY, i64(0))],
        [(X, i64(2)), (X, i64(-3))],
    ),
    "sum without its axes": Case(
        "(float[n,4,2] x, int64[2] a) => (float[p] y) { y = ReduceSum<keepdims=0>(x, a) }",
        [(np.stack([X, -X], 2), i64(*axes)) for axes in ((0, 1), (2, -3), (1, 2))],
        [(np.stack([X, -X], 2), i64(*axes)) for axes in ((0, 0), (2, -1), (0, 3))],
    ),
    "running sum": Case(
        "(float[n,4] x, int64 a) => (float[n,4] y) { y = CumSum<reverse=1>(x, a) }",
        [(X, scalar(0)), (X, scalar(-1)), (EMPTY, scalar(0))],
        [(X, scalar(2)), (X, scalar(-3))],
    ),
    "squeeze": Case(
        "(float[n,1,4] x, int64[1] a) => (float[p,q] y) { y = Squeeze(x, a) }",
        [(X[:, None], i64(1)), (X[:, None], i64(-2)), (X[:1, None], i64(0))],
        [(X[:, None], i64(0)), (X[:, None], i64(3))],
    ),
    "unsqueeze": Case(
        "(float[n,4] x, int64[2] a) => (float[p,q,r,s] y) { y = Unsqueeze(x, a) }",
        [(X, i64(0, 3)), (X, i64(-1, 1)), (EMPTY, i64(1, 2))],
        [(X, i64(0, 0)), (X, i64(4, 0)), (X, i64(-5, 0))],
    ),
    "triangle": Case(
        "(float[n,4] x, int64 k) => (float[n,4] y) { y = Trilu(x, k) }",
        [(X, scalar(k)) for k in (-9, -1, 0, 2, 9)],
    ),
    "pad": Case(
        "(float[n,4] x, int64[4] w, float v) => (float[p,q] y) { y = Pad(x, w, v) }",
        [
            (X, i64(1, 0, 2, 3), scalar(7, np.float32)),
            (EMPTY, i64(0, 1, 2, 0), scalar(7, np.float32)),
        ],
        [
            (X, i64(-2, 0, -2, 0), scalar(7, np.float32)),
            (X, i64(2**62, 0, 0, 0), scalar(0, np.float32)),
        ],
    ),
    "non zero": Case(
        "(float[n,4] x) => (int64[2,k] y) { y = NonZero(x) }",
        [(X,), (X * 0,), (EMPTY,), (np.where(X % 3 == 1, X, 0),)],
    ),
    "compress": Case(
        "(float[n,4] x, bool[3] c) => (float[k,4] y) { y = Compress<axis=0>(x, c) }",
        [(X, np.array(c)) for c in ([True, False, True], [False] * 3, [True] * 3)],
    ),
    "unique": Case(
        "(int64[n] x) => (int64[k] y, int64[k] i, int64[n] j, int64[k] c)"
        "{ y, i, j, c = Unique<sorted=0>(x) }",
        [(i64(3, 1, 3, 2, 1, 3),), (i64(5),)],
    ),
    "unique rows": Case(
        "(float[n,4] x) => (float[k,4] y, int64[k] i, int64[n] j, int64[k] c)"
        "{ y, i, j, c = Unique<axis=0>(x) }",
        [(X[[2, 0, 2, 1]],)],
    ),
    "suppression": Case(
        "(float[1,n,4] b, float[1,c,n] s, int64[1] m, float[1] t, float[1] u) => (int64[k,3] y)"
        "{ y = NonMaxSuppression(b, s, m, t, u) }",
        [
            (BOXES, SCORES, i64(m), f32([t]), f32([0.25]))
            for m, t in ((3, 0.5), (1, 0.5), (0, 0.5), (99, 0.05))
        ],
    ),
    "resize by scales": Case(
        "(float[1,1,n,4] x, float[4] s) => (float[1,1,p,q] y) {"
        ' y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",'
        ' nearest_mode="floor">(x, , s) }',
        [(X[None, None], f32([1, 1, *s])) for s in ((2, 3), (0.5, 0.6), (1, 1))],
        [(X[None, None], f32([1, 1, 0, 2])), (X[None, None], f32([1, 1, -1, 2]))],
    ),
    "resize to sizes": Case(
        "(float[1,1,n,4] x, int64[4] s) => (float[1,1,p,q] y) {"
        ' y = Resize<mode="linear", keep_aspect_ratio_policy="not_larger">(x, , , s) }',
        [(X[None, None], i64(1, 1, 6, 9)), (X[None, None], i64(1, 1, 7, 8))],
    ),
    "resize to joined sizes": Case(
        "(float[1,2,n,4] x, int64[2] s) => (float[1,2,p,q] y) {"
        " first = Constant<value_ints=[1,2]>() all = Concat<axis=0>(first, s)"
        ' y = Resize<mode="linear">(x, , , all) }',
        [(XS, i64(6, 8)), (XS, i64(1, 64)), (XS, i64(0, 3))],
        [(XS, i64(-1, 3))],
    ),
    "pad along axes": Case(
        "(float[n,4] x, int64[2] w, float v, int64[1] a) => (float[p,q] y) {"
        ' y = Pad<mode="reflect">(x, w, v, a) }',
        [(X, i64(1, 2), scalar(0, np.float32), i64(axis)) for axis in (0, 1, -1)],
    ),
}


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "_"))
def case(request) -> Case:
    return CASES[request.param]


def test_the_results_are_onnx_s(case):
    compiled = dlc.compile(case.model())
    imported = import_model(load_model(case.model()))
    oracle = ReferenceEvaluator(case.model())
    for arrays in case.good:
        feeds = case.feeds(arrays)
        wanted = oracle.run(None, feeds)
        found = list(compiled.run(feeds).values())
        graph = imported.graph
        values = dict(zip((v.name for v in graph.inputs), arrays, strict=True))
        reference = list(evaluate(graph, values).values())
        for want, got, ours in zip(wanted, found, reference, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(ours.astype(want.dtype), want)
    wanted_first = next(iter(oracle.run(None, case.feeds(case.good[0]))))
    for arrays in case.bad:
        with pytest.raises(UserError, match=r"^(memory exceeds the limit: )?node '\w+' \(\w+\): "):
            compiled.run(case.feeds(arrays))
        feeds = case.feeds(case.good[0])  # a refusal leaves nothing behind
        np.testing.assert_array_equal(compiled.run(feeds)["y"], wanted_first)


def test_what_is_known_of_a_joined_vector_is_not_read():
    graph = import_model(load_model(CASES["resize to joined sizes"].model())).graph
    (found,) = (v.type.shape for n in graph.nodes if n.op.name == "resize" for v in n.outputs)
    assert [str(size) for size in found[:2]] == ["1", "2"]
    assert sum(node.op.name == "bind_sizes" for node in graph.nodes) == 2


def test_widths_from_data_may_be_negative():
    module = dlc.compile(CASES["pad"].model())
    for top, left, bottom, right in ((-1, 0, 0, -2), (-3, 1, 0, -2), (2, -1, -2, 3)):
        rows = np.pad(
            X, ((max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0))), constant_values=7
        )
        wanted = rows[max(-top, 0) : len(rows) - max(-bottom, 0), max(-left, 0) :]
        wanted = wanted[:, : wanted.shape[1] - max(-right, 0)]
        found = module(X, i64(top, left, bottom, right), scalar(7, np.float32))
        np.testing.assert_array_equal(found, wanted)


def test_a_caller_may_ask_before_and_give_no_memory():
    case = CASES["tile"]
    module = dlc.compile(case.model())
    assert module.output_shapes(case.feeds((X, i64(2, 1)))) == {"y": (-1, -1)}
    with pytest.raises(UserError, match="depends on the data"):
        module.bind(case.feeds((X, i64(2, 1))))
    assert module.benchmark(case.feeds((X, i64(2, 1))), rounds=2, warmup=0).min_ms > 0


def test_the_reference_refuses_a_negative_size():
    graph = import_model(load_model(CASES["tile"].model())).graph
    with pytest.raises(InputError, match="there cannot be"):
        evaluate(graph, {"x": X, "r": i64(-1, 1)})


TOLD = [
    ("(float[n,4] x, int64[2] r) => (float[a,b] y) { [grow] y = Tile(x, r) }", (X, i64(-1, 1)),
     "node 'grow' (Tile): its data asks for an axis or a size there cannot be (r[0] is -1)"),
    ("(float[n,4] x, int64[2] r) => (float[a,b] y) { [grow] y = Tile(x, r) }", (X, i64(2**62, 1)),
     "node 'grow' (Tile): the sizes of 'y' are too large (k = r[0] is 4611686018427387904, "
     "k_1 = r[1] is 1, n is 3)"),
    ("(int64[2] r) => (float[a,b] y) { [fill] y = ConstantOfShape(r) }", (i64(2**22, 2**22),),
     "node 'fill' (ConstantOfShape): there is no memory for 'y', f32 of the shape "
     "(4194304, 4194304)"),
    ("(int64[2] r) => (float[a,b] y) { [fill] z = ConstantOfShape(r) y = Relu(z) }",
     (i64(2**40, 2**40),),
     "there is no memory for 'y', f32 of the shape (1099511627776, 1099511627776)"),
    ("(float x, int64[2] r) => (float y) { [fill] z = Expand(x, r) y = ReduceMax<keepdims=0>(z) }",
     (f32(1), i64(2**40, 2**40)),
     "node 'fill' (Expand): a number of elements does not fit into 64 bits "
     "(k = r[0] is 1099511627776, k_1 = r[1] is 1099511627776)"),
    ("(float x, int64[2] r) => (int64 y) { z = Expand(x, r) [count] y = Size(z) }",
     (f32(1), i64(2**32, 2**32)),
     "node 'count' (Size): a number of elements does not fit into 64 bits "
     "(k = r[0] is 4294967296, k_1 = r[1] is 4294967296)"),
    ("(float[n,4] x, int64[1] k) => (float[a,b] y, int64[a,b] z) { [best] y, z = TopK(x, k) }",
     (X, i64(5)), "node 'best' (TopK): the sizes do not fit: k_1 <= 4 must hold (k_1 = k[0] is 5)"),
    ("(int64 a, int64 b, int64 c) => (int64[m] y) { [count] y = Range(a, b, c) }",
     (scalar(-2**63), scalar(2**63 - 1), scalar(1)),
     "node 'count' (Range): its data asks for an axis or a size there cannot be (c is 1, "
     "a is -9223372036854775808, b is 9223372036854775807)"),
    ("(float[n,4] x, int64[2,2] i) => (float[m] y) { [pick] y = GatherND(x, i) }",
     (X, i64(0, 1, 3, 2).reshape(2, 2)),
     "node 'pick' (GatherND): an index from the data lies outside of size n, 4 "
     "(it is 3, n is 3)"),
    ("(float[n,4] x, int64[2,2] i) => (float[m] y) { [pick] y = GatherND(x, i) }",
     (X, i64(0, 1, 1, -5).reshape(2, 2)),
     "node 'pick' (GatherND): an index from the data lies outside of size n, 4 (it is -5)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "feeds", "message"), TOLD)
def test_a_refusal_names_the_node_and_tells_the_values(text, feeds, message):
    module = dlc.compile(
        parser.parse_model(f'<ir_version: 8, opset_import: ["": 20]>\nmain {text}')
    )
    with pytest.raises(UserError) as caught:
        module(*feeds)
    assert message in str(caught.value)
    is_limit = any(words in message for words in ("no memory", "64 bits", "too large"))
    assert isinstance(caught.value, LimitError) == is_limit


@pytest.mark.parametrize(
    ("result", "last", "told"),
    [
        ("n,n,n,n", "Identity(v)", "output 'y' of the shape (131072, 131072, 131072, 131072)"),
        ("n,1,1,1", "ReduceSum<keepdims=1>(s)", "an element count leaves 64 bits"),
    ],
)
def test_sizes_of_inputs_that_need_more_than_64_bits_exceed_a_limit(result, last, told):
    inputs = "float[n,1,1,1] a, float[n,1,1] b, float[n,1] c, float[n] d"
    body = f"t = Add(a, b) u = Add(t, c) v = Add(u, d) s = Softmax(v) y = {last}"
    text = f"({inputs}) => (float[{result}] y) {{ {body} }}"
    module = dlc.compile(Case(text, ()).model())
    x = np.ones(2**17, np.float32)
    with pytest.raises(LimitError) as caught:
        module(*(x.reshape(-1, *[1] * axes) for axes in (3, 2, 1, 0)))
    assert told in str(caught.value)


@pytest.mark.parametrize("limit", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize(
    "body", ["[count] y = Range(a, b, c)", "[count] r = Range(a, b, c) y = Neg(r)"]
)
def test_a_range_that_never_ends_names_its_node_and_nothing_else(body, limit):
    text = f"(float a, float b, float c) => (float[m] y) {{ {body} }}"
    module = dlc.compile(Case(text, ()).model())
    with pytest.raises(UserError) as caught:
        module(f32(0), f32(limit), f32(1))
    why = "delta is 0, an operand is not finite, or there are too many numbers"
    assert str(caught.value) == f"node 'count' (Range): {why}"
    assert len(module(f32(0), f32(3), f32(1))) == 3


@pytest.mark.parametrize(
    "joined", ["y = Expand(x, s)", "e = Expand(x, s) y = Concat<axis=0>(e, e)"]
)
def test_an_empty_output_that_numpy_cannot_hold_is_refused(joined):
    text = f"(float[1] x, int64[2] s) => (float[a,b] y) {{ {joined} }}"
    module = dlc.compile(Case(text, ()).model())
    with pytest.raises(UserError, match=r"NumPy cannot hold .* \(0, 4611686018427387904\)"):
        module(np.ones(1, np.float32), i64(0, 2**62))
    assert module(np.ones(1, np.float32), i64(0, 2**40)).shape == (0, 2**40)


@pytest.mark.parametrize("size", [2**45, 2**62])
@pytest.mark.parametrize("made", ["y = Expand(x, s)", "e = Expand(x, s) y = CumSum(e, zero)"])
def test_a_tensor_there_is_no_memory_for_exceeds_a_limit(made, size):
    text = f"(float[1] x, int64[1] s) => (float[a] y) <int64 zero = {{0}}> {{ {made} }}"
    module = dlc.compile(Case(text, ()).model())
    with pytest.raises(LimitError, match="there is no memory for"):
        module(np.ones(1, np.float32), i64(size))
    assert module(np.ones(1, np.float32), i64(2)).shape == (2,)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_each_of_many_indices_is_checked(kind: type, axes: int) -> None:
    """Those of whole vectors and the rest behind them, in any column, as the largest number too."""
    shape = (5, 4, 7)
    bits = np.iinfo(kind).bits
    module = dlc.compile(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["": 20]> '
            f"main (float[5,4,7] x, int{bits}[n,{axes}] i) => (float[m] y) {{ y = GatherND(x, i) }}"
        )
    )
    x = np.arange(140, dtype=np.float32).reshape(shape)
    rng = np.random.default_rng(3)
    for count in (0, 7, 8, 21):
        good = np.stack([rng.integers(-n, n, count) for n in shape[:axes]], 1).astype(kind)
        np.testing.assert_array_equal(module(x, good), x[tuple(good.T)])
        for row in range(count):
            bad = good.copy()
            column = row % axes
            wrong = (shape[column], -shape[column] - 1, np.iinfo(kind).max, np.iinfo(kind).min)
            bad[row, column] = wrong[row % 4]
            with pytest.raises(UserError, match="an index from the data lies outside"):
                module(x, bad)
