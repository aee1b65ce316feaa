"""Passes ask which way to go, and take another way where one was chosen for this very fork."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.fork import Choices, Fork, Way, fork_from_json
from dlc.core.target import Gpu, Target
from dlc.graph.forks import canonical_text
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import read, run, same_of_whole_numbers

TARGET = Target(features=frozenset({"avx512f"}))
CONV = """
def main(x: f32[1, 4, 16, 18, 16]):
    w: f32[4, 4, 3, 3, 16, 16] = const()
    y: f32[1, 4, 14, 16, 16] = conv_blocked(x, w)
    return y
"""
OPEN = """
def main(h: size, v: size, x: f32[1, 4, h + 2, v + 2, 16]):
    w: f32[4, 4, 3, 3, 16, 16] = const()
    y: f32[1, 4, h, v, 16] = conv_blocked(x, w)
    return y
"""


def asked(text, name="use_winograd", context=None):
    """What a pass decides about a graph."""
    found: list[Fork] = []
    context = context or PassContext(target=TARGET)
    return run(name, read(text), replace(context, on_fork=found.append)), found


def operators(graph):
    return [node.op.name for node in graph.nodes]


def chosen(fork, option, default=None):
    return Choices({fork.key: Way(option, default or fork.default)})


def test_a_choice_turns_a_convolution_back_and_keeps_its_results():
    plain = read(CONV)
    (fork,) = asked(CONV)[1]
    assert (fork.options, fork.default) == (
        ("direct", "tiles of 2 by 2", "tiles of 2 by 4"),
        "tiles of 2 by 4",
    )
    assert fork.others == ("direct", "tiles of 2 by 2")
    assert fork.cycles_of("direct") * 0.9 > fork.cycles_of(fork.default) > 0
    context = PassContext(target=TARGET, choices=chosen(fork, "direct"))
    found = run("use_winograd", plain, context)
    assert operators(found) == ["conv_blocked"]
    small = CONV.replace("[4, 4, 3", "[1, 1, 3").replace("[1, 4, 1", "[1, 1, 1")
    small = small.replace("16, 18, 16]", "5, 6, 16]").replace("14, 16, 16]", "3, 4, 16]")
    (other,) = asked(small)[1]
    assert other.default == "direct"
    context = PassContext(target=TARGET, choices=chosen(other, "tiles of 2 by 2"))
    plain = read(small)
    found = run("use_winograd", plain, context)
    assert operators(found) == ["conv_winograd"]
    same_of_whole_numbers(plain, found)


def test_a_fork_knows_no_names_of_the_model():
    (fork,) = asked(CONV)[1]
    renamed = CONV.replace("x:", "image:").replace("(x,", "(image,").replace("y", "conv_blocked_")
    assert [f.key for f in asked(renamed)[1]] == [fork.key]
    (one,) = asked(OPEN)[1]
    other = OPEN.replace("h", "stride").replace("v ", "batch ").replace("v:", "batch:")
    (two,) = asked(other.replace(", v,", ", batch,").replace("t32", "t32"))[1]
    assert (one.about, one.key) == (two.about, two.key)
    assert "s0" in one.about
    assert one.key != fork.key
    assert fork.name == "winograd of conv_blocked f32[1, 4, 14, 16, 16]"


def test_other_facts_are_other_forks():
    facts = [
        PassContext(target=TARGET),
        PassContext(target=replace(TARGET, cores=2)),
        PassContext(target=replace(TARGET, l2_bytes=3 << 20)),
        PassContext(target=TARGET, precision="high"),
        PassContext(target=TARGET, is_repeated=True),
    ]
    keys = [asked(CONV, context=context)[1][0].key for context in facts]
    keys += [
        asked(CONV.replace("18,", "20,").replace("16, 16]\n    r", "18, 16]\n    r"))[1][0].key
    ]
    (fork,) = asked(CONV)[1]
    keys += [replace(fork, version=fork.version + 1).key, replace(fork, kind="other").key]
    assert len(set(keys)) == len(keys)
    same = PassContext(target=replace(TARGET, cpu="znver4"))  # LLVM's name decides nothing
    assert asked(CONV, context=same)[1][0].key == fork.key


@pytest.mark.parametrize(
    ("option", "default"), [("direct", "direct"), ("sideways", "tiles of 2 by 4")]
)
def test_what_was_measured_over_another_default_or_is_no_way_is_not_taken(option, default):
    (fork,) = asked(CONV)[1]
    context = PassContext(target=TARGET, choices=chosen(fork, option, default))
    assert operators(run("use_winograd", read(CONV), context)) == ["conv_winograd"]


def test_what_holds_for_another_machine_is_not_taken():
    (fork,) = asked(CONV)[1]
    context = PassContext(target=replace(TARGET, cores=2), choices=chosen(fork, "direct"))
    assert operators(run("use_winograd", read(CONV), context)) == ["conv_winograd"]


def test_gpus_decide_nothing_here():
    assert asked(CONV, context=PassContext(target=replace(TARGET, gpu=Gpu())))[1] == []


def test_constants_are_told_from_what_a_run_brings():
    text = (
        "def main(x: f32[2]):\n    w: f32[2] = const()\n    y: f32[2] = add(x, w)\n    return y\n"
    )
    other = "def main(x: f32[2], w: f32[2]):\n    y: f32[2] = add(x, w)\n    return y\n"
    texts = [canonical_text(g, g.nodes) for g in (read(text), read(other))]
    assert texts[0] != texts[1]
    assert "add(x0, c1)" in texts[0]


def test_forks_survive_json():
    (fork,) = asked(OPEN)[1]
    again = fork_from_json(fork.to_json())
    assert (again, again.key, again.cycles) == (fork, fork.key, fork.cycles)
    assert repr(chosen(fork, "direct")) == repr(chosen(again, "direct"))
