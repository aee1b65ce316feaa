"""`dlc bench`: how fast compiled models are, side by side and beside onnxruntime."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dlc.cli.argument import parse_sizes
from dlc.cli.option import InputOption, JsonOption, SizeOption, path_argument, path_option
from dlc.cli.screen import print_json, show_seconds, stderr, stdout, table
from dlc.core.count import is_number, show_count
from dlc.core.env import MAX_THREADS
from dlc.core.errors import ModelError, UserError, why_unreadable

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

PEERS = ("onnxruntime",)
_ROUND_SECONDS = 0.1  # of one engine, before it is the other's turn
_QUIET_SECONDS = 1.0  # at most, before a turn: threads of the other engine may spin a while
_WARMUP = 3  # runs at the start of each turn that do not count


@dataclass(slots=True)
class Contestant:
    """One engine with one model and one number of threads."""

    name: str
    threads: int
    load_s: float
    prepare: Callable[[], None]
    """Called before each turn."""
    run: Callable[[], object]
    times_s: list[float] = field(default_factory=list)

    def turn(self, seconds: float) -> None:
        """Run for a while, and note the time of each run."""
        self.prepare()
        for _ in range(_WARMUP):
            self.run()
        stop = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            self.run()
            end = time.perf_counter()
            self.times_s.append(end - start)
            if end >= stop:
                return


def bench(
    paths: Annotated[
        list[Path], path_argument(metavar="ARTEFACT|MODEL...", help="Compiled or ONNX models.")
    ],
    against: Annotated[
        list[str] | None,
        typer.Option("--against", help="Time this engine too: " + ", ".join(PEERS) + "."),
    ] = None,
    model: Annotated[
        Path | None,
        path_option("--model", help="ONNX file for --against; default: beside the artefact."),
    ] = None,
    inputs: InputOption = None,
    dim: SizeOption = None,
    min_time: Annotated[float, typer.Option("--min-time", help="Seconds for each engine.")] = 2.0,
    threads: Annotated[
        str | None, typer.Option("--threads", help="Numbers of threads, as 1,2,4.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time compiled models. Engines take turns, so that a change of clock rate hits all alike."""
    sizes = parse_sizes(dim or ())
    if not 0 <= min_time < math.inf:
        raise UserError(detail=f"--min-time {min_time:g}: expected seconds, at least 0 and finite")
    for name in against or ():
        if name not in PEERS:
            hint = "there are: " + ", ".join(PEERS)
            raise UserError(detail=f"--against: '{name}' is unknown", hint=hint)
    if model is not None and not against:
        hint = f"add --against {PEERS[0]}"
        raise UserError(detail="--model names what --against runs, which is not given", hint=hint)
    counts = _thread_counts(threads)
    entries = _contestants(paths, inputs or (), sizes, counts)
    if against:
        entries += _peers(_peer_model(paths, model), paths[0], inputs or (), sizes, counts)
    with stderr().status("timing"):
        _race(entries, min_time)
    if as_json:
        print_json("dlc.bench/1", {"results": [_data(entry) for entry in entries]})
    else:
        _print(entries)


def _race(entries: Sequence[Contestant], min_time: float) -> None:
    """Turns for everybody, until each has had `min_time`."""
    spent = 0.0
    while True:
        turn = min(_ROUND_SECONDS, max(min_time - spent, 0.0))
        for entry in entries:
            _wait_until_quiet()
            entry.turn(turn)
        spent += turn
        if spent >= min_time:
            return


def _wait_until_quiet() -> None:
    """Return when no thread of this process runs any more, or after a while."""
    stop = time.perf_counter() + _QUIET_SECONDS
    while time.perf_counter() < stop:
        before = time.process_time()
        time.sleep(0.01)
        if time.process_time() - before < 0.001:
            return


def _contestants(
    paths: Sequence[Path], inputs: Sequence[str], sizes: Mapping[str, int], counts: Sequence[int]
) -> list[Contestant]:
    from dlc.cli.source import make_feeds, open_module
    from dlc.runtime import set_num_threads

    found = []
    for path in paths:
        began = time.perf_counter()
        module = open_module(path)
        load_s = time.perf_counter() - began
        feeds = make_feeds(module, inputs, sizes).arrays
        run = module.repeated({n: _contiguous(a) for n, a in feeds.items()})
        for count in counts:
            prepare = _call(set_num_threads, count)
            found.append(Contestant(f"dlc {path.name}", count, load_s, prepare, run))
    return found


def _peers(
    model: Path,
    path: Path,
    inputs: Sequence[str],
    sizes: Mapping[str, int],
    counts: Sequence[int],
) -> list[Contestant]:
    """onnxruntime on the inputs that the compiled model at `path` is timed on."""
    from dlc.cli.source import make_feeds, open_module
    from dlc.peer import OnnxRuntime

    feeds = make_feeds(open_module(path), inputs, sizes).arrays
    found = []
    for count in counts:
        began = time.perf_counter()
        peer = OnnxRuntime(model, threads=count)
        load_s = time.perf_counter() - began
        peer.run(feeds)  # whether it takes them
        found.append(Contestant(peer.name, count, load_s, lambda: None, peer.bind(feeds)))
    return found


def _peer_model(paths: Sequence[Path], model: Path | None) -> Path:
    """The ONNX model for onnxruntime.

    Raises:
        UserError: none is given, and none lies beside the artefact.
        ModelError: it cannot be read; onnxruntime would say so with a number.
    """
    from dlc.cli.source import is_artefact

    if model is not None:
        try:
            if not model.is_fifo():  # which opens but once
                model.open("rb").close()
        except OSError as error:
            raise ModelError(model=str(model), reason=why_unreadable(error)) from error
        return model
    for path in paths:
        if not is_artefact(path):
            return path
        beside = path.with_suffix(".onnx")
        if os.path.exists(beside):  # whose name may be too long for any file
            return beside
    beside = paths[0].with_suffix(".onnx")
    raise UserError(
        detail=f"--against needs the ONNX model; there is no {beside}",
        hint="name it: --model model.onnx",
    )


def _thread_counts(text: str | None) -> list[int]:
    from dlc.runtime import num_threads

    if text is None:
        return [num_threads()]
    items = text.split(",")
    if not all(is_number(item) and 1 <= int(item) <= MAX_THREADS for item in items):
        reason = f"expected numbers from 1 to {MAX_THREADS}, as 1,2,4"
        raise UserError(detail=f"--threads '{text}': {reason}")
    return [int(item) for item in items]


def _call(function: Callable[[Any], Any], argument: object) -> Callable[[], Any]:
    return lambda: function(argument)


def _contiguous(array: Array) -> Array:
    import numpy as np

    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def percentile(times: Sequence[float], share: float) -> float:
    """The time that a share of all runs did not exceed."""
    ordered = sorted(times)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _data(entry: Contestant) -> dict[str, object]:
    mean = sum(entry.times_s) / len(entry.times_s)
    shares = {f"p{round(100 * s)}_s": percentile(entry.times_s, s) for s in (0.5, 0.9, 0.99)}
    return {
        "name": entry.name,
        "threads": entry.threads,
        "runs": len(entry.times_s),
        **shares,
        "mean_s": mean,
        "throughput_per_s": 1 / mean,
        "load_s": entry.load_s,
    }


def _print(entries: Sequence[Contestant]) -> None:
    several = len({entry.threads for entry in entries}) > 1
    columns = ["", "p50", "p90", "p99", "mean", "runs/s", "load"]
    if several:
        columns.insert(1, "threads")
    rows = table(*columns, left=("",))
    for entry in entries:
        data = _data(entry)
        times = [show_seconds(percentile(entry.times_s, s)) for s in (0.5, 0.9, 0.99)]
        mean = sum(entry.times_s) / len(entry.times_s)
        rate = f"{data['throughput_per_s']:.0f}" if mean < 0.1 else f"{1 / mean:.1f}"
        cells = [*times, show_seconds(mean), rate, show_seconds(entry.load_s)]
        rows.add_row(entry.name, *([str(entry.threads)] if several else []), *cells)
    console = stdout()
    console.print(rows)
    for line in _comparisons(entries):
        console.print(line, soft_wrap=True)


def _comparisons(entries: Sequence[Contestant]) -> list[str]:
    """The first compiled model against the peer, for each number of threads."""
    lines = []
    for count in dict.fromkeys(entry.threads for entry in entries):
        same = [entry for entry in entries if entry.threads == count]
        peers = [entry for entry in same if not entry.name.startswith("dlc ")]
        if peers:
            ratio = percentile(peers[0].times_s, 0.5) / percentile(same[0].times_s, 0.5)
            word = f"{ratio:.2f}× faster" if ratio >= 1 else f"{1 / ratio:.2f}× slower"
            threads = show_count(count, "thread")
            lines.append(f"{same[0].name} is {word} than {peers[0].name} by p50, {threads}")
    return lines
