"""ONNX in, graph out: read a file safely, then convert it node by node."""

from dlc.frontend.onnx import (
    algebra,
    cast,
    control,
    conv,
    einsum,
    elementwise,
    fourier,
    generate,
    image,
    learning,
    matmul,
    microsoft,
    microsoft_attention,
    microsoft_quantized,
    normalization,
    pool,
    quantized,
    random,
    recurrent,
    reduction,
    reshape,
    resize,
    scatter,
    selection,
    sequences,
    slicing,
    sort,
    tree_ensemble,
    trees,
)
from dlc.frontend.onnx.convert import Imported, convert_model, import_model
from dlc.frontend.onnx.interface import Interface
from dlc.frontend.onnx.limits import Limits
from dlc.frontend.onnx.load import load_model
from dlc.frontend.onnx.model import OnnxModel

FAMILIES = (
    algebra,
    cast,
    control,
    conv,
    einsum,
    elementwise,
    fourier,
    generate,
    image,
    learning,
    matmul,
    microsoft,
    microsoft_attention,
    microsoft_quantized,
    normalization,
    pool,
    quantized,
    random,
    recurrent,
    reduction,
    reshape,
    resize,
    scatter,
    selection,
    sequences,
    slicing,
    sort,
    tree_ensemble,
    trees,
)
"""The modules with converters."""

__all__ = [
    "FAMILIES",
    "Imported",
    "Interface",
    "Limits",
    "OnnxModel",
    "convert_model",
    "import_model",
    "load_model",
]
