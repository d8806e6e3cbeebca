"""`training.adapters`: low-rank matrices are trained beside those of another run, and merged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from composer.data.sources import DataSource
from composer.data.tokenizer_cache import cached_tokenizers
from composer.errors import RecipeError, RunError
from composer.inference.run import open_run
from composer.model.adapters import LowRank
from composer.model.encoder_decoder import example_ids, example_sources
from composer.recipe.recipe import Recipe
from composer.run_dir import checkpoint_weights, latest_checkpoint
from composer.runs.adapters import merge_adapters
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from tests.training.interruptions import killed_in_batch
from tests.training.tiny_recipes import Tiny, Undisturbed, same_weights

SHORT = ("training.max_steps=3", "training.validate_every=3")
PLAIN = ("model.output.tie=[]", "training.schedule=constant")
ENCODER = "{rank: 2, alpha: 3, blocks: [encoder, 'decoder[1]']}"


def lora(settings: str = ENCODER) -> str:
    return f"training.adapters={{lora: {settings}}}"


def module_of(recipe: Recipe) -> Seq2SeqModule:
    tokenizers = cached_tokenizers(DataSource(recipe, recipe.folders()))
    return Seq2SeqModule.from_recipe(recipe, tokenizers)


@pytest.fixture
def first(tiny: Tiny, undisturbed: Undisturbed) -> Path:
    return undisturbed(tiny(*SHORT, *PLAIN))


@pytest.fixture
def adapted(tiny: Tiny, first: Path, tmp_path: Path) -> Path:
    recipe = tiny("training.max_steps=6", *PLAIN, lora(), "training.validate_every=2")
    return Path(train(recipe, tmp_path / "adapted", start_from=first).run_dir)


def test_only_selected_matrices_change_in_the_merged_weights(first: Path, adapted: Path) -> None:
    before, after = (load_file(run / "model.safetensors") for run in (first, adapted))
    assert before.keys() == after.keys()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    matrices = {
        name
        for name, value in before.items()
        if value.ndim == 2 and name.startswith(("encoders.source.stack", "decoder.blocks.1"))
    }
    assert changed == matrices
    assert len(changed) == 6
    for name in changed:
        change = (after[name] - before[name]).double()
        assert torch.linalg.matrix_rank(change, rtol=1e-4) <= 2


def test_the_model_begins_as_it_was(tiny: Tiny) -> None:
    plain = module_of(tiny(*PLAIN)).eval()
    module = module_of(tiny(*PLAIN, lora())).eval()
    weights = merge_adapters(module.model.state_dict())
    plain.model.load_state_dict(weights)
    sources, ids = example_sources(plain.model, 4), example_ids(plain.model, 4)
    assert torch.equal(plain.model(sources, ids), module.model(sources, ids))


def test_merged_weights_answer_as_adapters_do(tiny: Tiny) -> None:
    module = module_of(tiny(*PLAIN, lora())).eval()
    adapters = [part for part in module.model.modules() if isinstance(part, LowRank)]
    for adapter in adapters:
        torch.nn.init.normal_(adapter.up)
    model = module.unsharded_model().eval()
    sources, ids = example_sources(model, 4), example_ids(model, 4)
    model.load_state_dict(merge_adapters(module.model.state_dict()))
    assert torch.equal(model(sources, ids), module.model(sources, ids))
    (adapter, *_) = adapters
    weight = torch.randn(adapter.up.shape[0], adapter.down.shape[1])
    expected = weight + 1.5 * adapter.up @ adapter.down  # alpha / rank = 3 / 2
    torch.testing.assert_close(adapter(weight), expected)


def test_the_last_checkpoint_is_the_final_weights(adapted: Path) -> None:
    run = open_run(adapted, checkpoint="best")
    final = open_run(adapted).model.state_dict()
    assert all(torch.equal(value, final[name]) for name, value in run.model.state_dict().items())
    newest = latest_checkpoint(adapted / "checkpoints", print)
    assert newest is not None
    assert checkpoint_weights(newest).keys() == final.keys()


def test_an_average_is_of_merged_weights(tiny: Tiny, first: Path, tmp_path: Path) -> None:
    recipe = tiny(
        "training.max_steps=4",
        "training.validate_every=2",
        "training.average_checkpoints=2",
        *PLAIN,
        lora(),
    )
    train(recipe, tmp_path / "run", start_from=first)
    one, other = map(checkpoint_weights, sorted((tmp_path / "run/checkpoints").glob("*.ckpt")))
    final = load_file(tmp_path / "run" / "model.safetensors")
    for name, value in final.items():
        torch.testing.assert_close(value, (one[name] + other[name]) / 2)


def test_it_resumes_to_the_last_bit(tiny: Tiny, first: Path, tmp_path: Path) -> None:
    recipe = tiny("training.max_steps=6", "training.validate_every=2", *PLAIN, lora())
    train(recipe, tmp_path / "whole", start_from=first)
    with killed_in_batch(5):
        train(recipe, tmp_path / "cut", start_from=first)
    train(recipe, tmp_path / "cut", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")


def test_check_and_train_say_what_is_trained(
    tiny: Tiny, first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tiny(*SHORT, *PLAIN, lora())
    planned = recipe.plan()
    sizes = planned.adapters
    assert {path: size.matrices for path, size in sizes.items()} == {
        "encoder[1].rnn": 3,
        "decoder[1].residual[0].cross_attention": 3,
    }
    module = module_of(recipe)
    trained = [value.numel() for value in module.parameters() if value.requires_grad]
    assert sum(trained) == sum(size.parameters for size in sizes.values())
    assert planned.frozen == planned.parameters
    train(recipe, tmp_path / "run", start_from=first)
    total = f"adapters train {sum(trained):,} parameters beside 6 matrices:\n    encoder[1].rnn"
    assert total in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{blocks: encodr}", r"no block has the path `encodr`; did you mean `encoder`\?"),
        ("{blocks: 'encoder[0]'}", r"`encoder\[0\]` has no linear map"),
        ("{blocks: encoder.embedding}", "`encoder.embedding` has no linear map"),
    ],
)
def test_paths_that_train_nothing_are_refused(tiny: Tiny, settings: str, message: str) -> None:
    with pytest.raises(RecipeError, match=rf":\d+:\d+: error\[\w+\]: {message}"):
        tiny(lora(settings)).plan()


def test_a_matrix_that_is_shared_with_an_embedding_is_refused(tiny: Tiny) -> None:
    with pytest.raises(RecipeError, match=r"`output` has a matrix that is also `.*embedding`'s"):
        tiny(lora("{blocks: output}")).plan()


def test_random_weights_are_refused(tiny: Tiny, first: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="these would be random"):
        train(tiny(*SHORT, *PLAIN, lora()), tmp_path / "run")
    other = tiny(*SHORT, *PLAIN, lora(), "model.encoder=[{linear: 8}, {rnn: {cell: gru}}]")
    with pytest.raises(RunError, match=r"would stay random beside adapters: encoder\[0\].linear"):
        train(other, tmp_path / "run", start_from=first)
    assert not (tmp_path / "run").exists()


def test_shared_layers_have_shared_adapters(tiny: Tiny) -> None:
    repeat = "model.encoder=[{repeat: {times: 3, share: true, stack: [{linear: 8}]}}]"
    recipe = tiny(*PLAIN, repeat, lora("{rank: 2, blocks: encoder}"))
    (size,) = recipe.plan().adapters.values()
    assert size == (1, 2 * (8 + 8))
    module = module_of(recipe)
    trained = [value for value in module.parameters() if value.requires_grad]
    assert sum(value.numel() for value in trained) == size.parameters
    torch.nn.init.normal_(trained[1])
    model = module.unsharded_model().eval()
    model.load_state_dict(merge_adapters(module.model.state_dict()))
    sources, ids = example_sources(model, 4), example_ids(model, 4)
    assert torch.equal(model(sources, ids), module.eval().model(sources, ids))
