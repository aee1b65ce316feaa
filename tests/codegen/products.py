"""What tests of products of neighbours share: operators of x and packed w as kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import schedule_func
from dlc.te.expr import Var
from dlc.te.tensor import elementwise, placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import Kernel


@dataclass(frozen=True)
class Products:
    """Kernels for a target, by an instruction of LLVM that multiplies x and w of `kinds`."""

    target: Target
    kinds: tuple[DType, DType]
    instruction: str

    def lowered(self, op, arrays, epilogue=None):
        """A function of one operator, and of what is done with each of its results."""
        return self._function(op, [a.shape for a in arrays], (), epilogue)

    def fast(self, func, target=None, **knobs):
        """A scheduled function."""
        target = target or self.target
        return optimize(func, target, schedule_func(func, target, knobs).steps)

    def run(self, op, arrays, epilogue=None, **knobs):
        """The result of a kernel that uses the instruction."""
        kernel = self._kernel(self.fast(self.lowered(op, arrays, epilogue), **knobs))
        return kernel({}, dict(zip("xw", arrays, strict=True)))["out"]

    def check_open_rows(self, op, dense, w):
        """Assert that batch and rows of x, of which `dense` has the most, may be open."""
        sizes = (Var("batch"), Var("rows"), *dense.shape[2:])
        kernel = self._kernel(self.fast(self._function(op, (sizes, w.shape), ("batch", "rows"))))
        for batch, rows in ((2, 37), (1, 14), (2, 1), (1, 0), (0, 5)):
            x = np.ascontiguousarray(dense[:batch, :rows])
            found = kernel({"batch": batch, "rows": rows}, {"x": x, "w": w})["out"]
            want = op.reference(x, w)
            np.testing.assert_array_equal(found.reshape(want.shape), want)

    def check_open_image(self, op, dense, w):
        """Assert that height and width of an image, as large as `dense` at most, may be open."""
        sizes = (*dense.shape[:2], Var("high"), Var("wide"), *dense.shape[4:])
        kernel = self._kernel(self.fast(self._function(op, (sizes, w.shape), ("high", "wide"))))
        for high, wide in ((10, 13), (3, 2), (5, 8)):
            x = np.ascontiguousarray(dense[:, :, :high, :wide])
            found = kernel({"high": high, "wide": wide}, {"x": x, "w": w})["out"]
            want = op.reference(x, w)
            np.testing.assert_array_equal(found.reshape(want.shape), want)

    def _function(self, op, shapes, sizes, epilogue=None):
        inputs = tuple(
            placeholder(name, TensorType(shape, kind))
            for name, shape, kind in zip("xw", shapes, self.kinds, strict=True)
        )
        result = op.compute(*inputs)
        if epilogue is not None:
            result = elementwise("done", epilogue, result)
        return lower_tensors("product", sizes, inputs, (result,))

    def _kernel(self, func):
        kernel = Kernel(func)
        assert self.instruction in kernel.ir
        return kernel
