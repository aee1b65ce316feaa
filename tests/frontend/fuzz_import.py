"""Import many damaged models: dlc's own errors only, 10 s at most, less than 1 GB of memory.

Run: python -m tests.frontend.fuzz_import [--count 100000] [--seed 0] [--keep build/fuzz-import]

ONNX's own tests and random models are damaged in their fields, or in the bytes of the file. A model
that breaks the rule is kept. With another seed other models are made.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from onnx import ModelProto, checker

from dlc.core.errors import UserError
from dlc.frontend.onnx import import_model, load_model
from dlc.testing.cases import all_cases
from dlc.testing.generate import draw_sample
from tests.frontend.mutate import mutate

SECONDS = 10
BYTES = 1 << 30
CHECKED = 10  # every tenth is shown to ONNX's checker


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
    signal.alarm(SECONDS)
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
        signal.alarm(0)
    return "converted"


def refused_by_checker(data: bytes) -> bool:
    """Whether ONNX's own checker finds the model to be invalid."""
    try:
        checker.check_model(ModelProto.FromString(data))
    except Exception:
        return True
    return False


def main(arguments: list[str] | None = None) -> int:
    """Judge models until the count is reached; 1 if one breaks the rule."""
    parser = argparse.ArgumentParser(description="Import damaged models.")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz-import"))
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGALRM, _alarm)
    resource.setrlimit(resource.RLIMIT_AS, (4 * BYTES, 4 * BYTES))
    rng, counts, wrong = random.Random(args.seed), Counter[str](), Counter[str]()
    began = time.monotonic()
    for number in range(args.count):
        data = damaged(rng)
        verdict = judge(data)
        if verdict in ("converted", "refused"):
            counts[verdict] += 1
        else:
            wrong[verdict] += 1
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / f"{args.seed}-{number}.onnx").write_bytes(data)
            print(f"{number}: {verdict}", flush=True)
        if number % CHECKED == 0 and refused_by_checker(data):
            counts[f"refused by ONNX too, and {verdict} here (of every {CHECKED}th)"] += 1
        if number % 1000 == 999:
            print(f"{number + 1} in {time.monotonic() - began:.0f} s: {dict(counts)}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(f"{args.count} models, {dict(counts)}, {sum(wrong.values())} wrong, {peak >> 20} MB")
    return int(bool(wrong) or peak > BYTES)


if __name__ == "__main__":
    sys.exit(main())
