"""Where and when a figure was measured: it stands beside every one."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

import dlc
from dlc.core.machine import read_machine, usable_cores


def provenance() -> dict[str, str]:
    """The date, the GPU with its driver, and the commit; "unknown" where a tool is missing."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": _first_line(query),
        "commit": _first_line(["git", "describe", "--always", "--dirty"]),
    }


def describe_machine() -> str:
    """The version of dlc and the CPU it runs on, in a line."""
    machine = read_machine()
    features = ", ".join(f for f in ("avx2", "avx512f", "amx-bf16") if f in machine.features)
    return f"dlc {dlc.__version__}, {machine.arch} ({features}), {usable_cores()} cores"


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip().partition("\n")[0] or "unknown"
