"""What `run`, `bench` and `verify` are given: an artefact or a model, and values for its inputs."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlc.cli.argument import Source, is_source, parse_source, split_known
from dlc.cli.screen import stderr
from dlc.core.count import show_count, show_inputs
from dlc.core.elf import is_elf
from dlc.core.errors import (
    ArtifactError,
    InputError,
    LimitError,
    ModelError,
    UserError,
    why_unreadable,
)
from dlc.core.types import DType

if TYPE_CHECKING:
    import numpy as np

    from dlc.core.manifest import TensorSpec
    from dlc.runtime import Module

    Array = np.ndarray[Any, Any]

_LOG = logging.getLogger(__name__)
_NPY, _ZIP = b"\x93NUMPY", b"PK"
_CHOSEN = (1, 8, 32, 128)  # for sizes that nobody gave, in turn until the model takes them


def is_artefact(path: Path) -> bool:
    """Whether a file is a compiled model, damaged or not, rather than an ONNX model.

    By its beginning, or by its name where that is lost.

    Raises:
        ModelError: it cannot be read, and by its name it were a model.
        ArtifactError: it cannot be read.
    """
    try:
        if path.is_fifo():  # what is read of it is gone; the loader maps a file, so it is a model
            return False
        return is_elf(path) or path.suffix == ".so"
    except OSError as error:
        reason = why_unreadable(error)
        if path.suffix == ".onnx":
            raise ModelError(model=str(path), reason=reason) from error
        raise ArtifactError(path=str(path), reason=reason) from error


def open_module(path: Path) -> Module:
    """Load an artefact, or compile a model.

    Raises:
        DlcError: as `dlc.load` and `dlc.compile`.
        UserError: `DLC_NUM_THREADS` is no number of threads; the runtime would pass over it.
    """
    from dlc.core import env
    from dlc.runtime import load

    env.num_threads()
    if is_artefact(path):
        return load(path)
    from dlc.compiler import compile

    console = stderr()
    with console.status(f"compiling {path.name}"):
        return compile(path)


@dataclass(frozen=True, slots=True)
class Feeds:
    """The inputs of a run."""

    arrays: dict[str, Array]
    random: tuple[str, ...]
    """The names of those that nobody gave."""
    results: Mapping[str, Array] | None
    """What the model made of them, where it was run to find sizes that it takes."""


def make_feeds(module: Module, inputs: Sequence[str], sizes: Mapping[str, int]) -> Feeds:
    """The inputs of a run: given, or random and of such sizes that the model takes them.

    Raises:
        InputError: a name is unknown, or a file cannot be read.
        UserError: a text cannot be read; an unknown size; sizes that the model refuses.
    """
    from dlc.runtime.arrays import numpy_dtype  # NumPy, which --help does without

    specs = {spec.name: spec for spec in module.inputs}
    sources, given = _split(inputs, specs)
    given |= {n: read_array(s.path, n) for n, s in sources.items() if s.path}
    given = {n: with_dtype(array, numpy_dtype(specs[n].dtype), n) for n, array in given.items()}
    of_arrays = {dim for name in given for dim in specs[name].shape}
    chosen = [size.name for size in module.sizes if size.name not in {*of_arrays, *sizes}]
    refusals = []
    for number in _CHOSEN if chosen else _CHOSEN[:1]:
        bound = bind_sizes(module, given, sizes, number)
        arrays = {}
        for name, spec in specs.items():
            source = sources.get(name, Source(fill="normal"))
            arrays[name] = given[name] if name in given else _fill(source, spec, bound)
        try:
            module.output_shapes(arrays)
            # What a branch asks of sizes, only a run tells.
            results = module.run(arrays) if chosen else None
        except InputError:
            raise
        except UserError as error:
            refusals.append(error)
            continue
        if refusals:
            listed = ", ".join(f"{name}={bound[name]}" for name in chosen)
            _LOG.warning("no sizes were given; tried with %s", listed)
        return Feeds(
            arrays, tuple(n for n in specs if n not in sources and n not in given), results
        )
    first = refusals[0]
    # What is refused in the same words whatever was tried is about what was given.
    if chosen and not first.hint and len({str(error) for error in refusals}) > 1:
        others = " ".join(f"--dim {name}=..." for name in chosen)
        first.hint = (
            f"{', '.join(map(str, _CHOSEN))} were tried, as nobody gave it; give it: {others}"
        )
    raise first


def bind_sizes(
    module: Module, given: Mapping[str, Array], sizes: Mapping[str, int], other: int = 1
) -> dict[str, int]:
    """A value for each open size: as asked, as in a given array, or `other` within its bounds,
    for a batch 1.

    Raises:
        UserError: the model has no such size, or an array another one.
    """
    from dlc.random_inputs import default_sizes

    known = [size.name for size in module.sizes]
    if unknown := sorted(set(sizes) - set(known)):
        hint = f"the open sizes are {', '.join(known)}" if known else "no size is open"
        raise UserError(detail=f"--dim: there is no size '{unknown[0]}'", hint=hint)
    found = default_sizes(module.sizes, other)
    for spec in module.inputs:
        array = given.get(spec.name)
        if array is not None and len(array.shape) == len(spec.shape):
            pairs = zip(spec.shape, array.shape, strict=True)
            own = {dim: n for dim, n in pairs if isinstance(dim, str)}
            for dim, n in own.items():
                if sizes.get(dim, n) != n:
                    reason = f"'{dim}' is {n} in what is given, and --dim says {sizes[dim]}"
                    raise InputError(name=spec.name, reason=reason)
            found |= own
    return found | dict(sizes)


def with_dtype(array: Array, dtype: np.dtype[Any], name: str) -> Array:
    """An array of a file, of the type that is meant: NumPy writes those it does not know, as bf16
    and what is narrower, as so many bytes.

    Raises:
        UserError: the bytes of `name` are of another type.
    """
    if array.dtype.kind != "V":
        return array
    if dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    size = show_count(array.dtype.itemsize, "byte")
    detail = f"the file for '{name}' holds {size} an element, and no {dtype}"
    raise UserError(detail=detail, hint="give a .npy, .npz or .pb file of that type")


def read_array(path: str, name: str) -> Array:
    """An array from a .npy, .npz or .pb file; `name` picks one from a .npz of several.

    Raises:
        InputError: the file cannot be read, or holds no such array.
    """
    arrays = read_arrays(path, name)
    if name in arrays:
        return arrays[name]
    if len(arrays) != 1:
        raise InputError(name=name, reason=f"{path} holds {', '.join(arrays) or 'nothing'}")
    return next(iter(arrays.values()))


def read_arrays(path: str, name: str) -> dict[str, Array]:
    """All arrays of a file; `name` is for messages."""
    import numpy as np

    try:
        if path.endswith(".pb"):
            from onnx import TensorProto, numpy_helper

            proto = TensorProto.FromString(Path(path).read_bytes())
            return {proto.name: numpy_helper.to_array(proto)}
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            found = {"": loaded}
        else:
            with loaded:
                found = dict(loaded)
    except FileNotFoundError as error:
        raise InputError(name=name, reason=f"there is no file {path}") from error
    except Exception as error:  # of NumPy, zip, pickle or protobuf, on files of any content
        reason, hint = _why_unreadable(path, error)
        raise InputError(name=name, reason=f"{path} {reason}", hint=hint) from error
    for array in found.values():
        if array.dtype.names or array.dtype.kind in "cmM":
            raise InputError(name=name, reason=f"{path} holds {array.dtype}, which no model has")
    return found


def _why_unreadable(path: str, error: Exception) -> tuple[str, str]:
    """What is wrong with a file of arrays, and a hint."""
    if isinstance(error, OSError) and error.errno is not None:  # NumPy's own have no number
        return why_unreadable(error), ""
    if str(error).startswith("Object arrays"):
        hint = "save numbers in their type, and texts as array.astype(str)"
        return "holds an array of Python objects, which is not taken", hint
    beginning = b""
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        beginning = file.read(len(_NPY))
    if path.endswith(".pb") or beginning.startswith((_NPY, _ZIP)):
        return "is cut short or damaged", ""
    return "cannot be read as an array", "give a .npy, .npz or .pb file"


def _split(
    texts: Sequence[str], specs: Mapping[str, TensorSpec]
) -> tuple[dict[str, Source], dict[str, Array]]:
    """Sources by input, and the arrays of files that name their inputs themselves."""
    from dlc.runtime.arguments import no_such_input

    sources: dict[str, Source] = {}
    arrays: dict[str, Array] = {}
    for text in texts:
        if assigned := split_known(text, specs):
            name, value = assigned
            if name in sources:
                raise InputError(name=name, reason="it is given twice")
            sources[name] = parse_source(value)
        elif "=" in text and not is_source(text):
            raise no_such_input(text.partition("=")[0], list(specs))
        elif text.endswith(".npz"):
            found = read_arrays(text.removeprefix("@"), text)
            for inner in found:
                if inner not in specs:
                    raise no_such_input(inner, list(specs))
            arrays |= found
        elif len(specs) == 1:
            sources[next(iter(specs))] = parse_source(text)
        else:
            detail = f"--input '{text}': expected NAME=VALUE"
            raise UserError(detail=detail, hint=show_inputs(specs))
    return sources, arrays


def _fill(source: Source, spec: TensorSpec, sizes: Mapping[str, int]) -> Array:
    import numpy as np

    from dlc.random_inputs import bind_shape, random_array
    from dlc.runtime.arrays import as_scalar, numpy_dtype

    shape = bind_shape(spec, sizes)
    if math.prod(shape) > sys.maxsize // 8:  # NumPy draws numbers of 8 bytes
        listed = ", ".join(map(str, shape))
        raise LimitError(what="memory", reason=f"input '{spec.name}' of the shape ({listed})")
    if (number := source.number) is not None:
        if spec.dtype is DType.STR:
            return np.full(shape, str(number), np.object_)
        if spec.dtype is DType.BOOL and number in (0, 1):  # as "zeros" and "ones" are
            number = bool(number)
        return np.full(shape, as_scalar(number, spec, numpy_dtype(spec.dtype)))
    kind = "uniform" if source.fill == "uniform" else "normal"
    rng = np.random.default_rng(source.options.get("seed", 0))
    return random_array(spec.dtype, shape, rng, kind)
