"""A few bits of a word as a float: they become the fraction of one whose exponent is put in front.

`2**23 + n` has the bits of `n` at the end of its fraction; of `2**(23 - i) + n` they begin `i` bits
further up. So bits that are neither shifted nor converted are a float by two instructions.

Vectors that look up one of 16 floats by the lowest four bits of each lane need no mask.
"""

from __future__ import annotations

from dlc.codegen.llvm.arith import Arith
from dlc.codegen.llvm.ir import Val, lane_constants

WORD_BITS = 32
FRACTION_BITS = 23
MOST_BITS = 8
_BIAS = 127
_LOOK_UP = "llvm.x86.avx512.permvar.sf.512"
_TABLE_BITS = 4


def bit_field(arith: Arith, word: Val, place: int, bits: int, less: float) -> Val:
    """`(word >> place & mask) - less` as a float, exactly; `less` is a number of `bits` bits."""
    is_table = bits == _TABLE_BITS and word.lanes == 1 << bits and arith.looks_up
    # Every other one: additions and shuffles run beside each other, on ports of their own.
    if is_table and place // bits % 2 == 0:
        table = lane_constants([n - less for n in range(1 << bits)], "float")
        return arith.builder.call(_LOOK_UP, table, table, _shifted(arith, word, place))
    if place + bits > FRACTION_BITS:  # one shift serves all fields of the upper half
        half = WORD_BITS // 2
        word, place = _shifted(arith, word, half), place - half
    exponent = FRACTION_BITS - place
    kept = arith.op("and", word, arith.const(((1 << bits) - 1) << place, word))
    filled = arith.op("or", kept, arith.const((_BIAS + exponent) << FRACTION_BITS, word))
    number = arith.convert("bitcast", filled, "float")
    return arith.op("fsub", number, arith.const(2.0**exponent + less, number))


def _shifted(arith: Arith, word: Val, count: int) -> Val:
    return arith.op("lshr", word, arith.const(count, word)) if count else word
