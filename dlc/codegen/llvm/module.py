"""One LLVM module: a kernel, the functions its parallel loops became, and what they declare."""

from __future__ import annotations

from dlc.codegen.llvm.abreast import IN_ORDER, runs_abreast
from dlc.codegen.llvm.frame import plan_frame
from dlc.codegen.llvm.ir import Declarations
from dlc.codegen.llvm.legalize import legalize
from dlc.codegen.llvm.moving import MARK, may_move
from dlc.core.target import Target
from dlc.schedule.loop import Alloc, Block, For, Func, If, Invoke, LoopKind, Stmt, Store
from dlc.te.expr import Const, Expr

OUT_OF_MEMORY = "no memory for the kernel's intermediate results"


class Module:
    """What the functions made from one loop function share."""

    def __init__(self, func: Func, target: Target) -> None:
        self.func = func
        self.target = target
        self.moves = may_move(target)
        self.abreast = runs_abreast(func.body, target)
        self.declarations = Declarations()
        self.functions: list[str] = []
        self.body = legalize(func.body, target)
        self.outlined: dict[str, For] = {}
        _find_parallel(self.body, self.outlined)
        self.inner = {name: plan_frame(loop.body, ()) for name, loop in self.outlined.items()}
        self.frame = plan_frame(self.body, self.outlined)
        self._symbols: dict[str, int] = {}
        self._nested: dict[int, If] = {}

    def symbol(self) -> str:
        """A name for another outlined function."""
        return f"{self.func.name}_par{len(self.functions)}"

    def nested_if(self, cond: Expr, body: Stmt) -> If:
        """`if cond: body`, the same statement each time it is asked for."""
        found = self._nested.get(id(body))
        if found is None:
            found = self._nested[id(body)] = If(cond, body)
        return found

    def fail_message(self) -> str:
        """A reference to the text for `host->fail`."""
        text = OUT_OF_MEMORY.encode() + b"\0"
        body = "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in text)
        line = f'@.no_memory = private unnamed_addr constant [{len(text)} x i8] c"{body}"'
        if line not in self.declarations.globals:
            self.declarations.globals.append(line)
        return "@.no_memory"

    def text(self, signature: str, body: str) -> str:
        """The whole module."""
        target = self.target
        names = {*target.features}
        if target.arch == "x86_64":
            names.add("prfchw")  # asks for a line to write; a processor without it does nothing
        features = ",".join(f"+{name}" for name in sorted(names))
        attributes = f'nounwind "target-features"="{features}"'
        if target.arch == "x86_64":
            # Whose scheduling model decides whether unrolled tiles stay in registers: measured on
            # AVX-512, 14x2 unrolled by 16 spills 436 times under znver4's model, 18 under
            # icelake-server's, never under this one. On AVX2, generic spills 4x3 tiles.
            wide = "avx512f" in target.features
            attributes += (
                f' "target-cpu"="x86-64" "tune-cpu"="{"sapphirerapids" if wide else "haswell"}"'
            )
            if wide:
                attributes += ' "prefer-vector-width"="512"'
        parts = [
            f'target triple = "{target.triple}"',
            self.declarations.text(),
            *self.functions,
            f"define hidden void {signature} #0 {{\n{body}\n}}",
            f"attributes #0 = {{ {attributes} }}",
        ]
        marks = (MARK if self.moves else "") + (IN_ORDER if self.abreast else "")
        return marks + "\n\n".join(part for part in parts if part) + "\n"


def _find_parallel(stmt: Stmt, found: dict[str, For]) -> None:
    """Note the outermost parallel loops that are worth a call."""
    match stmt:
        case Store() | Invoke():
            pass
        case If(_, body) | Alloc(_, _, body):
            _find_parallel(body, found)
        case Block(stmts):
            for child in stmts:
                _find_parallel(child, found)
        case For(var, extent, LoopKind.PARALLEL, body):
            if isinstance(extent, Const) and int(extent.value) <= 1:
                _find_parallel(body, found)
            else:
                found[var] = stmt
        case For(_, _, LoopKind.VECTOR, _):
            pass  # lanes run together: a parallel loop inside runs serially
        case For(_, _, _, body):
            _find_parallel(body, found)
