"""Which windows become one kernel with the products that read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.fork import Choices, Fork, Way
from dlc.core.target import Target
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import read, run, same

CONTEXT = PassContext(target=Target(features=frozenset({"avx2", "fma"}), cores=2))
TEXT = """
def main(x: f32[1, 2, 10, 9, 8], r: f32[1, 3, 8, 7, 8]):
    f: f32[2, 3, 3, 8] = const()
    g: f32[3, 2, 1, 1, 8, 8] = const()
    d: f32[1, 2, 8, 7, 8] = conv_depthwise(x, f)
    a: f32[1, 2, 8, 7, 8] = relu(d)
    p: f32[1, 3, 8, 7, 8] = conv_blocked(a, g)
    y: f32[1, 3, 8, 7, 8] = add(p, r)
    return y
"""
OPEN = (
    TEXT.replace("main(", "main(n: size, h: size, w: size, ")
    .replace("[1, 2, 10, 9,", "[n, 2, h + 2, w + 2,")
    .replace("[1, 3, 8, 7,", "[n, 3, h, w,")
    .replace("[1, 2, 8, 7,", "[n, 2, h, w,")
)


def kernels(text: str, context: PassContext = CONTEXT) -> list[list[str]]:
    """The operators of each kernel."""
    ops = [node.op for node in run("fuse_groups", read(text), context).nodes]
    return [[n.op.name for n in op.body.nodes] for op in ops if isinstance(op, FusedGroup)]


TOGETHER = [["conv_depthwise", "relu", "conv_blocked", "add"]]
APART = [["conv_depthwise", "relu"], ["conv_blocked", "add"]]


@pytest.mark.parametrize("text", [TEXT, OPEN], ids=["known", "open"])
def test_a_depthwise_convolution_joins_the_pointwise_one_that_reads_it(text: str) -> None:
    assert kernels(text) == TOGETHER


def test_so_does_one_with_nothing_between_them() -> None:
    text = TEXT.replace("    a: f32[1, 2, 8, 7, 8] = relu(d)\n", "").replace("(a, g)", "(d, g)")
    assert kernels(text) == [["conv_depthwise", "conv_blocked", "add"]]
    plain = read(text.replace("f32", "f64"))
    same(plain, run("fuse_groups", plain, CONTEXT), {})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return y", "return y, a"),  # it is a result, too
        ("return y", "b: f32[1, 2, 8, 7, 8] = relu(a)\n    return y, b"),
        (", 8, 7, 8]", ", 1, 7, 8]"),  # one line for two cores
        ("x: f32[1, 2, 10, 9, 8]", "x: f32[1, 2, 10, 9, 8], i: f32[1, 2, 8, 7, 8]"),
        ("conv_blocked(a, g)", "conv_blocked(a, g, stride=(2, 2))"),
        ("3, 2, 1, 1, 8, 8]", "3, 2, 3, 3, 8, 8]"),
    ],
    ids=["result", "read twice", "few lines", "placed", "strided", "wide"],
)
def test_others_stay_apart(old: str, new: str) -> None:
    text = TEXT.replace(old, new)
    if old == ", 8, 7, 8]":
        text = text.replace(", 10, 9,", ", 3, 9,")
    if "stride" in new:
        text = text.replace("[1, 3, 8, 7, 8]", "[1, 3, 4, 4, 8]")
    if "3, 3, 8, 8]" in new:
        text = text.replace("[1, 3, 8, 7, 8]", "[1, 3, 6, 5, 8]")
    if "i: f32" in new:
        text = text.replace("relu(d)", "insert(i, d, offset=(0, 0, 0, 0, 0))")
    found = kernels(text)
    assert ["conv_blocked", "add"] in found
    assert sum("conv_depthwise" in kernel for kernel in found) == 1


def test_both_ways_give_the_same_results() -> None:
    found: list[Fork] = []
    assert kernels(TEXT, replace(CONTEXT, on_fork=found.append)) == TOGETHER
    (fork,) = (f for f in found if f.kind == "strips")
    apart_cycles, cycles = fork.cycles
    assert apart_cycles > cycles > 0
    apart = replace(CONTEXT, choices=Choices({fork.key: Way("apart", "strips")}))
    assert kernels(TEXT, apart) == APART
    plain = read(TEXT.replace("f32", "f64"))
    for context in (CONTEXT, apart):
        same(plain, run("fuse_groups", plain, context), {})


RING = """
def main(x: f32[1, 2, 24, 8, 8], r: f32[1, 2, 24, 8, 8]):
    e: f32[8, 2, 1, 1, 8, 8] = const()
    f: f32[8, 3, 3, 8] = const()
    g: f32[2, 8, 1, 1, 8, 8] = const()
    c: f32[1, 8, 24, 8, 8] = conv_blocked(x, e)
    m: f32[1, 8, 24, 8, 8] = relu(c)
    h: f32[1, 8, 26, 10, 8] = pad(m, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0))
    d: f32[1, 8, 24, 8, 8] = conv_depthwise(h, f)
    a: f32[1, 8, 24, 8, 8] = relu(d)
    p: f32[1, 2, 24, 8, 8] = conv_blocked(a, g)
    y: f32[1, 2, 24, 8, 8] = add(p, r)
    return y
"""
WINDOWED = RING.replace("x: f32[1, 2, 24, 8, 8],", "z: f32[1, 2, 26, 10, 8],").replace(
    "    c: f32",
    """    k: f32[2, 3, 3, 8] = const()
    w: f32[1, 2, 24, 8, 8] = conv_depthwise(z, k)
    x: f32[1, 2, 24, 8, 8] = relu(w)
    c: f32""",
)
SMALL = replace(CONTEXT, target=replace(CONTEXT.target, l2_bytes=1 << 14))
JOINED = ["conv_blocked", "relu", "pad", "conv_depthwise", "relu", "conv_blocked", "add"]


@pytest.mark.parametrize(
    ("text", "joined"), [(RING, JOINED), (WINDOWED, ["conv_depthwise", "relu", *JOINED])]
)
def test_a_large_image_between_them_is_made_in_the_same_kernel(
    text: str, joined: list[str]
) -> None:
    found: list[Fork] = []
    assert kernels(text, replace(SMALL, on_fork=found.append)) == [joined]
    fork = found[-1]
    assert (fork.kind, fork.options) == ("strips", ("apart", "strips", "ring"))
    apart_cycles, strips_cycles, cycles = fork.cycles
    assert apart_cycles > strips_cycles > cycles > 0
    plain = read(text.replace("f32", "f64"))
    for way, last in (("ring", joined), ("strips", JOINED[3:]), ("apart", JOINED[5:])):
        context = replace(SMALL, choices=Choices({fork.key: Way(way, "ring")}))
        assert kernels(text, context)[-1] == last
        same(plain, run("fuse_groups", plain, context), {})


@pytest.mark.parametrize(
    "text",
    [
        RING.replace("return y", "return y, h"),  # it is a result, too
        RING.replace("return y", "b: f32[1, 8, 26, 10, 8] = relu(h)\n    return y, b"),
    ],
    ids=["result", "read twice"],
)
def test_an_image_that_others_read_is_made_apart(text: str) -> None:
    assert JOINED[:3] in kernels(text, SMALL)
    assert not any(kernel.count("conv_blocked") > 1 for kernel in kernels(text, SMALL))


def test_an_image_that_stays_near_is_made_apart() -> None:
    assert kernels(RING) == [JOINED[:3], JOINED[3:]]


CONCAT = """
def main(x: f32[1, 2, 10, 9, 8], o: f32[1, 5, 10, 9, 8]):
    f: f32[2, 3, 3, 8] = const()
    g: f32[3, 2, 1, 1, 8, 8] = const()
    c: f32[1, 5, 10, 9, 8] = insert(o, x, offset=(0, 0, 0, 0, 0))
    s: f32[1, 2, 10, 9, 8] = slice(c, starts=(0, 0, 0, 0, 0), sizes=(1, 2, 10, 9, 8))
    d: f32[1, 2, 8, 7, 8] = conv_depthwise(s, f)
    a: f32[1, 2, 8, 7, 8] = relu(d)
    p: f32[1, 3, 8, 7, 8] = conv_blocked(a, g)
    y: f32[1, 5, 10, 9, 8] = insert(c, p, offset=(0, 2, 1, 1, 0))
    return y
"""


def test_what_is_written_into_the_memory_that_is_read_stays_apart() -> None:
    found = kernels(CONCAT)
    assert not any({"conv_depthwise", "conv_blocked"} <= set(kernel) for kernel in found)
    plain = read(CONCAT.replace("f32", "f64"))
    same(plain, run("fuse_groups", plain, CONTEXT), {})


POWER = """
def main(x: f32[1, 32, 34, 34, 8]):
    f: f32[32, 3, 3, 8] = const()
    g: f32[3, 32, 1, 1, 8, 8] = const()
    d: f32[1, 32, 32, 32, 8] = conv_depthwise(x, f)
    a: f32[1, 32, 32, 32, 8] = relu(d)
    y: f32[1, 3, 32, 32, 8] = conv_blocked(a, g)
    return y
"""


def test_an_image_that_is_never_in_memory_has_no_line_to_keep_its_blocks_apart() -> None:
    assert all(node.op.name != "pad" for node in run("share_halos", read(POWER), CONTEXT).nodes)
    apart = POWER.replace("(a, g)", "(a, g, stride=(2, 2))").replace(
        "y: f32[1, 3, 32, 32", "y: f32[1, 3, 16, 16"
    )
    assert any(node.op.name == "pad" for node in run("share_halos", read(apart), CONTEXT).nodes)
