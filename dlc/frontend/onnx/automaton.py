r"""Regular expressions as automata over the bytes of UTF-8: a table, built while importing.

A text is matched by one look-up for each byte, so no pattern and no text makes it slow; where
matches inside of a text are looked for, each start may read as far as the end. What is not regular
(references back, looking around) has no such automaton. Python's own parser reads the pattern; the
classes `\d`, `\w` and `\s` are those of ASCII, as in RE2. What RE2 reads otherwise is refused.

Source: https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from dlc.graph.op import Array
from dlc.graph.ops.tokens import AT_END, BEFORE_OTHER, BEFORE_WORD

_MOST_STATES = 4096
_MOST_PARTS = 100_000
_MOST_WORK = 10_000_000  # parts that are looked at
_LAST = 0x10FFFF
_CLASSES = {
    code.CATEGORY_DIGIT: [(0x30, 0x39)],
    code.CATEGORY_SPACE: [(0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20)],  # no vertical tab
    code.CATEGORY_WORD: [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
}
_NEGATED = {
    code.CATEGORY_NOT_DIGIT: code.CATEGORY_DIGIT,
    code.CATEGORY_NOT_SPACE: code.CATEGORY_SPACE,
    code.CATEGORY_NOT_WORD: code.CATEGORY_WORD,
}
_ALIKE = {"Kk": 0x212A, "Ss": 0x17F}  # the sign for Kelvin, and the long s
Ranges = list[tuple[int, int]]


class NotRegular(Exception):
    """Why a pattern has no automaton."""


def automaton(pattern: str) -> tuple[Array, Array]:
    """The next state for each state and byte, and whether a text may end in a state.

    State 1 is the first; in state 0 nothing can match any more.

    Raises:
        NotRegular: the pattern is wrong, is not regular, or needs too many states.
    """
    maker = _Determiner(_parsed(pattern))
    table = maker.table()
    ends = [maker.accepts(state) for state in maker.states]
    return table, np.array(ends, np.uint8)


def searchers(patterns: Iterable[str]) -> tuple[Array, Array, Array]:
    """Automata that find matches anywhere in a text, their states one behind the other.

    See `graph/ops/tokens.py` for the tables: next states, where a match may end, and where begin.

    Raises:
        NotRegular: a pattern is wrong, is not regular, or all need too many states.
    """
    tables, ends, begins = [], [], []
    base = 0
    for pattern in patterns:
        maker = _Determiner(_parsed(pattern))
        first = [maker.number(maker.inside(after_word=after)) for after in (False, True)]
        table = maker.table()
        if base + len(table) > np.iinfo(np.uint16).max:
            raise NotRegular("together they need too many states")
        ends += [maker.places_to_end(state) for state in maker.states]
        tables.append(np.where(table > 0, table + base, 0))
        begins.append([base + 1, *(base + number for number in first)])
        base += len(table)
    stacked = np.concatenate(tables).astype(np.uint16)
    return stacked, np.array(ends, np.uint8), np.array(begins, np.uint16)


_OTHER_MEANING = {
    r"\[:\^?\w+:\]": "a class as [:alpha:]",
    r"(?<!\\)\{,\d*\}": "a number of repetitions without the least",
}
"""What means something else to RE2 than to Python's parser."""


def _parsed(pattern: str) -> _Whole:
    for other, what in _OTHER_MEANING.items():
        if re.search(other, pattern):
            raise NotRegular(f"{what} is not handled")
    try:
        parsed = parser.parse(pattern, re.ASCII)
    except (re.error, RecursionError, OverflowError, ValueError) as error:
        raise NotRegular(str(error)) from error
    if parsed.state.flags & re.VERBOSE:
        raise NotRegular("the flag x")
    return _Parts(parsed.state.flags).of(parsed)


@dataclass(slots=True)
class _Part:
    """A state of the automaton that may be in several at once."""

    empty: list[int] = field(default_factory=list)  # reached without a byte
    at_start: list[int] = field(default_factory=list)  # ... where no byte was read yet
    at_end: list[int] = field(default_factory=list)  # ... where no byte is left
    at_edge: list[int] = field(default_factory=list)  # ... at an edge of a word
    off_edge: list[int] = field(default_factory=list)  # ... where there is none
    bytes_: tuple[int, int, int] | None = None  # first byte, last byte, where they lead


@dataclass(slots=True)
class _Whole:
    parts: list[_Part]
    start: int
    end: int


class _Parts:
    """Builds the automaton of a parsed pattern, back to front: what follows is known."""

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.parts: list[_Part] = []

    def of(self, parsed: Any) -> _Whole:
        end = self.new()
        return _Whole(self.parts, self.sequence(parsed, end), end)

    def new(self, **fields: Any) -> int:
        if len(self.parts) >= _MOST_PARTS:
            raise NotRegular("it is too long")
        self.parts.append(_Part(**fields))
        return len(self.parts) - 1

    def sequence(self, items: Iterable[Any], to: int) -> int:
        for operator, argument in reversed(list(items)):
            to = self.item(operator, argument, to)
        return to

    def item(self, operator: Any, argument: Any, to: int) -> int:
        match operator:
            case code.LITERAL:
                return self.characters(self.folded([(argument, argument)]), to)
            case code.NOT_LITERAL:
                return self.characters(_outside(self.folded([(argument, argument)])), to)
            case code.ANY:
                dot_all = self.flags & re.DOTALL
                return self.characters([(0, _LAST)] if dot_all else _outside([(10, 10)]), to)
            case code.IN:
                return self.characters(self.members(argument), to)
            case code.BRANCH:
                return self.new(empty=[self.sequence(arm, to) for arm in argument[1]])
            case code.SUBPATTERN:
                _, added, removed, inner = argument
                return self.flagged(added, removed, inner, to)
            case code.MAX_REPEAT | code.MIN_REPEAT:
                low, high, inner = argument
                return self.repeated(low, high, inner, to)
            case code.AT:
                return self.anchored(argument, to)
        raise NotRegular(f"{str(operator).lower()} is not regular, or not handled")

    def flagged(self, added: int, removed: int, inner: Any, to: int) -> int:
        outer, self.flags = self.flags, (self.flags | added) & ~removed
        made = self.sequence(inner, to)
        self.flags = outer
        return made

    def repeated(self, low: int, high: Any, inner: Any, to: int) -> int:
        if high is code.MAXREPEAT:
            again = self.new()
            self.parts[again].empty = [self.sequence(inner, again), to]
            to = again
        else:
            last = to
            for _ in range(high - low):
                to = self.new(empty=[self.sequence(inner, to), last])
        for _ in range(low):
            to = self.sequence(inner, to)
        return to

    def anchored(self, where: Any, to: int) -> int:
        if self.flags & re.MULTILINE and where in (code.AT_BEGINNING, code.AT_END):
            raise NotRegular("the flag m")
        if where in (code.AT_BEGINNING, code.AT_BEGINNING_STRING):
            return self.new(at_start=[to])
        if where in (code.AT_END, code.AT_END_STRING):
            return self.new(at_end=[to])
        if where is code.AT_BOUNDARY:
            return self.new(at_edge=[to])
        assert where is code.AT_NON_BOUNDARY, where
        return self.new(off_edge=[to])

    def members(self, items: Iterable[Any]) -> Ranges:
        """The characters of a class in brackets."""
        found: Ranges = []
        negated = False
        for operator, argument in items:
            match operator:
                case code.NEGATE:
                    negated = True
                case code.LITERAL:
                    found.append((argument, argument))
                case code.RANGE:
                    found.append(argument)
                case code.CATEGORY if argument in _CLASSES:
                    found += _CLASSES[argument]
                case code.CATEGORY if argument in _NEGATED:
                    found += _outside(_CLASSES[_NEGATED[argument]])
                case _:
                    raise NotRegular(f"{str(operator).lower()} is not handled")
        found = self.folded(found)
        return _outside(found) if negated else found

    def folded(self, ranges: Ranges) -> Ranges:
        """The ranges, and the letters of the other case where case is of no account."""
        if not self.flags & re.IGNORECASE:
            return ranges
        others: Ranges = []
        for first, last in ranges:
            if 0x7F < last < _LAST:
                raise NotRegular("the case of characters beyond ASCII is not handled")
            for letters, alike in _ALIKE.items():
                if any(first <= ord(letter) <= last for letter in letters):
                    others.append((alike, alike))
            for start, shift in ((0x41, 32), (0x61, -32)):
                low, high = max(first, start), min(last, start + 25)
                if low <= high:
                    others.append((low + shift, high + shift))
        return ranges + others

    def characters(self, ranges: Ranges, to: int) -> int:
        """One character of these, as its bytes."""
        starts = [self.byte_run(run, to) for low, high in ranges for run in _utf8(low, high)]
        return self.new(empty=starts)

    def byte_run(self, run: Ranges, to: int) -> int:
        for low, high in reversed(run):
            to = self.new(bytes_=(low, high, to))
        return to


def _outside(ranges: Ranges) -> Ranges:
    """All characters that are in none of these ranges."""
    found: Ranges = []
    start = 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return [*found, (start, _LAST)] if start <= _LAST else found


def _utf8(low: int, high: int) -> list[Ranges]:
    """Runs of byte ranges that together are the encodings of the characters from low to high.

    A range is cut until all its first bytes go with all its second bytes, and so on.
    """
    if low > high:
        return []
    if low <= 0xDFFF and high >= 0xD800:  # no text holds halves of pairs
        return _utf8(low, min(high, 0xD7FF)) + _utf8(max(low, 0xE000), high)
    for last in (0x7F, 0x7FF, 0xFFFF):
        if low <= last < high:
            return _utf8(low, last) + _utf8(last + 1, high)
    first, final = chr(low).encode(), chr(high).encode()
    for tail in range(len(first) - 1, 0, -1):
        block = (1 << (6 * tail)) - 1
        if low & ~block != high & ~block:  # the bytes before the tail differ
            if low & block:
                return _utf8(low, low | block) + _utf8((low | block) + 1, high)
            if high & block != block:
                return _utf8(low, (high & ~block) - 1) + _utf8(high & ~block, high)
    return [list(zip(first, final, strict=True))]


@dataclass(frozen=True, slots=True)
class _State:
    """The parts reached; edges of words are crossed once the next byte is known."""

    parts: frozenset[int]
    start: bool = False
    after_word: bool = False


class _Determiner:
    """The automaton that is in one state at a time: numbers the states as they are found."""

    def __init__(self, whole: _Whole) -> None:
        self.whole = whole
        self.work = 0
        self.has_edges = any(part.at_edge or part.off_edge for part in whole.parts)
        first = _State(self.closed([whole.start], start=True), start=True)
        self.states = [_State(frozenset()), first]
        self.numbers = {state: i for i, state in enumerate(self.states)}

    def table(self) -> Array:
        """The next state for each state and byte."""
        rows = [np.zeros(256, np.uint16)]
        while len(rows) < len(self.states):
            rows.append(self.row(self.states[len(rows)]))
        return np.stack(rows)

    def inside(self, *, after_word: bool) -> _State:
        """Where a match begins inside of a text, behind a byte of a word or not."""
        return _State(self.closed([self.whole.start]), after_word=after_word and self.has_edges)

    def closed(
        self, found: Iterable[int], *, start: bool = False, end: bool = False, edge: object = None
    ) -> frozenset[int]:
        """What is reached without a byte; `edge`: whether this is one of a word, if that counts."""
        seen = set(found)
        pending = list(seen)
        while pending:
            part = self.whole.parts[pending.pop()]
            near = [*part.empty, *(part.at_start if start else ()), *(part.at_end if end else ())]
            if edge is not None:
                near += part.at_edge if edge else part.off_edge
            pending += [p for p in near if p not in seen]
            seen.update(near)
        self.work += len(seen)
        if self.work > _MOST_WORK:
            raise NotRegular("it takes too long")
        return frozenset(seen)

    def accepts(self, state: _State) -> bool:
        """Whether a text may end here."""
        edge = state.after_word if self.has_edges else None
        return self.whole.end in self.closed(state.parts, start=state.start, end=True, edge=edge)

    def places_to_end(self, state: _State) -> int:
        """Where a match may end that is in this state, as bits."""
        found = AT_END * self.accepts(state)
        for word, place in ((False, BEFORE_OTHER), (True, BEFORE_WORD)):
            edge = (word != state.after_word) if self.has_edges else None
            parts = self.closed(state.parts, start=state.start, edge=edge)
            found |= place * (self.whole.end in parts)
        return found

    def row(self, state: _State) -> Array:
        """The next state for each byte."""
        row = np.zeros(256, np.uint16)
        cuts = [(0, 256)]
        if self.has_edges:
            words = _CLASSES[code.CATEGORY_WORD]
            cuts = [(low, high + 1) for low, high in words]
            cuts += [(low, min(high, 255) + 1) for low, high in _outside(words)]
        for first, last in cuts:
            word = self.has_edges and any(a <= first <= b for a, b in _CLASSES[code.CATEGORY_WORD])
            edge = (word != state.after_word) if self.has_edges else None
            self.fill(
                row, first, last, self.closed(state.parts, start=state.start, edge=edge), word
            )
        return row

    def fill(self, row: Array, first: int, last: int, found: frozenset[int], word: bool) -> None:
        """The part of a row for the bytes from `first` on, before `last`."""
        runs = [run for p in found if (run := self.whole.parts[p].bytes_) is not None]
        edges = {first, last, *(low for low, _, _ in runs), *(high + 1 for _, high, _ in runs)}
        places = sorted(e for e in edges if first <= e <= last)
        for low, after in itertools.pairwise(places):
            parts = self.closed(to for a, b, to in runs if a <= low <= b)
            if parts:
                row[low:after] = self.number(_State(parts, after_word=word))

    def number(self, state: _State) -> int:
        """The number of a state, a new one if need be."""
        if state not in self.numbers:
            if len(self.states) >= _MOST_STATES:
                raise NotRegular(f"it needs more than {_MOST_STATES} states")
            self.numbers[state] = len(self.states)
            self.states.append(state)
        return self.numbers[state]
