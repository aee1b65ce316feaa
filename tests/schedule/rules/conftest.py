from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_rule_gives_up(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A refused step costs speed, not the kernel; here it is a mistake in a rule."""
    caplog.set_level(logging.INFO, logger="dlc.schedule")
    yield
    assert not [r for r in caplog.get_records("call") if r.name == "dlc.schedule"]
