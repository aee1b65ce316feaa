"""Loading: what is refused, and why; saving; damage of every kind."""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlc.runtime
from dlc.core import xxh64
from dlc.core.cpus import IMPLIES
from dlc.core.errors import ArtifactError, UserError
from dlc.core.manifest import FOOTER, TensorSpec, seal
from dlc.core.types import DType
from dlc.runtime.module import load_as, load_bytes
from tests.runtime.affine import AFFINE, build, compile_model

X = np.ones((2, 3), np.float32)
B = np.zeros(3, np.float32)


def rehashed(data: bytes, path: Path) -> bytes:
    """The same bytes with a hash that fits."""
    path.write_bytes(data[:-8])
    return data[:-8] + struct.pack("<Q", dlc.runtime.hash_file(path))


def test_the_hash_of_a_file_is_the_same_in_both_languages(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for size in (0, 3, 31, 32, 100, 5000):
        path.write_bytes(random.Random(size).randbytes(size))
        assert dlc.runtime.hash_file(path) == xxh64.hash_file(path)


def test_threads_share_a_large_file_by_its_mebibytes(tmp_path: Path) -> None:
    size = xxh64.PIECE_BYTES
    whole, part = tmp_path / "whole", tmp_path / "part"
    digests = b""
    with whole.open("wb") as out:
        for number in range(70):
            piece = random.Random(number).randbytes(size if number < 69 else 1001)
            part.write_bytes(piece)
            digests += dlc.runtime.hash_file(part).to_bytes(8, "little")
            out.write(piece)
    assert dlc.runtime.hash_file(whole) == xxh64.xxh64(digests)
    small = part.read_bytes() * (size // 1000)
    part.write_bytes(small)
    assert dlc.runtime.hash_file(part) == xxh64.hash_file(part)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"abi_version": 999}, "for ABI 999; this runtime"),
        ({"architecture": "riscv64"}, "built for riscv64; this machine is"),
        ({"cpu_features": ("no-such-feature",)}, "this CPU lacks no-such-feature; build"),
        ({"outputs": AFFINE.outputs[:1]}, "code and its manifest contradict"),
        ({"inputs": (*AFFINE.inputs, AFFINE.inputs[0])}, "two tensors named 'x'"),
        ({"sizes": (*AFFINE.sizes, *AFFINE.sizes)}, "no input has size"),
    ],
)
def test_artefacts_for_elsewhere(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = build(tmp_path / "model.so", 2, **changes)
    with pytest.raises(ArtifactError, match=reason) as caught:
        dlc.runtime.load(path)
    assert caught.value.fields["path"] == str(path)


def test_an_artefact_for_elsewhere_is_whole(tmp_path: Path) -> None:
    path = build(tmp_path / "model.so", 2, architecture="riscv64", abi_version=999)
    dlc.runtime.check_file(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="does not have the hash it was built with"):
        dlc.runtime.check_file(path)


@pytest.mark.parametrize("arch", sorted(IMPLIES))
def test_the_runtime_knows_every_feature_a_target_has(arch: str) -> None:
    source = Path(__file__).parents[2] / "dlc/runtime/cpp/src/cpu_features.cc"
    text = source.read_text()
    for feature in IMPLIES[arch]:
        assert f'{{"{feature}", ' in text


def test_files_that_are_no_artefacts(tmp_path: Path, artifact: Path) -> None:
    plain = tmp_path / "plain.so"
    compile_model(plain)
    with pytest.raises(ArtifactError, match="trailer is missing"):
        dlc.runtime.load(plain)
    with pytest.raises(ArtifactError, match="No such file"):
        dlc.runtime.load(tmp_path / "nothing.so")
    with pytest.raises(ArtifactError, match="not a regular file"):
        dlc.runtime.load(tmp_path)
    for take in (dlc.runtime.load, dlc.runtime.check_file, dlc.runtime.hash_file):
        with pytest.raises(ArtifactError, match="NUL"):
            take(f"{artifact}\0.so")  # type: ignore[operator]
    stripped = tmp_path / "stripped.so"
    stripped.write_bytes(artifact.read_bytes())
    subprocess.run(["strip", stripped], check=True)
    with pytest.raises(ArtifactError, match="stripped"):
        dlc.runtime.load(stripped)


def test_a_library_without_the_symbol(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    source = tmp_path / "empty.c"
    source.write_text("int nothing;")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", path], check=True)
    seal(path, AFFINE)
    with pytest.raises(ArtifactError, match="does not export dlc_model_query"):
        dlc.runtime.load(path)


def test_a_library_the_linker_refuses(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    source = tmp_path / "needy.c"
    source.write_text("int no_such_function(void); int call(void) { return no_such_function(); }")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", path], check=True)
    seal(path, AFFINE)
    with pytest.raises(ArtifactError, match="no_such_function"):
        dlc.runtime.load(path)


# Offsets in the header of a 64-bit ELF file, and what is wrong then.
@pytest.mark.parametrize(
    ("offset", "layout", "value", "reason"),
    [
        (0, "<B", 0, "no 64-bit shared object"),
        (4, "<B", 1, "no 64-bit shared object"),
        (16, "<H", 2, "no 64-bit shared object"),
        (18, "<H", 243, "its code is for another architecture, and this machine is"),
        (32, "<Q", 1 << 60, "program headers are outside"),
        (54, "<H", 8, "program headers are outside"),
        (56, "<H", 65535, "program headers are outside"),
        (64 + 8, "<Q", 1 << 62, "a segment is outside"),
        (64 + 32, "<Q", 1 << 62, "a segment is outside"),
    ],
)
def test_elf_headers_that_lie(
    tmp_path: Path, artifact: Path, offset: int, layout: str, value: int, reason: str
) -> None:
    data = bytearray(artifact.read_bytes())
    struct.pack_into(layout, data, offset, value)
    with pytest.raises(ArtifactError, match=reason):
        load_bytes(rehashed(bytes(data), tmp_path / "model"))


@pytest.mark.parametrize("value", [0, 1, (1 << 64) - 1])
@pytest.mark.parametrize("offset", [0, 8, 12, 16, 24, 32])
def test_every_field_of_the_footer_is_checked(
    tmp_path: Path, artifact: Path, offset: int, value: int
) -> None:
    data = bytearray(artifact.read_bytes())
    layout = "<I" if offset in (8, 12) else "<Q"
    at = len(data) - FOOTER.size + offset
    if struct.unpack_from(layout, data, at)[0] == value & (2 ** (8 * struct.calcsize(layout)) - 1):
        value = 7  # the value it has already
    struct.pack_into(layout, data, at, value & (2 ** (8 * struct.calcsize(layout)) - 1))
    with pytest.raises(ArtifactError):
        load_bytes(rehashed(bytes(data), tmp_path / "model"))


def damage(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one thing wrong: cut, lengthened, flipped, overwritten or spliced."""
    at = rng.randrange(len(data))
    match rng.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data[at + 1 :]
        case 2:
            return data + rng.randbytes(rng.randrange(1, 100))
        case 3:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 4:
            block = rng.randbytes(rng.randrange(1, 64))
            return data[:at] + block + data[at + len(block) :]
        case _:
            other = rng.randrange(len(data))
            return data[:at] + data[other:]


def test_ten_thousand_damaged_artefacts_are_refused(artifact: Path) -> None:
    data = artifact.read_bytes()
    rng = random.Random(20)
    accepted = []
    for case in range(10_000):
        damaged = damage(data, rng)
        try:
            load_bytes(damaged)
        except ArtifactError:
            continue
        if damaged != data:
            accepted.append(case)
    assert accepted == []


def test_damage_the_hash_does_not_show(tmp_path: Path, artifact: Path) -> None:
    """A damaged manifest with a fitting hash is refused, or it loads and runs or refuses to."""
    data = artifact.read_bytes()
    (_, _, _, offset, size, _, _) = FOOTER.unpack(data[-FOOTER.size :])
    rng = random.Random(21)
    refused = 0
    for _ in range(1_500):
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(offset, offset + size)] = rng.randrange(256)
        try:
            load_bytes(rehashed(bytes(damaged), tmp_path / "model"))
        except ArtifactError:
            refused += 1
    assert refused > 500


def test_fast_verification_leaves_out_the_hash_alone(tmp_path: Path, artifact: Path) -> None:
    data = bytearray(artifact.read_bytes())
    data[-1] ^= 1  # the hash itself
    path = tmp_path / "model.so"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="does not have the hash"):
        dlc.runtime.load(path)
    model = dlc.runtime.load(path, verify="fast")
    np.testing.assert_array_equal(model(X, B).y, 2 * X)
    shorter = tmp_path / "shorter.so"
    shorter.write_bytes(data[:-100])
    with pytest.raises(ArtifactError):
        dlc.runtime.load(shorter, verify="fast")


def test_saving_gives_the_same_bytes(tmp_path: Path, artifact: Path) -> None:
    model = dlc.runtime.load(artifact)
    target = tmp_path / "copy.so"
    target.write_bytes(b"something old")
    model.save(target)
    assert target.read_bytes() == artifact.read_bytes()
    assert list(tmp_path.iterdir()) == [target]
    np.testing.assert_array_equal(dlc.runtime.load(target)(X, B).y, 2 * X)


def test_where_nothing_can_be_saved(tmp_path: Path, artifact: Path) -> None:
    model = dlc.runtime.load(artifact)
    with pytest.raises(UserError, match=r"absent/m\.so: there is no folder"):
        model.save(tmp_path / "absent" / "m.so")
    with pytest.raises(UserError, match="it is a folder"):
        model.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_replaced_after_loading(tmp_path: Path) -> None:
    """Each module keeps the code and the bytes it was loaded with."""
    path = build(tmp_path / "model.so", 2)
    twice = dlc.runtime.load(path)
    build(tmp_path / "other.so", 3).replace(path)
    thrice = dlc.runtime.load(path)
    assert twice(X, B).y[0, 0] == 2
    assert thrice(X, B).y[0, 0] == 3
    assert load_bytes(twice.to_bytes())(X, B).y[0, 0] == 2


def test_loading_and_closing_leaves_nothing_open(artifact: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd")) + Path("/proc/self/maps").read_text().count(".so")

    dlc.runtime.load(artifact).close()
    before = opened()
    for _ in range(200):
        with dlc.runtime.load(artifact) as model:
            model(X, B)
    assert opened() == before


def test_constants_of_the_code_are_there_from_the_start(tmp_path: Path) -> None:
    """Loads under a mask that take no lane would never bring them in."""
    table = tmp_path / "table.c"
    table.write_text("const char table[1 << 20] = {1};")
    path = build(tmp_path / "model.so", 2, str(table))
    with dlc.runtime.load(path):
        found = Path("/proc/self/smaps").read_text().split(str(path))[1:]
    sizes = [re.findall(r"^(?:Size|Rss): +(\d+) kB", text, re.M)[:2] for text in found]
    assert max(int(size) for size, _ in sizes) >= 1024
    assert all(size == there for size, there in sizes)


@pytest.mark.parametrize("raw", [b"model.so", b"m\xf6del.so"])
def test_the_fault_of_a_damaged_file_stands_behind_one_name(tmp_path: Path, raw: bytes) -> None:
    path = os.fsencode(tmp_path) + b"/" + raw
    Path(os.fsdecode(path)).write_bytes(b"\x7fELF")
    with pytest.raises(ArtifactError) as caught:
        load_as("the compiled model", path)
    reason = str(caught.value.fields["reason"])
    assert reason.startswith("not a compiled model")
    assert str(caught.value) == f"the compiled model: {reason}"
    for call in (dlc.runtime.load, dlc.runtime.check_file):
        with pytest.raises(ArtifactError) as caught:
            call(path)  # type: ignore[operator]
        assert caught.value.fields == {"path": os.fsdecode(path), "reason": reason}


@pytest.mark.parametrize("encode", [str, os.fsencode, Path])
def test_paths_of_every_kind(
    tmp_path: Path, artifact: Path, encode: Callable[[Path], str | bytes | Path]
) -> None:
    path = tmp_path / "mödel with spaces.so"
    path.write_bytes(artifact.read_bytes())
    assert dlc.runtime.load(encode(path)).inputs[0].name == "x"  # type: ignore[arg-type]


def test_what_is_no_path_is_not_printed(artifact: Path) -> None:
    with pytest.raises(dlc.UserError, match=r"got the bytes of one$"):
        dlc.runtime.load(artifact.read_bytes())  # type: ignore[arg-type]


def test_verification_has_two_words(artifact: Path) -> None:
    with pytest.raises(dlc.UserError, match=r"verify='none'\n.*full, fast"):
        dlc.runtime.load(artifact, verify="none")  # type: ignore[arg-type]


def test_expressions_in_outputs_are_shown(tmp_path: Path) -> None:
    outputs = (TensorSpec("y", DType.F32, ("batch * 1", 3)), AFFINE.outputs[1])
    model = dlc.runtime.load(build(tmp_path / "model.so", 2, outputs=outputs))
    assert model.outputs[0].shape == ("batch * 1", 3)
    assert model(X, B).y.shape == (2, 3)


def test_a_model_that_is_not_compiled_is_no_damaged_artefact(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(ArtifactError):
        dlc.runtime.load(path)
    path.write_bytes(b"\x08\x0a" * 99)
    with pytest.raises(UserError, match=r"net\.onnx is not compiled") as caught:
        dlc.runtime.load(path)
    assert "dlc.compile" in caught.value.hint
    path.write_bytes(b"\x7fELF" * 99)
    with pytest.raises(ArtifactError):
        dlc.runtime.load(path)
