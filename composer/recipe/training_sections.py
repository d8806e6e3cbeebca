"""The sections `training`, `evaluation`, `trainer` and `logging` of a recipe: see
`composer.recipe.sections`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from blocks.core.settings import (
    Bounds,
    Count,
    Distinct,
    Kind,
    LargeCount,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveProportion,
    Proportion,
    Rate,
    Seed,
)
from composer.recipe.choices import Decoder, Initialization, Optimizer, Schedule, default
from composer.recipe.data_sections import Text
from composer.recipe.model_sections import Names
from composer.recipe.section import Section

Devices = Annotated[int, Bounds(minimum=1, maximum=128)]
Machines = Annotated[int, Bounds(minimum=1, maximum=10_000)]
Number = Annotated[int, Bounds(minimum=0, maximum=10_000)]


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Section):
    """Ends the training when a metric has stopped getting better, or is good enough.

    Settings:
        patience: How many validations without a better value are waited for; `null` waits until the
            budget is spent.
        metric: Metric to monitor; a loss or a perplexity improves by falling, everything else by
            rising.
        min_delta: A change of no more than this does not count as better.
        goal: The training ends as soon as the metric is at least as good as this.
    """

    patience: Count | None = 5
    metric: Annotated[str, Kind("metric")] = "val/loss"
    min_delta: NonNegative = 0.0
    goal: float | None = None


@dataclass(frozen=True, kw_only=True)
class GradientNoise(Section):
    """Normal noise on every gradient, after clipping (Neelakantan et al. 2015, section 3).

    Settings:
        scale: Its variance in the first step; the paper tries 0.01, 0.3 and 1.
        decay: In step t, from 0, the variance is scale / (1 + t)^decay.
    """

    scale: Positive = 1.0
    decay: NonNegative = 0.55


@dataclass(frozen=True, kw_only=True)
class ScheduledSampling(Section):
    """The decoder reads some of its own tokens in training, as in translation (Bengio et al. 2015).

    The parallel form of Mihaylova & Martins 2019: a first pass over the reference predicts a token
    at each position, and the second pass, which learns, reads some of these. A step costs one more
    forward pass.

    Settings:
        rate: Final probability that a token which the decoder reads is replaced; the first one,
            bos, never is.
        warmup: The share of the budget over which the probability rises from 0 to `rate`.
        choose: The replacement: argmax, the most probable token, or sample, one drawn by its
            probability.
    """

    rate: Proportion = 0.1
    warmup: Proportion = 0.5
    choose: Literal["argmax", "sample"] = "argmax"


@dataclass(frozen=True, kw_only=True)
class Curriculum(Section):
    """Short pairs first: an epoch has pairs up to a length, its level, which rises with mastery.

    Settings:
        start: The level of the first two epochs; tokens of a pair, eos not counted.
        step: How much the level rises after a mastered epoch; each level lasts two epochs or more.
        error: Raise the level when the error rate on the longest pairs within it (its last `step`
            lengths) is below this; above 0, at most 1.
        beyond: The probability, 0 to 1, that an epoch has a pair that is longer than its level.
        by: The side whose tokens count: `source`, `target` or an encoder's name; without it the
            longest of a pair's sources.
    """

    start: Count = 6
    step: Count = 1
    error: PositiveProportion = 0.15
    beyond: Proportion = 0.2
    by: Text | None = None


@dataclass(frozen=True, kw_only=True)
class ValidationSample(Section):
    """Lines that are decoded at each validation. Their scores are called `val_sample/bleu` and so
    on; losses are of all lines, and so are the scores at the end of the training, `val/bleu`.

    Settings:
        lines: How many of those with a source, from the beginning of the validation part; all with
            `null`.
        decoding: Decoding method; the one of the recipe may be slower.
    """

    lines: NonNegativeInt | None = 200
    decoding: Annotated[Decoder, Kind("choice:decoders")] = default("greedy")


@dataclass(frozen=True, kw_only=True)
class Ema(Section):
    """Exponential moving average of the weights of all steps (EMA). Validations, `--checkpoint` and
    the final weights are of the average; the training goes on with its own.

    Settings:
        decay: The share of the average that stays in a step, above 0 and below 1; in step t (1 + t)
            / (10 + t) at most.
    """

    decay: Annotated[float, Bounds(above=0.0, below=1.0)] = 0.999


@dataclass(frozen=True, kw_only=True)
class Asgd(Section):
    """Averaged SGD, with the trigger of NT-ASGD (Merity et al. 2018): the mean of the weights of
    all steps since the validation has stalled. Validations, `--checkpoint` and the final weights
    are of the mean; the training goes on with its own. The paper's optimizer is `sgd`.

    Settings:
        patience: Validation has stalled when its loss is above the best loss before the last so
            many validations.
    """

    patience: Count = 5


@dataclass(frozen=True, kw_only=True)
class ParameterGroup(Section):
    """Blocks that are trained with a learning rate or a weight decay of their own, or not at all.

    Settings:
        blocks: Their paths, as `plan` prints them: `encoder`, `decoder[1].repeat`,
            `encoder.embedding`, `output`. A path covers everything in the block; of several paths
            the longest counts.
        factor: Factor of the learning rate; 0 freezes: no gradient, and no optimizer state.
        weight_decay: Weight decay of all their parameters, matrices or not, in place of the
            optimizer's.
    """

    blocks: Annotated[Sequence[str], Kind("names")]
    factor: NonNegative | None = None
    weight_decay: NonNegative | None = None


@dataclass(frozen=True, kw_only=True)
class HiddenPair(Section):
    """Outputs of the student and of the teacher that are to be alike, by the names that `as` gives
    them; those of an encoder are called `encoder.NAME`.

    Settings:
        student: Name in this recipe.
        teacher: Name in the teacher's recipe.
    """

    student: Annotated[str, Kind("memory")]
    teacher: Annotated[str, Kind("memory")]


@dataclass(frozen=True, kw_only=True)
class Distillation(Section):
    """The model learns from the probabilities of a trained one, its teacher (Hinton et al. 2015,
    arXiv 1503.02531): the loss of a token is (1 - w) CE + w T^2 KL(p_teacher || p_student), with
    both distributions softened by T, softmax(logits / T).

    Settings:
        teacher: Folder of a finished run with the same tokenizer and encoders; looked up under
            `--data`, then beside the recipe.
        temperature: T.
        weight: w, the share of the teacher in the loss.
        hidden: Outputs whose mean squared difference is added to the teacher's part, the student's
            through a learned linear map where widths differ (Romero et al. 2015, arXiv 1412.6550).
    """

    teacher: Text
    temperature: Positive = 2.0
    weight: Proportion = 0.5
    hidden: Sequence[HiddenPair] = ()


@dataclass(frozen=True, kw_only=True)
class Lora(Section):
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685): W + (alpha / rank) B A in place of W,
    where B begins as zeros.

    Settings:
        rank: Rows of A.
        alpha: Factor of the adapters, as many as `rank` for a factor of 1.
        blocks: Paths of blocks as in `parameter_groups`, each of which covers all linear maps in
            it.
    """

    rank: Count = 8
    alpha: Positive = 16.0
    blocks: Annotated[Sequence[str], Kind("names")]


@dataclass(frozen=True, kw_only=True)
class Adapters(Section):
    """Small matrices are trained beside those of another run (`--from`), which stay as they are
    with all other parameters. The final weights of the run contain them.

    Settings:
        lora: Low-rank adapters.
    """

    lora: Lora


@dataclass(frozen=True, kw_only=True)
class Training(Section):
    """How the model is trained. The first budget that is reached ends it; without any, `max_epochs`
    is 10.

    Settings:
        optimizer: Optimizer.
        schedule: The learning rate over the budget.
        parameter_groups: Blocks with a learning rate or weight decay of their own, or frozen. A
            parameter that several share has the smallest: with tied embeddings, a frozen `encoder`
            freezes the output.
        distillation: A teacher whose probabilities the model learns.
        adapters: Small matrices that are trained in place of the weights of another run.
        max_steps: Updates of the weights.
        max_epochs: Passes over the training data.
        max_minutes: Minutes of training; on a CPU, of the process's own time over its threads.
        tokens_per_batch: Padded target positions of one update, over all devices and accumulation.
        window: Of `data.text`, how many tokens of the text one row has, wherever its documents end.
            Each document, and each line that is scored or written, follows the end of another.
            Without it, a row is a document.
        carry: Whether the state goes from one window to the next (truncated back-propagation
            through time): the text is cut into as many streams as there are rows in a batch,
            `tokens_per_batch` / `window`.
        label_smoothing: The share of the probability that is spread over the whole vocabulary.
        clip_norm: The gradient is scaled down to this norm if it is larger.
        gradient_noise: Normal noise on the gradient, which decays.
        scheduled_sampling: How often the decoder reads its own tokens in place of the true ones.
        initialization: Initial values of the blocks' matrices; without effect where a run starts
            from another run's weights.
        accumulate: Gradient accumulation steps; the update is the same, with less memory.
        validate_every: Steps between validations; once an epoch without it.
        validation_sample: What is decoded at each validation.
        early_stopping: When to end before the budget.
        curriculum: Which pairs an epoch has, by their length; all of them without it.
        average_checkpoints: How many of the last checkpoints are averaged at the end; 1 keeps the
            best one.
        ema: A moving average of the weights, in place of the weights of a step.
        asgd: The mean of the weights since the validation has stalled, in place of the weights of a
            step.
        checkpoints_gib: Disk space for checkpoints, in GiB. As many as fit are kept, the oldest
            deleted first, the last and the best never; without it, the last two and the best.
        precision: Floating-point precision. `bf16-mixed` is fast on a GPU and on a CPU with
            AVX-512, slow on others.
        compile: Whether the model is compiled first. It pays on a GPU after a minute or more, but
            not with loops over positions (rnn, recurrent, ...), which are compiled for each length.
        workers: Processes that prepare batches beside the training; the result is the same.
        seed: Seed of all random number generators.
    """

    optimizer: Annotated[Optimizer, Kind("choice:optimizers")] = default("adam")
    schedule: Annotated[Schedule, Kind("choice:schedules")] = default("constant")
    parameter_groups: Sequence[ParameterGroup] | None = None
    distillation: Distillation | None = None
    adapters: Adapters | None = None
    max_steps: LargeCount | None = None
    max_epochs: Count | None = None
    max_minutes: Positive | None = None
    tokens_per_batch: LargeCount = 4096
    window: Count | None = None
    carry: bool = False
    label_smoothing: Rate = 0.0
    clip_norm: Positive | None = None
    gradient_noise: GradientNoise | None = None
    scheduled_sampling: ScheduledSampling | None = None
    initialization: Annotated[Initialization, Kind("choice:initializations")] = default("default")
    accumulate: Count = 1
    validate_every: LargeCount | None = None
    validation_sample: ValidationSample = ValidationSample()
    early_stopping: EarlyStopping | None = None
    curriculum: Curriculum | None = None
    average_checkpoints: Count = 1
    ema: Ema | None = None
    asgd: Asgd | None = None
    checkpoints_gib: Positive | None = None
    precision: Literal[32, "bf16-mixed", "16-mixed", "bf16-true", 64] = 32
    compile: bool = False
    workers: Annotated[int, Bounds(minimum=0, maximum=256)] = 0
    seed: Seed = 1

    @property
    def limits(self) -> dict[str, float | None]:
        """The limits of its budget, by their keys."""
        return {
            "max_steps": self.max_steps,
            "max_epochs": self.max_epochs,
            "max_minutes": self.max_minutes,
        }

    @property
    def selection_metric(self) -> str:
        """The key of the score by which the best checkpoint is chosen."""
        return self.early_stopping.metric if self.early_stopping else "val/loss"


@dataclass(frozen=True, kw_only=True)
class Evaluation(Section):
    """How outputs are compared with their references.

    Settings:
        metrics: Metrics to compute. Default: BLEU, chrF and exact match where most references of
            val have four words, else exact match, an error rate and chrF.
        bleu_tokenizer: How BLEU reads words: 13a, at spaces and punctuation; char, each character;
            zh, Chinese characters; ja-mecab, Japanese words; flores200, pieces of SentencePiece for
            200 languages.
        stride: Of a text in windows whose state is not carried, the tokens measured at the end of
            each window; those before are context. By default all, so the first tokens of a window
            have no context.
    """

    metrics: Annotated[Sequence[str], Kind("text_metrics")] | None = None
    bleu_tokenizer: Literal["13a", "char", "zh", "ja-mecab", "flores200"] = "13a"
    stride: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Trainer(Section):
    """The machine: devices and processes. All may change on `--resume` except `limit_val_batches`,
    because it affects which checkpoint is best.

    Settings:
        accelerator: auto, cpu, gpu, mps, tpu.
        devices: Devices per machine, a list of their numbers, or auto: all; under a launcher as
            many as it started; on CPUs one process, whose threads use the whole machine.
        num_nodes: How many machines, or auto: as many as the launcher says, else one.
        strategy: How several devices work together: ddp, each with the whole model; fsdp, each with
            a part of it; auto is ddp where there are several.
        timeout_minutes: How long a process waits for another before all end, in minutes.
        deterministic: Whether only deterministic algorithms are used: true, false or warn; without
            it, as torch is set.
        benchmark: Whether cuDNN looks for the fastest algorithms.
        limit_val_batches: The share of the validation data that is measured (0.5), or roughly the
            number of batches (3): the same sample of long and short lines at every validation; of a
            carried text its beginning.
        log_every_n_steps: Steps between two rows of the metrics; 10 at most.
        inference_mode: Whether validation runs in inference mode.
        detect_anomaly: Whether autograd looks for the origin of a NaN; slow.
        profiler: simple, advanced or pytorch.
        enable_progress_bar: Whether progress is shown.
        enable_model_summary: Whether Lightning prints a summary of the model.
    """

    accelerator: Literal["auto", "cpu", "gpu", "mps", "tpu"] = "auto"
    devices: Literal["auto"] | Devices | Annotated[tuple[Number, ...], Distinct()] = "auto"
    num_nodes: Literal["auto"] | Machines = "auto"
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    timeout_minutes: Annotated[float, Bounds(above=0.0, maximum=100_000.0)] = 10.0
    deterministic: bool | Literal["warn"] | None = None
    benchmark: bool | None = None
    limit_val_batches: Number | Proportion = 1.0
    log_every_n_steps: Count = 10
    inference_mode: bool = True
    detect_anomaly: bool = False
    profiler: Literal["simple", "advanced", "pytorch"] | None = None
    enable_progress_bar: bool = True
    enable_model_summary: bool = False


@dataclass(frozen=True, kw_only=True)
class WandB(Section):
    """Where Weights & Biases keeps the run. It goes online when the user is logged in; `WANDB_MODE`
    is obeyed.

    Settings:
        project: The project; `seqcomposer` without it.
        name: The run's name; the recipe's without it.
        entity: The user or team; the default one of the login without it.
        group: The run's group; for a sweep's trial, the sweep.
        tags: Tags, beside the families of blocks that the model has, such as attention or
            recurrence.
        config: Keys of the run's config beside the recipe's own; for a sweep's trial, the values of
            its axes.
        artifact: final logs the final model, packed, as the artifact model-ID, which `seqcomposer
            pull wandb:` takes; it is as large as the weights. none logs no model.
        mode: online, offline or disabled; by the login without it.
    """

    project: Text | None = None
    name: Text | None = None
    entity: Text | None = None
    group: Text | None = None
    tags: Names | None = None
    config: Annotated[dict[str, Any], Kind("run_config")] | None = None
    artifact: Literal["final", "none"] = "final"
    mode: Literal["online", "offline", "disabled"] | None = None


@dataclass(frozen=True, kw_only=True)
class Logging(Section):
    """Where metrics go besides `metrics.jsonl`; without it, W&B offline inside the run folder.

    Settings:
        wandb: Weights & Biases; `false` disables it.
    """

    wandb: WandB | Literal[False] | None = None
