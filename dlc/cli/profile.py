"""`dlc profile`: which steps of a model take the time, and how near each is to a peak."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlc.cli.argument import parse_sizes
from dlc.cli.option import InputOption, JsonOption, SizeOption, path_argument
from dlc.cli.screen import print_json, show_seconds, stderr, stdout, table
from dlc.core.count import show_count
from dlc.core.env import MAX_THREADS
from dlc.core.errors import UserError

if TYPE_CHECKING:
    from dlc.codegen.llvm.peaks import Peaks
    from dlc.runtime import Profile, StepTime

_NUMBERS, _NODES = 46, 16  # columns that the numbers take, and nodes at least


def profile(
    path: Annotated[Path, path_argument(metavar="ARTEFACT|MODEL", help="What to run.")],
    inputs: InputOption = None,
    dim: SizeOption = None,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads that work on one run.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Runs to take medians of.")] = 20,
    top: Annotated[int, typer.Option("--top", min=0, help="Steps to show; 0: all.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Time each step of a model, beside the machine's peaks.

    Operations count a multiply-add as two; bytes are what a step must at least read and write. A
    step whose data is in a cache may exceed the bandwidth of memory.
    """
    from dlc.cli.source import make_feeds, open_module
    from dlc.codegen.llvm.peaks import Peaks, measure_peaks
    from dlc.core.machine import usable_cores
    from dlc.core.target_parse import parse_target
    from dlc.runtime import num_threads, set_num_threads

    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UserError(detail=f"--threads {threads}: expected a number from 1 to {MAX_THREADS}")
    module = open_module(path)
    feeds = make_feeds(module, inputs or (), parse_sizes(dim or ())).arrays
    if threads is not None:
        set_num_threads(threads)
    with stderr().status("timing"):
        found = module.profile(feeds, rounds=rounds)
        one = measure_peaks(parse_target("native"))
    count = num_threads()
    cores = min(count, usable_cores())  # more threads share them
    peaks = Peaks(one.gflops * cores, one.read_gbytes_per_s * cores)
    if as_json:
        print_json("dlc.profile/1", _document(path, found, peaks, count))
    else:
        _print(found, peaks, cores, top or len(found.steps))


def _document(path: Path, found: Profile, peaks: Peaks, threads: int) -> Mapping[str, object]:
    return {
        "path": str(path),
        "threads": threads,
        "peak_gflops": peaks.gflops,
        "peak_read_gbytes_per_s": peaks.read_gbytes_per_s,
        "time_ns": found.time_ns,
        "steps": [
            {
                "kernel": step.kernel,
                "nodes": list(step.nodes),
                "time_ns": step.time_ns,
                "operations": step.operations,
                "bytes": step.bytes,
            }
            for step in found.steps
        ],
    }


def _print(found: Profile, peaks: Peaks, cores: int, top: int) -> None:
    flops, read = peaks.gflops, peaks.read_gbytes_per_s
    rows = table("time", "share", "GFLOP/s", "peak", "GB/s", "peak", "kernel", "nodes", left=_LEFT)
    console = stdout()
    steps = sorted(found.steps, key=lambda s: -s.time_ns)[:top]
    room = console.width - _NUMBERS - max((len(s.kernel) for s in steps), default=0)
    for step in steps:
        nodes = _end(", ".join(step.nodes), max(room, _NODES))
        rows.add_row(*_numbers(step, found.time_ns, flops, read), step.kernel, nodes)
    console.print(rows)
    console.print(f"{show_count(len(found.steps), 'step')} in {show_seconds(found.time_ns / 1e9)}")
    text = f"peaks of {show_count(cores, 'core')}:"
    console.print(f"{text} {flops:.0f} GFLOP/s, {read:.0f} GB/s from beyond the L2 cache")


_LEFT = ("kernel", "nodes")


def _numbers(step: StepTime, total_ns: float, flops: float, read: float) -> tuple[str, ...]:
    return (
        show_seconds(step.time_ns / 1e9),
        f"{step.time_ns / max(total_ns, 1.0):.1%}",
        f"{step.gflops:.1f}",
        f"{step.gflops / flops:.0%}",
        f"{step.gbytes_per_s:.1f}",
        f"{step.gbytes_per_s / read:.0%}",
    )


def _end(text: str, most: int) -> str:
    """The end of a name tells more than its beginning."""
    return text if len(text) <= most else f"…{text[1 - most :]}"
