"""Words by their characters: against a loop over the equations, in a recipe, saved with the
weights, and refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from composer.errors import RecipeError
from composer.inference.run import open_run
from composer.model.builder import build
from composer.model.char_lstm import CharLstmOutput
from composer.model.characters import BEGIN, END, NONE, CharacterCnn, CharacterEmbedding
from composer.model.embedding_kinds import Characters
from composer.model.output_kinds import CharLstm
from composer.recipe.recipe import load_text
from composer.testing import check_model
from composer.training.train import train
from tests.blocks.single_block import NoNumbersFromPython
from tests.laws.section_cases import recipe_of

TEXTS = ["⟨pad⟩", "a", "the", "straße", "characters", ""]
SMALL = "{width: 4, kernels: [1, 2, 5], features: [3, 4, 2], highway: 2, max_length: 9}"
LANGUAGE = f"""recipe: 1
data: {{parallel: {{train: {{target: a.txt}}}}}}
model: {{width: 8, embedding: {{characters: {SMALL}}}, decoder: [rnn]}}
"""


def small(highway: int = 2, max_length: int = 9, padding: bool = False) -> CharacterCnn:
    torch.manual_seed(1)
    cnn = CharacterCnn(len(TEXTS), 4, [1, 2, 5], [3, 4, 2], highway, max_length, padding).double()
    cnn.write(TEXTS)
    return cnn


def loop(cnn: CharacterCnn, text: str) -> Tensor:
    """Equations 5 to 8 of Kim et al. 2016, for one word."""
    characters = [BEGIN, *text.encode()[: cnn.characters.shape[1] - 2], END]
    c, begin, parts = cnn.embedding.weight[characters], 0, []
    for weight in cnn.weights:
        count, kernel = weight.shape[:2]
        padded = torch.cat((c, c.new_zeros(kernel if cnn.padding else max(0, kernel - len(c)), 4)))
        bias, begin = cnn.bias[begin : begin + count], begin + count
        places = range(len(padded) - kernel + 1)
        sums = [(weight * padded[t : t + kernel]).sum((1, 2)) for t in places]
        parts.append(torch.stack([torch.tanh(one + bias) for one in sums]).amax(0))
    y = torch.cat(parts)
    for layer in cnn.highway.children():
        made, gate = (layer.weight @ y + layer.bias).chunk(2)
        y = torch.sigmoid(gate) * torch.relu(made) + (1 - torch.sigmoid(gate)) * y
    return y


@pytest.mark.parametrize("padding", [False, True])
def test_a_word_is_what_the_equations_say_and_so_are_the_gradients(padding: bool) -> None:
    cnn, ids = small(padding=padding), torch.tensor([[4, 1, 4], [3, 5, 2]])
    expected = torch.stack([loop(cnn, TEXTS[index]) for index in ids.flatten()]).view(2, 3, -1)
    weight = torch.randn_like(expected)
    once, at_each = cnn(ids), cnn.vectors(cnn.characters[ids.flatten()]).view_as(expected)
    for result in (once, at_each):
        torch.testing.assert_close(result, expected)
        grads = torch.autograd.grad(
            (result * weight).sum(), list(cnn.parameters()), retain_graph=True
        )
        others = torch.autograd.grad(
            (expected * weight).sum(), list(cnn.parameters()), retain_graph=True
        )
        torch.testing.assert_close(grads, others)


@pytest.mark.parametrize("padding", [False, True])
def test_a_word_does_not_depend_on_the_room_for_longer_ones(padding: bool) -> None:
    cnn, wider, ids = (
        small(padding=padding),
        small(max_length=40, padding=padding),
        torch.arange(1, 4),
    )
    wider.load_state_dict({**cnn.state_dict(), "characters": wider.characters})
    torch.testing.assert_close(wider(ids), cnn(ids))
    # of which two bytes are cut off
    assert not torch.allclose(wider(torch.tensor([4])), cnn(torch.tensor([4])))


def test_the_table_has_bytes_between_marks() -> None:
    assert small().characters[3].tolist() == [BEGIN, *"straße".encode(), END]
    assert small().characters[1].tolist() == [BEGIN, ord("a"), END, *[NONE] * 6]
    assert small().characters.dtype is torch.uint8
    assert small().highway[0].bias[9:].tolist() == [-2.0] * 9


def test_all_numbers_are_within_a_bound_at_first() -> None:
    cnn = CharacterEmbedding(10_000, Characters(bound=0.01)).map
    cnn.highway[0].bias.detach()[cnn.out_features :] += 2  # where the gates begin
    assert all(0.009 < parameter.abs().max() <= 0.01 for parameter in cnn.parameters())


def test_kims_small_model_has_his_sizes() -> None:
    embedding = CharacterEmbedding(10_000, Characters())
    assert embedding.embedding_dim == 525
    recipe = load_text(
        LANGUAGE, overrides=["model.embedding=characters", "model.width=300", "model.rnn.layers=2"]
    )
    (row,) = (row for row in recipe.plan().rows if row.block == "embedding")
    kernels = sum(25 * k * (15 * k) for k in range(1, 7)) + 525
    assert (row.width, row.parameters) == (525, 256 * 15 + kernels + 2 * (525 * 525 + 525))
    names = "width", "kernels", "features", "highway", "max_length", "padding", "bound"
    assert tuple(recipe.model.embedding.as_data()) == names


def test_the_model_keeps_the_laws() -> None:
    check_model(build(load_text(LANGUAGE), {"target": 11}))


def test_a_recipe_trains_and_decodes_with_the_characters_of_its_own_words(tmp_path: Path) -> None:
    """In an average of the weights too, of which the table is no part."""
    recipe = recipe_of(
        tmp_path,
        "files",
        f"model.embedding={{characters: {SMALL}}}",
        "training.ema={}",
        "training.max_steps=6",
    )
    train(recipe, tmp_path / "run", data=tmp_path)
    run = open_run(tmp_path / "run")
    tables = {"encoders.source": "source", "": "target"}
    saved = load_file(tmp_path / "run" / "model.safetensors")
    for place, side in tables.items():
        table = saved[f"{place}.embedding.map.characters".lstrip(".")]
        words = run.tokenizers.vocabulary(side)
        assert [bytes(row).split(b"\xff")[1].split(b"\xfe")[0] for row in table.tolist()] == [
            word.encode()[:7] for word in words
        ]
    assert run.translate(["a b"])[0] is not None
    with torch.device("meta"):
        assert build(recipe, {"source": 9, "target": 9}).embedding.map.characters.is_meta


REFUSED = {
    "features: [3, 4]": ("features", "3 kernels, and features of 2"),
    "kernels: [], features: []": ("features", "there are 0 kernels"),
    "kernels: [1, 2, 10]": ("kernels", "longer than a word, of which 9 bytes"),
}


@pytest.mark.parametrize("written", REFUSED)
def test_what_cannot_be_is_refused_at_its_line(written: str) -> None:
    setting, message = REFUSED[written]
    overrides = [
        f"model.embedding.characters.{one}".replace(": ", "=") for one in written.split("], ")
    ]
    overrides = [one if one.endswith("]") else f"{one}]" for one in overrides]
    with pytest.raises(RecipeError, match=message) as error:
        load_text(LANGUAGE, overrides=overrides).plan()
    assert {fault.path for fault in error.value.faults} == {f"model.embedding.characters.{setting}"}


def test_characters_share_no_matrix_with_the_output() -> None:
    with pytest.raises(RecipeError, match="`characters` has no matrix with a row for each token"):
        load_text(LANGUAGE, overrides=["model.output.tie=[target]"])


def test_a_gpu_need_not_wait_for_sizes_of_kernels_and_marks() -> None:
    cnn, head = small(), CharLstmOutput(4, 6, CharLstm(width=3)).double()
    y = torch.randn(1, 2, 4, dtype=torch.double)
    head(y)  # the tree of prefixes is made once
    with NoNumbersFromPython():
        cnn(torch.arange(len(TEXTS)))
        head(y)
