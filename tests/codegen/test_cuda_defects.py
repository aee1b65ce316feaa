"""Seeded defects: each is a kernel that a GPU would get wrong, perhaps only now and then.

The emulation must name the fault, or the result must differ; and the kernel without the defect must
pass, so that it is the defect that is found.
"""

from __future__ import annotations

import numpy as np
import pytest

from dlc.codegen.cuda.emulate import ORDERS, EmulationError, Emulator
from dlc.schedule.interpret import run_func
from dlc.schedule.passes.insert_barriers import insert_barriers
from dlc.schedule.rules import gpu_contract, prepare
from dlc.schedule.trace import Trace
from tests.codegen.defects import WRONG, Defect, missed
from tests.codegen.gpu import GPU, Scheduled, emulate, schedule
from tests.codegen.test_cuda_products import on_engine, product_of, product_of_bytes
from tests.schedule.data import inputs, parse
from tests.schedule.rules.cases import CASES
from tests.schedule.test_gpu import TURNS


def product() -> Scheduled:
    """A matrix product in chunks of 8, with tails everywhere."""
    func = CASES["dense_many_rows"]()
    trace = Trace(func)
    prepare(trace, GPU)
    found = gpu_contract.match(trace.func, GPU)
    assert found is not None
    gpu_contract.schedule(trace, found, GPU, {"tile": 5, "chunk": 8, "stages": 1})
    return schedule(func, "k", trace.steps)


def engine() -> Scheduled:
    """A product on the matrix engine, with tails."""
    return on_engine(product_of("f16", 70, 70, 32), "k", {"tile": 4})


def tf32() -> Scheduled:
    """A product of float32 on the matrix engine."""
    return on_engine(product_of("f32", 70, 70, 32), "k", {"tile": 4})


def staged() -> Scheduled:
    """The same in chunks of 16, two of them on their way while one is multiplied."""
    knobs = {"tile": 4, "chunk": 16, "parts": 1, "stages": 3}
    return on_engine(product_of("f16", 70, 72, 96), "k", knobs)


def written(text: str, *constants: str) -> Scheduled:
    """A function that is scheduled as it is."""
    func = parse(text)
    return schedule(insert_barriers(func), "k", (), frozenset(constants))


REVERSE = """
    def f(A: f32[5, 64], *, B: f32[5, 64]):
        for b in block(5):
            t = alloc(f32[64], "shared")
            for i in thread(64):
                t[i] = A[b, i]
            for j in thread(64):
                acc = alloc(f32[2], "local")
                acc[0] = t[63 - j]
                acc[1] = max(A[b, 0], 1.0)
                B[b, j] = acc[0] + acc[1]
"""
SHIFT = """
    def f(n: size, A: f32[n + 2], K: i64[n], *, B: f32[n]):
        for b in block((n + 31) // 32):
            for i in thread(32):
                if b * 32 + i < n:
                    B[b * 32 + i] = A[b * 32 + i] + A[b * 32 + i + 2] + f32(K[b * 32 + i] // i64(4))
"""


TAILS = """
    def f(A: f32[3, 4, 40], *, B: f32[3, 40], C: f32[40]):
        parts = alloc(f32[3, 4, 40], "local")
        for z in block(1):
            for a in block(3):
                for k in block(4):
                    for t in thread(40):
                        parts[a, k, t] = A[a, k, t] * 2.0
                for u in thread(40):
                    B[a, u] = 0.0
                    for l in range(4):
                        B[a, u] += parts[a, l, 39 - u]
            for v in thread(40):
                C[v] = B[0, v] + B[1, v] + B[2, v]
"""


ROWS = """
    def f(A: f32[3, 600], *, B: f32[3, 600]):
        s = alloc(f32[3], "local")
        for i in range(3):
            s[i] = 0.0
            for k in range(600):
                s[i] += A[i, k]
        for a in range(3):
            for b in range(600):
                B[a, b] = A[a, b] - s[a]
"""


DEFECTS = {
    "no barrier before the factors are read": Defect(
        "product", "    barrier();\n    {\n      const int i0_t", "    {\n      const int i0_t",
        "race: (read of|write to) 'matmul_packed_(rows|columns)'",
    ),
    "no barrier before the factors are replaced": Defect(
        "product", "    barrier();\n    {\n      const int matmul_packed_rows_copy_t",
        "    {\n      const int matmul_packed_rows_copy_t",
        "race: (read of|write to) 'matmul_packed_rows'",
    ),
    "no wait for the launches before": Defect(
        "reverse", "begin_launch();", "", "access before the launches before are done"
    ),
    "a wait for the launches before by some threads only": Defect(
        "reverse", "begin_launch();", "if (DLC_THREAD < 32) begin_launch();",
        "access before the launches before are done",
    ),
    "weights asked for behind their end": Defect(
        "ahead", "fetch_ahead(A, 320)", "fetch_ahead(A, 321)", "out of bounds: 'A'"
    ),
    "what the launch writes asked for ahead": Defect(
        "ahead", "fetch_ahead(A, 320)", "fetch_ahead(B, 320)", "asked for ahead, and written: 'B'"
    ),
    "weights asked for behind the wait": Defect(
        "ahead", "  fetch_ahead(A, 320);\n  begin_launch();",
        "  begin_launch();\n  fetch_ahead(A, 320);", "asked for too late: 'A'",
    ),
    "weights read before the wait": Defect(
        "ahead", "fetch_ahead(A, 320)", "(void)float(A[0])",
        "access before the launches before are done",
    ),
    "a buffer that takes a place too soon": Defect(
        "turns", "  barrier();\n  {\n    const int k =", "  {\n    const int k =",
        "race: |another buffer has left",
    ),
    "a buffer that is never set, where another one was": Defect(
        "turns", "v[k] = ", "(void)", "read of what another buffer has left"
    ),
    "a place that is not free yet": Defect(
        "turns", "DLC_SHARED(float, u, 6400, 25600)", "DLC_SHARED(float, u, 6400, 0)",
        "race: |another buffer has left",
    ),
    "no barrier at all": Defect("reverse", "barrier();", "", "race: "),
    "a barrier for some threads only": Defect(
        "reverse", "  barrier();", "  if (DLC_THREAD < 32) barrier();",
        "race: |threads of block",
    ),
    "threads that leave before a barrier": Defect(
        "reverse", "  barrier();", "  if (DLC_THREAD == 7) return;\n  barrier();",
        "race: |ended, .* wait",
    ),
    "a halo that is off by one": Defect(
        "shift", "A[b * 32 + i + 2]", "A[b * 32 + i + 3]", "out of bounds: 'A'",
    ),
    "an index below 0": Defect("shift", "A[b * 32 + i]", "A[b * 32 + i - 1]", "out of bounds: 'A'"),
    "no test at the end of the last block": Defect(
        "shift", "b * 32 + i < n", "true", "out of bounds"
    ),
    "a test that stops one early": Defect("shift", "b * 32 + i < n", "b * 32 + i < n - 1", WRONG),
    "division that rounds toward zero": Defect(
        "shift", "floor_div(i64(K[b * 32 + i]), i64(4LL))", "(K[b * 32 + i] / 4)", WRONG,
    ),
    "two threads write one element": Defect(
        "reverse", "B[b * 64 + j]", "B[b * 64 + j / 2]", "race: write to 'B'"
    ),
    "two blocks write one element": Defect(
        "reverse", "B[b * 64 + j]", "B[b / 2 * 64 + j]", "race of blocks: write to 'B'"
    ),
    "a block reads what another one wrote": Defect(
        "reverse", "= acc[0]", "= B[(b + 1) % 5 * 64 + j] * 0.0f + acc[0]", "race of blocks: ",
    ),
    "too little shared memory": Defect(
        "reverse", "DLC_SHARED(float, t, 64,", "DLC_SHARED(float, t, 63,", "out of bounds: 't'"
    ),
    "too few registers": Defect(
        "reverse", "DLC_LOCAL(float, acc, 2)", "DLC_LOCAL(float, acc, 1)", "out of bounds: 'acc'"
    ),
    "a register that is never set": Defect("reverse", "acc[1] = ", "(void)", WRONG),
    "sums that do not begin with 0": Defect("product", "= 0.0f;", "+= 0.0f;", WRONG),
    "a chunk too few": Defect("product", "k_t < 3", "k_t < 2", WRONG),
    "a chunk too many": Defect("product", "k_t < 3", "k_t < 4", WRONG, threads=0),
    "no test for the last chunk": Defect(
        "product", r"if (k_s + k_t * 8 < 19)", "if (true)", WRONG
    ),
    "a wrong stride in shared memory": Defect("product", "i0_s * 12", "i0_s * 8", WRONG),
    "fewer threads than the kernel was made for": Defect(
        "reverse", "DLC_KERNEL", "DLC_KERNEL", WRONG, threads=32
    ),
    "a tail that does not wait for all parts": Defect(
        "tails", "last_block(arrivals_1, a + z * 3, 4)", "last_block(arrivals_1, a + z * 3, 3)",
        "race of blocks|end with 0",
    ),
    "a tail that does not wait for all groups": Defect(
        "tails", "last_block(arrivals_1, z + 3, 3)", "last_block(arrivals_1, z + 3, 2)",
        "race of blocks|end with 0",
    ),
    "groups that count at one place": Defect(
        "tails", "last_block(arrivals_1, a + z * 3, 4)", "last_block(arrivals_1, 0, 4)",
        "race of blocks",
    ),
    "a tail that every block runs": Defect(
        "tails", "if (!last_block(arrivals_1, a + z * 3, 4)) return;", "", "race",
    ),
    "a tail whose blocks do not count": Defect(
        "tails", "last_block(arrivals_1, a + z * 3, 4)", "(k == 3)", "race of blocks",
    ),
    "a count of groups behind the counts": Defect(
        "tails", "last_block(arrivals_1, z + 3, 3)", "last_block(arrivals_1, z + 4, 3)",
        "out of bounds: 'arrivals_1'",
    ),
    "no barrier before warps multiply": Defect(
        "engine", "  barrier();\n  {\n    const int i0_w", "  {\n    const int i0_w", "race: ",
    ),
    "a warp instruction for some lanes only": Defect(
        "engine", "multiply_tiles<2, 4>", "if (DLC_THREAD % 32 > 3) multiply_tiles<2, 4>",
        "lanes of a warp of block . wait for the others",
    ),
    "summands of another chunk": Defect(
        "engine", "k_s_o * 1152", "k_s_o * 576", WRONG,
    ),
    "warps that multiply each other's rows": Defect("engine", "i0_w * 1280", "i1_w * 1280", WRONG),
    "a line of the wrong length": Defect(
        "engine", ", 40, matmul", ", 48, matmul", "another|out of"
    ),
    "lines that are not aligned": Defect("engine", ", 40, matmul", ", 36, matmul", "not aligned"),
    "tiles in the registers of others": Defect(
        "engine", "multiply_tiles<2, 4>(matmul, 0,", "multiply_tiles<2, 4>(matmul, 4,", "out of",
    ),
    "the next summands a line too early": Defect("tf32", "k_s_o * 576", "k_s_o * 504", WRONG),
    "columns that follow each other in lines": Defect("tf32", ", 72)", ", 1)", WRONG),
    "rows of TF32 that are not aligned": Defect(
        "tf32", "i0_w * 1152 + k_s_o * 8", "i0_w * 1152 + k_s_o * 8 + 1", "not aligned",
    ),
    "TF32 before its copies have come": Defect(
        "tf32", "wait_copies<0>();", "", "read of what is being copied",
    ),
    "copies that are not committed": Defect(
        "staged", "    commit_copies();\n    {", "    {", "read of what is being copied",
    ),
    "first copies that are not committed": Defect(
        "staged", "    commit_copies();\n  }", "  }", "read of what is being copied",
    ),
    "a wait for too few groups": Defect(
        "staged", "wait_copies<1>", "wait_copies<2>", "read of what is being copied",
    ),
    "no wait for copies": Defect(
        "staged", "wait_copies<1>();", "", "(read of|write to) what is being copied",
    ),
    "no barrier behind a wait": Defect("staged", "    barrier();\n    if", "    if", "race: "),
    "a barrier before the wait": Defect(
        "staged", "    wait_copies<1>();\n    barrier();", "    barrier();\n    wait_copies<1>();",
        "race: ",
    ),
    "too few stages to copy to": Defect(
        "staged", "(k_t + 2) % 3 * 1536", "(k_t + 2) % 2 * 1536", "race: |being copied",
    ),
    "a stage too early": Defect(
        "staged", "+ k_t % 3 * 1536", "+ (k_t + 1) % 3 * 1536", "read of what is being copied",
    ),
    "copies for chunks that there are none": Defect(
        "staged", "k_t + 2 < 6", "k_t + 2 < 7", "out of bounds|nobody waits for",
    ),
    "a copy that is not aligned": Defect(
        "staged", "i0_2_b * 6144 + k_t * 16", "i0_2_b * 6144 + k_t * 15", "copy is not aligned",
    ),
    "summands of bytes half a line on": Defect("bytes", "k_s_o * 32, 80", "k_s_o * 16, 80", WRONG),
    "lines of bytes that are not aligned": Defect(
        "bytes", "k_s_o * 32, 80", "k_s_o * 32 + 8, 80", "not aligned",
    ),
    "no barrier before bytes are multiplied": Defect(
        "bytes", "  barrier();\n  {\n    const int i0_2_w", "  {\n    const int i0_2_w", "race: ",
    ),
    "a shuffle for some lanes only": Defect(
        "rows", "warp_add(", "if (DLC_THREAD % 32 > 3) warp_add(",
        "lanes of a warp of block . wait for the others",
    ),
    "warps that end before a shuffle": Defect(
        "rows", "warp_add(", "if (DLC_THREAD < 224) warp_add(", WRONG,
    ),
    "lanes that exchange their values twice over": Defect(
        "rows", "warp_add(s_last,", "s_parts[0] += of_lane(s_parts[0], 1); warp_add(s_last,", WRONG,
    ),
    "a shuffle over half of a warp": Defect(
        "rows", "warp_add(s_last, ki_finalo, s_parts[0])",
        "for (int bits = 8; bits; bits /= 2) s_parts[0] += of_lane(s_parts[0], bits); "
        "if (DLC_THREAD % 32 == 0) s_last[ki_finalo] = float(s_parts[0])", WRONG,
    ),
    "the results of all warps at one place": Defect(
        "rows", "warp_add(s_last, ki_finalo,", "warp_add(s_last, 0,", "race: ",
    ),
    "the results of warps behind their buffer": Defect(
        "rows", "warp_add(s_last, ki_finalo,", "warp_add(s_last, ki_finalo + 1,", "out of bounds",
    ),
    "no barrier before the results of warps are added up": Defect(
        "rows", "  barrier();\n  if (DLC_THREAD < 1) {", "  if (DLC_THREAD < 1) {", "race: ",
    ),
    "results of warps that do not begin with 0": Defect(
        "rows", "s_last[ki_finalo_init] = 0.0f", "(void)0", WRONG,
    ),
    "the values of lanes that have none": Defect(
        "rows", "kii + kio * 32 + ko * 256 < 600", "true", "out of bounds: 'A'|another",
    ),
    "a maximum that drops NaN": Defect(
        "nan", r"max_of(float(A[b * 64]), 1.0f)", "(A[b * 64] > 1.0f ? float(A[b * 64]) : 1.0f)",
        WRONG,
    ),
}  # fmt: skip
# Accesses of the product are guarded, so that one chunk more than there are computes nothing.
HARMLESS = {"a chunk too many"}


@pytest.fixture(scope="module")
def kernels() -> dict[str, Scheduled]:
    found = {"product": product(), "reverse": written(REVERSE), "shift": written(SHIFT)}
    found["turns"] = written(TURNS)
    found["bytes"] = on_engine(product_of_bytes("u8", "i8", 70, 70, 64), "k", {"tile": 4})
    found["rows"] = schedule(parse(ROWS), "k")
    found["ahead"] = written(REVERSE, "A")
    found |= {"tails": written(TAILS), "engine": engine(), "tf32": tf32(), "staged": staged()}
    return found | {"nan": found["reverse"]}


def problem(emulator: Emulator, scheduled: Scheduled, name: str) -> str:
    """What is wrong with a kernel, in any order of blocks and threads; or ""."""
    sizes = {s: 70 for s in scheduled.func.sizes}
    arrays = inputs(scheduled.func, sizes)
    if "K" in arrays:
        arrays["K"] = arrays["K"] - 7
    if name == "nan":
        arrays["A"][:, 0] = np.nan
    want = run_func(scheduled.func, sizes, arrays)
    for order in ORDERS:
        try:
            got = emulate(emulator, scheduled, arrays, sizes, order)
        except EmulationError as error:
            return str(error)
        if any(not np.array_equal(got[n], a, equal_nan=True) for n, a in want.items()):
            return WRONG
    return ""


def test_every_defect_is_found(kernels: dict[str, Scheduled]) -> None:
    assert missed(kernels, DEFECTS, problem, HARMLESS) == []
    assert len(DEFECTS) - len(HARMLESS) >= 20
