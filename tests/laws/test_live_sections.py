"""Every key of the sections is alive: with another value of it, something else is read, built,
trained or answered.

Keys and the values to try come from the schema, so a new setting of which no value changes anything
fails by its name. The settings of blocks have a law of their own: `settings` in `composer.testing`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import wandb

from composer.data.encoding import load_data
from composer.data.epochs import training_corpus
from composer.data.features import Features
from composer.data.sources import generate_pairs
from composer.errors import ComposerError
from composer.model.builder import build, vocabulary_bounds
from composer.model.encoder_decoder import example_ids, example_sources
from composer.recipe.recipe import Recipe
from composer.recipe.schema_generator import load as load_schema
from composer.recipe.schema_reader import Schema
from composer.training import trainer
from composer.training.wandb_logger import WandbLogger, wandb_mode
from tests.laws.section_cases import recipe_of, same, signature
from tests.samples import sampled

RULES = load_schema()
Keys = tuple[str, ...]


class Around(NamedTuple):
    """What a key needs around it to be alive: other settings, a kind of recipe, and values that no
    type tells.
    """

    overrides: str = ""
    kind: str = "pairs"
    values: Sequence[Any] = ()


FEW = "{train: 30, val: 5, test: 5}"
VECTORS = "{vector_copy: {bits: 3, max_length: 3, train: 40, val: 10, test: 5}}"
BITS = f"data.generate={VECTORS}; data.tokenizer={{bits: {{size: 3}}}}"
PAIR = "={source: a.txt, target: b.txt}"
NGRAMS = (
    "data.generate={dynamic_ngrams: {min_length: 20, max_length: 24, train: 30, val: 5, test: 5}}"
)
GROWING = (
    "training.optimizer={sgd: 9}; training.clip_norm=1; training.max_steps=9;"
    " training.validate_every=1"
)
EPOCHS = "training.max_steps=null; training.max_epochs=3"
LEARNING = "training.optimizer={adam: 0.03}; training.max_steps=40; training.validate_every=20"
RISING = f"training.curriculum={{start: 1, error: 1.0, beyond: 0}}; {LEARNING}"
CTC = f"model.output.ctc={{weight: 0.5}}; {LEARNING}"
LONGER = f"data.generate={{duplicate: {FEW}}}; training.curriculum={{start: 4, beyond: 0}}"
SIDES, TEXTS = {"source": "a.txt"}, ("b.txt", "c.txt")
WORDS = "data.parallel.train={source: d.txt, target: b.txt}"
SAMPLING = "training.scheduled_sampling={rate: 0.9, warmup: 0}"
TABLE = "={file: t.csv, source: a, target: b}"
IMAGE = "data.table.source={column: image, kind: image, size: [6, 8]}"
HUB = "data.parallel=null; data.hub={id: set_t, val: null, test: null, source: a, target: b}"
CONTEXTS = {
    "data.parallel": Around(kind="files"),
    "data.parallel.train.weight": Around(f"data.parallel.train{PAIR}", "files", [1, 2]),
    "data.parallel.max_ratio": Around(
        "data.parallel.train={source: a.txt, target: d.txt}", "files", [1.5, 9]
    ),
    "data.parallel.deduplicate": Around(
        "data.parallel.train={source: g.txt, target: g.txt}", "files"
    ),
    "data.parallel.decontaminate": Around(
        "data.parallel.val={source: h.txt, target: h.txt}; data.parallel.test=null", "files"
    ),
    "data.parallel.test_sets": Around(
        kind="files", values=[{"news": {**SIDES, "target": name}} for name in TEXTS]
    ),
    "data.table": Around(kind="table"),
    "data.table.train": Around(kind="table", values=["s.tsv", "v.tsv"]),
    "data.table.val": Around("data.table.val=null", "table", [2, "v.tsv"]),
    "data.table.test": Around(kind="table", values=[2, "v.tsv"]),
    "data.table.test_sets": Around(kind="table", values=[{"more": "s.tsv"}, {"more": "v.tsv"}]),
    "data.table.target": Around(kind="table", values=["text", "image"]),
    "data.table.source.column": Around(kind="table", values=["sound", "louder"]),
    "data.table.source.kind": Around(
        "data.table.source={column: sound}", "table", ["text", "audio"]
    ),
    **{
        f"data.table.source.{key}": Around(IMAGE, "table", values)
        for key, values in {
            "size": [[3, 4], [2, 8]],
            "channels": [1, 3],
            "positions": ["rows", "columns"],
            "augment.rotate": [0, 90],
            "augment.scale": [0, 0.5],
            "augment.shift": [0, 0.5],
        }.items()
    },
    "data.table.source.rate": Around(kind="table", values=[2000, 4000]),
    "data.table.source.features.log_mel.bands": Around(kind="table", values=[4, 5]),
    "data.table.source.features.log_mel.window": Around(kind="table", values=[0.02, 0.04]),
    "data.table.source.features.log_mel.hop": Around(kind="table", values=[0.01, 0.02]),
    "data.table.source.features.log_mel.fft": Around(kind="table", values=[64, 80]),
    "data.table.source.features.log_mel.padding": Around(kind="table"),
    "data.table.source.seconds": Around(kind="table", values=[0.2, 0.5]),
    "data.table.source.spec_augment": Around("data.table.source.spec_augment={}", "table"),
    "data.text": Around(kind="text", values=["a.txt", "c.txt"]),
    "data.text.unit": Around(kind="text"),
    "data.text.column": Around("data.text.train=e.jsonl", "text", ["a", "b"]),
    "training.window": Around(kind="text", values=[3, 5]),
    "training.carry": Around("training.window=3", "text"),
    "evaluation.stride": Around("training.window=5", "text", [1, 5]),
    "data.tokenizer.bits": Around(BITS),
    "data.tokenizer.bits.marks": Around(BITS, values=[[";"], [";", "?"]]),
    "data.tokenizer.integers": Around(
        "data.parallel.train={source: c.txt, target: c.txt}", "files"
    ),
    "data.tokenizer.word": Around(kind="files"),
    "data.tokenizer.word.min_count": Around(WORDS, "files"),
    "data.tokenizer.word.split": Around(WORDS, "files"),
    "data.tokenizer.file": Around("data.tokenizer={file: a.json}", values=["a.json", "b.json"]),
    "data.tokenizer.bpe.size": Around(values=[270, 300]),
    "data.tokenizer.unigram.size": Around(values=[270, 300]),
    "data.generate.dynamic_ngrams.max_length": Around(NGRAMS, values=[24, 30]),
    "data.generate.number_words.maximum": Around(values=[99, 999]),
    "training.schedule.plateau": Around(GROWING),
    "training.schedule.plateau.factor": Around(
        f"training.schedule={{plateau: {{patience: 1}}}}; {GROWING}"
    ),
    "training.schedule.plateau.patience": Around(GROWING, values=[1, 2]),
    "training.schedule.plateau.monitor": Around(
        f"training.schedule={{plateau: {{patience: 1, threshold: 0.3}}}}; {LEARNING};"
        " training.validate_every=4"
    ),
    "training.schedule.plateau.threshold": Around(
        f"training.schedule={{plateau: {{patience: 1}}}}; {LEARNING}; training.validate_every=4",
        values=[0, 64],
    ),
    "training.schedule.plateau.compare_with": Around(
        f"training.schedule={{plateau: {{patience: 1}}}}; {GROWING}"
    ),
    "training.schedule.epoch_decay": Around(EPOCHS),
    "training.schedule.epoch_decay.after": Around(EPOCHS, values=[1, 2]),
    "training.schedule.epoch_decay.factor": Around(
        f"training.schedule={{epoch_decay: {{after: 1}}}}; {EPOCHS}"
    ),
    "training.asgd.patience": Around(GROWING, values=[1, 2]),
    "training.max_epochs": Around("training.max_steps=null", values=[1, 2]),
    "training.early_stopping.patience": Around(
        f"training.early_stopping={{}}; {GROWING}", values=[1, 2]
    ),
    "training.early_stopping.metric": Around(f"training.early_stopping={{patience: 1}}; {GROWING}"),
    "training.early_stopping.min_delta": Around(
        "training.early_stopping={patience: 1}; training.validate_every=1"
    ),
    "training.curriculum.step": Around(RISING),
    "training.curriculum.error": Around(RISING, values=[1.0, 1e-4]),
    "training.curriculum.beyond": Around("training.curriculum={start: 2}"),
    "training.curriculum.by": Around(LONGER, values=["source", "target"]),
    "training.parameter_groups": Around(
        values=[[{"blocks": "encoder", "factor": factor}] for factor in (0, 2)]
    ),
    "training.scheduled_sampling": Around(SAMPLING),
    "training.scheduled_sampling.warmup": Around(SAMPLING, values=[0, 1]),
    "training.ema.decay": Around(values=[0.1, 0.2]),
    **{
        f"training.optimizer.{name}.{'decayed' if name in ('rmsprop', 'adadelta') else 'decay'}": (
            Around(
                f"training.optimizer={{{name}: {{weight_decay: 0.5}}}}", values=["matrices", "all"]
            )
        )
        for name in (
            *("adam", "adamw", "sgd", "adagrad", "rmsprop", "adadelta"),
            *("muon", "adafactor", "schedule_free"),
        )
    },
    **{f"decoding.{word}.ctc_weight": Around(CTC, values=[0, 1]) for word in ("greedy", "beam")},
    "decoding.viterbi": Around("model.decoder=[cross_attention]"),
    "decoding.viterbi.max_length": Around(f"model.decoder=[cross_attention]; {LEARNING}"),
    "decoding.sample.max_ratio": Around("decoding={sample: {top_k: 1}}"),
    "trainer.timeout_minutes": Around("trainer.devices=2"),
    "data.babi.folder": Around("", "stories", [".", "./more"]),
    "data.babi.tasks": Around("", "stories", [[1], [2]]),
    "data.babi": Around(kind="stories"),
    "data.max_length": Around(kind="files"),
    "data.text.hold_out": Around("data.text.val=2", "text", ["spread", "end"]),
    "data.lowercase": Around(kind="files"),
    "data.prefix.source": Around(kind="files", values=["a ", "b "]),
    "data.prefix.target": Around(kind="files", values=["a ", "b "]),
    "model.dropout": Around("model.decoder=[dropout, rnn, cross_attention]"),
    "model.encoder": Around(values=[["rnn"], ["linear"]]),
    "model.encoders": Around(
        "model.encoder=null", "files", [{"source": ["rnn"]}, {"source": ["linear"]}]
    ),
    "model.decoder": Around(values=[["rnn", "cross_attention"], ["cross_attention"]]),
    "model.stacks": Around(
        "model.decoder=[{use: a}, cross_attention]", values=[{"a": ["rnn"]}, {"a": ["linear"]}]
    ),
    "model.output.tie": Around(
        "data.tokenizer={word: {joint: true}}", values=[["source"], ["target"]]
    ),
    "model.output.kind": Around(BITS),
    "model.output.kind.adaptive.cutoffs": Around(values=[[5], [6]]),
    "model.output.kind.adaptive.div_value": Around("model.output.kind={adaptive: {cutoffs: [5]}}"),
    "model.output.kind.cnn.kernels": Around(
        "model.output.kind={cnn: {features: [3]}}", values=[[1], [2]]
    ),
    "model.output.kind.cnn.features": Around(
        "model.output.kind={cnn: {kernels: [3]}}", values=[[1], [2]]
    ),
    "model.output.ctc.from": Around(
        "model.encoder=[{linear: {as: x}}, rnn]", values=["encoder", "encoder.x"]
    ),
    "model.embedding": Around(BITS),
    "model.embedding.characters.kernels": Around(
        "model.embedding={characters: {features: [3]}}", values=[[1], [2]]
    ),
    "model.embedding.characters.features": Around(
        "model.embedding={characters: {kernels: [3]}}", values=[[1], [2]]
    ),
    "logging.wandb": Around(values=["one", "two"]),
    "logging.wandb.tags": Around(values=[["one"], ["two"]]),
    "logging.wandb.config": Around(values=[{"one": 1}, {"one": 2}]),
    "logging.wandb.artifact": Around("logging.wandb={}"),
    "logging.wandb.mode": Around("logging.wandb={}"),
    "data.hub.id": Around(HUB, "files", ["set_t", "set_u"]),
    "data.hub.train": Around(HUB, "files", ["train", "validation"]),
    "data.hub.val": Around(HUB, "files", ["train", "validation"]),
    "data.hub.test": Around(HUB, "files", ["train", "validation"]),
    "data.hub.source": Around(HUB, "files", ["a", "b"]),
    "data.hub.target": Around(HUB, "files", ["a", "b"]),
}
"""By the beginning of a key's path, the longest of which holds."""
for split in ("train", "val", "test"):
    CONTEXTS[f"data.parallel.{split}.file"] = Around(
        f"data.parallel.{split}{TABLE}", "files", ["t.csv", "u.csv"]
    )
    CONTEXTS[f"data.parallel.{split}.source"] = Around(
        f"data.parallel.{split}{PAIR}", "files", ["a.txt", "c.txt"]
    )
    CONTEXTS[f"data.parallel.{split}.target"] = Around(
        f"data.parallel.{split}{PAIR}", "files", ["b.txt", "c.txt"]
    )
EXCEPTIONS = {
    "recipe": "is the version of the language",
    "name": "names runs, in no number of them",
    "description": "is read by people alone",
    "vars": "are gone when a recipe is read; their own tests see what they do",
    "data.tokenizer.bits.size": "has one value that the data do not refuse",
    "data.table.source.width": "has one value that the data do not refuse",
    "data.packing": "lays the same pairs out in fewer rows: tests/training/test_packing.py",
    "data.hub.config": "is for a data set that has several, which a folder has not",
    "decoding.viterbi.max_ratio": (
        "is for answers of more than 50 tokens, and the most probable ones here are shorter"
    ),
    "decoding.mbr.max_ratio": "is for samples of more than 50 tokens, and those here are shorter",
    **{
        f"{section}decoding.{method}.precision": (
            "gives tiny models the same answers: tests/inference/test_precision.py"
        )
        for section in ("", "training.validation_sample.")
        for method in ("beam", "greedy", "sample", "mbr", "viterbi")
    },
    **{
        f"decoding.{method}.engine": "finds the same answers: tests/inference/test_engine.py"
        for method in ("beam", "greedy", "sample", "mbr", "viterbi")
    },
    **{
        f"training.validation_sample.decoding.{method}.engine": "has a rule: validations use torch"
        for method in ("beam", "greedy", "sample", "mbr", "viterbi")
    },
    **{
        f"training.validation_sample.decoding.{key}": "is a key of `decoding`, where it is tried"
        for key in (
            *("sample.max_ratio", "mbr.max_ratio", "viterbi.max_length", "viterbi.max_ratio"),
            *("greedy.ctc_weight", "beam.ctc_weight"),
        )
    },
    **{
        f"training.distillation.{key}": "needs a run: tests/training/test_distillation.py"
        for key in ("teacher", "temperature", "weight", "hidden")
    },
    **{
        f"training.adapters.lora.{key}": "needs a run: tests/training/test_adapters.py"
        for key in ("rank", "alpha", "blocks")
    },
    "training.compile": "saves time alone",
    "training.workers": "save time alone",
    "training.checkpoints_gib": "decides how many checkpoints stay",
    "trainer.enable_progress_bar": "is seen on the terminal alone",
    "trainer.log_every_n_steps": "has a rule, with its case beside it",
}
"""Keys that change nothing that a run computes or writes, and why they are there."""


def resolve(rule: Schema) -> Schema:
    """Return a rule with what it refers to."""
    name = rule.get("$ref", "").rpartition("/")[2]
    return {**resolve(RULES["$defs"][name]), **rule} if name else rule


def keys_of(rule: Schema, path: Keys = ()) -> Iterator[tuple[Keys, Schema]]:
    """Yield the path and the rule of every key below a rule, but for blocks and their defaults."""
    for name, inner in resolve(rule).get("properties", {}).items():
        if not inner.get("$ref", "").startswith(
            ("#/$defs/defaults.", "#/$defs/block.")
        ) and path != ("extends",):
            yield (*path, name), resolve(inner)
            yield from keys_of(inner, (*path, name))


SETTINGS = {".".join(path): rule for path, rule in keys_of(RULES)}


def is_leaf(key: str) -> bool:
    """Whether a key is no section with keys of its own, nor a choice whose words are."""
    is_word = "x-choice" in SETTINGS.get(key.rpartition(".")[0], {})
    return is_word or not (SETTINGS[key].get("properties") or "x-choice" in SETTINGS[key])


KEYS = {key: rule for key, rule in SETTINGS.items() if is_leaf(key)}
NUMBERS = (0, 1, 2, 3, 5, 9, 0.5, 0.1, 0.9, 1e-4, 64)


def values_of(rule: Schema) -> list[Any]:
    """Return values that a key may have, as its type and its bounds say."""
    rules = [rule, *rule.get("anyOf", ())]
    values = [value for each in rules for value in each.get("enum", ()) if "x-choice" not in rule]
    values += [flag for each in rules if each.get("type") == "boolean" for flag in (True, False)]
    values += [number for each in rules for number in NUMBERS if fits(number, each)]
    if "array" in [each.get("type") for each in rules]:
        values += [[value] for value in values_of(rule.get("items", {}))]
    return values


def fits(number: float, rule: Schema) -> bool:
    if rule.get("type") not in ("integer", "number") or (
        rule["type"] == "integer" and number != int(number)
    ):
        return False
    above, below = rule.get("exclusiveMinimum", -1), rule.get("exclusiveMaximum", 1e9)
    return bool(
        rule.get("minimum", 0) <= number <= rule.get("maximum", 1e9) and above < number < below
    )


def around(key: str) -> Around:
    """Return what a key needs around it."""
    path = key.split(".")
    starts = [".".join(path[:end]) for end in range(len(path), 0, -1)]
    return next((CONTEXTS[start] for start in starts if start in CONTEXTS), Around())


def cases(key: str) -> Iterator[list[str]]:
    """Yield the overrides that give a key one value after another; the first leaves it out."""
    context, path = around(key), key.split(".")
    base = [line.strip() for line in context.overrides.split(";") if line.strip()]
    parent = ".".join(path[:-1])
    if "x-choice" in SETTINGS.get(parent, {}):
        for word in (
            path[-1],
            *(other for other in SETTINGS[parent]["properties"] if other != path[-1]),
        ):
            yield [*base, f"{parent}={{{word}: {FEW if parent == 'data.generate' else '{}'}}}"]
        return
    grandparent = ".".join(path[:-2])
    if parent in SETTINGS and not any(
        line.partition("=")[0] in (parent, grandparent) for line in base
    ):
        is_word = "x-choice" in SETTINGS.get(grandparent, {})
        optional = {"type": "null"} in SETTINGS[parent].get("anyOf", ()) and not SETTINGS[parent][
            "required"
        ]
        settings = FEW if parent.startswith("data.generate") else "{}"
        base = [*base, f"{grandparent}={{{path[-2]}: {settings}}}"] if is_word else base
        base = [*base, f"{parent}={{}}"] if optional and not is_word else base
    yield base
    for value in context.values or values_of(KEYS[key]):
        yield [*base, f"{key}={json.dumps(value)}"]


# ------------------------------------------------------------------------------------------- what a
# setting may change


def data_of(recipe: Recipe, folder: Path) -> Any:
    """The pairs of two epochs and every split, or the ids that they are encoded as and the weights
    of files.
    """
    if recipe.data.generate and not recipe.explicit["data"].get("tokenizer"):
        splits = (("train", 0), ("train", 1), ("val", 0), ("test", 0))
        return [
            [list(side) for side in generate_pairs(recipe, *split).sides.values()]
            for split in splits
        ]
    data = load_data(recipe, [folder])
    weights = np.asarray(data.pairs["train"].weights).tolist()
    hashes = {name: split.sha256 for name, split in data.splits.items()}
    first = training_corpus(
        recipe, data.splits["train"], data.tokenizers, lambda rows: rows.lengths() > 0
    ).of_epoch(0)
    features = [
        own.outputs(np.arange(3)) for own in first.sources.values() if isinstance(own, Features)
    ]
    return [
        data.tokenizers.text,
        hashes,
        weights,
        [np.nan_to_num(own, nan=-1.0).tolist() for own in features],
    ]


def model_of(recipe: Recipe, folder: Path) -> Any:
    """The weights that a model starts with, its logits or costs in training, and its logits in
    evaluation.
    """
    torch.manual_seed(1)
    model = build(recipe, vocabulary_bounds(recipe))
    with torch.no_grad():
        ids = example_ids(model, 3)
        # in training, so that dropout shows
        outputs = model(example_sources(model, 3), ids, answer=ids)
        evaluated = model.eval()(example_sources(model, 3), ids)
    return {**model.state_dict(), "outputs": outputs, "evaluated": evaluated}


def trainer_of(recipe: Recipe, folder: Path) -> Any:
    """What Lightning is told."""
    arguments: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "Trainer", lambda **received: arguments.update(received))
        trainer.build_trainer(recipe)
    strategy = arguments.pop("strategy")
    del arguments["plugins"]
    return {
        **arguments,
        "strategy": type(strategy).__name__,
        "timeout": str(getattr(strategy, "_timeout", "")),
    }


def logging_of(recipe: Recipe, folder: Path) -> Any:
    """What W&B is told."""
    arguments: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_DATA_DIR", str(folder))  # or the logger sets it until its run ends
        patch.setattr(wandb, "init", lambda **received: arguments.update(received))
        patch.setenv("WANDB_API_KEY", "x")
        patch.delenv("WANDB_MODE", raising=False)
        settings = recipe.logging.wandb
        logger = WandbLogger(
            wandb_mode(settings, {"WANDB_API_KEY": "x"}), settings, folder, "name", "id"
        )
    seen = {key: value for key, value in arguments.items() if key not in ("settings", "dir")}
    return {**seen, "logs_model": logger.logs_model}


DOORS = {"data": data_of, "model": model_of, "trainer": trainer_of, "logging": logging_of}
"""What shows at once, by section, that a setting is alive; for all else, and where that shows
nothing, a training.
"""
QUICK = [key for key in KEYS if key.partition(".")[0] in DOORS and key not in EXCEPTIONS]
SLOW = [key for key in KEYS if key not in EXCEPTIONS and key not in QUICK]


def is_alive(key: str, folder: Path) -> bool:
    """Whether two of a key's values, of which one is the default, differ in anything."""
    first: Any = None
    for index, overrides in enumerate(cases(key)):
        place = folder / str(index)
        place.mkdir()
        try:
            recipe = recipe_of(place, around(key).kind, *overrides)
            seen = DOORS.get(key.partition(".")[0], signature)(recipe, place)
        except ComposerError:
            continue
        if first is not None and not same(first, seen):
            return True
        first = seen if first is None else first
    return False


@pytest.mark.parametrize("key", sampled(QUICK, 40, 60))
def test_a_key_of_data_model_trainer_or_logging_is_alive(key: str, tmp_path: Path) -> None:
    assert is_alive(key, tmp_path)


@pytest.mark.parametrize("key", sampled(SLOW, 0, 40))
def test_a_key_of_training_or_decoding_is_alive(key: str, tmp_path: Path) -> None:
    assert is_alive(key, tmp_path)


def test_every_exception_is_a_key_and_has_its_reason() -> None:
    assert not [
        key for key, reason in EXCEPTIONS.items() if key not in KEYS or len(reason.split()) < 3
    ]
    assert not [start for start in CONTEXTS if start not in SETTINGS]
