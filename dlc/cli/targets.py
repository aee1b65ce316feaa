"""`dlc targets`: what can be compiled for, and what a target string means."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from dlc.cli.option import JsonOption
from dlc.cli.screen import print_json, show_target, stdout, table
from dlc.core.count import show_bytes, show_count

if TYPE_CHECKING:
    from dlc.core.target import Target


def targets(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="A target string to explain.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the targets, or explain one."""
    from dlc.core.cpus import CPUS
    from dlc.core.target_parse import parse_target, target_names
    from dlc.find_target import find_target

    found = find_target(target or "native")
    if target is not None:
        if as_json:
            print_json("dlc.targets/1", {"target": target, **_data(found)})
        else:
            _explain(found)
        return
    if as_json:
        cpus = {name: {"arch": cpu.arch} for name, cpu in CPUS.items()}
        document = {"backends": target_names(), "native": _data(found), "cpus": cpus}
        print_json("dlc.targets/1", document)
        return
    console = stdout()
    threads = show_count(found.cores, "thread")
    console.print(f"native  this machine: {show_target(found)}, {threads}")
    console.print("llvm    another machine: 'llvm -mcpu=NAME', and of its features more with")
    console.print("        -mattr=+FEATURE or fewer with -mattr=-FEATURE")
    console.print("cuda    NVIDIA GPUs: 'cuda -arch=sm_80,sm_90'")
    console.print("\n-mcpu=")
    rows = table("", "", left=("",))
    rows.show_header = False
    rows.columns[1].justify = "left"
    for name in CPUS:
        rows.add_row(f"  {name}", show_target(parse_target(f"llvm -mcpu={name}"), with_cpu=False))
    console.print(rows)


def _data(target: Target) -> dict[str, object]:
    return dataclasses.asdict(target) | {"features": sorted(target.features)}


def _explain(target: Target) -> None:
    console = stdout()
    halves = ", in two halves" if target.multiply_adds == 1 else ""
    facts = {} if target.gpu is None else {"GPUs": ", ".join(target.gpu.archs)}
    facts |= {
        "triple": target.triple,
        "cpu": target.cpu,
        "features": ", ".join(sorted(target.features)) or "-",
        "threads": str(target.cores),
        "vectors": f"{target.vector_bits} bits, {target.vector_registers} registers{halves}",
        "L1, L2": f"{show_bytes(target.l1_bytes)}, {show_bytes(target.l2_bytes)}",
    }
    if target.has_matrix_engine:
        facts["tiles"] = f"{show_count(target.tile_cycles, 'cycle')} for a product"
    rows = table("", " ", left=("", " "))
    rows.show_header = False
    for name, text in facts.items():
        rows.add_row(name, text)
    console.print(rows)
