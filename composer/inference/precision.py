"""Decoding in a lower precision, with a copy of a model whose weights are converted once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from composer.errors import RunError
from composer.model.encoder_decoder import EncoderDecoder, OutputHead
from composer.recipe.choices import Precision

MIN_ROWS = 16
"""Fewer rows than these wait for the weights to be read, more of them for the products."""
MEDIUM, LARGE = 1 << 17, 1 << 19
"""Weights from which a map is faster in int8: of few rows, and of any number."""

Versions = tuple[tuple[int, int], ...]
"""Which tensors the parameters of a model are, and how often each was changed."""

_converted: WeakKeyDictionary[EncoderDecoder, dict[str, tuple[Versions, EncoderDecoder]]] = (
    WeakKeyDictionary()
)


WEIGHT_LEVELS = 127 if torch.cpu._is_vnni_supported() else 64
"""Largest weight. A CPU without VNNI adds two products in 16 bits: 2 x 255 x 64 fits."""


class Int8Linear(nn.Linear, OutputHead):
    """Linear map with weights of 8 bits, and a scale for each output and each input row.

    y = s_x s_w (q_x q_w) + b with q = round(n x / max |x|), where n is 127, of weights
    `WEIGHT_LEVELS`. `weight` and `bias` are those it was made from.
    """

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        weight = linear.weight.detach()
        self.scale = (
            weight.abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny) / WEIGHT_LEVELS
        )  # (O,)
        self.packed = torch.ops.onednn.qlinear_prepack(
            (weight / self.scale[:, None]).round().to(torch.int8), None
        )
        self.zeros = torch.zeros_like(self.scale).long()
        self.shift = torch.zeros_like(self.scale) if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        scale = (
            torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True).clamp(min=1e-30) / 127
        )  # (B, T, 1)
        quantised = (x / scale).round_().add_(128).to(torch.uint8)
        of_x, of_weight, of_y = (1.0, 128), (self.scale, self.zeros), (1.0, 0)  # scales and zeros
        y = torch.ops.onednn.qlinear_pointwise(
            quantised, *of_x, self.packed, *of_weight, None, *of_y, torch.float32, "none", [], ""
        )  # (B, T, O)
        return torch.addcmul(self.shift, y, scale)


class SmallLinear(nn.Linear, OutputHead):
    """Linear map that computes many rows in bfloat16, and few rows by `few` or in float32."""

    def __init__(self, linear: nn.Linear, few: Int8Linear | None = None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.few = linear.in_features, linear.out_features, few
        self.weight, self.bias = linear.weight, linear.bias
        self.low_weight = linear.weight.detach().bfloat16()
        self.low_bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() >= MIN_ROWS * self.in_features:
            return F.linear(x.bfloat16(), self.low_weight, self.low_bias).to(x.dtype)
        return F.linear(x, self.weight, self.bias) if self.few is None else self.few(x)


def fastest(linear: nn.Linear) -> nn.Linear:
    """Return the map that computes the same sooner, by the size of its weights."""
    if (weights := linear.weight.numel()) >= LARGE:
        return Int8Linear(linear)
    return SmallLinear(linear, Int8Linear(linear) if weights >= MEDIUM else None)


def in_precision(
    models: Sequence[EncoderDecoder], precision: Precision
) -> Sequence[EncoderDecoder]:
    """Return models that compute in a precision: copies, for as long as the weights do not change.
    One that has programs was made in it.

    Raises RunError for `int8` on anything but a CPU, or without oneDNN.
    """
    if precision == "float32":
        return models
    return [model if model.has_programs else _convert(model, precision) for model in models]


def versions_of(model: EncoderDecoder) -> Versions:
    """Return what tells whether the weights of a model have changed."""
    return tuple((parameter.data_ptr(), parameter._version) for parameter in model.parameters())


def _convert(model: EncoderDecoder, precision: Precision) -> EncoderDecoder:
    versions = versions_of(model)
    converted_at, converted = _converted.setdefault(model, {}).get(precision, ((), model))
    if converted_at != versions:
        with torch.inference_mode(False), torch.no_grad():
            if precision == "int8":
                converted = _quantised(model)
            else:
                converted = copy.deepcopy(model).to(torch.bfloat16)
        _converted[model][precision] = versions, converted
    return converted


def _quantised(model: EncoderDecoder) -> EncoderDecoder:
    """Return a copy with the same parameters, but for its linear maps."""
    if model.device.type != "cpu":
        message = f"`int8` is for CPUs, and the model is on {model.device.type}"
        raise RunError.of(message, "write `precision: bfloat16`, or set `trainer.accelerator=cpu`")
    if not torch.backends.mkldnn.is_available():
        raise RunError.of(
            "`int8` needs oneDNN, which this PyTorch was built without",
            "write `precision: bfloat16`",
        )
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    quantised = copy.deepcopy(model, shared)
    for parent in list(quantised.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Linear) and type(child).forward is nn.Linear.forward:
                setattr(parent, name, fastest(child))
    return quantised
