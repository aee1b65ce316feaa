"""`dlc tune`: search schedules for the kernels of models. Its log can be exported and reported."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dlc.cli.argument import parse_dims, parse_shapes, parse_sizes
from dlc.cli.option import (
    BoundsOption,
    JsonOption,
    PrecisionOption,
    ShapeOption,
    TargetOption,
    path_argument,
    path_option,
)
from dlc.cli.screen import print_json, show_seconds, stderr, stdout, table
from dlc.cli.stop import INTERRUPTED
from dlc.core.count import show_count
from dlc.core.errors import LimitError, UserError
from dlc.core.precision import check_precision
from dlc.core.staging import staging, writing

if TYPE_CHECKING:
    from dlc.autotune.session import Machines, Options, Snapshot
    from dlc.tune_model import TuneReport
    from dlc.tune_plan import Plan

PROGRESS = ("rich", "plain", "jsonl", "none")


class _Group(TyperGroup):
    """`dlc tune MODEL` beside `dlc tune report`: what is no command is a model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the command that is meant before its arguments."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["model", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="tune",
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Search faster schedules for a model: dlc tune MODEL.",
    epilog="The options of a search: dlc tune model --help",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(name="model", epilog="Example: dlc tune model.onnx --budget 10m")
def tune_models(
    models: Annotated[list[Path], path_argument(metavar="MODEL...", help="ONNX files.")],
    out: Annotated[
        Path | None,
        path_option("--output", "-o", help="The log; default: MODEL with suffix .tune.db."),
    ] = None,
    target: TargetOption = "native",
    shape: ShapeOption = None,
    dim: BoundsOption = None,
    at: Annotated[
        list[str] | None,
        typer.Option("--at", help="Measure an open size at this value: seq=128. Repeatable."),
    ] = None,
    precision: PrecisionOption = "highest",
    budget: Annotated[str, typer.Option("--budget", help="10m, 2000trials or until-flat.")] = "10m",
    search: Annotated[
        str,
        typer.Option(
            "--search", help="bayesian, evolutionary, annealing, genetic, random or grid."
        ),
    ] = "bayesian",
    cost_model: Annotated[
        str,
        typer.Option("--cost-model", help="xgboost, or tree-gru, which needs dlc[torch]."),
    ] = "xgboost",
    tasks: Annotated[str, typer.Option("--tasks", help="Only kernels with this in the name.")] = "",
    cache: Annotated[
        str, typer.Option("--cache", help="Caches before a run: auto, cold or warm.")
    ] = "auto",
    runner: Annotated[
        list[str] | None,
        typer.Option(
            "--runner", help="local, ssh://HOST, dask://HOST:PORT or run:COMMAND. Repeatable."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Candidates built at a time.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of all that is drawn by chance.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on from what the log holds.")
    ] = True,
    in_model: Annotated[
        bool,
        typer.Option("--in-model/--no-in-model", help="Race the whole model before keeping."),
    ] = True,
    graph: Annotated[
        bool,
        typer.Option("--graph/--no-graph", help="Look for faster ways through the graph, too."),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the tasks, their spaces and the forks.")
    ] = False,
    progress: Annotated[
        str | None, typer.Option("--progress", help=", ".join(PROGRESS) + ".")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Search schedules for the kernels of models. Ctrl-C keeps everything."""
    if progress is not None and progress not in PROGRESS:
        hint = f"there are: {', '.join(PROGRESS)}"
        raise UserError(detail=f"--progress '{progress}' is unknown", hint=hint)
    given = {"dims": parse_dims(dim or ()), "shapes": parse_shapes(shape or ())}
    given |= {"precision": check_precision(precision), "only": tasks}
    given |= {"at": parse_sizes(at or (), "--at")}
    options = _options(budget, search, cost_model, cache, seed, resume)
    if dry_run:
        from dlc.tune_plan import plan_tuning

        _show_plan(plan_tuning(models, target, **given), options, as_json=as_json)  # type: ignore[arg-type]
        return
    from dlc.autotune.told import default_log
    from dlc.tune_model import tune

    log = out or default_log(models[0])
    with _display(progress, models, log, options) as on_update:
        report = tune(
            models,
            log,
            target,
            options=options,
            machines=_machines(runner or [], jobs),
            in_model=in_model,
            graph=graph,
            on_update=on_update,
            **given,  # type: ignore[arg-type]
        )
    _show_report(report, in_model=in_model, as_json=as_json)
    if report.unwritten:
        reason = f"{show_count(report.unwritten, 'trial')} could not be written to {report.log}"
        raise LimitError(what="the disk", reason=reason, hint="make room and tune again")
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


@app.command(name="export", epilog="Example: dlc tune export model.tune.db -o model.jsonl")
def export_log(
    log: Annotated[Path, path_argument(help="A log of dlc tune.")],
    out: Annotated[
        Path | None, path_option("--output", "-o", help="A file; default: standard output.")
    ] = None,
    choices: Annotated[
        bool, typer.Option("--choices", help="Only what was chosen, without the trials.")
    ] = False,
) -> None:
    """Write a log as JSON lines."""
    from dlc.autotune import exchange
    from dlc.autotune.log import TuningLog

    with TuningLog(log, read_only=True) as opened:
        if out is None:
            exchange.export_log(opened, sys.stdout, choices_only=choices)
        else:
            with _output(out, log) as file:
                exchange.export_log(opened, file, choices_only=choices)
        corrupt = opened.corrupt
    if corrupt:
        stderr().print(_passed_over(corrupt), style="yellow")


@app.command(name="report", epilog="Example: dlc tune report model.tune.db -o report.html")
def write_report(
    log: Annotated[Path, path_argument(help="A log of dlc tune.")],
    out: Annotated[
        Path | None,
        path_option("--output", "-o", help="The HTML file; default: LOG with suffix .html."),
    ] = None,
) -> None:
    """Write tuning curves and predictions into one HTML file."""
    from dlc.autotune.log import TuningLog
    from dlc.autotune.report import render_report, summarize

    with TuningLog(log, read_only=True) as opened:
        found = summarize(opened)
        decisions = list(opened.decisions())
        html = render_report(found, f"dlc tune: {log.name}", opened.corrupt, decisions)
    path = out or log.with_suffix(".html")
    with _output(path, log) as file:
        file.write(html)
    trials = show_count(sum(len(s.trials) for s in found), "trial")
    stdout().print(f"Wrote {path}: {show_count(len(found), 'task')}, {trials}", soft_wrap=True)


@app.command(name="merge", epilog="Example: dlc tune merge all.tune.db a.tune.db b.jsonl")
def merge_logs(
    log: Annotated[Path, path_argument(help="The log that receives all.")],
    sources: Annotated[list[Path], path_argument(help="Logs, or files of JSON lines.")],
) -> None:
    """Add logs and files of JSON lines to a log."""
    from dlc.autotune import exchange
    from dlc.autotune.log import TuningLog

    for source in sources:  # whether all can be read, before the log is made
        with _reading(source) if source.suffix == ".jsonl" else TuningLog(source, read_only=True):
            pass
    bad = 0
    with TuningLog(log) as opened:
        for source in sources:
            if source.suffix == ".jsonl":
                with _reading(source) as lines:
                    bad += exchange.import_lines(opened, lines)[1]
            else:
                bad += exchange.merge_logs(opened, [source])
        count = sum(1 for _ in opened.trials())
    passed = f"; {_passed_over(bad)}" if bad else ""
    stdout().print(f"{log}: {show_count(count, 'trial')}{passed}", soft_wrap=True)


def _passed_over(rows: int) -> str:
    return f"{show_count(rows, 'damaged row')} {'was' if rows == 1 else 'were'} passed over"


@contextlib.contextmanager
def _output(path: Path, log: Path) -> Iterator[IO[str]]:
    """A file of text that takes its place once it is whole.

    Raises:
        UserError: it cannot be written, or its place is that of the log it is made from.
    """
    if os.path.exists(path) and os.path.exists(log) and path.samefile(log):
        hint = "name another file: --output"
        raise UserError(detail=f"cannot write {path}: it is the log", hint=hint)
    with staging(path) as draft, writing(path):
        with draft.open("w", encoding="utf-8") as file:
            yield file
        draft.replace(path)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[IO[str]]:
    """A file of text; one that cannot be opened is the user's mistake."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(detail=f"{path}: {error.strerror}") from error
    with file:
        yield file


def _options(
    budget: str, search: str, cost_model: str, cache: str, seed: int, resume: bool
) -> Options:
    from dlc.autotune.bench_method import Method
    from dlc.autotune.budget import parse_budget

    method, parsed = Method(cache=cache), parse_budget(budget)
    from dlc.autotune.session import Options  # takes a while: what is wrong is told before

    return Options(parsed, search, method, seed=seed, resume=resume, cost_model=cost_model)


def _machines(runners: list[str], jobs: int | None) -> Machines | None:
    if not runners and jobs is None:
        return None
    from dlc.autotune.runners import open_machines

    return open_machines(runners, jobs)


def _display(
    progress: str | None, models: list[Path], log: Path, options: Options
) -> AbstractContextManager[Callable[[Snapshot], None]]:
    from dlc.cli.tune_display import open_display

    names = ", ".join(path.name for path in models)
    console = stderr()
    kind = progress or ("rich" if console.is_terminal else "plain")
    title = f"Tuning {names} · budget {options.budget} · log {log}"
    return open_display(kind, console, title)


def _show_plan(plan: Plan, options: Options, *, as_json: bool) -> None:
    """What would be tuned, without measuring anything."""
    from dlc.autotune.design import families

    rows: list[dict[str, Any]] = []
    for weighted in plan.tasks:
        task = weighted.task
        sizes = {family.name: len(family.space) for family in families(task)}
        rows.append({"task": task.name, "key": task.key, "calls": weighted.calls, "space": sizes})
    forks = _forks(plan)
    if as_json:
        document = {"tasks": rows, "forks": forks, "budget": str(options.budget)}
        print_json("dlc.tune_plan/1", document)
        return
    shown = table("task", "calls", "candidates", "families", left=("task", "families"))
    for row in rows:
        spaces = row["space"]
        known = ", ".join(spaces) or "no choice"
        shown.add_row(row["task"], str(row["calls"]), f"{sum(spaces.values()):,}", known)
    stdout().print(shown)
    if forks:
        shown = table(
            "fork", "met", "default", "other ways", left=("fork", "default", "other ways")
        )
        for fork in forks:
            others = ", ".join(_promise(o) for o in fork["others"])
            shown.add_row(fork["fork"], str(fork["met"]), fork["default"], others)
        stdout().print(shown)
    count = sum(bool(row["space"]) for row in rows)
    stdout().print(f"{count} of {show_count(len(rows), 'task')} to tune · budget {options.budget}")


def _forks(plan: Plan) -> list[dict[str, Any]]:
    """The decisions of the graph, with the ways that are not taken, those worth a try first."""
    from dlc.tune_graph import forks_of, promised_cycles

    found = []
    for fork, met in forks_of(plan.models).items():
        taken = plan.ways.option(fork)
        others = [
            {"way": o, "cycles": fork.cycles_of(o), "tried": promised_cycles(fork, o, taken) > 0}
            for o in fork.options
            if o != taken
        ]
        found.append(
            {"fork": fork.name, "key": fork.key, "met": met, "default": fork.default,
             "taken": taken, "cycles": fork.cycles_of(taken), "others": others}
        )  # fmt: skip
    return sorted(found, key=lambda f: -f["met"] * (f["cycles"] or 0.0))


def _promise(other: dict[str, Any]) -> str:
    """A way, and whether the model of costs leaves it a chance."""
    way: str = other["way"]
    return way if other["tried"] else f"{way} (no chance)"


def _show_report(report: TuneReport, *, in_model: bool, as_json: bool) -> None:
    snapshot = report.snapshot
    if as_json:
        from dlc.cli.tune_display import snapshot_json

        document = snapshot_json(snapshot) | {
            "log": str(report.log),
            "kept": len(report.choices),
            "ways": {
                d.fork.name: {"way": d.option, "over": d.fork.default} for d in report.ways.values()
            },
            "found": report.found,
            "rejected": report.rejected,
            "model_speedup": report.model_speedup,
            "interrupted": report.interrupted,
            "seconds": report.seconds,
        }
        print_json("dlc.tune/1", document)
        return
    console = stdout()
    if not snapshot.tasks:
        console.print("There is nothing to tune: a run calls no kernel.")
        return
    took, trials = show_seconds(report.seconds), show_count(snapshot.trials, "trial")
    if report.interrupted:
        text = f"Saved {trials} in {report.log}; resume with the same command"
        console.print(text, soft_wrap=True)
        return
    kept = f", kept in {report.log}" if not report.unwritten else ""
    console.print(f"{trials} in {took}{kept}", soft_wrap=True)
    for way in snapshot.ways:
        if way.status in ("won", "lost"):
            told = f"{way.name}: '{way.option}' {way.status} against '{way.default}'"
            console.print(told, soft_wrap=True)
    console.print(_verdict(report, in_model=in_model), soft_wrap=True)


def _verdict(report: TuneReport, *, in_model: bool) -> str:
    """What builds do from now on."""
    alone = f"{report.rejected} won alone but not in the model"
    if not in_model:
        alone = f"{report.rejected} won alone, but no whole model was raced"
    dropped = f" ({alone})" if report.rejected else ""
    if not report.choices and not report.ways:
        return f"Nothing beats the defaults for sure{dropped}; builds go on using them."
    kept = [show_count(len(report.choices), "kernel")] if report.choices else []
    kept += [f"{show_count(len(report.ways), 'way')} through the graph"] if report.ways else []
    now = f"with {' and '.join(kept)} the model is {report.model_speedup:.2f}× as fast"
    if not report.found:
        return f"Nothing new is better for sure{dropped}; as found before, {now}."
    return f"{now[0].upper()}{now[1:]}{dropped}. dlc build uses them."
