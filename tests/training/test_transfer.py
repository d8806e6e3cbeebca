"""`--from` takes what fits into another architecture; `training.parameter_groups` freezes or slows
it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from blocks.identity import Identity
from composer.errors import RecipeError, RunError
from composer.inference.run import open_run
from composer.model.parameter_paths import learning_rate_factors
from composer.training.train import train
from tests.training.tiny_recipes import Tiny, Undisturbed

SHORT = ("training.max_steps=3", "training.validate_every=3")
STILL = (*SHORT, "training.optimizer.adam.learning_rate=1e-12")
WORDS = "data.tokenizer={word: {joint: true}}"


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


FIRST = (
    "model.encoder=[{rnn: {cell: gru}}, {linear: 8}]",
    "model.decoder=[{rnn: {cell: lstm}}, cross_attention]",
)
OTHER = (
    "model.encoder=[{linear: 8}]",  # as the second of the first run
    "model.decoder=[{residual: [{rnn: {cell: lstm}}]}, {feed_forward: 16}, cross_attention]",
)


@pytest.fixture
def first(tiny: Tiny, undisturbed: Undisturbed) -> Path:
    """A run of the first architecture."""
    return undisturbed(tiny(*SHORT, *FIRST))


def test_blocks_that_diff_calls_the_same_are_taken(
    first: Path, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(*STILL, *OTHER), tmp_path / "run", start_from=first)
    old, new = weights(first), weights(tmp_path / "run")
    pairs = {
        "encoders.source.stack.blocks.1.": "encoders.source.stack.blocks.0.",
        "decoder.blocks.0.": "decoder.blocks.0.stack.blocks.0.",
        "decoder.blocks.1.": "decoder.blocks.2.",
        **{name: name for name in ("embedding.", "output.", "encoders.source.embedding.")},
    }
    compared = 0
    for name, value in old.items():
        for before, after in pairs.items():
            if name.startswith(before):
                torch.testing.assert_close(new[after + name.removeprefix(before)], value)
                compared += 1
    assert compared == len(new) - sum("decoder.blocks.1." in name for name in new)
    printed = capsys.readouterr().out
    assert "parameters have its weights; these start anew:\n    decoder[1]" in printed
    record = json.loads((tmp_path / "run" / "run.json").read_text())["transferred"]
    assert list(record["new"]) == ["decoder[1].feed_forward"]
    assert sum(record["taken"].values()) + sum(record["new"].values()) == sum(
        value.numel() for value in new.values()
    )


def test_a_reproduction_takes_the_same(first: Path, tiny: Tiny, tmp_path: Path) -> None:
    outcome = train(tiny(*SHORT, *OTHER), tmp_path / "run", start_from=first)
    recipe = open_run(tmp_path / "run").recipe
    again = train(recipe, tmp_path / "again")
    assert again.record.reproduces.same
    assert again.record.transferred == outcome.record.transferred


def test_of_another_tokenizer_the_blocks_are_taken_and_the_embeddings_are_not(
    first: Path, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(*STILL, *FIRST, WORDS), tmp_path / "run", start_from=first)
    record = json.loads((tmp_path / "run" / "run.json").read_text())["transferred"]
    assert {*record["new"]} == {"encoder.embedding", "decoder.embedding", "output"}
    assert "its tokenizer is another, so embeddings and output do" in capsys.readouterr().out


def test_of_a_longer_repeat_the_first_copies_are_taken(tiny: Tiny, tmp_path: Path) -> None:
    short, long = (
        f"model.encoder=[{{repeat: {{times: {times}, stack: [{{linear: 8}}]}}}}]"
        for times in (2, 3)
    )
    train(tiny(*SHORT, short), tmp_path / "short")
    train(tiny(*STILL, long), tmp_path / "long", start_from=tmp_path / "short")
    old, new = weights(tmp_path / "short"), weights(tmp_path / "long")
    names = [name for name in old if "encoders" in name and "blocks" in name]
    assert len(names) > 1
    for name in names:
        torch.testing.assert_close(new[name], old[name])
    record = json.loads((tmp_path / "long" / "run.json").read_text())["transferred"]
    assert len(record["new"]) == 1


def test_nothing_that_fits_is_refused(first: Path, tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="do not fit the model: no block has"):
        train(tiny("model.width=16"), tmp_path / "run", start_from=first)
    assert not (tmp_path / "run").exists()


def groups(*pairs: tuple[str, float]) -> str:
    items = ", ".join(f"{{blocks: '{path}', factor: {factor}}}" for path, factor in pairs)
    return f"training.parameter_groups=[{items}]"


def test_frozen_blocks_stay_and_others_have_their_own_rate(tiny: Tiny, tmp_path: Path) -> None:
    once = ("training.max_steps=1", "training.validate_every=1", "training.schedule=constant")
    sgd = ("training.optimizer={sgd: {learning_rate: 0.1}}", *once, *FIRST)
    train(tiny(*sgd), tmp_path / "plain")
    train(
        tiny(*sgd, groups(("encoder", 0), ("encoder[1]", 1), ("model.output", 0.5))),
        tmp_path / "run",
    )
    train(tiny(*sgd, "training.optimizer.sgd.learning_rate=1e-15"), tmp_path / "start")
    start, plain, run = (weights(tmp_path / name) for name in ("start", "plain", "run"))
    for name, value in start.items():
        is_frozen = name.startswith("encoders.") and "blocks.1." not in name
        factor = 0 if is_frozen else 0.5 if name.startswith("output.") else 1
        torch.testing.assert_close(
            run[name], value + factor * (plain[name] - value), atol=1e-6, rtol=1e-4
        )
    checkpoint = torch.load(
        next((tmp_path / "run" / "checkpoints").glob("*.ckpt")), weights_only=True
    )
    assert [group["factor"] for group in checkpoint["optimizer_states"][0]["param_groups"]] == [
        1.0,
        0.5,
    ]


EXPERTS = "model.encoder=[{mixture_of_experts: {stack: [linear], experts: 3, top_k: 1}}]"
SETS = (
    "model.encoder=[{repeat: {times: length, relaxation: {sets: 2, until: 0.4}, stack: [{linear:"
    " 8}]}}]"
)


@pytest.mark.parametrize("encoder", [EXPERTS, SETS])
def test_what_training_changes_beside_weights_stays_in_frozen_blocks(
    tiny: Tiny, tmp_path: Path, encoder: str
) -> None:
    train(tiny(*SHORT, encoder), tmp_path / "first")
    train(
        tiny("training.max_steps=1", encoder), tmp_path / "trained", start_from=tmp_path / "first"
    )
    train(
        tiny("training.max_steps=1", encoder, groups(("encoder", 0))),
        tmp_path / "frozen",
        start_from=tmp_path / "first",
    )
    first, trained, frozen = (weights(tmp_path / name) for name in ("first", "trained", "frozen"))
    (name,) = (name for name in first if name.endswith((".moves", ".joined")))
    assert not torch.equal(trained[name], first[name])
    assert torch.equal(frozen[name], first[name])


def test_a_block_without_parameters_goes_by_the_progress(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: list[float] = []
    monkeypatch.setattr(Identity, "set_progress", lambda self, spent: progress.append(spent))
    train(tiny("training.max_steps=2", "model.encoder=[identity, {linear: 8}]"), tmp_path / "run")
    assert progress[:2] == [0.0, 0.5]


def test_a_frozen_run_resumes_to_the_last_bit(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = (
        groups(("encoder", 0), ("decoder[0]", 0.3)),
        "training.schedule=constant",
        "training.validate_every=2",
    )
    train(tiny(*frozen, "training.max_steps=4"), tmp_path / "whole")
    names = weights(tmp_path / "whole").items()
    count = sum(value.numel() for name, value in names if name.startswith("encoders."))
    assert f" parameters, {count:,} of them frozen; " in capsys.readouterr().out
    train(tiny(*frozen, "training.max_steps=2"), tmp_path / "cut")
    train(tiny(*frozen, "training.max_steps=4"), tmp_path / "cut", resume=True)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_shared_matrix_has_the_smallest_factor(tiny: Tiny) -> None:
    recipe = tiny(
        WORDS, "model.output.tie=[source, target]", groups(("encoder", 0.2), ("output", 0.1))
    )
    factors = learning_rate_factors(recipe, recipe.build())
    assert factors["encoders.source.embedding.weight"] == 0.1
    assert factors["output.bias"] == 0.1


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            [("decodr", 0.0)],
            r":\d+:\d+: error\[path\]: no block has the path `decodr`; did you mean `decoder`\?",
        ),
        ([("encoder[7]", 0.0)], r"no block has the path `encoder\[7\]`"),
        ([("encoder", 0.0), ("decoder", 0.0), ("output", 0.0)], "every parameter is frozen"),
    ],
)
def test_faults_of_paths(tiny: Tiny, pairs: list[tuple[str, float]], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        tiny(groups(*pairs)).plan()


@pytest.mark.parametrize(
    ("pairs", "idle"),
    [
        ([("encoder", 1.0)], 0),
        ([("encoder", 0.5), ("encoder[0]", 0.5)], 1),
        ([("encoder", 0.5), ("model.encoder", 0.1)], 1),
        (
            [
                ("encoder", 0.5),
                ("encoder[0]", 0.2),
                ("encoder[1]", 2.0),
                ("encoder.embedding", 1.0),
            ],
            0,
        ),
    ],
)
def test_a_path_that_changes_no_rate_is_named(
    tiny: Tiny, pairs: list[tuple[str, float]], idle: int
) -> None:
    (warning,) = tiny(*FIRST, groups(*pairs)).plan().warnings
    assert warning.path == f"training.parameter_groups[{idle}].blocks"
    assert "changes no parameter's learning rate" in warning.message
