"""Each invariant of loop IR is checked; every problem is reported at once."""

import pytest

from dlc.core.errors import VerifyError
from dlc.core.types import DType
from dlc.schedule.loop import Alloc, Buffer, For, Func, If, Invoke, LoopKind, Scope, Store, block
from dlc.schedule.verify import verify_func
from dlc.te.expr import Const, Load, Var, const
from dlc.te.types import TensorType
from tests.schedule.data import FULL, parse

ROW = TensorType((Var("n"), 3))
AT, ZERO = Var("i"), Const(0, DType.INDEX)
NIL = const(0.0, DType.F32)
STORE = Store("B", (AT, ZERO), NIL)


def func(body, **changes):
    fields = {
        "name": "f",
        "sizes": ("n",),
        "inputs": (Buffer("A", ROW),),
        "outputs": (Buffer("B", ROW),),
        "body": body,
    }
    return Func(**(fields | changes))


def loop(body=STORE, var="i", extent=Var("n"), kind=LoopKind.SERIAL):  # noqa: B008 - a value
    return For(var, extent, kind, body)


def local(body, shape=(3,), scope=Scope.LOCAL, name="t"):
    return Alloc(Buffer(name, TensorType(shape)), scope, body)


BROKEN = {
    "'i' is not bound here": func(STORE),
    "'j' is not bound here": func(loop(If(Var("j") < 3, STORE))),
    "'i' is bound 2 times": func(loop(loop())),
    "'n' is bound 2 times": func(loop(Store("B", (Var("n"), ZERO), NIL), var="n")),
    "'A' is bound 2 times": func(loop(Store("B", (Var("A"), ZERO), NIL), var="A")),
    "'t' is bound 2 times": func(block(local(loop()), local(loop(var="j", body=block())))),
    "'max' cannot be a name": func(loop(Store("B", (Var("max"), ZERO), NIL), var="max")),
    "'if' cannot be a name": func(loop(), inputs=(Buffer("if", ROW),)),
    "extent of loop 'j' reads 'i'": func(loop(loop(var="j", extent=AT))),
    "extent 0": func(loop(loop(var="j", extent=ZERO))),
    "extent of vectorize loop 'i' is no constant": func(loop(kind=LoopKind.VECTOR)),
    "extent of unroll loop 'i' is no constant": func(loop(kind=LoopKind.UNROLL)),
    "parallel loop 'i' is inside a vector loop": func(
        loop(loop(kind=LoopKind.PARALLEL), "j", Const(4, DType.INDEX), LoopKind.VECTOR)
    ),
    "shape of 't' reads 'm'": func(local(loop(), shape=(Var("m"),))),
    "shape of 't' is -1": func(local(loop(), shape=(-1,))),
    "'t' has no constant shape": func(local(loop(), shape=(Var("n"),), scope=Scope.REGISTER)),
    "'t' is not declared here": func(block(loop(Store("t", (AT,), NIL)), loop(local(STORE), "j"))),
    "'B' has 2 dimensions and 1 indices": func(loop(Store("B", (AT,), NIL))),
    "'A' has 2 dimensions and 1 indices": func(
        loop(Store("B", (AT, ZERO), Load("A", (AT,), DType.F32)))
    ),
    "'B' holds f32, not f64": func(loop(Store("B", (AT, ZERO), const(0, DType.F64)))),
    "'A' holds f32, not i32": func(
        loop(If(Load("A", (AT, ZERO), DType.I32) < const(3, DType.I32), STORE))
    ),
    "input 'A' is written": func(loop(Store("A", (AT, ZERO), NIL))),
    "a condition of type index": func(loop(If(AT, STORE))),
    "indexed by something not an index": func(loop(Store("B", (AT, const(0, DType.I32)), NIL))),
    "not an output with an input": func(loop(), in_place=(("A", "B"),)),
    "which differ in type": func(
        loop(), inputs=(Buffer("A", TensorType((3,))),), in_place=(("B", "A"),)
    ),
    "in_place names a buffer twice": func(
        loop(), inputs=(Buffer("A", ROW), Buffer("C", ROW)), in_place=(("B", "A"), ("B", "C"))
    ),
    "no instruction 'nop'": func(Invoke("nop", ())),
    "has 3 operands, not 0": func(Invoke("dot_4xi8_i32", ())),
    "'A' holds f32, not u8": func(
        Invoke("dot_4xi8_i32", (("A", (ZERO, ZERO)), ("A", (ZERO, ZERO)), ("B", (ZERO, ZERO))))
    ),
}


def test_a_good_function_passes():
    verify_func(parse(FULL), when="now")
    verify_func(func(loop()), when="now")


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_invariant_is_reported(problem):
    with pytest.raises(VerifyError, match=problem):
        verify_func(BROKEN[problem], when="now")


def test_a_vector_loop_holds_no_other():
    four = Const(4, DType.INDEX)
    inner = loop(kind=LoopKind.VECTOR, extent=four)
    with pytest.raises(VerifyError, match="vectorize loop 'i' is inside a vector loop"):
        verify_func(func(loop(inner, "j", four, LoopKind.VECTOR)), when="now")


def test_all_problems_are_reported_at_once():
    body = block(STORE, Store("C", (ZERO,), NIL))
    with pytest.raises(VerifyError) as caught:
        verify_func(func(body), when="after a test")
    message = str(caught.value)
    assert "'i' is not bound" in message
    assert "'C' is not declared" in message
    assert "after a test" in message


def test_an_instruction_may_not_write_an_input():
    text = """
        def f(a: u8[4], b: i8[4], c: i32[1], *, d: i32[1]):
            invoke("dot_4xi8_i32", a[0], b[0], c[0])
    """
    with pytest.raises(VerifyError, match="input 'c' is written"):
        verify_func(parse(text), when="now")


def test_an_operand_has_room_for_the_region():
    text = """
        def f(a: u8[()], b: i8[4], *, d: i32[1]):
            invoke("dot_4xi8_i32", a[()], b[0], d[0])
    """
    with pytest.raises(VerifyError, match="'a' has fewer dimensions"):
        verify_func(parse(text), when="now")


def test_what_is_right_in_one_place_is_wrong_in_another():
    fine, four = loop(), Const(4, DType.INDEX)
    verify_func(func(fine), when="now")
    with pytest.raises(VerifyError, match="buffer 'B' is not declared here"):
        verify_func(func(fine, outputs=()), when="now")
    with pytest.raises(VerifyError, match="'B' has 1 dimensions and 2 indices"):
        verify_func(func(fine, outputs=(Buffer("B", TensorType((3,))),)), when="now")
    with pytest.raises(VerifyError, match="input 'B' is written"):
        verify_func(func(fine, inputs=(Buffer("B", ROW),), outputs=()), when="now")
    with pytest.raises(VerifyError, match="reads 'n', which is no size variable"):
        verify_func(func(fine, sizes=()), when="now")
    with pytest.raises(VerifyError, match="'i' is bound 2 times"):
        verify_func(func(loop(fine)), when="now")
    same = loop(extent=four, kind=LoopKind.PARALLEL)
    verify_func(func(same), when="now")
    with pytest.raises(VerifyError, match="parallel loop 'i' is inside a vector loop"):
        verify_func(func(loop(same, "j", four, LoopKind.VECTOR)), when="now")


def test_an_allocation_answers_for_its_buffer_only():
    inner = loop(Store("t", (ZERO,), NIL))
    verify_func(func(local(inner)), when="now")
    with pytest.raises(VerifyError, match="'t' has 2 dimensions and 1 indices"):
        verify_func(func(local(inner, shape=(3, 3))), when="now")
    with pytest.raises(VerifyError, match="buffer 't' is not declared here"):
        verify_func(func(block(inner, local(loop(var="j", body=block())))), when="now")
