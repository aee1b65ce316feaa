"""Every status of the C interface becomes the error that says whose fault it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlc.core.errors import (
    ArtifactError,
    DlcError,
    InputError,
    InternalError,
    LimitError,
    UserError,
)
from dlc.runtime import _runtime
from dlc.runtime.native import dlc_errors, to_dlc_error

HEADER = Path(__file__).parents[2] / "dlc/runtime/cpp/include/dlc/runtime.h"
EXPECTED = {
    "DLC_INVALID_ARGUMENT": UserError,
    "DLC_NOT_FOUND": ArtifactError,
    "DLC_BAD_ARTIFACT": ArtifactError,
    "DLC_INCOMPATIBLE": ArtifactError,
    "DLC_BAD_TENSOR": UserError,
    "DLC_RUN_FAILED": UserError,
    "DLC_NO_MEMORY": LimitError,
    "DLC_INTERNAL": InternalError,
}


def test_the_table_has_every_status() -> None:
    statuses = set(re.findall(r"^  (DLC_\w+) = \d", HEADER.read_text(), re.MULTILINE))
    assert statuses - {"DLC_OK", "DLC_VERIFY_FULL", "DLC_VERIFY_SKIP_HASH"} == set(EXPECTED)


@pytest.mark.parametrize(("status", "kind"), EXPECTED.items())
def test_each_status(status: str, kind: type[DlcError]) -> None:
    error = to_dlc_error(_runtime.StatusError(status, "why"), "m.so")
    assert type(error) is kind
    assert "why" in str(error)


def test_the_input_and_the_path_become_fields() -> None:
    error = to_dlc_error(_runtime.StatusError("DLC_BAD_TENSOR", "input 'a: b': too\nlong"), "m")
    assert isinstance(error, InputError)
    assert error.fields == {"name": "a: b", "reason": "too\nlong"}
    with (
        pytest.raises(ArtifactError) as caught,
        dlc_errors("m.so"),
    ):
        raise _runtime.StatusError("DLC_BAD_ARTIFACT", "m.so: damaged")
    assert caught.value.fields == {"path": "m.so", "reason": "damaged"}
