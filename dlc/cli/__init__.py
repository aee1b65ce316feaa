"""The command line: one file per command. Nothing heavy is imported before a command runs.

Standard output carries the result, standard error progress and messages. Each command takes
`--json`, which makes the result one JSON document. Exit codes: 0 success, 1 dlc is wrong, 2 wrong
usage, 3 the model, 4 numbers differ, 5 target or tools, 6 the artefact, 7 a limit, 130 interrupted,
and other signals likewise: 141 is SIGPIPE, where nobody reads the output any more.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from dlc.cli.bench import bench
from dlc.cli.build import build
from dlc.cli.cache import app as cache_app
from dlc.cli.doctor import doctor
from dlc.cli.failure import report_failure
from dlc.cli.inspect import inspect
from dlc.cli.profile import profile
from dlc.cli.run import run
from dlc.cli.stop import quiet_without_reader, stoppable
from dlc.cli.targets import targets
from dlc.cli.tune import app as tune_app
from dlc.cli.verify import verify
from dlc.cli.version import version
from dlc.cli.worker import worker


class _Group(TyperGroup):
    """The commands, in the order of use. Typer would take Ctrl-C for a failure of theirs."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with stoppable():
            return super().invoke(ctx)


app = typer.Typer(
    name="dlc",
    cls=_Group,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,  # importing rich for a page of help takes longer than all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_COMMANDS: dict[Callable[..., None], str] = {
    build: "dlc build model.onnx --target native -o model.so",
    run: "dlc run model.so --input x=@x.npy --output y=@y.npy",
    bench: "dlc bench model.so --against onnxruntime",
    profile: "dlc profile model.so --threads 1",
    verify: "dlc verify model.onnx model.so",
    inspect: "dlc inspect --support model.onnx",
    targets: "dlc targets 'llvm -mcpu=haswell'",
    doctor: "dlc doctor",
}
for _command, _example in _COMMANDS.items():
    app.command(epilog=f"Example: {_example}")(_command)
app.add_typer(tune_app, name="tune")
app.add_typer(cache_app, name="cache")
app.command(hidden=True)(worker)
app.command()(version)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dlc import __version__

        print(f"dlc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Compile trained models ahead of time: ONNX in, one native shared library out."""


class _Messages(logging.Handler):
    """Shows what the compiler logs as `warning: ...`, once, above a bar if there is one."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        line = f"{record.levelname.lower()}: {record.getMessage()}\n"
        if line not in self.shown:  # a model may be read, and a full disk be met, several times
            self.shown.add(line)
            sys.stderr.write(line)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without Unicode shows "?" and lives
            stream.reconfigure(errors="replace")
    logger = logging.getLogger("dlc")
    handler = _Messages(logging.WARNING)
    logger.addHandler(handler)
    try:
        with quiet_without_reader():
            _run(words)
    finally:
        logger.removeHandler(handler)


def _run(words: list[str]) -> None:
    try:
        app(words, prog_name="dlc")
    except Exception as error:
        sys.exit(report_failure(error, as_json="--json" in words))
