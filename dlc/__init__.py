"""dlc: an ahead-of-time deep learning compiler. ONNX model in, native shared library out.

The public names are resolved on first use (PEP 562). Importing `dlc.runtime` runs this module
first, and an eager import of the compiler here would drag LLVM into every deployed model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlc.compiler import compile
    from dlc.core.errors import (
        ArtifactError,
        CodegenError,
        DlcError,
        InputError,
        InternalError,
        LimitError,
        ModelError,
        ScheduleError,
        ShapeError,
        TargetError,
        UnsupportedModel,
        UnsupportedOperator,
        UserError,
        VerificationError,
        VerifyError,
    )
    from dlc.core.target import Target
    from dlc.runtime import Module, load
    from dlc.tune_model import tune
    from dlc.verify_model import verify

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "CodegenError",
    "DlcError",
    "InputError",
    "InternalError",
    "LimitError",
    "ModelError",
    "Module",
    "ScheduleError",
    "ShapeError",
    "Target",
    "TargetError",
    "UnsupportedModel",
    "UnsupportedOperator",
    "UserError",
    "VerificationError",
    "VerifyError",
    "__version__",
    "compile",
    "load",
    "tune",
    "verify",
]

_HOME = {
    "compile": "dlc.compiler",
    "load": "dlc.runtime",
    "Module": "dlc.runtime",
    "Target": "dlc.core.target",
    "tune": "dlc.tune_model",
    "verify": "dlc.verify_model",
}  # every other public name is an error class


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'dlc' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOME.get(name, "dlc.core.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
