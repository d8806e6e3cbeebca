"""The model card, as the hub's own library reads it."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard_data import eval_results_to_model_index

from composer.hub.model_card import cell, code, code_cell, fenced, languages, model_card
from composer.recipe.recipe import Recipe, load
from tests.run_records import record_of

ROOT = Path(__file__).parents[2]
FULL = {
    "parameters": 1000,
    "scores": {
        "test/bleu": 30.5,
        "test/loss": 1e-5,
        "test/perplexity": float("inf"),
        "val/bleu": 31.0,
    },
    "versions": {"sacrebleu": "0.0.1"},
    "git": {"commit": "abc", "dirty": True},
    "start_from": "/home/ann/base",
    "data": {"pairs": {"train": 5}, "sha256": "ef" * 32},
    "minutes": 1.5,
}


@cache
def recipe(name: str) -> Recipe:
    return load(ROOT / "recipes" / name)


def head(text: str) -> ModelCardData:
    data = ModelCard(text).data
    assert isinstance(data, ModelCardData)
    return data


def test_huggingface_hub_parses_the_card(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    data = head(text)
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert data.license == "mit"
    assert data.library_name == "seqcomposer"
    assert data.model_name == "untrained"
    results = data.eval_results
    assert results
    message = {f"test/{item.metric_type}": item.metric_value for item in results}
    assert message == {
        name: value for name, value in record["scores"].items() if name.startswith("test")
    }
    index = eval_results_to_model_index("untrained", results)
    assert len(index) == 1


def test_scores_are_numbers_in_the_metadata() -> None:
    results = head(model_card(recipe("quickstart.yaml"), record_of(**FULL))).eval_results
    assert results
    assert {item.metric_type: item.metric_value for item in results} == {"bleu": 30.5, "loss": 1e-5}
    assert {item.dataset_split for item in results} == {"test"}


def test_without_test_scores_the_card_has_validation_scores_and_a_warning() -> None:
    text = model_card(recipe("quickstart.yaml"), record_of(scores={"val/bleu": 31.0}))
    results = head(text).eval_results
    assert results
    assert [item.dataset_split for item in results] == ["validation"]
    assert "too good" in text
    assert "too good" not in model_card(recipe("quickstart.yaml"), record_of(**FULL))


def test_unknown_metadata_is_left_out() -> None:
    text = model_card(recipe("quickstart.yaml"), record_of())
    data = head(text)
    assert data.license is None
    assert not data.eval_results
    assert data.datasets is None
    assert "Nothing was measured" in text


def test_of_a_language_model_nothing_is_said_of_decoding_or_pairs() -> None:
    text = model_card(
        recipe("language_models/zaremba2014_small.yaml"),
        record_of(**{**FULL, "checkpoints_used": {"how": "best", "checkpoints": []}}),
    )
    assert "\nThe weights are those of the best checkpoint.\n" in text
    assert "\n| texts, train | 5 |\n" in text
    assert "\nseqcomposer generate runs/zaremba2014-small\n" in text
    assert "pairs" not in text.partition("## Data")[2]
    assert "at most 256 tokens" not in text  # it is trained in windows


def test_signatures_are_those_of_the_run() -> None:
    full = {**FULL, "signatures": {"test/bleu_signature": "nrefs:1|case:mixed"}}
    signed = model_card(recipe("quickstart.yaml"), record_of(**full))
    assert "- BLEU (test): `nrefs:1|case:mixed`" in signed
    assert "nrefs:1" not in model_card(recipe("quickstart.yaml"), record_of(**FULL))


@pytest.mark.parametrize("gpus", [[], ["H200", "H200"]])
def test_the_devices_are_those_that_trained(gpus: list[str]) -> None:
    text = model_card(recipe("quickstart.yaml"), record_of(machine={"gpus": gpus, "cpu": "Xeon"}))
    assert f"\n| device | {', '.join([*gpus, 'Xeon'])} |\n" in text


def test_languages_come_from_the_names_of_the_data() -> None:
    assert languages(recipe("quickstart.yaml")) == ["en", "de"]
    assert (
        head(model_card(recipe("quickstart.yaml"), record_of())).to_dict()["pipeline_tag"]
        == "translation"
    )


PARTS = ("sweeps", "fragments")
RECIPES = [
    path for path in sorted((ROOT / "recipes").glob("*/*.yaml")) if path.parent.name not in PARTS
]


@pytest.mark.parametrize("path", RECIPES[::25], ids=lambda path: path.stem)
def test_every_kind_of_recipe_has_a_card(path: Path) -> None:
    read = load(path)
    text = model_card(read, record_of(**FULL))
    assert head(text).model_name == read.name
    assert "/home/ann" not in text
    assert "abc, with changes" in text
    assert "```mermaid\n" in text


def test_text_cannot_leave_its_code_block_or_table_cell() -> None:
    assert fenced("a\n```\nb", "yaml") == "````yaml\na\n```\nb\n````\n"
    assert cell("a|b\nc") == "a\\|b c"
    text = model_card(
        recipe("quickstart.yaml"), record_of(**{**FULL, "versions": {"a|b": "c\nd|e"}})
    )
    assert "\n| version, a\\|b | c d\\|e |\n" in text


@pytest.mark.parametrize("name", ["a`b", "``", "`<b>`|", "a|b"])
def test_no_name_leaves_its_span_of_code(name: str) -> None:
    longest = max(map(len, re.findall("`+", name)), default=0)
    fence = re.match("`+", code(name))
    assert fence is not None
    assert len(fence[0]) == longest + 1
    assert (
        code(name).strip("`").strip(" ") == name.strip("`")
        or code(name) == f"{fence[0]} {name} {fence[0]}"
    )
    assert "|" not in code_cell(name).replace("\\|", "")
    assert not re.search(r"(?<!\\)[`<\[|]", cell(name))
