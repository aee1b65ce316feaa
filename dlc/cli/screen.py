"""What all screens share: consoles, JSON documents, and how quantities are written.

Rich is imported by those who print, so that `dlc --help` starts fast.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table

    from dlc.core.manifest import TensorSpec
    from dlc.core.target import Target

_UNBOUNDED = 100_000  # columns, of what has no width

# (any of these features, what people call it); of a group only the first that is there.
_HIGHLIGHTS: Mapping[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "x86_64": (
        (("avx512f",), "AVX-512"),
        (("avx2",), "AVX2"),
        (("avx512vnni", "avxvnni"), "VNNI"),
        (("avx512bf16",), "BF16"),
        (("avx512fp16",), "FP16"),
        (("amx-tile",), "AMX"),
    ),
    "aarch64": (
        (("neon",), "NEON"),
        (("dotprod",), "DotProd"),
        (("i8mm",), "I8MM"),
        (("bf16",), "BF16"),
        (("sve2", "sve"), "SVE"),
    ),
}


def stderr() -> Console:
    """Where progress and messages go."""
    return _console(to_stderr=True)


def stdout() -> Console:
    """Where results go."""
    return _console(to_stderr=False)


def _console(*, to_stderr: bool) -> Console:
    """A console that prints texts of models as they are: no markup, no emoji, no highlighting."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise  # Rich calls it where it has caught the error

    console = Plain(stderr=to_stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:  # a file or a program: rows stay lines, unless COLUMNS says a width
        console.width = shutil.get_terminal_size((_UNBOUNDED, 0)).columns
    return console


def table(*columns: str, left: Sequence[str] = ()) -> Table:
    """A plain table: numbers to the right, the columns in `left` to the left, no blanks behind."""
    from rich.console import ConsoleOptions
    from rich.segment import Segment
    from rich.table import Table

    class Trimmed(Table):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
            segments = cast("Iterable[Segment]", super().__rich_console__(console, options))
            for line in Segment.split_lines(segments):
                yield from _trimmed(line)
                yield Segment.line()

    made = Trimmed(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return made


def _trimmed(line: Sequence[Segment]) -> Iterator[Segment]:
    """A line of a table without the blanks that make its last cell as wide as the column."""
    from rich.segment import Segment

    end = len(line)
    while end and not line[end - 1].text.strip():
        end -= 1
    yield from line[: max(end - 1, 0)]
    if end:
        last = line[end - 1]
        yield Segment(last.text.rstrip(), last.style, last.control)


def print_json(schema: str, document: Mapping[str, object]) -> None:
    """One JSON document on standard output; numbers JSON has no word for become null."""
    whole = finite({"schema": schema, **document})
    sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False, default=str) + "\n")


def finite(value: object) -> object:
    """Data as JSON can hold it: numbers without a word there become null."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {str(k): finite(v) for k, v in value.items()}
        case list() | tuple():
            return [finite(v) for v in value]
    return value


def show_seconds(seconds: float) -> str:
    """`3.02 ms`."""
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.2f} {unit}"
    return f"{seconds:.2f} s"


def show_tensor(spec: TensorSpec) -> str:
    """`f32[batch, 3, 224, 224]`."""
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"


def tensor_json(spec: TensorSpec) -> dict[str, object]:
    """An input or output as data."""
    return {"name": spec.name, "dtype": str(spec.dtype), "shape": list(spec.shape)}


def show_target(target: Target, *, with_cpu: bool = True) -> str:
    """`x86_64 sapphirerapids (AVX-512, VNNI)`."""
    words = [
        word
        for names, word in _HIGHLIGHTS.get(target.arch, ())
        if target.features & set(names) and not (word == "AVX2" and "avx512f" in target.features)
    ]
    if target.gpu is not None:
        return f"cuda ({', '.join(target.gpu.archs)})"
    named = with_cpu and target.cpu not in ("x86-64", "generic")
    arch = f"{target.arch} {target.cpu}" if named else target.arch
    return arch + (f" ({', '.join(words)})" if words else "")
