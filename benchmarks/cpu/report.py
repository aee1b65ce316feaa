"""Results as a table in Markdown, one JSON document and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]

# A column: what dlc is, and the engines it is compared with, of which the fastest counts.
FLOAT32 = ("onnxruntime", "openvino")
COLUMNS: dict[str, tuple[str, ...]] = {
    "dlc highest": FLOAT32,
    "dlc high": FLOAT32,
    "dlc medium": ("openvino bf16",),
    "dlc highest, no AMX": FLOAT32,
    "dlc highest, AVX2": ("openvino AVX2",),  # onnxruntime cannot be limited
}


def ratio(result: Result, column: str) -> float | None:
    """The time of the fastest peer over dlc's; None where one of them has none."""
    times = {e: r["median_ms"] for e, r in result["engines"].items() if "median_ms" in r}
    peers = [times[peer] for peer in COLUMNS[column] if peer in times]
    return min(peers) / times[column] if peers and column in times else None


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one number."""
    return exp(sum(map(log, values)) / len(values))


def markdown(results: Sequence[Result], threads: int) -> str:
    """The table for a number of threads, and where dlc loses."""
    rows = [r for r in results if r["threads"] == threads and not r["growth"]]
    engines = list(dict.fromkeys(engine for r in rows for engine in r["engines"]))
    columns = [column for column in COLUMNS if column in engines]
    head = ["model", *(f"{engine}, ms" for engine in engines), *(f"× {c}" for c in columns)]
    lines = [f"| {' | '.join(head)} |", f"|---{'|---:' * (len(head) - 1)}|"]
    found: dict[str, list[tuple[float, str]]] = {column: [] for column in columns}
    for row in rows:
        cells = [row["name"]]
        cells += [_time(row["engines"].get(engine, {})) for engine in engines]
        for column in columns:
            value = ratio(row, column)
            if value is not None:
                found[column].append((value, row["name"]))
            cells.append("–" if value is None else f"{value:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    means = [geometric_mean([v for v, _ in found[c]]) if found[c] else None for c in columns]
    blank = " |" * len(engines)
    shown = " | ".join("–" if mean is None else f"**{mean:.2f}**" for mean in means)
    lines.append(f"| geometric mean |{blank} {shown} |")
    for column in columns:
        lost = sorted((v, name) for v, name in found[column] if v < 1)
        names = ", ".join(f"{name} ({value:.2f})" for value, name in lost)
        lines += ["", f"{column} is slower than the fastest peer on: {names or 'none'}."]
    return "\n".join(lines) + "\n"


def _time(result: Mapping[str, Any]) -> str:
    return f"{result['median_ms']:.2f}" if "median_ms" in result else "–"


def plot(results: Sequence[Result], path: Path) -> bool:
    """Ratios as bars and growth as lines, in one HTML file; False where plotly is missing."""
    try:
        import plotly.graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError:
        return False
    grown = sorted({r["growth"] for r in results if r["growth"]})
    threads = sorted({r["threads"] for r in results if not r["growth"]})
    titles = [f"peer's time over dlc's, {n} threads" for n in threads]
    titles += [f"ms by {name}" for name in grown]
    figure = make_subplots(rows=len(titles), cols=1, subplot_titles=titles)
    for at, count in enumerate(threads, 1):
        rows = [r for r in results if r["threads"] == count and not r["growth"]]
        for column in COLUMNS:
            pairs = [(r["name"], ratio(r, column)) for r in rows]
            known = [(name, value) for name, value in pairs if value is not None]
            if known:
                names, values = zip(*known, strict=True)
                figure.add_trace(go.Bar(name=column, x=names, y=values), row=at, col=1)
    for at, name in enumerate(grown, len(threads) + 1):
        rows = sorted((r for r in results if r["growth"] == name), key=lambda r: r["size"])
        for engine in dict.fromkeys(e for r in rows for e in r["engines"]):
            known = [(r["size"], r["engines"].get(engine, {}).get("median_ms")) for r in rows]
            sizes, times = zip(*known, strict=True)
            figure.add_trace(go.Scatter(name=f"{engine} ({name})", x=sizes, y=times), row=at, col=1)
            figure.update_yaxes(type="log", row=at, col=1)
    figure.update_layout(height=450 * max(1, len(titles)), title_text="dlc and its peers")
    figure.write_html(path)
    return True


def read(folder: Path) -> list[Result]:
    """All results in a folder, in order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
