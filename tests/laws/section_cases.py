"""Recipes for the laws of the sections' settings, and all that such a setting may change."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import soundfile
import torch
from PIL import Image
from pyarrow import parquet
from safetensors.torch import load_file

from composer.checks.planner import plan
from composer.data.tokenizer_kinds import Bpe
from composer.errors import Fault, RecipeError
from composer.inference.decode import decode_all, make_rows
from composer.inference.run import decoding_settings, open_run
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.recipe import Recipe, load_text
from composer.training.train import train

TASK = "{copy: {symbols: 5, max_length: 6, train: 40, val: 10, test: 5}}"
TRAINING = """training: {max_steps: 4, validate_every: 2, tokens_per_batch: 60}
logging: {wandb: false}
"""
MODEL = "model: {width: 8, encoder: [rnn], decoder: [rnn, cross_attention]}\n"
SIZED = (
    "{width: 8, encoder: [{grid: {columns: 2, max_length_ratio: 2}}, cgru, {select_column: 0}], "
    "decoder: [rnn, {cross_attention: {}}]}"
)
STORIES = """model:
  width: 8
  encoders: {question: [rnn], story: [sum_columns]}
  decoder: [rnn, cross_attention: {from: story}, cross_attention: {from: question}]
"""
LINES = (
    "1 Mary moved to the bathroom.\n2 Bill went to the hallway.\n3 Where is"
    " Mary?\tbathroom,hallway\t1\n"
)
NAMES = ("Mary", "Ann", "John", "Fred", "Julie", "Eve", "Sam", "Ruth")
SPACES = "{word: {split: spaces, joint: true}}"
FILES = "{train: {source: a.txt, target: b.txt}, val: 2, test: 2}"
RECIPES = {
    "pairs": f"recipe: 1\ndata: {{generate: {TASK}}}\n{MODEL}{TRAINING}",
    "language": (
        "recipe: 1\ndata: {generate: {counting: {strings: 5, max_length: 6, train: 40, val: 10,"
        f" test: 5}}}}}}\nmodel: {{width: 8, decoder: [rnn]}}\n{TRAINING}"
    ),
    "stories": (
        "recipe: 1\ndata: {babi: {folder: ., tasks: [1], val: 0.4, words: 6}, tokenizer:"
        f" {SPACES}}}\n{STORIES}{TRAINING}"
    ),
    "files": f"recipe: 1\ndata: {{parallel: {FILES}}}\n{MODEL}{TRAINING}",
    "table": (
        "recipe: 1\ndata: {table: {train: s.tsv, val: 3, target: text, source: {column: sound,"
        " kind: audio, rate: 2000, features: {log_mel: {bands: 4}}}}}\nmodel: {width: 8,"
        f" encoder: [rnn], decoder: [rnn, cross_attention]}}\n{TRAINING}"
    ),
    "text": (
        "recipe: 1\ndata: {text: {train: a.txt, val: b.txt, test: b.txt}}\n"
        f"model: {{width: 8, decoder: [rnn]}}\n{TRAINING}"
    ),
}
DATA = tempfile.TemporaryDirectory(prefix="sections-")
NOT_COMPARED = ("minutes", "train/tokens_per_second", "train/level", "train/sequence_error")


def recipe_of(folder: Path, kind: str, *overrides: str) -> Recipe:
    """Return one of RECIPES with overrides; its data are copied or linked into the folder."""
    for path in data_folder().iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
        elif not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)
    return load_text(RECIPES[kind], folder / "recipe.yaml", overrides)


@cache
def data_folder() -> Path:
    """Write what the recipes read, once for a process."""
    folder = Path(DATA.name)
    for split in ("train", "test"):
        stories = [LINES.replace("Mary", name) for name in NAMES]
        (folder / f"qa1_small_{split}.txt").write_text("".join(stories))
    texts = [" ".join("Abcd efgh"[: 1 + row % 7]) for row in range(30)]
    (folder / "a.txt").write_text("\n".join(texts))
    (folder / "c.txt").write_text("\n".join(" ".join("123456"[: 1 + row % 6]) for row in range(30)))
    (folder / "b.txt").write_text("\n".join(text[::-1] for text in texts))
    write_more(folder, texts)
    return folder


def write_more(folder: Path, lines: Sequence[str]) -> None:
    """Write more files into a folder: tables, a data set in the hub's form, other stories."""
    (folder / "g.txt").write_text("\n".join([*lines[:20], *lines[:9]]))
    (folder / "h.txt").write_text(lines[0])
    (folder / "d.txt").write_text("\n".join(f"A-b {line}" for line in lines))
    for name, last in (("t", 30), ("u", 20)):
        columns = {"a": lines[:last], "b": [line[::-1] for line in lines[:last]]}
        rows = [",".join(row) for row in zip(*columns.values(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["a,b", *rows]))
        (folder / f"set_{name}").mkdir()
        for split, size in (("train", last), ("validation", 9)):
            table = arrow.table({key: column[:size] for key, column in columns.items()})
            parquet.write_table(table, folder / f"set_{name}" / f"{split}.parquet")
    objects = [json.dumps({"a": line, "b": line[::-1]}) for line in lines]
    (folder / "e.jsonl").write_text("".join(f"{line}\n" for line in objects))
    for name, size in (("a", 300), ("b", 310)):
        tokenizer = Bpe(size=size).train({"target": lines})[0]
        (folder / f"{name}.json").write_text(tokenizer.to_str())
    random, media = np.random.default_rng(1), folder / "media"
    media.mkdir()
    for name, count in (("s", 20), ("v", 15)):
        rows = ["sound\tlouder\timage\ttext"]
        for number in range(count):
            names = [f"media/{name}{number}{end}" for end in (".wav", "l.wav", ".png")]
            sound = random.normal(size=300 + 40 * (number % 5)) / 9
            soundfile.write(folder / names[0], sound, 2000)
            soundfile.write(folder / names[1], sound * np.linspace(1, 2, len(sound)), 2000)
            Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(
                folder / names[2]
            )
            rows.append("\t".join((*names, lines[number])))
        (folder / f"{name}.tsv").write_text("\n".join(rows))
    (folder / "more").mkdir()
    for file in list(folder.glob("qa1_*.txt")):
        text = file.read_text().replace("Bill", "Sue")
        (folder / "more" / file.name).write_text(text)
        (folder / file.name.replace("qa1", "qa2")).write_text(text)


def faults_of(recipe: Recipe) -> list[Fault]:
    """The faults of a recipe, or else its warnings."""
    try:
        return list(plan(recipe).warnings)
    except RecipeError as error:
        return list(error.faults)


def signature(recipe: Recipe, folder: Path) -> Mapping[str, Any]:
    """All that a setting may change: data, scores, weights, and what is decoded with its own
    settings.
    """
    run = folder / "run"
    train(recipe, run, data=folder)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    opened = open_run(run)
    settings, encoded = decoding_settings(recipe), torch.arange(4, 8).tolist()
    size = min(opened.tokenizers.sizes.values())
    ids = [[min(index, size - 1) for index in encoded[:length]] for length in (1, 3)]
    sources = {
        key: [example_row(opened.model, key, row) for row in ids] for key in opened.model.encoders
    }
    answers = decode_all(
        [opened.model], make_rows(sources, None if sources else [(4,), (5,)]), settings
    )
    record, scores = json.loads((run / "run.json").read_text()), opened.evaluate("test", folder)
    return {
        "rows": [
            {key: value for key, value in row.items() if key not in NOT_COMPARED} for row in rows
        ],
        "weights": load_file(run / "model.safetensors"),
        "answers": [(best.ids, best.ended) for best, *_ in answers],
        "data": {
            key: record["data"][key]
            for key in ("pairs", "train_pairs_used", "sha256", "val_sha256")
        },
        "scores": {
            key: value for key, value in scores.items() if not key.endswith(("second", "measured"))
        },
    }


def example_row(model: EncoderDecoder, key: str, ids: list[int]) -> Any:
    """A row of a source: ids, a story's grid of them, or features."""
    if key == "story":
        return torch.tensor([ids + [0] * (6 - len(ids))])
    embedding = model.readers()[key].embedding
    return torch.ones(len(ids), embedding.embedding_dim) if embedding.reads_features else ids


def same(one: Any, other: Any) -> bool:
    """Whether two signatures are equal, to the last bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(
            same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)
