"""What is computed for a slice of rows, and what stays whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.graph.ops.matmul import MatMul
from dlc.graph.ops.shape import Slice
from dlc.graph.pass_ import PASSES
from tests.graph.pass_cases import CONTEXT, read, same

HEAD = "def main(n: size, x: f64[2, n, 4], r: f64[2, n, 4]):\n"
FIXED = "def main(x: f64[2, 6, 4], r: f64[2, 6, 4]):\n"
WEIGHTS = (
    "w: f64[4, 4] = const()",
    "v: f64[4, 4] = const()",
    "g: f64[4] = const()",
)
FIRST = "starts=(0, 0, 0), sizes=(2, 1, 4)"
LAST = "starts=(0, n - 1, 0), sizes=(2, 1, 4)"
LAYER = (  # a feed-forward part, and the residual around it
    "h: f64[2, n, 4] = layer_norm(x, g, g)",
    "a: f64[2, n, 4] = matmul(h, w)",
    "b: f64[2, n, 4] = gelu(a)",
    "c: f64[2, n, 4] = matmul(b, v)",
    "d: f64[2, n, 4] = add(c, x)",
)
ATTENTION = (  # queries are those of some rows, keys of all
    "q: f64[2, n, 4] = matmul(x, w)",
    "k: f64[2, n, 4] = matmul(x, v)",
    "qs: f64[2, n, 2, 2] = reshape(q, shape=(2, n, 2, 2))",
    "ks: f64[2, n, 2, 2] = reshape(k, shape=(2, n, 2, 2))",
    "qt: f64[2, 2, n, 2] = transpose(qs, perm=(0, 2, 1, 3))",
    "kt: f64[2, 2, 2, n] = transpose(ks, perm=(0, 2, 3, 1))",
    "s: f64[2, 2, n, n] = matmul(qt, kt)",
    "p: f64[2, 2, n, n] = softmax(s, axis=3)",
    "vt: f64[2, 2, n, 2] = transpose(ks, perm=(0, 2, 1, 3))",
    "o: f64[2, 2, n, 2] = matmul(p, vt)",
    "ot: f64[2, n, 2, 2] = transpose(o, perm=(0, 2, 1, 3))",
    "d: f64[2, n, 4] = reshape(ot, shape=(2, n, 4))",
)
TWICE = (  # a layer behind a layer: what the second one wants, the first one computes
    *LAYER,
    "h2: f64[2, n, 4] = rms_norm(d, g)",
    "a2: f64[2, n, 4] = matmul(h2, w)",
    "e: f64[2, n, 4] = add(a2, d)",
)


def narrowed(lines: tuple[str, ...], results: str = "y", head: str = HEAD) -> list[str]:
    """The rows of each product after the pass, which has changed no result; "n" is all."""
    body = "".join(f"    {line}\n" for line in (*WEIGHTS, *lines, f"return {results}"))
    before = read(head + body)
    after = PASSES["slice_early"](before, CONTEXT)
    same(before, after, {"n": 5})
    return [str(x.output.type.shape[-2]) for x in after.nodes if isinstance(x.op, MatMul)]


@pytest.mark.parametrize("place", [FIRST, LAST])
def test_a_layer_computes_the_row_of_one_token(place: str) -> None:
    assert narrowed((*LAYER, f"y: f64[2, 1, 4] = slice(d, {place})")) == ["1", "1"]


def test_the_layer_before_computes_what_the_layer_behind_wants() -> None:
    assert narrowed((*TWICE, f"y: f64[2, 1, 4] = slice(e, {LAST})")) == ["1", "1", "1"]


def test_queries_are_few_and_keys_are_all() -> None:
    rows = narrowed((*ATTENTION, f"y: f64[2, 1, 4] = slice(d, {FIRST})"))
    assert sorted(rows) == ["1", "1", "1", "n"]


@pytest.mark.parametrize("order", [0, 1])
def test_a_slice_that_is_a_result_may_be_read_too(order: int) -> None:
    slices = (
        f"y: f64[2, 1, 4] = slice(a, {FIRST})",
        "b: f64[2, n, 4] = relu(a)",
        f"z: f64[2, 1, 4] = slice(b, {FIRST})",
    )
    lines = slices if order else (slices[1], slices[2], slices[0])
    assert narrowed(("a: f64[2, n, 4] = matmul(x, w)", *lines), "y, z") == ["1"]


def test_operators_of_several_results_compute_them_as_a_whole() -> None:
    lines = (
        "t: f64[2, 3, 4]",
        "i: i64[2, 3, 4]",
        "t, i = top_k(x, k=3, axis=1)",
        "a: f64[2, 3, 4] = matmul(t, w)",
        "f: f64[2, 3, 4] = cast(i, to=f64)",
        "b: f64[2, 3, 4] = add(a, f)",
        "y: f64[2, 1, 4] = slice(b, starts=(0, 1, 0), sizes=(2, 1, 4))",
    )
    assert narrowed(lines) == ["1"]


@pytest.mark.parametrize("scale", ["", ", s"])
def test_a_norm_of_all_axes_needs_all_rows(scale: str) -> None:
    lines = (
        "s: f64[2, 6, 4] = const()",
        "a: f64[2, 6, 4] = matmul(x, w)",
        f"b: f64[2, 6, 4] = layer_norm(a{scale}, axis=0)",
        "y: f64[2, 1, 4] = slice(b, starts=(0, 2, 0), sizes=(2, 1, 4))",
    )
    assert narrowed(lines, head=FIXED) == ["6"]


def test_a_part_of_none_of_one_is_none() -> None:
    lines = (
        "e: f64[1, 6, 4] = slice(x, starts=(1, 0, 0), sizes=(1, 6, 4))",
        "a: f64[1, 6, 4] = matmul(e, w)",
        "y: f64[0, 1, 4] = slice(a, starts=(0, 2, 0), sizes=(0, 1, 4))",
    )
    assert narrowed(lines, head=FIXED) == ["6"]


def test_the_slice_is_named_where_it_reaches_outside() -> None:
    lines = (
        "a: f64[2, n, 4] = matmul(x, w)",
        "y: f64[2, 1, 4] = slice(a, starts=(0, 2, 0), sizes=(2, 1, 4))",
    )
    body = "".join(f"    {line}\n" for line in (*WEIGHTS, *lines, "return y"))
    before = read(HEAD + body)
    marked = replace(before, nodes=tuple(replace(x, source=str(x.op)) for x in before.nodes))
    after = PASSES["slice_early"](marked, CONTEXT)
    cut = next(x for x in after.nodes if isinstance(x.op, Slice))
    assert cut.source == str(marked.nodes[-1].op)


def test_slices_of_slices_go_together() -> None:
    lines = (
        "a: f64[2, n, 4] = matmul(x, w)",
        "t: f64[2, 1, 4] = slice(a, starts=(0, n - 1, 0), sizes=(2, 1, 4))",
        "u: f64[1, 1, 4] = slice(t, starts=(1, 0, 0), sizes=(1, 1, 4))",
        "y: f64[1, 1, 4] = relu(u)",
    )
    assert narrowed(lines) == ["1"]


def test_two_readers_of_the_same_rows_share_them() -> None:
    lines = (
        "a: f64[2, n, 4] = matmul(x, w)",
        "b: f64[2, n, 4] = add(a, r)",
        f"y: f64[2, 1, 4] = slice(b, {FIRST})",
        f"z: f64[2, 1, 4] = slice(a, {FIRST})",
    )
    assert narrowed(lines, "y, z") == ["1"]


def test_what_holds_the_parts_of_all_readers_is_computed() -> None:
    lines = (  # halves that change places, as positions turn queries
        "a: f64[2, n, 4] = matmul(x, w)",
        "b: f64[2, n, 2] = slice(a, starts=(0, 0, 0), sizes=(2, n, 2))",
        "c: f64[2, n, 2] = slice(a, starts=(0, 0, 2), sizes=(2, n, 2))",
        "d: f64[2, n, 4] = concat(c, b, axis=2)",
        "e: f64[2, n, 4] = mul(d, r)",
        "f: f64[2, n, 4] = add(e, a)",
        f"y: f64[2, 1, 4] = slice(f, {LAST})",
    )
    assert narrowed(lines) == ["1"]


def test_operands_are_sliced_along_the_axes_that_they_have() -> None:
    lines = (
        "m: f64[4] = const()",
        "f: f64[1, 1, 4] = const()",
        "a: f64[2, n, 4] = matmul(x, w)",
        "b: f64[2, n, 4] = add(a, m)",
        "c: f64[2, n, 4] = mul(f, b)",
        "e: f64[2, n, 8] = concat(c, r, axis=2)",
        "y: f64[2, 1, 8] = slice(e, starts=(0, n - 1, 0), sizes=(2, 1, 8))",
    )
    assert narrowed(lines) == ["1"]


@pytest.mark.parametrize(
    ("lines", "results"),
    [
        ((*LAYER, f"y: f64[2, 1, 4] = slice(d, {FIRST})"), "y, d"),  # all is a result
        (  # two readers want different rows
            (
                *LAYER,
                f"y: f64[2, 1, 4] = slice(d, {FIRST})",
                f"z: f64[2, 1, 4] = slice(d, {LAST})",
            ),
            "y, z",
        ),
        ((*LAYER, "y: f64[2, n, 1] = slice(d, starts=(0, 0, 1), sizes=(2, n, 1))"), "y"),
        ((*LAYER, "y: f64[2, n - 1, 4] = slice(d, starts=(0, 1, 0), sizes=(2, n - 1, 4))"), "y"),
        (
            (
                *LAYER,
                "e: f64[2, n, 4] = softmax(d, axis=1)",
                f"y: f64[2, 1, 4] = slice(e, {FIRST})",
            ),
            "y",
        ),
        (
            (
                *LAYER,
                "e: f64[2 * n, 4] = reshape(d, shape=(2 * n, 4))",
                "y: f64[1, 4] = slice(e, starts=(0, 0), sizes=(1, 4))",
            ),
            "y",
        ),
        (
            (
                *LAYER,
                "e: f64[2, n + n, 4] = concat(d, r, axis=1)",
                f"y: f64[2, 1, 4] = slice(e, {FIRST})",
            ),
            "y",
        ),
        (
            (
                "a: f64[2, n, 4] = matmul(x, v)",
                "d: f64[2, n, 4] = layer_norm(a, axis=1)",
                f"y: f64[2, 1, 4] = slice(d, {FIRST})",
            ),
            "y",
        ),
    ],
)
def test_what_is_wanted_as_a_whole_is_computed_as_a_whole(
    lines: tuple[str, ...], results: str
) -> None:
    assert set(narrowed(lines, results)) == {"n"}


@pytest.mark.parametrize(("rows", "left"), [(3, "3"), (4, "6")])
def test_more_than_half_of_the_rows_are_all(rows: int, left: str) -> None:
    lines = (
        "a: f64[2, 6, 4] = matmul(x, w)",
        f"y: f64[2, {rows}, 4] = slice(a, starts=(0, 1, 0), sizes=(2, {rows}, 4))",
    )
    assert narrowed(lines, head=FIXED) == [left]


def test_every_other_row_is_left_where_it_is() -> None:
    lines = (
        "a: f64[2, 6, 4] = matmul(x, w)",
        "y: f64[2, 3, 4] = slice(a, starts=(0, 0, 0), sizes=(2, 3, 4), steps=(1, 2, 1))",
    )
    assert narrowed(lines, head=FIXED) == ["6"]


def test_a_slice_without_a_product_stays_behind_what_makes_its_rows() -> None:
    before = read(
        "def main(x: f64[2, 6, 4]):\n    a: f64[2, 6, 4] = relu(x)\n"
        "    y: f64[2, 1, 4] = slice(a, starts=(0, 0, 0), sizes=(2, 1, 4))\n    return y\n"
    )
    assert PASSES["slice_early"](before, CONTEXT) is before


def test_a_row_of_a_product_of_two_values_takes_a_row_of_the_left_one() -> None:
    lines = (
        "t: f64[2, 4, n] = transpose(r, perm=(0, 2, 1))",
        "a: f64[2, n, n] = matmul(x, t)",
        "y: f64[1, 1, n] = slice(a, starts=(1, 2, 0), sizes=(1, 1, n))",
    )
    assert narrowed(lines) == ["1"]


def test_what_cannot_be_narrowed_is_cut_behind() -> None:
    lines = (
        "e: f64[2, n, 4] = cumsum(x, axis=1)",
        "a: f64[2, n, 4] = matmul(e, w)",
        f"y: f64[2, 1, 4] = slice(a, {LAST})",
    )
    assert narrowed(lines) == ["1"]
    body = "".join(f"    {line}\n" for line in (*WEIGHTS, *lines, "return y"))
    after = PASSES["slice_early"](read(HEAD + body), CONTEXT)
    assert [type(x.op).__name__ for x in after.nodes] == ["CumSum", "Slice", "MatMul"]
