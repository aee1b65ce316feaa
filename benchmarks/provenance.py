"""Where and when a figure was measured: it stands beside every one."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime


def provenance() -> dict[str, str]:
    """The date, the GPU with its driver, and the commit; "unknown" where a tool is missing."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": _first_line(query),
        "commit": _first_line(["git", "describe", "--always", "--dirty"]),
    }


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip().partition("\n")[0] or "unknown"
