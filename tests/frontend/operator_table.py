"""Writes docs/operators.md: what dlc does with each operator of ONNX, read off the code.

Run as `python -m tests.frontend.operator_table`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import dlc.frontend.onnx  # noqa: F401 - declares the converters
from dlc.frontend.onnx.fallback import TWINS
from dlc.frontend.onnx.model import OnnxNode
from dlc.frontend.onnx.registry import CONVERTERS, Entry, find

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
DOMAINS = ("", "ai.onnx.ml", "com.microsoft", "ai.onnx.preview", "ai.onnx.preview.training")
TRAINING = "ai.onnx.preview.training"
HEAD = """\
# Operators

What dlc does with each operator of ONNX {version}. This page is written by `make operators`; a
test holds it to the code.

- **From**: the opset version of the domain from which on the operator is converted. Where the
  meaning changed in between, the converter of the version a model names is used.
- **How**: *itself*: dlc has the same operator; *converted*: into one or several of its own;
  *definition*: ONNX defines the operator by others, and those are compiled.
- **Elements**: the element types that are taken, of those that ONNX (for com.microsoft:
  onnxruntime) lists for an operand or a result, and behind *not* those that are refused; each was
  tried on tests of ONNX's and of dlc's, by itself or for all operands alike (`Attention` takes one
  type only). `f8` are the four of 8 bits but for `f8e8m0`. A dash: there is no test, or no list.
- **Runs on**: where such a test runs, its first operand being data and the others constants:
  the CPU, or as well the GPU.
- **Refused**: what the converter refuses by name, in the words of the error, `…` for values. A
  model may hold anything that is not listed.

Complex numbers are no elements. Elements of fewer than 8 bits take a byte each. Floats of 8 bits
and less, and integers of fewer than 8, are moved, converted and quantized; arithmetic on them is
refused, as ONNX does not define it.

A model with an operator on texts stays on the host as a whole when it is built for a GPU, with a
warning. Where data decides what follows (a branch, a loop, a size), the host waits for it.

Refused are, besides what the tables say: `ImageDecoder`, since decoders are what hostile files
attack, and an artefact needs no library but libc's (decode before the model); `CastMap` and
`DictVectorizer`, since an artefact takes tensors, and no maps; whatever trains a model.

Random numbers are a function of the seed and of the position of the element; a node without a seed
gets one from its name. So each run of an artefact draws the same numbers.
"""


@dataclass(frozen=True)
class Tried:
    """What became of the trials with an operator."""

    elements: str
    targets: str


def page(tried: Mapping[tuple[str, str], Tried]) -> str:
    """The whole page."""
    parts = [HEAD.format(version=".".join(onnx.__version__.split(".")[:2]))]
    for domain in DOMAINS:
        rows = [row for name in _names(domain) for row in _row(domain, name, tried)]
        title = domain or "ai.onnx"
        table = (
            "| Operator | From | How | Elements | Runs on | Refused |\n|---|---|---|---|---|---|"
        )
        parts.append(f"\n## {title}\n\n{table}\n" + "\n".join(rows) + "\n")
    return "".join(parts)


def _names(domain: str) -> list[str]:
    schemas = {s.name for s in onnx.defs.get_all_schemas() if s.domain == domain}
    return sorted(schemas | {name for d, name in (*CONVERTERS, *TWINS) if d == domain})


def without_trials(text: str) -> list[str]:
    """The lines of a page, without what only trials tell."""
    lines = []
    for line in text.splitlines():
        cells = re.split(r"(?<!\\)\|", line)
        lines.append("|".join([*cells[:4], *cells[6:]]) if len(cells) > 7 else line)
    return lines


def _row(domain: str, name: str, tried: Mapping[tuple[str, str], Tried]) -> Iterator[str]:
    versions = CONVERTERS.get((domain, name), {})
    schema: Any = onnx.defs.get_schema(name, domain=domain) if _has(domain, name) else None
    if schema is not None and schema.deprecated and not versions:
        return
    found = tried.get((domain, name), Tried("–", "–"))
    trials = f"{found.elements} | {found.targets}"
    if twin := TWINS.get((domain, name)):
        refused = f"other values than the default of {', '.join(twin.neutral)}"
        yield f"| {name} | 1 | definition | {trials} | {refused} |"
        return
    newest = schema.since_version if schema is not None else max(versions)
    entry = find(OnnxNode("", domain, name, newest, (), (), {}))
    if entry is not None:
        first = min(versions) if versions else _first(domain, name)
        how = "converted" if versions else "itself"
        refused = "; ".join(dict.fromkeys(_refusals(entry))) or " "
        yield f"| {name} | {first} | {how} | {trials} | {refused} |"
    elif schema.has_function or schema.has_context_dependent_function:
        yield f"| {name} | {_first(domain, name, defined=True)} | definition | {trials} |   |"
    else:
        why = "trains a model" if domain == TRAINING else "not supported"
        yield f"| {name} |   | — |   |   | {why} |"


def _has(domain: str, name: str) -> bool:
    return bool(onnx.defs.has(name, domain))


def _first(domain: str, name: str, *, defined: bool = False) -> int:
    """The version in which an operator appeared, or got a definition by others."""
    history: Any = onnx.defs.get_all_schemas_with_history()
    return min(
        int(s.since_version)
        for s in history
        if (s.domain, s.name) == (domain, name)
        and (not defined or s.has_function or s.has_context_dependent_function)
    )


def _refusals(entry: Entry) -> Iterator[str]:
    """What a converter says when it refuses; operators of ours refuse by types and sizes only."""
    if entry.fn.__name__ == "call_op":
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(entry.fn)))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="refuse"), args=[reason, *_]):
                yield _text(reason).replace("|", "\\|")
            case ast.Call(func=ast.Attribute(attr="ints" | "one_int" | "floats"), args=[_, what]):
                yield f"{_text(what)} that is computed at run time"


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) for part in parts)
    return "…"


if __name__ == "__main__":
    from tests.frontend.element_types import try_all

    PAGE.write_text(page(try_all()))
