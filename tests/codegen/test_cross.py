"""Models for another architecture: built here, run under emulation."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dlc.codegen.export import export_library
from dlc.codegen.llvm.compile import compile_ir
from dlc.codegen.llvm.host import emit_program
from dlc.codegen.llvm.worker import KernelJob, compile_kernels
from dlc.core.cache import Cache
from dlc.core.machine import host_arch
from dlc.core.manifest import Manifest
from dlc.core.target_parse import parse_target
from dlc.schedule.program import CallKernel, Place, SizeVar
from dlc.schedule.text import parse_func
from dlc.te.text import parse_expr
from tests.codegen.model_driver import buffer, program

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
INCLUDE = Path(__file__).parents[2] / "dlc/runtime/cpp/include"
ROOT = "/usr/aarch64-linux-gnu"

# usage: main MODEL SIZE, input on standard input, output on standard output
MAIN = r"""
#include "dlc/abi.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static void parallel(void *self, dlc_body body, void *closure, int64_t extent) {
  for (int64_t i = 0; i < extent; i++) body(closure, i, i + 1);
}
static void *scratch(void *self, int64_t bytes) { return NULL; }
static void fail(void *self, const char *message) { fputs(message, stderr); }
int main(int count, char **words) {
  void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) { fputs(dlerror(), stderr); return 2; }
  dlc_model_query_fn query = (dlc_model_query_fn)dlsym(library, DLC_MODEL_SYMBOL);
  const dlc_model *model = query(DLC_ABI_VERSION);
  dlc_host host = {NULL, parallel, scratch, fail, NULL, NULL, NULL};
  int64_t n = atoll(words[2]), dims[1], bytes;
  if (model->plan(&host, &n, dims, &bytes)) return 3;
  float *x = malloc(n * 4), *y = malloc(dims[0] * 4);
  if (fread(x, 4, n, stdin) != (size_t)n) return 4;
  const void *inputs[1] = {x};
  void *outputs[1] = {y};
  if (model->run(&host, &n, inputs, outputs, aligned_alloc(64, bytes + 64))) return 3;
  fwrite(y, 4, dims[0], stdout);
  return 0;
}
"""
SCALE = """\
def scale(n: size, x: f32[n], w: f32[5], *, t: f32[n]):
    for i in parallel((n + 3) // 4):
        for j in range(4):
            if i * 4 + j < n:
                t[i * 4 + j] = x[i * 4 + j] * w[(i * 4 + j) % 5]
"""
SHIFT = """\
def shift(n: size, t: f32[n], *, y: f32[n]):
    for i in range(n):
        y[i] = exp(t[i]) + (1.0 if i < 2 else 0.0)
"""


@pytest.fixture(scope="module")
def emulate(tmp_path_factory):
    """A function that runs a model under emulation."""
    if host_arch() != "x86_64" or not COMPILER or not EMULATOR:
        pytest.skip("needs aarch64-linux-gnu-gcc and qemu-aarch64 on x86-64")
    folder = tmp_path_factory.mktemp("cross")
    (folder / "main.c").write_text(MAIN)
    command = [COMPILER, "main.c", f"-I{INCLUDE}", "-o", "main", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)

    def run(model, x):
        command = [EMULATOR, "-cpu", "max", "-L", ROOT, str(folder / "main"), str(model)]
        command.append(str(len(x)))
        return subprocess.run(command, input=x.tobytes(), capture_output=True, check=False)

    return run


@pytest.mark.parametrize("text", ["llvm -mtriple=aarch64-linux-gnu", "llvm -mcpu=neoverse-n1"])
def test_a_model_for_arm_runs(tmp_path, emulate, text):
    target = parse_target(text)
    funcs = [parse_func(SCALE), parse_func(SHIFT)]
    cache = Cache(tmp_path / "cache")
    kernels = compile_kernels([KernelJob(f.name, f, target) for f in funcs], cache=cache)
    size = parse_expr("n")
    prog = program(
        [
            Place(buffer("t", "n"), 0),
            CallKernel("scale", (size,), ("x", "w", "t")),
            CallKernel("shift", (size,), ("t", "y")),
        ],
        sizes=[SizeVar("n", 0, 100)],
        inputs=[buffer("x", "n")],
        outputs=[buffer("y", "n")],
        constants=[buffer("w", 5)],
        kernels=funcs,
        arena=("n * 4",),
    )
    host = emit_program(prog, target, {k.name: k.symbol for k in kernels})
    objects = [compile_ir(host, target), *(k.code for k in kernels)]
    w = np.array([1, -2, 3, -4, 0.5], np.float32)
    path = tmp_path / "m.so"
    export_library(prog, {"w": w}, objects, Manifest("test", target.arch), path, target)
    for n in (0, 1, 7, 64):
        x = np.linspace(-1, 1, n).astype(np.float32)
        done = emulate(path, x)
        assert done.returncode == 0, done.stderr
        expected = np.exp((x * np.resize(w, n)).astype(np.float64)) + (np.arange(n) < 2)
        np.testing.assert_allclose(np.frombuffer(done.stdout, np.float32), expected, rtol=3e-7)
    done = emulate(path, np.zeros(101, np.float32))
    assert (done.returncode, done.stderr) == (3, b"size 'n' must be from 0 to 100")
