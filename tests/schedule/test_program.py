"""Host programs: text, and each invariant."""

import textwrap
from dataclasses import replace

import pytest

from dlc.core.errors import UserError, VerifyError
from dlc.schedule.gpu_program import why_not_on_gpu
from dlc.schedule.program import Program
from dlc.schedule.program_text import parse_program
from dlc.schedule.text import parse_func
from dlc.schedule.verify_program import verify_program
from dlc.te.expr import Var
from dlc.te.simplify import surely_equal

KERNEL = """\
def scale(n: size, x: f32[n], *, y: f32[n]):
    for i in range(n):
        y[i] = x[i] * 2.0

"""
MAIN = """\
def main(n: size(1, 32), m: size(2), z: size, x: f32[n], count: i64[1], *, y: f32[n]):
    w = const(f32[3])
    arena((n * 4 + 63) // 64 * 128, n * 4)
    t = place(f32[n], 0)
    u = place(f32[n], 0, (n * 4 + 63) // 64 * 64)
    scale(n, x, t)
    k: size = bind(index(count[0]), 'k is negative')
    r = allocate(f32[k])
    if k < 4:
        check(n < 9, 'too many rows')
        scale(3, w, v) if False else None
    else:
        copy(u, t)
    for i in range(k):
        scale(n, t, u)
        v = view(u, f32[1], i)
        copy(t, u)
    scale(k, w, r)
    s = slot()
    cells = allocate(i64[2])
    write(cells, 1, n + k)
    for j in range(k, cells[0] < i64(9)):
        e = allocate(f32[k])
        put(s, e)
    g = take(s, f32[k])
    copy(r, g)
    release(r)
    scale(n, u, y)
"""
MAIN = MAIN.replace("        scale(3, w, v) if False else None\n", "")


def program(*changes):
    text = KERNEL + MAIN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_program(text)


def test_parsing_undoes_printing():
    assert str(program()) == KERNEL + MAIN
    assert parse_program(str(program())) == program()
    empty = program(("        check(n < 9, 'too many rows')\n", "        pass\n"))
    assert parse_program(str(empty)) == empty


def test_a_good_program_passes():
    verify_program(program(), when="now")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("copy(u, t)", "x = 3", "not a statement"),
        ("copy(u, t)", "scald(n, u)", "no kernel 'scald'"),
        ("copy(u, t)", "scale(n, u, 3)", "no buffer"),
        ("copy(u, t)", "s = place(f32[3])", "neither place"),
        ("copy(u, t)", "fetch(count, n, 1)", "not fetch"),
        ("    arena((n * 4 + 63) // 64 * 128, n * 4)\n", "", "arena is missing"),
        ("copy(u, t)", "copy(u", "not program text"),
        (KERNEL, "x = 3\n", "not a kernel or a program"),
        (KERNEL + MAIN, "", "at least one"),
    ],
)
def test_bad_text_is_refused(old, new, reason):
    with pytest.raises(UserError, match=reason):
        program((old, new))


BROKEN = [
    ("m: size(2)", "n: size(2)", "'n' is bound twice"),
    ("    u = place", "    t = place", "'t' is bound twice"),
    ("m: size(2)", "scale: size(2)", "'scale' is bound twice"),
    ("size(1, 32)", "size(4, 3)", "size 'n' has no values"),
    ("for i in range(k)", "for i in range(j)", "reads 'j', which is no size defined before"),
    ("    k: size = bind(index(count[0]), 'k is negative')\n", "", "reads 'k', which is no size"),
    ("count[0]", "count[1]", r"loads 'count\[1\]', which lies outside"),
    ("count[0]", "x[0]", "loads f32 from 'x: f32"),
    ("if k < 4:", "if count[1] < i64(4):", "lies outside"),
    ("write(cells, 1, n + k)", "write(cells, 2, n + k)", "lies outside"),
    ("write(cells, 1, n + k)", "write(count, 0, n + k)", "a write to 'count', an input"),
    ("write(cells, 1, n + k)", "write(cells, 1, n + q)", "reads 'q', which is no size"),
    ("range(k, cells[0] < i64(9))", "range(k, cells[2] < i64(9))", "lies outside"),
    ("        put(s, e)\n", "        put(s, r)\n", "'r' is released, but is not allocated"),
    ("        put(s, e)\n", "        put(z, e)\n", "there is no slot 'z'"),
    ("        put(s, e)\n", "        put(s, e)\n        copy(r, e)\n", "'e' is not defined"),
    ("take(s, f32[k])", "take(r, f32[k])", "there is no slot 'r'"),
    ("take(s, f32[k])", "take(s, f32[q])", "shape of 'g' reads 'q'"),
    (
        "    copy(r, g)\n",
        "    f = allocate(f32[k])\n    put(s, f)\n    copy(r, g)\n",
        "'g' is not defined",
    ),
    ("    release(r)\n", "    release(u)\n", "'u' is released, but is not allocated"),
    ("    release(r)\n", "    release(r)\n    release(r)\n", "'r' is released, but is not"),
    ("    release(r)\n", "    release(r)\n    scale(k, r, t)\n", "'r' is not defined"),
    ("        scale(n, t, u)\n", "        release(r)\n", "'r' is released, but is not allocated"),
    ("allocate(f32[k])", "allocate(f32[j])", "shape of 'r' reads 'j'"),
    ("    release(r)\n", "    provide(y)\n", "'y' is no output that may be provided here"),
    ("    scale(n, u, y)\n", "    scale(n, v, y)\n", "'v' is not defined"),
    ("    scale(n, u, y)\n", "    scale(i, u, y)\n", "reads 'i'"),
    ("    scale(n, x, t)\n", "    scale(n, t)\n", "takes 1 sizes and 2 buffers"),
    ("    scale(n, x, t)\n", "    scale(n + 1, x, t)\n", "takes f32"),
    ("    scale(n, x, t)\n", "    scale(n, x, x)\n", "writes 'x', an input or a constant"),
    ("    scale(n, x, t)\n", "    scale(n, s, t)\n", "'s' is not defined"),
    ("copy(u, t)", "copy(x, t)", "a copy to 'x', an input or a constant"),
    ("copy(u, t)", "copy(w, count)", "a copy of"),
    ("copy(u, t)", "copy(u, s)", "'s' is not defined"),
    ("view(u, f32[1], i)", "view(s, f32[1], i)", "'s' is not defined"),
    ("view(u, f32[1], i)", "view(w, f32[4])", "view 'v' is larger than 'w'"),
    ("view(u, f32[1], i)", "view(w, f32[2], 2)", "view 'v' is larger than 'w'"),
    ("view(u, f32[1], i)", "view(u, f32[1], j)", "reads 'j'"),
    ("place(f32[n], 0)", "place(f32[n], 0, 4)", "no multiple of 64"),
    ("place(f32[n], 0)", "place(f32[n], 2)", "the arena has no region 2"),
    ("place(f32[n], 0)", "place(f32[n + 1], 1)", "'t' does not surely end within its region"),
    ("128, n * 4", "128, j", "the size of region 1 reads 'j'"),
    ("place(f32[n], 0)", "place(f32[j], 0)", "shape of 't' reads 'j'"),
    ("(n * 4 + 63) // 64 * 128", "64", "'u' does not surely end within its region"),
    ("(n * 4 + 63) // 64 * 64)", "0)", "'t' and 'u' may share memory"),
    ("(n * 4 + 63) // 64 * 64)", "n // 16 * 64)", "'t' and 'u' may share memory"),
    ("check(n < 9,", "check(j < 9,", "a condition reads 'j'"),
    ("check(n < 9,", "check(n + 9,", "a condition of type index"),
    ("if k < 4:", "if j < 4:", "a condition reads 'j'"),
    ("y: f32[n]):\n    w", "y: f32[j]):\n    w", "output 'y' is not provided"),
]


@pytest.mark.parametrize(("old", "new", "problem"), BROKEN)
def test_a_broken_invariant_is_reported(old, new, problem):
    with pytest.raises(VerifyError, match=problem):
        verify_program(program((old, new)), when="now")


def test_what_a_branch_binds_stays_in_it():
    inside = ("check(n < 9, 'too many rows')", "s = place(f32[n], 0)")
    with pytest.raises(VerifyError, match="'s' is not defined"):
        verify_program(program(inside, ("copy(u, t)", "copy(s, t)")), when="now")


def test_an_unknown_kernel_is_reported():
    broken = program()
    with pytest.raises(VerifyError, match="no kernel 'scale'"):
        verify_program(
            type(broken)(
                *[() if f == "kernels" else getattr(broken, f) for f in broken.__dataclass_fields__]
            ),
            when="now",
        )


def test_a_kernel_is_not_called_as_a_word_of_the_text():
    func = parse_func(KERNEL.replace("scale", "copy"))
    broken = Program("main", (), (), (), (), (func,), (), ())
    with pytest.raises(VerifyError, match="'copy' cannot be the name of a kernel"):
        verify_program(broken, when="now")


def test_an_output_may_have_a_size_read_at_run_time():
    text = """
        def main(count: i64[1], *, y: f32[k]):
            arena()
            k: size = bind(index(count[0]), "k is negative")
            provide(y)
    """
    text = textwrap.dedent(text)
    verify_program(parse_program(text), when="now")
    assert parse_program(str(parse_program(text))) == parse_program(text)
    with pytest.raises(VerifyError, match="'y' is not provided"):
        verify_program(parse_program(text.replace("provide(y)", "pass")), when="now")
    with pytest.raises(VerifyError, match="'y' is no output that may be provided here"):
        verify_program(parse_program(text + "    provide(y)\n"), when="now")


def test_regions_lie_apart():
    apart = ("place(f32[n], 0)", "place(f32[n], 1)"), ("0, (n * 4 + 63) // 64 * 64)", "0)")
    verify_program(program(*apart), when="now")


def test_buffers_that_never_live_together_may_share():
    text = KERNEL + textwrap.dedent("""
        def main(x: f32[8], *, y: f32[8]):
            arena(64)
            t = place(f32[8], 0)
            u = place(f32[8], 0)
            scale(8, x, t)
            scale(8, t, y)
            scale(8, x, u)
            scale(8, u, y)
    """)
    verify_program(parse_program(text), when="now")
    together = text.replace("scale(8, u, y)", "scale(8, u, y)\n    scale(8, t, y)")
    with pytest.raises(VerifyError, match="may share memory"):
        verify_program(parse_program(together), when="now")


def test_what_a_loop_uses_lives_all_through_it():
    text = KERNEL + textwrap.dedent("""
        def main(k: size, x: f32[8], *, y: f32[8]):
            arena(64)
            t = place(f32[8], 0)
            u = place(f32[8], 0)
            scale(8, x, t)
            for i in range(k):
                scale(8, t, y)
                scale(8, y, u)
    """)
    with pytest.raises(VerifyError, match="'t' and 'u' may share memory"):
        verify_program(parse_program(text), when="now")


def test_a_view_keeps_its_source_alive():
    text = KERNEL + textwrap.dedent("""
        def main(x: f32[8], *, y: f32[8]):
            arena(64)
            t = place(f32[8], 0)
            u = place(f32[8], 0)
            scale(8, x, t)
            v = view(t, f32[8])
            scale(8, x, u)
            scale(8, v, y)
    """)
    with pytest.raises(VerifyError, match="'t' and 'u' may share memory"):
        verify_program(parse_program(text), when="now")


TEXTS = """\
def main(n: size, x: str[n], y: i64[n], *, z: str[n]):
    arena(n * 8, n * 8)
    a = place(i64[n], 0)
    b = place(i64[n], 1)
    runtime('number', n, x, a)
    runtime('concat', n, a, y, b)
    runtime('text', n, b, z)
"""


def test_functions_of_the_runtime_are_called_with_what_they_take():
    whole = parse_program(TEXTS)
    assert str(whole) == TEXTS
    verify_program(whole, when="in a test")
    for old, new, problem in (
        ("'concat', n, a, y, b", "'concat', n, a, b", "'concat' takes 1 sizes"),
        ("'number', n, x, a", "'number', n, y, a", "'number' takes 1 sizes"),
        ("'concat', n, a, y, b", "'concat', n, a, b, y", "writes 'y', an input"),
        ("'concat', n, a, y, b", "'concat', m, a, y, b", "reads 'm', which is no size"),
    ):
        with pytest.raises(VerifyError, match=problem):
            verify_program(parse_program(TEXTS.replace(old, new)), when="in a test")
    with pytest.raises(UserError, match="has no such function"):
        parse_program(TEXTS.replace("'concat'", "'shout'"))


def test_texts_keep_a_model_off_the_gpu():
    assert why_not_on_gpu(parse_program(TEXTS)) == "texts are handled by the host"


RANGE = """\
def main(n: size, k: i64[n, 2], j: i32[n], x: f32[n], *, y: i32[n]):
    arena()
    within(k, n, 3, True, 'outside')
    within(j, n, False, 'outside')
    copy(y, j)
"""


def test_indices_are_checked_against_sizes():
    whole = parse_program(RANGE)
    assert str(whole) == RANGE
    verify_program(whole, when="in a test")
    for old, new, problem in (
        ("within(j, n,", "within(x, n,", "indices in 'x: f32"),
        ("within(j, n,", "within(z, n,", "buffer 'z' is not defined"),
        ("within(j, n,", "within(j, m,", "reads 'm', which is no size"),
        ("within(k, n, 3,", "within(k, n, 3, 4,", "3 sizes for 'k"),
    ):
        with pytest.raises(VerifyError, match=problem):
            verify_program(parse_program(RANGE.replace(old, new)), when="in a test")
    with pytest.raises(UserError, match="not within"):
        parse_program(RANGE.replace(", 'outside'", ""))


def test_an_arena_of_many_regions_has_a_size():
    """As that of a model which makes hundreds of columns of an open number of rows."""
    few = replace(program(), arena=tuple(Var("n") * width for width in (4, 8, 12)))
    many = replace(few, arena=few.arena * 300)
    assert surely_equal(many.arena_bytes, few.arena_bytes * 300)
