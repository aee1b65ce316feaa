"""External data: read where it may lie, and refused elsewhere."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from dlc.core.errors import ModelError
from dlc.frontend.onnx.load import load_model
from tests.frontend.f32_model import refusal, with_constant


def external(location: str, *, shape=(2,), **keys) -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **keys}.items():
        tensor.external_data.add(key=key, value=str(value))
    return with_constant(tensor)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with weights, and a secret beside it."""
    (tmp_path / "secret").write_bytes(struct.pack("<4f", 6, 6, 6, 6))
    inside = tmp_path / "models"
    (inside / "sub").mkdir(parents=True)
    (inside / "w.bin").write_bytes(struct.pack("<4f", 1, 2, 3, 4))
    (inside / "sub" / "w.bin").write_bytes(struct.pack("<4f", 5, 6, 7, 8))
    return inside


def read(folder: Path, proto: onnx.ModelProto, **options):
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return load_model(path, **options).graph.constants["w"]


def test_external_data_is_read_where_it_lies(folder):
    np.testing.assert_array_equal(read(folder, external("w.bin")), [1, 2])
    np.testing.assert_array_equal(read(folder, external("w.bin", offset=8, length=8)), [3, 4])
    np.testing.assert_array_equal(read(folder, external("./sub/w.bin", offset=4)), [6, 7])
    np.testing.assert_array_equal(read(folder, external("w.bin", shape=(0,), offset=16)), [])


def test_external_data_may_lie_in_a_folder_that_is_named(folder):
    data = external("w.bin").SerializeToString()
    found = load_model(data, external_data_dir=folder / "sub").graph.constants["w"]
    np.testing.assert_array_equal(found, [5, 6])


def test_a_model_given_as_bytes_reads_nothing(folder, monkeypatch):
    monkeypatch.chdir(folder)
    hint = "was not given as a path; give the path of its file"
    assert hint in refusal(external("w.bin").SerializeToString())
    assert hint in refusal(external("w.bin"))


@pytest.mark.parametrize(
    "location",
    [
        "", "../secret", "sub/../../secret", "sub/../w.bin", "..", ".", "/etc/passwd", "a//b",
        "w.bin/", "C:\\secret", "C:secret", "sub\\w.bin", "w.bin\0x", "~/x/../../secret",
    ],
)  # fmt: skip
def test_a_location_that_leads_out_is_refused(folder, location):
    with pytest.raises(ModelError, match="external data"):
        read(folder, external(location))


@pytest.mark.parametrize(
    "keys",
    [
        {"offset": 9},
        {"offset": 1 << 62},
        {"offset": -8},
        {"offset": "1e3"},
        {"offset": "٣"},
        {"length": 4},
        {"length": 16},
        {"length": -1},
        {"offset": 12, "length": 8},
        {"__class__": "x"},
    ],
)
def test_bytes_that_do_not_lie_inside_the_file_are_refused(folder, keys):
    with pytest.raises(ModelError, match="external data"):
        read(folder, external("w.bin", **keys))


def test_a_symbolic_link_is_not_followed(folder):
    (folder / "link").symlink_to(folder.parent / "secret")
    (folder / "inside").symlink_to(folder / "w.bin")
    (folder / "parent").symlink_to(folder.parent, target_is_directory=True)
    for location in ("link", "inside", "parent/secret"):
        with pytest.raises(ModelError, match="symbolic link, which is not followed"):
            read(folder, external(location))


def test_only_regular_files_are_read(folder):
    os.mkfifo(folder / "pipe")
    for location in ("pipe", "sub"):
        with pytest.raises(ModelError, match="no regular file"):
            read(folder, external(location))
    with pytest.raises(ModelError, match="no such file"):
        read(folder, external("absent"))


def hugging_face(root: Path, target: str) -> Path:
    """A cache with a model whose weights link to `target`; gives the model's path."""
    repository = root / "models--org--name"
    snapshot = repository / "snapshots" / "abc" / "onnx"
    blobs = repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "m").write_bytes(external("w.bin").SerializeToString())
    (blobs / "w").write_bytes(struct.pack("<2f", 8, 9))
    (snapshot / "m.onnx").symlink_to(Path("../../../blobs/m"))
    (snapshot / "w.bin").symlink_to(Path("../../..") / target)
    return snapshot / "m.onnx"


def test_the_hugging_face_cache_is_read(tmp_path):
    found = load_model(hugging_face(tmp_path, "blobs/w")).graph.constants["w"]
    np.testing.assert_array_equal(found, [8, 9])


def test_the_hugging_face_cache_is_no_way_out(tmp_path):
    (tmp_path / "secret").write_bytes(struct.pack("<2f", 6, 6))
    path = hugging_face(tmp_path, "../secret")
    with pytest.raises(ModelError, match="symbolic link, which is not followed"):
        load_model(path)
