"""The host program as native code: arithmetic, buffers, control flow, failures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlc.codegen.llvm.host import emit_program
from dlc.codegen.llvm.host_expr import TOO_LARGE, ZERO_DIVISOR
from dlc.codegen.weight_offsets import weight_offsets
from dlc.core.errors import CodegenError
from dlc.core.target_parse import parse_target
from dlc.core.types import INDEX, DType
from dlc.graph.arrays import NUMPY_DTYPES
from dlc.schedule.program import (
    Allocate,
    BindSize,
    CallKernel,
    Check,
    Copy,
    HostIf,
    HostLoop,
    Place,
    Provide,
    Release,
    SizeVar,
    View,
)
from dlc.te.expr import Binary, BinOp, Load, Var, cast, const, either, equal, index, select
from dlc.te.text import parse_expr
from tests.codegen.model_driver import Loaded, RunError, buffer, build, kernel, program

# out[i] = in[i] + number of the call; add(n, x, y, out): out = x + y
NEXT = """
define void @next(ptr %host, i64 %n, ptr %x, ptr %out) {
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %exit
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %p = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %p
  %w = fadd float %v, 1.0
  %q = getelementptr float, ptr %out, i64 %i
  store float %w, ptr %q
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""
ADD = """
define void @add(ptr %host, i64 %n, ptr %x, ptr %y, ptr %out) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %p = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %p
  %q = getelementptr float, ptr %y, i64 %i
  %w = load float, ptr %q
  %s = fadd float %v, %w
  %r = getelementptr float, ptr %out, i64 %i
  store float %s, ptr %r
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""
# out[0] = value, as i64: shows what a size expression came to
SHOW = """
define void @show(ptr %host, i64 %value, ptr %out) {
  store i64 %value, ptr %out
  ret void
}
"""
# numbers[position] = position * 10, as i64
MARK = """
define void @mark(ptr %host, i64 %position, ptr %numbers) {
  %at = getelementptr i64, ptr %numbers, i64 %position
  %value = mul i64 %position, 10
  store i64 %value, ptr %at
  ret void
}
"""
NATIVE = parse_target("native")
SHOW_KERNEL = kernel("show", ["v"], 0)
MARK_KERNEL = kernel("mark", ["position"], 0)


def show_all(texts, sizes):
    """A program whose outputs are the values of size expressions."""
    exprs = [parse_expr(t) if isinstance(t, str) else t for t in texts]
    outputs = [buffer(f"y{i}", 1, dtype=DType.I64) for i in range(len(exprs))]
    body = [CallKernel("show", (e,), (f"y{i}",)) for i, e in enumerate(exprs)]
    names = tuple(SizeVar(name) for name in sizes)
    return program(body, sizes=names, outputs=outputs, kernels=[SHOW_KERNEL])


def values(model, sizes, count):
    outputs = [np.zeros(1, np.int64) for _ in range(count)]
    model.run(sizes, [], outputs)
    return [int(o[0]) for o in outputs]


def test_buffers_constants_and_arena(tmp_path):
    prog = program(
        [
            Place(buffer("t", "n"), 1),
            CallKernel("next", (parse_expr("n"),), ("x", "t")),
            Place(buffer("u", "n"), 2, parse_expr("64")),
            CallKernel("add", (parse_expr("n"),), ("t", "w2", "u")),
            View(buffer("v", 1, "n"), "u"),
            CallKernel("add", (parse_expr("n"),), ("v", "w1", "y")),
            Copy("z", "v"),
        ],
        sizes=[SizeVar("n", 1, 32)],
        inputs=[buffer("x", "n")],
        outputs=[buffer("y", "n"), buffer("z", 1, "n")],
        constants=[buffer("w1", 32), buffer("w2", 32)],
        kernels=[kernel("next", ["n"], 1), kernel("add", ["n"], 2)],
        arena=("128", "n * 4", "n * 4 + 64", "n - 2"),
    )
    w1, w2 = np.arange(32, dtype=np.float32), np.arange(32, dtype=np.float32) * 100
    model = Loaded(build(tmp_path / "m.so", prog, [NEXT, ADD], {"w1": w1, "w2": w2}))
    assert (model.model.input_count, model.model.output_count, model.model.size_count) == (1, 2, 1)
    for n in (1, 16, 17, 32):
        dims, arena = model.plan(n, dims=3)
        assert dims == [n, 1, n]
        assert arena == 128 + (n + 15) // 16 * 128 + 64 + max((n + 61) // 64 * 64, 0)
        x = np.arange(n, dtype=np.float32) + 1000
        y, z = np.zeros(n, np.float32), np.zeros((1, n), np.float32)
        model.run([n], [x], [y, z], arena)
        np.testing.assert_array_equal(z[0], x + 1 + w2[:n])
        np.testing.assert_array_equal(y, x + 1 + w2[:n] + w1[:n])


def test_a_view_may_begin_inside_its_source(tmp_path):
    rows = parse_expr("n")
    prog = program(
        [
            View(buffer("second", "n", 1), "x", rows),
            View(buffer("third", "n"), "second", rows),
            CallKernel("add", (rows,), ("second", "third", "y")),
            View(buffer("tail", 2), "w", index(2)),
            CallKernel("next", (index(2),), ("tail", "z")),
        ],
        sizes=[SizeVar("n", 1)],
        inputs=[buffer("x", 3, "n")],
        outputs=[buffer("y", "n"), buffer("z", 2)],
        constants=[buffer("w", 4)],
        kernels=[kernel("next", ["n"], 1), kernel("add", ["n"], 2)],
    )
    w = np.array([1, 2, 3, 4], np.float32)
    model = Loaded(build(tmp_path / "m.so", prog, [NEXT, ADD], {"w": w}))
    x, y, z = np.arange(15, dtype=np.float32), np.zeros(5, np.float32), np.zeros(2, np.float32)
    model.run([5], [x], [y, z])
    np.testing.assert_array_equal(y, x[5:10] + x[10:15])
    np.testing.assert_array_equal(z, [4, 5])


def test_another_abi_gets_no_model(tmp_path):
    model = Loaded(build(tmp_path / "m.so", program([])))
    assert model.model.abi_version == 3
    assert not model.query(2)
    assert not model.query(4)
    assert not model.query(0)


@pytest.mark.parametrize(("size", "message"), [(0, "from 1 to 32"), (33, "from 1 to 32")])
def test_a_size_out_of_its_range_fails(tmp_path, size, message):
    prog = program([], sizes=[SizeVar("batch", 1, 32)])
    model = Loaded(build(tmp_path / "m.so", prog))
    with pytest.raises(RunError, match=f"'batch' must be {message}"):
        model.plan(size)
    with pytest.raises(RunError, match=f"'batch' must be {message}"):
        model.run([size], [], [])


def test_a_negative_size_fails(tmp_path):
    model = Loaded(build(tmp_path / "m.so", program([], sizes=[SizeVar("n")])))
    model.plan(0)
    with pytest.raises(RunError, match="'n' must be at least 0"):
        model.plan(-1)


def test_a_check_fails_in_plan_and_in_run(tmp_path):
    check = Check(parse_expr("n % 2 == 0"), 'n must be even, 100 %, not "odd" \\ µ')
    model = Loaded(build(tmp_path / "m.so", program([check], sizes=[SizeVar("n")])))
    model.plan(4)
    model.run([4], [], [])
    for call in (lambda: model.plan(3), lambda: model.run([3], [], [])):
        with pytest.raises(RunError) as caught:
            call()
        assert str(caught.value) == 'n must be even, 100 %, not "odd" \\ µ (n is 3)'


def test_all_failures_of_a_function_leave_it_in_one_place():
    small, odd = Check(parse_expr("n < 10"), "large"), Check(parse_expr("n % 2 < 1"), "odd")
    text = emit_program(program([small, odd], sizes=[SizeVar("n")]), NATIVE)
    run = text[text.index("@dlc_run(") :]
    run = run[: run.index("\n}")]
    assert run.count("br label %failed") > 2  # the checks, and that of the size itself
    assert run.count("ret i32 %failed_result") == 1


def test_statements_after_a_failed_check_do_not_run(tmp_path):
    body = [Check(parse_expr("n < 2"), "too many"), CallKernel("mark", (index(1),), ("y",))]
    outputs = [buffer("y", 2, dtype=DType.I64)]
    prog = program(body, sizes=[SizeVar("n")], outputs=outputs, kernels=[MARK_KERNEL])
    model = Loaded(build(tmp_path / "m.so", prog, [MARK]))
    y = np.zeros(2, np.int64)
    with pytest.raises(RunError, match="too many"):
        model.run([2], [], [y])
    assert y[1] == 0
    model.run([1], [], [y])
    assert y[1] == 10


A, B = Var("a"), Var("b")
ARITHMETIC = [
    "a + b", "a - b", "-a", "a * b", "a // 8", "a % 8", "a // 7", "a % 7", "a // -3", "a % -3",
    "min(a, b)", "max(a, b)", "(b - a) // 8", "(b - a) % 8", "(b - a) // 5", "(b - a) % 5",
]  # fmt: skip
CHOICES = [
    select(A < B, A, B + 100),
    select(either(equal(A, 3), B < A), 7, A),
    select(Binary(BinOp.AND, A < 5, B > 2), B, 9),
    select(Binary(BinOp.NE, A, B), 1, A),
    # The arm that is not chosen would divide by zero.
    select(equal(B, 0), -1, A // Binary(BinOp.MAX, B, index(0))),
]  # fmt: skip


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory):
    prog = show_all([*ARITHMETIC, *CHOICES], ["a", "b"])
    return Loaded(build(tmp_path_factory.mktemp("arithmetic") / "m.so", prog, [SHOW]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(0, 40))
def test_arithmetic_means_what_python_means(arithmetic, a, b):
    expected = [eval(text, {"a": a, "b": b, "min": min, "max": max}) for text in ARITHMETIC]
    expected += [
        a if a < b else b + 100,
        7 if a == 3 or b < a else a,
        b if a < 5 and b > 2 else 9,
        1 if a != b else a,
        -1 if b == 0 else a // b,
    ]
    assert values(arithmetic, [a, b], len(expected)) == expected


DIVISIONS = ["(a - 50) // (b - 9)", "(a - 50) % (b - 9)", "a // b", "a % b"]


@settings(max_examples=60, deadline=None)
@given(a=st.integers(0, 100), b=st.integers(1, 20))
@example(a=60, b=9)
def test_division_by_a_size_floors(divisions, a, b):
    if b == 9:
        with pytest.raises(RunError) as caught:
            values(divisions, [a, b], 4)
        assert str(caught.value) == ZERO_DIVISOR
        return
    expected = [eval(text, {"a": a, "b": b}) for text in DIVISIONS]
    assert values(divisions, [a, b], 4) == expected


@pytest.fixture(scope="module")
def divisions(tmp_path_factory):
    prog = show_all(DIVISIONS, ["a", "b"])
    return Loaded(build(tmp_path_factory.mktemp("divisions") / "m.so", prog, [SHOW]))


@pytest.mark.parametrize(
    ("text", "a", "b"),
    [
        ("a + b", 2**63 - 1, 1),
        ("a * b", 2**32, 2**31),
        ("a - b * 4", 0, 2**62),
        ("(a - 9223372036854775807 - 1) // (b - 1)", 0, 0),
    ],
)
def test_sizes_that_leave_64_bits_fail(tmp_path, text, a, b):
    prog = program([], sizes=[SizeVar("a"), SizeVar("b")], arena=(text,))
    model = Loaded(build(tmp_path / "m.so", prog))
    with pytest.raises(RunError) as caught:
        model.plan(a, b)
    assert str(caught.value) == TOO_LARGE.text


def test_branches_and_loops(tmp_path):
    def mark(text):
        return CallKernel("mark", (parse_expr(text),), ("y",))

    body = [
        HostIf(parse_expr("n < 3"), (mark("0"),), (mark("1"),)),
        HostIf(parse_expr("5 < n"), (mark("2"),)),
        HostLoop("i", parse_expr("n"), (HostIf(parse_expr("0 < i"), (mark("3 + i"),)),)),
        # `3 + n` was not computed on every path above; here it is computed again.
        HostIf(parse_expr("n == 0"), (mark("3 + n"),)),
        HostLoop("j", parse_expr("min(n, 2)"), (HostLoop("k", index(2), (mark("12 + j*2 + k"),)),)),
        mark("3 + n"),
    ]
    outputs = [buffer("y", 16, dtype=DType.I64)]
    prog = program(body, sizes=[SizeVar("n")], outputs=outputs, kernels=[MARK_KERNEL])
    model = Loaded(build(tmp_path / "m.so", prog, [MARK]))
    for n in (0, 1, 2, 3, 6):
        marked = {0 if n < 3 else 1, *([2] if n > 5 else []), *range(4, 3 + n), 3 + n}
        marked |= {12 + j * 2 + k for j in range(min(n, 2)) for k in range(2)}
        y = np.zeros(16, np.int64)
        model.run([n], [], [y])
        np.testing.assert_array_equal(y, [10 * i if i in marked else 0 for i in range(16)])


def test_a_size_is_read_from_data(tmp_path):
    body = [
        BindSize("k", cast(INDEX, Load("x", (index(1),), DType.I64)), "k is negative"),
        Check(parse_expr("k < 50"), "k is too large"),
        CallKernel("show", (parse_expr("k * 2"),), ("y",)),
    ]
    prog = program(
        body,
        inputs=[buffer("x", 2, dtype=DType.I64)],
        outputs=[buffer("y", 1, dtype=DType.I64)],
        kernels=[SHOW_KERNEL],
    )
    model = Loaded(build(tmp_path / "m.so", prog, [SHOW]))
    y = np.zeros(1, np.int64)
    model.plan()  # knows no k, so it checks none
    model.run([], [np.array([-1, 21])], [y])
    assert y[0] == 42
    with pytest.raises(RunError, match=r"k is too large \(k = x\[1\] is 50\)"):
        model.run([], [np.array([0, 50])], [y])
    with pytest.raises(RunError, match=r"k is negative \(x\[1\] is -1\)"):
        model.run([], [np.array([21, -1])], [y])


KINDS = [DType.I8, DType.U8, DType.I16, DType.U16, DType.I32, DType.U32, DType.BOOL]


@pytest.mark.parametrize("kind", KINDS)
def test_elements_of_each_type_are_read(tmp_path, kind):
    dtype = NUMPY_DTYPES[kind]
    value = cast(INDEX, Load("x", (index(1), index(2)), kind)) + 300
    body = [BindSize("k", value, "k is negative"), CallKernel("show", (Var("k"),), ("y",))]
    prog = program(
        body,
        inputs=[buffer("x", 2, 3, dtype=kind)],
        outputs=[buffer("y", 1, dtype=DType.I64)],
        kernels=[SHOW_KERNEL],
    )
    model = Loaded(build(tmp_path / "m.so", prog, [SHOW]))
    y = np.zeros(1, np.int64)
    for number in (0, 1, -1 if dtype.kind == "i" else 1):
        x = np.full((2, 3), 1 - number, dtype)
        x[1, 2] = number
        model.run([], [x], [y])
        assert y[0] == 300 + number


def test_memory_of_a_size_from_data_is_asked_for(tmp_path):
    body = [
        BindSize("k", cast(INDEX, Load("x", (index(0),), DType.I64)), "k is negative"),
        Allocate(buffer("t", "k", 3)),
        CallKernel("next", (parse_expr("k * 3"),), ("ones", "t")),
        Provide("y"),
        Copy("y", "t"),
        Release("t"),
        CallKernel("show", (Var("k"),), ("z",)),
    ]
    prog = program(
        body,
        sizes=[SizeVar("n")],
        inputs=[buffer("x", 1, dtype=DType.I64), buffer("ones", "n")],
        outputs=[buffer("y", "k", 3), buffer("z", 1, dtype=DType.I64)],
        kernels=[kernel("next", ["n"], 1), SHOW_KERNEL],
    )
    model = Loaded(build(tmp_path / "m.so", prog, [NEXT, SHOW]))
    assert model.plan(5, dims=3)[0] == [-1, 3, 1]
    for k in (0, 1, 2):
        z = np.zeros(1, np.int64)
        model.run([6], [np.array([k]), np.ones(6, np.float32)], [None, z])
        ((index_, shape, memory),) = model.given
        assert (index_, shape, z[0]) == (0, [k, 3], k)
        np.testing.assert_array_equal(memory.view(np.float32)[: k * 3], np.full(k * 3, 2))
        assert model.allocated == [k * 12]
        assert model.released == 1
    with pytest.raises(RunError, match=r"no memory for 't', f32 of the shape \(1099511627776, 3\)"):
        model.run([6], [np.array([1 << 40]), np.ones(6, np.float32)], [None, np.zeros(1, np.int64)])
    with pytest.raises(
        RunError, match=r"no memory for 't', f32 of the shape \(4611686018427387904, "
    ):
        model.run([6], [np.array([1 << 62]), np.ones(6, np.float32)], [None, np.zeros(1, np.int64)])


def test_equal_kernels_share_a_symbol(tmp_path):
    body = [CallKernel("one", (index(1),), ("y",)), CallKernel("two", (index(2),), ("y",))]
    kernels = [kernel("one", ["p"], 0), kernel("two", ["p"], 0)]
    prog = program(body, kernels=kernels, outputs=[buffer("y", 3, dtype=DType.I64)])
    text = emit_program(prog, NATIVE, {"one": "mark", "two": "mark"})
    assert text.count("declare hidden void @mark(") == 1
    assert text.count("call void @mark(") == 4  # two by each of the run functions


@pytest.mark.parametrize("name", ["memcpy", "dlc_run"])
def test_a_kernel_cannot_take_the_name_of_another_symbol(name):
    with pytest.raises(CodegenError, match=name):
        emit_program(program([], kernels=[kernel(name, [], 0)]), NATIVE)


@pytest.mark.parametrize(
    ("prog", "reason"),
    [
        (program([], arena=("k",)), "size variable 'k' has no value here"),
        (program([Check(Binary(BinOp.LT, A // 0, A), "")], sizes=[SizeVar("a")]), "divided by 0"),
        (
            program(
                [Check(equal(Load("x", (index(0),), DType.F32), const(0, DType.F32)), "")],
                inputs=[buffer("x", 1)],
            ),
            "'x\\[0\\]' is no size expression",
        ),
        (program([Check(Binary(BinOp.POW, A, A) < 1, "")], sizes=[SizeVar("a")]), "no operation"),
    ],
)
def test_what_is_no_size_is_refused(prog, reason):
    with pytest.raises(CodegenError, match=reason):
        emit_program(prog, NATIVE)


def test_weights_are_aligned():
    buffers = (buffer("a", 1), buffer("b", 16), buffer("c", 17), buffer("d", 0), buffer("e", 1))
    offsets, end = weight_offsets(buffers)
    assert offsets == {"a": 0, "b": 64, "c": 128, "d": 256, "e": 256}
    assert end == 320
