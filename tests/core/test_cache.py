"""The content-addressed cache: hits, damage, bounds, concurrent writers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from dlc.core.cache import Cache, default_cache


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def only_entry(cache):
    (path,) = cache.folder.glob("??/*")
    return path


def crc(path):
    return zlib.crc32(path.read_bytes())


def test_what_was_put_is_found(cache):
    assert cache.get(b"key") is None
    cache.put(b"key", b"value")
    cache.put(b"other", b"")
    assert cache.get(b"key") == b"value"
    assert cache.get(b"other") == b""
    cache.put(b"key", b"new")
    assert Cache(cache.folder).get(b"key") == b"new"


@pytest.mark.parametrize("position", [0, 9, 17, 30, 56, 60, -1])
def test_a_damaged_entry_is_a_miss_and_goes_away(cache, position):
    cache.put(b"the key", b"the value")
    path = only_entry(cache)
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
    assert cache.get(b"the key") is None
    assert not path.exists()
    cache.put(b"the key", b"the value")
    assert cache.get(b"the key") == b"the value"


@pytest.mark.parametrize("size", [0, 5, 40, 60, 70])
def test_a_truncated_entry_is_a_miss(cache, size):
    cache.put(b"the key", b"the value")
    path = only_entry(cache)
    path.write_bytes(path.read_bytes()[:size])
    assert cache.get(b"the key") is None


def test_an_entry_under_the_name_of_another_key_is_a_miss(cache):
    cache.put(b"one", b"value of one")
    path = only_entry(cache)
    cache.put(b"two", b"value of two")
    (other,) = set(cache.folder.glob("??/*")) - {path}
    other.write_bytes(path.read_bytes())
    assert cache.get(b"two") is None
    assert cache.get(b"one") == b"value of one"


def test_the_entries_used_longest_ago_are_pruned(cache):
    for number in range(5):
        cache.put(b"%d" % number, bytes(1000))
    for path in cache.folder.glob("??/*"):
        os.utime(path, (0, 0))
    assert cache.get(b"1") is not None
    assert cache.get(b"3") is not None
    assert cache.prune(2500) == 3
    found = [number for number in range(5) if cache.get(b"%d" % number) is not None]
    assert found == [1, 3]


def test_writing_keeps_the_cache_within_its_limit(tmp_path):
    cache = Cache(tmp_path, limit_bytes=20_000)
    for number in range(50):
        cache.put(b"%d" % number, bytes(1000))
    info = cache.info()
    assert info.size_bytes <= 20_000 + 20_000 // 16 + 1100
    assert info.entries >= 15
    assert cache.get(b"49") is not None


def test_a_file_that_was_put_is_found_with_its_note(cache, tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    source.write_bytes(b"content")
    assert cache.get_file(b"key", out, crc) is None
    assert not out.exists()
    cache.put_file(b"key", source, b"note", crc)
    assert cache.get_file(b"other", out, crc) is None
    assert cache.get_file(b"key", out, crc) == b"note"
    assert out.read_bytes() == b"content"
    assert cache.get(b"key") is None  # values have names of their own


@pytest.mark.parametrize("damage", [b"contend", b"conten", b""])
def test_a_damaged_file_is_a_miss_and_goes_away(cache, tmp_path, caplog, damage):
    source, out = tmp_path / "source", tmp_path / "out"
    source.write_bytes(b"content")
    cache.put_file(b"key", source, b"", crc)
    (path,) = cache.folder.glob("??/*.file")
    path.write_bytes(damage)
    assert cache.get_file(b"key", out, crc) is None
    assert "damaged" in caplog.text
    assert not path.exists()
    assert cache.get_file(b"key", out, crc) is None
    cache.put_file(b"key", source, b"", crc)
    assert cache.get_file(b"key", out, crc) == b""


def test_files_take_half_of_the_cache_at_most(tmp_path):
    cache, source = Cache(tmp_path / "cache", limit_bytes=20_000), tmp_path / "source"
    cache.put(b"value", bytes(5000))
    source.write_bytes(bytes(4000))
    for number in range(5):
        cache.put_file(b"%d" % number, source, b"", crc)
    cache.prune()
    assert len(list(cache.folder.glob("??/*.file"))) == 2
    assert cache.get(b"value") is not None
    source.write_bytes(bytes(10_001))
    cache.put_file(b"large", source, b"", crc)
    assert cache.get_file(b"large", tmp_path / "out", crc) is None


def test_info_and_clear(cache):
    cache.put(b"a", bytes(10))
    cache.put(b"b", bytes(20))
    info = cache.info()
    assert (info.entries, info.folder) == (2, cache.folder)
    assert info.size_bytes > 30
    assert cache.clear() == 2
    assert cache.info().entries == 0
    assert cache.get(b"a") is None


def test_files_of_dead_writers_are_removed(cache):
    cache.put(b"a", b"1")
    folder = only_entry(cache).parent
    old, new = folder / ".new-old", folder / ".new-new"
    old.write_bytes(b"")
    new.write_bytes(b"")
    long_ago = time.time() - 2 * 3600
    os.utime(old, (long_ago, long_ago))
    assert cache.info().entries == 1
    assert cache.prune() == 0
    assert not old.exists()
    assert new.exists()


def test_a_new_folder_is_private(cache):
    cache.put(b"a", b"1")
    assert cache.folder.stat().st_mode & 0o777 == 0o700


def unusable(folder):
    cache = Cache(folder)
    cache.put(b"a", b"1")
    return cache.get(b"a") is None and cache.info().entries == 0 and cache.clear() == 0


def test_a_folder_everybody_may_write_to_is_not_used(tmp_path, caplog):
    tmp_path.chmod(0o777)
    assert unusable(tmp_path)
    assert "everybody may write" in caplog.text


def test_the_folder_of_another_user_is_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert unusable(tmp_path)
    assert "belongs to another user" in caplog.text


def test_a_file_in_place_of_the_folder_is_not_used(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    assert unusable(tmp_path / "file")
    assert len(caplog.records) == 1


def test_a_failed_write_is_no_error(cache, monkeypatch, caplog):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    cache.put(b"a", b"1")
    cache.put(b"other", b"value")
    assert [r.getMessage() for r in caplog.records] == [  # of many entries once
        f"cannot write to the cache {cache.folder}: no space left on device"
    ]
    assert list(cache.folder.glob("??/*")) == []


WRITER = """
import sys
from pathlib import Path
from dlc.core.cache import Cache
cache = Cache(Path(sys.argv[1]), limit_bytes=200_000)
for turn in range(60):
    for number in range(8):
        key = b"key %d" % number
        found = cache.get(key)
        assert found is None or found == key * 500, found
        cache.put(key, key * 500)
    if turn % 20 == 19:
        cache.prune(10_000)
"""


def test_concurrent_writers_never_see_a_broken_entry(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path / "cache")]
    root = Path(__file__).parents[2]
    running = [subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE) for _ in range(4)]
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        assert b"damaged" not in errors
    assert not list((tmp_path / "cache").glob("??/.new-*"))


def test_a_folder_that_was_removed_is_made_again(cache):
    cache.put(b"a", b"1")
    shutil.rmtree(cache.folder)
    cache.put(b"a", b"1")
    cache.put(b"a", b"2")
    assert cache.get(b"a") == b"2"


def test_builds_of_a_process_share_a_cache(tmp_path, monkeypatch):
    """Each new cache reads its folder, which takes long where many models are built."""
    monkeypatch.setenv("DLC_CACHE_DIR", str(tmp_path))
    assert default_cache() is default_cache()


def test_the_default_folder_is_the_environments(tmp_path, monkeypatch):
    monkeypatch.setenv("DLC_CACHE_DIR", str(tmp_path))
    assert default_cache().folder == tmp_path
    monkeypatch.delenv("DLC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache().folder == tmp_path / "xdg" / "dlc"
