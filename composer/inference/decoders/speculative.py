"""Speculative decoding: a draft proposes tokens, and the model reads several of them in one step.

Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2. A token x that the draft drew
by q is accepted with probability p(x) / q(x), at most 1. The first rejected token is replaced by
a draw from max(0, p - q); after a draft accepted as a whole one more token is drawn from p. So the
tokens have the distribution p whatever the draft: the one by which `sample` draws, with temperature
and all else. Greedy decoding is the case where p and q have all probability in one token; its
answer is the same, token for token, unless rounding decides between two.

States are values: after a rejection the model goes on from the state it had, and reads the accepted
tokens with the next drafts. No state is cropped, so any model can draft, and any can answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from composer.errors import RunError
from composer.inference.decoders.decoder_state import DecoderState, Prefilled, prefill, run_step
from composer.inference.decoders.search import Hypothesis, Search
from composer.inference.decoders.token_scores import draw_from_cdf
from composer.inference.methods import Greedy, Sample
from composer.model.ctc import CtcModel, JointModel
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import EOS, PAD
from composer.recipe.choices import Decoder

Distribution = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
"""log p (R, V), logits (R, V) and tokens so far (R, t) -> p by which to draw (R, V)"""
FIRST_DRAFTED, MOST_DRAFTED = 4, 8
"""Tokens drafted at first and at most; after each step one more than it accepted."""
MOST_UNREAD = 8
"""Accepted tokens that are read again with the next drafts; more are read without drafts."""
DRAFTS, JUDGES, DRAWS = range(3)
"""The purposes of the random numbers of a token."""


def check_draft(models: Sequence[EncoderDecoder], decoding: Decoder) -> None:
    """Raise RunError if a draft cannot be used with this decoding method or these models."""
    weight = decoding.ctc_weight if isinstance(decoding, Greedy) else None
    answering = models[0] if weight is None else models[0].with_ctc_weight(weight)
    fix = "remove the draft"
    if not decoding.takes_draft:
        raise RunError.of(
            f"`{decoding.word}` compares several answers, and a draft is for one",
            f"{fix}, or write `decoding=greedy` or `decoding=sample`",
        )
    if len(models) > 1:
        raise RunError.of(
            "a draft is for one model, and these are an ensemble", f"name one run, or {fix}"
        )
    if isinstance(decoding, Greedy | Sample) and decoding.no_repeat_ngram:
        raise RunError.of(
            "`no_repeat_ngram` cannot be combined with a draft, whose tokens are read at once",
            f"set it to null, or {fix}",
        )
    if models[0].max_target_ratio:
        raise RunError.of(
            "the model decodes several answers, one of each length, and a draft is for one", fix
        )
    if isinstance(answering, CtcModel | JointModel):
        if isinstance(answering, JointModel):
            fix += ", or write `decoding.greedy.ctc_weight=0`"
        raise RunError.of(
            "the model adds log p of CTC, which reads token by token: a draft saves nothing", fix
        )


class Proposer:
    """Proposes tokens of the draft; keeps the state after each of them."""

    def __init__(self, search: Search, distribution: Distribution, uniforms: Tensor) -> None:
        self.search, self.distribution, self.uniforms = search, distribution, uniforms
        self.max_positions = search.models[0].max_positions
        self.state: DecoderState | None = None
        self.read = 0  # tokens of the answer
        # after the answer, and after each token drafted since
        self.states: list[DecoderState] = []

    def propose(self, answer: Sequence[int], count: int) -> tuple[list[int], Tensor]:
        """Return at most `count` tokens after the answer so far, and the q of each draw, (k, V)."""
        if self.max_positions is not None:
            left = self.max_positions - len(self.search.batch.prefixes[0]) - len(answer)
            count = min(count, left)
        self.states, tokens, q = [], list[int](), list[Tensor]()
        if count > 0 and self.state is None:
            self.state = prefill(self.search).state
        ids, state = answer[self.read :], self.state
        while state is not None and len(tokens) < count and EOS not in tokens:
            logits, state = read_tokens(self.search, ids, state)
            self.states.append(state)
            log_p = self.search.log_probs(logits[-1:])[:, EOS:]  # (1, V - EOS)
            log_p = self.search.mask_impossible(log_p)
            history = history_of(self.search, [*answer, *tokens], 1)
            q.append(self.distribution(log_p, logits[-1:, EOS:], history))
            tokens.append(draw(q[-1], self.uniforms[DRAFTS, len(answer) + len(tokens)]))
            ids = tokens[-1:]
        return tokens, torch.cat(q) if q else torch.empty(0, 0, device=self.search.device)

    def keep(self, answer: Sequence[int], accepted: int) -> None:
        """Keep the state after the accepted tokens."""
        if self.states:
            last = min(accepted, len(self.states) - 1)
            self.state, self.read = self.states[last], len(answer) + last


@dataclass(frozen=True)
class SpeculativeDecoder:
    """Decodes answers of the only row of a search.

    drafting: The same search by the draft.
    limit: The maximum tokens of an answer.
    prefilled: The state after the prefix, from which all answers start.
    """

    search: Search
    drafting: Search
    distribution: Distribution
    limit: int
    prefilled: Prefilled

    def decode(self, uniforms: Tensor) -> Hypothesis:
        """Decode an answer. uniforms: (3, L), three random numbers for each token"""
        search, state, log_p = self.search, self.prefilled.state, self.prefilled.log_p
        model, prefix, draft = search.models[0], search.batch.prefixes[0], search.options.draft
        assert draft is not None
        room = self.limit
        if model.max_positions is not None:
            room = min(self.limit, model.max_positions - len(prefix))
        proposer = Proposer(self.drafting, self.distribution, uniforms)
        most = FIRST_DRAFTED
        first = draw(self.distribution(log_p, state.logits, state.history), uniforms[DRAWS, 0])
        score = float(self.prefilled.prefix_log_p[0] + log_p[0, first - EOS])
        answer, unread = [first], [first]
        self.show([first])
        while answer[-1] != EOS and len(answer) < self.limit:
            count = 0 if len(unread) > MOST_UNREAD else min(most, room - len(answer) - 1)
            drafts, q = proposer.propose(answer, max(count, 0))
            logits, after = read_tokens(search, [*unread, *drafts], state)
            logits = logits[len(unread) - 1 :]  # (k + 1, V)
            log_p = search.mask_impossible(search.log_probs(logits)[:, EOS:])  # (k + 1, V - EOS)
            history = history_of(search, [*answer, *drafts], len(logits))
            p = self.distribution(log_p, logits[:, EOS:], history)
            accepted, token = judge(p, q, drafts, uniforms[:, len(answer) :])
            proposer.keep(answer, accepted)
            most = min(accepted + 1, MOST_DRAFTED)
            tokens = drafts[:accepted]
            if EOS not in tokens:
                tokens.append(token)
            draft.count(len(drafts), accepted, len(tokens))
            score += sum(float(log_p[at, token - EOS]) for at, token in enumerate(tokens))
            if accepted == len(drafts):
                state, unread = after, tokens[-1:]
            else:
                unread = unread + tokens
            answer += tokens
            self.show(tokens)
        ended = answer[-1] == EOS
        return Hypothesis([*prefix, *answer[: len(answer) - ended]], score, score, ended)

    def show(self, tokens: Sequence[int]) -> None:
        """Pass new tokens to `on_token`."""
        if self.search.options.on_token:
            for token in tokens:
                self.search.options.on_token(token)


def read_tokens(
    search: Search, ids: Sequence[int], state: DecoderState
) -> tuple[Tensor, DecoderState]:
    """Run a step over tokens of the only row. -> logits (T, V), the state after them"""
    logits, states = run_step(search.models, torch.tensor([ids], device=search.device), state)
    return logits[0], replace(state, states=states)


def history_of(search: Search, answer: Sequence[int], rows: int) -> Tensor | None:
    """Return the tokens before each of the last `rows` predictions, padded; None if not kept.

    -> (R, t)
    """
    if not search.keeps_history:
        return None
    ids = torch.tensor([*search.batch.prefixes[0], *answer], device=search.device)  # (t,)
    last = len(ids) - torch.arange(rows, 0, -1, device=search.device)  # (R,)
    return ids.masked_fill(torch.arange(len(ids), device=search.device) > last[:, None], PAD)


def judge(p: Tensor, q: Tensor, drafts: Sequence[int], uniforms: Tensor) -> tuple[int, int]:
    """Return the number of accepted tokens, and the token after them.

    p: (k + 1, V), q: (k, V), uniforms: (3, k + 1 or more)
    """
    accepted, rest = 0, p
    if drafts:
        rows = torch.arange(len(drafts), device=p.device)
        columns = torch.tensor(drafts, device=p.device) - EOS
        ratios = p[rows, columns] / q[rows, columns]  # (k,)
        accepted = int((uniforms[JUDGES, : len(drafts)] < ratios).long().cumprod(0).sum())
    if accepted < len(drafts):
        rest = (p[: len(drafts)] - q).clamp(min=0)
    return accepted, draw(rest[accepted : accepted + 1], uniforms[DRAWS, accepted])


def draw(p: Tensor, uniform: Tensor) -> int:
    """Return a token by its probability; they need not add up to 1. p: (1, V - EOS), uniform: ()"""
    return int(draw_from_cdf(p, uniform[None])) + EOS
