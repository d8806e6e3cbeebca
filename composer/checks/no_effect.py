"""Settings that change nothing beside the others: each is a warning, with its place, the cause and
the fix.

A block says so itself, by `NoEffect` in its constructor. Of sections, `RULES` say it from the
recipe and its model, which may be on the meta device. A value that equals the default is fine, and
so is a limit that no data reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blocks.core.contract import Path
from blocks.core.fixes import Fix, Remove, remove
from composer.checks.problem import Problem, unused
from composer.errors import KeyPath, format_path
from composer.inference.methods import Beam, Sample
from composer.model.builder import IdleSetting
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.output_heads import LinearOutput
from composer.model.recording_builder import RecordingBuilder
from composer.model.weights import matrices_with_layouts
from composer.recipe.data_sections import TableColumn
from composer.recipe.locations import explicit_defaults
from composer.recipe.metrics import decodes_all
from composer.recipe.recipe import Recipe

Idle = Iterator[tuple[str, str]]
"""Settings that change nothing, their paths separated by spaces, and why."""
SOURCE_TEXTS = (
    "data.parallel.train.source data.parallel.val.source data.parallel.test.source"
    " data.table.source "
)
SOURCE_TEXTS += "data.hub.source data.generate.number_words.source"
SOURCE_MARKS = "data.tokenizer.bits.marks data.tokenizer.bits.numbers"
JOINT = (
    "data.tokenizer.word.joint data.tokenizer.char.joint data.tokenizer.bpe.joint"
    " data.tokenizer.unigram.joint"
)
VALIDATED = (
    "training.early_stopping training.validation_sample training.schedule.plateau training.asgd "
)
VALIDATED += "trainer.inference_mode"
DECODED = "training.validation_sample evaluation.metrics evaluation.bleu_tokenizer"
WITHOUT_LOGITS = "model.output.kind model.output.bias model.output.tie training.label_smoothing "
WITHOUT_LOGITS += "training.scheduled_sampling"
PROCESSES = "trainer.strategy trainer.timeout_minutes"
WANDB = (
    "logging.wandb.project logging.wandb.name logging.wandb.entity logging.wandb.group"
    " logging.wandb.tags "
)
WANDB += "logging.wandb.config logging.wandb.artifact"


def idle_settings(recipe: Recipe, model: EncoderDecoder) -> Iterator[Problem]:
    """Yield a warning of each setting that is written and that a rule finds idle; of nested ones,
    the outermost.
    """
    causes: dict[KeyPath, str] = {}
    for rule in RULES:
        for settings, cause in rule(recipe, model):
            for setting in settings.split():
                path: KeyPath = (*setting.split("."),)
                if recipe.locate(path).is_written:
                    causes.setdefault(path, cause)
    for path, cause in causes.items():
        if not any(path[:end] in causes for end in range(1, len(path))):
            yield unused(path, cause)


def data_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of how data are read."""
    data = recipe.data
    if data.generate and recipe.training.max_epochs == 1:
        yield (
            f"data.generate.{data.generate.word}.endless",
            "new pairs would come in a second epoch",
        )
    for source in (data.parallel, data.table, data.text):
        if source and not (isinstance(source.val, int) or isinstance(source.test, int)):
            yield (
                f"{format_path(source.at)}.hold_out",
                "no `val` or `test` is a number of those that are held out",
            )
    if recipe.training.window:
        yield "data.max_length", "windows have their own length"
    parallel = data.parallel
    if parallel and not (parallel.val or parallel.test or parallel.test_sets):
        yield (
            "data.parallel.decontaminate",
            "there is no `val` and no `test` whose lines could be left out",
        )
    for side in recipe.sources:
        yield from mask_rules(recipe, side)


def case_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield `data.lowercase` where texts have no capitals."""
    data = recipe.data
    if data.babi:
        yield "data.lowercase", "stories are read in lower case anyway"
    if data.generate and not data.generate.has_capitals:
        yield "data.lowercase", "this task has no capitals"
    if not data.tokenizer.has_letters:
        yield "data.lowercase", "its tokens have no letters"


def mask_rules(recipe: Recipe, side: str) -> Idle:
    """Yield the idle settings of the masks that cover a sound."""
    column = recipe.data.table.of_side(side) if recipe.data.table else None
    masks = column.spec_augment if isinstance(column, TableColumn) else None
    if not masks:
        return
    path = format_path(masks.at)
    if masks.share == 0:
        yield f"{path}.share {path}.frames {path}.frame_masks", "no frame is masked"
    if masks.frame_masks == 0:
        yield f"{path}.frames {path}.share", "no frame is masked"
    if masks.band_masks == 0:
        yield f"{path}.bands", "no band is masked"


def source_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield what a model without encoders has no use for."""
    if recipe.sources:
        return
    yield f"{SOURCE_TEXTS} {SOURCE_MARKS}", "a model without encoders reads no source"
    yield DECODED, "without encoders, nothing is decoded"
    yield f"{JOINT} training.curriculum.by", "the target is the only side"
    yield (
        f"decoding.{recipe.decoding.word}.max_ratio",
        "without encoders, there is no source to compare with",
    )


def model_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of embeddings, weights and the output."""
    output = recipe.model.output
    embeddings = [model.embedding, *(encoder.embedding for encoder in model.readers().values())]
    if all(embedding is None or embedding.reads_features for embedding in embeddings):
        yield "model.embedding model.embedding_dropout", "nothing reads tokens"
    if not any(True for _ in matrices_with_layouts(model)):
        yield "training.initialization", "no block has a matrix to initialize"
    if output.ctc and output.ctc.weight == 1:
        yield WITHOUT_LOGITS, "CTC is alone"
    if not isinstance(model.output, LinearOutput):
        yield "model.output.bias", "its output head has no bias for each token"
    if model.embedding is None:
        yield "training.scheduled_sampling", "the decoder reads no tokens to be replaced"
    if output.length == 1:
        yield "training.scheduled_sampling", "for the only token, the decoder reads bos alone"


def window_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield what rows of a text, in windows or whole, have no use for."""
    if not recipe.reads_text:
        yield "training.window training.carry", "pairs are trained on whole, not in windows"
    if recipe.training.window is None:
        yield "evaluation.stride", "the text is not measured in windows"
    else:
        yield "training.curriculum", "all windows are equally long"
    if recipe.training.carry:
        yield "evaluation.stride", "the state is carried, so all of the text is read before"
        yield "training.compile", "windows that go on from a state are not compiled"


def validation_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield what waits for a validation, or decodes in it, where there is none or nothing to
    decode.
    """
    data = recipe.data
    if any(
        source and not source.val
        for source in (data.parallel, data.table, data.text, data.hub, data.babi)
    ):
        yield f"{VALIDATED} trainer.limit_val_batches", "the data have no `val`"
    if recipe.trainer.limit_val_batches == 0:
        yield VALIDATED, "nothing is validated"
    stopping, sample = recipe.training.early_stopping, recipe.training.validation_sample
    if stopping and stopping.patience is None:
        yield "training.early_stopping.min_delta", "no validation is waited for"
        if stopping.goal is None and stopping.metric == "val/loss":
            yield "training.early_stopping", "it stops nothing"
    if stopping and decodes_all(stopping.metric):
        yield "training.validation_sample", "early stopping decodes all lines"
    if sample.lines == 0:
        yield "training.validation_sample.decoding", "nothing is decoded"
    if "bleu" not in (recipe.evaluation.metrics or ["bleu"]):
        yield "evaluation.bleu_tokenizer", "BLEU is not among the metrics"


def training_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of how a model learns."""
    training = recipe.training
    if getattr(training.schedule, "final", None) == 1:
        yield (
            f"training.schedule.{training.schedule.word}",
            "the learning rate is that of `constant`",
        )
    sampling = training.scheduled_sampling
    if sampling and sampling.rate == 0:
        yield (
            "training.scheduled_sampling.warmup training.scheduled_sampling.choose",
            "no token is replaced",
        )
    if training.curriculum and training.curriculum.beyond == 1:
        yield "training.curriculum", "every epoch has all pairs"


def decoding_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of how answers are searched, and those of a validation."""
    output = recipe.model.output
    for search in (recipe.decoding, recipe.training.validation_sample.decoding):
        path = format_path(search.at)
        if output.ctc is None:
            yield f"{path}.ctc_weight", "the model has no CTC"
        elif output.ctc.weight == 1:
            yield f"{path}.ctc_weight", "CTC is alone"
        if output.length == 1:
            yield f"{path}.no_repeat_ngram", "an answer of one token repeats none"
        if output.length:
            yield f"{path}.length_penalty", "all answers have the same length"
        # a grid makes room for answers of several sizes, which are compared even by a beam of one
        if isinstance(search, Beam) and search.size == 1 and not model.max_target_ratio:
            yield f"{path}.length_penalty", "a beam of one has nothing to rank"
        if isinstance(search, Sample) and search.top_k == 1:
            chance = f"{path}.temperature {path}.top_p {path}.min_p {path}.seed"
            yield chance, "the most probable token is always taken"


def machine_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of devices and of the log."""
    trainer, wandb = recipe.trainer, recipe.logging.wandb
    count = len(trainer.devices) if isinstance(trainer.devices, tuple) else trainer.devices
    if trainer.accelerator in ("cpu", "mps", "tpu"):
        yield "trainer.benchmark", "cuDNN is for NVIDIA GPUs"
    if trainer.accelerator == "mps" or count == trainer.num_nodes == 1:
        yield PROCESSES, "there is one process"
    elif count == 1:
        yield PROCESSES, "one device is one process, unless a launcher starts more machines"
    if trainer.log_every_n_steps > 10:
        yield "trainer.log_every_n_steps", "10 is the most"
    if wandb and wandb.mode == "disabled":
        yield WANDB, "nothing is sent to W&B"


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
"""Each yields settings that are idle wherever they are written; `idle_settings` looks whether they
are.
"""


def idle_in_blocks(builder: RecordingBuilder) -> Iterator[Problem]:
    """Yield the warnings of settings, named stacks and defaults under `model`."""
    recipe = builder.recipe
    settings = {(*path, setting) for path in builder.names for setting in recipe.settings_at(path)}
    idle = builder.idle_settings | overwritten_scales(builder)
    # what changes something at a block, as it is written
    effective = {recipe.locate(path).path for path in settings - idle.keys()}
    reported: set[Path] = set()
    for path, (reason, fix) in idle.items():
        steps = recipe.locate(path).path
        if steps not in effective | reported:  # a default may change something at another block
            yield unused(path, reason, fix)
        reported.add(steps)
    for name, uses in builder.uses.items():
        if len(uses) == 1 and uses[0][1]:
            message = f"this is the only use of `{name}`, so it shares with none"
            yield unused((*uses[0][0], "copy"), message)
    for name in recipe.model.stacks or {}:
        if name not in builder.uses:
            stack = ("model", "stacks", name)
            fix = Fix(f"write `- use: {name}`, or remove it", Remove(stack))
            yield unused(stack, "no `use` names this stack", fix)
    for path in explicit_defaults(recipe.root, recipe.rules):
        if path not in effective and path not in reported:
            message = f"no block takes this default, `{path[-1]}`"
            yield unused(path, message, Fix("remove it, or write it at a block", Remove(path)))


def overwritten_scales(builder: RecordingBuilder) -> dict[Path, IdleSetting]:
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
