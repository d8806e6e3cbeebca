"""Encoding of splits: pairs left out are counted, and test lines are never left out."""

from __future__ import annotations

import pytest

from composer.data import samples, sources
from composer.data.columns import TextColumn
from composer.data.encoding import LEFT_OUT_OF_SCORES, MAX_TOKENS, load_data
from composer.data.sources import DataSource
from composer.errors import DataError
from composer.recipe.recipe import load
from composer.training.dry_run import dry_run
from composer.training.train import train


@pytest.mark.parametrize("split", ["val", "test", "news"])
@pytest.mark.parametrize("blank", ["source", "target", "both"])
def test_a_split_without_text_is_a_fault(split, blank, make, texts):
    sides = {"source": ["a b", "a"], "target": ["x", "y"]}
    empty = sides | {side: ["", "  "] for side in sides if blank in (side, "both")}
    parts = {"train": texts(**sides), "val": texts("val", **sides), "test": texts("test", **sides)}
    news = texts("news", **(empty if split == "news" else sides))
    parts |= {"test_sets": {"news": news}} | (
        {} if split == "news" else {split: texts("none", **empty)}
    )
    recipe = make({"parallel": parts})
    for check in (load_data, lambda recipe, folders: dry_run(DataSource(recipe, folders), {})):
        with pytest.raises(DataError) as caught:
            check(recipe, recipe.folders())
        (fault,) = caught.value.faults
        assert fault.path == f"data.parallel.{'test_sets.' if split == 'news' else ''}{split}"
        assert fault.message.startswith(f"none of the 2 pairs of {split} has text on every side")


def test_pairs_that_are_left_out_are_counted(make, texts):
    train = texts(source=["a b", "", "c", "a b c d e f", "b"], target=["x", "y", " ", "z", "x y z"])
    test = texts("test", source=["", "a b c d e f g h i"], target=["", "x"])
    recipe = make({"parallel": {"train": train, "test": test}, "max_length": 5})
    data = load_data(recipe, recipe.folders())
    assert data.notes[:2] == [
        "left out 2 of 5 training pairs with an empty side",
        "left out 1 of 5 training pairs longer than 5 tokens",
    ]
    assert f"1 of 2 test pairs have an empty side; {LEFT_OUT_OF_SCORES}" in data.notes
    assert data.train.originals.tolist() == [0, 4]
    assert len(data.splits["test"]) == 2
    assert data.val is None
    decoded = [data.tokenizers.decode("target", [data.train.target[row]])[0] for row in range(2)]
    assert decoded == ["x", "x y z"]
    assert list(data.splits["test"].lines) == ["", "x"]


def test_of_a_line_without_end_the_first_tokens_are_measured(make, texts):
    train = texts(source=["a b", "c"], target=["x", "y"])
    val = texts("val", source=["a", "b " * 600_000], target=["x", "y"])
    recipe = make({"parallel": {"train": train, "val": val}})
    data = load_data(recipe, recipe.folders())
    assert data.val.sources["source"].lengths().tolist() == [1, MAX_TOKENS]
    assert "of 1 of 2 val pairs only the first 10,000 tokens are measured" in data.notes


@pytest.mark.parametrize(("extra", "counted"), [(0, 0), (1, 1)])
def test_a_line_of_just_the_measured_tokens_is_not_counted_as_cut(extra, counted, make, texts):
    train = texts(source=["a b", "c"], target=["x", "y"])
    val = texts("val", source=["a", "b " * (MAX_TOKENS + extra)], target=["x", "y"])
    recipe = make({"parallel": {"train": train, "val": val}})
    data = load_data(recipe, recipe.folders())
    assert data.val.sources["source"].lengths().tolist() == [1, MAX_TOKENS]
    assert len([note for note in data.notes if "measured" in note]) == counted


def test_max_length_counts_eos(make, texts):
    train = texts(source=["a b c d"], target=["a b c d e"])
    for longest, count in ((6, 1), (5, 0)):
        recipe = make({"parallel": {"train": train}, "max_length": longest})
        if count:
            assert len(load_data(recipe, recipe.folders()).train) == 1
        else:
            with pytest.raises(DataError, match="none of the 1 training pairs is left"):
                load_data(recipe, recipe.folders())


def test_a_target_of_another_length_than_the_output_is_refused(make, texts):
    train = texts(source=["a", "b"], target=["x", "x y"])
    recipe = make(
        {"parallel": {"train": train}},
        {"encoder": ["rnn"], "decoder": ["rnn"], "output": {"length": 1}},
    )
    with pytest.raises(
        DataError, match=r"answers have 1 token here, and that of line 2 of .* has 2: `x y`"
    ):
        load_data(recipe, recipe.folders())


def test_an_unknown_token_under_a_fixed_vocabulary_is_refused(make, texts):
    train = texts(source=["01 10", "01 ; 11"], target=["01", "11"])
    recipe = make({"parallel": {"train": train}, "tokenizer": {"bits": {"size": 2, "marks": []}}})
    with pytest.raises(DataError, match=r"`bits` does not know `;` in line 2 of .*: `01 ; 11`"):
        load_data(recipe, recipe.folders())


def test_an_existing_tokenizer_is_not_trained_again(make, texts):
    recipe = make(
        {
            "parallel": {
                "train": texts(source=["a"], target=["b"]),
                "test": texts("t", source=["z"], target=["b"]),
            }
        }
    )
    first = load_data(recipe, recipe.folders())
    second = load_data(recipe, recipe.folders(), first.tokenizers, ["test"])
    assert second.tokenizers is first.tokenizers
    assert second.train is None
    assert "train" not in second.pairs
    assert second.splits["test"].target[0] == first.train.target[0]
    assert second.notes == ["100% of the tokens of test source are unknown to the tokenizer"]


def test_the_hash_of_encoded_data_changes_with_the_text(make, texts):
    recipe = make(
        {"parallel": {"train": texts(source=["a", "b"], target=["b", "a"])}, "tokenizer": "char"}
    )
    first = load_data(recipe, recipe.folders())
    assert load_data(recipe, recipe.folders()).train.sha256 == first.train.sha256
    texts(source=["a", "b"], target=["b", "b"])
    assert load_data(recipe, recipe.folders(), first.tokenizers).train.sha256 != first.train.sha256


def test_lowercase_applies_to_ids_and_not_to_the_texts(make, texts):
    recipe = make(
        {
            "parallel": {"train": texts(source=["A b"], target=["Ä"])},
            "lowercase": True,
            "tokenizer": "char",
        }
    )
    data = load_data(recipe, recipe.folders())
    assert data.tokenizers.decode("target", [data.train.target[0]]) == ["ä"]
    assert data.pairs["train"][0] == {"source": "A b", "target": "Ä"}


def test_pairs_that_the_check_of_a_task_generates_are_not_generated_again(make, monkeypatch):
    recipe, calls, generate = make({"generate": "copy"}), [], sources.generate_pairs

    def count(recipe, split, *args, **changes):
        calls.append(split)
        return generate(recipe, split, *args, **changes)

    monkeypatch.setattr(sources, "generate_pairs", count)
    monkeypatch.setattr(samples, "DRAWN_PAIRS", 5)
    sampled = samples.read_sample(
        sources.DataSource(recipe, []), needs_sizes=False
    ).source.all_pairs()
    assert sorted(calls) == ["test", "train", "val"]
    assert len(sampled["train"]) == 5
    assert sampled["val"] == generate(recipe, "val")


def test_a_sample_of_files_is_read_once(make, texts, monkeypatch):
    lines = [str(number) for number in range(9)]
    recipe = make({"parallel": {"train": texts(source=lines, target=lines)}, "tokenizer": "char"})
    sample, reads = sources.DataSource(recipe, recipe.folders()).pairs("train").sample(2, 2), []
    monkeypatch.setattr(TextColumn, "read", lambda column, rows: reads.append(rows))
    assert [*sample.sides["source"]] == [*sample.sides["target"]] == ["0", "1", "2", "8"]
    assert not reads


def test_a_training_checks_and_opens_each_file_once(texts, tmp_path, monkeypatch):
    texts("train", source=["a", "b"], target=["b", "a"])
    texts("val", source=["a"], target=["b"])
    files = (
        "{train: {source: train.source, target: train.target}, val: {source: val.source, target:"
        " val.target}}"
    )
    model = "{width: 4, encoder: [rnn], decoder: [{rnn: {initial_state: encoder}}]}"
    text = f"recipe: 1\nname: once\ndata: {{tokenizer: char, parallel: {files}}}\nmodel: {model}\n"
    text += "training: {max_steps: 1}\nlogging: {wandb: false}\ntrainer: {accelerator: cpu}\n"
    (tmp_path / "once.yaml").write_text(text)
    calls: list[str] = []

    def count(name: str, real):
        def counted(recipe, *args):
            calls.append(" ".join([name, *(arg for arg in args if isinstance(arg, str))]))
            return real(recipe, *args)

        monkeypatch.setattr(f"composer.data.sources.{name}", counted)

    count("check_files", sources.check_files)
    count("open_pairs", sources.open_pairs)
    train(load(tmp_path / "once.yaml"), run=tmp_path / "first")
    assert sorted(calls) == ["check_files", "open_pairs train", "open_pairs val"]
    # a reproduction also compares its data with the run's
    calls.clear()
    train(load(tmp_path / "first" / "recipe.yaml"), run=tmp_path / "second")
    assert sorted(calls) == ["check_files", "open_pairs train", "open_pairs val"]
