"""Where layouts meet is a decision: any side gives the same results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.fork import Choices, Fork, Way
from dlc.graph.estimate import node_cycles
from dlc.graph.pass_ import PassContext
from dlc.graph.verify import verify_graph
from tests.graph.pass_cases import CONTEXT, read, run, same

# Blocks of 8 channels. An image, two convolutions, an addition of what is planar, and a reshape.
NET = """
def main(x: f32[1, 3, 9, 11], r: f32[1, 16, 7, 9]):
    w: f32[16, 3, 3, 3] = const()
    v: f32[16, 16, 1, 1] = const()
    a: f32[1, 16, 7, 9] = conv(x, w)
    b: f32[1, 16, 7, 9] = relu(a)
    c: f32[1, 16, 7, 9] = conv(b, v)
    d: f32[1, 16, 7, 9] = add(c, r)
    y: f32[16, 63] = reshape(d, shape=(16, 63))
    return y
"""


def asked(text, choices=None):
    """The graph in blocked form, and what is decided about it."""
    found: list[Fork] = []
    context = replace(CONTEXT, on_fork=found.append, choices=choices or Choices())
    return run("choose_layouts", read(text), context), found


def operators(graph):
    return [node.op.name for node in graph.nodes]


def test_what_stands_between_blocked_tensors_is_no_decision():
    graph, forks = asked(NET)
    assert operators(graph) == operators(run("choose_layouts", read(NET), CONTEXT))
    kinds = [(f.kind, f.name.split()[2], f.default) for f in forks]
    # An image of three channels is read as it is; nobody asks about relu and the second one.
    assert kinds == [
        ("source", "conv", "planar"),
        ("layout", "conv", "blocked"),
        ("layout", "add", "blocked"),
    ]


def test_each_side_of_a_border_gives_the_same_results():
    _, forks = asked(NET)
    plain = read(NET)
    seen = [operators(asked(NET)[0])]
    for fork in forks:
        ways = Choices({fork.key: Way(fork.others[0], fork.default)})
        graph, _ = asked(NET, ways)
        same(plain, graph)
        assert operators(graph) not in seen
        seen.append(operators(graph))
    _, by_blocks, by_image, by_sum = seen
    assert by_blocks.count("pack_channels") == 2  # x and r
    assert by_image[:2] == ["conv", "relu"]
    assert "pack_channels" in by_image  # of the second convolution's operand
    assert by_sum[-3:] == ["unpack_channels", "add", "reshape"]


def test_what_is_taken_back_leaves_nothing():
    reshape = "    y: f32[16, 63] = reshape(d, shape=(16, 63))\n    return y"
    text = NET.replace(reshape, "    return d")
    ways: dict[str, Way] = {}
    graph = read(text)
    while True:  # a border moves along until no operator is left behind it
        after, found = asked(text, Choices(ways))
        new = {f.key: Way("planar", f.default) for f in found if f.default == "blocked"}
        if new.keys() <= ways.keys():
            break
        ways |= new
    assert operators(after) == operators(graph)
    assert after.constants.keys() == graph.constants.keys()
    verify_graph(after, when="in a test")


@pytest.mark.parametrize(("channels", "options"), [(3, 2), (7, 2), (8, 0)])
def test_full_blocks_are_never_read_plane_by_plane(channels, options):
    text = NET.replace("f32[1, 3,", f"f32[1, {channels},").replace(
        "16, 3, 3, 3]", f"16, {channels}, 3, 3]"
    )
    forks = [f for f in asked(text)[1] if f.kind == "source"]
    assert [len(f.options) for f in forks] == ([options] if options else [])


def test_nobody_is_asked_where_nobody_listens(monkeypatch):
    monkeypatch.setattr("dlc.graph.blocking.Blocking.remember", None)
    run("choose_layouts", read(NET), PassContext(target=CONTEXT.target))


def test_estimates_know_the_summands_of_convolutions():
    conv = read(NET).nodes[0]
    moved = 3 * 9 * 11 + 16 * 3 * 3 * 3 + 16 * 7 * 9
    work = 16 * 7 * 9 * 27 / (2 * 8 * 0.8)
    assert node_cycles([conv], CONTEXT.target) == pytest.approx(work + moved * 4 / 8 + 2000)
