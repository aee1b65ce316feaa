"""Choosing the smallest keys of a row: a bound on the last one, then its bits.

Keys are dealt out to lanes, many times as few as there are keys. The k-th smallest of the lanes'
minima is a bound: at least k keys are no greater. In an order by chance hardly more are, so that
what decides between them reads a few candidates, not the row.

Source: R. W. Floyd and R. L. Rivest, Expected Time Bounds for Selection, Communications of the ACM
18 (1975), which bound the k-th smallest of all by that of a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.attributes import constants
from dlc.graph.ops.nest import each, each_row, lines, when
from dlc.graph.ops.order import WIDTH, Places
from dlc.schedule.loop import Buffer
from dlc.te.expr import ZERO, Const, Expr, ceil_div, index, minimum
from dlc.te.simplify import canonical, surely_at_most, surely_less

_LEAST_LANES = 16
"""Lanes of the shortest rows."""
_MOST_LANES = 1 << 12
"""Lanes whose minima stay in the first cache beside the row that passes."""
_SPARE = 2
"""Lanes for each key that is wanted: of 2k lanes the k-th minimum has about 1.4 k keys below it."""
_DEEP = 4
"""Keys in each lane from which on a bound saves more than it costs."""
_FEW = 8
"""Minima that are taken one after the other as fast as their bits are found."""
_FANOUT = 8
"""Blocks of which the first one tells whether the others are looked at."""
_LEVELS = 5
"""Of such blocks, at most; where there are few candidates, more would save no test."""
_NEAR = 16
"""Keys among which a candidate is looked for one by one."""


@op("smallest", fuse=Fuse.OPAQUE)
class Smallest(Places):
    """Where the `k` smallest keys of each row are, by place; of equal ones the first are taken.

    The bits of the k-th smallest are found one after the other, by counting what is below: among
    those up to a bound where k is small beside n, which sizes may say at run time, or among all.

    Shapes:
        keys: [rows, n], unsigned -> i64[rows, k]
    """

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        (keys,), (out,) = inputs, outputs
        (rows, n), k = keys.type.shape, out.type.shape[1]
        if k == ZERO:
            return "pass"
        dtype, x, lanes = keys.type.dtype, keys.name, _lanes(k)
        there = _Keys("key", dtype, n, lambda at: f"{x}[r, {at}]")
        whole = lines(_search(there, k), _whole_row(out.name, x, n, k))
        few = _among_candidates(out.name, x, dtype, n, k, lanes)
        needed, held = canonical(lanes * _DEEP), canonical(minimum(n, _MOST_LANES * _DEEP))
        if surely_at_most(needed, held):
            chosen = few
        elif surely_less(held, needed):
            chosen = whole
        else:
            chosen = lines(when(f"{needed} <= {held}", few), when(f"{held} < {needed}", whole))
        body = lines(
            f'bound = alloc({dtype}[2], "register")', 'taken = alloc(i64[2], "register")', chosen
        )
        return each_row(rows, keys.type.elems, body)

    def reference(self, keys: Array) -> Array:
        (k,) = constants((self.k,))
        return np.sort(np.argsort(keys, axis=1, kind="stable")[:, :k]).astype(np.int64)


def _lanes(k: Expr) -> Expr:
    """The lanes whose minima bound the k-th smallest key: whole vectors."""
    if isinstance(k, Const):
        return index(max(_LEAST_LANES, 1 << (_SPARE * int(k.value) - 1).bit_length()))
    return canonical((k * _SPARE // WIDTH + 1) * WIDTH)


def _whole_row(out: str, x: str, n: Expr, k: Expr) -> str:
    """Take the keys of a row up to the bound."""

    def take(at: str) -> str:
        return _take(out, f"{x}[r, {at}]", f"i64({at})", k)

    def block(first: str) -> str:
        return each("within", WIDTH, take(f"{first} + within"))

    def hit(at: str) -> str:
        return f"{x}[r, {at}] <= bound[0]"

    return lines(
        "taken[0] = i64(0)",
        each("w", n // WIDTH, _where_some("up_to", WIDTH, f"w * {WIDTH}", hit, block)),
        each("last", n % WIDTH, take(f"({n}) // {WIDTH} * {WIDTH} + last")),
    )


def _take(out: str, key: str, place: str, k: Expr) -> str:
    """Take a key that is below the bound, or at it, while k are not reached."""
    return when(
        f"{key} < bound[0] or ({key} == bound[0] and taken[1] < i64({k}))",
        lines(
            f"{out}[r, index(taken[0])] = {place}",
            f"taken[1] = taken[1] + (i64(1) if {key} == bound[0] else i64(0))",
            "taken[0] = taken[0] + i64(1)",
        ),
    )


def _where_some(
    name: str, width: int, first: str, hit: Callable[[str], str], body: Callable[[str], str]
) -> str:
    """What happens to `width` keys from the first on where one of them is hit."""
    return lines(
        f'{name} = alloc(i64[1], "register")',
        f"{name}[0] = i64(0)",
        each(
            f"{name}_j",
            width,
            f"{name}[0] += (i64(1) if {hit(f'{first} + {name}_j')} else i64(0))",
            "vectorize",
        ),
        when(f"i64(0) < {name}[0]", body(first)),
    )


def _among_candidates(out: str, x: str, dtype: DType, n: Expr, k: Expr, lanes: Expr) -> str:
    """Take the k smallest of the keys up to a bound."""
    place = DType.I32 if surely_less(n, 2**31) else DType.I64
    there = _Keys("kept", dtype, n, lambda at: f"keys[{at}]", count="index(found[0])")
    take = when(f"taken[0] < i64({k})", _take(out, "keys[AT]", "i64(places[AT])", k))
    return lines(
        f'keys = alloc({dtype}[{canonical(n + WIDTH)}], "local")',
        f'places = alloc({place}[{canonical(n + WIDTH)}], "local")',
        'found = alloc(i64[2], "register")',
        _bound(x, dtype, n, k, lanes),
        _collect(x, dtype, place, n, k),
        f"bound[0] = {_last(dtype)}",
        "taken[1] = i64(0)",
        when(f"i64({k}) < found[0]", _search(there, k)),
        "taken[0] = i64(0)",
        there.blocks("of", lambda at: each("one_of", WIDTH, take.replace("AT", f"{at} + one_of"))),
    )


def _collect(x: str, dtype: DType, place: DType, n: Expr, k: Expr) -> str:
    """Collect the keys up to a bound, with their places.

    Of the keys at the bound hardly more than the first k are collected.
    """

    def one(at: str) -> str:
        key = f"{x}[r, {at}]"
        return lines(
            f"keys[index(found[0])] = {key}",
            f"places[index(found[0])] = {place}({at})",
            f"found[1] = found[1] + (i64(1) if {key} == bound[0] else i64(0))",
            f"found[0] = found[0] + (i64(1) if {key} <= bound[1] else i64(0))",
        )

    def hit(at: str) -> str:
        return f"{x}[r, {at}] <= bound[1]"

    def few(first: str) -> str:
        return each("one", _NEAR, one(f"{first} + one"))

    def near(first: str) -> str:
        enough = f"i64({k}) <= found[1] and {dtype}(0) < bound[0]"
        return lines(
            each(
                "m", WIDTH // _NEAR, _where_some("near", _NEAR, f"{first} + m * {_NEAR}", hit, few)
            ),
            f"bound[1] = (bound[0] - {dtype}(1) if {enough} else bound[0])",
        )

    return lines(
        "bound[1] = bound[0]",
        "found[0] = i64(0)",
        "found[1] = i64(0)",
        each("i", n // WIDTH, _where_some("far", WIDTH, f"i * {WIDTH}", hit, near)),
        each("rest", n % WIDTH, one(f"({n}) // {WIDTH} * {WIDTH} + rest")),
        each("pad", WIDTH, f"keys[index(found[0]) + pad] = {_last(dtype)}"),
    )


def _bound(x: str, dtype: DType, n: Expr, k: Expr, lanes: Expr) -> str:
    """Find the k-th smallest of the lanes' minima; of equal ones only the first counts."""
    few = surely_at_most(lanes, WIDTH)
    width, last = (constants((lanes,))[0] if few else WIDTH), _last(dtype)

    def vectors(var: str, body: Callable[[str], str]) -> str:
        inner = each(f"{var}_j", width, body(f"{var} * {width} + {var}_j"), "vectorize")
        return each(var, lanes // width, inner)

    def pass_by(at: str) -> str:
        return f"least[{at}] = min(least[{at}], {x}[r, dealt * ({lanes}) + {at}])"

    def drop(at: str) -> str:
        return f"least[{at}] = ({last} if least[{at}] == bound[0] else least[{at}])"

    minima = lines(
        f'least = alloc({dtype}[{lanes}], "{"register" if few else "local"}")',
        vectors("clear", lambda at: f"least[{at}] = {last}"),
        each("dealt", n // lanes, vectors("lane", pass_by)),
    )
    if not surely_at_most(k, _FEW):
        of = _Keys("least", dtype, lanes, lambda at: f"least[{at}]", width)
        return lines(minima, _search(of, k))
    nth = lines(
        f"bound[0] = {last}",
        vectors("first", lambda at: f"bound[0] = min(bound[0], least[{at}])"),
        vectors("gone", drop),
    )
    return lines(minima, each("nth", k, nth))


def _last(dtype: DType) -> str:
    return f"{dtype}({(1 << dtype.bits) - 1})"


@dataclass(frozen=True)
class _Keys:
    """Keys that are counted by vectors: all of `size`, or the first `count`, as data says.

    Behind these the last block is filled up with keys that nothing is below.
    """

    name: str
    dtype: DType
    size: Expr
    key: Callable[[str], str]
    width: int = WIDTH
    count: str = ""

    @property
    def total(self) -> DType:
        """The type of a count."""
        return DType.I32 if surely_less(self.size, 2**31) else DType.I64

    def blocks(self, var: str, body: Callable[[str], str]) -> str:
        """A loop over blocks; `body` is given the place of the first key of each.

        Where data says how many there are, others are skipped as many together as they can be.
        """
        if not self.count:
            return each(var, self.size // self.width, body(f"{var} * {self.width}"))
        size, steps = canonical(self.size), [self.width]
        while len(steps) < _LEVELS and not surely_at_most(size, steps[-1] * _FANOUT):
            steps.append(steps[-1] * _FANOUT)
        return self._below_count(var, size, steps, "", body)

    def _below_count(
        self, var: str, size: Expr, steps: list[int], first: str, body: Callable[[str], str]
    ) -> str:
        """Loops over blocks of the last of `steps`, in these over those of the one before."""
        *finer, step = steps
        first = f"{first}{var} * {step}"
        inner = body(f"({first})")
        if finer:
            inner = self._below_count(f"{var}_", index(step), finer, f"{first} + ", body)
        count = ceil_div(size, step)
        return each(var, count, when(f"{first} < {self.count}", inner))

    def below(self, name: str, bound: str) -> str:
        """Count those below a bound into `{name}_count[0]`."""
        number = DType.I64 if self.dtype is DType.U64 else DType.I32
        width = self.width

        def hit(at: str, one: DType) -> str:
            return f"({one}(1) if {self.key(at)} < {bound} else {one}(0))"

        lanes = f"{name}_lanes[{name}_j]"

        def step(first: str) -> str:
            added = f"{lanes} = {lanes} + {hit(f'{first} + {name}_j', number)}"
            return each(f"{name}_j", width, added, "vectorize")

        rest = hit(f"({self.size}) // {width} * {width} + {name}_rest", self.total)
        parts = [
            f'{name}_count = alloc({self.total}[1], "register")',
            f'{name}_lanes = alloc({number}[{width}], "register")',
            each(f"{name}_z", width, f"{name}_lanes[{name}_z] = {number}(0)", "vectorize"),
            self.blocks(f"{name}_i", step),
            f"{name}_count[0] = {self.total}(0)",
            each(
                f"{name}_s",
                width,
                f"{name}_count[0] += {self.total}({name}_lanes[{name}_s])",
                "vectorize",
            ),
        ]
        if not self.count:
            parts.append(each(f"{name}_rest", self.size % width, f"{name}_count[0] += {rest}"))
        return lines(*parts)


def _search(keys: _Keys, k: Expr) -> str:
    """Find the k-th smallest key, bit by bit, and how many are below it."""
    dtype, bit, all_ = keys.dtype, f"{keys.name}_bit", f"{keys.name}_all"
    trial = lines(
        f"bound[1] = bound[0] | ({dtype}(1) << {dtype}({dtype.bits - 1} - {bit}))",
        keys.below(f"{bit}s", "bound[1]"),
        f"bound[0] = (bound[1] if {bit}s_count[0] < {keys.total}({k}) else bound[0])",
    )
    return lines(
        f"bound[0] = {dtype}(0)",
        each(bit, dtype.bits, trial),
        keys.below(all_, "bound[0]"),
        f"taken[1] = i64({all_}_count[0])",
    )
