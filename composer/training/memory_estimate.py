"""Memory of a training, counted before it: a step on fake tensors, which have shapes only."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from blocks.core.contract import Penalties, State, reduce_penalties
from blocks.core.functional import default_dtype
from composer.data.largest_batch import BatchSize
from composer.model.adapters import add_adapters, training_factors
from composer.model.characters import Spelled, expect_characters
from composer.model.encoder_decoder import NO_INPUTS, EncoderDecoder, example_source, map_leaves
from composer.model.footprint import sizes_of, training_device, weight_bytes
from composer.model.meta_device import device_of, is_in_place, is_pure, shapes_of
from composer.model.recording_builder import RecordingBuilder
from composer.model.trained_parameters import trained_parameters
from composer.recipe.recipe import Recipe
from composer.training.distillation import Teacher, softened_divergence
from composer.training.loss import sum_costs


def fake_ctc_loss(log_p: Tensor, labels: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return costs (B,) and forward variables (B, S, 2 L + 1) of CTC. log_p: (S, B, V)"""
    frames, rows, _ = log_p.shape
    return log_p.new_empty(rows), log_p.new_empty(rows, frames, 2 * labels.shape[1] + 1)


def fake_cudnn_rnn_backward(
    x: Tensor, weights: Any, stride: int, buffer: Any, h: Tensor, c: Any, *rest: Any
) -> object:
    """Return gradients of the inputs, the state and the weights of cuDNN's recurrent layers."""
    before = (
        torch.empty_like(x),
        torch.empty_like(h),
        x.new_empty(0) if c is None else torch.empty_like(c),
    )
    return *before, [torch.empty_like(weight) for weight in weights]


CTC_BACKWARD = torch.ops.aten._ctc_loss_backward.Tensor
FAKES = {
    torch.ops.aten._ctc_loss.Tensor: fake_ctc_loss,
    CTC_BACKWARD: lambda _, log_p, *rest: torch.empty_like(
        log_p, memory_format=torch.contiguous_format
    ),
    torch.ops.aten._cudnn_rnn_backward.default: fake_cudnn_rnn_backward,
    torch.ops.aten._local_scalar_dense.default: lambda _: 1.0,  # Adafactor reads sizes of weights
}
"""Operations for which PyTorch has no fakes: from arguments to results."""
COPYING = {
    torch.ops.aten._softmax.default,
    torch.ops.aten._log_softmax.default,
    torch.ops.aten._softmax_backward_data.default,
    torch.ops.aten._log_softmax_backward_data.default,
    torch.ops.aten.native_layer_norm.default,
    torch.ops.aten.native_layer_norm_backward.default,
    torch.ops.aten.embedding_dense_backward.default,
}
"""Operations that copy what they are given where it is not contiguous, for as long as they run."""
DEVICE = torch.ops.prim.device.default
"""Asks a tensor for its device."""
UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
"""A view whose schema does not say so."""
LSTM = torch.ops.aten.mkldnn_rnn_layer.default
"""The LSTM of a CPU, of which the fake does not say what it keeps for its backward pass."""


def kept_by_lstm(x: Tensor, y: Tensor) -> int:
    """Estimate the bytes that an LSTM keeps: 6 max(I, H) + 9 H numbers a position.

    Fitted to the measured peaks of four recipes. x: (T, B, I), y: (T, B, H)
    """
    return 6 * max(x.nbytes, y.nbytes) + 9 * y.nbytes


def scratch_bytes(function: Any, args: Any, outputs: Any) -> int:
    """Return the bytes that an operation of PyTorch puts aside until it is done."""
    if function is CTC_BACKWARD:
        return int(outputs.nbytes)  # it makes a second one
    if function not in COPYING:
        return 0
    tensors = [argument for argument in args if isinstance(argument, Tensor)]
    return sum(tensor.nbytes for tensor in tensors if not tensor.is_contiguous())


class MemoryEstimate(NamedTuple):
    """Bytes at the peak of a training.

    They are of weights, gradients, averages and optimizer, and of all that a batch adds.

    `at_most`: how many words a batch has, and how long they are, is not known, and a part of the
    model reads their characters.
    """

    weight_bytes: int
    activation_bytes: int
    batch: BatchSize
    at_most: bool = False

    @property
    def bytes(self) -> int:
        """All of them."""
        return self.weight_bytes + self.activation_bytes

    def as_json(self) -> dict[str, object]:
        """Return the estimate as plain data."""
        return {**self._asdict(), "bytes": self.bytes, "batch": self.batch._asdict()}


class Shape:
    """All that is known of a fake tensor, without its storage."""

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.stride, self.dtype, self.device = (
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            device_of(tensor),
        )


def has_own_storages(outputs: Any, inputs: Any) -> bool:
    """True if outputs are tensors alone, each in a storage of its own."""
    tensors = tree_leaves(outputs)
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        return False
    taken = [one.untyped_storage()._cdata for one in tree_leaves(inputs) if isinstance(one, Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    own = {storage._cdata for storage in storages}
    fills = all(
        one.nbytes() == tensor.nbytes for one, tensor in zip(storages, tensors, strict=True)
    )
    return fills and len(own) == len(storages) and own.isdisjoint(taken)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are alive, `now`, and the most at once, `peak`.

    `torch.distributed._tools.mem_tracker.MemTracker` finds the same peak. It also counts by module,
    for which it looks at all of them after each operation: it took six times as long for the quick
    start.
    """

    def __init__(self) -> None:
        from torch._subclasses import fake_tensor  # late: it imports PyTorch's compiler

        super().__init__()
        self.fakes, self.mode = fake_tensor, fake_tensor.FakeTensorMode()
        self.now, self.peak = 0, 0
        self.counted = set[int]()
        self.known: dict[object, object] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if function is DEVICE:  # two of three calls
            return device_of(args[0])
        outputs = self.run(function, args, kwargs or {})
        tensors = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            self.add(tensor.untyped_storage())
        if function is LSTM:
            y, *_, workspace = tensors
            self.count(workspace.untyped_storage(), kept_by_lstm(args[0], y))
        self.peak = max(self.peak, self.now + scratch_bytes(function, args, outputs))
        return outputs

    def run(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> object:
        """Return the outputs of an operation; copies if it has run on the same shapes."""
        in_place = is_in_place(function)
        if (function.is_view or function is UNSAFE_VIEW) and isinstance(
            args[0], self.fakes.FakeTensor
        ):
            return self.view(function, args, kwargs)
        if not in_place and not is_pure(function):
            return FAKES.get(function, function)(*args, **kwargs)
        key = function, torch.get_default_dtype(), shapes_of(args), shapes_of([*kwargs.items()])
        known = self.known.get(key)
        if known is not None:
            if in_place:
                return args[0]
            return self.alike(known) if isinstance(known, Shape) else tree_map(self.alike, known)
        outputs = FAKES.get(function, function)(*args, **kwargs)
        if in_place:
            self.known[key] = True  # that it accepts such shapes
        elif has_own_storages(outputs, (args, kwargs)):
            self.known[key] = tree_map(Shape, outputs)
        return outputs

    def view(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> object:
        """Return a view of a fake tensor, or several."""
        with self.fakes.in_kernel_invocation_manager(self.mode):
            views = function(*args, **kwargs)
        device = device_of(args[0])
        if isinstance(views, Tensor):
            return self.fakes.FakeTensor(self.mode, views, device)
        return [self.fakes.FakeTensor(self.mode, view, device) for view in views]

    def alike(self, shape: Shape) -> Tensor:
        """Return a fake tensor of a shape, with a storage of its own."""
        with torch._C._DisableTorchDispatch():
            real = torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device="meta")
            tensor: Tensor = self.fakes.FakeTensor(self.mode, real, shape.device)
            return tensor

    def add(self, storage: UntypedStorage) -> None:
        """Count a storage until it is freed, once."""
        key = storage._cdata
        if key not in self.counted:
            self.counted.add(key)
            weakref.finalize(storage, self.counted.discard, key)
            self.count(storage, storage.nbytes())

    def count(self, storage: UntypedStorage, size: int) -> None:
        """Count so many bytes until a storage is freed."""
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, size)

    def free(self, size: int) -> None:
        """Count no longer what has been freed."""
        self.now -= size


def estimate_memory(
    recipe: Recipe,
    vocabularies: Mapping[str, int],
    batch: BatchSize,
    spelled: Spelled | None = None,
    teacher_recipe: Recipe | None = None,
) -> MemoryEstimate:
    """Return the memory of a training step at its peak, on one device and a batch of this size.

    spelled: The tokens of the batch, where they are known; who reads characters on a CPU does so
    once for each. teacher_recipe: Of the run that a distilled model learns from. The gradients of
    the step before are there until the forward pass is over, as Lightning has it.
    """
    device, precision = training_device(recipe), str(recipe.training.precision)
    live = LiveBytes()
    with live.mode, torch.device(device), live:
        # the parameters of a fake model cannot be converted afterwards
        with default_dtype(
            {"64": torch.float64, "bf16-true": torch.bfloat16}.get(precision, torch.float32)
        ):
            model = RecordingBuilder(recipe).model(vocabularies).train()
            add_adapters(recipe, model)
        reads_characters = not recipe.training.compile and expect_characters(model, spelled)
        for tensor in (*model.parameters(), *model.buffers()):
            live.add(tensor.untyped_storage())
        parameters = live.now - sum(buffer.untyped_storage().nbytes() for buffer in model.buffers())
        before = live.now
        teacher = fake_teacher(recipe, model, teacher_recipe, vocabularies)
        teacher_bytes = live.now - before
        inputs = fake_batch(model, batch)
        state = carried_state(recipe, model, *inputs)
        live.peak, beside = live.now, live.now - parameters
        optimizer = fake_optimizer(recipe, model)
        weights_alone = live.now - beside
        with autocast(device, precision):
            loss = training_loss(recipe, model, *inputs, state, teacher)
        optimizer.zero_grad()
        loss.backward()
        weights = weight_bytes(recipe, sizes_of(recipe, model))
    is_bound = reads_characters and spelled is None and device == "cpu"
    weights += teacher_bytes
    activations = live.peak - weights_alone - teacher_bytes
    return MemoryEstimate(weights, activations, batch, is_bound)


def fake_teacher(
    recipe: Recipe,
    model: EncoderDecoder,
    teacher_recipe: Recipe | None,
    vocabularies: Mapping[str, int],
) -> Teacher | None:
    """Return the fake teacher of a fake model; None where it has none."""
    if recipe.training.distillation is None or teacher_recipe is None:
        return None
    built = RecordingBuilder(teacher_recipe).model(vocabularies)
    return Teacher(built, model, recipe.training.distillation)


def fake_optimizer(recipe: Recipe, model: EncoderDecoder) -> Optimizer:
    """Return the optimizer of a fake model after a first step, with its memory and gradients."""
    factors = training_factors(recipe, model)
    for name, weight in model.named_parameters():
        weight.requires_grad_(factors.get(name, 1.0) > 0)
    trained = trained_parameters(recipe, model)
    optimizer = recipe.training.optimizer.build(trained)
    for weight in trained.parameters:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    return optimizer


def autocast(device: str, precision: str) -> AbstractContextManager[object]:
    """Return the context in which Lightning runs a forward pass of this precision."""
    mixed = {
        "bf16-mixed": torch.bfloat16,
        "bf16": torch.bfloat16,
        "16-mixed": torch.float16,
        "16": torch.float16,
    }
    return torch.autocast(device, mixed[precision]) if precision in mixed else nullcontext()


def fake_batch(model: EncoderDecoder, batch: BatchSize) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return sources, target, and the indices of supporting sentences, on the model's device."""
    encoders, device = model.readers(), model.device

    def ids(length: int) -> Tensor:
        return torch.ones(batch.rows, length, dtype=torch.long, device=device)

    sources = {
        key: example_source(encoder, ids(batch.sources[key])) for key, encoder in encoders.items()
    }
    has_stories = any(encoder.reads_story for encoder in encoders.values())
    return sources, ids(batch.target), ids(int(has_stories))


def carried_state(
    recipe: Recipe,
    model: EncoderDecoder,
    sources: Mapping[str, Tensor],
    target: Tensor,
    facts: Tensor,
) -> State | None:
    """Return the state that the window before has left; None where none is carried."""
    if not recipe.carries_state:
        return None
    # with an answer, or a head whose cost is cheap would tell p of all tokens
    with torch.no_grad():
        state = model.step(target, None, {}, NO_INPUTS._replace(facts=facts), target)[1]
    return map_leaves(state, Tensor.detach)


def training_loss(
    recipe: Recipe,
    model: EncoderDecoder,
    sources: Mapping[str, Tensor],
    target: Tensor,
    facts: Tensor,
    state: State | None,
    teacher: Teacher | None = None,
) -> Tensor:
    """Return the loss of a batch, as a training step computes it."""
    penalties: Penalties = {}
    inputs = NO_INPUTS._replace(
        penalties=penalties, progress=torch.zeros((), device=model.device), facts=facts
    )
    if state is None:
        outputs = model(sources, target, inputs, target)
    else:
        outputs = model.step(target, state, {}, inputs, target)[0]
    loss = sum_costs(model.output, outputs, target, recipe.training.label_smoothing)
    for penalty in reduce_penalties(penalties).values():
        loss = loss + penalty
    if teacher is not None:
        logits = teacher.logits(sources, target, {})
        loss = loss + softened_divergence(outputs, logits, target, teacher.settings.temperature)
    return loss
