"""A model whose arrays are fixed: runs that allocate nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlc.runtime import _runtime
from dlc.runtime.arrays import Array, print_shape
from dlc.runtime.native import to_dlc_error


def why_not_writable(array: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Why an output cannot be written to `array`, or an empty text."""
    if not isinstance(array, np.ndarray):
        return f"expected a NumPy array, got a {type(array).__name__}"
    if array.dtype != dtype:
        return f"expected {dtype}, got {array.dtype}"
    if array.shape != shape:
        return f"expected shape {print_shape(shape)}, got {print_shape(array.shape)}"
    if not (array.flags.c_contiguous and array.flags.aligned):
        return "the array is not contiguous and aligned"
    return "" if array.flags.writeable else "the array is read-only"


class Binding:
    """A model with its arrays fixed. For one thread at a time; `Module.bind` makes one."""

    def __init__(
        self,
        module: object,
        bound: _runtime.Bound,
        names: Sequence[str],
        outputs: Sequence[str],
        name: str,
    ) -> None:
        self._module = module  # lives as long
        self._bound = bound
        self._name = name  # of the module, for errors
        self.inputs: dict[str, Array] = dict(zip(names, bound.inputs, strict=True))
        self.outputs: dict[str, Array] = dict(zip(outputs, bound.outputs, strict=True))

    def run(self) -> None:
        """Read the inputs, write the outputs.

        Raises:
            UserError: the model refused the values.
        """
        try:
            self._bound.run()
        except _runtime.StatusError as error:
            raise to_dlc_error(error, self._name) from None
