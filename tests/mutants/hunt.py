"""Judge random models with the compiler in this folder until one fails that should not.

Run: python -m tests.mutants.hunt --known KNOWN.json [--learn, which writes it] [--count 360]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from dlc.testing.check import FAILURES, VARIANTS
from dlc.testing.process import Worker


def main() -> int:
    """1 where a model fails, or is refused, that is right with the compiler as it should be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--known", type=Path, required=True)
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=360)
    args = parser.parse_args()
    known = {} if args.learn else json.loads(args.known.read_text())
    verdicts: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, Worker(Path(folder), 60) as worker:
        for seed in range(args.seed, args.seed + args.count):
            variants = ["", VARIANTS[1 + seed % (len(VARIANTS) - 1)]]
            worker.send({"seed": seed, "variants": variants, "cases": False})
            answer = worker.wait()
            verdict = verdicts[str(seed)] = str(answer["verdict"])
            was = known.get(str(seed), "ok")
            if not args.learn and was == "ok" and (verdict in FAILURES or verdict == "refused"):
                print(f"seed {seed}: {verdict} {answer.get('detail', '')[:160]}")
                return 1
    if args.learn:
        args.known.write_text(json.dumps(verdicts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
