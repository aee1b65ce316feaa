"""`dlc doctor`: is everything there that a build needs?"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from dlc.cli.option import JsonOption
from dlc.cli.screen import print_json, show_target, stdout
from dlc.core.count import show_count
from dlc.core.errors import DlcError, TargetError

_OLDEST_PYTHON = (3, 11)
_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question; an `error` means that a build would fail."""

    topic: str
    status: str  # "ok", "warning" or "error"
    detail: str
    hint: str = ""


def doctor(as_json: JsonOption = False) -> None:
    """Check that everything a build needs is there. Exit code 5 where something is missing."""
    findings = [_ask(topic, question) for topic, question in _QUESTIONS.items()]
    bad = [finding for finding in findings if finding.status == "error"]
    if as_json:
        print_json("dlc.doctor/1", {"ok": not bad, "findings": [asdict(f) for f in findings]})
    else:
        _print(findings)
    if bad:
        raise typer.Exit(TargetError.exit_code)


def _print(findings: list[Finding]) -> None:
    from rich.text import Text

    console = stdout()
    for finding in findings:
        mark = _MARKS[finding.status]
        console.print(
            Text.assemble("  ", mark, f" {finding.topic:<12} {finding.detail}"), soft_wrap=True
        )
        if finding.hint:
            console.print(f"{'':17}{finding.hint}", style="dim", soft_wrap=True)


def _ask(topic: str, question: Callable[[], Finding]) -> Finding:
    """The answer; a question that fails is an error with its reason."""
    try:
        return question()
    except DlcError as error:
        found = error.to_dict()
        return Finding(topic, "error", str(found["message"]), str(found["hint"]))
    except (ImportError, OSError) as error:
        return Finding(topic, "error", f"{type(error).__name__}: {error}")


def _python() -> Finding:
    text = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info < _OLDEST_PYTHON:
        return Finding("python", "error", text, "install Python 3.11 or newer")
    return Finding("python", "ok", text)


def _packages() -> Finding:
    from dlc.cli.version import REQUIRED, packages

    found = packages()
    if missing := [name for name in REQUIRED if name not in found]:
        listing = " ".join(missing)
        return Finding("packages", "error", f"missing: {listing}", f"pip install {listing}")
    shown = ("numpy", "onnx", "llvmlite")
    return Finding("packages", "ok", ", ".join(f"{name} {found[name]}" for name in shown))


def _llvm() -> Finding:
    from llvmlite import binding

    return Finding("llvm", "ok", ".".join(map(str, binding.llvm_version_info)))


def _machine() -> Finding:
    from dlc.core.target_parse import parse_target

    return Finding("native", "ok", show_target(parse_target("native")))


def _linker() -> Finding:
    import subprocess

    from dlc.codegen.llvm.toolchain import find_driver
    from dlc.core.target_parse import parse_target

    driver = find_driver(parse_target("native"))[0]
    done = subprocess.run([driver, "--version"], capture_output=True, text=True, check=False)
    first = (done.stdout.splitlines() or ["?"])[0]
    if done.returncode:
        return Finding("linker", "error", f"{driver} does not run", done.stderr.strip())
    return Finding("linker", "ok", f"{driver}: {first}")


def _runtime() -> Finding:
    from dlc.core import env
    from dlc.runtime import num_threads

    asked = env.num_threads()
    allowed = len(os.sched_getaffinity(0))
    why = f"{env.NUM_THREADS.name} says so" if asked else f"of {allowed} CPUs this process may use"
    return Finding("threads", "ok", f"{num_threads()}, {why}")


def _cache() -> Finding:
    from dlc.core.cache import default_cache

    cache = default_cache()
    key = b"dlc doctor"
    cache.put(key, key)
    if cache.get(key) != key:
        hint = "builds work, but compile every kernel anew; set DLC_CACHE_DIR to another folder"
        return Finding("cache", "warning", f"{cache.folder} cannot be used", hint)
    return Finding("cache", "ok", f"{cache.folder}, {show_count(cache.info().entries, 'kernel')}")


def _scratch() -> Finding:
    import shutil
    import tempfile

    folder = Path(tempfile.gettempdir())
    with tempfile.TemporaryFile() as file:
        file.write(b"dlc")
    free = shutil.disk_usage(folder).free
    status = "ok" if free > 1 << 30 else "warning"
    return Finding("scratch", status, f"{folder}, {free / 1e9:.1f} GB free")


def _peer() -> Finding:
    from dlc.cli.version import packages

    version = packages().get("onnxruntime")
    if version is None:
        hint = "pip install onnxruntime; builds are then compared with it"
        return Finding("onnxruntime", "warning", "not installed", hint)
    return Finding("onnxruntime", "ok", version)


_QUESTIONS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "packages": _packages,
    "llvm": _llvm,
    "native": _machine,
    "linker": _linker,
    "threads": _runtime,
    "cache": _cache,
    "scratch": _scratch,
    "onnxruntime": _peer,
}
