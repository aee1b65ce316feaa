"""Sketches: schedules for nests that no rule knows, made from the nest alone."""

from __future__ import annotations

from types import ModuleType

SKETCHES: dict[str, ModuleType] = {}
