"""The bug-injection score: how many of the faults in mutants.toml do the fuzzer and the tests find?

Run: python -m tests.mutants.run [--count 360] [--only TEXT] [--shard 0/1] [--out FILE]

Each fault is put into a copy of the sources. The tests nearest to it run, then the fuzzer judges
random models with it, until something fails. Answers are kept in the file, and known ones are not
asked again. `--shard 1/2` takes every second fault.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).parent / "mutants.toml"
TESTS = {
    "te": ("te",),
    "schedule/primitives": ("schedule/test_docstrings.py", "schedule/test_corners.py"),
    "schedule": ("schedule/rules",),
    "graph/rules": tuple(
        f"graph/test_{n}.py"
        for n in ("rules", "rule_refusals", "branches_into_conv", "spelled_out", "last_rules")
    ),
    "graph/passes": ("graph/test_passes.py", "graph/test_pipeline.py"),
    "graph/ops": ("graph/test_ops.py",),
    "graph/lower.py": ("graph/test_lower.py", "end_to_end/test_control_flow.py"),
    "schedule/memory.py": ("schedule/test_memory.py",),
    "graph/blocking_conv_transpose.py": ("graph/test_passes.py",),
    "graph": ("graph/test_fusion.py", "graph/test_bodies.py"),
    "codegen": tuple(f"codegen/test_{n}.py" for n in ("math", "emit", "element_types", "assembly")),
    "frontend": (
        "frontend/test_convert.py",
        "frontend/test_known_sizes.py",
        "frontend/test_node_suite.py",
    ),
}
"""The tests nearest to a fault, by the beginning of its path, or by all of it."""
SECONDS = 600
"""For the tests, and for the models, of one fault. What does not end finds nothing."""

Fault = dict[str, str]


def faults() -> list[Fault]:
    """All of them."""
    found: list[Fault] = tomllib.loads(FAULTS.read_text())["mutant"]
    return found


def stale(fault: Fault) -> bool:
    """Whether the sources no longer hold the text that the fault replaces."""
    return (ROOT / fault["file"]).read_text().count(fault["old"]) != 1


def inject(fault: Fault, folder: Path) -> None:
    """Change the copy of the sources in a folder."""
    path = folder / fault["file"]
    text = path.read_text()
    path.write_text(text.replace(fault["old"], fault["new"]))


def copy_sources(folder: Path) -> None:
    """A copy of the package, with its extension module, and of the tests."""
    shutil.copytree(ROOT / "dlc", folder / "dlc", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "benchmarks", "examples", "CMakeLists.txt"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder)


def find(fault: Fault, known: Path, count: int) -> tuple[str, str]:
    """Who finds a fault, `models`, `tests` or nobody, and what they say."""
    with tempfile.TemporaryDirectory(prefix="dlc-mutant-") as name:
        folder = Path(name)
        copy_sources(folder)
        inject(fault, folder)
        tests = ["-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
        if said := _fails([*tests, *nearest_tests(fault)], folder):
            return "tests", said
        hunt = ["-m", "tests.mutants.hunt", "--known", str(known), "--count", str(count)]
        if said := _fails(hunt, folder):
            return "models", said
    return "", ""


def nearest_tests(fault: Fault) -> list[str]:
    """The tests that come first for a fault."""
    path = fault["file"].removeprefix("dlc/")
    part = next(p for p in TESTS if path == p or path.startswith(f"{p}/"))
    return [f"tests/{name}" for name in TESTS[part]]


def _fails(command: Sequence[str], folder: Path) -> str:
    """The last line of what a command says, where it fails in time; else ""."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR", "seed"))]
    return (failed or lines or ["?"])[-1][:160] if done.returncode else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask for each fault, print a line, and the score at the end."""
    parser = argparse.ArgumentParser(description="Inject faults and count those that are found.")
    parser.add_argument("--count", type=int, default=360, help="random models for each fault")
    parser.add_argument("--only", default="", help="faults whose file holds this text")
    parser.add_argument("--shard", default="0/1", help="which faults, of how many parts")
    parser.add_argument("--out", type=Path, default=Path("build/mutants.json"))
    args = parser.parse_args(arguments)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    known = args.out.with_suffix(".known.json").absolute()
    if not known.exists():
        learn = ["-m", "tests.mutants.hunt", "--learn", "--known", str(known)]
        subprocess.run([sys.executable, *learn, "--count", str(args.count)], cwd=ROOT, check=True)
    first, step = map(int, args.shard.split("/"))
    for fault in faults()[first::step]:
        if fault["about"] in results or args.only not in fault["file"]:
            continue
        if stale(fault):
            print(f"stale   {fault['file']}: {fault['about']}", flush=True)
            continue
        began = time.monotonic()
        by, said = find(fault, known, args.count)
        took = round(time.monotonic() - began)
        results[fault["about"]] = {"file": fault["file"], "by": by, "said": said, "seconds": took}
        args.out.write_text(json.dumps(results, indent=1))
        print(
            f"{by or 'MISSED':7} {took:4} s  {fault['file']}: {fault['about']}: {said}", flush=True
        )
    found = sum(bool(r["by"]) for r in results.values())
    by_models = sum(r["by"] == "models" for r in results.values())
    print(f"{found} of {len(results)} found, {by_models} by random models")
    return int(found < 0.95 * len(results))


if __name__ == "__main__":
    sys.exit(main())
