"""Projections that an attention and the blocks that can take its place have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn


class Projection(NamedTuple):
    """Weight and bias of a linear map from or to heads, as views of parameters.

    weight: (H, d, D). bias: (H, d), or (D,) of a map from heads, or None.
    """

    weight: Tensor
    bias: Tensor | None


class AttentionParts(NamedTuple):
    """Linear maps of a multi-head attention, or of what reads and writes as one does.

    Keys and values may have fewer heads than queries and outputs (grouped queries).
    """

    query: Projection
    key: Projection
    value: Projection
    output: Projection

    def copies(self, source: AttentionParts) -> Iterator[tuple[str, list[tuple[Tensor, Tensor]]]]:
        """Yield the names of the parts that fit, with pairs of own tensors and what goes there.

        A head of keys and values of `source` is repeated for the queries that read it. A part whose
        heads have another width, or with which it has another number of heads, does not fit. A bias
        that only `source` has is left out.
        """
        heads = self.query.weight.shape[0]
        if source.query.weight.shape[0] != heads:
            return
        for name, own, theirs in zip(self._fields, self, source, strict=True):
            times = own.weight.shape[0] // theirs.weight.shape[0]
            weight = theirs.weight.repeat_interleave(times, 0)  # (H, d, D)
            if weight.shape != own.weight.shape:
                continue
            pairs = [(own.weight, weight)]
            if own.bias is not None and theirs.bias is not None:
                is_output = name == "output"
                bias = theirs.bias if is_output else theirs.bias.repeat_interleave(times, 0)
                pairs.append((own.bias, bias))
            yield name, pairs


def attention_parts(
    project: nn.Linear, merge: nn.Linear, heads: Sequence[int], widths: Sequence[int]
) -> AttentionParts:
    """Return the parts of a map to queries, keys and values side by side, and of one from heads.

    heads, widths: Of queries, keys and values.
    """
    sizes = [count * width for count, width in zip(heads, widths, strict=True)]
    weights = project.weight.detach().split(sizes)  # (H d, D) each
    biases: Sequence[Tensor | None] = [None] * 3
    if project.bias is not None:
        biases = project.bias.detach().split(sizes)  # (H d,) each
    parts = []
    for weight, bias, count in zip(weights, biases, heads, strict=True):
        own_bias = None if bias is None else bias.unflatten(0, (count, -1))  # (H, d)
        parts.append(Projection(weight.unflatten(0, (count, -1)), own_bias))
    merged = merge.weight.detach().T.unflatten(0, (heads[0], -1))  # (H, d, D)
    output = Projection(merged, None if merge.bias is None else merge.bias.detach())
    query, key, value = parts
    return AttentionParts(query, key, value, output)
