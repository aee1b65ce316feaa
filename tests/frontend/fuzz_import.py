"""Import many damaged models: dlc's own errors only, 10 s at most, less than 1 GB of memory.

Run: python -m tests.frontend.fuzz_import [--count 100000] [--seed 0] [--jobs 2]
     [--keep build/fuzz-import]

ONNX's own tests and random models are damaged in their fields, or in the bytes of the file; the
seed and a number make each. They are judged in blocks, each in a process of its own, which may
die. Blocks that are done are kept, and the same command goes on after them. A model that breaks
the rule is kept too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from onnx import ModelProto, checker

from dlc.core.errors import UserError
from dlc.core.machine import usable_cores
from dlc.core.memory import limit_memory
from dlc.frontend.onnx import import_model, load_model
from dlc.testing.cases import all_cases
from dlc.testing.generate import draw_sample
from tests.frontend.mutate import mutate

SECONDS = 10  # of processor time: the machine may be shared
BYTES = 1 << 30
CHECKED = 10  # every tenth is shown to ONNX's checker
BLOCK = 1000  # models of one process
STUCK = 1200.0  # seconds by the clock without a new model, after which a process is ended


class TooSlow(BaseException):
    """Raised by the alarm; no `except Exception` may swallow it."""


def _alarm(number: int, frame: object) -> None:
    raise TooSlow


def damaged(rng: random.Random) -> bytes:
    """The file of a model after some damage; it may still be valid."""
    if rng.random() < 0.8:
        model = rng.choice(all_cases()).model
    else:
        model = draw_sample(rng.randrange(2000), cases=False).model
    if rng.random() < 0.75:
        for _ in range(rng.randint(1, 3)):
            try:
                model = mutate(model, rng)
            except (ValueError, TypeError):  # protobuf refuses the damage
                break
    data = bytearray(model.SerializeToString())
    if rng.random() < 0.35 and data:
        _damage_bytes(data, rng)
    return bytes(data)


def _damage_bytes(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del data[at : at + rng.randint(1, 9)]
            case _:
                data[at:at] = data[max(0, at - 20) : at]
        if not data:
            return


def judge(data: bytes) -> str:
    """`converted`, `refused`, or what is wrong."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        import_model(load_model(data))
    except UserError as error:
        return "refused" if str(error).strip() else "an error without words"
    except TooSlow:
        return f"takes more than {SECONDS} s"
    except MemoryError:
        return "needs too much memory"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "converted"


def refused_by_checker(data: bytes) -> bool:
    """Whether ONNX's own checker finds the model to be invalid."""
    try:
        checker.check_model(ModelProto.FromString(data))
    except Exception:
        return True
    return False


@dataclass(frozen=True, slots=True)
class Block:
    """Some of the models, and where to keep what is found."""

    seed: int
    first: int
    count: int
    keep: Path

    @property
    def current(self) -> Path:
        """The model that is being judged."""
        return self.keep / f"current-{self.seed}-{self.first}.onnx"

    @property
    def done(self) -> Path:
        """What became of the models."""
        return self.keep / f"done-{self.seed}-{self.first}.json"


def judge_block(block: Block) -> None:
    """Judge the models of a block and write down how many had which verdict."""
    signal.signal(signal.SIGPROF, _alarm)
    limit_memory(4 * BYTES)
    counts, began = Counter[str](), _peak_bytes()  # of who has started this process, at first
    for number in range(block.first, block.first + block.count):
        data = damaged(random.Random(f"{block.seed} {number}"))
        block.current.write_bytes(data)
        verdict = judge(data)
        if verdict not in ("converted", "refused"):
            (block.keep / f"{block.seed}-{number}.onnx").write_bytes(data)
            print(f"{number}: {verdict}", flush=True)
            verdict = "wrong"
        counts[verdict] += 1
        if number % CHECKED == 0 and refused_by_checker(data):
            counts[f"refused by ONNX too, and {verdict} here (of every {CHECKED}th)"] += 1
    peak = _peak_bytes() - began
    if peak > BYTES:
        print(f"block {block.first}: {peak >> 20} MB of memory", flush=True)
        counts["wrong"] += 1
    block.current.unlink()
    block.done.write_text(json.dumps({"counts": counts, "megabytes": peak >> 20}))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _ended(process: BaseProcess, block: Block) -> bool:
    """Whether a process is over; one that hangs is ended. The model it died of is kept."""
    if process.is_alive():
        if block.current.exists() and time.time() - block.current.stat().st_mtime > STUCK:
            process.kill()
        return False
    if process.exitcode:
        kept = block.keep / f"{block.seed}-{block.first}-died.onnx"
        if block.current.exists():
            block.current.rename(kept)
        print(f"block {block.first} ends with {process.exitcode}: {kept}", flush=True)
        counts = {"wrong": 1, "not judged": block.count - 1}
        block.done.write_text(json.dumps({"counts": counts, "megabytes": 0}))
    return True


def judge_all(blocks: list[Block], jobs: int) -> tuple[Counter[str], int]:
    """Judge blocks, some at a time; the verdicts, and the most megabytes a process needed."""
    all_cases()  # once, for all processes
    context = multiprocessing.get_context("fork")
    left = [b for b in blocks if not b.done.exists()]
    running: list[tuple[BaseProcess, Block]] = []
    while left or running:
        while left and len(running) < jobs:
            process = context.Process(target=judge_block, args=(left[0],))
            process.start()
            running.append((process, left.pop(0)))
        time.sleep(0.1)
        running = [(p, b) for p, b in running if not _ended(p, b)]
    counts, peak = Counter[str](), 0
    for block in blocks:
        answer = json.loads(block.done.read_text())
        counts.update(answer["counts"])
        peak = max(peak, answer["megabytes"])
    return counts, peak


def main(arguments: list[str] | None = None) -> int:
    """Judge models until the count is reached; 1 if one breaks the rule."""
    parser = argparse.ArgumentParser(description="Import damaged models.")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0 for one per core")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz-import"))
    args = parser.parse_args(arguments)
    args.keep.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    blocks = [
        Block(args.seed, first, min(BLOCK, args.count - first), args.keep)
        for first in range(0, args.count, BLOCK)
    ]
    counts, peak = judge_all(blocks, args.jobs or usable_cores())
    took = time.monotonic() - began
    print(f"{args.count} models in {took:.0f} s: {dict(counts)}, at most {peak} MB")
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
