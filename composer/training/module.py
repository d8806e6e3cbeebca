"""LightningModule of a recipe: loss, scheduled sampling, optimizer, learning rate, scores."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.nn import Parameter
from torch.optim import Optimizer

from blocks.core.contract import Block, Penalties, State, reduce_penalties
from composer.data.collate import BatchLoader
from composer.data.tokenizer import Tokenizers
from composer.errors import RunFailed
from composer.inference.run import Run
from composer.metrics.table import token_scores
from composer.model.adapters import adapter_parameters, add_adapters, training_factors
from composer.model.builder import build
from composer.model.characters import write_characters
from composer.model.encoder_decoder import NO_INPUTS, EncoderDecoder, StepInputs, map_leaves
from composer.model.special_tokens import BOS, EOS, PAD
from composer.model.trained_parameters import trained_parameters
from composer.model.weights import count_parameters, initialize
from composer.recipe.choices import Progress
from composer.recipe.recipe import Recipe, load_checkpoint_text
from composer.recipe.training_sections import GradientNoise
from composer.training.distillation import DistillationLoss, Teacher, build_projections
from composer.training.lightning import LightningModule, Strategy
from composer.training.loss import sum_costs
from composer.training.sharding import full_state, is_sharded, local_part, shard

Batch = Mapping[str, Any]
"""A batch as `composer.data.collate` makes it."""
VALIDATION = -1
"""The number of the streams of the validation text, whose state is not that of any training."""
UNCOMPILED = (
    "`training.compile`: this model is compiled anew for every length, as loops over positions are;"
    " the training continues uncompiled, and would have been faster without this setting"
)


class Seq2SeqModule(LightningModule):
    """LightningModule of a recipe: its model with its loss, optimizer and learning-rate schedule.

    It trains in any `Trainer` with a `RecipeDataModule`, and then logs `train/loss`,
    `train/learning_rate` and the validation scores itself. In `composer.train`,
    `TrainingLoopCallback` sets `loop_progress`, takes the sums when a row of metrics is due, and
    writes them: so no step waits for the device.

    Its only hyper-parameters are the texts of recipe and tokenizer, so a checkpoint is plain data,
    which `load_from_checkpoint` reads without running code.
    """

    def __init__(
        self, recipe: str, tokenizer: str, parsed: tuple[Recipe, Tokenizers] | None = None
    ) -> None:
        """Build the model of a recipe's text for a tokenizer's.

        parsed: Recipe and tokenizers, if they have been read from these texts.
        """
        super().__init__()
        self.save_hyperparameters("recipe", "tokenizer", logger=False)
        self.recipe, self.tokenizers = parsed or (
            load_checkpoint_text(recipe),
            Tokenizers.from_text(tokenizer),
        )
        self.model = self.build_model()
        self.num_parameters = count_parameters(self.model)
        if self.recipe.training.adapters is None:
            self.freeze_untrained()
        self.train_forward: Callable[..., Tensor] = self.model.__call__
        self.carried: dict[int, State] = {}
        blocks = [module for module in self.model.modules() if isinstance(module, Block)]
        self.teacher: Teacher | None = None
        self.projections = nn.ModuleList()
        self.counting_blocks = [
            block for block in blocks if type(block).finish_step is not Block.finish_step
        ]
        self.changing_blocks = [
            block for block in blocks if type(block).set_progress is not Block.set_progress
        ]
        self.loop_progress: Progress | None = None
        self.val_losses: list[float] = []
        self.spent: Tensor
        self.register_buffer("spent", torch.zeros(()), persistent=False)
        self.last_batch: Batch = {}
        self.train_sums = DeviceSums()
        self.val_sums = DeviceSums()

    @classmethod
    def from_recipe(cls, recipe: Recipe, tokenizers: Tokenizers) -> Seq2SeqModule:
        """Return the module with fresh weights, drawn from torch's global stream."""
        module = cls(recipe.dump(), tokenizers.text, (recipe, tokenizers))
        initialize(module.model, recipe.training.initialization)
        module.add_adapters()
        return module

    def add_adapters(self) -> None:
        """Put the adapters of the recipe beside the matrices, whose values must be there by now."""
        if self.recipe.training.adapters is not None and not adapter_parameters(self.model):
            add_adapters(self.recipe, self.model)
            self.freeze_untrained()

    def learn_from(self, run: Run) -> None:
        """Take the model of a run as the teacher, and build what maps hidden outputs to its own."""
        settings = self.recipe.training.distillation
        assert settings is not None
        self.projections = build_projections(settings.hidden, self.model, run.model.to(self.device))
        self.teacher = Teacher(run.model, self.model, settings)

    def on_fit_start(self) -> None:
        """Move the teacher to the device of the training."""
        if self.teacher is not None:
            self.teacher.move_to(self.device, next(self.model.parameters()).dtype)

    def freeze_untrained(self) -> None:
        """Compute gradients of those parameters alone that are trained."""
        for name, factor in training_factors(self.recipe, self.model).items():
            self.model.get_parameter(name).requires_grad_(factor > 0)

    def build_model(self) -> EncoderDecoder:
        """Return a new model of the recipe, for the vocabularies of the tokenizers."""
        model = build(self.recipe, self.tokenizers.sizes)
        write_characters(model, lambda side: self.tokenizers.vocabulary(side))
        return model

    def configure_model(self) -> None:
        """Convert and shard the model. Lightning calls this before it loads a checkpoint."""
        self.add_adapters()
        if self.recipe.training.precision == 64:
            # Lightning would do so after it has loaded: half of each number would be lost
            self.double()
        if self.device_mesh is not None and not is_sharded(self.model):
            shard(self.model, self.device_mesh["data_parallel"])

    def compile_model(self, say: Callable[[str], None]) -> None:
        """Compile the forward pass of training alone.

        Evaluation has other shapes and would compile it again.

        A loop over positions is compiled for each length; after too many of them, training goes on
        uncompiled, with a note through `say`. Raises RunFailed where the compiler cannot do it at
        all.
        """
        model = self.model
        compiled = torch.compile(lambda *inputs: model(*inputs))

        def forward(
            sources: Mapping[str, Tensor],
            target: Tensor,
            inputs: StepInputs,
            answer: Tensor | None = None,
        ) -> Tensor:
            try:
                with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                    return compiled(sources, target, inputs, answer)
            except FailOnRecompileLimitHit:
                self.train_forward = model.__call__
                say(UNCOMPILED)
            except TorchDynamoException as error:
                cause = getattr(error, "inner_exception", error)
                lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
                message = (
                    "the model cannot be compiled here:"
                    f" {lines[0] if lines else type(cause).__name__}"
                )
                fix = "set `training.compile: false`, or install a C++ compiler"
                raise RunFailed.of(message, fix) from error
            if inputs.penalties:
                inputs.penalties.clear()  # the part that had run has added its own
            return model(sources, target, inputs, answer)

        self.train_forward = forward

    def unsharded_model(self) -> EncoderDecoder:
        """Return a model for the final weights in 32 bits: itself, if it is whole, or a new one.

        A new one, if it is sharded, has adapters, or was rounded to 16 bits: a checkpoint has no
        tables that are computed.
        """
        is_whole = not is_sharded(self.model) and self.recipe.training.precision != "bf16-true"
        is_plain = self.recipe.training.adapters is None
        return self.model.float() if is_whole and is_plain else self.build_model()

    def full_model(self) -> EncoderDecoder:
        """Return the model to decode with, a copy if it is sharded; a collective call."""
        if not is_sharded(self.model):
            return self.model
        # the copy's random weights must not move the training's stream
        with torch.random.fork_rng(devices=[]):
            model = self.build_model()
        model.load_state_dict(full_state(self.model.state_dict()))
        return model.to(self.device).train(self.model.training)

    def progress(self) -> Progress:
        """Return the training's progress: of the training loop, or of a Trainer without it."""
        if self.loop_progress is not None:
            return self.loop_progress
        share = self.global_step / self.trainer.estimated_stepping_batches
        return Progress(
            self.global_step, min(1.0, share), tuple(self.val_losses), self.trainer.current_epoch
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return this batch's part of the loss per target token of the global batch. -> scalar

        Lightning divides by `accumulate` and averages over the devices; the factor `parts` undoes
        both, so that the gradient is that of the one global batch.
        """
        self.last_batch = batch
        training, spent = self.recipe.training, self.progress().spent
        self.spent.fill_(spent)
        for block in self.changing_blocks:
            if not is_frozen(block):
                block.set_progress(spent)
        penalties: Penalties = {}
        inputs = StepInputs(None, penalties, self.spent, batch["facts"], batch.get("packed", {}))
        target, read = batch["target_out"], self.decoder_input(batch, spent)  # (B, T) each
        if batch.get("window", -1) < 0:
            outputs = self.train_forward(batch["sources"], read, inputs, target)
        else:
            outputs = self.carry_on(read, batch["window"], batch["turn"], inputs, target)
        loss = sum_costs(self.model.output, outputs, target, training.label_smoothing)
        hidden = None
        if training.distillation is not None:
            taught = self.taught_loss(batch, read, outputs)
            self.train_sums.add(distillation=taught.divergence.detach() / batch["tokens"])
            weight, hidden = training.distillation.weight, taught.hidden
            loss = (1.0 - weight) * loss + weight * taught.divergence
        if training.curriculum:
            self.train_sums.add(**count_wrong_rows(outputs, target, batch["graded"]))
        del outputs  # the largest tensor by far: the backward pass needs its memory
        parts = self.trainer.world_size * self.trainer.accumulate_grad_batches
        loss = loss * (self.model.decoder_share * parts / batch["tokens"])
        for (_, reduction), penalty in reduce_penalties(penalties).items():
            loss = loss + penalty * (
                parts / batch["tokens"] if reduction == "tokens" else parts * batch["part"]
            )
        if hidden is not None and training.distillation is not None:
            self.train_sums.add(hidden=hidden.detach() * batch["part"])
            loss = loss + training.distillation.weight * hidden * (parts * batch["part"])
        self.train_sums.add(loss=loss.detach() / parts)
        if self.loop_progress is None:
            self.log("train/loss", loss.detach(), prog_bar=True)
        return loss

    def taught_loss(self, batch: Batch, read: Tensor, outputs: Tensor) -> DistillationLoss:
        """Return what a batch costs by the teacher, which reads what the decoder read, (B, T).

        Raises RunFailed without a teacher.
        """
        if self.teacher is None:
            message = "this module has no teacher to learn from"
            raise RunFailed.of(message, "train with `composer.train`, or call `learn_from` first")
        logits = self.teacher.logits(batch["sources"], read, batch.get("packed", {}))
        return self.teacher.loss(outputs, logits, batch["target_out"], self.projections)

    def carry_on(
        self,
        read: Tensor,
        window: int,
        streams: int,
        inputs: StepInputs = NO_INPUTS,
        answer: Tensor | None = None,
    ) -> Tensor:
        """Compute the next window of some streams, and keep the state after it.

        streams: Which set of streams it is: a number of its own for each turn of an accumulation,
        and for validation.
        """
        outputs, state = self.model.step(
            read, self.state_before(window, streams), {}, inputs, answer
        )
        self.carried[streams] = map_leaves(state, Tensor.detach)
        return outputs

    def state_before(self, window: int, streams: int) -> State | None:
        """Return the state before a window of some streams, None for the first one."""
        return self.carried[streams] if window else None

    def decoder_input(self, batch: Batch, spent: float) -> Tensor:
        """Return the decoder's input: bos and the target, or partly its own outputs. -> (B, T)"""
        target: Tensor = batch["target_in"]
        sampling = self.recipe.training.scheduled_sampling
        rate = (
            replacement_rate(spent, rate=sampling.rate, warmup=sampling.warmup) if sampling else 0.0
        )
        if sampling is None or not rate:
            return target
        with torch.no_grad():
            inputs = StepInputs(progress=self.spent, packed=batch.get("packed", {}))
            if batch.get("window", -1) < 0:
                logits = self.train_forward(batch["sources"], target, inputs)
            else:
                logits, _ = self.model.step(
                    target, self.state_before(batch["window"], batch["turn"]), {}, inputs
                )
        return sample_decoder_inputs(target, logits, rate, sampling.choose)

    def configure_optimizers(self) -> Optimizer:
        """Return the recipe's optimizer over all parameters that train."""
        trained = trained_parameters(self.recipe, self.model)
        projections = [*self.projections.parameters()]
        trained = trained._replace(parameters=[*trained.parameters, *projections])
        return self.recipe.training.optimizer.build(trained)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Finish the blocks' step, and set its learning rate.

        No torch scheduler does so: a budget may be minutes.
        """
        for block in self.counting_blocks:
            block.finish_step(lambda counts: self.trainer.strategy.reduce(counts, reduce_op="sum"))
        training = self.recipe.training
        rate = training.optimizer.learning_rate * training.schedule.factor_at(self.progress())
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)
        if self.loop_progress is None:
            self.log("train/learning_rate", rate)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Scale the gradient down to the Trainer's norm or to `clip_norm`, then add noise.

        Lightning calls this without a norm of its own too; it refuses to clip for a fused
        optimizer.
        """
        training = self.recipe.training
        norm = training.clip_norm if gradient_clip_val is None else gradient_clip_val
        if norm:
            torch.nn.utils.clip_grad_norm_(self.parameters(), norm)
        if training.gradient_noise:
            add_gradient_noise(
                self.parameters(), training.seed, self.progress().step, training.gradient_noise
            )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a batch to the sums of the validation."""
        target = batch["target_out"]
        if batch.get("window", -1) < 0:
            outputs = self.model(batch["sources"], batch["target_in"], answer=target)
        else:
            outputs = self.carry_on(batch["target_in"], batch["window"], VALIDATION, answer=target)
        real = target != PAD  # (B, T)
        measures = self.model.output.measure(outputs, target)
        sums = {name: values.masked_fill(~real, 0).sum() for name, values in measures.items()}
        self.val_sums.add(**sums, tokens=real.sum(), rows=real.any(1).sum())

    def take_validation_scores(self) -> dict[str, float]:
        """Return `val/loss` and other scores without decoding, and reset their sums."""
        sums = self.val_sums.take(self.trainer.strategy)
        loader = self.trainer.val_dataloaders
        counts = loader.corpus.of_epoch(0).counts if isinstance(loader, BatchLoader) else None
        # of a part of the text no words are known; sums of many tokens are rounded
        if sums and counts and math.isclose(sums["tokens"], counts.tokens, rel_tol=1e-6):
            sums |= counts.units()
        return {f"val/{name}": value for name, value in token_scores(sums).items()} if sums else {}

    def on_validation_epoch_end(self) -> None:
        """Log the scores of a validation, unless the training loop has taken them."""
        if scores := self.take_validation_scores():
            if not self.trainer.sanity_checking:
                self.val_losses.append(scores["val/loss"])
            self.log_dict(scores, prog_bar=True)


class DeviceSums:
    """Named sums that stay on the device until they are read, so that adding never waits for it."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, **values: Tensor) -> None:
        """Add a scalar tensor to each named sum."""
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums so far, in main memory."""
        return {name: value.cpu() for name, value in self.sums.items()}

    def load_state_dicts(
        self, states: Sequence[Mapping[str, Tensor]], device: torch.device
    ) -> None:
        """Start from the total of several states: those of processes that this continues."""
        self.sums = {}
        for state in states:
            self.add(**{name: value.to(device) for name, value in state.items()})

    def take(self, strategy: Strategy) -> dict[str, float]:
        """Return the sums over all devices and reset them; a collective call."""
        if not self.sums:
            return {}
        names = sorted(self.sums)
        stacked = torch.stack([self.sums[name].float() for name in names])
        # mps has no float64
        stacked = stacked if stacked.device.type == "mps" else stacked.double()
        self.sums = {}
        return dict(zip(names, strategy.reduce(stacked, reduce_op="sum").tolist(), strict=True))


def is_frozen(block: Block) -> bool:
    """True if a block has parameters, and none of them is trained."""
    trained = [parameter.requires_grad for parameter in block.parameters()]
    return bool(trained) and not any(trained)


def count_wrong_rows(logits: Tensor, target: Tensor, graded: Tensor) -> dict[str, Tensor]:
    """Return the numbers of graded rows with a wrong token, and of all graded rows.

    logits: (B, T, V), target: ids (B, T), graded: (B,) bool.
    """
    correct = (logits.argmax(-1) == target) | (target == PAD)  # (B, T)
    return {"wrong": (graded & ~correct.all(1)).sum(), "graded": graded.sum()}


Choose = Literal["argmax", "sample"]


def replacement_rate(spent: float, *, rate: float, warmup: float) -> float:
    """Return the probability of replacing a token: linear to `rate` over `warmup`."""
    return rate * min(1.0, spent / warmup) if warmup else rate


def sample_decoder_inputs(target: Tensor, logits: Tensor, rate: float, choose: Choose) -> Tensor:
    """Replace some target tokens by the model's own: scheduled sampling (Bengio et al. 2015).

    Parallel form in two passes over the target (Mihaylova & Martins 2019); logits are those of the
    first. target: bos and the target (B, T), logits: (B, T, V) -> (B, T)
    """
    predicted = predict_tokens(logits[:, :-1], choose)  # (B, T - 1)
    true = target[:, 1:]
    replaced = (torch.rand(true.shape, device=true.device) < rate) & (true != PAD) & (true != BOS)
    return torch.cat((target[:, :1], torch.where(replaced, predicted, true)), 1)


def predict_tokens(logits: Tensor, choose: Choose) -> Tensor:
    """Return a token for each position, never pad, bos or eos. (B, T, V) -> (B, T)"""
    logits = logits.float().index_fill(
        -1, logits.new_tensor((PAD, BOS, EOS), dtype=torch.long), -torch.inf
    )
    if choose == "argmax":
        return logits.argmax(-1)
    # the largest logit after Gumbel noise is a draw from the softmax, without a matrix of
    # probabilities
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)


def add_gradient_noise(
    parameters: Iterable[Parameter], seed: int, step: int, noise: GradientNoise
) -> None:
    """Add noise of variance scale / (1 + step)^decay to every gradient (Neelakantan 2015).

    A pure function of seed and step, which counts from 0, so that a resumed run gets the noise it
    would have had.
    """
    deviation = (noise.scale / (1.0 + step) ** noise.decay) ** 0.5
    # hashed, since neighbouring seeds of a generator may give related streams
    digest = hashlib.sha256(f"gradient noise {seed} {step}".encode()).digest()
    noise_seed = int.from_bytes(digest[:8]) >> 1
    generators: dict[torch.device, Generator] = {}
    for gradient in (parameter.grad for parameter in parameters if parameter.grad is not None):
        generator = generators.setdefault(
            gradient.device, Generator(gradient.device).manual_seed(noise_seed)
        )
        noises = torch.randn(
            gradient.shape, generator=generator, device=gradient.device, dtype=gradient.dtype
        )
        # every device draws the whole, and adds its part
        gradient.add_(local_part(noises, gradient), alpha=deviation)
