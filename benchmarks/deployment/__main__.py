"""What a deployment sees beside latency: memory, loading, a busy machine, building, overhead.

    python -m benchmarks.deployment MODEL.onnx… [--threads 2] [--rounds 5] [--json FILE]

Each figure of dlc stands beside onnxruntime's where it has one, and beside its aim. Sizes that a
model leaves open are 1. Builds have a cache of their own, so that the first is cold. Run it on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cpu.engines import is_installed
from benchmarks.deployment.figures import Figure, Options, markdown
from benchmarks.deployment.models import measure
from benchmarks.deployment.overhead import measure_overhead
from benchmarks.deployment.worker import Failed
from benchmarks.provenance import describe_machine, provenance
from dlc.core.errors import UserError
from dlc.core.staging import staging


def parse() -> tuple[list[Path], Path | None, Options]:
    """What the command line asks for; ends the program where it cannot be had."""
    parser = argparse.ArgumentParser(prog="benchmarks.deployment", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one engine in one round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if min(given.threads, given.rounds) < 1:
        sys.exit("error: at least one thread and one round are needed")
    if missing := next((path for path in given.models if not path.is_file()), None):
        sys.exit(f"error: there is no model {missing}")
    has_peer = is_installed("onnxruntime")
    if not has_peer:
        print("skipped onnxruntime: it is not installed")
    return given.models, given.json, Options(given.threads, given.rounds, given.seconds, has_peer)


def write(path: Path, document: dict[str, object]) -> None:
    """Write a file that is never seen half done.

    Raises:
        UserError: nothing can be written there.
    """
    with staging(path) as draft:
        draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)


def main() -> int:
    """Measure, write after each model, and print; 1 where a model could not be measured."""
    models, out, options = parse()
    about = {**provenance(), "device": describe_machine()}
    about |= {"threads": str(options.threads), "rounds": str(options.rounds)}
    figures: list[Figure] = []
    failed = 0
    for path in (None, *models):
        with TemporaryDirectory() as folder:
            try:
                figures += (
                    measure(path, Path(folder), options)
                    if path
                    else measure_overhead(Path(folder), options)
                )
            except Failed as reason:
                failed = 1
                print(f"skipped {path.name if path else 'overhead'}: {reason}", flush=True)
        if out:
            write(out, {**about, "figures": [figure.document() for figure in figures]})
    print(f"{about['device']}; {options.threads} threads, {options.rounds} rounds\n")
    print(markdown(figures))
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
