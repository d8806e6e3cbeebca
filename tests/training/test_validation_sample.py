"""What is decoded at a validation: a sample under a name of its own, or everything, as an
evaluation does.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import composer
from composer.data.columns import PackedColumn
from composer.errors import RecipeError, RunError
from composer.metrics.table import Metric
from composer.run_dir import RunDir, read_metrics
from composer.training.datamodule import RecipeDataModule
from composer.training.train import train
from tests.run_records import change_record
from tests.training.tiny_recipes import Tiny


def trained(
    tiny: Tiny, folder: Path, *overrides: str
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Train; return the rows of the validations, without the last row of the final scores, and
    these.
    """
    result = train(tiny(*overrides), folder)
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if "val/loss" in row]
    return rows, dict(result.scores)


def test_a_sample_has_a_name_of_its_own(tiny: Tiny, tmp_path: Path) -> None:
    rows, scores = trained(tiny, tmp_path / "run", "training.max_steps=4")
    assert all("val_sample/chrf" in row and "val/chrf" not in row for row in rows)
    assert "val_sample/chrf" not in scores
    assert scores["val/chrf"] == composer.evaluate(tmp_path / "run", "val")["val/chrf"]


ALL_LINES = "training.validation_sample.lines=null"
BEAM = "decoding={beam: {size: 2}}"


@pytest.mark.parametrize(
    "overrides",
    [
        (BEAM, "training.early_stopping={metric: val/chrf, patience: null}"),
        (BEAM, ALL_LINES, "training.validation_sample.decoding={beam: {size: 2}}"),
        (ALL_LINES,),
    ],
)
def test_where_all_lines_are_decoded_as_the_recipe_says_the_score_is_that_of_an_evaluation(
    tiny: Tiny, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    rows, scores = trained(tiny, tmp_path / "run", *overrides, "training.max_steps=4")
    assert "val_sample/chrf" not in rows[-1]
    evaluated = composer.evaluate(tmp_path / "run", "val")
    assert rows[-1]["val/chrf"] == scores["val/chrf"] == evaluated["val/chrf"]


def test_all_lines_are_a_sample_where_they_are_decoded_otherwise(
    tiny: Tiny, tmp_path: Path
) -> None:
    rows, _ = trained(tiny, tmp_path / "run", ALL_LINES, BEAM, "training.max_steps=4")
    assert "val_sample/chrf" in rows[-1]
    assert "val/chrf" not in rows[-1]


def test_the_number_of_lines_is_a_setting(tiny: Tiny, tmp_path: Path) -> None:
    few, _ = trained(
        tiny, tmp_path / "few", "training.validation_sample.lines=2", "training.max_steps=4"
    )
    none, _ = trained(
        tiny, tmp_path / "none", "training.validation_sample.lines=0", "training.max_steps=4"
    )
    assert (few[0]["val_sample/exact_match"] * 2).is_integer()
    assert not [key for key in none[0] if key.startswith("val_sample/")]


def test_early_stopping_may_watch_the_sample(tiny: Tiny, tmp_path: Path) -> None:
    goal = "training.early_stopping={metric: val_sample/chrf, goal: 0, patience: null}"
    rows, _ = trained(tiny, tmp_path / "run", goal)
    assert [row["step"] for row in rows] == [4]
    with pytest.raises(RecipeError, match=r"`val_sample/exact_match` is never above 1"):
        tiny("training.early_stopping={metric: val_sample/exact_match, goal: 2}")
    with pytest.raises(
        RecipeError, match="`val_sample/chrf` is never measured: no validation lines are decoded"
    ):
        tiny(
            "training.validation_sample.lines=0",
            "training.early_stopping={metric: val_sample/chrf}",
        )


def test_a_sample_that_is_watched_keeps_its_name(tiny: Tiny, tmp_path: Path) -> None:
    """All lines, decoded as the recipe says, are the sample here: the score that is watched is
    there.
    """
    watch = "training.early_stopping={metric: val_sample/chrf, patience: null}"
    rows, _ = trained(tiny, tmp_path / "run", watch, ALL_LINES, "training.max_steps=4")
    assert "val_sample/chrf" in rows[-1]


def test_a_metric_that_is_watched_is_measured_though_it_suits_little(
    tiny: Tiny, tmp_path: Path
) -> None:
    watch = "training.early_stopping={metric: val_sample/ter, patience: null}"
    rows, scores = trained(tiny, tmp_path / "run", watch, "training.max_steps=4")
    assert "val_sample/ter" in rows[0]
    assert {"val/ter", "test/ter"} <= scores.keys()


def test_a_tokenizer_of_bleu_without_its_package_is_refused_before_anything_begins(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> None:
        raise RuntimeError("Japanese tokenization requires extra dependencies")

    monkeypatch.setattr(Metric, "scorer", missing)
    recipe = tiny("evaluation.bleu_tokenizer=ja-mecab")
    (fault,) = composer.check(recipe)
    assert (fault.code, fault.path) == ("package", "evaluation.bleu_tokenizer")
    assert "on this machine, `ja-mecab` needs the package `sacrebleu[ja]`" in fault.message
    with pytest.raises(RecipeError, match="needs the package"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_metrics_are_a_setting(tiny: Tiny, tmp_path: Path) -> None:
    rows, scores = trained(
        tiny, tmp_path / "run", "evaluation.metrics=[ter]", "training.max_steps=4"
    )
    assert "val_sample/ter" in rows[0]
    assert {"val/ter", "test/ter"} <= scores.keys()
    assert "test/bleu" not in scores


SHORT_AND_LONG = """recipe: 1
data: {parallel: {train: {source: long, target: long}, SPLITS}}
model: {width: 4, encoder: [rnn], decoder: [{rnn: {initial_state: encoder}}]}
training: {max_steps: 1}
decoding: {greedy: {max_length: 6}}
logging: {wandb: false}
"""
SPLIT = "{source: long, target: %s}"


@pytest.mark.parametrize(
    ("splits", "first", "names"),
    [
        (
            f"val: {SPLIT % 'short'}, test: {SPLIT % 'other'}",
            "val",
            ("exact_match", "word_error_rate", "chrf"),
        ),
        (
            f"test: {SPLIT % 'short'}, test_sets: {{more: {SPLIT % 'other'}}}",
            "test",
            ("exact_match",),
        ),
        (
            f"val: {SPLIT % 'other'}, test: {SPLIT % 'short'}",
            "val",
            ("bleu", "chrf", "exact_match"),
        ),
    ],
)
def test_all_splits_of_a_run_have_the_same_metrics(
    splits: str,
    first: str,
    names: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, line in (("long", "a b c d e f"), ("other", "f e d c b a"), ("short", "a b c")):
        (tmp_path / name).write_text(f"{line}\n" * 4, encoding="utf-8")
    file = tmp_path / "recipe.yaml"
    file.write_text(SHORT_AND_LONG.replace("SPLITS", splits), encoding="utf-8")
    result = train(composer.load(file), tmp_path / "run")
    keys = [key.split("/") for key in result.scores]
    of_split = {split: {name for other, name in keys if other == split} for split, _ in keys}
    assert len(of_split) == 2
    assert len({*map(frozenset, of_split.values())}) == 1
    assert {*names} <= of_split[first]
    assert (f"no BLEU: most references of {first} have fewer" in capsys.readouterr().out) == (
        "bleu" not in names
    )
    for split, measured in of_split.items():
        again = composer.evaluate(result.run_dir, split)
        assert {name for name in measured if f"{split}/{name}" not in again} == set()
        assert (f"{split}/bleu" in again) == ("bleu" in names)
    chosen = composer.evaluate(result.run_dir, "test", overrides=["evaluation.metrics=[ter]"])
    assert "test/ter" in chosen
    assert "test/chrf" not in chosen


def test_metrics_in_a_record_that_no_training_has_chosen_are_refused(
    tiny: Tiny, tmp_path: Path
) -> None:
    result = train(tiny("training.max_steps=1"), tmp_path / "run")
    change_record(
        RunDir(result.run_dir), metrics={**asdict(result.record.metrics), "names": ["mood"]}
    )
    with pytest.raises(RunError, match="`metrics` is not what a training writes"):
        composer.evaluate(result.run_dir)


def test_samples_show_what_every_encoder_reads_in_the_order_of_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("zeta", "alpha", "target"):
        (tmp_path / name).write_text(f"a {name} word\n" * 4, encoding="utf-8")
        (tmp_path / f"more-{name}").write_text(f"a {name} word\n" * 5, encoding="utf-8")
    files = "{alpha: alpha, zeta: zeta, target: target}"
    more = "{alpha: more-alpha, zeta: more-zeta, target: more-target}"
    encoders = (
        "{zeta: [rnn], alpha: [rnn]}, decoder: [{rnn: {initial_state: zeta}}, {cross_attention:"
        " {from: alpha}}]"
    )
    recipe = SHORT_AND_LONG.replace(
        "{source: long, target: long}, SPLITS", f"{more}, val: {files}, test: {files}"
    )
    recipe = recipe.replace(
        "encoder: [rnn], decoder: [{rnn: {initial_state: encoder}}]", f"encoders: {encoders}"
    )
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe, encoding="utf-8")
    train(composer.load(file), tmp_path / "run")
    during, _, after = capsys.readouterr().out.partition("evaluating on the val split")
    lines = [
        next(line for line in part.splitlines() if line.startswith("    a "))
        for part in (during, after)
    ]
    assert [" ".join(line.split()) for line in lines] == ["a zeta word a alpha word"] * 2


def test_lines_of_a_packed_file_are_not_unpacked_for_each_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long").write_text("a word of many\n" * 20, encoding="utf-8")
    (tmp_path / "val.gz").write_bytes(gzip.compress(b"a word of many\n" * 5))
    file = tmp_path / "recipe.yaml"
    file.write_text(
        SHORT_AND_LONG.replace("SPLITS", "val: {source: val.gz, target: val.gz}"), encoding="utf-8"
    )
    reads = list[int]()
    read = PackedColumn.read
    monkeypatch.setattr(
        PackedColumn, "read", lambda self, rows: reads.append(len(rows)) or read(self, rows)
    )
    counts = []
    for steps in (1, 4):
        reads.clear()
        overrides = [
            f"training.max_steps={steps}",
            "training.validate_every=1",
            "training.validation_sample.lines=3",
        ]
        train(composer.load(file, overrides), tmp_path / str(steps))
        counts.append(len(reads))
    assert counts[0] == counts[1]


LENGTHS = """recipe: 1
data: {parallel: {train: {source: SIDE, target: SIDE}, val: {source: SIDE, target: SIDE}}}
model: {width: 4, encoder: [rnn], decoder: [{rnn: {initial_state: encoder}}]}
training: {max_steps: 3, validate_every: 1, tokens_per_batch: 60, optimizer: {sgd: {learning_rate: 1e-18}}}
trainer: {limit_val_batches: LIMIT}
decoding: {greedy: {max_length: 6}}
logging: {wandb: false}
"""


def measured_rows(folder: Path, side: str, limit: str, world: int = 1) -> list[int]:
    """Which validation lines are measured, all devices together."""
    file = folder / "recipe.yaml"
    file.write_text(LENGTHS.replace("SIDE", side).replace("LIMIT", limit), encoding="utf-8")
    data, rows = RecipeDataModule(composer.load(file)), list[int]()
    for rank in range(world):
        trainer: Any = SimpleNamespace(
            limit_val_batches=json.loads(limit), global_rank=rank, world_size=world
        )
        trainer.lightning_module = None
        data.trainer = trainer
        data.val_limit = 1.0
        data.setup("fit")
        assert trainer.limit_val_batches == 1.0
        loader: Any = data.val_dataloader()
        encoded = loader.corpus.of_epoch(0)
        rows += [
            int(encoded.originals[row]) for part in loader.sampler for row in part.rows if part.part
        ]
    return sorted(rows)


@pytest.mark.parametrize("limit", ["1", "2", "0.3"])
def test_a_part_of_the_validation_is_a_sample_that_does_not_depend_on_lengths(
    limit: str, tmp_path: Path
) -> None:
    lines = [" ".join("abc"[at % 3] for at in range(2 + 3 * number % 19)) for number in range(40)]
    for name, texts in (("one", lines), ("other", lines[::-1])):
        (tmp_path / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    rows = measured_rows(tmp_path, "one", limit)
    assert 0 < len(rows) < 20
    assert (
        rows
        == measured_rows(tmp_path, "other", limit)
        == measured_rows(tmp_path, "one", limit, world=3)
    )
    assert len({len(lines[row].split()) for row in rows}) > 1
    assert measured_rows(tmp_path, "one", "1.0") == [*range(40)]
    recipe = composer.load(tmp_path / "recipe.yaml", [f"trainer.limit_val_batches={limit}"])
    train(recipe, tmp_path / "run")
    losses = [
        row["val/loss"] for row in read_metrics(tmp_path / "run/metrics.jsonl") if "val/loss" in row
    ]
    assert len(losses) == 3
    assert len({*losses}) == 1
    kept = [lines[row] for row in rows]
    files = [tmp_path / "source", tmp_path / "target"]
    for file in files:
        file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    scores = composer.evaluate(tmp_path / "run", sources=files[:1], targets=files[1:], name="few")
    assert scores["few/loss"] == pytest.approx(losses[0])
