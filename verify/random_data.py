"""Random data for recipes: generated tasks, files of pairs, texts and stories, and a tokenizer that
reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from verify.random_settings import VALUES, choice, definitions, one_in, optional, settings_of
from verify.scene import WIDTH, Draw

LINES = 30
"""Lines of a text file, at most."""
HUB = "set"
"""The folder of a data set in the form of the hub's."""
WEIGHTS = (1, 2, 0.5)
"""How often an epoch has a file."""
ODD_LINES: Mapping[str, Sequence[str]] = {
    "words": ["a man sleeps", "two dogs run", "the cat sees a bird .", "who is it ?", "yes"],
    "blank": ["", "  ", "\t", "\u00a0"],
    "half": ["one", "", "two words", " "],
    "digits": ["0 1 1", "1 0", "9 8 7 6", "3"],
    "numbers": ["12 3 40", "999", "7 07"],
    "bits": ["01 10 11", "00", "11 ; 01"],
    "channels": ["01@-0.50 10", "11@0.00 01@1.00", "00@0.005"],
    "long": ["word " * 60, "w" * 300],
    "special": ["⟨pad⟩ ⟨unk⟩", "⟨eos⟩"],
    "unseen": ["\u200b", "\u0301", "\u3000", "￭ ￭"],
    "single": ["x"],
}
"""What a file is made of now and then, whatever else it should hold: blank lines, long ones,
special tokens.
"""
TEXTS: Mapping[str, Sequence[str]] = {
    "words": ("the", "cat", "sat", "it's", "no,", "yes.", '"quoted"', "1,000", "A"),
    "letters": ("a", "b", "c", "d"),
    "scripts": ("größe", "naïve", "слово", "言葉", "مرحبا", "👩‍🚀", "e\u0301"),
    "numbers": tuple(map(str, range(WIDTH))),
    "bits": ("01", "11", "00", "10"),
}
"""What the lines of a text file are made of."""


@st.composite
def generated(draw: Draw, with_source: bool, files: dict[str, str]) -> dict[str, Any]:
    """A generated task, of few and short lines, and mostly a tokenizer that can read it."""
    silent = ["counting", "dynamic_ngrams"]
    words = [
        word for word in definitions()["tasks"]["properties"] if with_source == (word not in silent)
    ]
    word = draw(
        st.sampled_from(
            sorted(definitions()["tasks"]["properties"]) if draw(one_in(12)) else sorted(words)
        )
    )
    task = draw(settings_of(f"tasks.{word}"))
    known = definitions()[f"tasks.{word}"]["properties"]
    small = {
        key: VALUES[key]
        for key in ("train", "val", "test", "min_length", "max_length", "maximum")
        if key in known
    }
    task = {key: draw(st.sampled_from(values)) for key, values in small.items()} | task
    return {
        "generate": {word: task},
        "tokenizer": draw(tokenizer_for(task_text(word), task, files)),
    }


def task_text(word: str) -> str:
    """Return what the lines of a task are made of."""
    properties = definitions()[f"tasks.{word}"]["properties"]
    if "bits" in properties or word == "dynamic_ngrams":
        return "bits"
    return "numbers" if "cells" in properties else "words"


@st.composite
def tokenizer_for(
    draw: Draw, text: str, task: Mapping[str, Any], files: dict[str, str]
) -> dict[str, Any]:
    """A tokenizer, mostly one that can read such lines."""
    if draw(one_in(12)):
        return draw(choice("tokenizers"))
    if draw(one_in(12)):
        files["tokenizer.json"] = tokenizer_file(text)
        return {"file": "tokenizer.json"}
    if text == "bits" and not draw(one_in(4)):
        numbers = draw(st.booleans()) if "share" not in task else True
        return {"bits": {"size": task.get("bits", 2), "numbers": numbers, "marks": [";", "?"]}}
    if text == "numbers" and not draw(one_in(4)):
        return {"integers": {"below": task.get("cells", WIDTH)}}
    word = draw(st.sampled_from(["word", "char", "byte", "bpe", "unigram"]))
    return {word: draw(settings_of(f"tokenizers.{word}"))}


@st.composite
def parallel(draw: Draw, sides: Sequence[str], files: dict[str, str]) -> dict[str, Any]:
    """Text files, line by line, or tables, in parts, packed or not; and what of their pairs is left
    out.
    """
    text = draw(st.sampled_from(sorted(TEXTS)))
    random = Random(draw(st.integers(0, 10_000)))
    form = draw(st.sampled_from(["txt", "txt", "tsv", "csv", "jsonl", "hub"]))
    columns, ends = [*sides, "target"], ["", "", "", ".gz"] if form not in ("csv", "hub") else [""]
    splits: dict[str, Any] = {"train": write_split(random, "train", columns, text, form, files)}
    if form != "hub" and draw(one_in(4)):
        form_of_parts = st.sampled_from(["txt", "jsonl", form])
        splits["train"] = [splits["train"]] + [
            write_split(
                random,
                f"part{n}",
                columns,
                text,
                draw(form_of_parts),
                files,
                draw(st.sampled_from(ends)),
            )
            | draw(optional({"weight": WEIGHTS}, 2))
            for n in range(draw(st.integers(0, 2)))
        ]
    for name in ("val", "test", *(["test_sets"] if form != "hub" and draw(one_in(6)) else [])):
        how = draw(st.sampled_from(["number", "split", "none"])) if name != "test_sets" else "split"
        if how == "number":
            splits[name] = draw(st.sampled_from([1, 4]))
        elif how == "split":
            splits[name] = write_split(
                random, name, columns, text, form, files, draw(st.sampled_from(ends))
            )
            if form != "hub" and draw(one_in(6)):
                splits[name]["target"] = [splits[name]["target"]] * 2
    if "test_sets" in splits:
        splits["test_sets"] = {"news": splits["test_sets"]}
    data = {"parallel": splits} if form != "hub" else {"hub": hub(splits)}
    if form != "hub":
        splits |= draw(
            optional({"max_ratio": (1.5, 3), "deduplicate": (True,), "decontaminate": (True,)}, 6)
        )
    return data | {"tokenizer": draw(tokenizer_for(text, {}, files))}


def hub(splits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a data set of the hub with these splits, in a folder; it holds nothing
    out.
    """
    named = {
        name: Path(split["file"]).stem for name, split in splits.items() if isinstance(split, dict)
    }
    columns = {side: column for side, column in splits["train"].items() if side != "file"}
    return {"id": HUB, "val": None, "test": None, **named, **columns}


def write_split(
    random: Random,
    split: str,
    columns: Sequence[str],
    text: str,
    form: str,
    files: dict[str, str],
    end: str = "",
) -> dict[str, Any]:
    """Add the files of a split, and return its keys in the recipe."""
    count = random.choice((1, 2)) if random.random() < 0.1 else random.randint(LINES // 2, LINES)
    odd = {
        column: random.choice([*ODD_LINES.values()]) for column in columns if random.random() < 0.04
    }
    rows = [
        {c: random.choice(odd[c]) if c in odd else write_line(random, text) for c in columns}
        for _ in range(count)
    ]
    if form == "tsv":
        rows = [{column: line.replace("\t", " ") for column, line in row.items()} for row in rows]
    if form == "txt":
        names = {column: f"{split}.{column}{end}" for column in columns}
        files |= {names[column]: "".join(f"{row[column]}\n" for row in rows) for column in columns}
        return names
    if form == "hub":
        split, form = f"{HUB}/{'validation' if split == 'val' else split}", "jsonl"
    name = f"{split}.{form}{end}"
    if form == "jsonl":
        files[name] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        mark = {"tsv": "\t", "csv": ","}[form]
        lines = [columns, *(row.values() for row in rows)]
        files[name] = "".join(
            mark.join(quoted(cell, form) for cell in line) + "\n" for line in lines
        )
    return {"file": name, **{column: column for column in columns}}


def quoted(cell: str, form: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if form == "csv" else cell


def write_line(random: Random, text: str) -> str:
    """Return a line of a few words, now and then a blank one."""
    return " ".join(
        random.choices(
            TEXTS[text], k=random.choice((0, 1, 2, 3, 4, 5) if random.random() < 0.2 else (2, 4))
        )
    )


@st.composite
def corpus(draw: Draw, files: dict[str, str]) -> dict[str, Any]:
    """Text without a source: files as a name, a pattern, a list or by name, packed or not, with
    weights.
    """
    text = draw(st.sampled_from(sorted(TEXTS)))
    random = Random(draw(st.integers(0, 10_000)))
    settings = draw(optional({key: VALUES[key] for key in ("unit", "column")}, 2))
    splits = ["train", *(name for name in ("val", "test") if draw(st.integers(0, 4)))]
    return {
        "text": {name: draw(text_files(random, name, text, settings, files)) for name in splits}
        | settings,
        "tokenizer": draw(tokenizer_for(text, {}, files)),
    }


@st.composite
def text_files(
    draw: Draw,
    random: Random,
    split: str,
    text: str,
    settings: Mapping[str, Any],
    files: dict[str, str],
) -> Any:
    """Add the files of a split of a text, and return what names them in the recipe."""
    names = []
    for part in range(draw(st.sampled_from([1, 1, 2, 3]))):
        form = draw(st.sampled_from(["txt", "txt", "txt.gz", "jsonl", "jsonl.gz"]))
        names.append(f"{split}{part}.{form}")
        files[names[-1]] = write_text(random, text, form, settings)
    how = draw(st.sampled_from(["name", "pattern", "list", "names"]))
    if how == "pattern" or (how == "name" and len(names) > 1):
        return f"{split}*"
    weighs = draw(st.booleans()) if split == "train" else draw(one_in(10))
    parts = [
        {"file": name, "weight": draw(st.sampled_from(WEIGHTS))} if weighs else name
        for name in names
    ]
    return (
        names[0]
        if how == "name"
        else parts
        if how == "list"
        else {f"part-{n}": one for n, one in enumerate(parts)}
    )


def write_text(random: Random, text: str, form: str, settings: Mapping[str, Any]) -> str:
    """Return lines, some of them blank, or JSON lines with documents of one line or two."""
    lines = [write_line(random, text) for _ in range(random.randint(LINES // 2, LINES))]
    if random.random() < 0.04:
        lines = random.choice([*ODD_LINES.values()])
    if not form.startswith("jsonl"):
        return "\n".join(lines) + random.choice(("\n", ""))
    rows = (line if random.random() < 0.8 else f"{line}\n{line}" for line in lines)
    column = settings.get("column", "text")
    nested = [{"a": {"b": row}} if column == "a.b" else {column: row} for row in rows]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in nested)


def tokenizer_file(text: str) -> str:
    """Return a tokenizer of another model, of the words of a kind of text."""
    words = ["[UNK]", *TEXTS[text], "."]
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    return str(tokenizer.to_str())


@st.composite
def babi(draw: Draw, files: dict[str, str]) -> dict[str, Any]:
    """Stories of one task or two, with facts."""
    random = Random(draw(st.integers(0, 10_000)))
    tasks = draw(st.sampled_from([[1], [1, 4]]))
    has_facts = random.random() < 0.8
    for task in tasks:
        for split in ("train", "test"):
            files[f"babi/qa{task}_random_{split}.txt"] = "".join(
                write_story(random, has_facts) for _ in range(12)
            )
    settings = {"folder": "babi", "tasks": tasks, "words": draw(st.sampled_from([3, 4]))}
    settings |= draw(optional({"val": (0.0, 0.3), "sentences": (2, 9)}, 2))
    size = draw(st.sampled_from([10, 60]))
    return {"babi": settings, "tokenizer": {"word": {"split": "spaces", "size": size}}}


def write_story(random: Random, has_facts: bool) -> str:
    """Return a story of a few sentences, with a question after each two of them, and perhaps the
    facts about it.
    """
    names, places = ("mary", "john"), ("kitchen", "garden", "office")
    lines: list[str] = []
    for _ in range(random.randint(1, 3)):
        for _ in range(2):
            lines.append(
                f"{len(lines) + 1} {random.choice(names)} entered {random.choice(places)}."
            )
        facts = " ".join(str(len(lines) - back) for back in range(random.randint(1, 2)))
        answer = random.choice(places) + (f"\t{facts}" if has_facts else "")
        lines.append(f"{len(lines) + 1} Where is {random.choice(names)}?\t{answer}")
    return "\n".join(lines) + "\n"
