"""The manifest and its container, as Python writes and reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlc.core import xxh64
from dlc.core.errors import ArtifactError, InternalError
from dlc.core.manifest import (
    FOOTER,
    Manifest,
    SizeSpec,
    TensorSpec,
    decode_manifest,
    encode_manifest,
    read_manifest,
    seal,
)
from dlc.core.types import DType

EXAMPLE = Manifest(
    dlc_version="0.1.0",
    architecture="aarch64",
    cpu_features=("neon", "dotprod"),
    sizes=(SizeSpec("batch", 1, 32), SizeSpec("seq")),
    inputs=(TensorSpec("x", DType.F32, ("batch", 3, "seq")), TensorSpec("k", DType.I64, ())),
    outputs=(TensorSpec("y", DType.BF16, ("batch", "(seq + 1) // 2")),),
    metadata={"graph": "ünïcode", "options": [1, 2]},
)

names = st.text(min_size=1, max_size=8)
dtypes = st.sampled_from([dtype for dtype in DType if dtype is not DType.INDEX])


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    bounds = st.tuples(st.integers(0, 9), st.none() | st.integers(9, 99))
    size_names = draw(st.lists(names, unique=True, max_size=3))
    sizes = tuple(SizeSpec(name, *draw(bounds)) for name in size_names)
    known = [st.sampled_from(size_names)] if size_names else []
    dim = st.one_of(st.integers(0, 2**40), *known)

    def tensors(dims: st.SearchStrategy[int | str]) -> tuple[TensorSpec, ...]:
        shape = st.lists(dims, max_size=4).map(tuple)
        return tuple(draw(st.lists(st.builds(TensorSpec, names, dtypes, shape), max_size=3)))

    return Manifest(
        dlc_version=draw(names),
        architecture=draw(names),
        cpu_features=tuple(draw(st.lists(names, max_size=3))),
        sizes=sizes,
        inputs=tensors(dim),
        outputs=tensors(dim | names.map(lambda name: f"{name} + 1")),
        metadata=draw(st.dictionaries(names, st.integers() | names, max_size=3)),
    )


@pytest.mark.slow
@given(manifests())
def test_what_is_encoded_is_decoded(manifest: Manifest) -> None:
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_equal_manifests_have_equal_bytes() -> None:
    reordered = Manifest(
        **{name: getattr(EXAMPLE, name) for name in Manifest.__slots__ if name != "metadata"},
        metadata=dict(reversed(list(EXAMPLE.metadata.items()))),
    )
    assert encode_manifest(reordered) == encode_manifest(EXAMPLE)


def test_every_truncation_of_a_manifest_is_refused() -> None:
    data = encode_manifest(EXAMPLE)
    for size in range(len(data)):
        with pytest.raises(ArtifactError):
            decode_manifest(data[:size])
    with pytest.raises(ArtifactError):
        decode_manifest(data + b"x")


@given(st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        decode_manifest(data)


def test_an_input_has_no_expressions() -> None:
    bad = Manifest("0.1.0", "x86_64", inputs=(TensorSpec("x", DType.F32, ("seq + 1",)),))
    with pytest.raises(InternalError):
        encode_manifest(bad)


def test_the_trailer_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(b"a shared object")
    seal(path, EXAMPLE)
    assert read_manifest(path) == EXAMPLE
    data = path.read_bytes()
    assert data.startswith(b"a shared object")
    *_, total, digest = FOOTER.unpack(data[-FOOTER.size :])
    assert total == len(data)
    assert digest == xxh64.xxh64(data[:-8])


def test_reading_what_is_no_artefact(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    with pytest.raises(ArtifactError, match="No such file"):
        read_manifest(path)
    with pytest.raises(ArtifactError):
        read_manifest(tmp_path)
    for content in (b"", b"short", bytes(100)):
        path.write_bytes(content)
        with pytest.raises(ArtifactError, match="trailer is missing"):
            read_manifest(path)
    path.write_bytes(b"a shared object")
    seal(path, EXAMPLE)
    whole = path.read_bytes()
    path.write_bytes(whole[1:])
    with pytest.raises(ArtifactError, match="damaged"):
        read_manifest(path)
    version = len(whole) - FOOTER.size + 8
    path.write_bytes(whole[:version] + b"\x01" + whole[version + 1 :])
    with pytest.raises(ArtifactError, match="container version 1"):
        read_manifest(path)


# Source: the test vectors of https://github.com/Cyan4973/xxHash and of python-xxhash, seed 0.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_published_hashes(data: bytes, expected: int) -> None:
    assert xxh64.xxh64(data) == expected
