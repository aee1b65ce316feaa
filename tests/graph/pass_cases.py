"""What the tests of graph passes share: graphs with data, and evaluation before and after."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import dlc.graph.pipeline  # noqa: F401  # declares the passes
from dlc.core.target import Gpu, Target
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Graph
from dlc.graph.half import half_of
from dlc.graph.pass_ import PASSES, PassContext
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph

CONTEXT = PassContext(target=Target(features=frozenset({"avx2", "fma"})))  # vectors of 8 floats
AVX512 = PassContext(target=Target(features=frozenset({"avx512f"})))

ENGINE = frozenset({"avx512f", "avx512bf16", "amx-tile", "amx-bf16"})
PAIRS = frozenset({"avx512f", "avx512bf16"})
VNNI = frozenset({"avx512f", "avx512vnni"})
CONTEXTS = {
    "use_matrix_engine": PassContext(target=Target(features=ENGINE)),
    "use_byte_products": PassContext(target=Target(features=VNNI)),
    "use_pair_products": PassContext(target=Target(features=PAIRS), precision="medium"),
    "narrow_weights": PassContext(target=Target(features=ENGINE), precision="medium"),
    "store_narrow": PassContext(target=Target(features=ENGINE), precision="medium"),
    "shorten_functions": replace(CONTEXT, precision="high"),
    "step_through_trees": PassContext(target=Target(backend="cuda", gpu=Gpu())),
    "halve_floats": replace(CONTEXT, half=half_of("fp16")),
}


def read(text: str, seed: int = 0) -> Graph:
    """A graph from text; constants that are all zero, or have no data, get small numbers.

    None of those is zero. Floats are no whole numbers, nor exact in bf16. Booleans stay false.
    """
    graph = parse_graph(text)
    rng = np.random.default_rng(seed)
    return replace(graph, constants={v: _data(a, rng) for v, a in graph.constants.items()})


def _data(array, rng):
    if array.size == 0 or array.any() or array.dtype.kind == "b":
        return array
    values = rng.integers(1, 9, array.shape) * rng.choice([-1, 1], array.shape)
    if array.dtype.kind == "f":
        values = values + 2.0**-9
    return (np.abs(values) if array.dtype.kind == "u" else values).astype(array.dtype)


def rounded(graph: Graph) -> Graph:
    """The graph with whole numbers as constants."""
    return replace(graph, constants={v: np.rint(a) for v, a in graph.constants.items()})


def arguments(graph: Graph, sizes: dict[str, int], seed: int = 1) -> dict[str, np.ndarray]:
    """Random inputs; sizes that are not constants come from `sizes`."""
    from dlc.graph.arrays import NUMPY_DTYPES
    from dlc.graph.sizes import bind_shape

    rng = np.random.default_rng(seed)
    found = {}
    for value in graph.inputs:
        shape = [int(n.value) for n in bind_shape(value.type.shape, sizes)]
        dtype = NUMPY_DTYPES[value.type.dtype]
        if value.type.dtype.is_float:
            found[value.name] = rng.standard_normal(shape).astype(dtype)
        else:
            found[value.name] = rng.integers(0, 2, shape).astype(dtype)
    return found


def same(before: Graph, after: Graph, sizes: dict[str, int] | None = None, tolerance=1e-9):
    """Assert that two graphs have the same inputs and give the same results."""
    verify_graph(after, when="in a test")
    assert before.inputs == after.inputs
    assert before.outputs == after.outputs
    given = arguments(before, sizes or {})
    wanted, found = evaluate(before, given, sizes), evaluate(after, given, sizes)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance)


def same_of_whole_numbers(before: Graph, after: Graph, shape: tuple[int, ...] = ()) -> None:
    """Assert that two graphs give the very same results of an image of whole numbers."""
    (x,) = before.inputs
    image = np.random.default_rng(0).integers(-4, 5, shape or x.type.static_shape)
    wanted, found = (evaluate(g, {x.name: image.astype(np.float32)}) for g in (before, after))
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def run(name: str, graph: Graph, context: PassContext | None = None) -> Graph:
    """A pass applied to a graph, for a target on which it does something."""
    return PASSES[name](graph, context or CONTEXTS.get(name, CONTEXT))
