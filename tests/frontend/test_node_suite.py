"""ONNX's 1,884 tests of single nodes: right, or refused for a reason that is known here."""

from __future__ import annotations

import pytest

from tests.frontend.node_suite import ELSEWHERE_RIGHT, OTHERWISE, Outcome, run_all
from tests.frontend.node_suite_page import PAGE, page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run_all()


def test_what_is_converted_is_right(outcome):
    known = {name for names in OTHERWISE.values() for name in names} | ELSEWHERE_RIGHT
    assert not {name: why for name, why in outcome.failed.items() if name not in known}
    assert len(outcome.passed) >= 1801


def test_known_differences_are_still_there(outcome):
    assert set(outcome.failed) >= ELSEWHERE_RIGHT


def test_the_page_of_what_does_not_pass_is_current(outcome):
    assert PAGE.read_text() == page(outcome), "run `make operators`"
