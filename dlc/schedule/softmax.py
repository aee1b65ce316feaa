"""Softmax and the sums that it weighs, found in the nests of a function.

    largest = max(x)    base = f(largest)    e = exp(x - base)    total = sum(e)
    mixed = sum(weight(e / total) * value)

Weights may be guarded: 0 where they are NaN, which all weights of a row are, or none.

Rows are all loops but the last; the last one is over keys, or is one iteration where a stage has
one number for a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dlc.core.types import DType
from dlc.schedule.edit import sites
from dlc.schedule.loop import For, Func, If, accumulation, allocs
from dlc.schedule.nest import Stage, stages
from dlc.te.expr import (
    ONE,
    ZERO,
    Binary,
    BinOp,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Unary,
    UnOp,
    Var,
)
from dlc.te.simplify import canonical, surely_equal
from dlc.te.tensor import identity
from dlc.te.transform import free_vars, loads, substitute

KEY = "#key"  # stands for the loop over keys, in whichever stage


@dataclass(frozen=True, slots=True)
class Softmax:
    """The stages of a softmax over keys whose weights are read by one sum of products."""

    before: tuple[Stage, ...]  # what has an element for each key, in order, up to what is reduced
    largest: Stage
    base: Stage | None  # subtracted before the exponential; None: the largest itself
    exps: Stage
    total: Stage
    factor: Stage | None  # 1 / total; None: weights are quotients
    weights: Stage
    mixed: Stage
    guarded: bool = False  # weights that are NaN count as 0

    @property
    def keys(self) -> Expr:
        """How many keys there are."""
        return self.weights.loops[-1].extent

    @property
    def of_rows(self) -> tuple[Stage, ...]:
        """Those that know no keys: one number for a row, made of another."""
        return tuple(s for s in (self.base, self.factor) if s is not None)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All of them, in any order."""
        rest = (self.largest, self.exps, self.total, self.weights, self.mixed)
        return (*self.before, *rest, *self.of_rows)

    def key(self, stage: Stage) -> For:
        """The loop of a stage over keys."""
        return stage.inner[-1] if stage is self.mixed else _key(stage)


def find_softmax(func: Func, mixed: str) -> Softmax | str:
    """The softmax whose weights a sum of products reads; or why there is none."""
    known = {s.buffer: s for s in stages(func)}
    counts = [s.buffer for s in stages(func)]
    total = known.get(mixed)
    if total is None or total.factors is None or not total.inner:
        return f"'{mixed}' is no sum of products"
    found = _Finder({b: s for b, s in known.items() if counts.count(b) == 1}, allocs(func.body))
    softmax = found.softmax(total)
    if softmax is None or total.store.value.dtype is not DType.F32:
        return f"'{mixed}' sums nothing that a softmax weighs"
    rows, keys = softmax.mixed.loops[:-1], softmax.keys
    for stage in softmax.stages:
        same = len(stage.loops) == len(rows) + 1
        if not same or not all(
            surely_equal(a.extent, b.extent) for a, b in zip(stage.loops, rows, strict=False)
        ):
            return f"'{stage.buffer}' has other rows than '{mixed}'"
        if stage not in softmax.of_rows and not surely_equal(softmax.key(stage).extent, keys):
            return f"'{stage.buffer}' has other keys than '{softmax.weights.buffer}'"
        if stage not in softmax.of_rows and _leaves_out(func, stage, softmax.key(stage).var):
            return f"'{stage.buffer}' leaves keys out"
        if not _starts_from_nothing(stage):
            return f"'{stage.buffer}' starts from a number that counts"
    return softmax


def _key(stage: Stage) -> For:
    """The loop over keys: the innermost one of a reduction to numbers of rows, else the last."""
    return stage.inner[-1] if stage.is_reduction and _is_scalar(stage) else stage.loops[-1]


def _is_scalar(stage: Stage) -> bool:
    return stage.loops[-1].extent == ONE


def _leaves_out(func: Func, stage: Stage, key: str) -> bool:
    """Whether a guard tells keys apart."""
    around = next(s.around for s in sites(func.body) if s.store is stage.store)
    return any(isinstance(outer, If) and key in free_vars(outer.cond) for outer in around)


def _starts_from_nothing(stage: Stage) -> bool:
    """Whether a reduction adds to what changes nothing."""
    if stage.start is None:
        return True
    op = accumulation(stage.store)
    return op is not None and stage.start.value == identity(op, stage.value.dtype)


def general(expr: Expr, stage: Stage, key: str) -> Expr:
    """An index or a value of a stage in terms of the row and of `KEY`."""
    env: dict[str, Expr] = {
        f.var: ZERO if f.extent == ONE else Var(f"#{d}") for d, f in enumerate(stage.loops)
    }
    return canonical(substitute(expr, env | {key: Var(KEY)}))


def specific(expr: Expr, stage: Stage) -> Expr:
    """What `general` made of an index of a row, in terms of another stage."""
    return substitute(expr, {f"#{d}": Var(f.var) for d, f in enumerate(stage.loops)})


@dataclass(frozen=True, slots=True)
class _Finder:
    """Follows loads of single elements of the same row from a stage to those before it."""

    known: Mapping[str, Stage]
    made: Mapping[str, object]

    def softmax(self, mixed: Stage) -> Softmax | None:
        key = mixed.inner[-1].var
        weights = self.only(s for s in self.sources(mixed, key) if not s.is_reduction)
        if weights is None:
            return None
        exps, total, factor = self.quotient(weights)
        if exps is None or total is None:
            return None
        if accumulation(total.store) is not BinOp.ADD or not self.is_read(total, exps, total.value):
            return None
        guarded = _guarded(mixed, weights.buffer)
        if len(total.inner) != 1 or guarded is None:
            return None
        match _without_flush(exps.value):
            case Unary(UnOp.EXP, Binary(BinOp.SUB, value, Load() as shift)):
                found = self.rest(value, shift, (exps, total, factor, weights, mixed))
                guarded = guarded or _plain(weights.value)[1]
                return None if found is None else replace(found, guarded=guarded)
            case _:
                return None

    def quotient(self, weights: Stage) -> tuple[Stage | None, Stage | None, Stage | None]:
        """The exponentials, their total and perhaps its reciprocal, of which weights are made."""
        match _plain(weights.value)[0]:
            case Binary(BinOp.MUL, Load() as a, Load() as b):
                factor = self.at(weights, b)
                match factor and factor.value:
                    case Binary(BinOp.DIV, Const(1.0), Load() as c):
                        assert factor is not None
                        return self.at(weights, a), self.at(factor, c), factor
            case Binary(BinOp.DIV, Load() as a, Load() as b):
                return self.at(weights, a), self.at(weights, b), None
        return None, None, None

    def rest(
        self,
        value: Expr,
        shift: Load,
        after: tuple[Stage, Stage, Stage | None, Stage, Stage],
    ) -> Softmax | None:
        exps, total, factor, weights, mixed = after
        base = self.at(exps, shift)
        largest = base
        if base is not None and not base.is_reduction:
            largest = self.only({self.at(base, x) for x in loads(base.value)})
        if base is None or largest is None or accumulation(largest.store) is not BinOp.MAX:
            return None
        wanted = general(value, exps, _key(exps).var)
        if largest.value.dtype is not DType.F32 or not largest.inner:
            return None
        if general(largest.value, largest, _key(largest).var) != wanted:
            return None
        before = self.before(exps, value)
        if before is None or not self.is_by_key(before):
            return None
        own = None if base is largest else base
        return Softmax(before, largest, own, exps, total, factor, weights, mixed)

    def before(self, reader: Stage, value: Expr) -> tuple[Stage, ...] | None:
        """What has an element for each key and leads to a value, in order."""
        found: list[Stage] = []
        for load in loads(value):
            stage = self.known.get(load.buffer)
            if stage is None or load.buffer not in self.made:
                continue
            if stage is reader or not self.reads(reader, _key(reader).var, stage, load):
                return None
            found += [s for s in self.before(stage, stage.value) or () if s not in found]
            found += [stage] if stage not in found else []
        return tuple(found)

    def is_by_key(self, before: tuple[Stage, ...]) -> bool:
        """Whether stages read each other at their own row and key only."""
        pairs = [(s, x) for s in before for x in loads(s.value)]
        return all(self.at(s, x) for s, x in pairs if self.known.get(x.buffer) in before)

    def sources(self, reader: Stage, key: str) -> list[Stage]:
        """The intermediate stages that a stage reads at its own row and key."""
        found: dict[str, Stage] = {}
        for load in loads(reader.value):
            stage = self.known.get(load.buffer)
            if stage is not None and load.buffer in self.made:
                if not self.reads(reader, key, stage, load):
                    return []
                found[load.buffer] = stage
        return list(found.values())

    def at(self, reader: Stage, load: Load) -> Stage | None:
        """The stage of an intermediate that is read at the reader's own row and key."""
        stage = self.known.get(load.buffer)
        if stage is None or load.buffer not in self.made:
            return None
        return stage if self.reads(reader, _key(reader).var, stage, load) else None

    def is_read(self, reader: Stage, stage: Stage, value: Expr) -> bool:
        return isinstance(value, Load) and self.at(reader, value) is stage

    def reads(self, reader: Stage, key: str, stage: Stage, load: Load) -> bool:
        own = stage.loops[-1].var
        stored = tuple(general(i, stage, own) for i in stage.store.index)
        if _is_scalar(stage):
            stored = tuple(canonical(substitute(i, {KEY: ZERO})) for i in stored)
        return stored == tuple(general(i, reader, key) for i in load.index)

    @staticmethod
    def only(found: Iterable[Stage | None]) -> Stage | None:
        some = list(found)
        return some[0] if len(some) == 1 else None


def _guarded(mixed: Stage, weights: str) -> bool | None:
    """Whether weights that are NaN count as 0; None if what is summed up is not proportional."""
    assert mixed.factors is not None, "a sum of products"
    reading = [f for f in mixed.factors if _reads(f, weights)]
    return _share(reading[0], weights) if len(reading) == 1 else None


def _share(factor: Expr, weights: str) -> bool | None:
    """Whether a factor is a weight but for NaN, True, or a weight, False; rounded, or a part of it.

    None: it is neither.
    """
    match factor:
        case Load():
            return False if factor.buffer == weights else None
        case Cast(dtype, a):
            return _share(a, weights) if dtype.is_float else None
        case Unary(UnOp.FLUSH | UnOp.TF32, a):
            return _share(a, weights)
        case Select(Unary(UnOp.ISNAN, tested), Const(0), a) if _share(tested, weights) is not None:
            return None if _share(a, weights) is None else True
        case Binary(BinOp.SUB, a, b):
            return _of_both(a, b, weights)
        case Select(cond, a, b):
            return None if _reads(cond, weights) else _of_both(a, b, weights)
        case _:
            return None


def _of_both(a: Expr, b: Expr, weights: str) -> bool | None:
    first, second = _share(a, weights), _share(b, weights)
    return first if first == second else None


def _reads(expr: Expr, buffer: str) -> bool:
    return any(x.buffer == buffer for x in loads(expr))


def _plain(value: Expr) -> tuple[Expr, bool]:
    """A value without what rounds it at the end, and whether 0 stands for it where it is NaN."""
    match value:
        case Cast(dtype, a) if dtype.is_float:
            return _plain(a)
        case Unary(UnOp.FLUSH, a):
            return _plain(a)
        case Select(Unary(UnOp.ISNAN, tested), Const(0), a) if tested == a:
            return _plain(a)[0], True
        case _:
            return value, False


def _without_flush(value: Expr) -> Expr:
    return value.a if isinstance(value, Unary) and value.op is UnOp.FLUSH else value
