"""An LSTM over characters as an output head: against a loop over its equation, its tree of
prefixes, and in a run.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from composer.errors import RecipeError
from composer.inference.run import open_run
from composer.model.char_lstm import FIRST_SPECIAL, CharLstmOutput, Tree
from composer.model.characters import BEGIN, END
from composer.model.output_kinds import CharLstm
from composer.recipe.recipe import load_text
from composer.training.train import train
from tests.laws.section_cases import recipe_of

TEXTS = [
    "⟨pad⟩",
    "⟨bos⟩",
    "⟨eos⟩",
    "⟨unk⟩",
    "the",
    "then",
    "t",
    "straße",
    "",
    "characters",
    "character",
]
BEGUN = torch.tensor([BEGIN])
KIND = "model.output.kind={char_lstm: {width: 12}}"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


def small(max_length: int = 12) -> CharLstmOutput:
    head = CharLstmOutput(6, len(TEXTS), CharLstm(width=5, max_length=max_length)).double()
    head.spellings.write(TEXTS)
    return head


def inputs() -> tuple[Tensor, Tensor]:
    y = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    return y, torch.tensor([[4, 2, 9, 7], [3, 8, 6, 5]])


def spell(word: int) -> list[int]:
    special = word < 4
    return [BEGIN, *([FIRST_SPECIAL + word] if special else TEXTS[word].encode()[:10]), END]


def log_p(head: CharLstmOutput, y: Tensor, word: int) -> Tensor:
    """The sum of log p(c_i | c_<i, y), by an LSTM cell written out."""
    h = c = y.new_zeros(5)
    symbols, total = spell(word), y.new_zeros(())
    for read, spelled in itertools.pairwise(symbols):
        x = head.embedding.weight[read] + head.map.weight @ y
        gates = (
            head.lstm.arriving @ x
            + head.lstm.arriving_bias
            + head.lstm.recurrent @ h
            + head.lstm.recurrent_bias
        )
        i, f, g, o = gates.chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        total = total + (head.symbol.weight @ h + head.symbol.bias).log_softmax(0)[spelled]
    return total


def compare(result: Tensor, expected: Tensor, inputs: tuple[Tensor, ...]) -> None:
    weight = torch.randn_like(expected)
    torch.testing.assert_close(result, expected)
    grads = torch.autograd.grad((result * weight).sum(), inputs)
    torch.testing.assert_close(grads, torch.autograd.grad((expected * weight).sum(), inputs))


def test_the_cost_of_a_word_is_that_of_its_characters() -> None:
    head, (y, target) = small(), inputs()
    words = zip(y.flatten(0, 1), target.flatten().tolist(), strict=True)
    expected = torch.stack([-log_p(head, row, word) for row, word in words]).view_as(target)
    compare(head.cost(y, target), expected, (y, *head.parameters()))


@pytest.mark.parametrize("at_once", [1, 1 << 14])
def test_logits_are_the_teacher_forced_log_probabilities_of_all_words(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.model.char_lstm.PREFIXES_AT_ONCE", at_once)
    head, (y, _) = small(), inputs()
    of_each = [-head.cost(y, torch.full((2, 4), word)) for word in range(len(TEXTS))]
    logits = head(y)
    compare(logits, torch.stack(of_each, -1), (y, *head.parameters()))
    assert (logits.exp().sum(-1) < 1).all()  # the rest is that of strings that are no words
    assert torch.equal(head.log_probs(logits), logits)


def test_the_tree_has_each_prefix_once() -> None:
    words = [bytes(spell(word)) for word in range(len(TEXTS))]
    tree = Tree.of_words(words)
    prefixes = {word[:length] for word in words for length in range(2, len(word) + 1)}
    assert sum(len(level.symbols) for level in tree.levels) == len(prefixes)
    assert len({*tree.places}) == len(words)
    # four special tokens, t, s, c; th, st, ch
    assert [len(level.open) for level in tree.levels][:2] == [7, 3]


def test_words_that_are_cut_alike_are_one() -> None:
    head, (y, _) = small(max_length=7), inputs()  # of which five are bytes of the text
    logits = head(y)
    assert torch.equal(logits[..., 9], logits[..., 10])
    torch.testing.assert_close(-head.cost(y, torch.full((2, 4), 9)), logits[..., 9])


def test_the_tree_is_made_once_for_the_same_spellings() -> None:
    head, (y, _) = small(), inputs()
    with torch.inference_mode():
        before = head(y)
    tree = head.tree()
    assert head.tree() is tree
    head.spellings.write([*TEXTS[:4], *TEXTS[:3:-1]])
    torch.testing.assert_close(head(y)[..., 4:], before[..., 4:].flip(-1))


def test_the_indices_of_the_tree_are_made_once_and_let_gradients_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head, (y, _) = small(), inputs()
    with torch.inference_mode():
        first = head(y.detach())
    monkeypatch.setattr(
        torch,
        "tensor",
        lambda values, **options: pytest.fail("made anew") if len(values) > 1 else BEGUN,
    )
    assert torch.equal(head(y), first)
    head(y).sum().backward()
    assert y.grad is not None
    monkeypatch.undo()
    assert not any("indices" in name or "tree" in name for name in head.state_dict())
    head.spellings.write([*TEXTS[:-1], "other"])
    assert not torch.equal(head(y), first)


def test_a_validation_and_scores_are_those_of_the_logits(tmp_path: Path) -> None:
    """They spell the target alone; a search adds up the same, and there is no token accuracy."""
    recipe = recipe_of(
        tmp_path, "pairs", KIND, "training.max_steps=20", "training.optimizer={adam: 0.03}"
    )
    train(recipe, tmp_path / "run", data=tmp_path)
    run = open_run(tmp_path / "run")
    (best,) = run.translate(["a b c"], scores=True)
    (own,) = run.score(["a b c"], [best.text])
    spelled = own.log_probabilities if best.ended else own.log_probabilities[:-1]
    assert sum(spelled) == pytest.approx(best.score, rel=1e-4)
    logits, target = (
        run.logits(["a b c"], ["c b"])[0],
        run.batch(["a b c"], ["c b"])["target_out"][0],
    )
    (score,) = run.score(["a b c"], ["c b"])
    assert score.log_probabilities == pytest.approx(
        logits.gather(1, target[:, None])[:, 0].tolist(), rel=1e-4
    )
    assert "test/token_accuracy" not in run.evaluate("test", tmp_path)


def test_ctc_is_refused_beside_it() -> None:
    model = (
        "{width: 8, encoder: [rnn], decoder: [rnn, cross_attention], output: {kind: char_lstm, ctc:"
        " {}}}"
    )
    with pytest.raises(RecipeError, match="CTC changes the probability of every token") as error:
        load_text(
            "recipe: 1\ndata: {parallel: {train: {source: a.txt, target: b.txt}}}\nmodel:"
            f" {model}\n"
        )
    assert [fault.path for fault in error.value.faults] == ["model.output.ctc"]
