"""Judge one model: compile it, run it, and ask everybody else what the results should be."""

from __future__ import annotations

import random
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from onnx import ModelProto

from dlc.compiler import build
from dlc.core.errors import DlcError, ScheduleError, UserError
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.graph.pass_ import run_passes
from dlc.lowering import lower_model
from dlc.peer import OnnxRuntime, has_onnxruntime
from dlc.reference import reference
from dlc.runtime import Module, load
from dlc.schedule.loop import Func
from dlc.schedule.nest import is_scheduled
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitive import Step
from dlc.schedule.rules import prepare, rule_for, schedule_func
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace
from dlc.testing.equivalence import rewrite
from dlc.testing.generate import Sample
from dlc.testing.judge import is_judged, why_misread, why_wrong

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
T = TypeVar("T")


class Verdict(StrEnum):
    """What became of a model."""

    OK = "ok"
    REFUSED = "refused"
    """dlc says why it does not take the model, or these inputs."""
    MISMATCH = "mismatch"
    """A result is wrong."""
    MEANING = "meaning"
    """The float64 reference reads the model in a way that no other engine does."""
    UNSTABLE = "unstable"
    """Two runs differ, or a run changes its inputs."""
    UNCLEAR = "unclear-error"
    """An error that is no `UserError`."""
    CRASH = "crash"
    HANG = "hang"
    INVALID = "invalid"
    """Nobody could run the model, or reads it as the reference does; nothing is known."""


FAILURES = frozenset(
    {
        Verdict.MISMATCH,
        Verdict.MEANING,
        Verdict.UNSTABLE,
        Verdict.UNCLEAR,
        Verdict.CRASH,
        Verdict.HANG,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict, the way of compiling it is about, and the reason."""

    verdict: Verdict
    variant: str = ""
    detail: str = ""


class _Stop(Exception):
    def __init__(self, verdict: Verdict, variant: str, detail: str) -> None:
        self.finding = Finding(verdict, variant, detail)


@dataclass(frozen=True, slots=True)
class _Answers:
    exact: Arrays
    peers: tuple[Arrays, ...]


VARIANTS = ("", "plain", "knobs", "rewritten", "gpu")
"""The default; without optimisation; random knobs of the schedule rules; an equivalent model; for a
GPU, up to the schedules of its kernels, which nothing runs."""


def check(sample: Sample, variants: Sequence[str] = VARIANTS, seed: int = 0) -> Finding:
    """Compile a model in some ways, run it, and compare; the first failure ends it."""
    try:
        answers = _ask(sample.model, sample.feeds)
        if answers is None:
            return Finding(Verdict.INVALID)
        for variant in variants:
            _check(sample, variant, answers, random.Random(seed))
    except _Stop as stop:
        return stop.finding
    return Finding(Verdict.OK)


def _check(sample: Sample, variant: str, answers: _Answers, rng: random.Random) -> None:
    model = sample.model
    if variant == "gpu":
        _guarded(variant, lambda: _schedule(model, parse_target("cuda")))
        return
    if variant == "rewritten":
        model = rewrite(model, _values(sample), rng)
    schedule = _RandomKnobs(rng) if variant == "knobs" else None
    with tempfile.TemporaryDirectory(prefix="dlc-fuzz-") as folder:
        path = Path(folder) / "model.so"
        plain = variant == "plain"
        _guarded(
            variant,
            lambda: build(model, path, optimize=not plain, schedule=schedule, jobs=1),
        )
        module = load(path)
    _compare(module, sample.feeds, answers, variant, sample.special)
    for feeds in sample.others if not variant else ():
        _check_other(module, sample, feeds)


def _schedule(model: ModelProto, target: Target) -> None:
    """Lower a model for a target, and schedule its kernels."""
    for kernel in lower_model(model, target).program.kernels:
        optimize(kernel, target)


def _check_other(module: Module, sample: Sample, feeds: Arrays) -> None:
    """Run at other sizes, which may be refused."""
    try:
        answers = _ask(sample.model, feeds)
    except _Stop:  # sizes that do not fit the model, on which NumPy broadcasts
        return
    if answers is None or not answers.peers:
        return
    try:
        _compare(module, feeds, answers, "sizes", sample.special)
    except _Stop as stop:
        if stop.finding.verdict is not Verdict.REFUSED:
            raise


def _compare(module: Module, feeds: Arrays, answers: _Answers, variant: str, special: bool) -> None:
    given = {s.name: feeds[s.name] for s in module.inputs}
    before = {name: array.tobytes() for name, array in given.items()}
    found = _guarded(variant, lambda: module.run(given))
    again = module.run(given)
    if any(array.tobytes() != before[name] for name, array in given.items()):
        raise _Stop(Verdict.UNSTABLE, variant, "a run changed its inputs")
    if any(found[name].tobytes() != again[name].tobytes() for name in found):
        raise _Stop(Verdict.UNSTABLE, variant, "two runs differ")
    if reason := why_wrong(found, answers.exact, answers.peers, overflows=special):
        if special and not answers.peers:  # the reference does not overflow where float32 does
            raise _Stop(Verdict.INVALID, variant, "no other engine runs it on special values")
        raise _Stop(Verdict.MISMATCH, variant, reason)
    if not special and (reason := why_misread(found, answers.exact, answers.peers)):
        raise _Stop(Verdict.MEANING, variant, reason)
    if not is_judged(found, answers.exact, answers.peers):
        raise _Stop(Verdict.INVALID, variant, "no other engine agrees with the reference")


def _guarded(variant: str, run: Callable[[], T]) -> T:
    """Tell the errors of users from those of dlc."""
    try:
        return run()
    except UserError as error:
        if isinstance(error, ScheduleError) or not str(error).strip() or _is_of_passes(error):
            raise _Stop(Verdict.UNCLEAR, variant, _describe(error)) from error
        raise _Stop(Verdict.REFUSED, variant, _describe(error)) from error
    except (DlcError, Exception) as error:
        raise _Stop(Verdict.UNCLEAR, variant, _describe(error)) from error


def _is_of_passes(error: BaseException) -> bool:
    """Whether a model that was taken is refused by what rewrites it."""
    return any(f.name == run_passes.__name__ for f in traceback.extract_tb(error.__traceback__))


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" [{Path(frames[-1].filename).name}:{frames[-1].name}]" if frames else ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:3])[:400]}{place}"


def _ask(model: ModelProto, feeds: Arrays) -> _Answers | None:
    """What the reference and the other engines say; None where only dlc could tell."""
    peers = [
        p for p in (_onnx_reference(model, feeds), _onnxruntime(model, feeds)) if p is not None
    ]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            exact: Arrays = reference(model)(feeds)
    except UserError as error:
        raise _Stop(Verdict.REFUSED, "", _describe(error)) from error
    except DlcError as error:
        raise _Stop(Verdict.UNCLEAR, "reference", _describe(error)) from error
    except Exception as error:
        if peers:
            raise _Stop(Verdict.UNCLEAR, "reference", _describe(error)) from error
        return None
    return _Answers(exact, tuple(peers))


def _onnx_reference(model: ModelProto, feeds: Arrays) -> Arrays | None:
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(model).run(None, _copies(feeds))
    except Exception:  # it has no errors of its own
        return None
    return dict(zip((v.name for v in model.graph.output), map(np.asarray, found), strict=True))


def _onnxruntime(model: ModelProto, feeds: Arrays) -> Arrays | None:
    if not has_onnxruntime():
        return None
    try:
        return OnnxRuntime(model, threads=1, optimize=False).run(_copies(feeds))
    except UserError:
        return None


def _copies(feeds: Arrays) -> dict[str, Array]:
    """Inputs for engines that write into them, as onnxruntime does with statistics in training."""
    return {name: array.copy() for name, array in feeds.items()}


def _values(sample: Sample) -> dict[str, Array]:
    """What each value of a model is, as far as ONNX's reference knows; constants left out."""
    names = [n for node in sample.model.graph.node for n in node.output if n]
    every = ModelProto()
    every.CopyFrom(sample.model)
    known = {v.name for v in every.graph.output}
    for name in names:
        if name not in known:
            every.graph.output.add(name=name)
    found = _onnx_reference(every, sample.feeds) or {}
    return {n: a for n, a in {**sample.feeds, **found}.items() if a.dtype.kind in "fiub"}


class _RandomKnobs:
    """A schedule for each kernel: the rule's, with knobs drawn from its space."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __call__(self, func: Func, target: Target) -> tuple[Step, ...] | None:
        if is_scheduled(func):
            return None
        prepared = Trace(func)
        prepare(prepared, target)
        rule = rule_for(prepared.func, target)
        if rule is None:
            return None
        return tuple(
            schedule_func(func, target, self._draw(rule.space(prepared.func, target))).steps
        )

    def _draw(self, space: Space) -> dict[str, int]:
        """A point that keeps the limits of a space."""
        while True:
            drawn = {name: self.rng.choice(choices) for name, choices in space.knobs.items()}
            if space.allows(drawn):
                return drawn
