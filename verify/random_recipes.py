"""Random recipes over the language: a random model, data of every kind, tokenizer, training and
decoding.

The models are those of `tests/laws`; whatever else is one of several, such as tasks or optimizers,
is listed by the schema, so that what is added to the language is drawn too. Most recipes are sound,
some are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from verify.random_data import babi, corpus, generated, parallel
from verify.random_models import recipes
from verify.random_settings import choice, one_in, optional, settings_of
from verify.random_stories import continued, stories
from verify.scene import Draw

MAX_STEPS = 3
TRAINING: Mapping[str, Sequence[Any]] = {
    "tokens_per_batch": (24, 60, 4096, 1),
    "label_smoothing": (0.1,),
    "clip_norm": (0.5,),
    "accumulate": (2,),
    "validate_every": (1, 2),
    "average_checkpoints": (2,),
    "precision": (32, "bf16-mixed", "bf16-true", 64, "16-mixed"),
    "seed": (0, 5),
}
TRAINER: Mapping[str, Sequence[Any]] = {
    "accelerator": ("cpu",),
    "deterministic": (True, "warn"),
    "limit_val_batches": (0.5, 1),
    "log_every_n_steps": (1, 2),
    "inference_mode": (False,),
    "detect_anomaly": (True,),
    "enable_progress_bar": (False,),
}
SECTIONS: Mapping[str, str] = {
    "gradient_noise": "gradientnoise",
    "scheduled_sampling": "scheduledsampling",
    "early_stopping": "earlystopping",
    "curriculum": "curriculum",
    "ema": "ema",
    "asgd": "asgd",
}
"""The sections of the training, with their names in the schema."""


class Case(NamedTuple):
    """A recipe, and the files that it reads, by their names."""

    recipe: dict[str, Any]
    files: dict[str, str]


@st.composite
def whole_recipes(draw: Draw) -> Case:
    """A recipe with its files."""
    kind = draw(
        st.sampled_from(["stacks"] * 5 + ["language"] * 5 + ["continued"] * 2 + ["stories"] * 2)
    )
    models = {
        "stacks": recipes(),
        "language": recipes([()]),
        "continued": continued(),
        "stories": stories(),
    }
    sections = draw(models[kind])
    model = sections["model"]
    sides = list(model.get("encoders", {"source": ()} if "encoder" in model else ()))
    files: dict[str, str] = {}
    if kind == "stories":
        data = draw(babi(files))
    elif not sides and draw(st.integers(0, 5)):
        data = draw(corpus(files))
    elif draw(st.booleans()) and sides in ([], ["source"]):
        data = draw(generated(bool(sides), files))
    else:
        data = draw(parallel(sides, files))
    data |= draw(optional({"max_length": (4, 12, 60, 1), "lowercase": (True,)}, 5))
    model |= draw(optional({"embedding_dropout": (0.2,)}, 6))
    adapt_to_data(draw, model, data)
    recipe = {
        "recipe": 1,
        "data": data,
        "model": model,
        "training": draw(training()),
        "logging": {"wandb": False},
    }
    if "text" in data or draw(one_in(20)):
        recipe["evaluation"] = draw(windows(recipe["training"]))
    recipe["decoding"] = draw(choice("decoders"))
    if "viterbi" in recipe["decoding"] and not draw(one_in(6)):
        model["decoder"] = memoryless_decoder(
            list(model.get("encoders", ["encoder"] if sides else []))
        )
    recipe |= draw(st.fixed_dictionaries({}, optional={"trainer": optional(TRAINER, 3)}))
    return Case(recipe, files)


@st.composite
def windows(draw: Draw, training: dict[str, Any]) -> dict[str, Any]:
    """The section `evaluation`; add windows to a training, and perhaps a state that is carried
    between them.
    """
    if draw(one_in(3)):
        return {}
    training["window"] = window = draw(st.sampled_from([1, 3, 8, 20]))
    if draw(st.booleans()):
        training["carry"] = True
        training["tokens_per_batch"] = draw(st.sampled_from([20, 60, 60, 200]))
        return {"stride": window} if draw(one_in(12)) else {}
    return draw(optional({"stride": (1, 3, window)}, 2))


def memoryless_decoder(memories: Sequence[str]) -> list[Any]:
    """Return a decoder that depends on the last token alone, as `viterbi` needs it."""
    reads = [{"residual": {"stack": [{"cross_attention": {"from": name}}]}} for name in memories]
    return [*reads, {"feed_forward": {"activation": "tanh"}}]


def adapt_to_data(draw: Draw, model: dict[str, Any], data: dict[str, Any]) -> None:
    """Give a model embedding and output that fit its tokenizer and its task, in most cases."""
    ((kind, _),) = data["tokenizer"].items()
    output = dict(model.get("output", {}))
    if kind == "bits" and not draw(one_in(6)):
        model["embedding"] = draw(st.sampled_from(["linear", "linear", "learned"]))
        output = {"kind": draw(st.sampled_from(["sigmoid", "sigmoid", "linear"]))}
    elif kind == "integers" and draw(st.booleans()):
        model["embedding"] = draw(st.sampled_from(["one_hot", "learned"]))
        output = {
            "kind": draw(st.sampled_from(["identity", "linear"])),
            "length": task_length(data),
        }
    elif draw(one_in(4)):
        model["embedding"] = draw(choice("embeddings") if draw(one_in(6)) else characters())
    if draw(one_in(6)) and kind != "bits":
        output["kind"] = draw(choice("outputs"))
    if draw(one_in(10)):
        output["length"] = draw(st.sampled_from([1, 3, 5]))
    if draw(one_in(8)):
        output["ctc"] = draw(optional({"weight": (0.3, 1)}, 2))
        if output["ctc"].get("weight") == 1 and not draw(one_in(6)):
            del model["decoder"]
            output = {"ctc": output["ctc"]}
    if output:
        model["output"] = output


def task_length(data: Mapping[str, Any]) -> int:
    """Return how many tokens the answers of a task on an array have; any number for other data."""
    ((_, task),) = data.get("generate", {"": {}}).items()
    return task.get("cells", 2)


@st.composite
def characters(draw: Draw) -> dict[str, Any]:
    """An embedding of the characters of each token."""
    return {"characters": draw(settings_of("embeddings.characters"))}


@st.composite
def training(draw: Draw) -> dict[str, Any]:
    """The section `training`, of a few steps."""
    section = {"max_steps": MAX_STEPS, **draw(optional(TRAINING, 4))}
    section |= {key: draw(settings_of(name)) for key, name in SECTIONS.items() if draw(one_in(6))}
    kinds = {
        "optimizer": "optimizers",
        "schedule": "schedules",
        "initialization": "initializations",
    }
    return section | {key: draw(choice(name)) for key, name in kinds.items() if not draw(one_in(4))}
