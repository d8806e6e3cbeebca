"""Words by their characters: bytes, a convolution over them, and an embedding of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import BlockError
from composer.model.embedding_kinds import Characters
from composer.model.encoder_decoder import EncoderDecoder, TokenEmbedding

NONE, END, BEGIN = 253, 254, 255
"""Bytes that no text in UTF-8 has: after a word, and its marks."""


def has_numbers(tensor: Tensor) -> bool:
    """False for a tensor on the meta device, and for a compiler's fake tensor."""
    return type(tensor) is Tensor and not tensor.is_meta


def id_texts(vocabulary: int) -> list[str]:
    """Return the digits of each id, in place of the texts of unknown tokens."""
    return list(map(str, range(vocabulary)))


class Spelled(NamedTuple):
    """The ids in a batch, and the texts of all tokens by id; both by side."""

    ids: Mapping[str, Collection[int]]
    texts: Mapping[str, Sequence[str]]


class CharacterTable(nn.Module):
    """UTF-8 bytes of each token between begin and end marks: a saved buffer (V, L).

    Before `write`, the text of a token is its id in digits. `drawn`: how many tokens are looked up
    beside those of a batch, the first ones. `expected`: of a table without numbers, how many tokens
    are looked up at once, and the length of the longest; None where all of them are, in full.
    """

    characters: Tensor

    def __init__(self, vocabulary: int, max_length: int) -> None:
        super().__init__()
        self.drawn = 0
        self.expected: tuple[int, int] | None = None
        self.register_buffer("characters", torch.empty(vocabulary, max_length, dtype=torch.uint8))
        if has_numbers(self.characters):
            self.write(id_texts(vocabulary))

    def write(self, texts: Sequence[str]) -> None:
        """Take the texts of all tokens, by id; of a longer one its first bytes."""
        length = self.characters.shape[1]
        marks = bytes([BEGIN]), bytes([END])
        rows = (
            text.encode()[: length - 2].join(marks).ljust(length, bytes([NONE])) for text in texts
        )
        self.characters.copy_(
            torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(-1, length)
        )

    def expect(self, ids: Collection[int], texts: Sequence[str]) -> None:
        """Expect batches that have the tokens of these ids. texts: of all tokens, by id."""
        tokens = {*ids, *range(self.drawn)}
        longest = 2 + max(self.symbols(token, texts[token]) for token in tokens)
        self.expected = len(tokens), min(self.characters.shape[1], longest)

    def symbols(self, token: int, text: str) -> int:
        """Return the number of symbols that spell a token, without marks."""
        return len(text.encode())


class CharacterCnn(CharacterTable):
    """Character convolution and highway layers (Kim et al. 2016, sections 2.2, 2.3).

    With c the vectors of its characters: y_k = max_t tanh(W_k c_(t .. t + k) + b_k) for each
    kernel, over the places inside the word; a word that is shorter than a kernel has one, with
    zeros after it. With `padding`, over the places after it too, where there are zeros alone. Then,
    for each layer, y' = g relu(W y + b) + (1 - g) y with
    g = sigmoid(W_g y + b_g), and b_g is -2 at first.

    bound: of each number at first, of b_g from -2; None leaves it to the layers.
    """

    spans: Tensor

    def __init__(
        self,
        vocabulary: int,
        width: int,
        kernels: Sequence[int],
        features: Sequence[int],
        highway: int,
        max_length: int,
        padding: bool = False,
        bound: float | None = None,
    ) -> None:
        if len(kernels) != len(features) or not kernels:
            message = f"there are {len(kernels)} kernels, and features of {len(features)}"
            raise BlockError(
                "features", message, fix="write one number of features for each kernel"
            )
        if max(kernels) > max_length:
            message = (
                f"a kernel of {max(kernels)} is longer than a word, of which {max_length} bytes"
                " count"
            )
            raise BlockError(
                "kernels", message, fix="write narrower kernels, or raise `max_length`"
            )
        super().__init__(vocabulary, max_length)
        self.kernels, self.out_features = list(kernels), sum(features)
        self.embedding = nn.Embedding(256, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        shapes = zip(features, kernels, strict=True)
        self.weights = nn.ParameterList(
            [torch.empty(feature, kernel, width) for feature, kernel in shapes]
        )
        self.bias = nn.Parameter(torch.zeros(self.out_features))
        self.padding = padding
        inside = [1 for _ in kernels] if padding else kernels
        spans: list[int] = []
        for span, feature in zip(inside, features, strict=True):
            spans += [span] * feature
        # of each feature, inside the word
        self.register_buffer("spans", torch.tensor(spans), persistent=False)
        for weight in self.weights:
            by_inputs = weight[0].numel() ** -0.5
            nn.init.uniform_(weight, -by_inputs, by_inputs)
        layers = [nn.Linear(self.out_features, 2 * self.out_features) for _ in range(highway)]
        self.highway = nn.ModuleList(layers)
        if bound is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -bound, bound)
        for layer in layers:
            gate = layer.bias.detach()[self.out_features :]
            gate.fill_(-2.0) if bound is None else gate.sub_(2.0)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vector of each token, (...,) -> (..., features).

        On a CPU, that of each word is computed once.
        """
        is_known = has_numbers(ids) or self.expected is not None
        if ids.device.type != "cpu" or not is_known or torch.compiler.is_compiling():
            return self.vectors(self.characters[ids.flatten()]).view(*ids.shape, -1)
        if self.expected is not None:
            count, longest = self.expected
            characters = self.characters[ids.new_zeros(min(ids.numel(), count))]
            return F.embedding(torch.zeros_like(ids), self.vectors(characters[:, :longest]))
        distinct, place = ids.unique(return_inverse=True)
        characters = self.characters[distinct]
        longest = int((characters != NONE).sum(1).max())
        return F.embedding(place, self.vectors(characters[:, :longest]))

    def vectors(self, characters: Tensor) -> Tensor:
        """Return the vectors of words from their characters. (N, L) -> (N, features)"""
        length, widest = characters.shape[1], max(self.kernels)
        real = characters != NONE  # (N, L)
        c = self.embedding(characters.int()) * real[..., None]  # (N, L, C)
        windows = (
            F.pad(c, (0, 0, 0, widest - 1)).unfold(1, widest, 1).transpose(2, 3)
        )  # (N, L, K, C)
        # one product for all kernels, each filled up with zeros, takes less time than the kernels
        # one by one
        kernels = torch.cat(
            [F.pad(weight, (0, 0, 0, widest - weight.shape[1])) for weight in self.weights]
        )
        y = F.linear(windows.flatten(2), kernels.flatten(1))  # (N, L, features)
        places = torch.arange(length, device=real.device)
        ends = real.sum(1)[:, None] - self.spans  # (N, features): the last window
        outside = places[:, None] > ends.clamp(min=0)[:, None]  # (N, L, features)
        # the largest sum has the largest tanh
        y = y.masked_fill(outside, -torch.inf).amax(1)  # (N, features)
        # the sum of a window of zeros is 0
        y = torch.tanh((y.clamp(min=0) if self.padding else y) + self.bias)
        for layer in self.highway:
            made, gate = layer(y).chunk(2, -1)
            y = y + torch.sigmoid(gate) * (F.relu(made) - y)
        return y


class CharacterEmbedding(TokenEmbedding):
    """Embedding by convolution over characters, as wide as its features; see `CharacterCnn`.

    Raises BlockError where there are not as many kernels as features, or a kernel is longer than a
    word.
    """

    def __init__(self, vocabulary: int, settings: Characters) -> None:
        super().__init__()
        self.map = CharacterCnn(
            vocabulary,
            settings.width,
            settings.kernels,
            settings.features,
            settings.highway,
            settings.max_length,
            settings.padding,
            settings.bound,
        )
        self.num_embeddings, self.embedding_dim = vocabulary, self.map.out_features

    def forward(self, ids: Tensor) -> Tensor:
        return self.map(ids)  # (B, T, features)


def write_characters(model: EncoderDecoder, texts: Callable[[str], Sequence[str]]) -> None:
    """Give all character tables of a model the texts of a side's tokens, by id."""
    for side, part in sided_parts(model):
        for module in part.modules():
            if isinstance(module, CharacterTable):
                module.write(texts(side))


def expect_characters(model: EncoderDecoder, spelled: Spelled | None) -> bool:
    """Tell the character tables of a model without numbers the words of a batch; False without any.

    spelled: None where that is not known: then the largest batch is expected.
    """
    has_tables = False
    for side, part in sided_parts(model):
        for module in part.modules():
            if isinstance(module, CharacterTable):
                has_tables = True
                vocabulary, length = module.characters.shape
                module.expected = vocabulary, length
                if spelled is not None:
                    module.expect(spelled.ids[side], spelled.texts[side])
    return has_tables


def sided_parts(model: EncoderDecoder) -> Iterator[tuple[str, nn.Module]]:
    """Yield the embeddings and the output with the side whose tokens they are of."""
    yield from ((key, encoder.embedding) for key, encoder in model.readers().items())
    yield "target", model.output
    if model.embedding is not None:
        yield "target", model.embedding
