"""The harness that kernels run in."""

from __future__ import annotations

import subprocess
import sys

# Below 3 GiB that are taken there is room; above them for two pages here and there, which hold the
# constants of a kernel and not its code. No address of 32 bits reaches from one to the other.
IN_PIECES = """
import mmap

from tests.codegen.jit import check

LINES = "".join(f"        B[i, {n}] = exp(A[i, {n}] * {n}.0)\\n" for n in range(100))
KERNEL = "def f(n: size, A: f32[n, 100], *, B: f32[n, 100]):\\n    for i in range(n):\\n" + LINES
check(KERNEL, {"n": 37})  # what is loaded when needed is there before memory is short
pages = [mmap.mmap(-1, 2 * mmap.PAGESIZE) for _ in range(4096)]
taken = mmap.mmap(-1, 3 << 30, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
gaps = [mmap.mmap(-1, 4 * mmap.PAGESIZE) for _ in range(4096)]
for page in pages[::2]:
    page.close()
for _ in range(8):
    check(KERNEL, {"n": 37})
"""


def test_code_finds_its_constants_where_memory_is_in_pieces():
    done = subprocess.run([sys.executable, "-c", IN_PIECES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
