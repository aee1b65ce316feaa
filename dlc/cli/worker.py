"""`dlc worker`: build and measure candidates for a `dlc tune` elsewhere, over its pipes."""

from __future__ import annotations

from typing import Annotated

import typer

from dlc.core.errors import UserError


def worker(
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Jobs come on standard input, answers leave there.")
    ] = False,
) -> None:
    """Work for a `dlc tune` on another machine, which starts this by ssh."""
    if not stdio:
        raise UserError(detail="dlc worker is started by dlc tune", hint="dlc worker --stdio")
    from dlc.autotune.parent import die_with_parent

    die_with_parent()
    from dlc.autotune.station import main

    main()
