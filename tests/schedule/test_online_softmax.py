"""Softmax in blocks of keys: what it is found in, and that it is as right as in one piece."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dlc.core.errors import ScheduleError
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func
from dlc.schedule.primitive import PRIMITIVES
from dlc.schedule.text import parse_func
from tests.schedule.test_docstrings import example

TEXT = example(PRIMITIVES["online_softmax"])[0]
KEYS, COLUMNS = 29, 3


def softmax(rows: int, keys: str = str(KEYS), columns: int = COLUMNS) -> Func:
    """The example with other sizes and results of float32, its weights products as a model's are.

    A size variable `n` stands for keys that only a run knows.
    """
    text = TEXT.replace("f16(o[y, z])", "o[y, z]").replace("f16", "f32")
    sizes = {"3": str(rows), "6": keys, "2": str(columns)}

    def resized(found: re.Match[str]) -> str:
        return re.sub(r"\b[362]\b", lambda size: sizes[size[0]], found[0])

    text = re.sub(r"range\(\d\)|f32\[\d, \d\]", resized, text)
    return parse_func(text.replace("def f(", "def f(n: size, ") if keys == "n" else text)


def online(func: Func, keys: int) -> Func:
    """In blocks of so many keys."""
    return PRIMITIVES["online_softmax"](func, "o", "kb", keys)


def exact(x: np.ndarray, v: np.ndarray) -> np.ndarray:
    """In float64, by the formula."""
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    return np.asarray((e / e.sum(axis=1, keepdims=True)) @ v.astype(np.float64))


def hostile(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores and values: rows beyond the first three are harmless, or what the kind says."""
    random = np.random.default_rng(3)
    x = random.normal(0, 3, (4, KEYS)).astype(np.float32)
    v = random.normal(0, 1, (KEYS, COLUMNS)).astype(np.float32)
    match kind:
        case "-inf everywhere":
            x[0] = -np.inf
        case "-inf in whole blocks":
            x[0, :16], x[1, 8:], x[2, ::2] = -np.inf, -np.inf, -np.inf
        case "inf":
            x[0, 3], x[1, KEYS - 1] = np.inf, np.inf
        case "NaN":
            x[0, 0], x[1, KEYS - 1] = np.nan, np.nan
        case "huge scores":
            x[0], x[1] = x[0] * 1e37, np.sort(x[1] * 1e37)
            x[2, ::3] = -3.4e38
        case "rising":  # each block has a larger score than those before
            x[0], x[1] = np.linspace(-300, 300, KEYS), np.linspace(300, -300, KEYS)
        case "huge values":  # whose sum overflows, and whose mean does not
            x[0], v[:] = 1, 3e38
        case "values that are infinite":
            v[5, 0], v[6, 1] = np.inf, np.nan
    return x, v


KINDS = (
    "nothing", "-inf everywhere", "-inf in whole blocks", "inf", "NaN", "huge scores", "rising",
    "huge values", "values that are infinite",
)  # fmt: skip


GUARD = "w[p, r] * v[r, q]", "(0.0 if isnan(w[p, r]) else w[p, r]) * v[r, q]"


@pytest.mark.parametrize("keys", [1, 8, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_guarded_weights_are_0_where_they_would_be_nan(kind: str, keys: int) -> None:
    x, v = hostile(kind)
    func = parse_func(str(softmax(len(x))).replace(*GUARD))
    assert "isnan" in str(func)
    with np.errstate(all="ignore"):
        plain, got = (run_func(f, {}, {"x": x, "v": v})["out"] for f in (func, online(func, keys)))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(plain))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(plain))
    if kind in ("-inf everywhere", "inf", "NaN"):
        assert (got[0] == 0).all()
        assert (plain[0] == 0).all()
    limit = 2 * (4 + 2 * -(-KEYS // keys)) * np.finfo(np.float32).eps
    known = np.isfinite(plain)
    assert np.abs(got[known] - plain[known]).max() <= limit * np.abs(v[np.isfinite(v)]).max()


@pytest.mark.parametrize("keys", [1, 8, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_scores_give_what_one_piece_gives(kind: str, keys: int) -> None:
    x, v = hostile(kind)
    func = softmax(len(x))
    with np.errstate(all="ignore"):
        want = exact(x, v)
        plain, got = (run_func(f, {}, {"x": x, "v": v})["out"] for f in (func, online(func, keys)))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(plain))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(plain))
    scale = np.abs(v[np.isfinite(v)]).max()
    known = np.isfinite(want) & np.isfinite(plain)
    assert known[3:].any()
    blocks = -(-KEYS // keys)
    limit = (4 + 2 * blocks) * np.finfo(np.float32).eps
    assert np.abs(got[known] - want[known]).max() <= limit * scale


def test_many_blocks_are_as_accurate_as_one_piece() -> None:
    random = np.random.default_rng(4)
    x = random.normal(0, 5, (16, 1024)).astype(np.float32)
    v = random.normal(1, 1, (1024, 2)).astype(np.float32)
    func = softmax(16, "1024", 2)
    want = exact(x, v)
    errors = [
        np.abs(run_func(f, {}, {"x": x, "v": v})["out"] - want).mean()
        for f in (func, online(func, 64))
    ]
    assert errors[1] < 1.5 * errors[0]


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 20])
def test_the_number_of_keys_may_be_open(n: int) -> None:
    func = softmax(2, "n")
    random = np.random.default_rng(n)
    arrays = {"x": random.normal(size=(2, n)), "v": random.normal(size=(n, COLUMNS))}
    arrays = {name: a.astype(np.float32) for name, a in arrays.items()}
    want, got = (run_func(f, {"n": n}, arrays)["out"] for f in (func, online(func, 8)))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert not np.isnan(got).any()


def test_weights_by_a_reciprocal_and_a_base_of_their_own_are_a_softmax() -> None:
    text = TEXT.replace("exp(x[a, b] - m[a, 0])", "exp(x[a, b] - g0[a, 0])")
    text = text.replace(
        "    for a in range(3):\n",
        "    for ga in range(3):\n        for gb in range(1):\n"
        "            g0[ga, 0] = m[ga, 0] - min(max(m[ga, 0], 0.0), 16.0)\n"
        "    for a in range(3):\n",
    ).replace("    e = alloc", '    g0 = alloc(f32[3, 1], "local")\n    e = alloc', 1)
    func = parse_func(text)
    blocked = online(func, 4)
    assert "g0" not in str(blocked)
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    arrays = {"x": x, "v": x.reshape(6, 3)[:, :2].copy()}
    want, got = (run_func(f, {}, arrays)["out"] for f in (func, blocked))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[a, b] - m[a, 0]", "x[a, b] - m[2 - a, 0]"),  # the largest score of another row
        ("x[a, b] - m[a, 0]", "x[a, 5 - b] - m[a, 0]"),  # other scores than those it is of
        ("exp(x[a, b] - m[a, 0])", "exp(m[a, 0] - x[a, b])"),
        ("m[i, u] = max(m[i, u], x[i, k])", "m[i, u] = min(m[i, u], x[i, k])"),
        ("+= e[c, d]", "+= e[c, d] * e[c, d]"),
        ("+= e[c, d]", "+= e[c, 5 - d]"),  # the same, but not seen to be
        ("e[g, h] / s[g, 0]", "s[g, 0] / e[g, h]"),
        ("e[g, h] / s[g, 0]", "e[g, h] + s[g, 0]"),
        ("w[p, r] * v[r, q]", "w[p, 5 - r] * v[r, q]"),
        ("w[p, r] * v[r, q]", "(w[p, r] + 1.0) * v[r, q]"),  # not proportional to the weights
        ("w[p, r] * v[r, q]", "exp(w[p, r]) * v[r, q]"),
        ("w[p, r] * v[r, q]", "(w[p, r] * v[r, q]) * w[p, r]"),
        ("w[p, r] * v[r, q]", "w[p, r] * w[p, r]"),
        ("w[p, r] * v[r, q]", "(0.0 if w[p, r] < 0.5 else w[p, r]) * v[r, q]"),
        ("w[p, r] * v[r, q]", "(1.0 if isnan(w[p, r]) else w[p, r]) * v[r, q]"),
        ("w[p, r] * v[r, q]", "(0.0 if isnan(w[p, r]) else 1.0) * v[r, q]"),
        ("w[p, r] * v[r, q]", "(0.0 if isnan(v[r, q] - w[p, r]) else w[p, r]) * v[r, q]"),
        ("e[g, h] / s[g, 0]", "f32(i32(e[g, h] / s[g, 0]))"),
    ],
)
def test_what_is_no_softmax_is_left_alone(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(ScheduleError, match="sums nothing that a softmax weighs"):
        online(parse_func(TEXT.replace(old, new)), 4)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("for k in range(6)", "for k in range(5)", "'m' has other keys"),
        ("for d in range(6)", "for d in range(5)", "'s' has other keys"),
        ("for r in range(6)", "for r in range(5)", "'o' has other keys"),
        ("m[i, u] = -inf", "m[i, u] = 0.0", "'m' starts from a number that counts"),
        ("s[c, t] = 0.0", "s[c, t] = 1.0", "'s' starts from a number that counts"),
        ("o[p, q] = 0.0", "o[p, q] = 1.0", "'o' starts from a number that counts"),
        (
            "                s[c, t] += e[c, d]",
            "                if d < 5:\n                    s[c, t] += e[c, d]",
            "'s' leaves keys out",
        ),
    ],
)
def test_a_softmax_of_other_keys_than_it_weighs_is_left_alone(
    old: str, new: str, reason: str
) -> None:
    assert old in TEXT
    with pytest.raises(ScheduleError, match=reason):
        online(parse_func(TEXT.replace(old, new)), 4)


@pytest.mark.parametrize(("key", "is_taken"), [("tb", True), ("5 - tb", False)])
def test_scores_are_made_of_numbers_of_their_own_key(key: str, *, is_taken: bool) -> None:
    text = TEXT.replace(
        "    for i in range(3):\n",
        "    for ya in range(3):\n        for yb in range(6):\n"
        "            y0[ya, yb] = x[ya, yb] * 2.0\n"
        "    for ta in range(3):\n        for tb in range(6):\n"
        f"            t0[ta, tb] = y0[ta, tb] + y0[ta, {key}]\n"
        "    for i in range(3):\n",
        1,
    )
    made = "".join(f'    {b} = alloc(f32[3, 6], "local")\n' for b in ("y0", "t0"))
    text = text.replace("    m = alloc", made + "    m = alloc", 1)
    text = text.replace("x[i, k]", "t0[i, k] + y0[i, k]")
    func = parse_func(text.replace("x[a, b]", "t0[a, b] + y0[a, b]"))
    if not is_taken:
        with pytest.raises(ScheduleError, match="sums nothing that a softmax weighs"):
            online(func, 4)
        return
    x = np.random.default_rng(5).normal(size=(3, 6)).astype(np.float32)
    arrays = {"x": x, "v": x.reshape(6, 3)[:, :2].copy()}
    want, got = (run_func(f, {}, arrays)["out"] for f in (func, online(func, 4)))
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2e-3)
