"""Regular expressions as tables, against Python's own matcher."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from dlc.frontend.onnx.automaton import NotRegular, _utf8, automaton, searchers
from dlc.graph.ops.tokens import find

PATTERNS = [
    r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)",
    r"www\.[\w.-]+\.\bcom\b",
    r"a*b+c?",
    r"(ab|a)(bc|c)?|",
    r"[^a-c]{2,3}",
    r".*\d",
    r"(?s:.)*1",
    r"^a$|b^c|d$",
    r"(?i)heLLo[A-C]|[^x]",
    r"(a|b)*abb",
    r"[é-ü]+x?|[^\da-z@]",
    r"\s\S|\D\W",
    r"(a{0,2}b){2,}?",
    r"\bab.*\b|\Ba\B",
    r"(a|\b|b)*\Bc?.",
]


def matches(table: np.ndarray, ends: np.ndarray, text: str) -> bool:
    state = 1
    for byte in text.encode():
        state = int(table[state, byte])
    return bool(ends[state])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_text_matches_where_python_says_so(pattern):
    table, ends = automaton(pattern)
    assert not table[0].any()
    assert not ends[0]
    rng = random.Random(pattern)
    oracle = re.compile(pattern, re.ASCII)
    texts = [
        "".join(rng.choice("abcdx12 .@é𝄞HhEeLlOo-\n") for _ in range(n % 8)) for n in range(400)
    ]
    texts += ["x@gmail.com", "!x.y@yahoo.com ", "www.a-b.com", "www.com", "ab ab", "hELlob"]
    for text in texts:
        assert matches(table, ends, text) == (oracle.fullmatch(text) is not None), text


def test_a_vertical_tab_is_no_white_space_as_in_re2():
    table, ends = automaton(r"\s")
    assert [c for c in "\t\n\v\f\r x" if matches(table, ends, c)] == list("\t\n\f\r ")


def test_two_letters_have_a_third_form():
    """The sign for Kelvin, and the long s."""
    table, ends = automaton("(?i)[j-l]s")
    good = ["ks", "KS", "\u212as", "k\u017f", "js", "\u212a\u017f"]
    assert [t for t in (*good, "ks\u212a", "is") if matches(table, ends, t)] == good


@pytest.mark.slow
def test_automata_that_have_too_many_states_together_are_refused():
    with pytest.raises(NotRegular, match="together"):
        searchers([f"(a|b)*a(a|b){{9}}{k}" for k in range(70)])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_first_of_the_longest_matches_is_found(pattern):
    """Python tells for a place and an end whether a match is there, with what stands around it."""
    other = r"a\b|x"
    table, ends, begins = searchers([other, pattern])
    assert begins.shape == (2, 3)
    rng = random.Random(pattern)
    local = pattern.replace("$", r"\Z")  # which is before a last line's end, too, in Python
    if local.startswith("(?i)"):
        local = f"(?i:{local[4:]})"
    drawn = ["".join(rng.choice("abcdx1 .@é𝄞l\n") for _ in range(n % 7)) for n in range(150)]

    def expected(text: str, start: int) -> tuple[int, int] | None:  # of bytes
        for first in range(start, len(text) + 1):
            for last in range(len(text), first - 1, -1):
                rest = rf"(?:{local})(?=(?s:.{{{len(text) - last}}})\Z)"
                found = re.compile(rest, re.ASCII).match(text, first)
                if found is not None:
                    return len(text[:first].encode()), len(text[:last].encode())
        return None

    for text in [*drawn, "x@gmail.com", "!x.y@yahoo.com ", "www.a-b.com", "ab ab", "ab abxab"]:
        for start in range(min(len(text), 3) + 1):
            before = len(text[:start].encode())
            found = find(text.encode(), before, table, ends, begins[1])
            assert found == expected(text, start), (text, start)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0x10FFFF), (0x80, 0x7FF), (5, 0x12345), (0x7FF, 0x801), (0xD000, 0xE001)]
)
def test_byte_ranges_are_the_characters_and_no_more(low, high):
    runs = _utf8(low, high)
    count = sum(int(np.prod([last - first + 1 for first, last in run])) for run in runs)
    assert count == sum(not 0xD800 <= c <= 0xDFFF for c in range(low, high + 1))
    for run in runs:
        assert low <= ord(bytes(first for first, _ in run).decode()) <= high
        assert low <= ord(bytes(last for _, last in run).decode()) <= high


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", "groupref"),
        (r"(?=a)b", "assert"),
        ("(", "unterminated"),
        ("(?m)^a", "the flag m"),
        ("(?x)a b", "the flag x"),
        ("(a{300}){400}", "too long"),
        ("(a|b)*a(a|b){13}", "more than 4096 states"),
        ("[[:alpha:]]+", "a class as"),
        ("[x[:^digit:]]", "a class as"),
        ("a{,2}", "repetitions without the least"),
        ("(?i)é", "beyond ASCII"),
        ("(?i)[a-é]", "beyond ASCII"),
        (r"(.{0,30}){0,30}x", "takes too long"),
    ],
)
def test_what_has_no_automaton_is_refused(pattern, why):
    with pytest.raises(NotRegular, match=why):
        automaton(pattern)
