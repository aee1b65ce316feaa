"""Which groups become one launch of a GPU, and which stay apart."""

from __future__ import annotations

import pytest

from dlc.core.target import Gpu, Target
from dlc.graph.fusion import groups
from dlc.graph.gpu_groups import join_launches
from dlc.graph.pass_ import PASSES, PassContext
from dlc.graph.text import parse_graph
from tests.graph.pass_cases import read, same

GPU = Target(backend="cuda", gpu=Gpu())
HEAD = (
    "def main(x: f32[1, 5, 7], w: f32[7, 6], r: f32[1, 5, 6], g: f32[6], i: i64[3],"
    " v: f32[6, 6]):\n"
)
NORM = (
    "m: f32[1, 5, 6] = matmul(x, w)",
    "s: f32[1, 5, 6] = add(m, r)",
    "y: f32[1, 5, 6] = layer_norm(s, g, g)",
)
LARGE = "def main(x: f32[1, 512, 7], w: f32[7, 320], r: f32[1, 512, 320], g: f32[320]):\n"
LARGE_NORM = tuple(line.replace("5, 6", "512, 320") for line in NORM)
ROW = HEAD.replace("5", "1")
ROW_NORM = tuple(line.replace("5", "1") for line in NORM)
LATER = (
    *NORM,
    "q: f32[1, 5, 6] = matmul(y, v)",
    "z: f32[1, 5, 6] = add(q, s)",
)
EARLIER = (
    *NORM[:2],
    "z: f32[1, 5, 6] = matmul(s, v)",
    NORM[2],
)
MASK = (
    "a: bool[6] = cast(g, to=bool)",
    "b: bool[6, 1] = reshape(a, shape=(6, 1))",
    "c: bool[3, 1] = gather(b, i)",
    "d: bool[1, 3] = reshape(c, shape=(1, 3))",
    "y: f32[1, 3] = cast(d, to=f32)",
)
PROLOGUE = (
    "e: f32[3, 7] = gather(z, i)",
    "s: f32[3, 7] = add(e, t)",
    "y: f32[3, 7] = softmax(s, axis=1)",
)
EMBED = "def main(z: f32[9, 7], t: f32[3, 7], i: i64[3]):\n"
TURNED = (
    "e: f32[3, 7] = gather(z, i)",
    "u: f32[7, 3] = transpose(e, perm=(1, 0))",
    "s: f32[7, 1] = reduce(u, kind='mean', axes=(1,), keepdims=True)",
    "y: f32[7, 3] = mul(u, s)",
)
SPREAD = (
    "e: f32[6] = exp(g)",
    "s: f32[1, 5, 6] = softmax(r, axis=2)",
    "y: f32[1, 5, 6] = mul(s, e)",
)


def text(head: str, lines: tuple[str, ...], result: str) -> str:
    return head + "".join(f"    {line}\n" for line in (*lines, f"return {result}"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("head", "lines", "result", "before", "after"),
    [
        (HEAD, NORM, "y", 2, 1),
        (HEAD, NORM, "y, s", 2, 1),  # what is normalised is a result too
        (LARGE, LARGE_NORM, "y", 2, 2),  # more tiles than processors
        (ROW, ROW_NORM, "y", 2, 2),  # one block would multiply by itself
        (HEAD, LATER, "z", 3, 2),
        (HEAD, EARLIER, "y, z", 3, 3),  # the norm comes too late for another reader
        (HEAD, NORM[:2] + ("y: f32[1, 5, 6] = softmax(s, axis=1)",), "y", 2, 2),  # of columns
        (HEAD, MASK, "y", 3, 1),
        (HEAD, MASK, "y, c", 3, 2),
        (EMBED, PROLOGUE, "y", 3, 1),
        (EMBED, PROLOGUE, "y, e", 3, 2),
        (EMBED, TURNED, "y", 3, 3),  # two groups read the same view of what a third one makes
        (HEAD, SPREAD, "y", 2, 2),  # each row would compute the vector again
    ],
)
def test_groups_that_save_a_launch_are_one(
    head: str, lines: tuple[str, ...], result: str, before: int, after: int
) -> None:
    graph = parse_graph(text(head, lines, result))
    found = groups(graph)
    assert len(found) == before
    assert len(join_launches(graph, found, GPU)) == after


@pytest.mark.parametrize(
    ("head", "lines"),
    [(HEAD, NORM), (HEAD, MASK), (EMBED, PROLOGUE), (EMBED, TURNED)],
)
def test_a_joined_group_computes_the_same(head: str, lines: tuple[str, ...]) -> None:
    before = read(text(head, lines, "y").replace("f32", "f64"))
    same(before, PASSES["fuse_groups"](before, PassContext(GPU)), {})


def test_what_is_kept_of_a_joined_group_is_the_same() -> None:
    before = read(text(HEAD, LATER, "z, s").replace("f32", "f64"))
    after = PASSES["fuse_groups"](before, PassContext(GPU))
    same(before, after, {})
    assert sorted(len(n.outputs) for n in after.nodes) == [1, 2]
