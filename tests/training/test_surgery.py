"""`--from` gives blocks in the place of an attention its projections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from composer.inference.run import open_run
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.training.train import train
from composer.training.transfer import Transfer, transfer_weights
from tests.training.tiny_recipes import Tiny, Undisturbed

SHORT = ("training.max_steps=3", "training.validate_every=3")
LAYER = "{{residual: [norm, {0}]}}, {{residual: [{{feed_forward: 16}}]}}"
CROSS = "{residual: [{cross_attention: {heads: 2}}]}"
ATTENTION = "{self_attention: {heads: 2}}"
GROUPED = "{self_attention: {heads: 4, kv_heads: 2}}"


def decoder(*mixers: str) -> str:
    layers = ", ".join(LAYER.format(mixer) for mixer in mixers)
    return f"model.decoder=[{CROSS}, {layers}]"


def operated(tiny: Tiny, source: Path, *mixers: str) -> tuple[EncoderDecoder, Transfer]:
    """Return a model with these mixers that takes the weights of a run, and what it took."""
    run = open_run(source)
    recipe = tiny(*SHORT, decoder(*mixers))
    model = build(recipe, run.tokenizers.sizes)
    return model, transfer_weights(recipe, run.tokenizers, model, run)


def heads(model: EncoderDecoder, layer: int, sizes: list[int]) -> list[Tensor]:
    """Return the matrices of queries, keys and values of a layer's mixer, and that of its output."""
    mixer = model.get_submodule(f"decoder.blocks.{2 * layer + 1}.stack.blocks.1")
    return [*mixer.project.weight.split(sizes), mixer.merge.weight]


MIXERS = {
    "linear_attention": ("{linear_attention: {heads: 2}}", "query key value output"),
    "retention": ("{retention: {heads: 2, head_width: 4}}", "query key value output"),
    "wide retention": ("{retention: {heads: 2}}", "query key"),
    "gated_linear_attention": ("{gated_linear_attention: {heads: 2}}", "value output"),
    "delta_net": ("{delta_net: {heads: 2}}", "query key value output"),
    "gated_delta_net": ("{gated_delta_net: {heads: 2}}", "query key value output"),
    "other heads": ("{linear_attention: {heads: 4}}", ""),
}


@pytest.fixture
def source(tiny: Tiny, undisturbed: Undisturbed) -> Path:
    """A run whose decoder has two layers of attention."""
    return undisturbed(tiny(*SHORT, decoder(ATTENTION, ATTENTION)))


@pytest.mark.parametrize("case", MIXERS)
def test_a_mixer_begins_with_the_projections_that_fit(tiny: Tiny, source: Path, case: str) -> None:
    mixer, parts = MIXERS[case]
    model, transfer = operated(tiny, source, ATTENTION, mixer)
    names = parts.split()
    assert [*transfer.from_attention.values()] == ([tuple(names)] if names else [])
    block = model.get_submodule("decoder.blocks.3.stack.blocks.1")
    old = heads(open_run(source).model, 1, [8, 8, 8])
    own = heads(model, 1, getattr(block, "sizes", []))
    for name, before, after in zip(["query", "key", "value", "output"], old, own, strict=True):
        assert torch.equal(before, after) == (name in names), name
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sum(transfer.taken.values()) + sum(transfer.new.values()) == total


def test_equal_layers_are_matched_by_their_places(tiny: Tiny, undisturbed: Undisturbed) -> None:
    """`diff` would see the first layer that is left in the last layer of the new stack."""
    source = undisturbed(tiny(*SHORT, decoder(ATTENTION, ATTENTION, ATTENTION)))
    delta_net = "{delta_net: {heads: 2}}"
    model, _ = operated(tiny, source, delta_net, delta_net, ATTENTION)
    old = open_run(source).model
    for layer in (0, 1, 2):
        matrices = heads(old, layer, [8] * 3), heads(model, layer, [8] * 3)
        assert all(map(torch.equal, *matrices))
        name = f"decoder.blocks.{2 * layer + 2}"
        one, other = old.get_submodule(name).state_dict(), model.get_submodule(name).state_dict()
        assert one
        assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_heads_of_keys_and_values_are_repeated_for_their_queries(
    tiny: Tiny, tmp_path: Path
) -> None:
    train(tiny(*SHORT, decoder(GROUPED)), tmp_path / "source")
    model, transfer = operated(tiny, tmp_path / "source", "{linear_attention: {heads: 4}}")
    assert [*transfer.from_attention.values()] == [("query", "key", "value", "output")]
    _, keys, values, _ = heads(open_run(tmp_path / "source").model, 0, [8, 4, 4])
    _, own_keys, own_values, _ = heads(model, 0, [8, 8, 8])
    for before, after in ((keys, own_keys), (values, own_values)):
        groups = before.unflatten(0, (2, 2))  # (G, d, D)
        expected = torch.stack([groups[0], groups[0], groups[1], groups[1]])
        assert torch.equal(after.unflatten(0, (4, 2)), expected)


def test_what_came_from_an_attention_is_printed_and_recorded(
    tiny: Tiny, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny(*SHORT, decoder(ATTENTION, "{gated_linear_attention: {heads: 2}}"))
    train(recipe, tmp_path / "run", start_from=source)
    path = "decoder[3].residual[1].gated_linear_attention"
    printed = capsys.readouterr().out
    assert f"in whose place they are:\n    {path}  value, output\n" in printed
    record = json.loads((tmp_path / "run" / "run.json").read_text())["transferred"]
    assert record["from_attention"] == {path: ["value", "output"]}
    assert record["taken"][path] == 2 * 8 * 8
    assert record["new"][path] > 0
