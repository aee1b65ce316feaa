"""Models of ONNX in JAX, for a baseline: what XLA makes of the same network.

Knows the operators of exported image networks and transformers. Weights are arguments of the
compiled function, and whole numbers (shapes, axes) constants of it.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

jax: Any = importlib.import_module("jax")  # not among the packages that are checked
jnp: Any = importlib.import_module("jax.numpy")
lax: Any = importlib.import_module("jax.lax")

PRECISIONS = {"fp32": "highest", "tf32": "tensorfloat32", "fp16": "highest"}
Arrays = Mapping[str, Any]


def function_of(model: onnx.ModelProto, mode: str) -> Callable[[Arrays], tuple[Any, ...]]:
    """The compiled model: inputs by name to outputs in order. `mode` is a key of `PRECISIONS`."""
    kind = jnp.float16 if mode == "fp16" else jnp.float32
    stored = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    weights = {n: jnp.asarray(a, kind) for n, a in stored.items() if a.dtype.kind == "f"}
    fixed = {n: a for n, a in stored.items() if n not in weights}

    def evaluate(weights: Arrays, inputs: Arrays) -> tuple[Any, ...]:
        values: dict[str, Any] = {"": None, **fixed, **weights}
        for name, array in inputs.items():
            values[name] = array.astype(kind) if array.dtype.kind == "f" else array
        for node in model.graph.node:
            made = _outputs(node, [values[n] for n in node.input])
            values.update(zip(node.output, made, strict=False))
        return tuple(values[o.name] for o in model.graph.output)

    run = jax.jit(evaluate)

    def call(inputs: Arrays) -> tuple[Any, ...]:
        with jax.default_matmul_precision(PRECISIONS[mode]):
            found: tuple[Any, ...] = run(weights, inputs)
            return found

    return call


def _outputs(node: onnx.NodeProto, operands: list[Any]) -> tuple[Any, ...]:
    if all(a is None or isinstance(a, np.ndarray | np.generic) for a in operands):
        return _constant(node, operands)
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type not in _OPERATORS:
        raise NotImplementedError(f"{node.op_type} in JAX")
    found = _OPERATORS[node.op_type](*operands, **given)
    return found if isinstance(found, tuple) else (found,)


def _constant(node: onnx.NodeProto, operands: list[Any]) -> tuple[Any, ...]:
    """A node whose operands are all known: ONNX's own evaluator computes it."""
    names = [n for n in node.input if n]
    known = [a for a in operands if a is not None]
    kinds = [helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype) for a in known]
    inputs = [helper.make_tensor_value_info(n, k, None) for n, k in zip(names, kinds, strict=True)]
    outputs = [helper.make_empty_tensor_value_info(n) for n in node.output]
    graph = helper.make_graph([node], "node", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return tuple(ReferenceEvaluator(model).run(None, dict(zip(names, known, strict=True))))


def _conv(
    x: Any, w: Any, b: Any = None, *, strides: Any = None, pads: Any = None, group: int = 1,
    dilations: Any = None, kernel_shape: Any = None, auto_pad: bytes = b"NOTSET",
) -> Any:  # fmt: skip
    if auto_pad != b"NOTSET":
        raise NotImplementedError("auto_pad in JAX")
    rank = x.ndim - 2
    edges = pads or [0] * (2 * rank)
    result = lax.conv_general_dilated(
        x, w, strides or [1] * rank, list(zip(edges[:rank], edges[rank:], strict=True)),
        rhs_dilation=dilations, feature_group_count=group,
    )  # fmt: skip
    return result if b is None else result + b.reshape(-1, *[1] * rank)


def _conv_transpose(
    x: Any, w: Any, b: Any = None, *, strides: Any = None, pads: Any = None, group: int = 1,
    dilations: Any = None, output_padding: Any = None, kernel_shape: Any = None,
    auto_pad: bytes = b"NOTSET", output_shape: Any = None,
) -> Any:  # fmt: skip
    """Of one group: a convolution of an image with zeros between its pixels."""
    if group != 1 or auto_pad != b"NOTSET" or output_shape:
        raise NotImplementedError("such a ConvTranspose in JAX")
    rank = x.ndim - 2
    edges, apart = pads or [0] * (2 * rank), dilations or [1] * rank
    reach = [step * (size - 1) for step, size in zip(apart, w.shape[2:], strict=True)]
    more = output_padding or [0] * rank
    around = [
        (r - low, r - high + m)
        for r, low, high, m in zip(reach, edges[:rank], edges[rank:], more, strict=True)
    ]
    turned = jnp.flip(w, tuple(range(2, w.ndim))).swapaxes(0, 1)
    result = lax.conv_general_dilated(
        x, turned, [1] * rank, around, lhs_dilation=strides or [1] * rank, rhs_dilation=apart
    )
    return result if b is None else result + b.reshape(-1, *[1] * rank)


def _batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, variance: Any, *, epsilon: float = 1e-5, **_: Any
) -> Any:
    factor = scale * lax.rsqrt(variance + epsilon)
    shape = (-1, *[1] * (x.ndim - 2))
    return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)


def _max_pool(
    x: Any, *, kernel_shape: Any, strides: Any = None, pads: Any = None, **rest: Any
) -> Any:
    if set(rest.get("dilations", ())) - {1} or rest.get("ceil_mode"):
        raise NotImplementedError("such a MaxPool in JAX")
    rank = len(kernel_shape)
    edges = pads or [0] * (2 * rank)
    around = [(0, 0), (0, 0), *zip(edges[:rank], edges[rank:], strict=True)]
    window, steps = (1, 1, *kernel_shape), (1, 1, *(strides or [1] * rank))
    return lax.reduce_window(x, -jnp.inf, lax.max, window, steps, around)


def _gemm(
    a: Any, b: Any, c: Any = 0.0, *, alpha: float = 1.0, beta: float = 1.0, **turned: int
) -> Any:
    left = a.T if turned.get("transA") else a
    right = b.T if turned.get("transB") else b
    return alpha * (left @ right) + beta * c


def _layer_norm(
    x: Any, scale: Any, bias: Any = None, *, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Any:
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axes, keepdims=True)
    normal = centred * lax.rsqrt((centred**2).mean(axes, keepdims=True) + epsilon)
    result = normal.astype(x.dtype) * scale
    return result if bias is None else result + bias


def _slice(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    found = [slice(None)] * x.ndim
    along = range(len(starts)) if axes is None else axes
    by = [1] * len(starts) if steps is None else steps
    for axis, start, end, step in zip(along, starts, ends, by, strict=True):
        found[axis] = slice(int(start), int(end), int(step))
    return x[tuple(found)]


def _split(x: Any, sizes: Any = None, *, axis: int = 0, num_outputs: int = 2) -> tuple[Any, ...]:
    places = num_outputs if sizes is None else list(np.cumsum(sizes)[:-1])
    return tuple(jnp.split(x, places, axis))


def _cast(x: Any, *, to: int, **_: Any) -> Any:
    return x.astype(helper.tensor_dtype_to_np_dtype(to))


def _clip(x: Any, low: Any = None, high: Any = None) -> Any:
    return jnp.clip(x, low, high)


def _reduce_mean(x: Any, axes: Any = None, *, keepdims: int = 1, **_: Any) -> Any:
    return x.mean(None if axes is None else tuple(int(a) for a in axes), keepdims=bool(keepdims))


def _reshape(x: Any, shape: Any, **_: Any) -> Any:
    return x.reshape([x.shape[d] if n == 0 else int(n) for d, n in enumerate(shape)])


def _gelu(x: Any, *, approximate: bytes = b"none") -> Any:
    return jax.nn.gelu(x, approximate=approximate == b"tanh")


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": jnp.add, "And": jnp.logical_and, "Div": jnp.divide, "Equal": jnp.equal,
    "Erf": jax.scipy.special.erf, "Mul": jnp.multiply, "Pow": jnp.power, "Relu": jax.nn.relu,
    "Sigmoid": jax.nn.sigmoid, "Sqrt": jnp.sqrt, "Sub": jnp.subtract, "Tanh": jnp.tanh,
    "Where": jnp.where, "MatMul": jnp.matmul, "Identity": lambda x: x, "Gelu": _gelu,
    "BatchNormalization": _batch_norm, "ConvTranspose": _conv_transpose,
    "Conv": _conv, "MaxPool": _max_pool, "Gemm": _gemm, "LayerNormalization": _layer_norm,
    "Slice": _slice, "Split": _split, "Cast": _cast, "Clip": _clip, "ReduceMean": _reduce_mean,
    "Reshape": _reshape, "Shape": lambda x: np.array(x.shape),
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.ndim)), keepdims=True),
    "Softmax": lambda x, *, axis=-1: jax.nn.softmax(x, axis),
    "Transpose": lambda x, *, perm=None: jnp.transpose(x, perm),
    "Flatten": lambda x, *, axis=1: x.reshape(int(np.prod(x.shape[:axis])), -1),
    "Concat": lambda *parts, axis: jnp.concatenate(parts, axis),
    "Gather": lambda x, at, *, axis=0: jnp.take(x, at, axis),
    "Expand": lambda x, shape: x * jnp.ones([int(n) for n in shape], x.dtype),
    "Squeeze": lambda x, axes=None: jnp.squeeze(x, None if axes is None else tuple(map(int, axes))),
    "Unsqueeze": lambda x, axes: jnp.expand_dims(x, tuple(map(int, axes))),
}  # fmt: skip


def microseconds(run: Callable[[Arrays], tuple[Any, ...]], inputs: Arrays, runs: int) -> float:
    """The time of a run among many: they are queued, so what the CPU does lies beside them."""
    there = {name: jax.device_put(array) for name, array in inputs.items()}
    jax.block_until_ready(run(there))
    began = time.perf_counter()
    for _ in range(runs):
        found = run(there)
    jax.block_until_ready(found)
    return (time.perf_counter() - began) / runs * 1e6
