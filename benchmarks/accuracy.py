"""Is a compiled model as accurate as float32 allows? Compare with onnxruntime and with float64.

Run: python benchmarks/accuracy.py MODEL... [--dims batch=1,seq=128]... [--json OUT]

Each model is compiled once and run on seeded random inputs, once for each `--dims`. An output is
right if it is within rtol 1e-3 and atol 1e-4 of onnxruntime (graph optimisations off; not asked
where onnxruntime itself is further than that from float64), and if its largest error against the
float64 reference is at most twice that of onnxruntime. Errors of a few float32 roundings of the
output's largest magnitude are nobody's fault. Compile times are of this run: kernels that an
earlier one left in the cache are not compiled again. Exits with 1 if an output is wrong or a
model fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dlc
from dlc.compare_arrays import measure_error, why_not_close
from dlc.core.manifest import TensorSpec
from dlc.peer import OnnxRuntime
from dlc.reference import reference
from dlc.runtime.arrays import numpy_dtype

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]

RTOL, ATOL = 1e-3, 1e-4
MAX_RATIO = 2.0
FLOOR_ULPS = 4
"""Errors of that many float32 roundings of the largest magnitude are right whatever the ratio."""
MAX_INT = 1000
"""Integer inputs are drawn below this, so that they are valid indices of a vocabulary."""
HEAD = ("model", "sizes", "output", "dlc abs", "dlc rel", "ort abs", "ort rel", "ratio", "compile")
WIDTHS = (22, 18, 18, 8, 8, 8, 8, 6, 8)


@dataclass(frozen=True, slots=True)
class Row:
    """One output of one run. Errors are the largest ones against float64; relative to its scale."""

    model: str
    sizes: str
    output: str
    dlc_abs: float
    dlc_rel: float
    peer_abs: float
    peer_rel: float
    ratio: float
    compile_seconds: float
    problem: str

    def __str__(self) -> str:
        numbers = (self.dlc_abs, self.dlc_rel, self.peer_abs, self.peer_rel)
        cells = [self.model, self.sizes or "-", self.output, *(f"{n:.1e}" for n in numbers)]
        cells += [f"{self.ratio:.2f}", f"{self.compile_seconds:.1f} s"]
        return _line(cells) + (f"FAIL: {self.problem}" if self.problem else "pass")


def _line(cells: Sequence[str]) -> str:
    return "".join(f"{cell[:width]:<{width}} " for cell, width in zip(cells, WIDTHS, strict=True))


def draw_inputs(inputs: Sequence[TensorSpec], sizes: Sizes, seed: int) -> dict[str, Array]:
    """Normal floats; masks of ones that end in zeros; other integers below `MAX_INT`."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for spec in inputs:
        if missing := [d for d in spec.shape if isinstance(d, str) and d not in sizes]:
            raise SystemExit(f"input '{spec.name}': give size '{missing[0]}' in --dims")
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.shape)
        dtype = numpy_dtype(spec.dtype)
        if spec.dtype.is_float:
            feeds[spec.name] = np.asarray(rng.standard_normal(shape), dtype)
        elif "mask" in spec.name.lower() and shape:
            lengths = rng.integers(1, shape[-1], (*shape[:-1], 1), endpoint=True)
            feeds[spec.name] = (np.arange(shape[-1]) < lengths).astype(dtype)
        else:
            high = 2 if dtype.kind == "b" else min(MAX_INT, np.iinfo(dtype).max)
            feeds[spec.name] = rng.integers(0, high, shape).astype(dtype)
    return feeds


def judge(found: Array, peer: Array, exact: Array) -> tuple[float, str]:
    """The ratio of the errors, and why the output is wrong, or an empty text."""
    if found.shape != peer.shape or found.dtype != peer.dtype:
        return np.inf, f"is {found.dtype}{found.shape}, not {peer.dtype}{peer.shape}"
    if found.dtype.kind != "f":
        return float(np.any(found != peer)), why_not_close(found, peer, "onnxruntime", 0, 0)
    ours, theirs = (measure_error(a, exact).max_abs for a in (found, peer))
    scale = float(np.max(np.abs(exact), initial=0.0, where=np.isfinite(exact)))
    floor = FLOOR_ULPS * float(np.finfo(np.float32).eps) * scale
    ratio = ours / theirs if theirs else float(np.inf if ours else 0)
    if ours > max(MAX_RATIO * theirs, floor):
        return ratio, f"{ratio:.1f} times the error of onnxruntime"
    if why_not_close(peer, exact, "float64", RTOL, ATOL):
        return ratio, ""  # too far off itself to compare with
    return ratio, why_not_close(found, peer, "onnxruntime", RTOL, ATOL)


def check_model(path: Path, dims: Sequence[Sizes], seed: int) -> Iterator[Row]:
    """Compile a model and compare every output of every run."""
    began = time.perf_counter()
    module = dlc.compile(path)
    seconds = time.perf_counter() - began
    peer = OnnxRuntime(path, threads=1, optimize=False)
    exactly = reference(path)
    runs = [{s.name: sizes[s.name] for s in module.sizes if s.name in sizes} for sizes in dims]
    for own in [own for i, own in enumerate(runs) if own not in runs[:i]]:
        label = ",".join(f"{name}={n}" for name, n in own.items())
        feeds = draw_inputs(module.inputs, own, seed)
        wanted, exact = peer.run(feeds), exactly(feeds)
        for name, found in module.run(feeds).items():
            ratio, problem = judge(found, wanted[name], exact[name])
            ours, theirs = (measure_error(a, exact[name]) for a in (found, wanted[name]))
            yield Row(
                model=_name(path),
                sizes=label,
                output=name,
                dlc_abs=ours.max_abs,
                dlc_rel=ours.max_rel,
                peer_abs=theirs.max_abs,
                peer_rel=theirs.max_rel,
                ratio=ratio,
                compile_seconds=seconds,
                problem=problem,
            )


def _name(path: Path) -> str:
    return path.parent.name if path.stem == "model" else path.stem


def parse_dims(text: str) -> dict[str, int]:
    """`batch=1,seq=128` as numbers by name."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not all(name and value.isdecimal() for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form batch=1,seq=128")
    return {name: int(value) for name, _, value in pairs}


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, print the table; the number of the exit."""
    parser = argparse.ArgumentParser(description="Compare compiled models with float64.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--dims", action="append", type=parse_dims, help="sizes of one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the rows to a file")
    args = parser.parse_args(arguments)
    rows: list[Row] = []
    failures: dict[str, str] = {}
    print(_line(HEAD) + "verdict", flush=True)
    for path in args.models:
        try:
            for row in check_model(path, args.dims or [{}], args.seed):
                rows.append(row)
                print(row, flush=True)
        except dlc.DlcError as error:
            failures[str(path)] = f"{type(error).__name__}: {error}"
            print(f"{_name(path):<22} FAIL: {failures[str(path)]}", flush=True)
    if args.json:
        report = {"rows": [asdict(row) for row in rows], "failures": failures}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(bool(failures) or any(row.problem for row in rows))


if __name__ == "__main__":
    sys.exit(main())
