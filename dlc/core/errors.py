"""Every error dlc raises. An error is a template plus its fields as data, a hint and two codes.

`UserError`: the model, schedule or flag must change; `InternalError`: dlc is wrong.
"""

from __future__ import annotations

from typing import ClassVar


class DlcError(Exception):
    """Base class: a message template, its fields as data, and a hint."""

    template: ClassVar[str] = "{detail}"
    code: ClassVar[str] = "DLC-E0000"
    exit_code: ClassVar[int] = 1

    def __init__(self, *, hint: str = "", **fields: object) -> None:
        self.fields = fields
        self.hint = hint
        super().__init__(self.template.format(**fields))

    def __reduce__(self) -> tuple[object, ...]:
        """Keyword-only constructors break pickling without it; workers send errors back."""
        return (_rebuild, (type(self), self.hint, self.fields))

    def __str__(self) -> str:
        message = self.template.format(**self.fields)
        return f"{message}\nhint: {self.hint}" if self.hint else message

    def to_dict(self) -> dict[str, object]:
        """The error as JSON-ready data."""
        return {
            "error": type(self).__name__,
            "code": self.code,
            "message": self.template.format(**self.fields),
            "hint": self.hint,
        }


def _rebuild(kind: type[DlcError], hint: str, fields: dict[str, object]) -> DlcError:
    return kind(hint=hint, **fields)


def show_os_error(error: OSError) -> str:
    """What the operating system said, to stand behind a colon."""
    return (error.strerror or str(error)).lower()


def why_unreadable(error: OSError) -> str:
    """Why a file cannot be read, to stand behind its name."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return f"cannot be read: {show_os_error(error)}"


class UserError(DlcError):
    """The model, the schedule, the input or the flag must change."""

    code = "DLC-E0100"
    exit_code = 2


class ModelError(UserError):
    """The model cannot be read, or is not valid."""

    template = "{model}: {reason}"
    code = "DLC-E0300"
    exit_code = 3


class UnsupportedOperator(ModelError):
    """A node whose operator, attribute or operand dlc does not handle.

    The field `needs` is the name of a value that would have to be constant, or "".
    """

    template = "node '{node}': ONNX {op} is not supported: {reason}"
    code = "DLC-E0301"


class UnsupportedModel(ModelError):
    """All nodes of a model that cannot be compiled; `issues` holds one error for each."""

    template = "{count} of {nodes} of {model} cannot be compiled, {share} of its work:\n{listing}"
    code = "DLC-E0302"

    @property
    def issues(self) -> tuple[UnsupportedOperator, ...]:
        """One error for each node."""
        found = self.fields["issues"]
        assert isinstance(found, tuple)
        return found


class ShapeError(ModelError):
    """Operands whose shapes or types do not fit an operator."""

    template = "{op}: {reason} (operands: {operands})"
    code = "DLC-E0303"


class InputError(UserError, ValueError):
    """An array that does not fit the input it was given for."""

    template = "input '{name}': {reason}"
    code = "DLC-E0200"


class ScheduleError(UserError):
    """A schedule primitive that would change the meaning of the program."""

    template = "cannot {primitive} in '{func}': {reason}"
    code = "DLC-E0400"


class TargetError(UserError):
    """No such target, or the target lacks what is asked, or its tools are missing."""

    template = "target '{target}': {reason}"
    code = "DLC-E0500"
    exit_code = 5


class ArtifactError(UserError):
    """A compiled model that cannot be loaded: corrupt, for another ABI or another CPU."""

    template = "{path}: {reason}"
    code = "DLC-E0600"
    exit_code = 6


class LimitError(UserError):
    """A limit on memory, time or size was hit."""

    template = "{what} exceeds the limit: {reason}"
    code = "DLC-E0700"
    exit_code = 7


class VerificationError(DlcError):
    """The compiled model's numbers differ from the reference."""

    template = "{output}: {reason}"
    code = "DLC-E0800"
    exit_code = 4


class InternalError(DlcError):
    """dlc is wrong."""

    code = "DLC-E0900"
    exit_code = 1


class VerifyError(InternalError):
    """An IR whose invariants do not hold."""

    template = "{unit} is ill-formed {when}: {problems}"
    code = "DLC-E0901"


class CodegenError(InternalError):
    """LLVM or the linker rejected what dlc emitted."""

    template = "{stage} rejected '{unit}': {reason}"
    code = "DLC-E0902"
