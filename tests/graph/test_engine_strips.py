"""What passes a large image in strips is left to multiply-adds, where an engine gains less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.fork import Choices, Fork, Way
from dlc.core.target import Target
from dlc.graph.pass_ import PassContext
from dlc.graph.pipeline import PIPELINE
from tests.graph.pass_cases import ENGINE, VNNI, read, rounded, run, same, same_of_whole_numbers

SMALL = Target(features=ENGINE, l2_bytes=1 << 17)
LARGE = Target(features=ENGINE, l2_bytes=1 << 22)
TEXT = """
def main(x: f32[1, 2, 40, 20, 16]):
    e: f32[6, 2, 1, 1, 16, 16] = const()
    f: f32[6, 3, 3, 16] = const()
    g: f32[2, 6, 1, 1, 16, 16] = const()
    c: f32[1, 6, 40, 20, 16] = conv_blocked(x, e)
    m: f32[1, 6, 40, 20, 16] = relu(c)
    h: f32[1, 6, 42, 22, 16] = pad(m, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0))
    d: f32[1, 6, 40, 20, 16] = conv_depthwise(h, f)
    a: f32[1, 6, 40, 20, 16] = relu(d)
    p: f32[1, 2, 40, 20, 16] = conv_blocked(a, g)
    y: f32[1, 2, 40, 20, 16] = add(p, x)
    return y
"""
LONG = TEXT.replace(" 2, ", " 16, ").replace("[2, 6,", "[16, 6,").replace("6, 2, 1", "6, 16, 1")
VECTORS, PLANES = ["conv_blocked"] * 2, ["conv_planes"] * 2


def asked(text: str, context: PassContext) -> tuple[list[str], dict[str, Fork]]:
    """The operators of the products that a pass leaves, and what it asks, by kind."""
    found: list[Fork] = []
    graph = run("use_matrix_engine", read(text), replace(context, on_fork=found.append))
    names = [n.op.name for n in graph.nodes]
    return [n for n in names if n in (*VECTORS, *PLANES)], {fork.kind: fork for fork in found}


@pytest.mark.parametrize(
    ("text", "target", "products"),
    [
        (TEXT, SMALL, VECTORS),
        (TEXT, LARGE, PLANES),  # the image stays near
        (LONG, SMALL, PLANES),  # the engine gains more than the memory that the image passes
        # The image is a result, too: only what the window makes of it passes in strips.
        (TEXT.replace("return y", "return y, h"), SMALL, ["conv_planes", "conv_blocked"]),
    ],
    ids=["large", "near", "long", "result"],
)
def test_products_around_a_large_image_stay_in_its_kernel(
    text: str, target: Target, products: list[str]
) -> None:
    context = PassContext(target=target, precision="high")
    found, forks = asked(text, context)
    assert found == products
    if products == VECTORS:
        assert forks.keys() == {"engine_strips"}  # neither is asked about by itself
        strips, apart = forks["engine_strips"].cycles
        assert 0 < strips < apart


def test_products_of_bytes_are_left_to_what_multiplies_bytes() -> None:
    text = TEXT.replace("main(x: f32", "main(b: u8").replace(
        "    e: f32", "    x: f32[1, 2, 40, 20, 16] = cast(b, to=f32)\n    e: f32"
    )
    graph = rounded(read(text))
    for features, kinds in ((ENGINE, {"engine_strips"}), (ENGINE | VNNI, {"engine"})):
        found: list[Fork] = []
        target = replace(SMALL, features=features, tile_cycles=12)
        context = PassContext(target=target, precision="high", on_fork=found.append)
        run("use_matrix_engine", graph, context)
        assert {fork.kind for fork in found} == kinds


OPEN = TEXT.replace("main(", "main(n: size, ").replace("32[1, ", "32[n, ")
SLICED = """
def main(x: f32[1, 32, 40, 20, 16], z: f32[1, 6, 42, 22, 16]):
    e: f32[6, 16, 1, 1, 16, 16] = const()
    f: f32[6, 3, 3, 16] = const()
    s: f32[1, 16, 40, 20, 16] = slice(x, starts=(0, 16, 0, 0, 0), sizes=(1, 16, 40, 20, 16))
    c: f32[1, 6, 40, 20, 16] = conv_blocked(s, e)
    d: f32[1, 6, 40, 20, 16] = conv_depthwise(z, f)
    return c, d
"""
TRANSFORMED = (
    TEXT.replace("[6, 2, 1, 1, 16, 16]", "[6, 1, 2, 2, 16, 16]")
    .replace("x: f32[1, 2, 40, 20, 16]", "x: f32[1, 1, 41, 21, 16]")
    .replace("add(p, x)", "relu(p)")
)


@pytest.mark.parametrize("text", [OPEN, SLICED, TRANSFORMED], ids=["open", "view", "transformed"])
def test_what_may_form_no_kernel_of_strips_is_not_asked_about(text: str) -> None:
    """Sizes are open; a part of an image is read where it is; transforms are kernels apart."""
    _, forks = asked(text, PassContext(target=SMALL, precision="high"))
    assert "engine_strips" not in forks


def test_an_image_that_still_passes_in_strips_is_no_memory() -> None:
    """One block of results is left to multiply-adds, and so read as the window makes it."""
    narrow = TEXT.replace("[2, 6, 1", "[1, 6, 1").replace("p: f32[1, 2,", "p: f32[1, 1,")
    narrow = narrow.replace("y: f32[1, 2,", "y: f32[1, 1,").replace("add(p, x)", "relu(p)")
    costs = []
    for text in (TEXT, narrow):
        fork = asked(text, PassContext(target=SMALL, precision="high"))[1]["engine_strips"]
        costs.append(fork.cycles[1])
    image = 6 * 40 * 20 * 16 * 4
    assert costs[0] - costs[1] > 2 * image / 8


def test_nothing_is_asked_where_the_engine_gains_nothing() -> None:
    slow = replace(SMALL, tile_cycles=400)
    found, forks = asked(TEXT, PassContext(target=slow, precision="high"))
    assert found == VECTORS
    assert forks.keys() == {"engine"}


def test_a_tuner_may_choose_the_engine_and_results_are_the_same() -> None:
    context = PassContext(target=SMALL, precision="high")
    fork = asked(TEXT, context)[1]["engine_strips"]
    apart = replace(context, choices=Choices({fork.key: Way("apart", fork.default)}))
    found, forks = asked(TEXT, apart)
    assert found == PLANES
    assert {"engine", "engine_strips"} == forks.keys()
    graph = rounded(read(TEXT))
    for chosen in (context, apart):
        same_of_whole_numbers(graph, run("use_matrix_engine", graph, chosen))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_the_kernel_that_was_counted_on_is_formed(precision: str) -> None:
    context = PassContext(target=SMALL, precision=precision)
    fork = asked(TEXT, context)[1]["engine_strips"]
    choices = Choices({fork.key: Way("strips", fork.default)})  # at "medium" it is not the default
    context = replace(context, choices=choices)
    graph = read(TEXT)
    names = [step.name for step in PIPELINE]
    formed = graph
    for name in names[names.index("use_matrix_engine") :]:
        formed = run(name, formed, context)
    assert len(formed.nodes) == 1
    same(graph, formed, {})
