"""Every model, every engine: a table, one JSON document and a plot.

    python -m benchmarks.cpu [--models resnet50,…] [--threads 1,2] [--engines …] [--growth]

Models are exported with seeded weights, taken from the onnx package or downloaded by their hash; a
model or an engine that is missing is skipped, with the reason. Each duel has a file of its own in
the results folder, and one that has a result is not measured again: a run that was cut short goes
on where it stopped. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from benchmarks.cpu import report
from benchmarks.cpu.duel import duel
from benchmarks.cpu.engines import ENGINES, is_installed
from benchmarks.cpu.jobs import Job, growth, models
from benchmarks.cpu.models import INT8, MODELS, OTHERS, Missing
from benchmarks.provenance import describe_machine
from dlc.core.machine import usable_cores


def measure(job: Job, options: argparse.Namespace) -> dict[str, object]:
    """One duel, as its file holds it.

    Raises:
        Missing: there is no such model here.
    """
    path = job.path(options.out / "models", options.folder)
    engines = [engine for engine in job.engines if is_installed(engine)]
    return {
        "name": job.name,
        "threads": job.threads,
        "growth": job.growth,
        "size": job.size,
        "engines": duel(path, job.sizes, engines, job.threads, options.rounds, options.seconds),
    }


def run(jobs: list[Job], options: argparse.Namespace) -> None:
    """Measure what has no result yet."""
    results: Path = options.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        path = results / job.file
        if path.exists() and not options.again:
            continue
        began = time.perf_counter()
        try:
            found = measure(job, options)
        except Missing as reason:
            print(f"skipped {job.name}: {reason}", flush=True)
            continue
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{path.stem}: {time.perf_counter() - began:.0f} s", flush=True)


def write(options: argparse.Namespace) -> None:
    """The table, the document and the plot of all results there are."""
    options.out.mkdir(parents=True, exist_ok=True)
    order = {model.name: number for number, model in enumerate((*MODELS, *OTHERS, *INT8))}
    results = sorted(
        report.read(options.out / "results"), key=lambda r: order.get(r["name"], len(order))
    )
    about = describe_machine()
    document = {"about": about, "date": time.strftime("%Y-%m-%d"), "results": results}
    (options.out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    text = [f"{about}; batch 1; medians of {options.rounds} interleaved rounds.\n"]
    for threads in sorted({r["threads"] for r in results if not r["growth"]}):
        text += [f"### {threads} threads\n", report.markdown(results, threads)]
    (options.out / "results.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))
    if not report.plot(results, options.out / "results.html"):
        print("no plot: plotly is not installed")


def _narrow(engine: str) -> str:
    """What names an engine that may not use all of the machine; nothing for the others."""
    return next((name for name in ("AMX", "AVX2") if name in engine), "")


def main() -> None:
    """Measure, then write."""
    parser = argparse.ArgumentParser(prog="benchmarks.cpu", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help="names, separated by commas; default: all")
    parser.add_argument("--engines", default=",".join(e for e in ENGINES if not _narrow(e)))
    parser.add_argument("--others", action="store_true", help="architectures outside the table")
    parser.add_argument("--int8", action="store_true", help="models quantized to eight bits")
    parser.add_argument("--no-amx", action="store_true", help="also dlc without the matrix engine")
    parser.add_argument("--avx2", action="store_true", help="also dlc and OpenVINO with AVX2 alone")
    parser.add_argument("--threads", default=f"1,{usable_cores()}")
    parser.add_argument("--growth", action="store_true", help="also batch, image and sequence")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one engine in one round")
    parser.add_argument("--folder", type=Path, help="models to take instead of making them")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--again", action="store_true", help="measure what has a result, too")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    engines = [e for e in options.engines.split(",") if e]
    if options.no_amx:
        engines += [e for e in ENGINES if _narrow(e) == "AMX"]
    if options.avx2:
        engines += [e for e in ENGINES if _narrow(e) == "AVX2"]
    for engine in engines:
        if engine not in ENGINES:
            parser.error(f"there is no engine '{engine}'; there are: {', '.join(ENGINES)}")
        if not is_installed(engine):
            print(f"skipped {engine}: it is not installed")
    threads = sorted({int(n) for n in options.threads.split(",")})
    names = [name for name in options.models.split(",") if name]
    among = OTHERS if options.others else INT8 if options.int8 else MODELS
    jobs = list(models(names, threads, tuple(engines), among=among))
    if options.growth:
        jobs += growth(max(threads))
    if not options.report:
        run(jobs, options)
    write(options)


if __name__ == "__main__":
    main()
