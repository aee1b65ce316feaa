"""A store of results by what they were made from: bounded, and always safe to delete.

An entry is one file, named by the hash of its key. It holds the whole key, which is compared on
each hit, and a digest of everything, so that a damaged entry is a miss and never a wrong result.
Entries appear by rename: readers and writers of any number of processes need no lock. A cache that
cannot be used (no space, no permission, somebody else's folder) is one that never hits.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dlc.core.env import cache_dir
from dlc.core.errors import show_os_error

_LOG = logging.getLogger(__name__)
_MAGIC = b"DLCCACH1"
_HEAD = struct.Struct("<8sQQ32s")  # magic, bytes of the key, bytes of the value, digest
_TEMPORARY = ".new-"
_FILE = ".file"  # what ends the name of a stored file
_FILE_HASH = struct.Struct("<Q")
_STALE_SECONDS = 3600.0  # a temporary file of this age was left by a process that died
DEFAULT_LIMIT_BYTES = 2 * 1024**3
Hasher = Callable[[Path], int]
"""A hash of 64 bits over all bytes of a file."""


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a cache holds."""

    folder: Path
    entries: int
    size_bytes: int
    limit_bytes: int


class Cache:
    """A folder of entries. Beyond `limit_bytes` the entries used longest ago are removed."""

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self._unchecked_bytes = limit_bytes  # written since the last prune; the first put prunes
        self._usable: bool | None = None
        self._told = False  # that it cannot be written

    def get(self, key: bytes) -> bytes | None:
        """The value stored for a key, or None. A damaged entry is removed."""
        if not self._is_usable():
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        value = _decode(key, data)
        with contextlib.suppress(OSError):
            if value is None:
                _LOG.warning("removing the damaged cache entry %s", path)
                path.unlink()
            else:
                os.utime(path)  # the time of last use, for `prune`
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Store a value for a key; does nothing where it cannot be stored."""
        if not self._is_usable():
            return
        data = _encode(key, value)
        self._store(self._path(key), len(data), lambda path: path.write_bytes(data))

    def get_file(self, key: bytes, out: Path, hasher: Hasher) -> bytes | None:
        """Copy the file stored for a key to `out`; its note, or None where there is none.

        A damaged file is removed; `out` may then hold anything.

        Raises:
            OSError: `out` cannot be written.
        """
        found = self.get(_key_of_file(key))
        if found is None:
            return None
        path, note = self._path(key).with_suffix(_FILE), found[_FILE_HASH.size :]
        if not path.is_file():
            return None
        shutil.copyfile(path, out)
        if (hasher(out),) != _FILE_HASH.unpack_from(found):
            _LOG.warning("removing the damaged cache entry %s", path)
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return note

    def put_file(self, key: bytes, source: Path, note: bytes, hasher: Hasher) -> None:
        """Store a copy of a file, and a note; not of one that half of the cache cannot hold."""
        size = source.stat().st_size
        if not self._is_usable() or size > self.limit_bytes // 2:
            return
        path = self._path(key).with_suffix(_FILE)
        if self._store(path, size, lambda new: shutil.copyfile(source, new)):
            self.put(_key_of_file(key), _FILE_HASH.pack(hasher(source)) + note)

    def _store(self, path: Path, size: int, write: Callable[[Path], object]) -> bool:
        """Make an entry appear in one step; whether it could be."""
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
            os.close(handle)
            try:
                write(Path(name))
                os.replace(name, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            if not self._told:  # of hundreds of kernels once
                _LOG.warning("cannot write to the cache %s: %s", self.folder, show_os_error(error))
            self._told = True
            self._usable = None  # the folder may be gone: look again
            return False
        self._unchecked_bytes += size
        if self._unchecked_bytes > self.limit_bytes // 16:  # reading the folder takes time
            self.prune()
        return True

    def info(self) -> CacheInfo:
        """Count the entries and their bytes."""
        sizes = [size for _, size, _ in _entries(self._files())]
        return CacheInfo(self.folder, len(sizes), sum(sizes), self.limit_bytes)

    def clear(self) -> int:
        """Remove every entry; return how many there were."""
        removed = self.prune(0)
        for folder in self._folders():
            with contextlib.suppress(OSError):  # another process has just put an entry there
                folder.rmdir()
        return removed

    def prune(self, limit_bytes: int | None = None) -> int:
        """Remove the entries used longest ago until the rest fits; return how many were removed.

        Files take half of the room at most: one of them is as large as thousands of values.
        """
        limit = self.limit_bytes if limit_bytes is None else limit_bytes
        self._unchecked_bytes = 0
        found = list(self._files())
        total = files = removed = 0
        for _, size, path in sorted(_entries(found), key=lambda e: (-e[0], e[2])):
            of_file = size if path.endswith(_FILE) else 0
            if total + size <= limit and files + of_file <= max(limit // 2, files):
                total += size
                files += of_file
                continue
            removed += 1
            with contextlib.suppress(OSError):
                os.unlink(path)
        _remove_stale(found)
        return removed

    def _files(self) -> Iterator[os.DirEntry[str]]:
        """There may be a hundred thousand, for which `Path.glob` takes a second."""
        for folder in self._folders():
            with contextlib.suppress(OSError), os.scandir(folder) as files:
                yield from files

    def _folders(self) -> Iterable[Path]:
        return self.folder.glob("[0-9a-f][0-9a-f]") if self._is_usable() else ()

    def _path(self, key: bytes) -> Path:
        name = hashlib.sha256(key).hexdigest()
        return self.folder / name[:2] / name[2:]

    def _is_usable(self) -> bool:
        if self._usable is None:
            reason = self._why_not_usable()
            self._usable = not reason
            if reason:
                _LOG.warning("not using the cache %s: %s", self.folder, reason)
        return self._usable

    def _why_not_usable(self) -> str:
        """Entries are native code, so nobody else may be able to put some there."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.stat()
        except OSError as error:
            return error.strerror or str(error)
        if found.st_uid != os.geteuid():
            return "it belongs to another user"
        return "everybody may write to it" if found.st_mode & 0o002 else ""


def _entries(files: Iterable[os.DirEntry[str]]) -> Iterator[tuple[float, int, str]]:
    """(time of last use, bytes, path) of each entry among files."""
    for file in files:
        if not file.name.startswith(_TEMPORARY):
            with contextlib.suppress(OSError):  # another process removed it
                found = file.stat()
                yield found.st_mtime, found.st_size, file.path


def _remove_stale(files: Iterable[os.DirEntry[str]]) -> None:
    """Remove what processes that died were about to store."""
    for file in files:
        if file.name.startswith(_TEMPORARY):
            with contextlib.suppress(OSError):
                if time.time() - file.stat().st_mtime > _STALE_SECONDS:
                    os.unlink(file)


def default_cache() -> Cache:
    """The cache in the folder `DLC_CACHE_DIR` names, else in the user's cache folder.

    One for all builds of a process: each new one reads the whole folder at its first `put`.
    """
    folder = cache_dir()
    if folder is None:
        import platformdirs  # core is imported by every deployed model, which needs no cache

        folder = Path(platformdirs.user_cache_dir("dlc", appauthor=False))
    return _cache_in(folder)


@functools.cache
def _cache_in(folder: Path) -> Cache:
    return Cache(folder)


def _key_of_file(key: bytes) -> bytes:
    """The key of what is known about a stored file."""
    return b"file\n" + key


def _encode(key: bytes, value: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, len(key), len(value), _digest(key, value)) + key + value


def _decode(key: bytes, data: bytes) -> bytes | None:
    """The value of an entry, or None if the entry is damaged or another key's."""
    if len(data) < _HEAD.size:
        return None
    magic, key_size, value_size, digest = _HEAD.unpack_from(data)
    if magic != _MAGIC or len(data) != _HEAD.size + key_size + value_size:
        return None
    found, value = data[_HEAD.size :][:key_size], data[_HEAD.size + key_size :]
    return value if found == key and digest == _digest(key, value) else None


def _digest(key: bytes, value: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<Q", len(key)) + key + value).digest()
