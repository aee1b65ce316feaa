"""`dlc version`: versions of dlc and of what it is built on."""

from __future__ import annotations

import platform

from dlc.cli.option import JsonOption
from dlc.cli.screen import print_json, stdout, table

REQUIRED = ("llvmlite", "ml_dtypes", "numpy", "onnx", "platformdirs", "rich", "typer")
OPTIONAL = ("onnxruntime", "xgboost", "xgboost-cpu")


def version(as_json: JsonOption = False) -> None:
    """Print the versions of dlc and of what it is built on."""
    from dlc import __version__
    from dlc.core.manifest import ABI_VERSION

    found = {"dlc": __version__, "artefact ABI": str(ABI_VERSION)}
    found |= {"python": platform.python_version(), **packages()}
    if as_json:
        print_json("dlc.version/1", {"versions": found})
        return
    rows = table("", "", left=("",))
    rows.show_header = False
    for name, text in found.items():
        rows.add_row(name, text)
    stdout().print(rows)


def packages() -> dict[str, str]:
    """The versions of the packages dlc uses, of those that are installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    found = {}
    for name in (*REQUIRED, *OPTIONAL):
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            continue
    return found
