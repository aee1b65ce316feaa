"""Schedules at the edge of what is legal: each keeps the result only because of one check."""

import pytest

from dlc.core.errors import ScheduleError
from dlc.schedule.dependence import why_not_independent
from dlc.schedule.edit import sites, told_apart
from dlc.schedule.loop import Block, For, If, Invoke, LoopKind, loops, walk
from dlc.schedule.primitive import Step, replay
from dlc.te.expr import ONE, Var, index
from dlc.te.simplify import canonical
from dlc.te.transform import substitute
from dlc.te.types import const_size
from tests.schedule.data import assert_same, parse


def check(text, *steps, changed=True):
    """Replay steps and compare; the schedule must have done something."""
    func = parse(text)
    result = replay(func, [Step(name, args) for name, args in steps])
    assert (result != func) is changed
    assert_same(func, result)
    return str(result)


def test_what_an_index_loads_may_differ_between_iterations():
    text = """
        def f(n: size, A: f32[n], *, B: f32[n + 9]):
            for i in range(n):
                t = alloc(f32[1], "local")
                t[0] = A[i]
                B[i + index(t[0])] = 1.0
    """
    assert "'B'" in why_not_independent(parse(text), "i")


@pytest.mark.parametrize(
    "body",
    ["if C[i + 1] < 3.0:\n        C[i] = 0.0", "C[i] = 1.0\n    B[i, index(C[i + 1])] = 1.0"],
)
def test_conditions_and_subscripts_read(body):
    func = parse(
        f"def f(n: size, *, C: f32[n + 1], B: f32[n, 9]):\n  for i in range(n):\n    {body}\n"
    )
    assert "'C'" in why_not_independent(func, "i")


def test_an_instruction_writes_all_of_its_region():
    from tests.schedule import test_refusals  # declares add_4xf32

    text = """
        def f(b: f32[4], *, c: f32[40]):
            for i in range(9):
                invoke("add_4xf32", b[0], c[{index}])
    """
    assert test_refusals.CASES
    assert why_not_independent(parse(text.format(index="i * 4")), "i") == ""
    assert "'c'" in why_not_independent(parse(text.format(index="i * 3")), "i")


def test_the_box_of_a_falling_index():
    text = """
        def f(n: size, A: f32[n * 3 + 3], *, B: f32[n]):
            t = alloc(f32[n * 3 + 3], "local")
            for j in range(n * 3 + 3):
                t[j] = A[j] * 2.0
            for i in range(n):
                B[i] = 0.0
                for r in range(3):
                    B[i] += t[i * 3 + 2 - r]
    """
    assert "t = alloc(f32[3]" in check(text, ("compute_at", ("t", "i")))


def test_a_box_whose_size_depends_on_the_loop_is_the_whole_buffer():
    text = """
        def f(A: f32[11], *, B: f32[6]):
            t = alloc(f32[11], "local")
            for j in range(11):
                t[j] = A[j]
            for i in range(6):
                B[i] = t[i] + t[i * 2]
    """
    assert "t = alloc(f32[11]" in check(text, ("compute_at", ("t", "i")))


def test_a_box_begins_where_a_loop_of_one_iteration_stands():
    text = """
        def f(A: f32[11], *, B: f32[1]):
            t = alloc(f32[11], "local")
            for j in range(11):
                t[j] = A[j]
            for i in range(1):
                B[i] = t[0] + t[i]
    """
    assert "t = alloc(f32[1]" in check(text, ("compute_at", ("t", "i")))


def test_a_product_with_a_negative_number_has_no_known_range():
    text = """
        def f(n: size, A: f32[9], *, B: f32[6, 3]):
            t = alloc(f32[9], "local")
            for q in range(9):
                t[q] = A[q]
            for i in range(6):
                for j in range(3):
                    B[i, j] = t[min(n - 4, 0) * j + 8]
    """
    assert "t = alloc(f32[9]" in check(text, ("compute_at", ("t", "i")))


def test_loops_that_walk_together_are_not_shortened_alone():
    text = """
        def f(A: f32[3, 4], *, B: f32[6]):
            t = alloc(f32[6], "local")
            for q in range(6):
                t[q] = 0.0
            for io in range(3):
                for ii in range(4):
                    t[io + ii] += A[io, ii]
            for k in range(6):
                B[k] = t[k]
    """
    check(text, ("compute_at", ("t", "k")))


def test_a_nest_over_digits_computes_only_the_box():
    text = """
        def f(A: f32[3, 4], *, B: f32[3, 4]):
            t = alloc(f32[3, 4], "local")
            for q in range(12):
                t[q // 4, q % 4] = A[q // 4, q % 4]
            for i in range(3):
                for j in range(4):
                    B[i, j] = t[i, j]
    """
    result = check(text, ("compute_at", ("t", "j")))
    assert "t = alloc(f32[1, 1]" in result
    assert "for q in range(12)" in result


def test_guards_between_reordered_loops_stay():
    text = """
        def f(n: size, A: f32[6, 3], *, s: f32[3]):
            for q in range(3):
                s[q] = 0.0
            for i in range(6):
                if i < n:
                    for j in range(3):
                        s[j] += A[i, j]
    """
    assert "if i < n" in check(text, ("reorder", (("j", "i"),)))


def test_an_accumulation_in_parts_copies_in():
    text = """
        def f(n: size, A: f32[4, n], *, s: f32[4]):
            for i in range(4):
                s[i] = 3.0
            for k in range(n):
                for i_1 in range(4):
                    s[i_1] += A[i_1, k]
    """
    result = check(text, ("cache_write", ("s", "k", "acc", "register")))
    assert "acc[i_1_acc_in] = s[i_1_acc_in]" in result


def test_a_part_that_is_stored_anew_copies_in_the_rest():
    text = """
        def f(A: f32[3, 4], *, s: f32[4]):
            for i in range(4):
                s[i] = 3.0
            for k in range(3):
                s[0] = 1.0
                for j in range(4):
                    s[j] += A[k, j]
    """
    check(text, ("cache_write", ("s", "k", "acc", "local")))


def test_what_was_stored_before_the_loop_is_copied_in():
    text = """
        def f(A: f32[3, 4], *, s: f32[3, 4]):
            for i in range(3):
                for j in range(4):
                    s[i, j] = 3.0
            for k in range(3):
                s[k, 0] = 1.0
                for z in range(4):
                    s[k, z] += A[k, z]
    """
    check(text, ("cache_write", ("s", "k", "acc", "local")))


def test_a_guard_on_another_loop_guards_the_copy():
    text = """
        def f(n: size, A: f32[3], *, s: f32[5]):
            for i in range(5):
                s[i] = 7.0
            for k in range(5):
                for r in range(3):
                    if n <= r:
                        s[k] = A[r]
    """
    check(text, ("cache_write", ("s", "k", "acc", "local")))


def test_elements_that_iterations_share_are_copied_in():
    text = """
        def f(A: f32[3, 4], *, s: f32[6]):
            for k in range(3):
                s[k] = 1.0
                if k == 0:
                    for i in range(5):
                        s[i + 1] = 2.0
                for j in range(4):
                    s[k + j] += A[k, j]
    """
    check(text, ("cache_write", ("s", "k", "acc", "local")))


def test_a_guard_of_the_first_store_guards_the_copy():
    text = """
        def f(n: size, A: f32[5, 4], *, s: f32[5, 4]):
            for i in range(5):
                for j in range(4):
                    s[i, j] = 7.0
            for k in range(5):
                for z in range(4):
                    if k < n:
                        s[k, z] = A[k, z]
                for y in range(4):
                    if n <= 3:
                        s[k, y] = 1.0
    """
    check(text, ("cache_write", ("s", "k", "acc", "local")))


def test_a_loop_that_may_not_run_is_not_dropped_from_the_copy():
    text = """
        def f(n: size, A: f32[n], *, s: f32[5]):
            for i in range(5):
                s[i] = 7.0
            for k in range(5):
                for r in range(n):
                    s[k] = A[r]
    """
    check(text, ("cache_write", ("s", "k", "acc", "local")))


def test_a_copy_for_a_tail_stays_inside():
    text = """
        def f(n: size, A: f32[n], *, B: f32[n]):
            for io in range((n + 3) // 4):
                for ii in range(4):
                    if io * 4 + ii < n:
                        B[io * 4 + ii] = A[io * 4 + ii]
    """
    assert "if" in check(text, ("cache_read", ("A", "io", "a", "local")))
    check(text, ("cache_write", ("B", "io", "b", "local")))


def test_what_a_cached_index_loads_keeps_the_whole_buffer():
    text = """
        def f(n: size, I: i64[n], A: f32[6, 3], *, B: f32[n, 3]):
            for i in range(n):
                for j in range(3):
                    B[i, j] = A[index(I[i]), j]
    """
    steps = (
        ("cache_read", ("I", "j", "p", "local")),
        ("cache_read", ("A", "i", "a", "local")),
    )
    assert "a = alloc(f32[6, 3]" in check(text, *steps)


def test_a_partial_sum_stays_inside_the_loops_of_its_element():
    text = """
        def f(n: size, A: f32[n, 2, 6], *, s: f32[n]):
            for i in range(n):
                s[i] = 0.0
            for i_1 in range(n):
                for a in range(2):
                    for b in range(6):
                        s[i_1] += A[i_1, a, b]
    """
    result = check(text, ("rfactor", ("s", "b", "p")))
    assert result.index("for i_1") < result.index("p = alloc") < result.index("for a ")


def test_a_consumer_of_another_part_is_not_moved():
    text = """
        def f(n: size, A: f32[n + 2], *, B: f32[n + 2]):
            t = alloc(f32[n + 2], "local")
            for i in range(n):
                t[i + 1] = A[i]
            for j in range(n + 2):
                B[j] = (t[j] if 0 < j and j < n + 1 else 0.0)
    """
    with pytest.raises(ScheduleError, match="does not surely compute all"):
        check(text, ("reverse_compute_at", ("t", "i")))


def test_a_consumer_of_tiles_with_a_tail_is_moved():
    text = """
        def f(n: size, A: f32[n, 6], *, B: f32[n, 6]):
            t = alloc(f32[n, 6], "local")
            for io in range((n + 3) // 4):
                for jo in range(2):
                    for ii in range(4):
                        for ji in range(3):
                            if io * 4 + ii < n:
                                t[io * 4 + ii, jo * 3 + ji] = A[io * 4 + ii, jo * 3 + ji]
            for y in range(n):
                for x in range(6):
                    B[y, x] = t[y, x] + 1.0
    """
    result = check(text, ("reverse_compute_at", ("t", "jo")))
    assert "for y in range(4)" in result
    assert "for x in range(3)" in result


def test_overlapping_boxes_do_not_take_the_consumer():
    text = """
        def f(A: f32[9], *, B: f32[9]):
            t = alloc(f32[9], "local")
            for q in range(4):
                for r in range(3):
                    t[q * 2 + r] = A[q * 2 + r]
            for y in range(9):
                B[y] = t[y]
    """
    with pytest.raises(ScheduleError, match="may use one element of 't'"):
        check(text, ("reverse_compute_at", ("t", "q")))


def test_an_output_in_place_may_be_computed_by_rows():
    text = """
        @in_place(B="A")
        def f(n: size, A: f32[n, 4], *, B: f32[n, 4]):
            m = alloc(f32[n], "local")
            for i in range(n):
                m[i] = 0.0
                for j in range(4):
                    m[i] += A[i, j]
            for y in range(n):
                for x in range(4):
                    B[y, x] = A[y, x] * m[y]
    """
    assert "m = alloc(f32[1]" in check(text, ("compute_at", ("m", "y")))
    with pytest.raises(ScheduleError, match="is written in the loop"):
        check(text, ("compute_at", ("m", "x")))


def test_a_copy_of_a_buffer_gets_copies_of_its_loops_and_buffers():
    text = """
        def f(A: f32[4], *, B: f32[4]):
            for i in range(4):
                t = alloc(f32[1], "local")
                t[0] = A[i]
                B[i] = t[0]
    """
    result = check(text, ("partition", ("i", 3, "_t")))
    assert "for i_t in range(1)" in result
    assert "t_t = alloc" in result


def test_a_loop_is_known_by_all_its_accesses():
    text = """
        def f(W: f32[8], A: f32[8], *, C: f32[8], D: f32[8]):
            for i in range(8):
                invoke("add_4xf32", W[0], C[0])
                D[i] = A[i]
    """
    assert "'C'" in why_not_independent(parse(text), "i")


INSTRUCTED = """
    def f(A: f32[8], V: f32[4], *, B: f32[8], C: f32[8]):
        for q in range(8):
            C[q] = A[q]
        t = alloc(f32[8], "local")
        for i in range(8):
            t[i] = C[i]
        {between}
        for j in range(8):
            B[j] = t[j]
"""


def test_an_instruction_may_overwrite_what_a_nest_reads():
    text = INSTRUCTED.format(between='invoke("add_4xf32", V[0], C[4])')
    with pytest.raises(ScheduleError, match="'C', which 't' needs, is written"):
        check(text, ("compute_at", ("t", "j")))
    other = text.replace("C[4])", "B[4])")
    check(other.replace("B[j] = t[j]", "B[j] = t[j] + 1.0"), ("compute_at", ("t", "j")))


def test_an_instruction_may_read_what_a_consumer_writes():
    text = INSTRUCTED.format(between='invoke("add_4xf32", B[0], C[4])')
    text = text.replace(
        "for q in range(8):",
        "for b in range(8):\n            B[b] = 2.0\n        for q in range(8):",
    )
    with pytest.raises(ScheduleError, match="'B' is used by what runs before"):
        check(text, ("reverse_compute_at", ("t", "i")))
    check(text.replace("B[0], C[4]", "V[0], C[4]"), ("reverse_compute_at", ("t", "i")))


def test_a_loop_that_may_run_less_than_never_is_partitioned():
    text = """
        def f(n: size, A: f32[n], *, B: f32[n]):
            for q in range(n):
                B[q] = 0.0
            for i in range(n - 3):
                B[i] = A[i]
    """
    check(text, ("partition", ("i", "max(n - 3, 0) // 4 * 4", "_t")))


def test_two_loops_that_run_less_than_never_stay_so_when_fused():
    text = """
        def f(n: size, A: f32[n, n], *, B: f32[13, 13]):
            for q in range(9):
                for p in range(9):
                    B[q, p] = 0.0
            for i in range(n - 4):
                for j in range(n - 5):
                    B[i, j] = A[i, j]
    """
    check(text, ("fuse", ("i", "j", "ij")))


def test_partial_sums_keep_the_guard_of_their_element():
    text = """
        def f(n: size, A: f32[n, 6], *, s: f32[n]):
            for i in range(16):
                if i < n:
                    s[i] = 0.0
                for k in range(6):
                    if i < n:
                        s[i] += A[i, k]
    """
    check(text, ("rfactor", ("s", "k", "p")))


def test_partial_sums_drop_the_guard_of_a_summand():
    text = """
        def f(n: size, A: f32[n, 6], *, s: f32[n]):
            for i in range(n):
                s[i] = 1.0
                for ko in range(2):
                    for ki in range(4):
                        if ko * 4 + ki < 6:
                            s[i] *= A[i, ko * 4 + ki]
    """
    check(text, ("rfactor", ("s", "ki", "p")))


def test_a_box_of_loops_that_do_not_run_is_empty():
    text = """
        def f(n: size, A: f32[n], *, B: f32[n]):
            for ii in range(3):
                for io in range((n + 2) // 3):
                    if io * 3 + ii < n:
                        B[io * 3 + ii] = A[io * 3 + ii]
    """
    check(text, ("cache_read", ("A", "ii", "a", "local")))
    check(text, ("cache_write", ("B", "ii", "b", "local")))


def test_a_store_that_stands_in_two_places_is_told_apart() -> None:
    func = parse("def f(*, A: f32[3]):\n    A[0] = 1.0\n")
    twice = Block((func.body, For("i", ONE, LoopKind.SERIAL, func.body)))
    assert len({id(s.store) for s in sites(twice)}) == 1
    apart = told_apart(twice)
    assert apart == twice
    assert len({id(s.store) for s in sites(apart)}) == 2


@pytest.mark.parametrize("lines", [1, 3, 7, 11, 12, 13, 25])
def test_all_lines_of_memory_are_asked_for_in_order_by_runs_of_any_number(lines):
    func = parse(f"""
        def f(A: bf16[5, {lines}, 32], *, B: f32[5]):
            for i in range(5):
                B[i] = 0.0
                for j in range(4):
                    for m in range(3):
                        for k in range({lines}):
                            for l in range(32):
                                B[i] += f32(A[i, k, l])
    """)
    result = replay(func, [Step("prefetch", ("i", "m", "A", 0, 1, 1))])
    assert_same(func, result)
    (ask,) = (s for s in walk(result.body) if isinstance(s, Invoke))
    count = const_size(loops(result.body)["m_l1"].extent)
    ((_, place),) = ask.operands
    asked = [
        const_size(
            canonical(substitute(place[2], {"j": index(j), "m": index(m), "m_l1": index(n)}))
        )
        // 32
        for j in range(4)
        for m in range(3)
        for n in range(count)
    ]
    assert set(range(lines)) <= set(asked)
    assert max(asked) <= lines  # rounding up adds but a little behind the last
    firsts = asked[::count]
    assert firsts == sorted(firsts)
    assert count == -(-lines // 12)  # as few at a time as there can be


def test_what_is_asked_for_stands_under_the_guard_around_the_loops():
    func = parse("""
        def f(n: size, A: bf16[5, 4, 32], *, B: f32[5]):
            for i in range(5):
                B[i] = 0.0
                for j in range(2):
                    for k in range(4):
                        for l in range(32):
                            if i < n:
                                B[i] += f32(A[i, k, l])
    """)
    result = replay(func, [Step("prefetch", ("i", "j", "A", 0, 1, 1))])
    assert_same(func, result)
    (guard,) = (s for s in walk(result.body) if isinstance(s, If))
    assert any(isinstance(s, Invoke) for s in walk(guard.body))
    assert guard is loops(result.body)["j"].body


def test_a_loop_asks_for_what_others_beside_it_read():
    func = parse("""
        def f(A: bf16[5, 4, 32], *, B: f32[5]):
            for i in range(5):
                t = alloc(f32[4], "local")
                for j in range(4):
                    t[j] = 0.0
                    for l in range(32):
                        t[j] += f32(A[i, j, l])
                B[i] = 0.0
                for m in range(2):
                    B[i] += t[m] * t[m + 2]
    """)
    result = replay(func, [Step("prefetch", ("i", "m", "A", 0, 1, 2))])
    assert_same(func, result)
    (ask,) = (s for s in walk(loops(result.body)["m"].body) if isinstance(s, Invoke))
    assert const_size(loops(result.body)["m_l2"].extent) == 2  # of four lines, half in each
    ((_, (next_one, *_)),) = ask.operands
    assert next_one == Var("i") + 1


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("inside", ["j", "k"])
def test_every_line_of_a_later_part_is_asked_for_in_one_iteration(lines, inside):
    func = parse(f"""
        def f(n: size, A: bf16[6, n, {lines}, 32], *, B: f32[n]):
            for i in range(n):
                B[i] = 0.0
                for j in range(4):
                    for k in range(2):
                        for l in range({lines}):
                            for m in range(16):
                                B[i] += f32(A[j, i, l, m + k * 16])
    """)
    result = replay(func, [Step("prefetch_parts", ("j", "j", inside, "A", 2, 1))])
    assert_same(func, result)
    (ask,) = (s for s in walk(result.body) if isinstance(s, Invoke))
    ((_, place),) = ask.operands
    count = const_size(loops(result.body)[f"{inside}_r1"].extent)
    runs = range(2 if inside == "k" else 1)
    numbers = [{"k": index(k), f"{inside}_r1": index(n)} for k in runs for n in range(count)]
    found = [const_size(canonical(substitute(place[3], values))) // 32 for values in numbers]
    assert set(range(lines)) <= set(found)
    assert max(found) <= lines  # rounding up adds but a little behind the last
    assert count == -(-lines // len(runs))
