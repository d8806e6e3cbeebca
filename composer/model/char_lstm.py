"""Output head that spells tokens by an LSTM over characters, along a tree of prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from blocks.core.recurrence import LSTMLayer
from composer.model.characters import BEGIN, END, NONE, CharacterTable, has_numbers, id_texts
from composer.model.encoder_decoder import OutputHead
from composer.model.output_kinds import CharLstm
from composer.model.special_tokens import NUM_SPECIAL

SYMBOLS = 256
"""Bytes, and the marks among them that no text has."""
FIRST_SPECIAL = 249
"""The symbol of the first special token; no text in UTF-8 has the bytes from here on."""
PREFIXES_AT_ONCE = 1 << 14
"""Prefixes of all positions that are read at once, which the memory for their states hangs on."""


class Spellings(CharacterTable):
    """Table of the symbols that spell each token: its bytes; a special token is one symbol."""

    def write(self, texts: Sequence[str]) -> None:
        super().write(texts)
        special = torch.arange(
            FIRST_SPECIAL, FIRST_SPECIAL + NUM_SPECIAL, device=self.characters.device
        )
        self.characters[:NUM_SPECIAL] = NONE
        self.characters[:NUM_SPECIAL, 0], self.characters[:NUM_SPECIAL, 2] = BEGIN, END
        self.characters[:NUM_SPECIAL, 1] = special.to(torch.uint8)

    def symbols(self, token: int, text: str) -> int:
        return 1 if token < NUM_SPECIAL else super().symbols(token, text)

    def words(self) -> list[bytes]:
        """Return the symbols of each token, marks included."""
        return [bytes(row).rstrip(bytes([NONE])) for row in self.characters.tolist()]


class Level(NamedTuple):
    """All prefixes of one length, in order: each extends one of the level before by a symbol.

    A prefix that ends with END is a token's; of the others, `open`, the next level goes on.
    """

    parents: list[int]  # (P,) places among the open prefixes of the level before
    symbols: list[int]  # (P,)
    open: list[int]  # (Q,) places in this level


class Tree(NamedTuple):
    """The prefixes of all tokens, shortest first, and the place of each token among them."""

    levels: list[Level]
    places: list[int]  # (V,)

    @classmethod
    def of_words(cls, words: Sequence[bytes]) -> Tree:
        """Return the tree of words from BEGIN to END; equal words share a place."""
        levels: list[Level] = []
        places: dict[bytes, int] = {}
        before, count = {bytes([BEGIN]): 0}, 0
        for length in range(2, max(map(len, words)) + 1):
            prefixes = sorted({word[:length] for word in words if len(word) >= length})
            goes_on = [place for place, prefix in enumerate(prefixes) if prefix[-1] != END]
            parents = [before[prefix[:-1]] for prefix in prefixes]
            levels.append(Level(parents, [prefix[-1] for prefix in prefixes], goes_on))
            places |= {prefix: count + place for place, prefix in enumerate(prefixes)}
            before = {prefixes[place]: index for index, place in enumerate(goes_on)}
            count += len(prefixes)
        return cls(levels, [places[word] for word in words])


class TreeIndices(NamedTuple):
    """A tree of prefixes as tensors: parents, symbols, open places; places of tokens."""

    levels: list[tuple[Tensor, Tensor, Tensor]]
    places: Tensor  # (V,)

    @classmethod
    def of(cls, tree: Tree, device: torch.device) -> TreeIndices:
        """Return the indices of a tree, which gradients may pass through later."""
        with torch.inference_mode(False):
            levels = []
            for level in tree.levels:
                tensors = [torch.tensor(part, dtype=torch.long, device=device) for part in level]
                parents, symbols, goes_on = tensors
                levels.append((parents, symbols, goes_on))
            return cls(levels, torch.tensor(tree.places, device=device))


class CharLstmOutput(OutputHead):
    """LSTM over the characters of a token, given the decoder's output.

    p(w) = prod_i p(c_i | c_1 .. c_(i-1)) over the bytes of w in UTF-8 and an end mark: a softmax of
    W m_i + b, with m_i the LSTM's output after e(c_j) + P y for all j < i, from a begin mark on. A
    special token is a symbol of its own. Training, validation, `evaluate` and `score` spell the
    target alone, whatever the size of the vocabulary. Strings that are no tokens keep some
    probability, so a perplexity is an upper bound, and there is no token accuracy.

    Decoding needs p of all tokens: at each position the LSTM reads every prefix of the vocabulary
    once, which suits small vocabularies. `plan` counts the target alone, of `max_length` bytes.
    """

    trains_on_cost = evaluates_on_cost = True

    def __init__(self, out_width: int, vocabulary: int, settings: CharLstm) -> None:
        super().__init__()
        width = settings.width
        self.in_features, self.out_features = out_width, vocabulary
        self.spellings = Spellings(vocabulary, settings.max_length)
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.map = nn.Linear(out_width, width, bias=False)
        nn.init.normal_(self.map.weight, std=out_width**-0.5)
        self.lstm = LSTMLayer(width, width, None)
        self.symbol = nn.Linear(width, SYMBOLS)
        self.memo: tuple[Tensor, int, Tree] | None = None
        # no buffers: they follow from the spellings
        self.indices: tuple[Tree, TreeIndices] | None = None

    def cost(self, y: Tensor, target: Tensor) -> Tensor:
        symbols = self.spellings.characters[target.flatten()].long()  # (N, L)
        if symbols.device.type == "cpu" and self.spellings.expected is not None:
            symbols = symbols[:, : self.spellings.expected[1]]
        elif (
            symbols.device.type == "cpu"
            and has_numbers(symbols)
            and not torch.compiler.is_compiling()
        ):
            symbols = symbols[:, : int((symbols != NONE).sum(1).max())]
        read, spelled = symbols[:, :-1], symbols[:, 1:]  # (N, L - 1)
        real = spelled != NONE
        x = self.embedding(read) + self.map(y.flatten(0, -2))[:, None]  # (N, L - 1, C)
        m, _ = self.lstm(x, self._start(x, len(x)), real)  # (N, L - 1, C)
        log_p = self._log_probs(m).gather(-1, spelled[..., None])[..., 0]  # (N, L - 1)
        return -log_p.masked_fill(~real, 0.0).sum(1).view_as(target)

    def forward(self, y: Tensor) -> Tensor:
        """Return log p of all tokens. (B, T, D) -> (B, T, V)"""
        if torch.compiler.is_exporting():
            raise NotImplementedError(
                "`char_lstm` spells the vocabulary in as many parts as the memory asks for"
            )
        tree, arriving = self.tree(), self.map(y.flatten(0, -2))  # (N, C)
        rows = max(1, PREFIXES_AT_ONCE // max(len(level.symbols) for level in tree.levels))
        indices = self.tree_indices(tree, y.device)
        return torch.cat([self._spell(indices, some) for some in arriving.split(rows)]).view(
            *y.shape[:-1], -1
        )

    def log_probs(self, logits: Tensor) -> Tensor:
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def measure(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"loss": outputs}

    def tree(self) -> Tree:
        """Return the tree of all tokens, cached until their spellings change.

        Of a table without numbers it is that of the tokens' ids in digits.
        """
        table = self.spellings.characters
        if not has_numbers(table):
            return Tree.of_words(
                [bytes([BEGIN, *text.encode(), END]) for text in id_texts(len(table))]
            )
        if self.memo is None or self.memo[0] is not table or self.memo[1] != table._version:
            self.memo = table, table._version, Tree.of_words(self.spellings.words())
        return self.memo[2]

    def tree_indices(self, tree: Tree, device: torch.device) -> TreeIndices:
        """Return a tree in tensors, cached until the tree or the device changes."""
        if torch.compiler.is_compiling() or device.type == "meta":
            return TreeIndices.of(tree, device)
        if (
            self.indices is None
            or self.indices[0] is not tree
            or self.indices[1].places.device != device
        ):
            self.indices = tree, TreeIndices.of(tree, device)
        return self.indices[1]

    def _spell(self, tree: TreeIndices, arriving: Tensor) -> Tensor:
        """Return log p of all tokens, level by level of the tree. arriving: P y (N, C) -> (N, V)"""
        rows, device = len(arriving), arriving.device
        symbols = torch.full((1,), BEGIN, device=device)
        log_p, results = arriving.new_zeros(rows, 1), []
        state = self._start(arriving, rows)
        for parents, following_symbols, goes_on in tree.levels:
            x = (self.embedding(symbols) + arriving[:, None]).flatten(0, 1)[:, None]  # (N Q, 1, C)
            m, state = self.lstm(x, state, torch.ones_like(x[..., 0], dtype=torch.bool))
            following = self._log_probs(m).view(rows, len(symbols), SYMBOLS)
            log_p = log_p[:, parents] + following[:, parents, following_symbols]  # (N, P)
            results.append(log_p)
            log_p, parents = log_p[:, goes_on], parents[goes_on]
            symbols = following_symbols[goes_on]
            state = tuple(
                leaf.view(rows, -1, leaf.shape[-1])[:, parents].flatten(0, 1) for leaf in state
            )
        return torch.cat(results, 1)[:, tree.places]

    def _start(self, x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        zeros = x.new_zeros(rows, self.lstm.sizes[0], dtype=self.lstm.recurrent.dtype)  # (N, C)
        return zeros, zeros

    def _log_probs(self, m: Tensor) -> Tensor:
        """Return log p of the next symbol after each output. (..., C) -> (..., symbols)"""
        logits: Tensor = self.symbol(m)
        return logits.log_softmax(-1, torch.promote_types(logits.dtype, torch.float32))
