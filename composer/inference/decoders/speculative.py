"""Speculative decoding: a draft proposes tokens, and the model that answers reads several of them
in one step.

Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2. Of a token x that the draft drew
by q, the model accepts p(x) / q(x), at most all; in place of the first that it rejects it draws by
max(0, p - q), and after all that it accepts one more by p. So what is drawn has the distribution p,
whatever the draft: that by which `sample` draws, temperature and all else applied. Greedy decoding
is the case in which p and q have all in one token; then the answer is the same, token for token,
but where rounding decides between two.

States are values: where a draft is rejected, the model goes on from the state that it had, and
reads what was accepted with the next drafts. No state is cropped, so any model can draft, and any
can answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from composer.errors import RunError
from composer.inference.decoders import (
    DecoderState,
    Distribution,
    Hypothesis,
    Search,
    draw_from_cdf,
    prefill,
    run_step,
)
from composer.inference.methods import Greedy, Sample
from composer.model.ctc import CtcModel, JointModel
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import EOS, PAD
from composer.recipe.choices import Decoder

FIRST_DRAFTED, MOST_DRAFTED = 4, 8
"""Tokens that are drafted at first, and at most: after each step one more than were accepted in it.
"""
MOST_UNREAD = 8
"""Accepted tokens that are read again with the next drafts, at most; more are read without drafts.
"""
DRAFTS, JUDGES, DRAWS = range(3)
"""What the random numbers of a token are for."""


def check_draft(models: Sequence[EncoderDecoder], decoding: Decoder) -> None:
    """Raise RunError if what a decoding method looks for cannot be drafted, or not with these
    models.
    """
    weight = decoding.ctc_weight if isinstance(decoding, Greedy) else None
    answering = models[0] if weight is None else models[0].with_ctc_weight(weight)
    problem, fix = "", "remove the draft"
    if not decoding.takes_draft:
        problem = f"`{decoding.word}` compares several answers, and a draft is for one"
        fix = "remove the draft, or write `decoding=greedy` or `decoding=sample`"
    elif len(models) > 1:
        problem, fix = (
            "a draft is for one model, and these are an ensemble",
            "name one run, or remove the draft",
        )
    elif isinstance(decoding, Greedy | Sample) and decoding.no_repeat_ngram:
        problem, fix = (
            "`no_repeat_ngram` is not known of tokens that are read at once",
            "set it to null, or " + fix,
        )
    elif models[0].max_target_ratio:
        problem = "the model answers at each length that is possible, and a draft is for one answer"
    elif isinstance(answering, CtcModel | JointModel):
        problem = (
            "the model adds up log p of CTC, which reads token by token: a draft saves nothing"
        )
        fix += (
            ", or write `decoding.greedy.ctc_weight=0`" if isinstance(answering, JointModel) else ""
        )
    if problem:
        raise RunError.of(problem, fix)


class Proposer:
    """Proposes what a smaller model writes; it keeps the state behind each drafted token.

    `propose` returns at most so many tokens after the answer so far, and the q by which each was
    drawn, (k, V); `keep` learns how many of them were accepted.
    """

    def __init__(self, search: Search, distribution: Distribution, uniforms: Tensor) -> None:
        self.search, self.distribution, self.uniforms = search, distribution, uniforms
        self.most = search.models[0].max_positions  # that it can read
        self.position: DecoderState | None = None
        self.read = 0  # tokens of the answer
        # after the answer, and each token drafted after that
        self.positions: list[DecoderState] = []

    def propose(self, answer: Sequence[int], count: int) -> tuple[list[int], Tensor]:
        room = (
            count if self.most is None else self.most - len(self.search.prefixes[0]) - len(answer)
        )
        self.positions, tokens, q = [], list[int](), list[Tensor]()
        if min(count, room) > 0 and self.position is None:
            self.position = prefill(self.search)[1]
        ids, position = answer[self.read :], self.position
        while position is not None and len(tokens) < min(count, room) and EOS not in tokens:
            logits, position = read_tokens(self.search, ids, position)
            self.positions.append(position)
            log_p = self.search.possible(
                self.search.log_probs(logits[-1:])[:, EOS:]
            )  # (1, V - EOS)
            history = history_of(self.search, [*answer, *tokens], 1)
            q.append(self.distribution(log_p, logits[-1:, EOS:], history))
            tokens.append(draw(q[-1], self.uniforms[DRAFTS, len(answer) + len(tokens)]))
            ids = tokens[-1:]
        return tokens, torch.cat(q) if q else torch.empty(0, 0, device=self.search.device)

    def keep(self, answer: Sequence[int], accepted: int) -> None:
        if self.positions:
            last = min(accepted, len(self.positions) - 1)
            self.position, self.read = self.positions[last], len(answer) + last


def decode_speculatively(
    search: Search,
    distribution: Distribution,
    limit: int,
    uniforms: Tensor,
    prefilled: tuple[Tensor, DecoderState, Tensor],
) -> Hypothesis:
    """Decode one answer of the only row. uniforms: (3, L) three random numbers for each token;
    prefilled: `prefill`.
    """
    log_p, position, scores = prefilled
    model, prefix, draft = search.models[0], search.prefixes[0], search.draft
    assert draft is not None
    assert search.drafting is not None
    proposer = Proposer(search.drafting, distribution, uniforms)
    most = FIRST_DRAFTED
    room = limit if model.max_positions is None else min(limit, model.max_positions - len(prefix))
    answer = [draw(distribution(log_p, position.logits, position.history), uniforms[DRAWS, 0])]
    score, unread = float(scores[0] + log_p[0, answer[0] - EOS]), answer[:]
    show(search, answer)
    while answer[-1] != EOS and len(answer) < limit:
        count = 0 if len(unread) > MOST_UNREAD else min(most, room - len(answer) - 1)
        drafts, q = proposer.propose(answer, max(count, 0))
        logits, after = read_tokens(search, [*unread, *drafts], position)
        logits = logits[len(unread) - 1 :]  # (k + 1, V)
        log_p = search.possible(search.log_probs(logits)[:, EOS:])  # (k + 1, V - EOS)
        history = history_of(search, [*answer, *drafts], len(logits))
        accepted, token = judge(
            distribution(log_p, logits[:, EOS:], history), q, drafts, uniforms[:, len(answer) :]
        )
        proposer.keep(answer, accepted)
        most = min(accepted + 1, MOST_DRAFTED)
        tokens = drafts[:accepted] if EOS in drafts[:accepted] else [*drafts[:accepted], token]
        draft.count(len(drafts), accepted, len(tokens))
        score += sum(float(log_p[at, token - EOS]) for at, token in enumerate(tokens))
        position, unread = (
            (after, tokens[-1:]) if accepted == len(drafts) else (position, unread + tokens)
        )
        answer += tokens
        show(search, tokens)
    ended = answer[-1] == EOS
    return Hypothesis([*prefix, *answer[: len(answer) - ended]], score, score, ended)


def show(search: Search, tokens: Sequence[int]) -> None:
    """Hand new tokens to whoever watches."""
    if search.on_token:
        for token in tokens:
            search.on_token(token)


def read_tokens(
    search: Search, ids: Sequence[int], position: DecoderState
) -> tuple[Tensor, DecoderState]:
    """Run a step over tokens of the only row. -> logits (T, V), the state after them"""
    logits, position = run_step(search.models, torch.tensor([ids], device=search.device), position)
    return logits[0], position


def history_of(search: Search, answer: Sequence[int], rows: int) -> Tensor | None:
    """Return what comes before each of the last tokens and the one to come, padded; None if nothing
    asks. -> (R, t)
    """
    if not search.keeps_history:
        return None
    ids = torch.tensor([*search.prefixes[0], *answer], device=search.device)  # (t,)
    last = len(ids) - torch.arange(rows, 0, -1, device=search.device)  # (R,)
    return ids.masked_fill(torch.arange(len(ids), device=search.device) > last[:, None], PAD)


def judge(p: Tensor, q: Tensor, drafts: Sequence[int], uniforms: Tensor) -> tuple[int, int]:
    """Return how many drafted tokens are accepted, and the token after these.

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
