"""Warnings of settings that change nothing because of other settings.

A block raises `NoEffect` in its constructor. For sections, `RULES` find them from the recipe and
its model, which may be on the meta device. A value that equals the default is fine, and so is a
limit that no data reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from blocks.core.fixes import Fix, Remove, remove
from composer.checks.problem import Problem, unused
from composer.data.pairs import TARGET
from composer.errors import KeyPath, format_path
from composer.inference.methods import Beam, Sample
from composer.metrics.table import decodes_all
from composer.model.builder import IdleSetting
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.output_heads import LinearOutput
from composer.model.recording_builder import RecordingBuilder
from composer.model.weights import matrices_with_layouts
from composer.recipe.data_sections import TableColumn
from composer.recipe.locations import explicit_defaults
from composer.recipe.recipe import Recipe

SOURCE_TEXTS = (
    "data.parallel.train.source",
    "data.parallel.val.source",
    "data.parallel.test.source",
    "data.table.source",
    "data.hub.source",
    "data.prefix.source",
    "data.generate.number_words.source",
    "data.tokenizer.bits.marks",
    "data.tokenizer.bits.numbers",
)
JOINT = (
    "data.tokenizer.word.joint",
    "data.tokenizer.char.joint",
    "data.tokenizer.bpe.joint",
    "data.tokenizer.unigram.joint",
)
VALIDATED = (
    "training.early_stopping",
    "training.validation_sample",
    "training.schedule.plateau",
    "training.asgd",
    "trainer.inference_mode",
)
DECODED = ("training.validation_sample", "evaluation.metrics", "evaluation.bleu_tokenizer")
OF_LOGITS = (
    "model.output.kind",
    "model.output.bias",
    "model.output.tie",
    "training.label_smoothing",
    "training.scheduled_sampling",
)
OF_PROCESSES = ("trainer.strategy", "trainer.timeout_minutes")
WANDB = (
    "logging.wandb.project",
    "logging.wandb.name",
    "logging.wandb.entity",
    "logging.wandb.group",
    "logging.wandb.tags",
    "logging.wandb.config",
    "logging.wandb.artifact",
)


class IdleSettings(NamedTuple):
    """Settings that change nothing, and why."""

    reason: str
    paths: tuple[str, ...]


Idle = Iterator[IdleSettings]


def idle(reason: str, *paths: str) -> IdleSettings:
    """Return the settings at these paths as idle, wherever they are written."""
    return IdleSettings(reason, paths)


def idle_settings(recipe: Recipe, model: EncoderDecoder) -> Iterator[Problem]:
    """Yield a warning of each written setting that a rule calls idle, of nested ones the outer."""
    reasons: dict[KeyPath, str] = {}
    for rule in RULES:
        for reason, settings in rule(recipe, model):
            for setting in settings:
                path: KeyPath = (*setting.split("."),)
                if recipe.locate(path).is_written:
                    reasons.setdefault(path, reason)
    for path, reason in reasons.items():
        if not any(path[:end] in reasons for end in range(1, len(path))):
            yield unused(path, reason)


def data_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of how data are read."""
    data = recipe.data
    if data.generate and recipe.training.max_epochs == 1:
        reason = "new pairs would come in a second epoch"
        yield idle(reason, f"data.generate.{data.generate.word}.endless")
    for source in (data.parallel, data.table, data.text):
        if source and not (isinstance(source.val, int) or isinstance(source.test, int)):
            reason = "no `val` or `test` is a number of those that are held out"
            yield idle(reason, f"{format_path(source.at)}.hold_out")
    if recipe.training.window:
        yield idle("windows have their own length", "data.max_length")
    parallel = data.parallel
    if parallel and not (parallel.val or parallel.test or parallel.test_sets):
        reason = "there is no `val` and no `test` whose lines could be left out"
        yield idle(reason, "data.parallel.decontaminate")
    for side in (*recipe.sources, TARGET):
        if data.prefix and data.prefix.of_side(side) == "":
            yield idle("an empty text changes no line", f"data.prefix.{side}")
    for side in recipe.sources:
        yield from mask_rules(recipe, side)


def case_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield `data.lowercase` where texts have no capitals."""
    data = recipe.data
    if data.babi:
        yield idle("stories are read in lower case anyway", "data.lowercase")
    if data.generate and not data.generate.has_capitals:
        yield idle("this task has no capitals", "data.lowercase")
    if not data.tokenizer.has_letters:
        yield idle("its tokens have no letters", "data.lowercase")


def mask_rules(recipe: Recipe, side: str) -> Idle:
    """Yield the idle settings of the masks that cover a sound."""
    column = recipe.data.table.of_side(side) if recipe.data.table else None
    masks = column.spec_augment if isinstance(column, TableColumn) else None
    if not masks:
        return
    path = format_path(masks.at)
    if masks.share == 0:
        yield idle("no frame is masked", f"{path}.share", f"{path}.frames", f"{path}.frame_masks")
    if masks.frame_masks == 0:
        yield idle("no frame is masked", f"{path}.frames", f"{path}.share")
    if masks.band_masks == 0:
        yield idle("no band is masked", f"{path}.bands")


def source_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the settings of sources in a model without encoders."""
    if recipe.sources:
        return
    yield idle("a model without encoders reads no source", *SOURCE_TEXTS)
    yield idle("without encoders, nothing is decoded", *DECODED)
    yield idle("the target is the only side", *JOINT, "training.curriculum.by")
    reason = "without encoders, there is no source to compare with"
    yield idle(reason, f"decoding.{recipe.decoding.word}.max_ratio")


def model_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of embeddings, weights and the output."""
    output = recipe.model.output
    embeddings = [model.embedding, *(encoder.embedding for encoder in model.readers().values())]
    if all(embedding is None or embedding.reads_features for embedding in embeddings):
        yield idle("nothing reads tokens", "model.embedding", "model.embedding_dropout")
    if not any(True for _ in matrices_with_layouts(model)):
        yield idle("no block has a matrix to initialize", "training.initialization")
    if output.ctc and output.ctc.weight == 1:
        yield idle("CTC is alone", *OF_LOGITS)
    if not isinstance(model.output, LinearOutput):
        yield idle("its output head has no bias for each token", "model.output.bias")
    sampling = "training.scheduled_sampling"
    if model.embedding is None:
        yield idle("the decoder reads no tokens to be replaced", sampling)
    if output.length == 1:
        yield idle("for the only token, the decoder reads bos alone", sampling)


def window_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of rows of a text, with and without windows."""
    if not recipe.reads_text:
        reason = "pairs are trained on whole, not in windows"
        yield idle(reason, "training.window", "training.carry")
    if recipe.training.window is None:
        yield idle("the text is not measured in windows", "evaluation.stride")
    else:
        yield idle("all windows are equally long", "training.curriculum")
    if recipe.training.carry:
        yield idle("the state is carried, so all of the text is read before", "evaluation.stride")
        yield idle("windows that go on from a state are not compiled", "training.compile")


def validation_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of validations and of early stopping."""
    data = recipe.data
    for source in (data.parallel, data.table, data.text, data.hub, data.babi):
        if source and not source.val:
            yield idle("the data have no `val`", *VALIDATED, "trainer.limit_val_batches")
    if recipe.trainer.limit_val_batches == 0:
        yield idle("nothing is validated", *VALIDATED)
    stopping, sample = recipe.training.early_stopping, recipe.training.validation_sample
    if stopping and stopping.patience is None:
        yield idle("no validation is waited for", "training.early_stopping.min_delta")
        if stopping.goal is None and stopping.metric == "val/loss":
            yield idle("it stops nothing", "training.early_stopping")
    if stopping and decodes_all(stopping.metric):
        yield idle("early stopping decodes all lines", "training.validation_sample")
    if sample.lines == 0:
        yield idle("nothing is decoded", "training.validation_sample.decoding")
    if "bleu" not in (recipe.evaluation.metrics or ["bleu"]):
        yield idle("BLEU is not among the metrics", "evaluation.bleu_tokenizer")


def training_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of how a model learns."""
    training = recipe.training
    if getattr(training.schedule, "final", None) == 1:
        reason = "the learning rate is that of `constant`"
        yield idle(reason, f"training.schedule.{training.schedule.word}")
    sampling = training.scheduled_sampling
    if sampling and sampling.rate == 0:
        path = "training.scheduled_sampling"
        yield idle("no token is replaced", f"{path}.warmup", f"{path}.choose")
    if training.curriculum and training.curriculum.beyond == 1:
        yield idle("every epoch has all pairs", "training.curriculum")


def decoding_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of decoding, of the recipe's and of a validation's."""
    output, validating = recipe.model.output, recipe.training.validation_sample.decoding
    yield idle("validations decode with PyTorch", f"{format_path(validating.at)}.engine")
    for search in (recipe.decoding, validating):
        path = format_path(search.at)
        if output.ctc is None:
            yield idle("the model has no CTC", f"{path}.ctc_weight")
        elif output.ctc.weight == 1:
            yield idle("CTC is alone", f"{path}.ctc_weight")
        if output.length == 1:
            yield idle("an answer of one token repeats none", f"{path}.no_repeat_ngram")
        if output.length:
            yield idle("all answers have the same length", f"{path}.length_penalty")
        # a grid makes room for answers of several sizes, which are compared even by a beam of one
        if isinstance(search, Beam) and search.size == 1 and not model.max_target_ratio:
            yield idle("a beam of one has nothing to rank", f"{path}.length_penalty")
        if isinstance(search, Sample) and search.top_k == 1:
            random = ("temperature", "top_p", "min_p", "seed")
            reason = "the most probable token is always taken"
            yield idle(reason, *(f"{path}.{key}" for key in random))


def machine_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of devices and of the log."""
    trainer, wandb = recipe.trainer, recipe.logging.wandb
    count = len(trainer.devices) if isinstance(trainer.devices, tuple) else trainer.devices
    if trainer.accelerator in ("cpu", "mps", "tpu"):
        yield idle("cuDNN is for NVIDIA GPUs", "trainer.benchmark")
    if trainer.accelerator == "mps" or count == trainer.num_nodes == 1:
        yield idle("there is one process", *OF_PROCESSES)
    elif count == 1:
        reason = "one device is one process, unless a launcher starts more machines"
        yield idle(reason, *OF_PROCESSES)
    if trainer.log_every_n_steps > 10:
        yield idle("10 is the most", "trainer.log_every_n_steps")
    if wandb and wandb.mode == "disabled":
        yield idle("nothing is sent to W&B", *WANDB)


RULES: tuple[Callable[[Recipe, EncoderDecoder], Idle], ...] = (
    data_rules,
    case_rules,
    source_rules,
    model_rules,
    window_rules,
    validation_rules,
    training_rules,
    decoding_rules,
    machine_rules,
)


def idle_in_blocks(builder: RecordingBuilder) -> Iterator[Problem]:
    """Yield the warnings of settings of blocks, named stacks and defaults under `model`."""
    recipe = builder.recipe
    settings = builder.idle_settings | overwritten_scales(builder)
    # a default may change something at another block
    effective = set[KeyPath]()
    for block in builder.names:
        for setting in recipe.settings_at(block):
            if (*block, setting) not in settings:
                effective.add(recipe.locate((*block, setting)).path)
    reported = set[KeyPath]()
    for path, (reason, fix) in settings.items():
        steps = recipe.locate(path).path
        if steps not in effective | reported:
            yield unused(path, reason, fix)
        reported.add(steps)
    yield from idle_stacks(builder)
    for path in explicit_defaults(recipe.root, recipe.rules):
        if path not in effective | reported:
            message = f"no block takes this default, `{path[-1]}`"
            yield unused(path, message, Fix("remove it, or write it at a block", Remove(path)))


def idle_stacks(builder: RecordingBuilder) -> Iterator[Problem]:
    """Yield the warnings of named stacks that nothing uses, and of a `copy` that shares nothing."""
    for name, uses in builder.uses.items():
        if len(uses) == 1 and uses[0].is_copy:
            message = f"this is the only use of `{name}`, so it shares with none"
            yield unused((*uses[0].path, "copy"), message)
    for name in builder.recipe.model.stacks or {}:
        if name not in builder.uses:
            stack = ("model", "stacks", name)
            fix = Fix(f"write `- use: {name}`, or remove it", Remove(stack))
            yield unused(stack, "no `use` names this stack", fix)


def overwritten_scales(builder: RecordingBuilder) -> dict[KeyPath, IdleSetting]:
    """Return the scales of initial weights that `training.initialization` replaces, by their paths.

    With weight norm it replaces the direction alone, and the scale stays.
    """
    initialization = builder.recipe.training.initialization
    if initialization.keeps_matrices:
        return {}
    reason = (
        f"`training.initialization: {initialization.word}` gives these weights a size of its own"
    )
    idle = {}
    for block in builder.names:
        settings = builder.recipe.settings_at(block)
        if settings.get("init_scale", 1.0) != 1.0 and not settings.get("weight_norm"):
            path = (*block, "init_scale")
            idle[path] = IdleSetting(reason, remove(path))
    return idle
