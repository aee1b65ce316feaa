"""Archives of arrays, only written: a model brings none that dlc would unpack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def write_arrays(stream: IO[bytes], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """What `numpy.savez` writes, which takes no array that is called as its own parameters are."""
    import zipfile

    import numpy as np

    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array))
