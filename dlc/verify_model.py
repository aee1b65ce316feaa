"""verify(): is the compiled model right? Asks a float64 reference and onnxruntime.

The float64 reference decides; onnxruntime shows what float32 arithmetic costs another engine, and
stands in where the reference is not asked. A model built with a precision below "highest" is judged
by what that precision promises (`verify_precision`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlc.compare_arrays import largest_finite, measure_error, why_not_close
from dlc.core.errors import DlcError, UserError
from dlc.peer import OnnxRuntime, has_onnxruntime
from dlc.random_inputs import default_sizes, random_feeds
from dlc.reference import Engine, reference
from dlc.runtime import Module, load, num_threads
from dlc.verify_precision import BITS, keeps_promise
from dlc.verify_report import OutputReport, VerifyReport

if TYPE_CHECKING:
    from dlc.frontend.onnx.load import Model

Array = np.ndarray[Any, Any]

ONNXRUNTIME, FLOAT64 = "onnxruntime", "float64"
RTOL, ATOL = 1e-3, 1e-4
TIMES_PEER = 2  # as far off as onnxruntime: what is never wrong
_SLACK = 1e-6  # of an output's largest magnitude: errors below are nobody's fault
_OTHER_SIZES = (32, 224, 8, 1, 2048)  # tried in turn: a model may need few, many or even sizes


def verify(
    model: Model,
    module: Module | str | Path | None = None,
    inputs: Mapping[str, Array] | None = None,
    *,
    trials: int = 1,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    against: Sequence[str] = (ONNXRUNTIME, FLOAT64),
    rtol: float = RTOL,
    atol: float = ATOL,
) -> VerifyReport:
    """Compare a compiled model with other ways to compute it.

    An output is right if it is within the tolerances of the float64 reference, or no more than
    twice as far off as onnxruntime. Without the reference, onnxruntime takes its place. If the
    model was built with less than the highest precision, it may also be as far off as that
    precision promises: by 4 units of its bits (root mean square, over that of the output), or by
    4 times the error of the reference on factors of so many bits.

    Args:
        model: the ONNX model: a path, the bytes of a model, or a `ModelProto`.
        module: the compiled model, or its path; compiled for this machine where not given.
        inputs: what to run on; default: random.
        trials: how many random inputs.
        seed: of the first trial; the others follow.
        sizes: values of open sizes; default: some the model accepts.
        against: `onnxruntime` and `float64`, or one of them.
        rtol: relative tolerance.
        atol: absolute tolerance.

    Raises:
        UserError: a name in `against` is unknown; the compiled model refuses the inputs, or was
            built from a model of other names.
        ModelError: the model cannot be read or holds something not supported.
    """
    compiled = _module(model, module)
    _check_names(model, compiled)
    notes: list[str] = []
    engines = _engines(model, against, notes)
    if inputs is not None:
        compiled.run(inputs)  # refuses, with a reason, what does not fit
    found: dict[str, list[OutputReport]] = {}
    precision = str(compiled.metadata.get("precision", "highest"))
    if precision in BITS:
        half = compiled.metadata.get("half")
        how = f"computed in {half}" if half else f"built with precision {precision}"
        notes.append(f"{how}: judged as products of {BITS[precision]} bits")
    done = 0
    for trial in range(trials if inputs is None else 1):
        rng = np.random.default_rng(seed + trial)
        answer = _answers(compiled, engines, inputs, sizes or {}, rng, notes)
        if answer is None:
            break
        feeds, answers = answer
        done += 1
        outputs = compiled.run(feeds)
        rounded = _once(model, precision, feeds)
        for report in _judge(outputs, answers, rtol, atol):
            if precision in BITS:
                report = _allow(report, outputs[report.name], answers, precision, rounded)
            found.setdefault(report.name, []).append(report)
    return VerifyReport(
        outputs=tuple(max(reports, key=_badness) for reports in found.values()),
        judges=tuple(engines),
        notes=tuple(dict.fromkeys(notes)),
        trials=done,
    )


def _module(model: Model, module: Module | str | Path | None) -> Module:
    if isinstance(module, Module):
        return module
    if module is not None:
        return load(module)
    from dlc.compiler import compile  # imports LLVM, which an artefact does without

    return compile(model)


def _check_names(model: Model, module: Module) -> None:
    """Refuse a compiled model that cannot be compared: what has another name would pass unseen.

    Sequences and optional values are other inputs and outputs of a compiled model.

    Raises:
        UserError: an input or output of the model is none of the compiled one.
    """
    from dlc.frontend.onnx import load_model

    graph = load_model(model).graph
    inputs = [value for value in graph.inputs if value.name not in graph.constants]
    for what, values, specs in (
        ("input", inputs, module.inputs),
        ("output", graph.outputs, module.outputs),
    ):
        known = {spec.name for spec in specs}
        plain = [value.name for value in values if not (value.sequence or value.optional)]
        if missing := [name for name in plain if name not in known]:
            raise UserError(
                detail=f"the compiled model has no {what} '{missing[0]}', which the model has",
                hint="it was built from another model, or with --value",
            )


def _engines(model: Model, against: Sequence[str], notes: list[str]) -> dict[str, Engine]:
    """Those who can be asked; the others leave a note."""
    engines: dict[str, Engine] = {}
    for name in against:
        if name == FLOAT64:
            engines[FLOAT64] = reference(model)
        elif name != ONNXRUNTIME:
            hint = f"there are: {ONNXRUNTIME}, {FLOAT64}"
            raise UserError(detail=f"there is nobody called '{name}' to ask", hint=hint)
        elif not has_onnxruntime():
            notes.append("onnxruntime is not installed")
        else:
            try:
                peer = OnnxRuntime(model, threads=num_threads(), optimize=False)
                engines[ONNXRUNTIME] = peer.run
            except UserError as error:
                notes.append(str(error))
    return engines


def _answers(
    module: Module,
    engines: dict[str, Engine],
    inputs: Mapping[str, Array] | None,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
    notes: list[str],
) -> tuple[Mapping[str, Array], dict[str, Mapping[str, Array]]] | None:
    """Inputs that somebody accepts, and what each engine makes of them.

    Sizes of which no engine makes anything but NaN, or no element at all, as of images smaller than
    a kernel, are taken only where all others are refused.
    """
    refusals: dict[str, str] = {}
    silent: tuple[Mapping[str, Array], dict[str, Mapping[str, Array]]] | None = None
    for feeds in [inputs] if inputs is not None else _candidates(module, sizes, rng):
        answers, refusals = _ask(engines, feeds)
        if _say_something(answers):
            notes.extend(refusals.values())
            return feeds, answers
        if answers and silent is None:
            silent = feeds, answers
    notes.extend(refusals.values())
    if silent is not None:
        notes.append("every element of all outputs is NaN, or there is none: little was compared")
    return silent


def _ask(
    engines: Mapping[str, Engine], feeds: Mapping[str, Array]
) -> tuple[dict[str, Mapping[str, Array]], dict[str, str]]:
    """What engines make of some inputs, and why the others refuse them."""
    answers: dict[str, Mapping[str, Array]] = {}
    refusals: dict[str, str] = {}
    for name, engine in engines.items():
        try:
            answers[name] = engine(feeds)
        except DlcError as error:
            refusals[name] = str(error).splitlines()[0]
        except (ValueError, IndexError) as error:  # NumPy's, from the reference
            refusals[name] = f"the reference: {error}"
    return answers, refusals


def _say_something(answers: Mapping[str, Mapping[str, Array]]) -> bool:
    """Whether any engine gives an element that is not NaN."""
    given = (array for outputs in answers.values() for array in outputs.values())
    return any((array == array).any() for array in given)  # NaN differs from itself, texts do not


def _candidates(
    module: Module, sizes: Mapping[str, int], rng: np.random.Generator
) -> Iterator[dict[str, Array]]:
    """Random inputs, with other sizes each time; one where no size is open."""
    tried = []
    for other in _OTHER_SIZES:
        bound = default_sizes(module.sizes, other, batch=min(2, other)) | dict(sizes)
        if bound not in tried:
            tried.append(bound)
            yield random_feeds(module.inputs, bound, rng)


def _judge(
    outputs: Mapping[str, Array],
    answers: Mapping[str, Mapping[str, Array]],
    rtol: float,
    atol: float,
) -> Iterator[OutputReport]:
    for name, found in outputs.items():
        exact, peer = (answers.get(who, {}).get(name) for who in (FLOAT64, ONNXRUNTIME))
        ours = None if exact is None else measure_error(found, exact)
        theirs = None if exact is None or peer is None else measure_error(peer, exact)
        apart = None if peer is None else measure_error(found, peer)
        problem = ""
        if exact is not None:
            problem = why_not_close(found, exact, FLOAT64, rtol, atol)
        elif peer is not None:
            problem = why_not_close(found, peer, ONNXRUNTIME, rtol, atol)
        if (
            problem
            and ours
            and theirs
            and ours.max_abs <= TIMES_PEER * theirs.max_abs + _tiny(exact)
        ):
            problem = ""
        yield OutputReport(name, ours, theirs, apart, problem)


def _once(
    model: Model, precision: str, feeds: Mapping[str, Array]
) -> Callable[[], Mapping[str, Array]]:
    """The reference on rounded factors, run when it is first asked for."""
    return functools.cache(lambda: reference(model, precision=precision)(feeds))


def _allow(
    report: OutputReport,
    found: Array,
    answers: Mapping[str, Mapping[str, Array]],
    precision: str,
    rounded: Callable[[], Mapping[str, Array]],
) -> OutputReport:
    """The report without a problem that the precision of the build allows."""
    wanted = answers.get(FLOAT64, answers.get(ONNXRUNTIME, {})).get(report.name)
    if not report.problem or wanted is None:
        return report
    if keeps_promise(found, wanted, precision, lambda: rounded()[report.name]):
        return replace(report, problem="")
    return report


def _tiny(exact: Array | None) -> float:
    return 0.0 if exact is None else _SLACK * largest_finite(exact)


def _badness(report: OutputReport) -> tuple[bool, float]:
    error = report.dlc or report.apart
    return bool(report.problem), error.max_abs if error else 0.0
