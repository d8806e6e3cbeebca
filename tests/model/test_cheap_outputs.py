"""Output heads that train on a cost of their own: against loops over their equations, in recipes,
and refused.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from composer.errors import ComposerError, RecipeError
from composer.inference.run import open_run
from composer.model.builder import build
from composer.model.output_heads import (
    AdaptiveOutput,
    CnnOutput,
    SampledOutput,
    log_uniform,
    sample_ids,
    sampled_cost,
)
from composer.model.output_kinds import Adaptive, Cnn, Sampled
from composer.model.special_tokens import PAD
from composer.recipe.recipe import load, load_text
from composer.testing import check_model
from composer.training.preflight import check_recipe
from composer.training.train import train
from tests.laws.section_cases import recipe_of

LANGUAGE = """recipe: 1
data: {parallel: {train: {target: a.txt}}}
model: {width: 32, decoder: [rnn]}
"""
WORDS, WIDTH = 20, 6


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


def inputs() -> tuple[Tensor, Tensor]:
    y = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    return y, torch.tensor([[4, 2, 19, 7, 11], [3, 12, 8, 1, 0]])


def test_adaptive_is_a_softmax_over_the_first_words_and_clusters_and_one_in_each_cluster() -> None:
    head = AdaptiveOutput(WIDTH, WORDS, Adaptive(cutoffs=(4, 12), div_value=2.0)).double()
    (y, target), expected = inputs(), []
    for row, word in zip(y.flatten(0, 1), target.flatten().tolist(), strict=True):
        first = (head.softmax.head.weight @ row).log_softmax(0)  # of 4 words and 2 clusters
        log_p = first[word] if word < 4 else torch.zeros(())
        for cluster, (begin, end) in enumerate(((4, 12), (12, 20))):
            down, up = head.softmax.tail[cluster]
            assert down.weight.shape == (WIDTH // 2 ** (cluster + 1), WIDTH)
            if begin <= word < end:
                log_p = (
                    first[4 + cluster]
                    + (up.weight @ (down.weight @ row)).log_softmax(0)[word - begin]
                )
        expected.append(-log_p)
    costs = head.cost(y, target)
    compare(costs, torch.stack(expected).view_as(target), (y, *head.parameters()))
    torch.testing.assert_close(-head(y).gather(-1, target[..., None])[..., 0], costs)
    torch.testing.assert_close(head(y).exp().sum(-1), torch.ones_like(costs))


def test_sampled_is_a_softmax_over_target_and_samples_corrected_by_their_probabilities() -> None:
    head = SampledOutput(WIDTH, WORDS, samples=8).double()
    (y, target), expected = inputs(), []
    torch.manual_seed(3)
    costs = head.cost(y, target)
    torch.manual_seed(3)
    samples, tau = sample_ids(8, WORDS, y.device)
    assert len(set(samples.tolist())) == 8
    q = [
        1 - (1 - p).pow(tau) if p == 1 else -torch.expm1(-p * tau)
        for p in log_uniform(torch.arange(WORDS), WORDS)
    ]
    for row, word in zip(y.flatten(0, 1), target.flatten().tolist(), strict=True):
        others = [other for other in samples.tolist() if other != word]
        logits = torch.stack(
            [head.weight[w] @ row + head.bias[w] - q[w].double().log() for w in (word, *others)]
        )
        expected.append(-logits.log_softmax(0)[0])
    compare(costs, torch.stack(expected).view_as(target), (y, head.weight, head.bias), 1e-5)
    everything = torch.arange(WORDS)
    true = head(y).gather(-1, target[..., None])[..., 0]
    all_sampled = sampled_cost(head(y), true, everything, target, torch.tensor(torch.inf), WORDS)
    torch.testing.assert_close(
        all_sampled, F.cross_entropy(head(y).mT, target, reduction="none"), check_dtype=False
    )


def test_where_the_target_is_the_only_sample_the_cost_is_0_and_has_a_gradient() -> None:
    logits, true = torch.zeros(1, 2, 1, requires_grad=True), torch.zeros(1, 2, requires_grad=True)
    costs = sampled_cost(
        logits, true, torch.tensor([5]), torch.tensor([[5, 6]]), torch.tensor(3.0), WORDS
    )
    with torch.autograd.set_detect_anomaly(True):
        costs.sum().backward()
    assert costs[0, 0] == 0
    assert costs[0, 1] > 0
    assert true.grad is not None
    assert true.grad[0, 0] == 0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def compare(
    result: Tensor, expected: Tensor, inputs: tuple[Tensor, ...], tolerance: float = 1e-9
) -> None:
    weight = torch.randn_like(expected)
    close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(result, expected, **close)
    grads = torch.autograd.grad((result * weight).sum(), inputs, retain_graph=True)
    others = torch.autograd.grad((expected * weight).sum(), inputs, retain_graph=True)
    torch.testing.assert_close(grads, others, **close)


def test_draws_are_log_uniform_and_their_probabilities_estimate_any_sum() -> None:
    """The mean over draws of sum f / q over the samples is the sum over all words (Horvitz &
    Thompson).
    """
    p = log_uniform(torch.arange(WORDS), WORDS)
    torch.testing.assert_close(p.sum(), torch.tensor(1.0))
    ones = torch.zeros(WORDS)
    values, draws, total = torch.rand(WORDS) + 1, 4000, 0.0
    for _ in range(draws):
        samples, tau = sample_ids(1, WORDS, p.device)
        ones[samples] += 1 / draws
        samples, tau = sample_ids(6, WORDS, p.device)
        total += (values / -torch.expm1(-p * tau))[samples].sum().item() / draws
    torch.testing.assert_close(ones, p, atol=0.03, rtol=0)
    assert abs(total / values.sum().item() - 1) < 0.03


def test_the_true_probabilities_are_where_the_sampled_cost_has_no_slope() -> None:
    """Its expectation over words and samples, so that what is learned are the probabilities of the
    full softmax.
    """
    log_p = torch.randn(WORDS).log_softmax(0).requires_grad_()
    slope, draws = torch.zeros(WORDS), 300
    for _ in range(draws):
        target = torch.multinomial(log_p.detach().exp(), 200, replacement=True)[None]
        samples, tau = sample_ids(7, WORDS, log_p.device)
        costs = sampled_cost(
            log_p[samples].expand(1, 200, -1), log_p[target], samples, target, tau, WORDS
        )
        slope += torch.autograd.grad(costs.mean(), log_p)[0] / draws
    full = torch.autograd.grad(
        F.cross_entropy(log_p[None].expand(20, -1) * 0.5, torch.arange(WORDS)), log_p
    )[0]
    assert slope.abs().max() < 0.01 < full.abs().max()


CNN = {"width": 3, "kernels": [1, 3], "features": [5, 4], "max_length": 8, "correction": 2}


def cnn_head(**settings: Any) -> CnnOutput:
    head = CnnOutput(WIDTH, WORDS, Cnn(**CNN | settings)).double()
    if head.correction is not None:
        torch.nn.init.normal_(head.correction.weight)
    return head


def test_cnn_is_a_product_with_what_the_characters_and_a_correction_say() -> None:
    head = cnn_head()
    (y, _), weights = inputs(), []
    for word in range(WORDS):
        of_characters = head.map.weight @ head.characters(torch.tensor([word]))[0]
        weights.append(of_characters + head.mix.weight @ head.correction.weight[word])
    expected = (y[..., None, :] * torch.stack(weights)).sum(-1)
    compare(head(y), expected, (y, *head.parameters()))
    assert not head.trains_on_cost
    plain = cnn_head(correction=0)
    assert [name.partition(".")[0] for name, _ in plain.named_parameters()][-1] == "map"


def test_cnn_with_samples_is_sampled_of_its_vectors() -> None:
    head, (y, target) = cnn_head(samples=8), inputs()
    torch.manual_seed(3)
    costs = head.cost(y, target)
    torch.manual_seed(3)
    samples, tau = sample_ids(8, WORDS, y.device)
    logits = head(y)
    true = logits.gather(-1, target[..., None])[..., 0]
    expected = sampled_cost(logits[..., samples], true, samples, target, tau, WORDS)
    compare(costs, expected, (y, *head.parameters()), 1e-5)


def test_without_gradients_the_vectors_of_all_words_are_made_once_for_the_same_weights() -> None:
    head, (y, _) = cnn_head().eval(), inputs()
    expected = head(y)
    with torch.inference_mode():
        torch.testing.assert_close(head(y), expected)
        rows = head.all_rows()
        assert head.all_rows() is rows
    with torch.no_grad():
        head.map.weight.mul_(2.0)
        doubled = head(y)
        head.characters.write([chr(97 + word) for word in range(WORDS)])
        torch.testing.assert_close(head(y), F.linear(y, head.rows(torch.arange(WORDS))))
        assert not torch.allclose(doubled, head(y))
        copied = copy.deepcopy(head).float()
        torch.testing.assert_close(copied(y.float()), head(y).float())
    head.train()
    assert head.memo is None


def test_a_cluster_without_a_target_has_a_gradient_of_zeros() -> None:
    """Several processes would wait for it else."""
    head, (y, _) = (
        AdaptiveOutput(WIDTH, WORDS, Adaptive(cutoffs=(4, 12), div_value=2.0)).double(),
        inputs(),
    )
    head.cost(y, torch.zeros(2, 5, dtype=torch.long)).sum().backward()
    for tail in head.softmax.tail:
        assert all(
            weight.grad is not None and not weight.grad.any() for weight in tail.parameters()
        )


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_adaptive_is_as_wide_as_its_weights_where_autocast_is_on(
    wide: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU autocast computes log_softmax in float32 from rows in bfloat16, which stopped
    training there.
    """

    class OnGpu:
        def __getattr__(self, name: str) -> Any:
            return getattr(F, name)

        def log_softmax(self, x: Tensor, dim: int) -> Tensor:
            return F.log_softmax(x.to(torch.promote_types(x.dtype, torch.float32)), dim)

    monkeypatch.setattr("torch.nn.modules.adaptive.F", OnGpu())
    head, (y, target) = (
        AdaptiveOutput(WIDTH, WORDS, Adaptive(cutoffs=(4, 12), div_value=2.0)).to(wide),
        inputs(),
    )
    y = y.bfloat16()
    expected = head.cost(y.to(wide), target)
    with torch.autocast("cpu", torch.bfloat16):
        costs, log_p = head.cost(y, target), head(y)
    assert costs.dtype == log_p.dtype == wide
    torch.testing.assert_close(costs, expected)
    torch.testing.assert_close(-log_p.gather(-1, target[..., None])[..., 0], expected)


KINDS: dict[str, dict[str, Any]] = {
    "cnn": {**CNN, "samples": 4},
    "adaptive": {"cutoffs": [5, 8], "div_value": 2.0},
    "sampled": {"samples": 4},
    "char_lstm": {"width": 12, "max_length": 8},
}
EXACT = ("adaptive", "char_lstm")
"""Heads whose cost is that of the logits."""
CHEAP = pytest.mark.parametrize("kind", KINDS)


def kind_of(kind: str) -> str:
    settings = ", ".join(f"{key}: {value}" for key, value in KINDS[kind].items())
    return f"model.output.kind={{{kind}: {{{settings}}}}}"


def language_model(kind: str) -> Any:
    return load_text(LANGUAGE, overrides=[kind_of(kind)])


@CHEAP
def test_the_model_keeps_the_laws(kind: str) -> None:
    check_model(build(language_model(kind), {"target": 11}))


@CHEAP
def test_a_recipe_trains_and_decodes(kind: str, tmp_path: Path) -> None:
    """It is planned, its loss falls, and its validations are not of samples."""
    settings = (
        "training.max_steps=60",
        "training.validate_every=30",
        "training.optimizer={adam: 0.03}",
    )
    recipe = recipe_of(tmp_path, "pairs", kind_of(kind), *settings)
    planned = recipe.plan()
    assert planned.draws_random_numbers == (kind not in EXACT)
    result = train(recipe, tmp_path / "run", data=tmp_path)
    run = open_run(tmp_path / "run")
    scores = run.evaluate("test", tmp_path)
    assert scores["test/loss"] < 2.5, result
    assert run.translate(["a b c"])[0] is not None


@CHEAP
def test_training_costs_are_those_of_the_logits_or_of_samples(kind: str) -> None:
    model = build(language_model(kind), {"target": 11})
    target = torch.tensor([[1, 4, 5, 9], [1, 10, 0, 0]])
    answer = torch.tensor([[4, 5, 9, 2], [10, 2, 0, 0]])
    costs = model({}, target, answer=answer)
    full = -model.log_probs(model({}, target)).gather(-1, answer[..., None])[..., 0]
    assert costs.shape == full.shape
    real = answer != PAD
    if kind in EXACT:
        torch.testing.assert_close(costs[real], full[real])
    else:
        assert (costs != full)[real].all()


REFUSED = {
    "{adaptive: {cutoffs: [8, 8]}}": ("model.output.kind.adaptive.cutoffs", "ascend"),
    "{adaptive: {cutoffs: []}}": ("model.output.kind.adaptive.cutoffs", "no cluster begins"),
    "{adaptive: {cutoffs: [20000]}}": (
        "model.output.kind.adaptive.cutoffs",
        "no token has the id 20,000",
    ),
    "{adaptive: {cutoffs: [10, 20, 30]}}": ("model.output.kind.adaptive", "no width"),
    "{sampled: 10000}": ("model.output.kind.sampled", "no fewer"),
    "adaptive": ("model.output.kind", "`adaptive` needs `cutoffs`"),
    "{adaptive: 10}; tie": ("model.output.kind", "no matrix"),
    "{sampled: 100}; smoothing": ("training.label_smoothing", "needs the logits of all tokens"),
    "{adaptive: {cutoffs: [10]}}; length": (
        "model.output.length",
        "needs the logits of all tokens",
    ),
    "{cnn: {kernels: [2]}}": ("model.output.kind.cnn", "1 kernels, and features of 6"),
    "{cnn: {samples: 10000}}": ("model.output.kind.cnn.samples", "no fewer"),
    "{cnn: {}}; tie": ("model.output.kind", "no matrix"),
    "{cnn: {samples: 5}}; smoothing": ("training.label_smoothing", "`cnn` trains without them"),
    "char_lstm; tie": ("model.output.kind", "no matrix"),
    "char_lstm; smoothing": ("training.label_smoothing", "needs the logits of all tokens"),
    "char_lstm; accuracy": (
        "training.early_stopping.metric",
        "`char_lstm` measures the target alone",
    ),
    "{adaptive: {cutoffs: [10]}}; curriculum": (
        "training.curriculum",
        "needs the logits of all tokens",
    ),
}
EXTRA_OVERRIDES = {
    "tie": "model.output.tie=[target]",
    "smoothing": "training.label_smoothing=0.1",
    "length": "model.output.length=3",
    "curriculum": "training.curriculum={start: 3}",
    "accuracy": "training.early_stopping={metric: val/token_accuracy}",
}


@pytest.mark.parametrize("written", REFUSED)
def test_what_cannot_be_is_refused_at_its_line(written: str) -> None:
    path, message = REFUSED[written]
    kind, _, beside = written.replace("{adaptive: 10}", "{adaptive: {cutoffs: [10]}}").partition(
        "; "
    )
    overrides = [f"model.output.kind={kind}", *([EXTRA_OVERRIDES[beside]] if beside else [])]
    with pytest.raises(RecipeError, match=message) as error:
        load_text(LANGUAGE, overrides=overrides).plan()
    assert [fault.path for fault in error.value.faults] == [path]
    assert error.value.faults[0].hint


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A language model of 14 words, and of the special tokens before them."""
    lines = "\n".join(" ".join(f"w{(i * k) % 14}" for k in range(1, 6)) for i in range(14))
    (tmp_path / "a.txt").write_text(f"{lines}\n", encoding="utf-8")
    data = "{text: {train: a.txt, val: a.txt}, tokenizer: {word: {size: 100}}}"
    text = (
        LANGUAGE.replace("{parallel: {train: {target: a.txt}}}", data)
        + "training: {max_steps: 1}\n"
    )
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    return tmp_path / "r.yaml"


@pytest.mark.parametrize(
    ("written", "message", "fixed"),
    [
        ("{adaptive: {cutoffs: [14, 8]}}", "these numbers do not ascend", "cutoffs: [8, 14]"),
        ("{adaptive: {cutoffs: [8, 8]}}", "these numbers do not ascend", "cutoffs: [8]"),
        (
            "{adaptive: {cutoffs: [50]}}",
            "no token has the id 50: the vocabulary has 18 tokens",
            "cutoffs: [3]",
        ),
        (
            "{adaptive: {cutoffs: [200, 8]}}",
            "no token has the id 200: the vocabulary has 18 tokens",
            "cutoffs: [8]",
        ),
        ("{adaptive: {cutoffs: []}}", "no cluster begins anywhere", "cutoffs: [3]"),
        (
            "{sampled: {samples: 50}}",
            "no fewer than all: the vocabulary has 18 tokens",
            "samples: 1",
        ),
        (
            "{sampled: {samples: 200}}",
            "no fewer than all: the vocabulary has 18 tokens",
            "samples: 1",
        ),
    ],
)
def test_the_size_that_the_data_give_counts_and_the_fix_is_accepted(
    written: str, message: str, fixed: str, words: Path, tmp_path: Path
) -> None:
    recipe = load(words, [f"model.output.kind={written}"])
    for refuse in (lambda: check_recipe(recipe), lambda: train(recipe, tmp_path / "run")):
        with pytest.raises(ComposerError) as error:
            refuse()
        (fault,) = error.value.faults
        assert fault.message.endswith(message)
        kind = written.strip("{").partition(":")[0]
        assert fault.hint.startswith((f"write `{fixed}`", f"write `{kind}: {{{fixed}}}`"))
    check_recipe(load(words, [f"model.output.kind={{{kind}: {{{fixed}}}}}"]))


def test_a_size_that_is_not_known_is_called_a_bound(words: Path) -> None:
    with pytest.raises(ComposerError, match="the vocabulary has 100 tokens at most"):
        load(words, ["model.output.kind={adaptive: {cutoffs: [200]}}"]).plan()


def test_a_bare_kind_stays_bare_and_its_settings_can_be_overridden() -> None:
    assert load_text(LANGUAGE).model.output.kind.word == "linear"
    recipe = load_text(LANGUAGE, overrides=["model.output.kind.sampled=50"])
    assert recipe.model.output.kind == Sampled(samples=50)
    again = load_text(recipe.dump())
    assert again.fingerprints == recipe.fingerprints


def test_cnn_without_samples_trains_on_the_logits_of_all_words() -> None:
    overrides = [
        "model.output.kind={cnn: {kernels: [2], features: [8]}}",
        "training.label_smoothing=0.1",
    ]
    recipe = load_text(LANGUAGE, overrides=overrides)
    assert recipe.plan().parameters > 0
    check_model(build(recipe, {"target": 11}))


def test_sampled_shares_the_matrix_of_an_embedding() -> None:
    recipe = load_text(LANGUAGE, overrides=["model.output={tie: [target], kind: {sampled: 5}}"])
    model = build(recipe, {"target": 11})
    assert model.embedding is not None
    assert model.output.weight is model.embedding.weight
