"""Published weaknesses of ONNX's own tools, each tried on this importer: see docs/testing.md."""

from __future__ import annotations

import ast
import os
import re
import struct
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import dlc
from dlc.core.errors import DlcError
from tests.frontend.f32_model import model, refusal, relu
from tests.frontend.test_external import external as with_external

SOURCES = sorted(Path(dlc.__file__).parent.rglob("*.py"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder for a model, with a file beside it that none may reach."""
    (tmp_path / "secret").write_bytes(struct.pack("<2f", 6, 6))
    inside = tmp_path / "models" / "sub"
    inside.mkdir(parents=True)
    (inside.parent / "w.bin").write_bytes(struct.pack("<2f", 1, 2))
    return inside.parent


def refused(folder: Path, proto: onnx.ModelProto) -> str:
    """Why a model in the folder is refused, which changes no file."""
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    before = {p: p.read_bytes() for p in folder.parent.rglob("*") if p.is_file()}
    message = refusal(path)
    assert {p: p.read_bytes() for p in folder.parent.rglob("*") if p.is_file()} == before
    return message


@pytest.mark.parametrize(
    "location",
    [
        pytest.param("../../../../../../etc/passwd", id="CVE-2022-25882"),
        pytest.param("sub/../../secret", id="CVE-2024-27318"),
    ],
)
def test_a_way_up_is_none(folder, location):
    assert "leads out" in refused(folder, with_external(location))


def test_a_long_message_ends_where_it_ends():
    """CVE-2024-27319: one byte too many of a message of 2,048."""
    for length in (2046, 2047, 2048, 2049, 100_000):
        name = "n" * length
        node = helper.make_node("Relu", ["x"], ["y"], name=name, alpha=1.0)
        with pytest.raises(DlcError) as caught:
            dlc.compile(model([node]))
        assert "alpha" in str(caught.value)


@pytest.mark.thorough
def test_nothing_is_fetched_or_unpacked():
    """CVE-2024-5187, an archive that unpacks into other folders; CVE-2026-28500, `onnx.hub`."""
    found = set[str]()
    for path in SOURCES:
        if path.match("dlc/cli/archive.py"):  # it writes one; reading has other methods
            assert not re.search(r"extract|\.read|namelist", path.read_text())
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    assert "onnx" in found, "the test sees imports"
    assert not found & {
        "onnx.hub",
        "tarfile",
        "zipfile",
        "urllib.request",
        "http.client",
        "requests",
    }


def test_weights_outside_a_model_are_never_written(folder):
    """CVE-2025-51480: a location names a file that is overwritten when the model is saved."""
    refused(folder, with_external("../secret"))
    path = folder / "m.onnx"
    path.write_bytes(with_external("w.bin").SerializeToString())
    before = {p: p.read_bytes() for p in folder.parent.rglob("*") if p.is_file()}
    dlc.compile(path).save(folder / "m.so")
    (folder / "m.so").unlink()
    assert {p: p.read_bytes() for p in folder.parent.rglob("*") if p.is_file()} == before


def test_a_folder_that_is_a_link_is_not_entered(folder):
    """CVE-2026-27489: the last component is no link, but one before it is."""
    (folder / "parent").symlink_to(folder.parent, target_is_directory=True)
    assert "symbolic link" in refused(folder, with_external("parent/secret"))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("__class__", "x", "unknown key"),
        ("length", 1 << 50, "its shape needs 8"),
        ("offset", 1 << 50, "outside"),
    ],
)
def test_keys_of_a_file_set_nothing(folder, key, value, reason):
    """CVE-2026-34445: keys became attributes of an object, and sizes allocations."""
    assert reason in refused(folder, with_external("w.bin", **{key: value}))


def test_a_hard_link_to_a_file_of_others_is_not_read(folder, monkeypatch):
    """CVE-2026-34446. One's own may be: package managers make them."""
    os.link(folder.parent / "secret", folder / "hard")
    proto = with_external("hard")
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    dlc.compile(path)
    real = os.fstat

    def of_another_user(descriptor: int) -> os.stat_result:
        fields = list(real(descriptor))
        fields[4] = os.getuid() + 4321
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", of_another_user)
    assert "hard link" in refused(folder, proto)


def test_a_link_to_a_file_is_not_followed(folder):
    """CVE-2026-34447."""
    (folder / "link").symlink_to(folder.parent / "secret")
    assert "symbolic link" in refused(folder, with_external("link"))


def test_a_model_of_bytes_does_not_read_the_working_directory(folder, monkeypatch):
    """ONNX's evaluator resolves locations against it."""
    monkeypatch.chdir(folder)
    assert "give the path of its file" in refusal(with_external("w.bin").SerializeToString())


@pytest.mark.parametrize(
    ("sizes", "outputs", "attributes"),
    [
        ([2], 2, {"axis": 0}),
        ([-1, 3], 2, {"axis": 0}),
        ([1 << 62, 1 << 62], 2, {"axis": 0}),
        ([2], 1, {"axis": 7}),
        ([2], 1, {"axis": -(1 << 62)}),
        ([], 2, {"axis": 0}),
        (None, 2, {"axis": 0, "num_outputs": 5}),
        (None, 2, {"axis": 0, "num_outputs": 0}),
        (None, 1, {"axis": 0, "num_outputs": -1}),
    ],
)
def test_parts_that_do_not_fit_are_refused(sizes, outputs, attributes):
    """ONNX issues 8255 and 8275: shape inference of Split read beyond its parts."""
    names = [f"y{n}" for n in range(outputs)]
    inputs = ["x"] if sizes is None else ["x", "s"]
    constants = []
    if sizes is not None:
        constants = [helper.make_tensor("s", TensorProto.INT64, [len(sizes)], sizes)]
    split = helper.make_node("Split", inputs, names, **attributes)
    proto = model([split, relu(names[0], "y")], constants=constants, opset=18)
    with pytest.raises(DlcError) as caught:
        dlc.compile(proto)
    assert "Split" in str(caught.value)
