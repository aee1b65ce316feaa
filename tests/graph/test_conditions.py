"""What operators assume of open sizes is known, and checked before it can do harm."""

from __future__ import annotations

import pytest

from dlc.core.errors import UserError
from dlc.graph.assume import assume, collect_assumptions, differs, is_below
from dlc.graph.conditions import check_sizes, conditions
from dlc.graph.lower import lower_graph
from dlc.graph.text import parse_graph
from dlc.schedule.program import Check
from dlc.te.expr import Const, Var, equal

N, M = Var("n"), Var("m")


def found(body: str, sizes: str = "n: size, m: size") -> list[str]:
    return [str(c.cond) for c in conditions(parse_graph(f"def main({sizes}, {body}"))]


def test_only_open_questions_are_collected():
    with collect_assumptions() as inner:
        assert differs(N, N + 1)
        assert is_below(N, N + 1)
        assert not differs(N, N)
        assert not differs(N * 2, N + N)
        assert not is_below(N, 0)
        assume(N >= 0)
        assert inner == []
        assert not differs(N, M)
        assert not is_below(N, 4)
    assert inner == [equal(N, M), Const(4, N.dtype) <= N]
    assert not differs(N, M)  # nobody listens: nothing happens
    with collect_assumptions() as outer, collect_assumptions() as nested:
        differs(N, 3)
    assert (outer, nested) == ([], [equal(N, 3)])


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("x: f32[n], y: f32[m]):\n    z: f32[n] = add(x, y)\n    return z\n", ["m == n"]),
        ("x: f32[n], y: f32[1]):\n    z: f32[n] = add(x, y)\n    return z\n", []),
        ("x: f32[2, n], y: f32[m, 3]):\n    z: f32[2, 3] = matmul(x, y)\n    return z\n",
         ["n == m"]),
        ("x: f32[n, 6]):\n    z: f32[m, 2] = reshape(x, shape=(m, 2))\n    return z\n",
         ["n * 6 == m * 2"]),
        ("x: f32[n, 6]):\n    z: f32[n * 3, 2] = reshape(x, shape=(n * 3, 2))\n    return z\n", []),
        ("x: f32[n]):\n    z: f32[n - 3] = slice(x, starts=(3,), sizes=(n - 3,))\n    return z\n",
         ["0 <= n - 3"]),
        ("x: f32[n]):\n    z: f32[2] = slice(x, starts=(3,), sizes=(2,))\n    return z\n",
         ["4 < n"]),
        ("x: f32[n]):\n    z: f32[m] = slice(x, starts=(n - 1,), sizes=(m,), steps=(-1,))\n"
         "    return z\n", ["m <= 0 or 0 <= -m + n"]),
        ("x: f32[n]):\n    z: f32[3]\n    i: i64[3]\n    z, i = top_k(x, k=3)\n    return z, i\n",
         ["3 <= n"]),
        ("x: f32[1, 2, n]):\n    z: f32[1, 2, n - 4] = max_pool(x, kernel=(5,), stride=(1,), "
         "pads=(0, 0), dilation=(1,))\n    return z\n", ["0 <= n - 4"]),
        ("x: f32[n]):\n    z: f32[n + 1] = pad(x, before=(1,), after=(0,), mode=\"edge\")\n"
         "    return z\n", ["0 < n"]),
        ("x: f32[n, 2]):\n    z: f32[n + 1, 2] = pad(x, before=(1, 0), after=(0, 0))\n"
         "    return z\n", []),
        ("x: f32[n, 2]):\n    z: f32[n, 3] = pad(x, before=(0, 1), after=(0, 0), mode=\"wrap\")\n"
         "    return z\n", []),
        ("x: f32[n, 2]):\n    z: f32[4, 2] = resize(x, sizes=(4, 2))\n    return z\n", ["0 < n"]),
    ],
)  # fmt: skip
def test_conditions_of_operators(body, wanted):
    assert found(body) == wanted


def test_bounds_answer_questions():
    text = "x: f32[n]):\n    z: f32[2] = slice(x, starts=(3,), sizes=(2,))\n    return z\n"
    assert found(text, "n: size[5, None]") == []
    assert found(text, "n: size[4, 9]") == ["4 < n"]


def test_conditions_come_once_and_name_who_needs_them():
    graph = parse_graph("""\
def main(n: size, m: size, x: f32[n], y: f32[m]):
    a: f32[n] = add(x, y)
    b: f32[n] = mul(a, y)
    def group(n: size, m: size, b: f32[n], y: f32[m]):
        c: f32[n] = sub(b, y)
        return c
    c: f32[n] = group(b, y)
    return c
""")
    (condition,) = conditions(graph)
    assert condition.message == "node 'a' (Add): the sizes do not fit: m == n must hold"


def test_conditions_inside_of_groups_are_found_and_checked():
    graph = parse_graph("""\
def main(n: size, m: size, x: f32[n], y: f32[m]):
    def group(n: size, m: size, x: f32[n], y: f32[m]):
        c: f32[n] = sub(x, y)
        return c
    c: f32[n] = group(x, y)
    return c
""")
    program, _ = lower_graph(graph)
    checks = [s for s in program.body if isinstance(s, Check)]
    assert [str(c.cond) for c in checks] == ["m == n"]
    assert program.body[0] == checks[0]


def test_sizes_that_a_graph_does_not_allow_are_refused():
    head = "def main(n: size, m: size, x: f32[n], y: f32[m]):"
    graph = parse_graph(f"{head}\n    a: f32[n] = add(x, y)\n    return a\n")
    check_sizes(graph, {"n": 5, "m": 5})
    check_sizes(graph, {"n": 5})
    with pytest.raises(UserError, match="m == n must hold"):
        check_sizes(graph, {"n": 1, "m": 5})
