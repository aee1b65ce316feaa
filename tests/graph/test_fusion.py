"""Which nodes become one kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.target_parse import parse_target
from dlc.graph.fusion import MAX_GROUP_NODES, groups
from dlc.graph.graph import Graph, Node
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.passes.fuse_groups import form_groups, fuse_groups
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph
from tests.graph.pass_cases import AVX512
from tests.graph.rule_cases import ON_GPU

HEAD = "def main(x: f32[4, 6], w: f32[6, 6], b: f32[6]):\n"


def kernels(*lines: str, head: str = HEAD, result: str = "y") -> list[list[str]]:
    text = head + "".join(f"    {line}\n" for line in (*lines, f"return {result}"))
    return [[n.op.name for n in members] for members in groups(parse_graph(text))]


def test_a_chain_behind_a_contraction_joins_it() -> None:
    assert kernels(
        "m: f32[4, 6] = matmul(x, w)",
        "s: f32[4, 6] = add(m, b)",
        "y: f32[4, 6] = relu(s)",
    ) == [["matmul", "add", "relu"]]


def test_what_somebody_else_reads_is_written() -> None:
    assert kernels(
        "m: f32[4, 6] = matmul(x, w)",
        "s: f32[4, 6] = relu(m)",
        "k: f32[4, 6] = matmul(m, w)",
        "y: f32[4, 6] = add(s, k)",
    ) == [["matmul"], ["relu"], ["matmul", "add"]]


def test_paths_that_meet_again_stay_together() -> None:
    assert kernels(
        "m: f32[4, 6] = matmul(x, w)",
        "s: f32[4, 6] = sigmoid(m)",
        "y: f32[4, 6] = mul(m, s)",
    ) == [["matmul", "sigmoid", "mul"]]


def test_what_feeds_an_elementwise_kernel_alone_joins_it() -> None:
    head = "def main(i: f32[4, 6], c: f32[4, 6], o: f32[4, 6], b: f32[6]):\n"
    gates = (
        "f: f32[4, 6] = sigmoid(i)",
        "g: f32[4, 6] = tanh(o)",
        "k: f32[4, 6] = mul(f, c)",
        "h: f32[4, 6] = exp(g)",
        "y: f32[4, 6] = add(k, h)",
    )
    assert kernels(*gates, head=head) == [["sigmoid", "tanh", "mul", "exp", "add"]]
    assert kernels(*gates, head=head, result="g, y") == [["tanh"], ["sigmoid", "mul", "exp", "add"]]
    # What somebody else reads is written.
    found = kernels(*gates, "z: f32[4, 6] = matmul(g, g)", head=head, result="y, z")
    assert found == [["tanh"], ["sigmoid", "mul", "exp", "add"], ["matmul"]]
    # What is repeated along the rows is computed once.
    found = kernels(
        "f: f32[4, 6] = sigmoid(i)", "g: f32[6] = tanh(b)", "y: f32[4, 6] = add(f, g)", head=head
    )
    assert found == [["tanh"], ["sigmoid", "add"]]


def test_whoever_computes_from_a_range_counts_by_itself() -> None:
    numbers = "k: f32[6] = range(size=6, start=1.0, dtype=f32)"
    lines = ("y: f32[4, 6] = add(x, k)", "z: f32[6] = mul(k, b)")
    assert kernels(numbers, *lines, result="y, z") == [["range", "add"], ["range", "mul"]]
    assert kernels(numbers, *lines, result="y, k, z") == [["range"], ["add"], ["mul"]]
    # What moves the numbers, or multiplies matrices of them, reads them.
    product = "p: f32[6] = matmul(k, w)"
    assert kernels(numbers, *lines, product, result="y, z, p")[0] == ["range"]


def test_what_feeds_many_is_cut_where_a_kernel_is_long_enough() -> None:
    lines = [f"e{n}: f32[4, 6] = exp(x)" for n in range(40)]
    lines += [f"s{n + 1}: f32[4, 6] = add({f's{n}' if n else 'e39'}, e{n})" for n in range(38)]
    found = kernels(*lines, "y: f32[4, 6] = relu(s38)")
    assert sum(map(len, found)) == 40 + 38 + 1
    assert max(map(len, found)) == MAX_GROUP_NODES


def test_the_memory_that_a_result_is_placed_into_is_no_element_of_it() -> None:
    found = kernels(
        "f: f32[4, 6] = exp(x)",
        "m: f32[6, 6] = relu(w)",
        "y: f32[6, 6] = insert(m, f, offset=(1, 0))",
    )
    assert found == [["relu"], ["exp", "insert"]]


def test_an_output_inside_a_chain_ends_the_group() -> None:
    assert kernels(
        "m: f32[4, 6] = matmul(x, w)",
        "y: f32[4, 6] = relu(m)",
        result="m, y",
    ) == [["matmul"], ["relu"]]


def test_two_contractions_never_share_a_kernel() -> None:
    assert kernels(
        "m: f32[4, 6] = matmul(x, w)",
        "y: f32[4, 6] = matmul(m, w)",
    ) == [["matmul"], ["matmul"]]


def test_a_residual_that_is_computed_later_waits() -> None:
    found = kernels(
        "m: f32[4, 6] = matmul(x, w)",
        "k: f32[4, 6] = matmul(m, w)",
        "y: f32[4, 6] = add(m, k)",
    )
    assert found == [["matmul"], ["matmul", "add"]]


def test_a_transpose_of_an_operand_is_read_in_place() -> None:
    assert kernels(
        "t: f32[6, 4] = transpose(x, perm=(1, 0))",
        "y: f32[6, 6] = matmul(t, v)",
        head="def main(x: f32[4, 6], v: f32[4, 6]):\n",
    ) == [["transpose", "matmul"]]


@pytest.mark.parametrize(
    ("perm", "reader", "together"),
    [
        ((0, 2, 1), "softmax(t, axis=2)", False),
        ((0, 2, 1), "softmax(t, axis=-1)", False),
        ((0, 2, 1), "softmax(t, axis=1)", True),
        ((1, 0, 2), "softmax(t, axis=-1)", True),
        ((0, 2, 1), "log_softmax(t, axis=-1)", True),
    ],
)
def test_lines_of_a_softmax_are_put_side_by_side(
    perm: tuple[int, ...], reader: str, together: bool
) -> None:
    found = kernels(
        f"t: f32[5, 5, 5] = transpose(x, perm={perm})",
        f"y: f32[5, 5, 5] = {reader}",
        head="def main(x: f32[5, 5, 5]):\n",
    )
    name = reader.partition("(")[0]
    assert found == ([["transpose", name]] if together else [["transpose"], [name]])


def test_a_slice_is_copied_into_each_reader() -> None:
    assert kernels(
        "s: f32[4, 3] = slice(x, starts=(0, 1), sizes=(4, 3))",
        "a: f32[4, 3] = relu(s)",
        "c: f32[3, 6] = transpose(z, perm=(1, 0))",
        "k: f32[4, 6] = matmul(s, c)",
        "y: f32[4, 6] = softmax(k, axis=-1)",
        head="def main(x: f32[4, 6], z: f32[6, 3]):\n",
        result="a, y",
    ) == [["slice", "relu"], ["slice", "transpose", "matmul"], ["softmax"]]


@pytest.mark.parametrize("context", [AVX512, replace(AVX512, target=parse_target("cuda"))])
@pytest.mark.parametrize("text", [
    """def main(x: f32[4, 6]):
    s: f32[4, 3] = slice(x, starts=(0, 1), sizes=(4, 3))
    a: f32[4, 3] = relu(s)
    c: f32[3, 4] = transpose(s, perm=(1, 0))
    y: f32[3, 4] = softmax(c, axis=-1)
    return a, y
""",
    """def main(q: u8[4, 6]):
    c: f32[4, 6] = cast(q, to=f32)
    s: f32[4, 6] = exp(c)
    r: f32[4] = reduce(c, kind='sum', axes=(1,), keepdims=False)
    return s, r
""",
])  # fmt: skip
def test_what_each_reader_computes_for_itself_is_nobodys_result(text, context) -> None:
    graph = parse_graph(text)
    found = fuse_groups(graph, context)
    verify_graph(found, when="after fuse_groups")
    assert [n.op.name for n in found.nodes] == ["fused"] * len(found.nodes)
    assert {v for n in found.nodes for v in n.outputs} <= {*graph.outputs, *_read(found)}


def _read(graph):
    """What the nodes of a graph read."""
    return {v for n in graph.nodes for v in n.inputs}


def test_what_is_placed_into_memory_does_not_read_it() -> None:
    found = kernels(
        "e: f32[4, 12] = empty(shape=(4, 12))",
        "p: f32[4, 6] = relu(x)",
        "i: f32[4, 12] = insert(e, p, offset=(0, 0))",
        "s: f32[4, 6] = slice(i, starts=(0, 0), sizes=(4, 6))",
        "q: f32[4, 6] = exp(s)",
        "y: f32[4, 12] = insert(i, q, offset=(0, 6))",
    )
    assert found == [["relu", "insert"], ["slice"], ["exp", "insert"]]


def test_it_does_not_read_it_where_many_others_do() -> None:
    many = range(MAX_GROUP_NODES)
    found = kernels(
        "e: f32[4, 12] = empty(shape=(4, 12))",
        "p: f32[4, 6] = relu(x)",
        "i: f32[4, 12] = insert(e, p, offset=(0, 0))",
        "v: f32[4, 6] = slice(i, starts=(0, 0), sizes=(4, 6))",
        "q: f32[4, 6] = exp(v)",
        "y: f32[4, 12] = insert(i, q, offset=(0, 6))",
        *(f"r{n}: f32[4, 6] = neg(v)" for n in many),
        result="y, " + ", ".join(f"r{n}" for n in many),
    )
    assert found == [["relu", "insert"], ["slice"], ["exp", "insert"], *(["neg"] for _ in many)]


@pytest.mark.parametrize(
    ("between", "copied_out"),
    [
        (["matmul(s, w)", "relu(t0)"], True),
        (["exp(s)", "matmul(t0, w)", "relu(t1)", "matmul(t2, w)"], False),
        (["matmul(s, w)", "softmax(t0, axis=-1)", "matmul(t1, w)"], True),
    ],
    ids=["one_contraction", "two_contractions", "attention"],
)
def test_a_view_of_memory_is_read_in_place_where_another_kernel_writes(
    between: list[str], copied_out: bool
) -> None:
    found = kernels(
        "e: f32[4, 12] = empty(shape=(4, 12))",
        "p: f32[4, 6] = relu(x)",
        "i: f32[4, 12] = insert(e, p, offset=(0, 0))",
        "s: f32[4, 6] = slice(i, starts=(0, 0), sizes=(4, 6))",
        *(f"t{n}: f32[4, 6] = {text}" for n, text in enumerate(between)),
        f"y: f32[4, 12] = insert(i, t{len(between) - 1}, offset=(0, 6))",
    )
    assert (["slice"] in found) is copied_out


def test_reshapes_are_no_kernels() -> None:
    assert kernels(
        "r: f32[24] = reshape(x, shape=(24,))",
        "y: f32[24] = relu(r)",
    ) == [["relu"]]


@pytest.mark.parametrize("count", [3, 40])
def test_long_chains_are_cut(count: int) -> None:
    lines = [f"v{i + 1}: f32[4, 6] = exp(v{i})" for i in range(count)]
    found = kernels("v0: f32[4, 6] = matmul(x, w)", *lines, f"y: f32[4, 6] = relu(v{count})")
    assert sum(map(len, found)) == count + 2
    assert all(len(k) <= 24 for k in found)
    assert (len(found) == 1) is (count == 3)


def test_a_part_is_placed_with_its_halo() -> None:
    assert kernels(
        "r: f32[4, 6] = relu(x)",
        "p: f32[6, 8] = pad(r, before=(1, 1), after=(1, 1))",
        "y: f32[12, 8] = insert(z, p, offset=(6, 0))",
        head="def main(x: f32[4, 6], z: f32[12, 8]):\n",
    ) == [["relu", "pad", "insert"]]


def test_nothing_computes_with_a_halo() -> None:
    assert kernels(
        "r: f32[4, 6] = relu(x)",
        "p: f32[6, 8] = pad(r, before=(1, 1), after=(1, 1))",
        "y: f32[6, 8] = exp(p)",
    ) == [["relu", "pad"], ["exp"]]


LARGE = "f32[1, 2, 6, 6, 8] = resize(x, sizes=(1, 2, 6, 6, 8)"


@pytest.mark.parametrize(
    ("resize", "is_read_in_place"),
    [
        (f"r: {LARGE})", True),
        (f"r: {LARGE}, mode='linear')", False),
        (f"r: {LARGE}, coordinates='asymmetric', rounding='floor')", True),
        ("r: f32[1, 2, 6, 6, 8] = resize(w, sizes=(1, 2, 6, 6, 8))", False),
        ("r: f32[1, 2, 6, 6, 8] = resize(v, sizes=(1, 2, 6, 6, 8))", True),
    ],
    ids=["repeated", "interpolated", "floor", "lanes", "open"],
)
def test_an_enlarged_image_is_read_where_its_elements_come_from(
    resize: str, is_read_in_place: bool
) -> None:
    """Each of two readers looks up what it needs, where that costs an index only."""
    found = kernels(
        resize,
        "a: f32[1, 2, 6, 6, 8] = add(r, z)",
        "y: f32[1, 2, 6, 6, 8] = mul(r, z)",
        head="def main(n: size, x: f32[1, 2, 3, 3, 8], w: f32[1, 2, 3, 3, 4], "
        "v: f32[1, 2, 3, n, 8], z: f32[1, 2, 6, 6, 8]):\n",
        result="a, y",
    )
    assert (["resize"] not in found) is is_read_in_place


def test_an_enlarged_image_of_open_size_is_looked_up_once() -> None:
    """A division by what only a run knows is no index that each reader finds anew."""
    found = kernels(
        "r: f32[2, n, 8] = resize(x, sizes=(2, n, 8))",
        "a: f32[2, n, 8] = add(r, z)",
        "y: f32[2, n, 8] = mul(r, z)",
        head="def main(n: size, x: f32[2, 3, 8], z: f32[2, n, 8]):\n",
        result="a, y",
    )
    assert ["resize"] in found


@pytest.mark.parametrize(
    ("reader", "is_read_in_place"),
    [
        ("f32[1, 2, 8, 8, 8] = pad(r, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0))", True),
        ("f32[1, 2, 1, 1, 8] = reduce(r, kind='sum', axes=(2, 3))", False),
        ("f32[1, 2, 4, 4, 8] = conv_depthwise(r, w)", False),
    ],
    ids=["pad", "reduce", "window"],
)
def test_a_window_reads_an_enlarged_image_from_memory(reader: str, is_read_in_place: bool) -> None:
    head = "def main(x: f32[1, 2, 3, 3, 8], w: f32[2, 3, 3, 8]):\n"
    found = kernels(f"r: {LARGE})", f"y: {reader}", head=head)
    assert (["resize"] not in found) is is_read_in_place


def test_nothing_follows_what_is_placed_into_memory() -> None:
    """The kernel of an insert writes its base in place, so the insert is its result."""
    assert kernels(
        "m: f32[4, 6] = insert(x, w, offset=(0, 0))",
        "y: f32[6, 8] = pad(m, before=(1, 1), after=(1, 1))",
        head="def main(x: f32[4, 6], w: f32[2, 6]):\n",
    ) == [["insert"], ["pad"]]


@pytest.mark.parametrize(
    ("conv", "weights", "joins"),
    [("conv_blocked", "f32[4, 2, 1, 1, 8, 8]", True), ("conv_depthwise", "f32[2, 1, 1, 8]", False)],
)
def test_only_a_dense_convolution_writes_its_phases_between_each_other(conv, weights, joins):
    blocks = 4 if joins else 2
    found = kernels(
        f"c: f32[1, {blocks}, 5, 3, 8] = {conv}(x, w)",
        f"i: f32[1, {blocks // 2}, 5, 6, 8] = interleave(c, stride=(1, 2))",
        f"y: f32[1, {blocks // 2}, 5, 6, 8] = relu(i)",
        head=f"def main(x: f32[1, 2, 5, 3, 8], w: {weights}):\n",
    )
    apart = [[conv], ["interleave", "relu"]]
    assert found == ([[conv, "interleave", "relu"]] if joins else apart)


@pytest.mark.parametrize(
    ("reader", "size", "is_looked_up"),
    [
        ("slice(i, starts=(0, 0, 0, 1, 0), sizes=(1, 2, 5, 4, 8))", "5, 4", True),
        ("pad(i, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0))", "7, 8", True),
        ("conv_depthwise(i, f)", "4, 5", False),
        ("reduce(i, kind='sum', axes=(2, 3), keepdims=True)", "1, 1", False),
    ],
    ids=["slice", "pad", "window", "reduce"],
)
def test_phases_are_looked_up_by_who_reads_each_pixel_about_once(reader, size, is_looked_up):
    head = "def main(x: f32[1, 4, 5, 3, 8], f: f32[2, 2, 2, 8]):\n"
    phases = "i: f32[1, 2, 5, 6, 8] = interleave(x, stride=(1, 2))"
    found = kernels(phases, f"y: f32[1, 2, {size}, 8] = {reader}", head=head)
    assert (["interleave"] not in found) is is_looked_up
    if not reader.startswith("slice"):
        crop = "c: f32[1, 2, 5, 6, 8] = slice(j, starts=(0, 0, 0, 1, 0), sizes=(1, 2, 5, 6, 8))"
        cropped = kernels(
            phases.replace("3, 8", "4, 8").replace("i: f32[1, 2, 5, 6", "j: f32[1, 2, 5, 8"),
            crop,
            f"y: f32[1, 2, {size}, 8] = {reader.replace('(i', '(c')}",
            head=head.replace("5, 3, 8", "5, 4, 8"),
        )
        assert (["interleave"] not in cropped) is is_looked_up


BYTES = "def main(q: u8[4, 6], w: f32[6, 6]):\n"
NUMBERS = ("a: i32[4, 6] = cast(q, to=i32)", "c: f32[4, 6] = cast(a, to=f32)")


def test_bytes_are_widened_by_each_reader() -> None:
    assert kernels(
        *NUMBERS,
        "s: f32[4, 6] = exp(c)",
        "k: f32[6, 4] = transpose(s, perm=(1, 0))",
        "r: f32[4] = reduce(c, kind='sum', axes=(1,))",
        head=BYTES,
        result="k, r",
    ) == [["cast", "cast", "exp"], ["transpose"], ["cast", "cast", "reduce"]]


HALVES = "def main(q: {t}[{n}, 6], w: {t}[6, 5], v: f32[6]):\n"


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("rows", "is_read"), [("1", True), ("3", True), ("4", False), ("n", False)]
)
def test_16_bit_floats_are_widened_by_kernels_that_read_them_once(
    rows: str, is_read: bool, half: str
) -> None:
    """Rows are read for each column, and columns for each row; a result is float32 itself."""
    head = HALVES.format(t=half, n=rows)
    found = kernels(
        f"a: f32[{rows}, 6] = cast(q, to=f32)",
        "b: f32[6, 5] = cast(w, to=f32)",
        f"m: f32[{rows}, 5] = matmul(a, b)",
        f"y: f32[{rows}, 5] = exp(m)",
        head=head.replace("main(", "main(n: size, "),
    )
    product = ["matmul", "exp"]
    assert found == [["cast"], *([["cast", *product]] if is_read else [["cast"], product])]
    lines = (
        f"a: f32[{rows}, 6] = cast(q, to=f32)",
        f"r: f32[{rows}] = reduce(a, kind='sum', axes=(1,))",
        f"y: f32[{rows}, 6] = mul(a, v)",
    )
    head = head.replace("main(", "main(n: size, ")
    assert kernels(*lines, head=head, result="r, y") == [["cast", "reduce"], ["cast", "mul"]]
    apart = [["cast"], ["reduce"], ["mul"]]
    assert kernels(*lines, head=head, result="a, r, y") == apart


def test_on_a_gpu_what_makes_16_bit_floats_widens_them() -> None:
    graph = parse_graph("""
def main(x: f32[4, 6]):
    h: f16[4, 6] = cast(x, to=f16)
    k: f16[6, 4] = transpose(h, perm=(1, 0))
    a: f32[4, 6] = cast(h, to=f32)
    s: f32[4, 6] = softmax(a, axis=1)
    return s, k
""")
    found = groups(graph, widens_halves=False)
    assert [[n.op.name for n in g] for g in found] == [
        ["cast"], ["transpose"], ["cast"], ["softmax"],
    ]  # fmt: skip


def test_scaled_bytes_are_read_as_bytes() -> None:
    """Of a sum of two quantized tensors neither is made on its own; nor is what has many scales."""
    head = "def main(q: u8[4, 6], p: u8[4, 6], e: f32[6]):\n    k: f32[()] = const(0.5)\n"
    lines = (
        *NUMBERS,
        "d: f32[4, 6] = mul(c, {scale})",
        "b: i32[4, 6] = cast(p, to=i32)",
        "f: f32[4, 6] = cast(b, to=f32)",
        "g: f32[4, 6] = mul(k, f)",
        "y: f32[4, 6] = add(d, g)",
        "z: f32[4, 6] = exp(d)",
    )
    both = ["cast", "cast", "mul"]
    text = [line.format(scale="k") for line in lines]
    assert kernels(*text, head=head, result="y, z") == [[*both, *both, "add"], [*both, "exp"]]
    text = [line.format(scale="e") for line in lines]
    assert [*both, *both, "add"] not in kernels(*text, head=head, result="y, z")


def test_a_contraction_that_reads_numbers_again_and_again_gets_them_from_memory() -> None:
    lines = (*NUMBERS, "y: f32[4, 6] = matmul(c, w)")
    assert kernels(*lines, head=BYTES) == [["cast", "cast"], ["matmul"]]


def test_numbers_that_leave_the_graph_are_made_once() -> None:
    lines = (*NUMBERS, "y: f32[4, 6] = exp(c)")
    assert kernels(*lines, head=BYTES, result="y, c") == [["cast", "cast"], ["exp"]]


@pytest.mark.parametrize(("stride", "blocks", "joins"), [(2, 1, True), (3, 1, False), (3, 2, True)])
def test_a_pair_of_blocks_stays_within_a_phase_or_two(stride: int, blocks: int, joins: bool):
    found = kernels(
        f"c: f32[1, {stride * blocks}, 5, 3, 16] = conv_planes(x, w, blocks={stride * blocks},"
        " slack=99, planes=1)",
        f"y: f32[1, {blocks}, 5, {3 * stride}, 16] = interleave(c, stride=(1, {stride}))",
        head="def main(x: f32[1, 2, 5, 3, 16], "
        f"w: bf16[{stride * blocks}, 1, 1, 1, 1, 16, 16, 2]):\n",
    )
    assert found == (
        [["conv_planes", "interleave"]] if joins else [["conv_planes"], ["interleave"]]
    )


def test_what_a_kernel_alone_makes_and_another_reads_is_a_result_of_it() -> None:
    text = (
        "    m: f32[4, 6] = matmul(x, w)\n    s: f32[4, 6] = relu(m)\n    y: f32[4, 6] = exp(m)\n"
    )
    graph = parse_graph(HEAD + text + "    return s, y\n")
    formed = form_groups(graph, lambda g: [g.nodes[:2], g.nodes[2:]])
    assert [[v.name for v in n.outputs] for n in formed.nodes] == [["m", "s"], ["y"]]


def test_what_is_read_by_a_member_that_stands_for_a_node_is_no_result() -> None:
    text = (
        "    m: f32[4, 6] = matmul(x, w)\n    s: f32[4, 6] = relu(m)\n    y: f32[4, 6] = exp(s)\n"
    )
    graph = parse_graph(HEAD + text + "    return y\n")

    def all_in_one(g: Graph) -> list[tuple[Node, ...]]:
        return [(g.nodes[0], replace(g.nodes[1], source="other"), g.nodes[2])]

    (node,) = form_groups(graph, all_in_one).nodes
    assert [v.name for v in node.outputs] == ["y"]


@pytest.mark.parametrize(
    ("perm", "context", "kernels"),
    [
        ((0, 3, 1, 2), AVX512, ["transpose", "max_pool"]),
        ((0, 2, 1, 3), AVX512, ["transpose_max_pool"]),
        ((0, 3, 1, 2), ON_GPU, ["transpose_max_pool"]),
    ],
)
def test_lines_that_a_pool_would_gather_are_stored(perm, context, kernels) -> None:
    shape = ", ".join(str((2, 9, 8, 16)[d]) for d in perm)
    height, width = ((2, 9, 8, 16)[d] - 2 for d in perm[2:])
    text = f"""def main(x: f32[2, 9, 8, 16]):
    t: f32[{shape}] = transpose(x, perm={perm})
    y: f32[2, {(2, 9, 8, 16)[perm[1]]}, {height}, {width}] = max_pool(t, kernel=(3, 3))
    return y
"""
    fused = fuse_groups(parse_graph(text), context)
    assert [n.op.body.name for n in fused.nodes if isinstance(n.op, FusedGroup)] == kernels
