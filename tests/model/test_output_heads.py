"""From ids to the stream and back: bits in, sigmoids out, answers of one length."""

import math
from itertools import chain, combinations

import pytest
import torch
from torch.nn import functional as F

from composer.data.tokenizer_kinds import Bits
from composer.errors import RecipeError
from composer.model.bits import LinearEmbedding
from composer.model.builder import build
from composer.model.embedding_kinds import EMBEDDINGS
from composer.model.encoder_decoder import (
    NEVER,
    OneHotEmbedding,
    OutputHead,
    TokenEmbedding,
    force_length,
)
from composer.model.output_heads import IdentityOutput, SigmoidOutput, target_bits
from composer.model.output_kinds import (
    OUTPUTS,
    Adaptive,
    CharLstm,
    Cnn,
    Identity,
    Linear,
    Sampled,
    Sigmoid,
)
from composer.model.special_tokens import EOS, NUM_SPECIAL, PAD
from composer.recipe.choices import EmbeddingKind, OutputKind, TokenPlace
from composer.recipe.recipe import load_text

BITS = 3


def test_sigmoids_are_the_probabilities_of_the_bits_and_of_the_end() -> None:
    torch.manual_seed(1)
    output = SigmoidOutput(5, BITS)
    y = torch.randn(2, 4, 5)
    s = torch.sigmoid(output.map(y))  # (2, 4, 4)
    p = output(y).softmax(-1)
    assert torch.allclose(p[..., EOS], s[..., -1], atol=1e-6)
    for index, word in enumerate(Bits(size=BITS).vocabulary(target=True)):
        factors = [s[..., at] if digit == "1" else 1 - s[..., at] for at, digit in enumerate(word)]
        expected = (1 - s[..., -1]) * torch.stack(factors).prod(0)
        assert torch.allclose(p[..., NUM_SPECIAL + index], expected, atol=1e-6)
    assert p[..., [0, 1, 3]].max() == 0


def test_bits_of_an_answer_are_those_of_its_vectors_alone() -> None:
    torch.manual_seed(1)
    output = SigmoidOutput(5, BITS)
    y = torch.randn(1, 4, 5)
    target = torch.tensor([[NUM_SPECIAL + 5, NUM_SPECIAL + 2, EOS, PAD]])
    logits = output.map(y)[0, :2, :BITS]
    wanted = F.binary_cross_entropy_with_logits(
        logits, torch.tensor([[1.0, 0, 1], [0, 1, 0]]), reduction="none"
    ).sum(1)
    result = target_bits(output(y), target)
    assert torch.allclose(result[0, :2], wanted / math.log(2), atol=1e-5)
    assert result[0, 2:].tolist() == [0, 0]


def test_an_answer_of_one_length_ends_there_and_nowhere_else() -> None:
    logits = torch.randn(1, 4, 9)
    log_p = force_length(logits, torch.tensor([[0, 1, 2, 3]]), 2).log_softmax(-1)
    assert log_p[0, :2, EOS].max() < -1000
    assert log_p[0, 2:, EOS].tolist() == [0, 0]
    others = [index for index in range(9) if index != EOS]
    assert torch.allclose(log_p[0, :2, others], logits[0, :2, others].log_softmax(-1), atol=1e-5)


def test_the_identity_head_never_gives_a_special_token() -> None:
    logits = IdentityOutput(3, 3 + NUM_SPECIAL)(torch.tensor([[[1.0, 2.0, 3.0]]]))
    assert logits.tolist() == [[[NEVER] * NUM_SPECIAL + [1.0, 2.0, 3.0]]]


def test_one_hot_is_a_unit_vector_and_zeros_for_special_tokens() -> None:
    result = OneHotEmbedding(7)(torch.tensor([[0, 2, 4, 6]]))
    assert result.tolist() == [[[0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1]]]


@pytest.mark.parametrize("target", [True, False])
def test_a_linear_embedding_is_linear_in_the_bits(target: bool) -> None:
    tokenizer = Bits(size=BITS, numbers=True)
    embedding = LinearEmbedding(tokenizer.features(target), 6)
    words = ["⟨pad⟩", "⟨bos⟩", "⟨eos⟩", "⟨unk⟩", *tokenizer.vocabulary(target)]
    at = {word: embedding(torch.tensor(index)) for index, word in enumerate(words)}
    assert torch.allclose(at["101"], at["100"] + at["001"])
    assert at["⟨pad⟩"].abs().max() == 0
    if not target:
        assert torch.allclose(
            at["110@0.50"] - at["110"], (at["000@1.00"] - at["000"]) / 2, atol=1e-6
        )


def test_embedding_dropout_drops_words_wherever_they_stand_in_a_batch() -> None:
    text = SEVERAL.replace("width: 4", "width: 4\n  embedding_dropout: 0.4")
    model = build(load_text(text), dict.fromkeys(SIDES, 500))
    ids = torch.randint(500, (40, 30))
    for embedding in (model.embedding, model.readers()["left"].embedding):
        factors = embedding.embed(ids) / embedding(ids)  # (B, T, D)
        of_words = torch.zeros(500, 4).index_put((ids,), factors)
        torch.testing.assert_close(factors, of_words[ids])
        assert abs((of_words[:, 0] == 0).float().mean().item() - 0.4) < 0.1
        assert of_words.max().item() == pytest.approx(1 / 0.6, rel=1e-4)
        assert torch.equal(embedding.eval().embed(ids), embedding(ids))


SIDES = ("left", "right", "target")
SEVERAL = """recipe: 1
data:
  parallel: {train: {left: a, right: b, target: c}}
  tokenizer: {word: {joint: true}}
model:
  width: 4
  encoders: {left: [rnn], right: [rnn]}
  decoder: [rnn, {cross_attention: {from: left}}, {cross_attention: {from: right}}]
"""


@pytest.mark.parametrize(
    "tie", list(chain.from_iterable(combinations(SIDES, size) for size in range(4))), ids=str
)
def test_the_sides_of_tie_alone_share_one_matrix_with_the_output(tie: tuple[str, ...]) -> None:
    text = f"{SEVERAL}  output: {{tie: [{', '.join(tie)}]}}\n" if tie else SEVERAL
    model = build(load_text(text), dict.fromkeys(SIDES, 9))
    embeddings = {side: encoder.embedding for side, encoder in model.readers().items()} | {
        "target": model.embedding
    }
    assert {
        side for side, embedding in embeddings.items() if embedding.weight is model.output.weight
    } == set(tie)
    matrices = {id(embedding.weight) for embedding in (*embeddings.values(), model.output)}
    assert len(matrices) == 4 - len(tie)


def test_sides_whose_vocabularies_differ_are_refused_by_their_names() -> None:
    own = load_text(
        SEVERAL.replace("joint: true", "joint: false") + "  output: {tie: [target, left]}\n"
    )
    with pytest.raises(RecipeError, match="`left` and `target` have vocabularies of their own"):
        build(own, dict.fromkeys(SIDES, 9))


KINDS = [
    Linear(),
    Sigmoid(),
    Identity(),
    Adaptive(cutoffs=(6,)),
    Sampled(samples=3),
    Cnn(),
    Cnn(samples=3),
    CharLstm(),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_a_recipe_knows_of_a_head_is_true_of_it(kind: OutputKind) -> None:
    assert {type(one) for one in KINDS} == {*OUTPUTS.values()}
    head = kind.build(TokenPlace(NUM_SPECIAL + 2**BITS, 2**BITS, Bits(size=BITS)))
    assert isinstance(head, OutputHead)
    assert (head.in_features, head.out_features) == (2**BITS, NUM_SPECIAL + 2**BITS)
    known = kind.trains_on_cost, kind.evaluates_on_cost, kind.has_impossible_tokens
    assert known == (head.trains_on_cost, head.evaluates_on_cost, head.has_impossible_tokens)
    assert kind.has_rows == (
        getattr(head, "weight", torch.empty(0)).shape == (NUM_SPECIAL + 2**BITS, 2**BITS)
    )


@pytest.mark.parametrize("kind", EMBEDDINGS.values())
def test_an_embedding_is_built_for_its_place(kind: type[EmbeddingKind]) -> None:
    vocabulary = NUM_SPECIAL + 2**BITS
    embedding = kind().build(TokenPlace(vocabulary, 6, Bits(size=BITS)))
    assert isinstance(embedding, TokenEmbedding)
    assert embedding.num_embeddings == vocabulary
    assert embedding(torch.tensor([[0, vocabulary - 1]])).shape == (1, 2, embedding.embedding_dim)
    assert kind.has_rows == (getattr(embedding, "weight", torch.empty(0)).shape == (vocabulary, 6))
