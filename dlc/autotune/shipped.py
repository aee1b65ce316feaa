"""What comes with dlc: schedules that won, and a cost model, each made on one family of CPUs.

`python -m benchmarks.tuning.ship` makes both. A record is used only where the machine is the one it
was made on in every fact that its key holds; the cost model only says where to look first, so it
serves the family.
"""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path

from dlc.core.target import Target

FOLDER = Path(str(resources.files("dlc.autotune"))) / "records"
# Features that decide which engines and which vectors a schedule can choose; the first one counts.
_LEVELS = ("amx-tile", "avx512f", "avx2")


@functools.cache
def family_of(target: Target) -> str:
    """The family of CPUs that a target is of, or that the host of its GPU is of."""
    level = next((name for name in _LEVELS if name in target.features), "")
    return "-".join(part for part in (target.arch, level) if part)


def shipped_model(target: Target) -> Path | None:
    """The cost model for the family of a target, if there is one. GPUs have none."""
    path = FOLDER / f"{family_of(target)}.ubj"
    return path if target.gpu is None and path.is_file() else None


def shipped_files() -> list[Path]:
    """Files of records as JSON lines, in a fixed order."""
    return sorted(FOLDER.glob("*.jsonl"))
