"""Finished artefacts by what they were built from: building a large model again is a copy.

Kernels are kept one by one (`codegen/llvm/worker.py`), so a second build of a small model takes
little. That of a large one would split, pack and write its weights anew, and that of a model of
many nodes would spend seconds in passes.

There are two keys. `artifact_key` names an artefact by the graph that was imported, so that files
which mean the same share it. `BuiltBefore` finds that key by the bytes of a model's file: a model
that was built before is not read, and nothing that compiles is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlc.autotune.told import records_key
from dlc.compiler_version import compiler_version
from dlc.core.cache import Cache, default_cache
from dlc.core.env import dump_dir, log_topics
from dlc.core.errors import UserError
from dlc.core.staging import staging
from dlc.core.target import Target
from dlc.runtime import hash_file

_PART = 16 << 20  # bytes of a file that are hashed by one thread


@dataclass(frozen=True, slots=True)
class ArtifactCache:
    """The place of one artefact in the cache; none where it is not worth its room."""

    key: bytes | None
    cache: Cache

    def find(self, out: Path) -> Mapping[str, object] | None:
        """Put the artefact at `out`; what `keep` was told of it, or None if there is none."""
        if self.key is None:
            return None
        try:
            with staging(out) as draft:
                note = self.cache.get_file(self.key, draft, hash_file)
                if note is None:
                    return None
                mode = draft.stat().st_mode
                draft.chmod(mode | (mode & 0o444) >> 2)  # as a linker does
                draft.replace(out)
        except (OSError, UserError):
            return None  # a build says why it cannot write there
        found = json.loads(note)
        assert isinstance(found, dict)
        return found

    def keep(self, path: Path, note: Mapping[str, object]) -> None:
        """Store the artefact at `path`, and what to say about it when it is found again."""
        if self.key is not None:
            self.cache.put_file(self.key, path, json.dumps(dict(note)).encode(), hash_file)


@dataclass(frozen=True, slots=True)
class BuiltBefore:
    """A build by the files it reads, before any is read; none where these are not known."""

    model: Path
    key: bytes | None
    state: tuple[int, ...] = ()  # of the file when it was hashed
    cache: Cache = field(default_factory=default_cache)

    @staticmethod
    def of(model: object, target: Target, tuning: object, told: object) -> BuiltBefore:
        """The build of a model; `told` prints all else that it depends on.

        Whoever asks for dumps or logs gets a whole build.
        """
        path = Path(model) if isinstance(model, str | Path) else Path()
        try:
            if not path.is_file() or wants_whole_build():
                return BuiltBefore(path, None)
            if (records := records_key(tuning, path, hash_whole)) is None:
                return BuiltBefore(path, None)
            state = _state(path)
            digest = hash_whole(path)
        except OSError:
            return BuiltBefore(path, None)  # reading the model will say what is wrong
        parts = (compiler_version(), describe_target(target), records, repr(told), digest)
        return BuiltBefore(
            path, hashlib.sha256("\n".join(("files", *parts)).encode()).digest(), state
        )

    def artifact(self) -> ArtifactCache:
        """The artefact that the same files became, if they are what they were."""
        nothing = ArtifactCache(None, self.cache)
        stored = None if self.key is None else self.cache.get(self.key)
        if stored is None:
            return nothing
        found = json.loads(stored)
        try:
            same = all(hash_whole(self.model.parent / n) == h for n, h in found["files"].items())
        except OSError:
            return nothing
        return ArtifactCache(bytes.fromhex(found["artifact"]), self.cache) if same else nothing

    def keep(self, artifact: ArtifactCache, others: Callable[[], Iterable[Path]]) -> None:
        """Store which artefact it was; `others` are the files that the model reads, too."""
        if self.key is None or artifact.key is None:
            return
        try:
            files = {os.path.relpath(f, self.model.parent): hash_whole(f) for f in others()}
            if _state(self.model) != self.state:
                return  # another file is there by now
        except OSError:
            return
        stored = {"artifact": artifact.key.hex(), "files": files}
        self.cache.put(self.key, json.dumps(stored).encode())


def wants_whole_build() -> bool:
    """Whether somebody wants to see what a build does on its way."""
    return bool(dump_dir() or log_topics())


def describe_target(target: Target) -> str:
    """All of a target, the same in each process."""
    return f"{replace(target, features=frozenset())} {sorted(target.features)}"


def hash_whole(path: Path) -> str:
    """A hash of all bytes of a file, by all cores.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file, ThreadPoolExecutor() as pool:  # hashing holds no lock of Python
        size = os.fstat(file.fileno()).st_size
        parts = pool.map(lambda start: _digest(file.fileno(), start), range(0, size, _PART))
        return hashlib.sha256(b"".join(parts)).hexdigest()


def _digest(descriptor: int, start: int) -> bytes:
    return hashlib.sha256(os.pread(descriptor, _PART, start)).digest()


def _state(path: Path) -> tuple[int, ...]:
    """What changes when a file does."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
