"""Draws random tiny recipes, checks each, trains for two steps what `check` accepts, and prints what training refuses.

    python benchmarks/accepted.py --cases 300 --seed 1

Tokenizers, tasks, files, lengths, outputs and stacks are drawn without regard to whether they fit. What `check`
accepts must train: exit status 1, with the recipe and the error, if one does not.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

import composer
from composer.errors import ComposerError

Recipe = dict[str, Any]
LINES = {
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
TASKS = ["binary_addition", "increment", "ram_access", "ram_increment", "ram_copy", "number_words", "copy", "reverse"]
TASKS += ["duplicate", "sort", "bigram_flip", "dialect", "parentheses", "dynamic_ngrams", "counting", "vector_copy"]
TASKS += ["repeat_copy", "associative_recall", "priority_sort", "binary_multiplication"]
ENCODERS: list[Any] = [
    [{"rnn": {"cell": "gru"}}],
    [{"residual": [{"self_attention": {"heads": 2}}]}, "feed_forward"],
    [{"conv": {"kernel": 3}}],
    [{"rnn": {"cell": "lstm"}}, {"pool": "max"}],
    ["grid", {"cgru": {"kernel": [3, 3]}}, {"select_column": 0}],
    [{"grid": {"max_length_ratio": 1}}, {"cgru": {"kernel": [3, 3]}}, {"select_column": 0}],
]
DECODERS: list[Any] = [
    [{"rnn": {"cell": "lstm"}}, {"cross_attention": {"heads": 1}}],
    [{"recurrent": [{"cross_attention": {"query": "prev.h"}}, {"rnn": {"cell": "gru", "as": "h"}}]}],
    [{"residual": [{"self_attention": {"heads": 2}}]}, {"residual": [{"cross_attention": {"heads": 2}}]}],
    ["no_input", {"cross_attention": {"heads": 1}}],
]
ALONE: list[Any] = [[{"rnn": {"cell": "gru"}}], ["identity"], [{"linear": 4}], [{"conv": {"kernel": 2}}]]


def draw_tokenizer(of: random.Random) -> Any:
    """Draw a tokenizer with its settings."""
    size = of.choice([5, 8, 20, 10_000, 10_000, 10_000])
    pieces, split = of.choice([300, 310, 1000]), of.choice(["marks", "spaces"])
    joint = {"joint": of.random() < 0.5} if of.random() < 0.5 else {}
    marks = {"marks": [";", "?"]} if of.random() < 0.3 else {}
    return of.choice(
        [
            *["word"] * 4,
            {"word": {"size": size, "min_count": of.choice([1, 1, 2, 50]), "split": split} | joint},
            {"char": {"size": size} | joint},
            {"bpe": {"size": pieces} | joint},
            {"unigram": {"size": pieces} | joint},
            {"bits": {"size": of.choice([1, 2, 3, 8]), "numbers": of.random() < 0.5} | marks},
            {"integers": {"below": of.choice([3, 10, 20, 1000])}},
        ]
    )


def draw_data(of: random.Random, folder: Path, has_encoder: bool) -> Recipe:
    """Draw a generated task, or files that are written into `folder`, and how they are read."""
    data: Recipe = {"tokenizer": draw_tokenizer(of)}
    if of.random() < 0.3:
        data["max_length"] = of.choice([1, 3, 8, 8, 64, 64])
    if of.random() < 0.2:
        data["lowercase"] = True
    if of.random() < 0.5:
        return data | {"generate": draw_task(of)}
    return data | {"parallel": draw_files(of, folder, has_encoder)}


def draw_task(of: random.Random) -> Recipe:
    """Draw a generated task with its settings."""
    task = of.choice(TASKS)
    settings: Recipe = {"train": of.choice([1, 3, 40]), "val": 3, "test": 3, "endless": of.random() < 0.5}
    if task != "number_words":
        settings |= {"min_length": of.choice([1, 2, 3]), "max_length": of.choice([3, 4, 6])}
        settings |= {"test_lengths": [of.choice([2, 5, 9])]} if of.random() < 0.3 else {}
    if task.startswith("ram_"):
        settings["cells"] = of.choice([4, 8, 12, 20])
    if task in ("vector_copy", "repeat_copy", "associative_recall", "priority_sort"):
        settings["bits"] = of.choice([1, 2, 3, 8])
    return {task: settings}


def draw_files(of: random.Random, folder: Path, has_encoder: bool) -> Recipe:
    """Draw the splits of `parallel`; their files are written into `folder`."""
    same = of.choice(list(LINES))
    splits: Recipe = {}
    for split in ("train", "val", "test"):
        count = of.choice([1, 6, 6])
        for side in ("source", "target"):
            kind = same if of.random() < 0.7 else of.choice(list(LINES))
            lines = of.choices(LINES[kind], k=count)
            (folder / f"{split}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        splits[split] = {side: f"{split}.{side}" for side in (["source"] if has_encoder else []) + ["target"]}
    if of.random() < 0.3:
        splits["val"] = of.choice([1, 2])
    elif of.random() < 0.2:
        del splits["val"]
    return splits


def draw_training(of: random.Random) -> Recipe:
    """Draw two steps of training."""
    options: list[Recipe] = [
        {"validate_every": 1},
        {"average_checkpoints": 2},
        {"accumulate": of.choice([2, 3])},
        {"scheduled_sampling": {"rate": 0.5}},
        {"curriculum": {"start": of.choice([1, 50]), "by": of.choice(["source", "target"])}},
        {"early_stopping": {"metric": of.choice(["val/loss", "val/bleu", "val/exact_match"])}},
        {"precision": of.choice(["bf16-mixed", "16-mixed", "bf16-true", 64])},
        {"schedule": of.choice(["cosine", "plateau", "inverse_sqrt"])},
        {"initialization": of.choice(["orthogonal", "uniform_scaling"])},
        {"optimizer": of.choice(["adamw", "sgd", "rmsprop", "adadelta", "adagrad"])},
    ]
    training: Recipe = {"max_steps": 2, "tokens_per_batch": of.choice([1, 7, 64, 4096])}
    for option in of.sample(options, of.choice([0, 0, 1, 2])):
        training |= option
    return training


def draw_recipe(of: random.Random, folder: Path) -> Recipe:
    """Draw a recipe; its data files are written into `folder`."""
    encoder = None if of.random() < 0.2 else of.choice(ENCODERS)
    decoder = of.choice(ALONE if encoder is None else DECODERS)
    data = draw_data(of, folder, encoder is not None)
    model: Recipe = {"width": of.choice([4, 6, 16]), "decoder": decoder}
    kind, length = "linear", of.choice([*[None] * 9, 1, 2, 4, 8])
    if encoder is not None:
        model["encoder"] = encoder
        if of.random() < 0.1:  # without a matrix between the words and what they are read from
            model["decoder"], model["embedding"], kind = ["source_state"], "one_hot", "identity"
            model["encoder"] = [{"nram": {"steps": 2}}] if of.random() < 0.8 else encoder
            length = length or 4
    if "bits" in data["tokenizer"] and kind == "linear":
        model["embedding"], kind = of.choice(["learned", "linear"]), of.choice(["linear", "sigmoid"])
    output = {"kind": kind} | ({"length": length} if length else {})
    model |= {"output": output | ({"tie": ["target"]} if of.random() < 0.1 else {})}
    decoding = of.choice(["greedy", {"beam": {"size": 3}}])
    recipe: Recipe = {"recipe": 1, "data": data, "model": model}
    recipe |= {"training": draw_training(of), "decoding": decoding, "logging": {"wandb": False}}
    recipe = json.loads(json.dumps(recipe))  # YAML would write what is in it twice as an anchor
    return recipe | {"trainer": {"accelerator": "cpu", "enable_progress_bar": False}}


def try_recipe(file: Path, run: Path) -> tuple[str, str]:
    """Check and train a recipe. Return how it went, `refused`, `trained` or `broken`, and the first error."""
    try:
        faults = composer.check(file)
        if faults:
            return "refused", faults[0].message
        composer.train(file, run=run)
    except ComposerError as error:
        return "broken", error.render()
    except Exception:  # whatever is no refusal is what this looks for
        return "broken", traceback.format_exc(limit=-4)
    return "trained", ""


def main() -> int:
    """Draw, check and train; print what was broken, and how many went how. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    for case in range(arguments.cases):
        folder = Path(tempfile.mkdtemp())
        of = random.Random(f"{arguments.seed} {case}")
        file = folder / "recipe.yaml"
        file.write_text(yaml.safe_dump(draw_recipe(of, folder), sort_keys=False), encoding="utf-8")
        outcome, error = try_recipe(file, folder / "run")
        counts[outcome] += 1
        if outcome == "broken":
            print(f"--- case {case}\n{file.read_text(encoding='utf-8')}\n{error}", flush=True)
        shutil.rmtree(folder)
    print(dict(counts))
    return 1 if counts["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
