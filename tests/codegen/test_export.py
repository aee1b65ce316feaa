"""The artefact: symbols, sections, weights, determinism, and what cannot be written."""

from __future__ import annotations

import errno
import io
import os
import shutil
import struct
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dlc.codegen import export
from dlc.codegen.elf import fill_reservation, read_dynamic_symbols, write_reservation
from dlc.codegen.export import export_library, write_weights
from dlc.codegen.llvm.compile import compile_ir
from dlc.codegen.llvm.host import emit_program
from dlc.codegen.llvm.toolchain import find_driver
from dlc.codegen.weight_offsets import weight_offsets
from dlc.core.errors import CodegenError, InternalError, TargetError, UserError
from dlc.core.manifest import Manifest, read_manifest
from dlc.core.target_parse import parse_target
from dlc.core.types import DType
from dlc.schedule.program import CallKernel, Copy
from dlc.te.expr import index
from tests.codegen.model_driver import Loaded, buffer, build, compile_text, kernel, program

NATIVE = parse_target("native")
MARK = """
define void @mark(ptr %host, i64 %position, ptr %numbers) {
  %at = getelementptr i64, ptr %numbers, i64 %position
  store i64 %position, ptr %at
  ret void
}
"""
CALLS_LIBM = """
declare float @expf(float)
define void @mark(ptr %host, i64 %position, ptr %numbers) {
  %x = call float @expf(float 1.0)
  store float %x, ptr %numbers
  ret void
}
"""
DATA = """
@table = global i64 3
define void @mark(ptr %host, i64 %position, ptr %numbers) {
  store ptr @table, ptr %numbers
  ret void
}
"""
COPY_WEIGHTS = program(
    [Copy("y", "w"), CallKernel("mark", (index(1),), ("z",))],
    outputs=[buffer("y", 3), buffer("z", 2, dtype=DType.I64)],
    constants=[buffer("b", 5, dtype=DType.BF16), buffer("w", 3)],
    kernels=[kernel("mark", ["p"], 0)],
)
WEIGHTS = {"b": np.ones(5, ml_dtypes.bfloat16), "w": np.array([1, 2, 3], np.float32)}


def readelf(path: Path, *flags: str) -> str:
    command = ["readelf", "--wide", *flags, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "m.so"
    return build(path, COPY_WEIGHTS, [MARK], WEIGHTS)


def test_one_symbol_is_exported_and_only_libc_is_needed(library):
    symbols = read_dynamic_symbols(library)
    assert symbols.defined == {"dlc_model_query"}
    assert symbols.undefined <= {"memcpy", "memmove", "memset", "snprintf"}
    listing = readelf(library, "--dyn-syms")
    rows = [line.split() for line in listing.splitlines() if " GLOBAL " in line]
    assert [row[-1] for row in rows if row[6] != "UND"] == ["dlc_model_query"]
    assert "NEEDED" not in readelf(library, "-d")
    assert "SONAME" not in readelf(library, "-d")


def test_the_library_is_hardened(library):
    segments = readelf(library, "-l")
    stack = next(line for line in segments.splitlines() if "GNU_STACK" in line)
    assert stack.split()[-2] == "RW"
    assert "GNU_RELRO" in segments
    assert "NOW" in readelf(library, "-d")
    assert "TEXTREL" not in readelf(library, "-d")


def test_weights_are_a_page_aligned_read_only_section(library):
    line = next(row for row in readelf(library, "-S").splitlines() if ".dlc.weights" in row)
    fields = line.split("]")[1].split()
    assert int(fields[2], 16) % 4096 == 0
    assert fields[6] == "A"
    assert int(fields[-1]) >= 4096


def test_an_object_that_reserves_memory_is_well_formed(tmp_path):
    path = tmp_path / "data.o"
    write_reservation(path, "x86_64", "data", 4096, 13)
    data = path.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    assert table % 8 == 0  # what lld insists on
    assert len(data) < 1024
    (row,) = (line.split() for line in readelf(path, "--syms").splitlines() if "data" in line)
    assert row[2:6] == ["13", "OBJECT", "GLOBAL", "HIDDEN"]
    assert "dlc" in readelf(path, "--notes")


@pytest.mark.parametrize("linker", ["bfd", "gold", "lld"])
def test_any_linker_leaves_a_place_for_weights(linker, tmp_path, monkeypatch):
    if not shutil.which(f"ld.{linker}"):
        pytest.skip(f"there is no ld.{linker}")
    driver = (*find_driver(NATIVE), f"-fuse-ld={linker}")
    monkeypatch.setattr(export, "find_driver", lambda target: driver)
    path = build(tmp_path / "m.so", COPY_WEIGHTS, [MARK], WEIGHTS)
    y, z = np.zeros(3, np.float32), np.zeros(2, np.int64)
    Loaded(path).run([], [], [y, z])
    np.testing.assert_array_equal(y, [1, 2, 3])
    loads = [row.split() for row in readelf(path, "-l").splitlines() if row.split()[:1] == ["LOAD"]]
    places = [int(row[2], 16) for row in loads]
    assert places == sorted(places)
    own = [row for row in loads if int(row[5], 16) == 64 * 2]  # both constants, and nothing else
    assert [(row[4], row[6]) for row in own] == [("0x000080", "R")]


def test_a_disk_that_the_linker_fills_is_no_fault_of_its_input(tmp_path, monkeypatch):
    complaint = "echo 'ld: Endgueltiges Binden fehlgeschlagen' >&2; exit 1"
    monkeypatch.setattr(export, "find_driver", lambda target: ("sh", "-c", complaint))
    with pytest.raises(CodegenError, match="Binden fehlgeschlagen"):
        build(tmp_path / "m.so", program([]))

    def fill(descriptor, start, size):
        assert size > 500  # the objects
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fill)
    with pytest.raises(UserError, match=r"cannot write .*m\.so: no space left"):
        build(tmp_path / "m.so", program([]))


def test_weights_need_memory_that_nothing_follows(tmp_path):
    path = build(tmp_path / "m.so", COPY_WEIGHTS, [MARK], WEIGHTS)
    with pytest.raises(CodegenError, match="there is no note"):  # it has become the weights' own
        fill_reservation(path, lambda file: file.write(bytes(128)))
    plain = build(tmp_path / "n.so", program([]))
    with pytest.raises(CodegenError, match="the section is not there"):
        fill_reservation(plain, lambda file: None)


def test_code_reaches_weights_beyond_two_gibibytes(tmp_path):
    """The element beyond is found by its offset; no page between is ever touched."""
    far = program(
        [Copy("y", "w")],
        outputs=[buffer("y", 3)],
        constants=[buffer("huge", 2**31 // 4 + 16), buffer("w", 3)],
    )
    objects = [compile_ir(emit_program(far, NATIVE), NATIVE)]
    offsets, size = weight_offsets(far.constants)
    assert offsets["w"] > 2**31

    def write(file):  # a hole in the file where zeros are
        file.seek(offsets["w"], os.SEEK_CUR)
        file.write(WEIGHTS["w"].tobytes() + bytes(size - offsets["w"] - 12))

    path = export.link(far, size, objects, tmp_path, NATIVE)
    fill_reservation(path, write)
    y = np.zeros(3, np.float32)
    Loaded(path).run([], [], [y])
    np.testing.assert_array_equal(y, [1, 2, 3])


def test_weights_arrive(library):
    y, z = np.zeros(3, np.float32), np.zeros(2, np.int64)
    Loaded(library).run([], [], [y, z])
    np.testing.assert_array_equal(y, [1, 2, 3])
    assert z[1] == 1


def test_the_manifest_is_appended(library):
    assert read_manifest(library).dlc_version == "test"


def test_equal_inputs_give_equal_bytes(library, tmp_path):
    again = build(tmp_path / "other_name.so", COPY_WEIGHTS, [MARK, MARK], WEIGHTS)
    assert again.read_bytes() == library.read_bytes()


def test_an_artefact_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "m.so"
    path.write_bytes(b"old")
    with pytest.raises(CodegenError):
        build(path, COPY_WEIGHTS, [], WEIGHTS)
    assert path.read_bytes() == b"old"
    build(path, COPY_WEIGHTS, [MARK], WEIGHTS)
    assert read_manifest(path).dlc_version == "test"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_kernel_is_named(tmp_path):
    with pytest.raises(CodegenError, match="mark"):
        build(tmp_path / "m.so", COPY_WEIGHTS, [], WEIGHTS)


def test_a_call_of_libm_is_refused(tmp_path):
    with pytest.raises(CodegenError, match="no object defines expf"):
        build(tmp_path / "m.so", COPY_WEIGHTS, [CALLS_LIBM], WEIGHTS)


def test_two_kernels_of_one_name_are_refused(tmp_path):
    with pytest.raises(CodegenError, match="mark"):
        build(tmp_path / "m.so", COPY_WEIGHTS, [MARK, DATA], WEIGHTS)


def test_a_program_without_its_host_part_is_refused(tmp_path):
    manifest = Manifest("test", NATIVE.arch)
    with pytest.raises(CodegenError, match="exported are no symbols"):
        export_library(program([]), {}, [], manifest, tmp_path / "m.so", NATIVE)


def test_an_object_cannot_make_the_stack_executable(tmp_path):
    source, plain = tmp_path / "plain.s", tmp_path / "plain.o"
    source.write_text(".text\nnop\n")  # says nothing about the stack, which counts as a yes
    subprocess.run([*find_driver(NATIVE), "-c", str(source), "-o", str(plain)], check=True)
    objects = [compile_text(emit_program(program([]), NATIVE), NATIVE), plain.read_bytes()]
    path = tmp_path / "m.so"
    export_library(program([]), {}, objects, Manifest("test", NATIVE.arch), path, NATIVE)
    stack = next(line for line in readelf(path, "-l").splitlines() if "GNU_STACK" in line)
    assert stack.split()[-2] == "RW"


def test_symbols_of_kernels_stay_inside(tmp_path):
    path = build(tmp_path / "m.so", COPY_WEIGHTS, [DATA], WEIGHTS)
    assert read_dynamic_symbols(path).defined == {"dlc_model_query"}


def test_a_folder_that_is_not_there_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        build(tmp_path / "nowhere" / "m.so", program([]))
    with pytest.raises(UserError, match="is a folder"):
        build(tmp_path, program([]))


@pytest.mark.parametrize(
    "array",
    [np.zeros(4, np.float32), np.zeros((3, 1), np.float32), np.zeros(3, np.float64)],
)
def test_a_constant_of_another_type_is_refused(array):
    with pytest.raises(InternalError, match="constant 'w'"):
        write_weights((buffer("w", 3),), {"w": array}, io.BytesIO())


def test_weights_of_any_layout_and_byte_order_are_written():
    transposed = np.arange(6, dtype=np.float32).reshape(3, 2).T
    scalar, empty = np.array(7, ">i4"), np.zeros((0, 2), np.float32)
    flags = np.array([True, False])
    buffers = (
        buffer("t", 2, 3),
        buffer("s", dtype=DType.I32),
        buffer("e", 0, 2),
        buffer("f", 2, dtype=DType.BOOL),
    )
    data = {"t": transposed, "s": scalar, "e": empty, "f": flags}
    file = io.BytesIO()
    assert write_weights(buffers, data, file) == 192
    found = file.getvalue()
    assert found[:24] == transposed.tobytes()
    assert found[64:68] == b"\x07\0\0\0"
    assert found[128:130] == b"\1\0"
    assert len(found) == 192


def test_a_missing_compiler_is_a_target_error(monkeypatch):
    found = {"gcc": "/bin/gcc"}
    monkeypatch.setattr(shutil, "which", found.get)
    assert find_driver(NATIVE) == ("/bin/gcc",)
    foreign = "aarch64" if NATIVE.arch == "x86_64" else "x86_64"
    other = parse_target(f"llvm -mtriple={foreign}-linux-gnu")
    with pytest.raises(TargetError, match=f"{foreign}-linux-gnu-gcc") as caught:
        find_driver(other)
    assert "install" in caught.value.hint
    found |= {"clang": "/bin/clang", "ld.lld": "/bin/ld.lld"}
    expected = ("/bin/clang", f"--target={foreign}-linux-gnu", "-fuse-ld=lld")
    assert find_driver(other) == expected
    found.clear()
    with pytest.raises(TargetError, match="no cc, gcc or clang"):
        find_driver(NATIVE)
