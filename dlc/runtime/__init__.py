"""Load a compiled model and run it. Needs NumPy and the extension module, and no compiler.

>>> import dlc.runtime                          # doctest: +SKIP
>>> model = dlc.runtime.load("resnet50.so")     # doctest: +SKIP
>>> scores = model(image)                       # doctest: +SKIP
"""

from __future__ import annotations

from dlc.core.manifest import SizeSpec, TensorSpec
from dlc.runtime.binding import Binding
from dlc.runtime.module import Module, load
from dlc.runtime.native import (
    check_file,
    hash_file,
    num_threads,
    set_num_threads,
    why_no_gpu,
)
from dlc.runtime.profile import Profile, StepTime
from dlc.runtime.timing import Timing

__all__ = [
    "Binding",
    "Module",
    "Profile",
    "SizeSpec",
    "StepTime",
    "TensorSpec",
    "Timing",
    "check_file",
    "hash_file",
    "load",
    "num_threads",
    "set_num_threads",
    "why_no_gpu",
]
