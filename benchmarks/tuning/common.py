"""What the benchmarks of the tuner share: ten tasks, and a session without a log on disk."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from benchmarks.tuning.figures import where_and_when
from dlc.autotune import job as jobs
from dlc.autotune.duel import Duel
from dlc.autotune.log import TuningLog
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Machines, Options, Snapshot, Weighted
from dlc.autotune.task import Task
from dlc.autotune.tuner import Tuner
from dlc.cli.tune_display import open_display
from dlc.core.errors import CodegenError
from dlc.core.target_parse import parse_target
from dlc.schedule.work import operations
from dlc.tune_plan import plan_tuning

CONVOLUTIONS = {  # input, filters, kernel, stride, pad, groups
    "conv_1x1": ((1, 256, 14, 14), 512, 1, 1, 0, 1),
    "conv_3x3": ((1, 64, 56, 56), 64, 3, 1, 1, 1),
    "conv_strided": ((1, 128, 28, 28), 256, 3, 2, 1, 1),
    "stem_7x7": ((1, 3, 224, 224), 64, 7, 2, 3, 1),
    "depthwise": ((1, 144, 56, 56), 144, 3, 1, 1, 144),
    "odd_conv": ((1, 37, 23, 41), 59, 3, 1, 1, 1),
}
PRODUCTS = {  # operands
    "dense": ((128, 768), (768, 768)),
    "batched": ((12, 128, 64), (12, 64, 128)),
    "odd_dense": ((77, 211), (211, 135)),
}


Watcher = Callable[[Snapshot], None]


def ten_tasks(target: str) -> dict[str, Task]:
    """One task of each kind, the one of its model with the most operations."""
    models = {name: _convolution(*spec) for name, spec in CONVOLUTIONS.items()}
    models |= {name: _product(name, *spec) for name, spec in PRODUCTS.items()}
    models["softmax"] = _model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=-1)], (12, 128, 128), {}
    )
    found = {}
    for name, model in models.items():
        plan = plan_tuning([model], target)
        found[name] = max(plan.tasks, key=lambda w: operations(w.task.func.body) or 0).task
    return found


def _convolution(
    shape: tuple[int, ...], filters: int, kernel: int, stride: int, pad: int, groups: int
) -> onnx.ModelProto:
    weights = (filters, shape[1] // groups, kernel, kernel)
    node = helper.make_node(
        "Conv", ["x", "w"], ["c"], strides=[stride] * 2, pads=[pad] * 4, group=groups
    )
    return _model([node, helper.make_node("Relu", ["c"], ["y"])], shape, {"w": weights})


def _product(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> onnx.ModelProto:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    if name != "batched":
        return _model([node], a, {"w": b})
    return _model([node], a, {}, {"w": b})


def _model(
    nodes: Sequence[onnx.NodeProto],
    shape: tuple[int, ...],
    constants: dict[str, tuple[int, ...]],
    inputs: dict[str, tuple[int, ...]] | None = None,
) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    given = {"x": shape, **(inputs or {})}
    graph = helper.make_graph(
        nodes,
        "task",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in given.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
            for n, s in constants.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def session(
    tasks: Sequence[Weighted],
    machines: Machines,
    options: Options,
    *,
    lines: Sequence[str] = (),
    path: Path | None = None,
    on_update: Watcher | None = None,
) -> Tuner:
    """A finished session. Its log is thrown away but for one with a `path`, which is taken up.

    `lines` are what the log held before.
    """
    from dlc.autotune.exchange import import_lines

    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, TuningLog(path or Path(folder) / "log.db") as log:
        import_lines(log, lines)
        tuner = Tuner(tasks, log, machines, options, on_update=on_update)
        if tuner.run().interrupted:
            raise KeyboardInterrupt
    return tuner


def duel(
    paths: tuple[Path, Path],
    target: str,
    machines: Machines,
    *,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 20.0,
) -> dict[str, Any]:
    """Run an untuned and a tuned artefact in turn: times, their ratio, and what is beyond chance.

    Raises:
        CodegenError: one of them does not run.
    """
    pair = (str(paths[0]), str(paths[1]))
    threads = parse_target(target).cores
    job = jobs.race(pair, sizes=sizes or {}, threads=threads, budget_seconds=seconds, seconds=600)
    ((_, reply),) = machines.measure.run([job])
    if reply.data["status"] != "ok":
        reason = str(reply.data.get("detail", reply.data["status"]))
        raise CodegenError(stage="a race", unit=paths[1].name, reason=reason)
    found = Duel(tuple(reply.data["lives"]))
    verdict = "faster" if found.is_faster else "slower" if found.is_slower else "no difference"
    return {
        "untuned_ms": found.time_ns(0) / 1e6,
        "tuned_ms": found.time_ns(1) / 1e6,
        "speedup": round(found.speedup, 4),
        "verdict": verdict,
        "processes": len(found.lives),
    }


@contextlib.contextmanager
def machines_of() -> Iterator[Machines]:
    """This machine's workers while the `with` lasts."""
    machines = open_machines()
    try:
        yield machines
    finally:
        machines.close()


@contextlib.contextmanager
def progress(title: str, *watchers: Watcher) -> Iterator[Watcher]:
    """A line on standard error every ten seconds, and the table at the end."""
    with open_display("plain", Console(stderr=True), title) as show:

        def tell(snapshot: Snapshot) -> None:
            for watch in (*watchers, show):
                watch(snapshot)

        yield tell


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options that all scripts have."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--target", default="native -num-cores=2")
    made.add_argument("--json", type=Path, help="write the figures here")
    return made


def report(path: Path | None, figures: Mapping[str, Any]) -> None:
    """Write figures, with their commit, date and machine."""
    if path is not None:
        command = " ".join([f"python -m {_module()}", *map(shlex.quote, sys.argv[1:])])
        about = {"command": command, **where_and_when()}
        path.write_text(json.dumps({**figures, **about}, indent=2) + "\n", encoding="utf-8")


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).name
