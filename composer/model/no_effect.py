"""Settings that change nothing beside the others: of blocks, as their constructors say; of sections, by `RULES`.

A setting is dead where no value of it changes a training, its scores or its decoding. That a value equals the default,
or that the data do not reach a limit, is no fault.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any, NamedTuple

import torch

from blocks.core.contract import Path
from composer.errors import Fault, RecipeError
from composer.model.builder import encoder_stacks
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.output_heads import LinearOutput
from composer.model.recording_builder import RecordingBuilder
from composer.model.weights import matrices_with_layouts
from composer.recipe.metrics import decodes_all


class Rule(NamedTuple):
    """When some settings change nothing: if `cause`, a path in `facts`, has a value, or meets a condition.

    `settings` are paths too; one that begins with a dot is beside `cause`, and `*` is any word that is chosen there.
    Not `certain`: a warning, since it may have an effect elsewhere.
    """

    cause: str
    when: object
    settings: str
    message: str
    certain: bool = True


CORPUS = "data.parallel.train.source data.parallel.train.*.source data.parallel.val.source data.parallel.val.*.source "
CORPUS += "data.parallel.test.source data.parallel.test.*.source data.parallel.test_sets.*.source "
CORPUS += "data.table.source data.hub.source "
MARKS = "data.tokenizer.bits.marks data.tokenizer.bits.numbers data.generate.number_words.source"
VALIDATED = (
    "training.early_stopping training.validation_sample training.schedule.plateau training.asgd trainer.inference_mode"
)
WANDB = ".project .name .entity .group .tags .config .artifact"
PROCESSES = "trainer.strategy trainer.timeout_minutes"
ALONE = "model.output.kind model.output.bias model.output.tie training.label_smoothing "
ALONE += "training.scheduled_sampling decoding.*.ctc_weight"
SURE_LENGTH = 51  # tokens that an answer may have whatever `max_ratio` is: `token_limit` of the decoders
NO_STOPPING = {"patience": None, "metric": "val/loss", "goal": None}  # and the weights of the best loss, as without it
AVERAGED = "it stops nothing, and the weights are an average, not those of the best score"
NOTHING_HELD_OUT = "no `val` or `test` is a number of those that are held out"
CONSTANT = "the learning rate is that of `constant`"
RULES: tuple[Rule, ...] = (
    Rule("data.babi", bool, ".lowercase", "stories are read in lower case anyway"),
    Rule("data.generate", lambda task: task and "dialect" not in task, ".lowercase", "this task has no capitals"),
    Rule("data.tokenizer", lambda kind: kind.keys() & {"bits", "integers"}, ".lowercase", "its tokens have no letters"),
    Rule("data.generate.dialect", lambda it: it["every"] > it["longest"], ".dialect.dialects", "no symbol is marked"),
    Rule("data.generate.priority_sort.longest", 1, ".share", "of one vector, one is given back"),
    Rule("data.reads_text", False, "training.window training.carry", "pairs are trained on whole, not in windows"),
    Rule("training.window", None, "evaluation.stride", "the text is not measured in windows"),
    Rule("training.carry", True, "evaluation.stride", "the state is carried, so all of the text is read before"),
    Rule("training.carry", True, "training.compile", "windows that go on from a state are not compiled"),
    Rule("training.window", bool, "data.max_length", "windows have their own length"),
    Rule("training.window", bool, "training.curriculum", "all windows are equally long"),
    Rule("data.has_val", False, f"{VALIDATED} trainer.limit_val_batches", "the data have no `val`"),
    Rule("model.reads_source", False, CORPUS + MARKS, "a model without encoders reads no source"),
    Rule(
        "model.reads_source",
        False,
        "training.validation_sample evaluation.metrics evaluation.bleu_tokenizer",
        "without encoders, nothing is decoded",
    ),
    Rule("model.reads_source", False, "data.tokenizer.*.joint training.curriculum.by", "the target is the only side"),
    Rule("model.reads_source", False, "decoding.*.max_ratio", "without encoders, there is no source to compare with"),
    Rule("model.reads_tokens", False, "training.scheduled_sampling", "the decoder reads no tokens to be replaced"),
    Rule("model.has_matrices", False, "training.initialization", "no block has a matrix to initialize"),
    Rule("model.output.length", 1, "training.scheduled_sampling", "for the only token, the decoder reads bos alone"),
    Rule("model.output.length", 1, "decoding.*.no_repeat_ngram", "an answer of one token repeats none"),
    Rule("model.output.length", bool, "decoding.beam.length_penalty", "all answers have the same length"),
    Rule("model.has_token_biases", False, "model.output.bias", "its output head has no bias for each token"),
    Rule("model.output.ctc", None, "decoding.*.ctc_weight", "the model has no CTC"),
    Rule("model.output.ctc.weight", 1, ALONE, "CTC is alone"),
    Rule("model.embeds", False, "model.embedding model.embedding_dropout", "nothing reads tokens"),
    Rule("model.sure_length", bool, "decoding.*.max_ratio", f"{SURE_LENGTH} tokens are allowed whatever it is"),
    Rule("decoding.*.max_length", lambda it: it <= SURE_LENGTH, ".max_ratio", "`max_length` is allowed whatever it is"),
    Rule("training.max_epochs", 1, "data.generate.*.endless", "new pairs would come in a second epoch"),
    Rule("training.schedule.*.final", 1, "training.schedule.*", CONSTANT),
    Rule("training.schedule.plateau.threshold", 0, ".monitor", "the perplexity falls exactly when the loss does"),
    Rule("training.schedule.staircase.shares", lambda at: min(at, default=1) == 1, "training.schedule.*", CONSTANT),
    Rule("training.scheduled_sampling.rate", 0, ".warmup .choose", "no token is replaced"),
    Rule("training.early_stopping", lambda it: it and it | NO_STOPPING == it, ".early_stopping", "it stops nothing"),
    Rule("training.early_stopping.of_average", True, "training.early_stopping", AVERAGED),
    Rule("training.early_stopping.decodes_for_average", True, ".metric", f"{AVERAGED}; it only adds a score", False),
    Rule("training.early_stopping.patience", None, ".min_delta", "no validation is waited for"),
    Rule("training.early_stopping.of_texts", True, "training.validation_sample", "early stopping decodes all lines"),
    Rule("training.validation_sample.lines", 0, ".decoding", "nothing is decoded"),
    Rule("data.parallel.holds_out", False, ".hold_out", NOTHING_HELD_OUT),
    Rule("data.table.holds_out", False, ".hold_out", NOTHING_HELD_OUT),
    Rule("data.text.holds_out", False, ".hold_out", NOTHING_HELD_OUT),
    Rule("training.curriculum.beyond", 1, "training.curriculum", "every epoch has all pairs"),
    Rule("trainer.limit_val_batches", 0, VALIDATED, "nothing is validated"),
    Rule("trainer.accelerator", lambda word: word in ("cpu", "mps", "tpu"), ".benchmark", "cuDNN is for NVIDIA GPUs"),
    Rule("trainer.is_one", True, PROCESSES, "there is one process"),
    Rule("trainer.devices", 1, PROCESSES, "one device is one process, unless a launcher starts more machines", False),
    Rule("trainer.log_every_n_steps", lambda steps: steps > 10, ".log_every_n_steps", "10 is the most", False),
    Rule("logging.wandb.mode", "disabled", WANDB, "nothing is sent to W&B"),
    Rule("evaluation.has_bleu", False, ".bleu_tokenizer", "BLEU is not among the metrics"),
    Rule("decoding.beam.only", 1, ".length_penalty", "a beam of one has nothing to rank"),
    Rule("decoding.sample.top_k", 1, ".temperature .top_p .min_p .seed", "the most probable token is always taken"),
)
MASKS = (
    Rule("share", 0, ".share .frames .frame_masks", "no frame is masked"),
    Rule("frame_masks", 0, ".frames .share", "no frame is masked"),
    Rule("band_masks", 0, ".bands", "no band is masked"),
)
"""Of `spec_augment`, whose side of a table has the name of an encoder."""
SAMPLE = "training.validation_sample"
RULES += tuple(rule._replace(cause=f"{SAMPLE}.{rule.cause}") for rule in RULES if rule.cause.startswith("decoding."))


def facts(builder: RecordingBuilder, model: EncoderDecoder) -> dict[str, Any]:
    """Return the canonical recipe with what else the rules ask for, as further keys of its sections."""
    sections: dict[str, Any] = deepcopy(builder.recipe.canonical)
    data, trainer, length = sections["data"], sections["trainer"], sections["model"]["output"]["length"] or 0
    data["reads_text"] = builder.recipe.reads_text
    data["has_val"] = all(data[name]["val"] for name in ("parallel", "table", "text", "hub", "babi") if data.get(name))
    for section in filter(None, map(data.get, ("parallel", "table", "text"))):
        section["holds_out"] = "hold_out" in section
        section.setdefault("hold_out", None)
    for task in (data.get("generate") or {}).values():
        task["longest"] = max([task.get("max_length", 0), *(task.get("test_lengths") or ())])
    embeddings = [model.embedding, *(encoder.embedding for encoder in model.readers().values())]
    sections["model"] |= {
        "reads_source": bool(model.readers()),
        "reads_tokens": model.embedding is not None,
        "embeds": not all(embedding is None or embedding.reads_features for embedding in embeddings),
        "has_token_biases": isinstance(model.output, LinearOutput),
        "has_matrices": any(True for _ in matrices_with_layouts(model)),
        "sure_length": 0 < length <= SURE_LENGTH and not model.max_target_ratio,
    }
    if stopping := sections["training"]["early_stopping"]:
        stopping["of_texts"] = of_texts = decodes_all(stopping["metric"])
        is_idle = stopping["patience"] is stopping["goal"] is None and sections["training"]["average_checkpoints"] > 1
        stopping |= {"of_average": is_idle and not of_texts, "decodes_for_average": is_idle and of_texts}
    sections["evaluation"]["has_bleu"] = "bleu" in (sections["evaluation"]["metrics"] or ["bleu"])
    trainer["devices"] = len(trainer["devices"]) if isinstance(trainer["devices"], list) else trainer["devices"]
    trainer["is_one"] = trainer["accelerator"] == "mps" or trainer["devices"] == trainer["num_nodes"] == 1
    searches = [sections["decoding"], sections["training"]["validation_sample"]["decoding"]]
    for beam in chain.from_iterable(search.values() for search in searches):
        # answers of several sizes are compared whatever the beam is
        beam["only"] = None if model.max_target_ratio else beam.get("size")
    return sections


def rule_faults(builder: RecordingBuilder, model: EncoderDecoder) -> Iterator[Fault]:
    """Yield a fault or a warning for each setting that is written and dead by a rule; of nested ones, the outermost."""
    recipe, sections = builder.recipe, facts(builder, model)
    faults: dict[Path, Fault] = {}
    masks = [
        rule._replace(cause=f"data.table.{side}.spec_augment.{rule.cause}", certain=False)
        for side in recipe.sources
        for rule in MASKS
    ]
    for rule in (*RULES, *masks):
        cause, value = lookup(sections, rule.cause)
        if not cause or not (rule.when(value) if callable(rule.when) else value == rule.when):
            continue
        for name in rule.settings.split():
            path, _ = lookup(sections, rule.cause.rpartition(".")[0] + name if name[0] == "." else name)
            if path and recipe.locate(path)[2] and not any(path[:end] in faults for end in range(len(path) + 1)):
                fault = recipe.no_effect(path, rule.message, f"remove `{path[-1]}`", cause)
                faults[path] = fault if rule.certain else fault.as_warning()
    yield from faults.values()


def lookup(sections: Mapping[str, Any], name: str) -> tuple[Path, Any]:
    """Return the path of a name in a recipe, and the value there; () and None if it is not there.

    `*` is the first key of a mapping, and the first item of a list.
    """
    path: Path = ()
    value: Any = sections
    for key in name.split("."):
        if isinstance(value, list):
            value = dict(enumerate(value))
            if key != "*":
                return (), None
        step: Any = next(iter(value), "") if key == "*" and isinstance(value, dict) else key
        if not isinstance(value, dict) or step not in value:
            return (), None
        path, value = (*path, step), value[step]
    return path, value


def no_effect_faults(builder: RecordingBuilder, model: EncoderDecoder, sizes: Mapping[str, int]) -> list[Fault]:
    """Return a fault or a warning for all that changes nothing in the recipe whose model has been built."""
    recipe = builder.recipe
    faults = [*builder_faults(builder), *rule_faults(builder, model)]
    before = recipe.before_overrides() if any(fault.severity == "error" for fault in faults) else None
    if before is None:
        return faults
    first = RecordingBuilder(before)
    try:
        with torch.device("meta"):
            first_model = first.model(defaultdict(lambda: max(sizes.values()), sizes))
        known = {*builder_faults(first), *rule_faults(first, first_model)}
    except RecipeError:
        known = set()
    # what changes nothing only since an override or an axis has its value is no fault of the recipe
    return [fault if fault in known or fault.severity == "warning" else recipe.overruled(fault) for fault in faults]


def builder_faults(builder: RecordingBuilder) -> Iterator[Fault]:
    """Yield the faults and warnings of settings, named stacks and defaults under `model`."""
    recipe = builder.recipe
    settings = {(*path, setting) for path in builder.names for setting in recipe.settings_at(path)}
    # what changes something at a block, as it is written
    no_effects = builder.no_effects | overwritten_scales(builder)
    effective = {recipe.locate(path)[1] for path in settings - no_effects.keys()}
    reported: set[Path] = set()
    for path, (message, fix) in no_effects.items():
        _, steps, _ = recipe.locate(path)
        if steps not in effective | reported:  # a default may change something at another block
            yield recipe.no_effect(path, message, fix)
        reported.add(steps)
    yield from column_faults(builder)
    for name, uses in builder.uses.items():
        if len(uses) == 1 and uses[0][1]:
            message = f"this is the only use of `{name}`, so it shares with none"
            yield recipe.no_effect((*uses[0][0], "copy"), message, "remove `copy`")
    for name in recipe.model["stacks"] or {}:
        if name not in builder.uses:
            fix = f"write `- use: {name}`, or remove it"
            yield recipe.no_effect(("model", "stacks", name), "no `use` names this stack", fix)
            yield from builder.unused_stack(name)
    for path in recipe.written_defaults():
        if path not in effective and path not in reported:
            message, fix = f"no block takes this default, `{path[-1]}`", "remove it, or write it at a block"
            yield recipe.fault("unused", path, message, fix).as_warning()


CELLWISE = frozenset(("activation", "dropout", "feed_forward", "highway", "identity", "linear", "maxout", "norm"))
CELLWISE |= {"mixture_of_experts", "parallel", "positions", "repeat", "residual", "scale", "use"}
"""Blocks that join no columns of a grid; those in their stacks may."""


def column_faults(builder: RecordingBuilder) -> Iterator[Fault]:
    """Yield a fault of an encoder that selects a column without the source, or of columns that never reach that one."""
    recipe = builder.recipe
    for _, _, path, stack in encoder_stacks(recipe.model):
        words = [next(iter(entry)) for entry in stack]
        if "grid" not in words or "select_column" not in words[(start := words.index("grid")) :]:
            continue
        end = words.index("select_column", start)
        grid, index = stack[start]["grid"], stack[end]["select_column"]["index"]
        between = stack[start + 1 : end]
        carried = read = math.inf
        if "as" not in grid:
            stacks = recipe.model["stacks"] or {}
            carried, read = (column_reach(between, stacks, after) for after in (False, True))
        at = (*path, start, "grid", "columns")
        if index > carried:
            message = (
                f"nothing of the source reaches column {index}: it is in column 0, and kernels carry it {carried:g} on"
            )
            hint = "write `select_column: 0`, or centred kernels of more columns, such as `kernel: [3, 3]`"
            yield recipe.fault("unused", (*path, end, "select_column", "index"), message, hint)
        elif grid["columns"] > index + read + 1 and recipe.locate(at)[2]:
            message = f"column {index} is selected, and no kernel connects it with a column after {index + read:g}"
            yield recipe.no_effect(at, message, f"write `columns: {index + read + 1:g}`, or kernels of more columns")


def column_reach(
    stack: Sequence[Mapping[str, Any]], stacks: Mapping[str, Any], after: bool, blank: bool = True
) -> float:
    """Return how many columns on blocks carry what is in column 0, or how many `after` its own a column reads.

    It is infinity where that is not known. blank: whether there are only zeros in the other columns at first.
    """
    reach = 0.0
    for entry in stack:
        ((word, settings),) = entry.items()
        if word == "conv2d" and settings["stride"][1] > 1:
            return math.inf
        if word in ("cgru", "conv2d") and not settings.get("saturation"):  # which counts every cell
            reach += kernel_reach(word, settings, after, blank)
        elif word not in CELLWISE or "as" in settings:
            return math.inf
        else:
            branches = settings.get("branches") or [settings.get("stack") or []]
            inner = [*branches.values()] if isinstance(branches, dict) else branches
            inner = [stacks[settings["stack"]]] if word == "use" else inner
            first, later = (
                max((column_reach(blocks, stacks, after, at_first) for blocks in inner), default=0.0)
                for at_first in (blank, False)
            )
            times = settings.get("times", 1)
            more = math.inf if times == "length" else times - 1
            reach += first + (later * more if later and more else 0.0)
        blank = False
    return reach


def kernel_reach(word: str, settings: Mapping[str, Any], after: bool, blank: bool) -> float:
    """Return the `column_reach` of one convolution or cgru."""
    size = settings["kernel"][1]
    right = size - 1 if settings.get("align") == "start" else size // 2
    reach = right if after else size - 1 - right
    # a cgru convolves the state times a gate, which is a convolution itself; of a state of zeros the gate opens nothing
    return 2 * reach if word == "cgru" and not blank else reach


def overwritten_scales(builder: RecordingBuilder) -> dict[Path, tuple[str, str]]:
    """Return the paths of scales of initial weights that `training.initialization` replaces, with reason and fix.

    With weight norm it replaces the direction alone, and the scale stays.
    """
    (word,) = builder.recipe.training.initialization
    blocks = [(path, builder.recipe.settings_at(path)) for path in builder.names if word != "default"]
    reason = f"`training.initialization: {word}` gives these weights a size of its own", "remove `init_scale`"
    scaled = [path for path, block in blocks if block.get("init_scale", 1.0) != 1.0 and not block.get("weight_norm")]
    return {(*path, "init_scale"): reason for path in scaled}
