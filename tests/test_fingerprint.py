"""What is trained has the same fingerprints wherever it lies and however its files are written."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
import yaml

from composer.atomic_io import sha256_of_file
from composer.cli.main import main
from composer.data.corpora import open_documents
from composer.data.sources import SPLITS, DataSource, open_pairs
from composer.errors import ComposerError, DataError, RunError
from composer.fingerprint import (
    data_sha256,
    fingerprint_data,
    fingerprints,
    lines_sha256,
    sha256_of_lines,
)
from composer.recipe.cache import is_hash
from composer.recipe.fingerprints import fingerprints as canonical_fingerprints
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir
from composer.training import reproduce
from composer.training.train import train
from tests.run_records import change_record, record_of

SOURCE, TARGET = ["a b", "b  c", "ä ö"], ["x y", "y z", ""]
MODEL = {"width": 8, "encoder": ["rnn"], "decoder": ["rnn", "cross_attention"]}
Make = Callable[..., Recipe]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a recipe with this section `data`, and loads it."""

    def _make(data: Mapping[str, Any], folder: Path = tmp_path, **more: Any) -> Recipe:
        folder.mkdir(exist_ok=True)
        output = {"recipe": 1, "name": "t", "data": dict(data), "model": MODEL, **more}
        (folder / "t.yaml").write_text(yaml.safe_dump(output), encoding="utf-8")
        return load(folder / "t.yaml")

    return _make


def text(path: Path, lines: Sequence[str], end: str = "\n", start: str = "") -> str:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes((start + "".join(line + end for line in lines)).encode())
    return path.name


def of(recipe: Recipe, data: Path | None = None) -> dict[str, str]:
    return fingerprint_data(recipe, recipe.folders(data))


@pytest.fixture
def two(tmp_path: Path, make: Make) -> dict[str, str]:
    """The fingerprints of three pairs in two text files."""
    files = {"source": text(tmp_path / "a.txt", SOURCE), "target": text(tmp_path / "b.txt", TARGET)}
    return of(make({"parallel": {"train": files}}))


def pairs_in(folder: Path, kind: str) -> dict[str, str]:
    """The same three pairs, written otherwise; the split of a recipe."""
    names = {"source": "en", "target": "de"}
    rows = [{"en": en, "de": de} for en, de in zip(SOURCE, TARGET, strict=True)]
    lines = {
        "tsv": ["en\tde", *(f"{row['en']}\t{row['de']}" for row in rows)],
        "json": [json.dumps(row) for row in rows],
        "jsonl": [json.dumps(dict(reversed(row.items())), ensure_ascii=False) for row in rows],
        "csv": ["de,en", *(f'"{row["de"]}",{row["en"]}' for row in rows)],
    }
    if kind in lines:
        return {"file": text(folder / f"rows.{kind}", lines[kind]), **names}
    end, start = {"windows": ("\r\n", ""), "marked": ("\n", "\ufeff")}.get(kind, ("\n", ""))
    return {
        "source": text(folder / "other.1", SOURCE, end, start),
        "target": text(folder / "other.2", TARGET, end),
    }


@pytest.mark.parametrize(
    "kind", ["named otherwise", "windows", "marked", "tsv", "json", "jsonl", "csv"]
)
def test_the_same_lines_are_the_same_data(
    tmp_path: Path, make: Make, two: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    recipe = make({"parallel": {"train": pairs_in(tmp_path, kind)}})
    assert of(recipe) == two
    assert recipe.fingerprints["data"] != two["data"]


def test_the_location_of_files_does_not_change_the_fingerprint(
    tmp_path: Path, make: Make, two: dict[str, str]
) -> None:
    files = pairs_in(tmp_path / "elsewhere", "")
    assert of(make({"parallel": {"train": files}}), tmp_path / "elsewhere") == two
    (tmp_path / "elsewhere").rename(tmp_path / "moved")
    assert of(make({"parallel": {"train": files}}), tmp_path / "moved") == two
    with pytest.raises(DataError, match="--data DIR"):
        of(make({"parallel": {"train": files}}))


DOCUMENTS = "a b\n\nc  d\ne\n"
WRITTEN: dict[str, tuple[str, bytes]] = {
    "named otherwise": ("other.text", DOCUMENTS.encode()),
    "windows": ("a.txt", DOCUMENTS.replace("\n", "\r\n").encode()),
    "marked": ("a.txt", ("\ufeff" + DOCUMENTS).encode()),
    "without the last line feed": ("a.txt", DOCUMENTS.removesuffix("\n").encode()),
    "packed": ("a.txt.gz", gzip.compress(DOCUMENTS.encode())),
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("unit", ["line", "paragraph", "file"])
def test_the_same_documents_are_the_same_data(
    tmp_path: Path, make: Make, unit: str, how: str
) -> None:
    def of_file(name: str, content: bytes, **more: Any) -> str:
        (tmp_path / name).write_bytes(content)
        model = {"width": 8, "decoder": ["rnn"]}
        return of(make({"text": {"train": name, "unit": unit, **more}}, model=model))["data"]

    before = of_file("first.txt", DOCUMENTS.encode())
    assert of_file(*WRITTEN[how]) == before
    assert of_file("a.txt", DOCUMENTS.replace("c", "x").encode()) != before


def test_documents_are_the_same_data_in_any_files(tmp_path: Path, make: Make) -> None:
    def of_text(**settings: Any) -> str:
        return of(make({"text": settings}, model={"width": 8, "decoder": ["rnn"]}))["data"]

    lines = [f"{letter} b" for letter in "acdefg"]
    text(tmp_path / "all.txt", lines)
    text(tmp_path / "1.txt", lines[:2])
    text(tmp_path / "2.txt", lines[2:])
    text(tmp_path / "all.jsonl", [json.dumps({"body": line}) for line in lines])
    text(tmp_path / "turned.txt", [*reversed(lines)])
    known = of_text(train="all.txt")
    assert of_text(train=["1.txt", "2.txt"]) == of_text(train="all.jsonl", column="body") == known
    assert of_text(train="1.txt", val="2.txt") != known
    assert of_text(train="turned.txt") != known


def test_a_table_is_its_content_whatever_its_columns_and_files_are_called(
    tmp_path: Path, make: Make
) -> None:
    def of_table(folder: str, names: tuple[str, str], **more: Any) -> str:
        (tmp_path / folder).mkdir()
        for at in range(4):
            np.save(tmp_path / folder / f"{names[0]}{at}.npy", np.full((2, 3), at, np.float32))
        rows = ["\t".join(names), *(f"{names[0]}{at}.npy\tword" for at in range(4))]
        table = text(tmp_path / folder / "t.tsv", rows)
        column = {"column": names[0], "kind": "vectors", "width": 3, **more}
        data = {"table": {"train": table, "source": column, "target": names[1]}}
        return of(make(data, tmp_path / folder))["data"]

    known = of_table("one", ("vector", "text"))
    assert of_table("other", ("frames", "words")) == known
    assert of_table("masked", ("vector", "text"), spec_augment={"bands": 1}) != known


def test_lines_without_text_are_the_same_however_many_spaces_they_have(
    tmp_path: Path, make: Make, two: dict[str, str]
) -> None:
    files = {
        "source": text(tmp_path / "a.txt", SOURCE),
        "target": text(tmp_path / "b.txt", ["x y", "y z", " "]),
    }
    assert of(make({"parallel": {"train": files}})) == two


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (["a b", "b c", "ä ö"], TARGET),  # one space
        (["b  c", "a b", "ä ö"], ["y z", "x y", ""]),  # another order
        ([*SOURCE, "a"], [*TARGET, "x"]),
        (TARGET, SOURCE),
        (["a b", "b  c", "a\u0308 ö"], TARGET),  # looks the same
    ],
)
def test_other_lines_are_other_data(
    tmp_path: Path, make: Make, two: dict[str, str], source: list[str], target: list[str]
) -> None:
    files = {"source": text(tmp_path / "a.txt", source), "target": text(tmp_path / "b.txt", target)}
    result = of(make({"parallel": {"train": files}}))
    assert {key for key in two if two[key] != result[key]} == {"data", "run"}


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ({"tokenizer": "char"}, {"data", "run"}),
        ({"tokenizer": {"word": {"min_count": 2}}}, {"data", "run"}),
        ({"tokenizer": {"word": {"size": 10_000}}}, set()),  # the default
        ({"lowercase": True}, {"data", "run"}),
        ({"max_length": 10}, {"data", "run"}),
        ({"max_length": 256}, set()),
    ],
)
def test_tokenizer_settings_change_the_fingerprint(
    make: Make, two: dict[str, str], more: dict[str, Any], changed: set[str]
) -> None:
    result = of(make({"parallel": {"train": {"source": "a.txt", "target": "b.txt"}}, **more}))
    assert {key for key in two if two[key] != result[key]} == changed


def test_validation_and_test_data_change_the_fingerprint(
    tmp_path: Path, make: Make, two: dict[str, str]
) -> None:
    files = {"source": "a.txt", "target": "b.txt"}
    val, test = (
        of(make({"parallel": {"train": files, split: dict(files)}})) for split in ("val", "test")
    )
    assert len({two["data"], val["data"], test["data"]}) == 3


def test_a_task_and_files_with_its_pairs_have_one_fingerprint(tmp_path: Path, make: Make) -> None:
    """Drawn or read from files, they are the same data; what of a task changes no pair does not
    count.
    """
    task = {"train": 20, "val": 5, "test": 5, "endless": False}
    drawn = make({"generate": {"copy": task}})
    splits = {}
    for split in SPLITS:
        pairs = open_pairs(drawn, split, ())
        splits[split] = {
            side: text(tmp_path / f"{split}.{side}", lines) for side, lines in pairs.sides.items()
        }
    assert of(make({"parallel": splits})) == of(drawn)
    assert of(make({"generate": {"copy": task | {"test_lengths": [20]}}})) != of(drawn)
    for other in ({"train": 21}, {"seed": 2}, {"min_length": 2}):
        assert of(make({"generate": {"copy": task | other}}))["data"] != of(drawn)["data"]


def test_later_epochs_of_an_endless_task_change_the_fingerprint(make: Make) -> None:
    """Its first epoch is that of a task which is not endless; its other ones are not."""
    task = {"train": 20, "val": 5, "test": 5}
    endless, other = (
        make({"generate": {"copy": {**task, "endless": item}}}) for item in (True, False)
    )
    first, same = (open_pairs(recipe, "train", ()).sides for recipe in (endless, other))
    assert first == same
    assert of(endless)["data"] != of(other)["data"]
    assert of(endless) == of(make({"generate": {"copy": task}}))


STORY = "1 Mary moved to the hall.\n2 John went to the garden.\n3 Where is Mary?\thall\t1\n"


def test_the_fingerprint_of_stories_covers_their_limits_and_facts(tmp_path: Path) -> None:
    def found(story: str, **settings: int) -> str:
        for split in ("train", "test"):
            text(tmp_path / "tasks" / f"qa1_x_{split}.txt", story.splitlines())
        output = {"folder": "tasks", "tasks": [1], "val": 0.0, **settings}
        model = {
            "width": 8,
            "encoders": {"question": ["rnn"], "story": ["sum_columns"]},
            "decoder": [{"cross_attention": {"from": "story"}}],
        }
        data = {"babi": output, "tokenizer": {"word": {"split": "spaces", "joint": True}}}
        (tmp_path / "b.yaml").write_text(
            yaml.safe_dump({"recipe": 1, "data": data, "model": model})
        )
        return of(load(tmp_path / "b.yaml"))["data"]

    first = found(STORY)
    assert found(STORY, words=16) == first
    others = [
        found(STORY, words=15),
        found(STORY, sentences=1),
        found(STORY.replace("hall\t1", "hall\t2")),
    ]
    assert len({first, *others}) == 4


def test_initial_weights_change_the_fingerprint(make: Make, two: dict[str, str]) -> None:
    recipe = make({"parallel": {"train": {"source": "a.txt", "target": "b.txt"}}})
    lines = data_sha256(
        recipe, lines_sha256(recipe, DataSource(recipe, recipe.folders()).all_pairs())
    )
    one = canonical_fingerprints(
        recipe.canonical, recipe.rules, lines, {"weights": "1" * 64, "tokenizer": "2" * 64}
    )
    other = canonical_fingerprints(
        recipe.canonical, recipe.rules, lines, {"weights": "1" * 64, "tokenizer": "3" * 64}
    )
    assert len({item["run"] for item in (two, one, other)}) == 3
    assert len({(item["model"], item["data"]) for item in (two, one, other)}) == 1


def test_precision_changes_the_fingerprint_of_the_run_alone(
    make: Make, two: dict[str, str]
) -> None:
    mixed = of(
        make(
            {"parallel": {"train": {"source": "a.txt", "target": "b.txt"}}},
            training={"precision": "bf16-mixed"},
        )
    )
    assert {name for name in two if mixed[name] != two[name]} == {"run"}


def test_packing_changes_the_fingerprint_of_the_run_alone(make: Make, two: dict[str, str]) -> None:
    packed = of(
        make({"parallel": {"train": {"source": "a.txt", "target": "b.txt"}}, "packing": True})
    )
    assert {name for name in two if packed[name] != two[name]} == {"run"}


def test_unpaired_surrogates_can_be_hashed(tmp_path: Path, make: Make) -> None:
    rows = text(tmp_path / "rows.json", ['{"en": "\\ud800", "de": "x"}', '{"en": "b", "de": "y"}'])
    recipe = make({"parallel": {"train": {"file": rows, "source": "en", "target": "de"}}})
    pairs = {"train": open_pairs(recipe, "train", recipe.folders())}
    assert is_hash(lines_sha256(recipe, pairs))


# ------------------------------------------------------------------------------------------- the
# command

SETTINGS = (
    "data={generate: {copy: {train: 20, val: 4, test: 4, max_length: 4}}}",
    "training.max_steps=1",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    file = tmp_path_factory.mktemp("identity") / "t.yaml"
    output = {
        "recipe": 1,
        "data": {"generate": "copy"},
        "model": MODEL,
        "logging": {"wandb": False},
    }
    file.write_text(yaml.safe_dump(output))
    train(load(file, SETTINGS), file.parent / "run")
    return file.parent / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, words)))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_a_run_and_its_recipe_are_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "fingerprints", run, "--json")
    result = json.loads(out)
    assert (status, result.pop("weights")) == (0, sha256_of_file(run / "model.safetensors"))
    assert result == fingerprints(run / "recipe.yaml") == fingerprints(load(run / "recipe.yaml"))
    assert result["recipe"] == load(run / "recipe.yaml").fingerprints["run"]
    _, out, _ = said(capsys, "fingerprints", run / "recipe.yaml")
    assert [line.split() for line in out.splitlines()] == [
        [name, value] for name, value in result.items()
    ]


def damage(run: Path, how: str) -> None:
    folder = RunDir(run)
    if how == "recipe":
        folder.recipe.write_text(folder.recipe.read_text().replace("width: 8", "width: 9"))
    elif how == "weights":
        folder.weights.write_bytes(folder.weights.read_bytes()[:-1] + b"\x01")
    elif how == "no weights":
        folder.weights.unlink()
    elif how == "incomplete":
        change_record(folder, fingerprints={"model": "1" * 64, "data": "2" * 64, "run": "3" * 64})
    else:
        folder.record.unlink()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("recipe", "not the one that the training wrote"),
        ("weights", "not the one that the training wrote"),
        ("no weights", "these weights are not there"),
        ("incomplete", "`fingerprints` is not what a training writes"),
        ("no run.json", "not a run folder"),
    ],
)
def test_a_changed_run_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], how: str, message: str
) -> None:
    damage(run, how)
    status, out, err = said(capsys, "fingerprints", run)
    assert (status, out) == (2, "")
    assert message in err
    assert "fix: " in err


def test_files_without_a_fingerprint_are_refused(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make({"parallel": {"train": {"source": "no.en", "target": "no.de"}}})
    sweep = Path(__file__).parents[1] / "recipes" / "sweeps" / "attention_scores.yaml"
    for place in (tmp_path / "t.yaml", sweep, tmp_path / "nothing.yaml"):
        status, out, err = said(capsys, "fingerprints", place)
        assert (status, out) == (2, "")
        assert "   fix: " in err
    with pytest.raises(ComposerError):
        fingerprints(tmp_path / "t.yaml")
    with pytest.raises(RunError):
        fingerprints(tmp_path)


RANDOM = {
    "dropout of a block": {"encoder": [{"rnn": {"dropout": 0.1, "layers": 2}}]},
    "dropout of attention": {"encoder": [{"self_attention": {"dropout": 0.1}}]},
    "a dropout": {"encoder": ["rnn", {"dropout": 0.1}]},
    "dropout of everything": {"dropout": 0.1, "encoder": [{"residual": ["feed_forward"]}]},
    "dropout of a state": {
        "encoder": [{"grid": 4}, {"cgru": {"dropout": 0.1}}, {"select_column": 0}]
    },
    "scheduled sampling": {"training": {"scheduled_sampling": {"rate": 0.1}}},
}
NOT_RANDOM = {
    "nothing": {},
    "attention": {"encoder": [{"self_attention": {"heads": 2}}]},
    "two layers": {"encoder": [{"rnn": {"layers": 2}}]},
    "the same noise everywhere": {"training": {"gradient_noise": {"scale": 0.1}}},
}


@pytest.mark.parametrize("name", [*RANDOM, *NOT_RANDOM])
def test_it_is_known_whether_a_training_draws_random_numbers(make: Make, name: str) -> None:
    model = dict((RANDOM | NOT_RANDOM)[name])
    training = model.pop("training", {})
    recipe = make({"generate": "copy"}, model=MODEL | model, training=training)
    state = torch.get_rng_state()
    assert recipe.plan().draws_random_numbers == (name in RANDOM)
    assert torch.equal(torch.get_rng_state(), state)


def test_processes_count_in_the_fingerprint_of_the_run_alone(make: Make) -> None:
    recipe = make({"generate": "copy"})
    lines = data_sha256(
        recipe, lines_sha256(recipe, DataSource(recipe, recipe.folders()).all_pairs())
    )
    one, same, two, four = (
        canonical_fingerprints(recipe.canonical, recipe.rules, lines, processes=count)
        for count in (1, 1, 2, 4)
    )
    assert one == same == fingerprint_data(recipe, recipe.folders())
    assert len({one["run"], two["run"], four["run"]}) == 3
    assert [{**prints, "run": ""} for prints in (two, four)] == [{**one, "run": ""}] * 2


# ------------------------------------------------------------------------------------------- the
# lock


def test_the_lock_is_in_run_json(trained: Path) -> None:
    record = RunDir(trained).read()
    assert is_hash(record.source)
    assert record.machine["threads"] == torch.get_num_threads()
    assert record.machine["processes"] == 1
    assert record.versions["torch"] == torch.__version__
    assert record.plug_ins == {}
    assert (record.initial_weights, record.reproduces) == (None, None)
    assert str(Path.home()) not in json.dumps([record.versions, record.machine, record.plug_ins])


def test_the_source_is_all_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("composer/a.py", "composer/inner/b.py", "blocks/c.py", "composer/data.bin"):
        text(tmp_path / name, ["x"])
    monkeypatch.setattr(reproduce, "HOME", tmp_path)
    hash_source = reproduce.source_sha256.__wrapped__  # without the cache
    result = [hash_source()]
    for name in ("composer/a.py", "composer/inner/b.py", "blocks/c.py"):
        text(tmp_path / name, ["y"])
        result.append(hash_source())
    (tmp_path / "blocks/c.py").rename(tmp_path / "blocks/d.py")
    result.append(hash_source())
    assert len(set(result)) == 5
    text(tmp_path / "composer/data.bin", ["y"])
    assert hash_source() == result[-1]


def test_used_plug_ins_are_recorded(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    text(tmp_path / "site" / "odd_blocks.py", ["1"])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    points = [
        EntryPoint(name, f"odd_blocks:{name}", "seqcomposer.blocks") for name in ("rnn", "unused")
    ]
    monkeypatch.setattr(reproduce, "plug_ins", lambda: points)
    result = reproduce.plug_in_versions(make({"generate": "copy"}))
    code = sha256_of_file(tmp_path / "site" / "odd_blocks.py")
    assert result == {
        "rnn": {"from": "odd_blocks:rnn", "distribution": None, "version": None, "sha256": code}
    }
    assert "odd_blocks" not in sys.modules
    other = {"rnn": {**result["rnn"], "sha256": "a" * 64}}
    assert reproduce.environment_differences(
        record_of(plug_ins=other), record_of(plug_ins=result)
    ) == [f"rnn: odd_blocks:rnn {'a' * 12} there, odd_blocks:rnn {code[:12]} here"]


class OnGpu:
    """What of a trainer the lock reads."""

    strategy = types.SimpleNamespace(root_device=torch.device("cuda", 1))
    device_ids: ClassVar = [1, 3]
    world_size = 4


def test_the_gpus_used_for_training_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    result = reproduce.hardware(cast(Any, OnGpu()))
    assert (result["device"], result["gpus"], result["processes"]) == (
        "cuda",
        ("card 1", "card 3"),
        4,
    )


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({"versions": {"torch": "1"}}, {"versions": {"torch": "2"}}, ["torch: 1 there, 2 here"]),
        (
            {"versions": {"ray": "1", "a": "1"}},
            {"versions": {"a": "1"}},
            ["ray: 1 there, none here"],
        ),
        ({"machine": {"gpus": ["A"]}}, {"machine": {"gpus": []}}, ["gpus: A there, none here"]),
        ({"machine": {"threads": 1}}, {"machine": {"threads": 1}}, []),
        ({}, {"machine": {"threads": 1}, "git": {"commit": "a"}}, []),
        ({"git": None}, {"git": {"commit": "a", "dirty": True}}, []),
        (
            {"git": {"commit": "b"}},
            {"git": {"commit": "a"}},
            ["the commit of the recipe's repository: b there, a here"],
        ),
        ({"git": {"commit": "a", "dirty": True}}, {"git": {"commit": "a", "dirty": False}}, []),
    ],
)
def test_differences_of_two_environments_are_listed(
    then: dict[str, Any], now: dict[str, Any], told: list[str]
) -> None:
    assert reproduce.environment_differences(record_of(**then), record_of(**now)) == told


def test_the_hash_of_documents_is_that_of_their_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one two\nthree\n")
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbfone two\r\nthree")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"one two\nthree\n"))
    (tmp_path / "d.jsonl").write_text('{"text": "one two"}\n{"text": "three"}\n', encoding="utf-8")
    (tmp_path / "other.txt").write_bytes(b"one two\nthree four\n")
    hashes = {
        file.name: sha256_of_lines(open_documents([file], "line", "text"))
        for file in tmp_path.iterdir()
    }
    other = hashes.pop("other.txt")
    assert len({*hashes.values()}) == 1
    assert other not in hashes.values()
