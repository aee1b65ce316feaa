"""One 3×3 convolution, 64 to 64 channels on 56×56: dlc and MetaSchedule of Apache TVM.

Run: python -m benchmarks.tuning.metaschedule [--trials 64] [--json OUT]
Needs: pip install apache-tvm==0.27.0 apache-tvm-ffi==0.1.14.post0 psutil
(with later ones of the second MetaSchedule crashes)

dlc gets less than a quarter of the time that TVM took; what both found runs in turn, on the same
threads.
"""

from __future__ import annotations

import tempfile
import time
from itertools import cycle, islice, permutations
from pathlib import Path

import numpy as np

import dlc
from benchmarks.tuning.common import CONVOLUTIONS, _convolution, parser, report
from dlc.autotune.budget import Budget
from dlc.autotune.record import quartile
from dlc.autotune.session import Options

SHAPE, FILTERS, KERNEL, _, PAD, _ = CONVOLUTIONS["conv_3x3"]


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("--trials", type=int, default=64)
    arguments.add_argument("--cores", type=int, default=2)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        theirs = _tune_tvm(given.trials, given.cores, Path(name))
        tvm_seconds = time.perf_counter() - began
        model = _convolution(*CONVOLUTIONS["conv_3x3"])
        log = Path(name) / "log.db"
        options = Options(Budget(seconds=tvm_seconds / 5))  # to import and to end takes time too
        target = f"native -num-cores={given.cores}"
        found = dlc.tune(model, log, target, options=options)
        ours = [dlc.compile(model, target, tuning=t) for t in (log, "none")]
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    runs = {"dlc_ms": ours[0].bind({"x": x}).run, "dlc_untuned_ms": ours[1].bind({"x": x}).run}
    runs["tvm_ms"] = theirs
    times: dict[str, list[int]] = {name: [] for name in runs}
    for order in islice(cycle(permutations(runs)), 200):  # whom one follows decides what it finds
        for name in order:
            began_ns = time.perf_counter_ns()
            runs[name]()
            times[name].append(time.perf_counter_ns() - began_ns)
    figures: dict[str, float] = {name: quartile(found_ns) / 1e6 for name, found_ns in times.items()}
    figures |= {
        "ratio": figures["tvm_ms"] / figures["dlc_ms"],
        "kept": len(found.choices),
        "trials": found.snapshot.trials,
        "dlc_tuning_seconds": found.seconds,
        "tvm_tuning_seconds": tvm_seconds,
        "share_of_tuning_time": found.seconds / tvm_seconds,
    }
    print("  ".join(f"{name} {value:.3f}" for name, value in figures.items()))
    report(given.json, figures)


def _tune_tvm(trials: int, cores: int, folder: Path):  # type: ignore[no-untyped-def]
    """A call of the convolution as MetaSchedule tuned it."""
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule

    batch, channels, height, width = SHAPE
    data = te.placeholder((batch, channels, height + 2 * PAD, width + 2 * PAD), name="data")
    weights = te.placeholder((FILTERS, channels, KERNEL, KERNEL), name="weights")
    c, u, v = (te.reduce_axis((0, n)) for n in (channels, KERNEL, KERNEL))
    sums = te.compute(
        (batch, FILTERS, height, width),
        lambda n, f, y, x: te.sum(data[n, c, y + u, x + v] * weights[f, c, u, v], axis=[c, u, v]),
    )
    out = te.compute(sums.shape, lambda *i: te.max(sums(*i), tvm.tirx.const(0.0, "float32")))
    module = te.create_prim_func([data, weights, out])
    target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": cores})
    database = meta_schedule.tune_tir(
        mod=module, target=target, work_dir=str(folder / "tvm"), max_trials_global=trials
    )
    schedule = meta_schedule.tir_integration.compile_tir(database, module, target)
    built = tvm.compile(schedule.mod, target=target)
    rng = np.random.default_rng(0)
    shapes = [tuple(int(d) for d in t.shape) for t in (data, weights, out)]
    arrays = [tvm.runtime.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes]
    return lambda: built["main"](*arrays)


if __name__ == "__main__":
    main()
