"""Random kernels against the interpreter: loops of all kinds, odd indices, guards, choices."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.jit import TARGETS, check


class Maker:
    """Writes one random kernel; every index is kept inside its buffer by a remainder."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.vars: list[str] = []
        self.count = 0

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def index(self, depth: int = 2) -> str:
        """Any index expression; it may be negative."""
        if depth == 0 or self.rng.random() < 0.3:
            return self.pick("0", "1", "3", "n", *self.vars, *self.vars)
        a, b = self.index(depth - 1), self.index(depth - 1)
        small = self.rng.randint(1, 6)
        return self.pick(
            f"({a} + {b})", f"({a} - {b})", f"({a} * {small})", f"({a} // {small})",
            f"({a} % {small})", f"min({a}, {b})", f"max({a}, {b})", f"({a} // (n + 1))",
            f"({a} if {b} < {small} else {b})", f"{a}",
        )  # fmt: skip

    def cond(self) -> str:
        """A condition on indices or data."""
        a, b = self.index(), self.index(1)
        plain = self.pick(f"{a} < {b}", f"{a} <= {b}", f"{a} == {b}", f"{a} != {b}")
        return self.pick(
            plain, plain, f"{plain} and {a} < 7", f"not {b} < {a}", f"{self.load()} < 0.5"
        )

    def load(self) -> str:
        """An element of the input; with luck its address is linear in the innermost variable."""
        if self.vars and self.rng.random() < 0.5:
            return f"A[{self.index(1)} % (n + 2), {self.vars[-1]} % 8]"
        return f"A[{self.index()} % (n + 2), {self.index()} % 8]"

    def value(self, depth: int = 2) -> str:
        """A float expression."""
        if depth == 0 or self.rng.random() < 0.2:
            return self.pick(self.load(), self.load(), "0.5", f"f32({self.index()})")
        a, b = self.value(depth - 1), self.value(depth - 1)
        return self.pick(
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"max({a}, {b})", f"min({a}, {b})",
            f"({a} if {self.cond()} else {b})", f"abs({a})", f"({a} * {b} + {a})",
        )  # fmt: skip

    def statements(self, depth: int, indent: int) -> list[str]:
        """Stores to the output at the loop variables, maybe inside more loops."""
        pad = "    " * indent
        lines: list[str] = []
        for _ in range(self.rng.randint(1, 2)):
            kind = self.rng.random()
            if depth and kind < 0.6:
                lines += self.loop(depth, indent)
            elif kind < 0.75:
                lines += [f"{pad}if {self.cond()}:", *self.stores(indent + 1)]
            else:
                lines += self.stores(indent)
        return lines

    def stores(self, indent: int) -> list[str]:
        pad, at = "    " * indent, self.place()
        if self.rng.random() < 0.4:
            return [f"{pad}B[{at}] += {self.value()}"]
        return [f"{pad}B[{at}] = {self.value()}"]

    def place(self) -> str:
        """An element that belongs to the iteration: its variables are the index."""
        names = self.vars[:3] + ["0"] * (3 - len(self.vars[:3]))
        return ", ".join([str(self.count), *names])

    def loop(self, depth: int, indent: int) -> list[str]:
        var = f"v{self.count}_{len(self.vars)}_{self.rng.randrange(10**6)}"
        kind = self.pick("range", "range", "unroll", "vectorize")
        extent = self.pick("2", "3", "4", "5", "8") if kind != "range" else self.pick("n", "4", "1")
        note = f", unroll={self.rng.randint(2, 5)}" if kind == "range" and depth == 1 else ""
        self.vars.append(var)
        inner = 0 if kind == "vectorize" else depth - 1
        body = self.statements(inner, indent + 1)
        self.vars.pop()
        return ["    " * indent + f"for {var} in {kind}({extent}{note}):", *body]

    def registers(self, indent: int) -> list[str]:
        """A register buffer, changed by vectors, single elements and under guards, then stored."""
        pad, name, plane = "    " * indent, f"r{self.count}", f"B[{self.count}, {self.vars[0]}"
        lines = [f'{pad}{name} = alloc(f32[2, 8], "register")']
        lines += self.lanes(indent, lambda var, row: [f"{name}[{row}, {var}] = {self.value(1)}"])
        outer = f"s{self.count}"
        kind = self.pick("range(n)", "range(3)", "unroll(2)", "range(7, unroll=3)")
        lines.append(f"{pad}for {outer} in {kind}:")
        self.vars.append(outer)
        for _ in range(self.rng.randint(1, 3)):
            lines += self.lanes(indent + 1, lambda var, row: self.change(f"{name}[{row}, {var}]"))
            spot = f"{name}[{self.rng.randrange(2)}, {self.rng.randrange(8)}]"
            guard = f"if {self.cond()}:"
            lines += [f"{pad}    {guard}", f"{pad}        {spot} = {self.value(1)} + {spot}"]
        self.vars.pop()
        return lines + self.lanes(
            indent, lambda var, row: [f"{plane}, {row}, {var}] = {name}[{row}, {var}]"]
        )

    def change(self, spot: str) -> list[str]:
        update = (
            f"{spot} = {self.pick(f'{spot} + {self.value(1)}', f'max({spot}, {self.value(1)})')}"
        )
        return [update] if self.rng.random() < 0.5 else [f"if {self.cond()}:", f"    {update}"]

    def lanes(self, indent: int, body: Callable[[str, int], list[str]]) -> list[str]:
        """Some lines for each lane of each row."""
        lines: list[str] = []
        for row in range(2):
            var = f"l{self.count}_{self.rng.randrange(10**6)}"
            self.vars.append(var)
            lines.append(
                "    " * indent
                + f"for {var} in {self.pick('vectorize', 'vectorize', 'unroll')}(8):"
            )
            lines += ["    " * (indent + 1) + line for line in body(var, row)]
            self.vars.pop()
        return lines

    def kernel(self) -> str:
        """One kernel: a few nests, each with a plane of the output of its own."""
        lines: list[str] = []
        nests = self.rng.randint(1, 3)
        for self.count in range(nests):
            lines += [f"    for z{self.count} in range(8):"]
            lines += [
                f"        for y{self.count} in range(8):",
                f"            for x{self.count} in vectorize(8):",
                f"{16 * ' '}B[{self.count}, z{self.count}, y{self.count}, x{self.count}] = 0.0",
            ]
            outer = f"p{self.count}"
            self.vars = [outer]
            lines.append(
                f"    for {outer} in {self.pick('parallel', 'range')}({self.pick('n', '5')}):"
            )
            lines += self.registers(2) if self.rng.random() < 0.4 else self.statements(2, 2)
            self.vars = []
        head = f"def f(n: size, A: f32[n + 2, 8], *, B: f32[{nests}, 8, 8, 8]):"
        return "\n".join([head, *lines])


@pytest.mark.slow
@pytest.mark.parametrize("target", list(TARGETS))
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_random_kernels_mean_what_the_interpreter_says(target, seed):
    check(Maker(seed).kernel(), {"n": 0}, {"n": 7}, {"n": 8}, target=TARGETS[target], rtol=1e-4)
