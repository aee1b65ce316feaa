"""Hardware instructions as data: a name and a meaning.

The meaning is loop IR text over small buffers of constant shape. `tensorize` replaces a nest that
equals it by one `Invoke`; the interpreter runs the text; a backend has an emitter of that name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dlc.core.errors import InternalError
from dlc.schedule.loop import Func


@dataclass(frozen=True)
class Instruction:
    """One instruction. Operands are the parameters of the meaning, inputs first.

    An operand of rank r covers the last r dimensions of the buffer it is applied to.
    """

    name: str
    meaning: str

    @functools.cached_property
    def func(self) -> Func:
        """The meaning, parsed; its parameters give the shapes of the operands."""
        from dlc.schedule.text import parse_func  # the registry is imported by the verifier

        return parse_func(self.meaning)


INSTRUCTIONS: dict[str, Instruction] = {}


def declare(name: str, meaning: str) -> Instruction:
    """Add an instruction to the registry."""
    if name in INSTRUCTIONS:
        raise InternalError(detail=f"instruction '{name}' is declared twice")
    INSTRUCTIONS[name] = Instruction(name, meaning)
    return INSTRUCTIONS[name]


# Four products of unsigned and signed bytes added to a 32-bit sum, as `vpdpbusd` does per lane.
# Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPDPBUSD.
DOT_4XI8_I32 = declare(
    "dot_4xi8_i32",
    """
def dot_4xi8_i32(a: u8[4], b: i8[4], *, c: i32[1]):
    for k in range(4):
        c[0] += i32(a[k]) * i32(b[k])
""",
)

# All threads of a GPU's block wait for each other. Thread loops that follow each other have run
# one after the other anyway, so it computes nothing.
BARRIER = declare(
    "barrier",
    """
def barrier():
    pass
""",
)
