"""Whether a worker on another machine can be asked: it says which dlc it is of."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dlc.autotune.wire import PROTOCOL
from dlc.core.errors import UserError

_LOG = logging.getLogger("dlc.tune")


def describe_peer() -> dict[str, object]:
    """What a worker says of itself when it is opened."""
    from dlc import __version__

    return {"dlc": __version__, "protocol": PROTOCOL}


def check_peer(name: str, said: Mapping[str, object]) -> None:
    """Judge what a worker said. Another dlc that is asked in the same way is told, and used.

    Args:
        name: the worker, for people.
        said: its answer; nothing where it is too old to say anything.

    Raises:
        UserError: it is asked in another way.
    """
    own = describe_peer()
    version = said.get("dlc", "unknown")
    if said.get("protocol") != own["protocol"]:
        detail = f"{name} has dlc {version}, which cannot be asked by dlc {own['dlc']}"
        raise UserError(detail=detail, hint=f"install dlc {own['dlc']} there")
    if version != own["dlc"]:
        _LOG.warning(
            "%s has dlc %s, and this is %s; it only runs what is built here",
            name,
            version,
            own["dlc"],
        )
