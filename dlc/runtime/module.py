"""A compiled model in Python: called with arrays, from any number of threads."""

from __future__ import annotations

import contextlib
import os
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from dlc.core.elf import ELF, is_elf
from dlc.core.errors import ArtifactError, InputError, UserError
from dlc.core.manifest import Manifest, SizeSpec, TensorSpec, decode_manifest
from dlc.core.staging import staging, writing
from dlc.core.types import DType
from dlc.runtime import _runtime
from dlc.runtime.arguments import Feeds, by_name, check_count, in_order
from dlc.runtime.arrays import Array, as_input, numpy_dtype, print_shape
from dlc.runtime.binding import Binding, why_not_writable
from dlc.runtime.device import as_device_input, capsule, stream_number
from dlc.runtime.native import dlc_errors, encode_path, to_dlc_error
from dlc.runtime.profile import Profile
from dlc.runtime.timing import Timing, measure


def load(path: str | os.PathLike[str], *, verify: Literal["full", "fast"] = "full") -> Module:
    """Load a compiled model.

    `verify="fast"` leaves out the hash over all bytes, for files that were just written.

    Raises:
        ArtifactError: no such file; damaged; built for another ABI, architecture or CPU.
        UserError: `path` is a model that is not compiled, or the bytes of a compiled one;
            `verify` is another word.
    """
    flags = {"full": _runtime.VERIFY_FULL, "fast": _runtime.VERIFY_SKIP_HASH}.get(verify)
    if flags is None:
        raise UserError(detail=f"verify={verify!r}", hint="there are: full, fast")
    if os.fsencode(path).startswith(ELF):
        raise UserError(detail="expected the path of a compiled model, got the bytes of one")
    raw = encode_path(path)
    try:
        return load_as(os.fsdecode(raw), raw, flags)
    except ArtifactError as error:
        if not _is_model(raw):
            raise
        hint = "dlc.compile compiles and loads it; dlc build writes what dlc.load takes"
        raise UserError(detail=f"{os.fsdecode(raw)} is not compiled", hint=hint) from error


def load_as(
    name: str, path: str | bytes | os.PathLike[str], flags: int = _runtime.VERIFY_FULL
) -> Module:
    """Load a compiled model that errors call `name`, wherever its file is.

    Raises:
        ArtifactError: as `load`.
    """
    with dlc_errors(path, name):
        return Module(_runtime.load_path(encode_path(path), flags), name)


def _is_model(path: bytes) -> bool:
    """Whether a file that cannot be loaded is an ONNX model, by its name."""
    if not path.endswith(b".onnx"):
        return False
    with contextlib.suppress(OSError):
        return not is_elf(path)
    return False


def load_bytes(data: bytes) -> Module:
    """Load a compiled model from memory.

    Raises:
        ArtifactError: as `load`.
    """
    name = "model in memory"
    with dlc_errors(name):
        return Module(_runtime.load_bytes(data, _runtime.VERIFY_FULL), name)


class Module:
    """A compiled model. Immutable; thread-safe; can be pickled; use `load` to get one."""

    def __init__(self, native: _runtime.Module, name: str = "the model") -> None:
        self._native: _runtime.Module | None = native
        self._name = name  # for errors
        self.manifest: Manifest = decode_manifest(native.manifest())
        self._input_dtypes = [numpy_dtype(spec.dtype) for spec in self.inputs]
        self._output_dtypes = [numpy_dtype(spec.dtype) for spec in self.outputs]
        self._runner: _runtime.Runner | None = _runtime.Runner(
            native, self._input_dtypes, self._output_dtypes
        )
        self._names = tuple(spec.name for spec in self.inputs)
        self._output_names = tuple(spec.name for spec in self.outputs)
        self._pack = _packer(self._output_names)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Name, element type and shape of each input."""
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Name, element type and shape of each output."""
        return self.manifest.outputs

    @property
    def sizes(self) -> tuple[SizeSpec, ...]:
        """The size variables and their bounds."""
        return self.manifest.sizes

    @property
    def metadata(self) -> Mapping[str, object]:
        """What the compiler recorded about the build."""
        return self.manifest.metadata

    def __call__(self, *arrays: object, **named: object) -> Any:
        """Run on inputs given in order or by name.

        Returns the array where the model has one output, else a named tuple of them.

        Raises:
            InputError: a missing, unknown or ill-fitting input.
            UserError: the model refused the values; the module is closed.
        """
        feeds = in_order(self._names, arrays, named) if named else arrays
        return self._pack(self._run(feeds))

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Run on inputs by name; returns the outputs by name, in the model's order.

        Raises:
            InputError: as `__call__`.
            UserError: as `__call__`.
        """
        results = self._run(by_name(self._names, feeds))
        return dict(zip(self._output_names, results, strict=True))

    def run_on_gpu(
        self, feeds: Feeds, outputs: Feeds | None = None, *, stream: int | None = None
    ) -> dict[str, Any]:
        """Run a model for a GPU on tensors there, in a stream of the caller's.

        Tensors that support DLPack on the first GPU are read and written where they are; inputs in
        CPU memory are copied. Outputs not given come as arrays with `__dlpack__`, for
        `torch.from_dlpack` and its kind, and `numpy()`. Returns as soon as everything is in the
        stream if all inputs are on the GPU: they must live until it is done with them. If the run
        then meets an index that lies outside of a tensor, the next run raises the error.

        Args:
            feeds: inputs by name.
            outputs: tensors to write to, by name; all of them or some.
            stream: the address of a stream, as `torch.cuda.Stream.cuda_stream`; else the default.

        Raises:
            InputError: as `run`; a tensor that is not on the first GPU.
            UserError: an output there is not; the model runs on the CPU.
        """
        number, given = stream_number(stream), dict(outputs or {})
        if unknown := sorted(given.keys() - set(self._output_names)):
            known = ", ".join(self._output_names)
            raise UserError(detail=f"there is no output '{unknown[0]}'; the model has {known}")
        pairs = zip(by_name(self._names, feeds), self.inputs, self._input_dtypes, strict=True)
        arrays = tuple(as_device_input(v, spec, dtype, number) for v, spec, dtype in pairs)
        targets = tuple(
            capsule(given[spec.name], spec, number) if spec.name in given else None
            for spec in self.outputs
        )
        with dlc_errors(self._name):
            results = self._open().run_in_stream(arrays, targets, number)
        assert results is not None, "checked tensors are ready"
        made = dict(zip(self._output_names, results, strict=True))
        return {name: given.get(name, made[name]) for name in made}

    def bind(self, inputs: Feeds, outputs: Mapping[str, Array] | None = None) -> Binding:
        """Fix the arrays, for runs that allocate nothing: change an input in place, then `run()`.

        Inputs must be arrays of the right type already, so that they are read where they are.
        Outputs are allocated unless given.

        Raises:
            InputError: an input that does not fit, or could only be used as a copy.
            UserError: an output that does not fit, or shares memory with another array.
        """
        self._check_no_texts()
        arrays = self._arrays(by_name(self._names, inputs))
        for name, array in zip(self._names, arrays, strict=True):
            given = inputs[name]
            if isinstance(given, np.ndarray) and given.size and not np.shares_memory(array, given):
                reason = "it is not contiguous, so it would be copied"
                raise InputError(name=name, reason=reason, hint="pass numpy.ascontiguousarray(…)")
        targets = None if outputs is None else self._targets(arrays, outputs)
        with dlc_errors(self._name):
            bound = self._open().bind(arrays, targets)
        assert bound is not None, "checked arrays are ready"
        return Binding(self, bound, self._names, self._output_names, self._name)

    def benchmark(
        self,
        inputs: Feeds | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
        rounds: int = 100,
        warmup: int = 10,
    ) -> Timing:
        """Time runs on bound arrays; without `inputs`, on zeros with these `sizes`.

        Outputs whose shapes depend on the data are allocated by each run.
        """
        feeds = self.example_inputs(sizes or {}) if inputs is None else inputs
        return measure(self.repeated(feeds), rounds=rounds, warmup=warmup)

    def repeated(self, inputs: Feeds) -> Callable[[], object]:
        """A function that runs on these inputs, on bound arrays where that is possible, for timing.

        Raises:
            InputError: an input that does not fit.
        """
        arrays = self._arrays(by_name(self._names, inputs))
        named = dict(zip(self._names, arrays, strict=True))
        if self._has_texts() or self._has_late_shapes(named):
            return lambda: self._run(arrays)
        return self.bind(named).run

    def profile(
        self,
        inputs: Feeds | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
        rounds: int = 20,
        warmup: int = 3,
    ) -> Profile:
        """How long each step of a run takes; inputs as for `benchmark`.

        Raises:
            ArtifactError: the model was built by a version of dlc that could not do this.
            UserError: the model has texts, or outputs whose shapes depend on the data.
        """
        feeds = self.example_inputs(sizes or {}) if inputs is None else inputs
        arrays = self._arrays(by_name(self._names, feeds))
        named = dict(zip(self._names, arrays, strict=True))
        if self._has_texts() or self._has_late_shapes(named):
            what = "texts" if self._has_texts() else "outputs whose shapes depend on the data"
            hint = "time whole runs: dlc bench, or Module.benchmark"
            raise UserError(detail=f"steps of a model with {what} cannot be timed", hint=hint)
        with dlc_errors(self._name):
            bound = self._open().bind(arrays, None)
            assert bound is not None, "checked arrays are ready"
            for _ in range(warmup):
                bound.run()
            runs = [bound.profile() for _ in range(rounds)]
        return Profile.of(runs, self.metadata.get("steps"))

    def example_inputs(self, sizes: Mapping[str, int] | None = None) -> dict[str, Array]:
        """Zeros of the right shapes; a size variable not given is 1, or its least value."""
        least = {size.name: max(1, size.min) for size in self.sizes} | dict(sizes or {})
        return {
            spec.name: np.zeros([least[d] if isinstance(d, str) else d for d in spec.shape], dtype)
            for spec, dtype in zip(self.inputs, self._input_dtypes, strict=True)
        }

    def output_shapes(self, inputs: Feeds) -> dict[str, tuple[int, ...]]:
        """The shapes the outputs have for these inputs; -1 where the data decides."""
        arrays = self._arrays(by_name(self._names, inputs))
        with dlc_errors(self._name):
            shapes = self._open().output_shapes(arrays)
        assert shapes is not None, "checked arrays are ready"
        return dict(zip(self._output_names, map(tuple, shapes), strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled model to a file, in one step that cannot be seen half done.

        Raises:
            UserError: nothing can be written at `path`.
        """
        out = Path(path)
        with staging(out) as draft, writing(out):
            with draft.open("xb") as file:
                file.write(self.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            draft.chmod(0o755)
            draft.replace(out)

    def to_bytes(self) -> bytes:
        """The compiled model as bytes, read from the file it was loaded from."""
        if self._native is None:
            raise _closed()
        descriptor = self._native.file()
        size = os.fstat(descriptor).st_size
        pieces: list[bytes] = []
        done = 0
        while done < size:  # one read returns at most 2 GiB
            pieces.append(os.pread(descriptor, size - done, done))
            if not pieces[-1]:
                raise UserError(detail="the file of the model was cut short while it was loaded")
            done += len(pieces[-1])
        return b"".join(pieces)

    def close(self) -> None:
        """Release memory and code; calls fail from now on. Bindings stay usable."""
        self._runner = None
        self._native = None

    def __enter__(self) -> Module:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[bytes], Module], tuple[bytes]]:
        return load_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        def show(specs: Sequence[TensorSpec]) -> str:
            return ", ".join(f"{s.name}: {s.dtype}{print_shape(s.shape)}" for s in specs)

        return f"<dlc.Module ({show(self.inputs)}) -> ({show(self.outputs)})>"

    def _open(self) -> _runtime.Runner:
        if self._runner is None:
            raise _closed()
        return self._runner

    def _run(self, feeds: tuple[object, ...]) -> tuple[Array, ...]:
        runner = self._runner or self._open()
        try:
            results = runner.run(feeds)
            if results is None:
                results = runner.run(self._arrays(feeds))
        except _runtime.StatusError as error:
            self._arrays(feeds)  # where it sees the fault too, its error has a hint
            raise to_dlc_error(error, self._name) from None
        assert results is not None, "checked arrays are ready"
        return results

    def _arrays(self, feeds: tuple[object, ...]) -> tuple[Array, ...]:
        """The inputs as arrays that are ready."""
        check_count(self._names, feeds)
        return tuple(map(as_input, feeds, self.inputs, self._input_dtypes))

    def _has_texts(self) -> bool:
        return any(spec.dtype is DType.STR for spec in (*self.inputs, *self.outputs))

    def _has_late_shapes(self, inputs: Feeds) -> bool:
        """Whether the data decides the shape of an output."""
        return any(-1 in shape for shape in self.output_shapes(inputs).values())

    def _check_no_texts(self) -> None:
        if self._has_texts():  # they lie in memory of their own, and results in the context's
            raise UserError(detail="a model with texts cannot be bound to arrays", hint="call it")

    def _targets(
        self, inputs: tuple[Array, ...], outputs: Mapping[str, Array]
    ) -> tuple[Array, ...]:
        """The arrays to write to, checked."""
        if outputs.keys() != set(self._output_names):
            given, wanted = ", ".join(outputs), ", ".join(self._output_names)
            raise UserError(detail=f"outputs {given} are given; the model has {wanted}")
        shapes = self.output_shapes(dict(zip(self._names, inputs, strict=True)))
        taken = [(name, array) for name, array in zip(self._names, inputs, strict=True)]
        for name, dtype in zip(self._output_names, self._output_dtypes, strict=True):
            array = outputs[name]
            if reason := why_not_writable(array, shapes[name], dtype):
                raise UserError(detail=f"output '{name}': {reason}")
            for other, memory in taken:
                if np.may_share_memory(array, memory):
                    raise UserError(detail=f"output '{name}' shares memory with '{other}'")
            taken.append((name, array))
        return tuple(
            outputs[name].view(d)
            for name, d in zip(self._output_names, self._output_dtypes, strict=True)
        )


def _packer(names: tuple[str, ...]) -> Callable[[tuple[Array, ...]], Any]:
    """What `__call__` returns for a tuple of outputs."""
    if len(names) == 1:
        return lambda results: results[0]
    kind = namedtuple("Outputs", names, rename=True)  # type: ignore[misc]
    return kind._make


def _closed() -> UserError:
    return UserError(detail="the module is closed", hint="load it again")
