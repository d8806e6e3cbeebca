"""The LightningModule: its only hyper-parameters are the recipe and the tokenizer, each as the text of its file.

The training step never waits for the device: sums stay tensors until a row of metrics is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from pytorch_lightning import LightningModule
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch.optim import Optimizer

from blocks.core.contract import Block
from composer.data.tokenizer import Tokenizers
from composer.errors import RunFailed
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder, SigmoidOutput, StepInputs, target_bits
from composer.model.vocabulary import BOS, EOS, PAD
from composer.recipe.metrics import token_scores
from composer.recipe.recipe import Recipe, load_text
from composer.training.optim import OPTIMIZERS, SCHEDULES, Progress, add_gradient_noise
from composer.training.sharding import full_state, is_sharded, shard

Batch = Mapping[str, Any]
"""A batch as `composer.data.sampler` makes it."""
UNCOMPILED = (
    "`training.compile`: the model was compiled anew for too many lengths, as loops over positions are; "
    "it goes on as it is, and would have been faster without"
)


class Seq2SeqModule(LightningModule):
    """A recipe's model with its loss, its optimizer and its schedule.

    `progress` says how far the training has come; whoever trains sets it. `read` is what the two texts say, where
    that is known already.
    """

    def __init__(self, recipe: str, tokenizer: str, read: tuple[Recipe, Tokenizers] | None = None) -> None:
        super().__init__()
        self.save_hyperparameters("recipe", "tokenizer")
        self.recipe, self.tokenizers = read or read_texts(recipe, tokenizer)
        self.model = self.built()
        self.called: Callable[..., Tensor] = self.model.__call__
        self.advancing = [each for each in self.model.modules() if isinstance(each, Block) and advances(each)]
        self.progress: Callable[[], Progress] = lambda: Progress(self.global_step, 0.0)
        self.spent: Tensor
        self.register_buffer("spent", torch.zeros(()), persistent=False)
        self.seen: Batch = {}
        self.train_sums = DeviceSums()
        self.val_sums = DeviceSums()

    def built(self) -> EncoderDecoder:
        """The recipe's model, new."""
        return build(self.recipe, {side: self.tokenizers.size(side) for side in self.tokenizers.sides})

    def configure_model(self) -> None:
        """Lightning calls this as soon as the devices have met, and before it loads a checkpoint."""
        if self.recipe.training["precision"] == 64:
            self.double()  # Lightning would do so after it has loaded: half of each number would be lost
        if self.device_mesh is not None and not is_sharded(self.model):
            shard(self.model, self.device_mesh["data_parallel"])

    def compile_model(self, say: Callable[[str], None]) -> None:
        """Compiles the model for training alone: evaluation has other shapes, and would have it compiled again.

        A loop over positions is compiled for each length anew; where that has been too often, the rest goes without.
        """
        model = self.model
        compiled = torch.compile(lambda *given: model(*given))

        def called(sources: Mapping[str, Tensor], target: Tensor, beside: StepInputs) -> Tensor:
            try:
                with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                    return compiled(sources, target, beside)
            except FailOnRecompileLimitHit:
                self.called = model.__call__
                say(UNCOMPILED)
            except TorchDynamoException as error:
                raise compile_error(error) from error
            if beside.penalties:
                beside.penalties.clear()  # those of the part that had run
            return model(sources, target, beside)

        self.called = called

    def whole(self) -> EncoderDecoder:
        """The model to decode with: itself, or where it is sharded a plain copy; all devices ask at once."""
        if not is_sharded(self.model):
            return self.model
        with torch.random.fork_rng(devices=[]):  # what the copy draws for its weights must not move the training's
            model = self.built()
        model.load_state_dict(full_state(self.model))
        return model.to(self.device).train(self.model.training)

    # ------------------------------------------------------------------------------------------- training

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The share of this part of the batch in the loss per target token of the whole batch.

        Lightning divides by `accumulate` and takes the mean over the devices; the factor undoes both, so that the
        gradient is that of the one global batch.
        """
        penalties: dict[str, list[Tensor]] = {}
        self.seen = batch
        self.advance(self.progress().spent)
        logits = self.called(
            batch["sources"], self.answer_read(batch), StepInputs(None, penalties, self.spent, batch["facts"])
        )
        loss = sum_loss(logits, batch["target_out"], self.recipe.training["label_smoothing"])
        if self.recipe.training["curriculum"]:
            self.train_sums.add(**count_wrong_rows(logits, batch["target_out"], batch["graded"]))
        del logits
        parts = self.trainer.world_size * self.trainer.accumulate_grad_batches
        loss = loss * (parts / batch["tokens"])
        for name in penalties:
            loss = loss + torch.stack(penalties[name]).mean() * (parts * batch["part"])
        self.train_sums.add(loss=loss.detach() / parts)
        return loss

    def answer_read(self, batch: Batch) -> Tensor:
        """The answer that the decoder reads: the true one, or where the recipe says so, partly its own. (B, T)"""
        true: Tensor = batch["target_in"]
        settings = self.recipe.training["scheduled_sampling"]
        if not settings:
            return true
        chance = replacement_rate(self.progress().spent, rate=settings["rate"], warmup=settings["warmup"])
        if not chance:
            return true
        with torch.no_grad():
            logits = self.called(batch["sources"], true, StepInputs(None, None, self.spent))
        return sample_decoder_inputs(true, logits, chance, settings["choose"])

    def advance(self, spent: float) -> None:
        """Tells the blocks how much of the training is done."""
        self.spent.fill_(spent)
        for block in self.advancing:
            block.set_progress(spent)

    def configure_optimizers(self) -> Optimizer:
        ((name, settings),) = self.recipe.training["optimizer"].items()
        return OPTIMIZERS[name]((p for p in self.parameters() if p.requires_grad), **settings)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Sets the learning rate of this step."""
        ((_, chosen),) = self.recipe.training["optimizer"].items()
        ((name, settings),) = self.recipe.training["schedule"].items()
        at = self.progress()
        for group in optimizer.param_groups:
            group["lr"] = chosen["learning_rate"] * SCHEDULES[name](at, **settings)

    def shapes(self) -> str:
        """The shapes of the batch that was trained on last, in words."""
        sides = {**self.seen.get("sources", {}), "target": self.seen.get("target_in")}
        found = [f"{side} {ids.shape[0]} x {ids.shape[1]}" for side, ids in sides.items() if ids is not None]
        return ", ".join(found) or "unknown shape"

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Scales the gradient down to `clip_norm`, then adds noise. Lightning will not clip for a fused optimizer."""
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)
        training = self.recipe.training
        if training["gradient_noise"]:
            add_gradient_noise(self.parameters(), training["seed"], self.progress().step, **training["gradient_noise"])

    # ------------------------------------------------------------------------------------------- validation

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the sums of the validation."""
        logits = self.model(batch["sources"], batch["target_in"])
        target = batch["target_out"]
        real = target != PAD
        self.val_sums.add(
            loss=sum_loss(logits, target), tokens=real.sum(), right=((logits.argmax(-1) == target) & real).sum()
        )
        if isinstance(self.model.output, SigmoidOutput):
            self.val_sums.add(bits=target_bits(logits, target).sum(), rows=real.any(1).sum())


def compile_error(error: Exception) -> RunFailed:
    """What the compiler could not do, in words."""
    cause = getattr(error, "inner_exception", error)
    told = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return RunFailed.of(
        f"the model cannot be compiled here: {told}", "set `training.compile: false`, or install a C++ compiler"
    )


def advances(block: Block) -> bool:
    """Whether a block wants to know how much of the training is done."""
    return type(block).set_progress is not Block.set_progress


def read_texts(recipe: str, tokenizer: str) -> tuple[Recipe, Tokenizers]:
    """Return the recipe and the tokenizers of two texts."""
    return load_text(recipe), Tokenizers.from_text(tokenizer)


class DeviceSums:
    """Named sums that stay on the device until they are read."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def held(self) -> dict[str, Tensor]:
        """The sums so far, for a checkpoint."""
        return {name: value.cpu() for name, value in self.sums.items()}

    def hold(self, parts: Sequence[Mapping[str, Tensor]], device: torch.device) -> None:
        """Begins with the sums of these parts."""
        self.sums = {}
        for part in parts:
            self.add(**{name: value.to(device) for name, value in part.items()})

    def take(self, over_devices: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The sums over all devices; starts again from nothing. The only place that waits for the device."""
        if not self.sums:
            return {}
        names = sorted(self.sums)
        stacked = torch.stack([self.sums[name].float() for name in names])
        total = over_devices(stacked if stacked.device.type == "mps" else stacked.double())
        self.sums = {}
        return dict(zip(names, total.tolist(), strict=True))


def validation_scores(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the validation's scores from its sums: `val/loss` and the other metrics that need no decoding."""
    return {f"val/{name}": value for name, value in token_scores(sums).items()}


def sum_loss(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Nats summed over the real tokens. logits: (B, T, V), target: ids (B, T) -> a scalar of 32 bits or more."""
    loss: Tensor = CrossEntropy.apply(logits.flatten(0, 1), target.flatten(), label_smoothing)
    return loss


def count_wrong_rows(logits: Tensor, target: Tensor, graded: Tensor) -> dict[str, Tensor]:
    """How many of some rows have a wrong token where every token before is given, and how many there are.

    logits: (B, T, V), target: ids (B, T), graded: (B,) bool, the rows that count.
    """
    right = (logits.argmax(-1) == target) | (target == PAD)  # (B, T)
    return {"wrong": (graded & ~right.all(1)).sum(), "graded": graded.sum()}


class CrossEntropy(torch.autograd.Function):
    """sum over real tokens of -(1 - s) log p(target) - s / V sum log p. Its backward pass can run once."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        """logits: (N, V), target: (N,)"""
        kind = torch.promote_types(logits.dtype, torch.float32)
        log_p = torch.log_softmax(logits, -1, dtype=kind)  # (N, V)
        loss = (smoothing - 1.0) * log_p.gather(1, target[:, None])[:, 0]
        if smoothing:
            loss = loss - log_p.sum(1) * (smoothing / log_p.shape[1])
        real = target != PAD
        ctx.save_for_backward(log_p, target, real)
        ctx.smoothing, ctx.kind = smoothing, logits.dtype
        return loss.masked_fill(~real, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """The gradient p - (1 - s) [target] - s / V, made where log p was kept."""
        log_p, target, real = ctx.saved_tensors
        found = log_p.exp_()
        if ctx.smoothing:
            found.sub_(ctx.smoothing / found.shape[1])
        found.scatter_add_(1, target[:, None], found.new_full((len(target), 1), ctx.smoothing - 1.0))
        found.mul_((real * gradients[0])[:, None])
        return found.to(ctx.kind), None, None


Choose = Literal["argmax", "sample"]
NEVER_READ = (PAD, BOS, EOS)
"""What no answer goes on from."""


def replacement_rate(spent: float, *, rate: float, warmup: float) -> float:
    """How probable it is that a token is replaced: rises linearly to `rate` over the share `warmup` of the budget."""
    return rate * min(1.0, spent / warmup) if warmup else rate


def sample_decoder_inputs(target: Tensor, logits: Tensor, chance: float, choose: Choose) -> Tensor:
    """bos and the answer, with some tokens replaced by what was predicted there. (B, T), (B, T, V) -> (B, T)"""
    own = predict_tokens(logits[:, :-1], choose)  # (B, T - 1)
    true = target[:, 1:]
    replaced = (torch.rand(true.shape, device=true.device) < chance) & (true != PAD)
    return torch.cat((target[:, :1], torch.where(replaced, own, true)), 1)


def predict_tokens(logits: Tensor, choose: Choose) -> Tensor:
    """A token for each position, among those that an answer can go on from. (B, T, V) -> (B, T)"""
    logits = logits.float().index_fill(-1, logits.new_tensor(NEVER_READ, dtype=torch.long), -torch.inf)
    if choose == "argmax":
        return logits.argmax(-1)
    # the largest of logits with Gumbel noise is drawn as the softmax says, without a matrix of probabilities
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)
