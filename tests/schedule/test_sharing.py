"""Cores share an image the same way in each kernel, its border included; exact, uneven data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.ops.activation import Relu
from dlc.graph.ops.conv_blocked import ConvBlocked, DepthwiseBlocked
from dlc.graph.ops.pool import MaxPool
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Alloc, Block, For, Func, If, LoopKind, Stmt, Store, walk
from dlc.schedule.lower import lower_tensors
from dlc.schedule.nest import top_nests
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules.lines import _choose_strip
from dlc.te.tensor import Tensor, pad, placeholder
from dlc.te.transform import free_vars
from dlc.te.types import TensorType, const_size
from tests.schedule.data import run_alike

ONE_CORE = Target(features=frozenset({"avx512f", "avx2", "fma"}), thread_operations=0)
CORES = replace(ONE_CORE, cores=2, thread_operations=512)
MANY = replace(CORES, cores=3)


def tensor(name: str, *shape: int) -> Tensor:
    return placeholder(name, TensorType(shape))


def func(inputs: tuple[Tensor, ...], output: Tensor) -> Func:
    return lower_tensors("f", (), inputs, (output,))


def depthwise(blocks: int, lines: int, width: int, images: int = 1) -> Func:
    x, f = tensor("a", images, blocks, lines + 2, width + 2, 16), tensor("b", blocks, 3, 3, 16)
    return func((x, f), DepthwiseBlocked().compute(x, f))


def max_pool(lines: int) -> Func:
    x = tensor("a", 1, 3, lines, 5, 16)
    return func((x,), MaxPool(kernel=(3, 3), pads=(1, 1, 1, 1)).compute(x))


def padded(total: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    amounts = [(0, 0, *sides, 0) for sides in (before, after)]
    return pad("h", Relu().compute(total), *amounts)


def pixels_with_halo(
    blocks: int, lines: int, before: tuple[int, int] = (1, 1), after: tuple[int, int] = (1, 1)
) -> Func:
    """A convolution of one by one, and the zeros that the next one reads."""
    x, w = tensor("a", 1, 2, lines, 14, 16), tensor("b", blocks, 2, 1, 1, 16, 16)
    return func((x, w), padded(ConvBlocked().compute(x, w), before, after))


def pixels(blocks: int, lines: int) -> Func:
    x, w = tensor("a", 1, 2, lines, 14, 16), tensor("b", blocks, 2, 1, 1, 16, 16)
    return func((x, w), ConvBlocked().compute(x, w))


def depthwise_with_halo(lines: int) -> Func:
    x, f = tensor("a", 1, 3, lines + 2, 7, 16), tensor("b", 3, 3, 3, 16)
    return func((x, f), padded(DepthwiseBlocked().compute(x, f), (2, 1), (2, 2)))


def image_with_halo(images: int, lines: int) -> Func:
    x = tensor("a", images, 3, lines, 5, 16)
    return func((x,), padded(x, (1, 1), (1, 1)))


CASES = {
    "depthwise": depthwise(3, 14, 5),
    "depthwise_prime": depthwise(3, 13, 5),
    "depthwise_few_lines": depthwise(3, 7, 5),
    "depthwise_one_line": depthwise(3, 1, 5),
    "depthwise_one_block": depthwise(1, 14, 5),
    "depthwise_images": depthwise(2, 12, 3, images=2),
    "pool": max_pool(16),
    "pixels_few_lines": pixels_with_halo(5, 3),
    "pixels_with_halo": pixels_with_halo(2, 14),
    "pixels_with_sides": pixels_with_halo(2, 14, (0, 1), (0, 1)),
    "pixels_with_lines_behind": pixels_with_halo(2, 14, (0, 0), (2, 0)),
    "depthwise_with_halo": depthwise_with_halo(10),
    "image_with_halo": image_with_halo(1, 10),
    "images_with_halo": image_with_halo(3, 5),
}


def data(plain: Func) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {b.name: tuple(map(const_size, b.type.shape)) for b in plain.inputs}
    return {n: rng.integers(-3, 4, s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("target", [CORES, MANY], ids=["2", "3"])
@pytest.mark.parametrize("name", CASES)
def test_a_shared_image_is_the_same(name: str, target: Target) -> None:
    plain = CASES[name]
    fast = optimize(plain, target)
    arrays = data(plain)
    np.testing.assert_array_equal(
        run_alike(fast, plain, {}, arrays)["out"], run_func(plain, {}, arrays)["out"]
    )


def lines_of_cores(fast: Func) -> list[set[int]]:
    """The lines of the result that each of two cores writes: one half of a parallel loop each."""
    (shared,) = (s for s in top_nests(fast) if isinstance(s, For) and s.kind is LoopKind.PARALLEL)
    count = const_size(shared.extent)
    halves = (range(count // 2), range(count - count // 2, count))
    return [{y for i in half for y in lines(shared.body, {shared.var: i})} for half in halves]


def lines(stmt: Stmt, env: dict[str, int]) -> set[int]:
    """The lines of the result that a statement writes."""
    match stmt:
        case Store("out", index, _):
            return {eval(str(index[2]), {}, env)}
        case If(cond, body):
            return lines(body, env) if eval(str(cond), {}, env) else set()
        case For(var, extent, _, body, _):
            written = [s for s in walk(body) if isinstance(s, Store) and s.buffer == "out"]
            count = const_size(extent) if any(var in free_vars(s.index[2]) for s in written) else 1
            return {y for i in range(count) for y in lines(body, env | {var: i})}
        case Alloc(_, _, body):
            return lines(body, env)
        case Block(stmts):
            return {y for s in stmts for y in lines(s, env)}
        case _:
            return set()


@pytest.mark.parametrize("name", ["depthwise", "pool", "pixels_with_halo", "depthwise_with_halo"])
def test_each_core_has_lines_of_its_own(name: str) -> None:
    first, second = lines_of_cores(optimize(CASES[name], CORES))
    assert len(first & second) <= 1
    assert max(first) - 1 <= min(second)


@pytest.mark.parametrize("plain", [CASES["depthwise_few_lines"], pixels(8, 7), pixels(8, 6)])
def test_few_lines_leave_channels_to_share(plain: Func) -> None:
    first, second = lines_of_cores(optimize(plain, CORES))
    assert first == second


def test_all_but_the_first_lines_of_a_border_are_filled_by_all_cores() -> None:
    """The first ones belong to the core that everything begins with."""
    fast = optimize(CASES["pixels_with_halo"], CORES)
    alone = [s for s in top_nests(fast) if isinstance(s, For) and s.kind is LoopKind.SERIAL]
    stores = [s for top in alone for s in walk(top) if isinstance(s, Store)]
    assert [str(s.index[2]) for s in stores] == ["0"]


@pytest.mark.parametrize(
    ("lines", "window", "cores", "strip"),
    [(28, 3, 2, 14), (14, 3, 2, 7), (15, 3, 2, 3), (13, 3, 2, 1), (12, 3, 3, 4), (56, 5, 4, 14)],
)
def test_strips_are_as_tall_as_cores_allow(lines: int, window: int, cores: int, strip: int) -> None:
    assert _choose_strip(lines, window, cores) == strip
