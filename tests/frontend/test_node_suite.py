"""ONNX's 1,884 tests of single nodes: right, or refused for a reason that is known here."""

from __future__ import annotations

import pytest

from tests.frontend import element_types, operator_table
from tests.frontend.node_suite import ELSEWHERE_RIGHT, OTHERWISE, Outcome, run_all
from tests.frontend.node_suite_page import PAGE, page

SOME_TYPES = {
    "CenterCropPad",  # ONNX defines it by what does not fit for i32
    "Col2Im", "GridSample", "Resize", "Trilu", "Unique", "Upsample",  # texts
    "FusedGemm",  # integers
    "GatherBlockQuantized",  # floats
    "GroupQueryAttention",  # a quantized cache
    "MurmurHash3",  # the hash of four bytes
    "QMoE",  # floats of eight bits
}  # fmt: skip
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


def test_the_table_of_operators_is_current():
    table = operator_table.page(element_types.try_all())
    assert table == operator_table.PAGE.read_text(), "run `make operators`"
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    for line in rows:  # what ONNX's lists allow is taken, but for these
        name = line.split(" | ")[0].removeprefix("| ")
        assert "*not*" not in line or name in SOME_TYPES, line
