"""What nests for rules are made of, on which targets, and whether two of them agree."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dlc.core.target import Target
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.shape import Slice
from dlc.schedule.loop import For, Func, LoopKind, loops
from dlc.schedule.lower import lower_tensors
from dlc.schedule.rules import prepare
from dlc.schedule.trace import Trace
from dlc.te.expr import ONE, Expr, Var
from dlc.te.simplify import canonical
from dlc.te.tensor import Tensor, placeholder
from dlc.te.types import TensorType
from tests.schedule.data import inputs, run_alike

AVX512 = Target(features=frozenset({"avx512f", "avx2", "fma"}), thread_operations=0)
NEON = Target(triple="aarch64-unknown-linux-gnu", features=frozenset({"neon"}), thread_operations=0)
AVX2 = Target(features=frozenset({"avx2", "fma"}), thread_operations=0)
SSE = Target(thread_operations=0)
N, M = Var("n"), Var("m")


def tensor(name: str, *shape: int | Expr) -> Tensor:
    return placeholder(name, TensorType(shape))


def func(inputs: tuple[Tensor, ...], output: Tensor) -> Func:
    return lower_tensors("f", ("n", "m"), inputs, (output,))


def lines(name: str, *shape: int | Expr) -> tuple[Tensor, Tensor]:
    """Lines of a longer buffer, which are not one line; and that buffer."""
    whole = tensor(name, *shape[:-1], canonical(shape[-1] + ONE))
    starts = (0,) * len(shape)
    return Slice(starts=as_sizes(starts), sizes=as_sizes(shape)).compute(whole), whole


def prepared(plain: Func) -> Func:
    trace = Trace(plain)
    prepare(trace, AVX512)
    return trace.func


def of_kind(nest: Func, kind: LoopKind) -> list[For]:
    return [f for f in loops(nest.body).values() if f.kind is kind]


def data(plain: Func, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    return inputs(plain, sizes, low=-3, high=4)


def assert_agree(
    plain: Func, fast: Func, sizes: Mapping[str, int], *, rtol: float = 0, atol: float = 0
) -> None:
    """Exactly, unless sums in another order may be rounded otherwise."""
    arrays = data(plain, sizes)
    want, got = (run_alike(f, plain, sizes, arrays)["out"] for f in (plain, fast))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
