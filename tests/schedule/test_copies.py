"""Copies beside the threads: pipelines mean what their loops mean, and wrong ones are refused."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.codegen.cuda.build import schedule_program
from dlc.core.errors import VerifyError
from dlc.core.target import Gpu, Target
from dlc.schedule.gpu_program import misaligned
from dlc.schedule.interpret import run_func
from dlc.schedule.passes.insert_barriers import insert_barriers
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitive import PRIMITIVES
from dlc.schedule.program_text import parse_program
from dlc.schedule.verify_copies import widest_copy
from dlc.schedule.verify_gpu import verify_gpu
from tests.codegen.test_cuda_products import product_of
from tests.schedule.data import inputs, parse

CHUNKS = """
    def f(A: f32[7, 68], W: f32[7, 33], *, B: f32[7, 68]):
        for b in block(1):
            for k in range(7):
                t = alloc(f32[68], "shared")
                for i in thread(17):
                    invoke("copy_async_f32_4", A[k, i * 4], t[i * 4])
                u = alloc(f32[33], "shared")
                for j in thread(33):
                    u[j] = W[k, j] * 2.0
                for p in thread(34):
                    for q in range(2):
                        B[k, q * 34 + p] = t[67 - q * 34 - p] + u[p // 2]
"""
ANY_LENGTH = (
    CHUNKS.replace("range(7)", "range(n)").replace("[7,", "[n,").replace("f(", "f(n: size, ")
)


def pipelined(stages: int, text: str = CHUNKS):
    return insert_barriers(PRIMITIVES["pipeline"](parse(text), "k", stages))


@pytest.mark.parametrize("stages", range(1, 8))
def test_a_pipeline_computes_the_same(stages: int) -> None:
    func = pipelined(stages)
    verify_gpu(func, Gpu(), when="in the test")
    arrays = inputs(func, {})
    want = run_func(parse(CHUNKS), {}, arrays)["B"]
    np.testing.assert_array_equal(run_func(func, {}, arrays)["B"], want)
    loop = str(func).partition("for k in")[2]
    assert loop.count('invoke("barrier")') == (1 if stages > 1 else 2)
    assert f'invoke("wait_copies_{max(0, stages - 2)}")' in loop
    assert f"alloc(f32[{stages}, 68]" in str(func) or stages == 1


@pytest.mark.parametrize("n", [0, 1, 5])
def test_copies_of_a_loop_of_any_length_are_waited_for_in_it(n: int) -> None:
    func = pipelined(1, ANY_LENGTH)
    verify_gpu(func, Gpu(), when="in the test")
    arrays = inputs(func, {"n": n})
    want = run_func(parse(ANY_LENGTH), {"n": n}, arrays)["B"]
    np.testing.assert_array_equal(run_func(func, {"n": n}, arrays)["B"], want)


def without(text: str, *lines: str) -> str:
    """The text without the first line that has each of some words, from the end on."""
    for word in lines:
        head, _, tail = text.rpartition(word)
        text = head[: head.rindex("\n")] + tail[tail.index("\n") :]
    return text


GOOD = str(pipelined(3))
WRONG = {
    "no commit": (GOOD.replace('invoke("commit_copies")', 'invoke("wait_copies_6")'), "before its"),
    "no commit in the loop": (without(GOOD, "commit_copies"), "before its copies"),
    "no commit before the loop": (GOOD.replace('invoke("commit_copies")', "pass", 1), "before its"),
    "no wait": (GOOD.replace("wait_copies_1", "wait_copies_6"), "before its copies"),
    "waits for one group too few": (GOOD.replace("wait_copies_1", "wait_copies_2"), "before its"),
    "too few parts": (GOOD.replace("% 3, i * 4]", "% 2, i * 4]"), "before its copies"),
    "a part too late": (GOOD.replace("t[k % 3,", "t[(k + 1) % 3,"), "before its copies"),
    "no barrier": (without(GOOD, '"barrier"'), "conflict without a barrier"),
    "copies behind the last iteration": (
        GOOD.replace("k + 2 < 7", "k + 2 < 9").replace("A[k + 2,", "A[min(k + 2, 6),"),
        "on their way when a block ends",
    ),
    "a source that is not aligned": (
        GOOD.replace("A[k + 2, i * 4]", "A[k + 2, i * 2]"), "of 'A' are not surely aligned",
    ),
    "a target that is not aligned": (
        GOOD.replace("% 3, i * 4]", "% 3, i * 3]"), "of 't' are not surely aligned",
    ),
    "lines of odd length": (GOOD.replace("A: f32[7, 68]", "A: f32[7, 70]"), "of 'A' are not sur"),
    "a wait inside of a thread loop": (
        GOOD.replace("for q in range(2):", 'for q in range(2):\n'+' '*20+'invoke("wait_copies_0")'),
        "inside of a thread loop",
    ),
    "a loop of any length": (
        str(pipelined(1, ANY_LENGTH)).replace("wait_copies_0", "wait_copies_1"),
        "around 'k', a loop of any length",
    ),
}  # fmt: skip


def test_copies_in_order_are_accepted() -> None:
    verify_gpu(parse(GOOD), Gpu(), when="in the test")


@pytest.mark.parametrize("name", WRONG)
def test_copies_out_of_order_are_refused(name: str) -> None:
    text, problem = WRONG[name]
    assert text != GOOD
    with pytest.raises(VerifyError) as caught:
        verify_gpu(parse(text), Gpu(), when="in the test")
    assert problem in str(caught.value.fields["problems"])


CALLS = """
def main(x: f32[512], y: f32[8], *, z: f32[7, 8]):
    arena(0)
    a = view(x, f32[7, 32], {first})
    b = view(x, f32[32, 8], 256)
    c = view(y, f32[8])
    f(a, b, c, z)
"""


@pytest.mark.parametrize(("first", "width"), [(0, 4), (4, 4), (2, 1)])
def test_a_view_that_is_not_aligned_is_copied_element_by_element(first: int, width: int) -> None:
    program = parse_program(str(product_of("f32", 7, 8, 32)) + CALLS.format(first=first))
    assert misaligned(program, 16) == {"f": frozenset(["in0"] if width == 1 else [])}
    made = schedule_program(program, Target(backend="cuda", gpu=Gpu()), {})
    (kernel,) = made.kernels.values()
    assert f"copy_async<{width}>" in kernel.text
    assert ("copy_async<4>" in kernel.text) == (width == 4)


@pytest.mark.parametrize("width", [1, 4])
def test_lines_that_begin_elsewhere_are_copied_element_by_element(width: int) -> None:
    text = str(product_of("f32", 7, 8, 32)).replace("in0: f32[7, 32]", "in0: f32[7, 36]")
    assert "in0[i0, k]" in text
    func = parse(text.replace("in0[i0, k]", f"in0[i0, k + {width}]"))
    made = optimize(func, Target(backend="cuda", gpu=Gpu()))
    assert widest_copy(made, "in0") == 4 * width
    assert widest_copy(made, "in1") == 16


def test_the_widest_copy_is_known_by_its_source() -> None:
    assert widest_copy(parse(GOOD), "A") == 16
    assert widest_copy(parse(GOOD), "W") == 0
