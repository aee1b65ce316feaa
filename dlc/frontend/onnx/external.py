"""Weights outside the model file, read so that a hostile model reaches nothing else.

The location is walked one folder at a time from the model's folder, each opened relative to the
one before and without following links, so neither `..` nor a symbolic link leads out, and nothing
can be swapped between a check and an open. The one exception is the Hugging Face cache, where the
model and its weights are links into one `blobs` folder.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dlc.graph.op import Array

_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not block


class ExternalDataError(Exception):
    """External data that is refused; the caller adds the model and the tensor."""


class ExternalData:
    """The files that lie beside one model; each is mapped into memory once."""

    def __init__(self, folder: Path | None, model: Path | None = None) -> None:
        """`folder` is where locations start; None refuses all (a model given as bytes)."""
        self._folder = folder
        self._blobs = _blobs_folder(model) if model is not None else None
        self._files: dict[str, mmap.mmap | bytes] = {}

    def read(self, keys: Mapping[str, str], size_bytes: int) -> Array:
        """`size_bytes` bytes as the keys of a tensor say.

        Raises:
            ExternalDataError: the location leads out of the folder or is no regular file;
                the bytes do not lie inside the file, or are not as many as the tensor needs.
        """
        if unknown := set(keys) - _KEYS:
            raise ExternalDataError(f"unknown key '{min(unknown)}'")
        offset = _number(keys, "offset", 0)
        length = _number(keys, "length", size_bytes)
        if length != size_bytes:
            raise ExternalDataError(f"{length} bytes are stored, its shape needs {size_bytes}")
        data = self._file(keys.get("location", ""))
        if offset + length > len(data):
            raise ExternalDataError(
                f"bytes {offset} to {offset + length} lie outside '{keys['location']}' "
                f"of {len(data)} bytes"
            )
        return np.frombuffer(data, np.uint8, count=length, offset=offset)

    def _file(self, location: str) -> mmap.mmap | bytes:
        if location not in self._files:
            descriptor = self._open(location)
            try:
                info = os.fstat(descriptor)
                if not stat.S_ISREG(info.st_mode):
                    raise ExternalDataError(f"'{location}' is no regular file")
                if info.st_nlink > 1 and info.st_uid not in (os.getuid(), 0):
                    raise ExternalDataError(f"'{location}' is a hard link to another user's file")
                self._files[location] = (
                    mmap.mmap(descriptor, info.st_size, access=mmap.ACCESS_READ)
                    if info.st_size
                    else b""  # an empty file cannot be mapped
                )
            finally:
                os.close(descriptor)
        return self._files[location]

    def _open(self, location: str) -> int:
        parts = _parts(location)
        if self._folder is None:
            raise ExternalDataError(
                f"'{location}' lies outside a model that was not given as a path; "
                "give the path of its file"
            )
        here = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                below = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
            if blob := self._blob(parts):
                return os.open(blob, _FILE)
            return os.open(parts[-1], _FILE, dir_fd=here)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            if error.errno in _LINK_ERRORS:
                reason = "on its way is a symbolic link, which is not followed; put the file there"
            raise ExternalDataError(f"cannot open '{location}': {reason}") from error
        finally:
            os.close(here)

    def _blob(self, parts: list[str]) -> Path | None:
        """The target of a link into the blobs folder of the repository the model came from."""
        if self._blobs is None or self._folder is None:
            return None
        path = self._folder.joinpath(*parts)
        if not path.is_symlink():
            return None
        target = path.resolve()
        return target if target.parent == self._blobs else None


_LINK_ERRORS = frozenset({40, 20})  # ELOOP: the file is a link; ENOTDIR: a folder on the way is


def _parts(location: str) -> list[str]:
    """The path components of a location.

    Raises:
        ExternalDataError: it is empty, absolute, has `..` or a character paths of no system have.
    """
    if not location:
        raise ExternalDataError("there is no location")
    if "\0" in location or "\\" in location or ":" in location:
        raise ExternalDataError(f"location {location!r} is not a plain relative path")
    parts = [part for part in location.split("/") if part != "."]
    if location.startswith("/") or ".." in parts or "" in parts or not parts:
        raise ExternalDataError(f"location '{location}' leads out of the model's folder")
    return parts


def _blobs_folder(model: Path) -> Path | None:
    """`.../models--x/blobs` if the model is a link to a file in it from `.../models--x/snapshots`.

    Source: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
    """
    if not model.is_symlink():
        return None
    blobs = model.resolve().parent
    inside = blobs.name == "blobs" and (blobs.parent / "snapshots") in model.absolute().parents
    return blobs if inside else None


def _number(keys: Mapping[str, str], key: str, default: int) -> int:
    text = keys.get(key, str(default))
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise ExternalDataError(f"{key} {text!r} is not a number of bytes")
    return int(text)
