from __future__ import annotations

import pytest

from dlc.core.dump import Dumper
from dlc.core.errors import UserError


def test_dumps_are_numbered(tmp_path):
    dumper = Dumper(tmp_path / "new" / "dump")
    assert dumper.wanted
    paths = [dumper.write(name, name) for name in ("a.txt", "b.txt")]
    assert [path.name for path in paths] == ["00_a.txt", "01_b.txt"]


def test_a_folder_that_cannot_be_written_to_is_the_users_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*file"):
        Dumper(tmp_path / "file")
    dumper = Dumper(tmp_path / "dump")
    (tmp_path / "dump").rmdir()
    with pytest.raises(UserError, match=r"cannot write .*00_a\.txt"):
        dumper.write("a.txt", "")
