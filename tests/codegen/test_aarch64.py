"""The kernels of test_emit for 64-bit ARM, run under qemu where there is a cross compiler."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlc.codegen.llvm.compile import assembly, compile_ir
from dlc.codegen.llvm.emit import emit_func
from dlc.core.target import Target
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func
from dlc.schedule.text import parse_func
from tests.codegen.jit import array_shape, random_arrays
from tests.codegen.kernels import CASES

ARM = Target(triple="aarch64-unknown-linux-gnu", cpu="generic", features=frozenset({"neon"}))
CC, QEMU = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
SIZES = (0, 5, 37)

# Reads for each run: the kernel's number, sizes and buffers; writes all buffers after the run.
DRIVER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef void (*body_fn)(void *, int64_t, int64_t);
static int inside;
static void parallel(void *self, body_fn body, void *closure, int64_t extent) {
  inside = 1;
  for (int64_t i = 0; i < extent; ++i) body(closure, i, i + 1);
  inside = 0;
}
static void *scratch(void *self, int64_t bytes) {
  static char memory[2][1 << 20] __attribute__((aligned(64)));
  return bytes <= sizeof memory[0] ? memory[inside] : 0;
}
static void fail(void *self, const char *message) { abort(); }
static struct { void *self; void *functions[3]; } host = {0, {parallel, scratch, fail}};
@DECLARATIONS@
int main(void) {
  int64_t head[3];
  while (fread(head, 8, 3, stdin) == 3) {
    int64_t s[4], bytes[8];
    void *b[8];
    if (fread(s, 8, head[1], stdin) != head[1]) return 1;
    if (fread(bytes, 8, head[2], stdin) != head[2]) return 1;
    for (int i = 0; i < head[2]; ++i) {
      b[i] = malloc(bytes[i] + 1);
      if (fread(b[i], 1, bytes[i], stdin) != bytes[i]) return 1;
    }
    switch (head[0]) {
@CALLS@
    }
    for (int i = 0; i < head[2]; ++i) fwrite(b[i], 1, bytes[i], stdout);
  }
  return 0;
}
"""


def build(funcs: list[Func], folder: Path) -> Path:
    """A program that runs any of the functions."""
    objects, declarations, calls = [], [], []
    for number, func in enumerate(funcs):
        path = folder / f"k{number}.o"
        path.write_bytes(compile_ir(emit_func(replace(func, name=f"k{number}"), ARM), ARM))
        objects.append(str(path))
        sizes, buffers = len(func.sizes), len(func.params)
        declarations.append(f"void k{number}();")
        operands = [f"s[{i}]" for i in range(sizes)] + [f"b[{i}]" for i in range(buffers)]
        calls.append(f"    case {number}: k{number}({', '.join(['&host', *operands])}); break;")
    source = folder / "main.c"
    text = DRIVER.replace("@DECLARATIONS@", "\n".join(declarations))
    source.write_text(text.replace("@CALLS@", "\n".join(calls)))
    program = folder / "main"
    assert CC is not None
    flags = ["-static", "-O1", "-w", "-std=gnu11"]
    subprocess.run([CC, *flags, str(source), *objects, "-o", str(program)], check=True)
    return program


@pytest.mark.slow
@pytest.mark.skipif(not (CC and QEMU), reason="no aarch64 cross compiler or no qemu")
def test_kernels_run_on_arm_as_in_the_interpreter(tmp_path):
    names = [name for name in CASES if name != "in_place"]
    funcs = [parse_func(CASES[name]) for name in names]
    program = build(funcs, tmp_path)
    message, expected = b"", []
    for number, func in enumerate(funcs):
        for n in SIZES:
            data = random_arrays(func, {"n": n}, seed=n)
            with np.errstate(all="ignore"):
                wanted = run_func(func, {"n": n}, data)
            arrays = [data.get(b.name, np.zeros_like(wanted.get(b.name))) for b in func.params]
            assert all(
                a.shape == array_shape(b, {"n": n})
                for a, b in zip(arrays, func.params, strict=True)
            )
            message += struct.pack("<4q", number, 1, len(arrays), n)
            message += struct.pack(f"<{len(arrays)}q", *[a.nbytes for a in arrays])
            message += b"".join(a.tobytes() for a in arrays)
            expected.append((names[number], n, arrays, len(func.inputs), list(wanted.values())))
    assert QEMU is not None
    output = subprocess.run(
        [QEMU, str(program)], input=message, stdout=subprocess.PIPE, check=True
    ).stdout
    at = 0
    for name, n, arrays, inputs, wanted_values in expected:
        got = []
        for array in arrays:
            got.append(np.frombuffer(output, array.dtype, array.size, at).reshape(array.shape))
            at += array.nbytes
        for value, want in zip(got[inputs:], wanted_values, strict=True):
            np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5, err_msg=f"{name} {n}")
    assert at == len(output)


def test_arm_code_calls_no_library():
    for name, text in CASES.items():
        calls = [x for x in assembly(emit_func(parse_func(text), ARM), ARM).split() if x == "bl"]
        assert not calls, name


def test_arm_multiplies_and_adds_in_one_instruction():
    text = """
def f(A: f32[8, 4], *, B: f32[4]):
    for l in vectorize(4):
        B[l] = max(A[0, l] * A[1, l] + A[2, l], A[3, l])
"""
    code = assembly(emit_func(parse_func(text), ARM), ARM)
    assert "fmla" in code
    assert "fmax" in code
