"""Size expressions as LLVM IR text: the arithmetic a host program does between kernels.

Sizes come from outside, so nothing here may trap or wrap: sums and products that leave 64 bits
and divisions by zero make the run fail with a message. An expression is computed once per scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_never

from dlc.core.errors import CodegenError
from dlc.core.types import INDEX, DType
from dlc.te.expr import Binary, BinOp, Cast, Const, Expr, Load, Select, Unary, UnOp, Var
from dlc.te.transform import loads

_CHECKED = {BinOp.ADD: "sadd", BinOp.SUB: "ssub", BinOp.MUL: "smul"}
_COMPARE = {BinOp.LT: "slt", BinOp.LE: "sle", BinOp.EQ: "eq", BinOp.NE: "ne"}
_EXTREME = {BinOp.MIN: "smin", BinOp.MAX: "smax"}
_BITS = {BinOp.BITAND: "and", BinOp.BITOR: "or", BinOp.BITXOR: "xor"}
_INTEGERS = (INDEX, DType.I64)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run fails: a text with `{}` for each value, an i64 the function has computed.

    No memory holds a tensor, either, whose number of elements leaves 64 bits.
    """

    text: str
    values: tuple[str, ...] = ()
    lacks_memory: bool = False


TOO_LARGE = Failure(
    "the sizes of the inputs are too large: an element count leaves 64 bits", lacks_memory=True
)
ZERO_DIVISOR = "a size is divided by another one that is 0"
_NO_MEMORY = 2  # DLC_RUN_NO_MEMORY of dlc/abi.h
_REPORT_BYTES = 512  # as many as the runtime keeps

DECLARATIONS = "".join(
    f"declare {{ i64, i1 }} @llvm.{name}.with.overflow.i64(i64, i64)\n"
    for name in _CHECKED.values()
) + "".join(f"declare i64 @llvm.{name}.i64(i64, i64)\n" for name in _EXTREME.values())
DECLARATIONS += "declare i32 @snprintf(ptr, i64, ptr, ...)\n"


Element = Callable[[Load], str]  # the address of an element, as text


class HostBuilder:
    """Writes the body of one host function: numbered values and labels, failures at the end."""

    def __init__(self, unit: str, messages: dict[str, str], element: Element) -> None:
        self.unit = unit
        self._element = element
        self.lines: list[str] = []
        self.slots: list[str] = []  # memory of the function, at its start
        self._messages = messages  # text -> global that holds it, shared by all functions
        self._failures: dict[Failure, str] = {}  # what is wrong -> label that reports it
        self._report = ""  # memory for a text with values
        self._cause: str | Failure | None = None  # what is wrong where arithmetic fails
        self._values: dict[Expr, str] = {}
        self._count = 0
        self._label = "entry"

    def line(self, text: str) -> None:
        """Append one instruction."""
        self.lines.append(f"  {text}")

    def value(self, text: str) -> str:
        """Append an instruction that gives a value; return the value's name."""
        self._count += 1
        self.line(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def slot(self, kind: str, value: str = "") -> str:
        """Memory that lives as long as the call, with a value at its start."""
        self._count += 1
        self.slots.append(f"  %v{self._count} = alloca {kind}, align 8")
        if value:
            self.slots.append(f"  store {kind} {value}, ptr %v{self._count}, align 8")
        return f"%v{self._count}"

    def fresh_label(self, stem: str) -> str:
        """A new label."""
        self._count += 1
        return f"{stem}{self._count}"

    def start(self, label: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{label}:")
        self._label = label

    @property
    def label(self) -> str:
        """The basic block that instructions go to."""
        return self._label

    def bind(self, name: str, value: str) -> None:
        """Let a size variable have a value, until the scope ends."""
        self._values[Var(name)] = value

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forget at the end what was computed inside: it may run on some paths only."""
        outer = dict(self._values)
        yield
        self._values = outer

    @contextmanager
    def failing(self, failure: str | Failure) -> Iterator[None]:
        """What a run says where the sizes computed inside leave 64 bits or divide by 0."""
        outer, self._cause = self._cause, failure
        yield
        self._cause = outer

    def known(self, size: str) -> str:
        """The value of a size variable, or "" where it has none here."""
        return self._values.get(Var(size), "")

    def require(self, cond: str, failure: str | Failure) -> None:
        """Leave the function with a failure unless the i1 `cond` holds.

        Failures that show the same values share a block: what shows a value comes behind it.
        """
        failure = Failure(failure) if isinstance(failure, str) else failure
        label = self._failures.setdefault(failure, f"fail{len(self._failures)}")
        if failure.values and not self._report:
            self._report = self.slot(f"[{_REPORT_BYTES} x i8]")
        after = self.fresh_label("holds")
        self.line(f"br i1 {cond}, label %{after}, label %{label}")
        self.start(after)

    def failures(self) -> list[str]:
        """The blocks that report failures; they end the function, all of them in the last block."""
        lines, texts, results = [], [], []
        for failure, label in self._failures.items():
            lines.append(f"{label}:")
            if not failure.values:
                text = self._message(failure.text)
            else:
                text, form = self._report, failure.text.replace("%", "%%").replace("{}", "%lld")
                values = "".join(f", i64 {value}" for value in failure.values)
                arguments = f"ptr {text}, i64 {_REPORT_BYTES}, ptr {self._message(form)}{values}"
                lines.append(f"  call i32 (ptr, i64, ptr, ...) @snprintf({arguments})")
            lines.append("  br label %failed")
            texts.append(f"[{text}, %{label}]")
            results.append(f"[{_NO_MEMORY if failure.lacks_memory else 1}, %{label}]")
        if texts:
            lines += [
                "failed:",
                f"  %failed_text = phi ptr {', '.join(texts)}",
                f"  %failed_result = phi i32 {', '.join(results)}",
                "  %failed_self = load ptr, ptr %host, align 8",
                "  %failed_at = getelementptr i8, ptr %host, i64 24",
                "  %failed_fn = load ptr, ptr %failed_at, align 8",
                "  call void %failed_fn(ptr %failed_self, ptr %failed_text)",
                "  ret i32 %failed_result",
            ]
        return lines

    def _message(self, text: str) -> str:
        return self._messages.setdefault(text, f"@dlc_message{len(self._messages)}")

    def expr(self, expr: Expr) -> str:
        """The value of an expression: a constant or an SSA name (i64, or i1 for bool)."""
        if isinstance(expr, Const):
            return str(expr.value).lower()
        known = self._values.get(expr)
        if known is None:
            known = self._compute(expr)
            if not loads(expr):  # memory changes
                self._values[expr] = known
        return known

    def _compute(self, expr: Expr) -> str:  # noqa: C901 - a case per node
        match expr:
            case Var(name, _):
                raise self._error(f"size variable '{name}' has no value here")
            case Binary(BinOp.AND, a, b):
                return self._choose(a, b, Const(False, DType.BOOL))
            case Binary(BinOp.OR, a, b):
                return self._choose(a, Const(True, DType.BOOL), b)
            case Binary(op, a, b) if a.dtype in _INTEGERS or op in _COMPARE or op in _BITS:
                return self._binary(op, a, b)
            case Unary(UnOp.NEG, a) if a.dtype in _INTEGERS:
                return self._binary(BinOp.SUB, Const(0, a.dtype), a)
            case Unary(UnOp.NOT, a):
                return self.value(f"xor i1 {self.expr(a)}, true")
            case Cast(dtype, a) if dtype in _INTEGERS and a.dtype is DType.BOOL:
                return self.value(f"zext i1 {self.expr(a)} to i64")
            case Cast(dtype, a) if dtype in _INTEGERS and a.dtype.is_int:
                return self.expr(a)
            case Load(_, _, dtype) if dtype.is_int or dtype is DType.BOOL:
                return self._load(expr)
            case Select(cond, then, other):
                return self._choose(cond, then, other)
            case Const() | Binary() | Unary() | Cast() | Load():
                raise self._error(f"'{expr}' is no size expression")
            case _:
                assert_never(expr)

    def _load(self, load: Load) -> str:
        """An integer as an i64, a bool as an i1. Memory may have any alignment."""
        at, bits = self._element(load), load.dtype.size_bytes * 8
        value = self.value(f"load i{bits}, ptr {at}, align {load.dtype.size_bytes}")
        if load.dtype is DType.BOOL:
            return self.value(f"icmp ne i8 {value}, 0")
        if bits == 64:
            return value
        return self.value(f"{'sext' if load.dtype.is_signed else 'zext'} i{bits} {value} to i64")

    def _binary(self, op: BinOp, a: Expr, b: Expr) -> str:
        x, y = self.expr(a), self.expr(b)
        kind = "i1" if a.dtype is DType.BOOL else "i64"
        if op in _COMPARE:
            return self.value(f"icmp {_COMPARE[op]} {kind} {x}, {y}")
        if op in _BITS:
            return self.value(f"{_BITS[op]} {kind} {x}, {y}")
        if op in _CHECKED:
            name = f"llvm.{_CHECKED[op]}.with.overflow.i64"
            pair = self.value(f"call {{ i64, i1 }} @{name}(i64 {x}, i64 {y})")
            overflow = self.value(f"extractvalue {{ i64, i1 }} {pair}, 1")
            self.require(self.value(f"xor i1 {overflow}, true"), self._cause or TOO_LARGE)
            return self.value(f"extractvalue {{ i64, i1 }} {pair}, 0")
        if op in _EXTREME:
            return self.value(f"call i64 @llvm.{_EXTREME[op]}.i64(i64 {x}, i64 {y})")
        if op in (BinOp.FLOORDIV, BinOp.MOD):
            return self._divide(op, x, y, b)
        raise self._error(f"'{op}' is no operation on sizes")

    def _divide(self, op: BinOp, x: str, y: str, divisor: Expr) -> str:
        """Round toward minus infinity: where the remainder has the wrong sign, correct it."""
        if not isinstance(divisor, Const):
            self.require(self.value(f"icmp ne i64 {y}, 0"), self._cause or ZERO_DIVISOR)
            # The one quotient that leaves 64 bits is lowest // -1; x86 traps on it.
            lowest = self.value(f"icmp eq i64 {x}, {-(2**63)}")
            minus_one = self.value(f"icmp eq i64 {y}, -1")
            both = self.value(f"and i1 {lowest}, {minus_one}")
            self.require(self.value(f"xor i1 {both}, true"), self._cause or TOO_LARGE)
        elif divisor.value == 0:
            raise self._error("a size is divided by 0")
        elif int(divisor.value) > 0 and int(divisor.value).bit_count() == 1:
            power = int(divisor.value).bit_length() - 1
            if op is BinOp.FLOORDIV:
                return self.value(f"ashr i64 {x}, {power}")
            return self.value(f"and i64 {x}, {int(divisor.value) - 1}")
        rest = self.value(f"srem i64 {x}, {y}")
        inexact = self.value(f"icmp ne i64 {rest}, 0")
        signs = self.value(f"xor i64 {rest}, {y}")
        opposed = self.value(f"icmp slt i64 {signs}, 0")
        wrong = self.value(f"and i1 {inexact}, {opposed}")
        if op is BinOp.MOD:
            shifted = self.value(f"add i64 {rest}, {y}")
            return self.value(f"select i1 {wrong}, i64 {shifted}, i64 {rest}")
        quotient = self.value(f"sdiv i64 {x}, {y}")
        lower = self.value(f"sub i64 {quotient}, 1")
        return self.value(f"select i1 {wrong}, i64 {lower}, i64 {quotient}")

    def _choose(self, cond: Expr, then: Expr, other: Expr) -> str:
        """Evaluate the chosen arm only: the other one may divide by zero."""
        test = self.expr(cond)
        arms = [(self.fresh_label("then"), then), (self.fresh_label("else"), other)]
        after = self.fresh_label("join")
        self.line(f"br i1 {test}, label %{arms[0][0]}, label %{arms[1][0]}")
        incoming = []
        for label, arm in arms:
            self.start(label)
            with self.scope():
                result = self.expr(arm)
            incoming.append(f"[{result}, %{self.label}]")
            self.line(f"br label %{after}")
        self.start(after)
        kind = "i1" if then.dtype is DType.BOOL else "i64"
        return self.value(f"phi {kind} {', '.join(incoming)}")

    def _error(self, reason: str) -> CodegenError:
        return CodegenError(stage="the host program's emitter", unit=self.unit, reason=reason)


def emit_messages(messages: Mapping[str, str]) -> str:
    """The texts of failures as constants, each ending in a zero byte."""
    lines = []
    for message, name in messages.items():
        data = message.encode() + b"\0"
        plain = bytes(range(32, 127)).translate(None, b'"\\')
        text = "".join(chr(b) if b in plain else f"\\{b:02X}" for b in data)
        lines.append(f'{name} = internal unnamed_addr constant [{len(data)} x i8] c"{text}"\n')
    return "".join(lines)
