"""Say where the C++ side of the runtime is installed.

--cmake-dir is the folder of dlc-config.cmake (CMake's dlc_DIR), --include-dir the folder of
dlc/runtime.hpp, --library the static library.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dlc.runtime import _runtime

# Everything native is installed beside the extension module.
HOME = Path(_runtime.__file__).parent
PLACES = {"cmake-dir": "lib/cmake/dlc", "include-dir": "include", "library": "lib/libdlc_runtime.a"}


def main() -> None:
    """Print one path."""
    parser = argparse.ArgumentParser(
        prog="python -m dlc.runtime", description="Where the C++ side of the runtime is."
    )
    choice = parser.add_mutually_exclusive_group(required=True)
    for option, place in PLACES.items():
        choice.add_argument(f"--{option}", dest="place", action="store_const", const=place)
    sys.stdout.write(f"{HOME / parser.parse_args().place}\n")


if __name__ == "__main__":
    main()
