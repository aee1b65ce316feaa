"""Generate tokens with a compiled decoder, which takes what it remembers and returns it longer.

Run: python examples/generate.py decoder.so --prompt 17,4,22 --tokens 20

The decoder is one as exporters write it: `input_ids`, perhaps `attention_mask` and `position_ids`,
and `past_key_values.0.key` and so on in; `logits` and `present.0.key` and so on, in the same order,
out. Batch, new tokens and past tokens are open sizes. The first run takes the whole prompt and
empty caches, each later one a token. What a run returns is handed to the next as it is: nothing is
copied from Python, and memory of caches that are gone is used again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import dlc

PAST = "past"  # how names of caches begin


def empty_caches(model: dlc.Module, batch: int) -> list[np.ndarray]:
    """Caches without tokens, for each cache that the model takes."""
    return [
        np.zeros([size if isinstance(size, int) else 0 for size in (batch, *spec.shape[1:])], "f4")
        for spec in model.inputs
        if spec.name.startswith(PAST)
    ]


def greedy(model: dlc.Module, prompt: np.ndarray) -> Iterator[np.ndarray]:
    """The most probable next token of each sequence, again and again.

    Args:
        model: the decoder.
        prompt: [batch, length], token numbers.

    Yields:
        [batch, 1], token numbers.
    """
    names = [spec.name for spec in model.inputs]
    tokens, known, caches = prompt, 0, empty_caches(model, len(prompt))
    while True:
        batch, new = tokens.shape
        feeds = dict(zip((n for n in names if n.startswith(PAST)), caches, strict=True))
        feeds["input_ids"] = tokens
        if "attention_mask" in names:
            feeds["attention_mask"] = np.ones((batch, known + new), np.int64)
        if "position_ids" in names:
            feeds["position_ids"] = np.tile(np.arange(known, known + new), (batch, 1))
        logits, *caches = model.run(feeds).values()
        known += new
        tokens = logits[:, -1].argmax(axis=-1, keepdims=True)
        yield tokens


def main() -> None:
    """Parse the arguments, generate, print tokens and times."""
    parser = argparse.ArgumentParser(description="Generate tokens with a compiled decoder.")
    parser.add_argument("artefact", type=Path)
    parser.add_argument("--prompt", default="1", help="numbers of tokens, with commas between")
    parser.add_argument("--tokens", type=int, default=20, help="how many to generate")
    args = parser.parse_args()

    prompt = np.array([[int(word) for word in args.prompt.split(",")]])
    found, times_ms = [], []
    steps = greedy(dlc.load(str(args.artefact)), prompt)
    for _ in range(args.tokens):
        start = time.perf_counter()
        found.append(int(next(steps)[0, 0]))
        times_ms.append((time.perf_counter() - start) * 1e3)
    first, *others = times_ms
    print(*found)
    print(f"the prompt took {first:.2f} ms, each other token {np.median(others or [0]):.2f} ms")


if __name__ == "__main__":
    main()
