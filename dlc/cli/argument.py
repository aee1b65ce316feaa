"""The small languages of the command line: `x=1,3,224,224`, `batch=1..32`, `x=random:seed=1`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dlc.core.count import is_number
from dlc.core.errors import UserError

Dim = int | tuple[int, int | None]
_FILLS: Mapping[str, tuple[str, ...]] = {
    "random": ("seed",),
    "normal": ("seed",),
    "uniform": ("seed",),
}
_NUMBERS = {"zeros": 0, "ones": 1}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the values of an input come from: a file, or a way to fill it."""

    path: str = ""
    fill: str = ""  # "random", "normal" or "uniform"
    number: int | float | None = None  # of all elements
    options: Mapping[str, int] = field(default_factory=dict)


def split_assignment(option: str, text: str) -> tuple[str, str]:
    """`name=value`; a name may contain `=`, a value does not.

    Raises:
        UserError: there is no `=`, or nothing beside it.
    """
    name, equals, value = text.rpartition("=")
    if not (name and equals and value):
        raise UserError(detail=f"{option} '{text}': expected NAME=VALUE")
    return name, value


def split_known(text: str, names: Iterable[str]) -> tuple[str, str] | None:
    """`name=value` with the longest of `names` that fits; None where none does."""
    fitting = [name for name in names if text.startswith(f"{name}=")]
    if not fitting:
        return None
    name = max(fitting, key=len)
    return name, text[len(name) + 1 :]


def parse_shapes(texts: Sequence[str]) -> dict[str, tuple[int | str, ...]]:
    """`x=1,3,224,224`; a dimension may be a name.

    Raises:
        UserError: an item is not of that form, or an input is given twice.
    """
    found: dict[str, tuple[int | str, ...]] = {}
    for text in texts:
        name, value = split_assignment("--shape", text)
        items = [item.strip() for item in value.split(",")]
        bad = [i for i in items if not (is_number(i) or i.isidentifier())]
        if bad:
            reason = f"--shape '{text}': '{bad[0]}' is neither a number nor a name"
            raise UserError(detail=reason, hint="write --shape x=1,3,224,224")
        if name in found:
            raise UserError(detail=f"--shape: input '{name}' is given twice")
        found[name] = tuple(int(item) if is_number(item) else item for item in items)
    return found


def parse_dims(texts: Sequence[str], option: str = "--dim") -> dict[str, Dim]:
    """`batch=1`, `batch=1..32`, `batch=1..`.

    Raises:
        UserError: an item is not of that form, or a dimension is given twice.
    """
    found: dict[str, Dim] = {}
    for text in texts:
        name, value = split_assignment(option, text)
        low, dots, high = value.partition("..")
        if not is_number(low) or (high and not is_number(high)):
            hint = f"write {option} batch=1, {option} batch=1..32 or {option} batch=1.."
            raise UserError(detail=f"{option} '{text}': '{value}' is no size", hint=hint)
        if name in found:
            raise UserError(detail=f"{option}: '{name}' is given twice")
        found[name] = (int(low), int(high) if high else None) if dots else int(low)
    return found


def parse_variants(texts: Sequence[str]) -> list[dict[str, Dim]]:
    """`batch=1`, `batch=1,seq=1..128`: sizes of one variant each.

    Raises:
        UserError: an item is not of that form, or a dimension is given twice in a variant, or a
            variant.
    """
    found: list[dict[str, Dim]] = []
    for text in texts:
        variant = parse_dims(text.split(","), "--variant")
        if variant in found:
            raise UserError(detail=f"--variant: '{text}' is given twice")
        found.append(variant)
    return found


def parse_values(texts: Sequence[str]) -> dict[str, object]:
    """`sr=16000`, `axes=[0, 2]`: values of inputs that become constants, written as JSON.

    Raises:
        UserError: an item is not of that form, or an input is given twice.
    """
    found: dict[str, object] = {}
    for text in texts:
        name, number = _named_json(text)
        if name in found:
            raise UserError(detail=f"--value: input '{name}' is given twice")
        found[name] = number
    return found


def _named_json(text: str) -> tuple[str, object]:
    """The shortest value that is JSON: what begins within a text of JSON never is."""
    split_assignment("--value", text)
    parts = text.split("=")
    for count in range(len(parts) - 1, 0, -1):
        name, value = "=".join(parts[:count]), "=".join(parts[count:])
        with contextlib.suppress(ValueError):
            return name, json.loads(value)
    hint = "write --value sr=16000 or --value axes=[0,2]"
    raise UserError(detail=f"--value '{text}': '{value}' is no JSON", hint=hint)


def parse_sizes(texts: Sequence[str], option: str = "--dim") -> dict[str, int]:
    """`batch=8`: sizes for one run, so no ranges.

    Raises:
        UserError: an item is not of that form.
    """
    found: dict[str, int] = {}
    for name, value in parse_dims(texts, option).items():
        if not isinstance(value, int):
            raise UserError(detail=f"{option} {name}: a run needs one size, not a range")
        found[name] = value
    return found


def is_source(text: str) -> bool:
    """Whether `text` begins as a file or a way to fill an input does, rather than with a name."""
    return text.startswith("@") or text.partition(":")[0] in _FILLS


def parse_source(text: str) -> Source:
    """`@x.npy`, `random`, `random:normal:seed=1`, `random:uniform`, `zeros`, `ones`, `16000`.

    Raises:
        UserError: an item is not of that form.
    """
    if text.startswith("@"):
        return Source(path=text[1:])
    if (number := _NUMBERS.get(text, _number(text))) is not None:
        return Source(number=number)
    words = text.split(":")
    fill, rest = words[0], words[1:]
    if fill == "random" and rest and rest[0] in ("normal", "uniform"):
        fill, rest = rest[0], rest[1:]
    hint = "write @FILE.npy, random, random:uniform:seed=1, zeros, ones or a number"
    if fill not in _FILLS:
        raise UserError(detail=f"'{text}' is no source of values", hint=hint)
    options: dict[str, int] = {}
    for word in rest:
        name, _, value = word.partition("=")
        if name not in _FILLS[fill] or not is_number(value):
            raise UserError(detail=f"'{text}': '{word}' is not understood", hint=hint)
        options[name] = int(value)
    return Source(fill=fill, options=options)


def parse_file(option: str, text: str, names: Iterable[str] = ()) -> tuple[str, str]:
    """`y=@y.npy`, or `@y.npz` for all; the name is then empty.

    A name may contain `@`, too: of `names` the longest that fits ends before the file.

    Raises:
        UserError: it is not of that form.
    """
    name, value = split_known(text, names) or ("", text)
    if not value.startswith("@"):
        name, _, value = text.partition("=@")
        value = f"@{value}" if name else ""
    if len(value) < 2:
        hint = f"write {option} y=@y.npy, or {option} @all.npz"
        raise UserError(detail=f"{option} '{text}': expected a file", hint=hint)
    return name, value[1:]


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None
