"""Which iterations are independent: what is proven, and what must not be."""

import pytest

from dlc.schedule.dependence import why_not_independent, why_not_permutable
from dlc.schedule.loop import loops
from tests.schedule.data import parse

HEAD = "def f(n: size, A: f32[n, 32], *, B: f32[n, 32], C: f32[64], D: f32[n]):\n"


def nest(body):
    lines = [f"    {line}" for line in body.splitlines()]
    return parse(HEAD + "\n".join(lines) + "\n")


def independent(body, loop="i", **options):
    return why_not_independent(nest(body), loop, **options) == ""


FOR_I = "for i in range(n):\n    "


@pytest.mark.parametrize(
    "body",
    [
        "B[i, 0] = A[i, 1]",
        "for j in range(32):\n        B[i, j] = A[i, j] + A[i, 31 - j]",
        "for j in range(9):\n        B[i, j] = 0.0\n    B[i, 0] = B[i, 8]",
        "for j in range(4):\n        D[i] += A[i, j]",
        "t = alloc(f32[4], 'local')\n    t[0] = A[i, 0]\n    B[i, 0] = t[0]".replace("'", '"'),
        "B[n - 1 - i, 0] = A[i, 1]",
        "if i * 2 < n:\n        B[i * 2, 0] = A[i, 1]",
    ],
)
def test_independent_iterations(body):
    assert independent(FOR_I + body)


@pytest.mark.parametrize(
    "body",
    [
        "C[0] = A[i, 1]",
        "C[0] += A[i, 1]",
        "D[i] = D[0]",
        "B[i // 2, 0] = A[i, 1]",
        "B[i % 2, 0] = A[i, 1]",
        "if 0 < i:\n        D[i] = D[i - 1]",
        "for j in range(n):\n        D[j] = A[i, 0]",
        "for j in range(n):\n        if i + j < n:\n            D[i + j] = A[i, j]",
        "B[i, 0] = A[i, 1]\n    C[i % 64] = 1.0",
        "B[index(A[i, 0]), 0] = 1.0",
        "if C[0] < 3.0:\n        C[i % 64] = 0.0",
    ],
)
def test_dependent_iterations(body):
    assert not independent(FOR_I + body)


@pytest.mark.parametrize(
    ("index", "inner", "fine"),
    [
        ("i * 8 + j", 8, True),
        ("i * 8 + j", 7, True),
        ("i * 8 + j", 9, False),
        ("j * 8 + i", 8, True),
        ("j * 7 + i", 8, False),
        ("i * 8 + 7 - j", 8, True),
        ("i * 8 + j // 2", 16, True),
        ("i * 8 + j // 2", 17, False),
        ("i * 8 + j % 8", 99, True),
        ("i * 8 + j % 9", 99, False),
        ("i * 8 + min(j, 7)", 99, True),
    ],
)
def test_digits_are_read_off_an_index(index, inner, fine):
    text = f"""
        def f(*, C: f32[999]):
            for i in range(8):
                for j in range({inner}):
                    C[{index}] = 1.0
    """
    assert (why_not_independent(parse(text), "i") == "") is fine


@pytest.mark.parametrize(
    ("index", "fine"),
    [
        ("f // 8, f % 8", True),
        ("f // 8, f % 7", False),
        ("f // 9, f % 8", False),
        ("f // 8 // 3, f // 8 % 3 * 8 + f % 8", True),
        ("f // 24, f % 24 // 8 + f % 8", False),
        ("f // m, f % m", True),
        ("f // m, f % n", False),
    ],
)
def test_a_fused_loop_is_read_off_its_digits(index, fine):
    text = f"""
        def f(n: size, m: size, *, C: f32[n, m]):
            for f_1 in range(n * 24):
                C[{index.replace("f ", "f_1 ")}] = 1.0
    """
    assert (why_not_independent(parse(text), "f_1") == "") is fine


@pytest.mark.parametrize(
    ("second", "fine"),
    [
        ("C[i + k * 2 + 10]", True),
        ("C[i + k * 4 + 10]", True),
        ("C[i + k * 2 + 11]", False),
        ("C[i + k * 3 + 10]", False),
        ("C[i * 2 + k * 2 + 10]", False),
        ("C[2 - i + k * 2]", False),
    ],
)
def test_a_residue_is_read_off_whatever_the_rest(second, fine):
    first = "for j in range(5):\n        C[i + j * 2] = 0.0\n    "
    body = f"{first}for k in range(4):\n        {second} = 1.0"
    assert independent("for i in range(2):\n    " + body) is fine
    assert not independent("for i in range(3):\n    " + body)


@pytest.mark.parametrize(
    ("second", "fine"),
    [
        ("C[i * 2 + s + k * 6 + 12]", True),
        ("C[i * 2 + s + k * 12]", True),
        ("C[i * 2 + k * 6]", True),
        ("C[i * 2 + s + k * 6 + 1]", False),
        ("C[i * 2 + s + k * 4]", False),
        ("C[i * 2 + s * 2 + k * 6]", False),
    ],
)
def test_a_residue_may_have_a_remainder(second, fine):
    def body(count, remainders):
        return (
            f"for i in range({count}):\n"
            f"        for j in range(5):\n"
            f"            for r in range({remainders}):\n"
            f"                C[i * 2 + r + j * 6] = 0.0\n"
            f"        for k in range(4):\n"
            f"            for s in range(2):\n"
            f"                {second} = 1.0"
        )

    assert independent(body(3, 2)) is fine
    assert not independent(body(4, 2))
    assert not independent(body(3, 3))


def test_boxes_with_different_offsets():
    text = """
        def f(n: size, *, C: f32[n * 4 + 4]):
            for i in range(n):
                for j in range({count}):
                    C[i * 4 + j] = 0.0
                C[i * 4 + 3] = 1.0
    """
    assert why_not_independent(parse(text.format(count=4)), "i") == ""
    assert "'C'" in why_not_independent(parse(text.format(count=5)), "i")


def test_memory_shared_in_place_counts_as_one():
    text = """
        @in_place(B="A")
        def f(n: size, A: f32[n], *, B: f32[n]):
            for i in range(n):
                B[i] = A[{index}]
    """
    assert why_not_independent(parse(text.format(index="i")), "i") == ""
    assert "'B'" in why_not_independent(parse(text.format(index="n - 1 - i")), "i")


def test_an_instruction_touches_its_region():
    text = """
        def f(a: u8[8, 4], b: i8[4], *, c: i32[16]):
            for i in range(8):
                invoke("dot_4xi8_i32", a[i, 0], b[0], c[{index}])
    """
    assert why_not_independent(parse(text.format(index="i * 2")), "i") == ""
    assert "'c'" in why_not_independent(parse(text.format(index="i // 2")), "i")
    wide = text.replace("a: u8[8, 4], b: i8[4], *, c", "a: u8[9, 4], b: i8[4], *, c")
    assert why_not_independent(parse(wide.format(index="i")), "i") == ""


@pytest.mark.parametrize(
    ("statement", "fine"),
    [
        ("C[0] += A[i, j]", True),
        ("C[0] *= A[i, j]", True),
        ("C[0] = max(C[0], A[i, j])", True),
        ("C[0] = min(C[0], A[i, j])", True),
        ("C[0] = C[0] - A[i, j]", False),
        ("C[0] = A[i, j] + C[0]", False),
        ("C[0] += A[i, j] * C[1]", False),
        ("C[0] += A[i, j]\n        C[0] *= A[i, j]", False),
        ("C[0] += A[i, j]\n        D[i] = C[0]", False),
        ("C[0] += A[i, j]\n        C[1] += A[i, j]", True),
        ("C[0] += A[i, j]\n        if C[0] < 1.0:\n            D[i] = 1.0", False),
    ],
)
def test_accumulations_may_be_reordered(statement, fine):
    func = nest(f"for i in range(n):\n    for j in range(32):\n        {statement}")
    outer = loops(func.body)["i"]
    assert (why_not_permutable(func, outer, ("i", "j")) == "") is fine
    assert (why_not_independent(func, "j", reductions=True) == "") is fine
    assert why_not_independent(func, "j") != ""


def test_the_reason_names_the_buffer():
    func = nest("for i in range(n):\n    C[0] = A[i, 0]")
    assert "one element of 'C', which is written" in why_not_independent(func, "i")


def test_a_loop_of_one_iteration_is_independent():
    text = "def f(A: f32[4], *, B: f32[1]):\n    for i in range({n}):\n        B[0] = A[i]\n"
    assert why_not_independent(parse(text.format(n=1)), "i") == ""
    assert why_not_independent(parse(text.format(n=2)), "i") != ""
