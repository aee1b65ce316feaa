"""Seeds defects into kernels, and says which of them nobody found."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from dlc.codegen.cuda.emit import Kernel
from dlc.codegen.cuda.emulate import Emulator
from tests.codegen.gpu import Scheduled

WRONG = "another result"


@dataclass(frozen=True)
class Defect:
    """A text to replace in a kernel, and what is found."""

    kernel: str
    old: str
    new: str
    found: str  # a pattern of the emulator's message, or WRONG
    count: int = 1  # how many places; 0 for all
    threads: int = 0  # other than the kernel's


def with_defect(scheduled: Scheduled, defect: Defect, symbol: str) -> Scheduled:
    """The only kernel of a function with a defect, under another name."""
    (kernel,) = scheduled.kernels
    assert defect.old in kernel.text, f"{defect.old!r} is not in\n{kernel.text}"
    text = kernel.text.replace(defect.old, defect.new, defect.count or -1)
    text = re.sub(rf"\b{kernel.symbol}\b", symbol, text)
    threads = defect.threads or kernel.threads
    changed: Kernel = replace(kernel, symbol=symbol, text=text, threads=threads)
    return replace(scheduled, kernels=(changed,))


def missed(
    kernels: Mapping[str, Scheduled],
    defects: Mapping[str, Defect],
    problem: Callable[[Emulator, Scheduled, str], str],
    harmless: Collection[str] = (),
) -> list[str]:
    """The defects that are not found, or not as what they are, and the good kernels that are.

    `problem` says what is wrong with a kernel of this name, or "". Harmless defects have to pass.
    """
    seeded = {
        name: with_defect(kernels[d.kernel], d, f"defect_{n}")
        for n, (name, d) in enumerate(defects.items())
    }
    good = {n: with_defect(s, Defect(n, "DLC", "DLC", ""), f"good_{n}") for n, s in kernels.items()}
    emulator = Emulator([k for s in (*seeded.values(), *good.values()) for k in s.kernels])
    bad = [f"{n}: {text!r}" for n, s in good.items() if (text := problem(emulator, s, n))]
    for name, one in seeded.items():
        text = problem(emulator, one, defects[name].kernel)
        expected = "" if name in harmless else defects[name].found
        if bool(text) != bool(expected) or not re.search(expected, text):
            bad.append(f"{name}: {text!r}")
    return bad
