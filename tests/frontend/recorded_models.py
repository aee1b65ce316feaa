"""Models that dlc's own tests import: examples of operators that ONNX has no test of by itself.

They are recorded while the tests run, in a process of its own.

Run as `python -m tests.frontend.recorded_models FILE`.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

FOLDER = Path(__file__).parent
TESTS = (
    *sorted(path.name for path in FOLDER.glob("test_microsoft*.py")),
    "test_fourier.py", "test_image.py", "test_learning.py", "test_quantized.py", "test_random.py",
    "test_sequences.py", "test_trees.py", "test_versions.py", "test_wider.py",
    "../end_to_end/test_texts.py",
)  # fmt: skip
_MOST_BYTES = 1 << 20


def recorded() -> list[onnx.ModelProto]:
    """Models of the tests, each operator with each set of attributes and operand types once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "models"
        command = [sys.executable, "-m", __spec__.name, str(path)]
        subprocess.run(command, check=True, cwd=FOLDER.parents[1], stdout=subprocess.DEVNULL)
        texts: list[bytes] = pickle.loads(path.read_bytes())
    return [onnx.ModelProto.FromString(text) for text in texts]


def _record(path: Path) -> int:
    """Run the tests, and write what they import."""
    import pytest

    from dlc.frontend.onnx.decode import Decoder

    found: dict[tuple[object, ...], bytes] = {}
    plain = Decoder.model

    def model(self: Decoder, proto: onnx.ModelProto) -> Any:
        if proto.ByteSize() < _MOST_BYTES:
            found.setdefault(tuple(_kinds(proto)), proto.SerializeToString())
        return plain(self, proto)

    Decoder.model = model  # type: ignore[method-assign]
    code = pytest.main(["-q", "-p", "no:cacheprovider", *(str(FOLDER / t) for t in TESTS)])
    path.write_bytes(pickle.dumps(list(found.values())))
    return int(code)


def _kinds(proto: onnx.ModelProto) -> Iterator[object]:
    """What tells two examples apart."""
    for value in proto.graph.input:
        yield value.type.tensor_type.elem_type
    for node in proto.graph.node:
        yield (node.domain, node.op_type, tuple(map(bool, node.input)), len(node.output))
        yield tuple(sorted(attribute.name for attribute in node.attribute))
    yield tuple(tensor.data_type for tensor in proto.graph.initializer)


if __name__ == "__main__":
    sys.exit(_record(Path(sys.argv[1])))
