"""Settings that change nothing beside the others: each is a warning, with its place, the cause and the fix.

A block says so itself, by `NoEffect` in its constructor. Of sections, `RULES` say it from the recipe and its model,
which may be on the meta device. A value that equals the default is fine, and so is a limit that no data reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blocks.core.contract import Path
from composer.errors import Fault, KeyPath
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.output_heads import LinearOutput
from composer.model.recording_builder import RecordingBuilder
from composer.model.weights import matrices_with_layouts
from composer.recipe.metrics import decodes_all
from composer.recipe.recipe import Recipe

Idle = Iterator[tuple[str, str]]
"""Settings that change nothing, their paths separated by spaces, and why."""
SOURCE_TEXTS = "data.parallel.train.source data.parallel.val.source data.parallel.test.source data.table.source "
SOURCE_TEXTS += "data.hub.source data.generate.number_words.source"
SOURCE_MARKS = "data.tokenizer.bits.marks data.tokenizer.bits.numbers"
JOINT = "data.tokenizer.word.joint data.tokenizer.char.joint data.tokenizer.bpe.joint data.tokenizer.unigram.joint"
VALIDATED = "training.early_stopping training.validation_sample training.schedule.plateau training.asgd "
VALIDATED += "trainer.inference_mode"
DECODED = "training.validation_sample evaluation.metrics evaluation.bleu_tokenizer"
WITHOUT_LOGITS = "model.output.kind model.output.bias model.output.tie training.label_smoothing "
WITHOUT_LOGITS += "training.scheduled_sampling"
PROCESSES = "trainer.strategy trainer.timeout_minutes"
WANDB = "logging.wandb.project logging.wandb.name logging.wandb.entity logging.wandb.group logging.wandb.tags "
WANDB += "logging.wandb.config logging.wandb.artifact"


def no_effect_warnings(builder: RecordingBuilder, model: EncoderDecoder) -> Iterator[Fault]:
    """Yield a warning of each setting that changes nothing in the recipe whose model has been built."""
    yield from block_warnings(builder)
    yield from section_warnings(builder.recipe, model)


def section_warnings(recipe: Recipe, model: EncoderDecoder) -> Iterator[Fault]:
    """Yield a warning of each setting that is written and that a rule finds idle; of nested ones, the outermost."""
    causes: dict[KeyPath, str] = {}
    for rule in RULES:
        for settings, cause in rule(recipe, model):
            for setting in settings.split():
                path: KeyPath = (*setting.split("."),)
                if recipe.locate(path)[2]:
                    causes.setdefault(path, cause)
    for path, cause in causes.items():
        if not any(path[:end] in causes for end in range(1, len(path))):
            yield unused(recipe, path, cause, f"remove `{path[-1]}`")


def unused(recipe: Recipe, path: KeyPath, cause: str, fix: str) -> Fault:
    """Return the warning of a setting that changes nothing."""
    return recipe.fault("unused", path, cause, fix).as_warning()


def data_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of how data are read."""
    data = recipe.canonical["data"]
    if recipe.training.max_epochs == 1:
        for task in data["generate"] or ():
            yield f"data.generate.{task}.endless", "new pairs would come in a second epoch"
    for kind in ("parallel", "table", "text"):
        if data[kind] and "hold_out" not in data[kind]:
            yield f"data.{kind}.hold_out", "no `val` or `test` is a number of those that are held out"
    if recipe.training.window:
        yield "data.max_length", "windows have their own length"
    parallel = data["parallel"]
    if parallel and not (parallel["val"] or parallel["test"] or parallel["test_sets"]):
        yield "data.parallel.decontaminate", "there is no `val` and no `test` whose lines could be left out"
    for side in recipe.sources:
        yield from mask_rules(recipe, side)


def case_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield `data.lowercase` where texts have no capitals."""
    data = recipe.canonical["data"]
    if data["babi"]:
        yield "data.lowercase", "stories are read in lower case anyway"
    if data["generate"] and "dialect" not in data["generate"]:
        yield "data.lowercase", "this task has no capitals"
    if "bits" in data["tokenizer"] or "integers" in data["tokenizer"]:
        yield "data.lowercase", "its tokens have no letters"


def mask_rules(recipe: Recipe, side: str) -> Idle:
    """Yield the idle settings of the masks that cover a sound."""
    column = (recipe.canonical["data"]["table"] or {}).get(side)
    masks = column.get("spec_augment") if isinstance(column, dict) else None
    if not masks:
        return
    path = f"data.table.{side}.spec_augment"
    if masks["share"] == 0:
        yield f"{path}.share {path}.frames {path}.frame_masks", "no frame is masked"
    if masks["frame_masks"] == 0:
        yield f"{path}.frames {path}.share", "no frame is masked"
    if masks["band_masks"] == 0:
        yield f"{path}.bands", "no band is masked"


def source_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield what a model without encoders has no use for."""
    if recipe.sources:
        return
    yield f"{SOURCE_TEXTS} {SOURCE_MARKS}", "a model without encoders reads no source"
    yield DECODED, "without encoders, nothing is decoded"
    yield f"{JOINT} training.curriculum.by", "the target is the only side"
    for method in recipe.canonical["decoding"]:
        yield f"decoding.{method}.max_ratio", "without encoders, there is no source to compare with"


def model_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of embeddings, weights and the output."""
    output = recipe.canonical["model"]["output"]
    embeddings = [model.embedding, *(encoder.embedding for encoder in model.readers().values())]
    if all(embedding is None or embedding.reads_features for embedding in embeddings):
        yield "model.embedding model.embedding_dropout", "nothing reads tokens"
    if not any(True for _ in matrices_with_layouts(model)):
        yield "training.initialization", "no block has a matrix to initialize"
    if output["ctc"] and output["ctc"]["weight"] == 1:
        yield WITHOUT_LOGITS, "CTC is alone"
    if not isinstance(model.output, LinearOutput):
        yield "model.output.bias", "its output head has no bias for each token"
    if model.embedding is None:
        yield "training.scheduled_sampling", "the decoder reads no tokens to be replaced"
    if output["length"] == 1:
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
    """Yield what waits for a validation, or decodes in it, where there is none or nothing to decode."""
    data = recipe.canonical["data"]
    if any(data[kind] and not data[kind]["val"] for kind in ("parallel", "table", "text", "hub", "babi")):
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
        yield f"training.schedule.{training.schedule.word}", "the learning rate is that of `constant`"
    sampling = training.scheduled_sampling
    if sampling and sampling.rate == 0:
        yield "training.scheduled_sampling.warmup training.scheduled_sampling.choose", "no token is replaced"
    if training.curriculum and training.curriculum.beyond == 1:
        yield "training.curriculum", "every epoch has all pairs"


def decoding_rules(recipe: Recipe, model: EncoderDecoder) -> Idle:
    """Yield the idle settings of how answers are searched, and those of a validation."""
    output = recipe.canonical["model"]["output"]
    for section in ("decoding", "training.validation_sample.decoding"):
        ((method, search),) = recipe.settings_at(tuple(section.split("."))).items()
        path = f"{section}.{method}"
        if output["ctc"] is None:
            yield f"{path}.ctc_weight", "the model has no CTC"
        elif output["ctc"]["weight"] == 1:
            yield f"{path}.ctc_weight", "CTC is alone"
        if output["length"] == 1:
            yield f"{path}.no_repeat_ngram", "an answer of one token repeats none"
        if output["length"]:
            yield f"{path}.length_penalty", "all answers have the same length"
        # a grid makes room for answers of several sizes, which are compared even by a beam of one
        if search.get("size") == 1 and not model.max_target_ratio:
            yield f"{path}.length_penalty", "a beam of one has nothing to rank"
        if search.get("top_k") == 1:
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
"""Each yields settings that are idle wherever they are written; `section_warnings` looks whether they are."""


def block_warnings(builder: RecordingBuilder) -> Iterator[Fault]:
    """Yield the warnings of settings, named stacks and defaults under `model`."""
    recipe = builder.recipe
    settings = {(*path, setting) for path in builder.names for setting in recipe.settings_at(path)}
    # what changes something at a block, as it is written
    no_effects = builder.no_effects | overwritten_scales(builder)
    effective = {recipe.locate(path)[1] for path in settings - no_effects.keys()}
    reported: set[Path] = set()
    for path, (message, fix) in no_effects.items():
        _, steps, _ = recipe.locate(path)
        if steps not in effective | reported:  # a default may change something at another block
            yield unused(recipe, path, message, fix)
        reported.add(steps)
    for name, uses in builder.uses.items():
        if len(uses) == 1 and uses[0][1]:
            message = f"this is the only use of `{name}`, so it shares with none"
            yield unused(recipe, (*uses[0][0], "copy"), message, "remove `copy`")
    for name in recipe.model.stacks or {}:
        if name not in builder.uses:
            fix = f"write `- use: {name}`, or remove it"
            yield unused(recipe, ("model", "stacks", name), "no `use` names this stack", fix)
    for path in recipe.written_defaults():
        if path not in effective and path not in reported:
            message, fix = f"no block takes this default, `{path[-1]}`", "remove it, or write it at a block"
            yield unused(recipe, path, message, fix)


def overwritten_scales(builder: RecordingBuilder) -> dict[Path, tuple[str, str]]:
    """Return the paths of scales of initial weights that `training.initialization` replaces, with reason and fix.

    With weight norm it replaces the direction alone, and the scale stays.
    """
    initialization = builder.recipe.training.initialization
    if initialization.keeps_matrices:
        return {}
    blocks = [(path, builder.recipe.settings_at(path)) for path in builder.names]
    message = f"`training.initialization: {initialization.word}` gives these weights a size of its own"
    reason = message, "remove `init_scale`"
    scaled = [path for path, block in blocks if block.get("init_scale", 1.0) != 1.0 and not block.get("weight_norm")]
    return {(*path, "init_scale"): reason for path in scaled}
