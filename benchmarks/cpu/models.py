"""The models of the benchmark: where each comes from, and the sizes it is run with."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LIGHT = "light"  # inside the onnx package
EXPORTED = "exported"  # by export.py, with seeded random weights
GIVEN = "given"  # only where the user has the file


@dataclass(frozen=True, slots=True)
class Download:
    """A published file, known by its hash."""

    url: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Quantized:
    """An exported model with weights of 8 bits or 4; `kind` is that of `quantized.quantize`."""

    origin: str
    kind: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model: where it comes from, and values of its open sizes; one not named is 1."""

    name: str
    source: str | Download | Quantized
    sizes: Mapping[str, int] = field(default_factory=dict)


class Missing(Exception):
    """Why a model cannot be had."""


_RAW = "https://raw.githubusercontent.com"
# Licences: Apache-2.0, MIT, Apache-2.0.
_YOLOX = Download(
    f"{_RAW}/Kazuhito00/YOLOX-ONNX-TFLite-Sample/3d4f1119d0694200671c08069ecb847aa0d8495a/"
    "model/yolox_nano.onnx",
    "695e750a5d5754bb5a8d5325643b59282191a7e7a564e435a415fd3c578eab14",
)
_ULTRAFACE = Download(
    f"{_RAW}/Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB/"
    "dffdddda9794a50607cba8f318507a28c1c27cab/models/onnx/version-RFB-320.onnx",
    "34cd7e60aeff28744c657de7a3dc64e872d506741de66987f3426f2b79f88017",
)
_PPOCR = Download(
    f"{_RAW}/Kahsolt/CCF-BDCI-2024-TPU-ocr-deploy/37b7921072f3ddd9d55dab64f9a1ed6627236f18/"
    "models/ch_PP-OCRv3_det_infer.onnx",
    "01c414b39144bf1d1238c5e8ee1e23d5c5b96b231cea0b71ceba16c05434e5cc",
)

_OPEN = "p2o.DynamicDimension.{}"  # what the exporter of PaddlePaddle calls open sizes

MODELS = (
    Model("resnet18", EXPORTED),
    Model("resnet50", EXPORTED),
    Model("mobilenet_v1", EXPORTED),
    Model("mobilenet_v2", EXPORTED),
    Model("vgg16", EXPORTED),
    Model("bert_base", EXPORTED),
    Model("minilm_l6", EXPORTED, {"batch": 1, "seq": 128}),
    Model("vit_b16", EXPORTED),
    Model("lstm", EXPORTED),
    Model("light_densenet121", LIGHT),
    Model("light_inception_v2", LIGHT),
    Model("light_squeezenet", LIGHT),
    Model("light_shufflenet", LIGHT),
    Model("yolox_nano", _YOLOX),
    Model("centerface_synth", GIVEN),
    Model("ultraface_rfb320", _ULTRAFACE),
    Model("ppocr_v3_det", _PPOCR, {_OPEN.format(1): 480, _OPEN.format(2): 640}),
)


OTHERS = tuple(
    Model(name, EXPORTED)
    for name in (
        "convnext", "regnet", "swin", "mobilevit", "poolformer", "deit_tiny", "segformer",
        "bert_wide", "unet", "super_resolution", "generator", "vocoder", "gru", "efficientnet",
        "levit", "squeezebert", "mobilebert", "bert_long", "t5", "whisper", "wav2vec2",
        "speech", "points",
    )
)  # fmt: skip
"""Outside the table: what is fast only where we look shows here."""

INT8 = (
    Model("resnet18_u8", Quantized("resnet18", "u8")),
    Model("resnet50_i8", Quantized("resnet50", "i8")),
    Model("mobilenet_v1_u8", Quantized("mobilenet_v1", "u8")),
    Model("mobilenet_v2_i8", Quantized("mobilenet_v2", "i8")),
    Model("minilm_l6_dynamic", Quantized("minilm_l6", "dynamic"), {"batch": 1, "seq": 128}),
    Model("bert_base_dynamic", Quantized("bert_base", "dynamic")),
    Model("lstm_dynamic", Quantized("lstm", "dynamic")),
    Model("minilm_l6_four", Quantized("minilm_l6", "four"), {"batch": 1, "seq": 128}),
    Model("bert_base_four", Quantized("bert_base", "four")),
    Model("mobilenetv2_qdq", GIVEN),
    *(
        Model(f"{name}_{kind}", Quantized(name, kind))
        for name, kind in (
            ("efficientnet", "u8"), ("convnext", "i8"), ("segformer", "u8"), ("mobilevit", "u8"),
            ("levit", "u8"), ("regnet", "u8"), ("swin", "u8"), ("poolformer", "u8"),
            ("deit_tiny", "u8"), ("unet", "i8"),
        )
    ),
)  # fmt: skip


def find(model: Model, cache: Path, folder: Path | None) -> Path:
    """The file of a model: the user's, or one made or downloaded into `cache`.

    Raises:
        Missing: it cannot be had, and why.
    """
    for path in (
        (folder / f"{model.name}.onnx", folder / model.name / "model.onnx") if folder else ()
    ):
        if path.exists():
            return path
    made = cache / f"{model.name}.onnx"
    if made.exists():
        return made
    cache.mkdir(parents=True, exist_ok=True)
    if isinstance(model.source, Download):
        made.write_bytes(_fetch(model.source))
        return made
    if isinstance(model.source, Quantized):
        origin = find(Model(model.source.origin, EXPORTED), cache, folder)
        try:
            from benchmarks.cpu.quantized import quantize
        except ImportError as error:
            raise Missing(f"to quantize it needs {error.name}") from error
        quantize(origin, made, model.source.kind)
        return made
    if model.source == LIGHT:
        return _light(model.name)
    if model.source == GIVEN:
        raise Missing(f"it is not published; put {model.name}.onnx into --folder")
    try:
        from benchmarks.cpu.export import export
    except ImportError as error:
        raise Missing(f"its export needs {error.name}") from error
    export(model.name, made)
    return made


def _light(name: str) -> Path:
    import onnx.backend.test

    path = Path(onnx.backend.test.__file__).parent / "data" / "light" / f"{name}.onnx"
    if not path.exists():
        raise Missing("this version of onnx does not hold it")
    return path


def _fetch(source: Download) -> bytes:
    try:
        with urllib.request.urlopen(source.url, timeout=60) as answer:
            data: bytes = answer.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise Missing(f"cannot download {source.url}: {error}") from error
    if hashlib.sha256(data).hexdigest() != source.sha256:
        raise Missing(f"{source.url} is not the file it was")
    return data
