"""`dlc cache`: the compiled kernels that builds share."""

from __future__ import annotations

import typer

from dlc.cli.option import JsonOption
from dlc.cli.screen import print_json, stdout
from dlc.core.count import show_bytes, show_count

app = typer.Typer(help="Show or clear the cache of compiled kernels.", no_args_is_help=True)


@app.command()
def info(as_json: JsonOption = False) -> None:
    """Say where the cache is and how much it holds."""
    from dlc.core.cache import default_cache

    found = default_cache().info()
    if as_json:
        document = {"folder": str(found.folder), "entries": found.entries}
        sizes = {"size_bytes": found.size_bytes, "limit_bytes": found.limit_bytes}
        print_json("dlc.cache/1", document | sizes)
        return
    used, limit = show_bytes(found.size_bytes), show_bytes(found.limit_bytes)
    stdout().print(
        f"{found.folder}\n{show_count(found.entries, 'kernel')}, {used} of {limit}", soft_wrap=True
    )


@app.command()
def clear(as_json: JsonOption = False) -> None:
    """Remove every compiled kernel."""
    from dlc.core.cache import default_cache

    cache = default_cache()
    removed = cache.clear()
    if as_json:
        print_json("dlc.cache/1", {"folder": str(cache.folder), "removed": removed})
        return
    stdout().print(f"removed {show_count(removed, 'kernel')} from {cache.folder}", soft_wrap=True)
