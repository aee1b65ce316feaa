"""The GPUs that code can be generated for, by architecture.

Source: CUDA C++ Programming Guide 13.0, "Compute Capabilities"; the numbers of processors are those
of the data sheets of the largest product of each architecture.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlc.core.target import Gpu

# Older ones have neither asynchronous copies to shared memory nor `min.NaN`, which kernels use.
PROCESSORS = {
    "sm_80": 108, "sm_86": 84, "sm_87": 16, "sm_89": 142, "sm_90": 132, "sm_100": 148,
    "sm_103": 148, "sm_120": 188, "sm_121": 48,
}  # fmt: skip
DEFAULT = ("sm_80", "sm_90")


def gpu_for(archs: Sequence[str]) -> Gpu:
    """What GPUs of all these architectures have."""
    return Gpu(archs=tuple(archs), processors=min(PROCESSORS[a] for a in archs))
