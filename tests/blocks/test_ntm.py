"""`ntm` beside the paper's equations, a slot at a time; a machine set by hand that copies; and what
it starts from.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.addressing import AddressParams, address, address_backward, shift_weights
from blocks.core.contract import BlockError, Named, Output, Record, Stream
from blocks.ntm import Ntm
from tests.blocks.single_block import close, context_of, leaves, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "ntm": (
        {"slots": 5, "slot_width": 3},
        {"slots": 6, "slot_width": 2, "read_heads": 2, "write_heads": 3, "memory": "random"},
        {"slots": 7, "slot_width": 3, "shift": 3, "memory": "learned", "initial_state": "learned"},
        {"slots": 4, "slot_width": 3, "shift": 0, "initial_state": "encoder"},
        {"slots": 5, "slot_width": 2, "read_heads": 2, "initial_state": {"copy": "encoder.same"}},
        {"slots": 5, "slot_width": 2, "initial_state": "encoder.grid"},
        {"slots": 5, "slot_width": 3, "read_heads": 2, "order": "read_write"},
        {"slots": 5, "slot_width": 3, "write_heads": 2, "order": "write_address_read"},
    ),
}
"""Settings with which the laws are checked, by block."""

WIDTH, SLOTS, CELL = 4, 5, 3
SURE = 60.0
"""A logit that leaves nothing to the others in double precision."""


def block(**settings: Any) -> Ntm:
    torch.manual_seed(1)
    module = Ntm(
        site_of(WIDTH), **{"slots": SLOTS, "slot_width": CELL, "memory": "random", **settings}
    ).double()
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)
    return module


def random_inputs(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


# ------------------------------------------------------------------------------------------- the
# paper's equations


def place_of(numbers: Tensor, memory: Tensor, before: Tensor, shift: int) -> Tensor:
    """Equations 5 to 9 of one head, a slot at a time."""
    width, slots = memory.shape[1], len(memory)
    key, numbers = torch.tanh(numbers[:width]), numbers[width:]
    beta, g, s = (
        F.softplus(numbers[0]),
        torch.sigmoid(numbers[1]),
        numbers[2 : 2 * shift + 3].softmax(0),
    )
    gamma = 1 + F.softplus(numbers[-1])
    alike = torch.stack([key @ row / (key.norm() * row.norm()) for row in memory])
    content = torch.exp(beta * alike) / torch.exp(beta * alike).sum()
    gated = g * content + (1 - g) * before
    moved = torch.zeros(slots, dtype=memory.dtype)
    for i in range(slots):
        for offset in range(-shift, shift + 1):
            moved = (
                moved
                + F.one_hot(torch.tensor(i), slots)
                * gated[(i - offset) % slots]
                * s[offset + shift]
            )
    return moved**gamma / (moved**gamma).sum()


def by_the_equations(module: Ntm, x: Tensor, shift: int) -> Tensor:
    """One row. x: (T, D) -> (T, R M)"""
    memory = module.initial.filled
    last = places = [F.one_hot(torch.tensor(0), len(memory)).double()] * (
        module.reading + module.writing
    )
    reads = []
    for one in x:
        numbers = module.asks(one).chunk(len(places))
        before, readers = memory, range(module.reading)
        places = [
            place_of(entry, memory, place, shift)
            for entry, place in zip(numbers, places, strict=True)
        ]
        erase, add = module.writes(one).chunk(2)
        writing = places[module.reading :]
        for place, e in zip(writing, torch.sigmoid(erase).chunk(module.writing), strict=True):
            memory = torch.stack([row * (1 - w * e) for row, w in zip(memory, place, strict=True)])
        for place, a in zip(writing, torch.tanh(add).chunk(module.writing), strict=True):
            memory = torch.stack([row + w * a for row, w in zip(memory, place, strict=True)])
        if module.order == "write_address_read":
            places[: module.reading] = [
                place_of(numbers[head], memory, last[head], shift) for head in readers
            ]
        source, last = before if module.order == "read_write" else memory, places
        seen = [
            sum(w * row for w, row in zip(places[head], source, strict=True)) for head in readers
        ]
        reads.append(torch.cat([torch.as_tensor(entry) for entry in seen]))
    return torch.stack(reads)


@pytest.mark.parametrize(
    ("reading", "writing", "shift", "memory", "order"),
    [
        (1, 1, 1, "random", "write_read"),
        (2, 3, 1, "random", "write_read"),
        (3, 2, 2, "learned", "write_read"),
        (1, 1, 0, "random", "write_read"),
        (2, 3, 1, "learned", "read_write"),
        (2, 3, 1, "learned", "write_address_read"),
    ],
)
def test_the_output_equals_the_papers_equations(
    reading: int, writing: int, shift: int, memory: str, order: str
) -> None:
    module = block(read_heads=reading, write_heads=writing, shift=shift, memory=memory, order=order)
    x = random_inputs(2, 6, WIDTH).requires_grad_()
    weights = [x, *module.parameters()]
    mine, _ = run(module, x)
    theirs = torch.stack([by_the_equations(module, row, shift) for row in x])
    torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-9)
    goal = random_inputs(*mine.shape)
    result, expected = (torch.autograd.grad((y * goal).sum(), weights) for y in (mine, theirs))
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_a_head_shifts_as_in_equation_8() -> None:
    at = torch.eye(SLOTS, dtype=torch.float64)[None]  # a head at each slot
    forwards = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand(1, SLOTS, 1, 3)
    close(shift_weights(at, forwards), at.roll(1, -1))
    close(shift_weights(at, forwards.flip(-1)), at.roll(-1, -1))


def test_sharpening_preserves_one_hot_weights_and_has_gradients_at_zero() -> None:
    certain, memory = torch.eye(SLOTS)[None], random_inputs(1, CELL, SLOTS)
    key, gate, stay = (
        torch.zeros(1, SLOTS, CELL),
        torch.zeros(1, SLOTS, 1),
        torch.ones(1, SLOTS, 1, 1),
    )
    for gamma in (1.0, 3.0, 200.0):
        params = AddressParams(key, gate, stay, torch.full((1, SLOTS, 1), gamma))
        way = address(memory, certain, params)
        torch.testing.assert_close(way.places, certain, rtol=0, atol=1e-29)
        before, grads = address_backward(
            torch.zeros_like(memory), random_inputs(1, SLOTS, SLOTS), params, way
        )
        assert all(gradient.isfinite().all() for gradient in (before, *grads))


# ------------------------------------------------------------------------------------------- a
# machine set by hand

MARK, WRITE, BACK, READ = 3, 4, 5, 6
"""Inputs 0 to 2 are the digits (1 or -1); each of the others says what to do."""


def copying_machine(slots: int) -> Ntm:
    """Graves et al. 2014, section 4.1: write a mark, then what is heard, slot by slot; find the
    mark; read on.
    """
    module = Ntm(site_of(7), slots=slots, slot_width=4).double()
    for layer in (module.asks, module.writes):
        layer.weight.data.zero_()
        layer.bias.data.zero_()
    asks, erase_and_add = (
        module.asks.weight.data.unflatten(0, (2, -1)),
        module.writes.weight.data.unflatten(0, (2, 4)),
    )
    mark, beta, gate, stay, forwards = 3, 4, 5, 7, 8  # of a head's numbers
    module.asks.bias.data.unflatten(0, (2, -1))[:, gate] = -SURE
    asks[0, mark, BACK] = asks[0, beta, BACK] = SURE
    asks[0, gate, BACK] = 2 * SURE
    asks[:, stay] = torch.tensor([[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 0, 1, 1]]) * SURE
    asks[0, forwards, READ] = asks[1, forwards, WRITE] = SURE
    erase_and_add[0] = -SURE * torch.tensor([0.0, 0, 0, -1, -1, 1, 1])
    erase_and_add[1, 3, MARK] = SURE
    erase_and_add[1, torch.arange(3), torch.arange(3)] = SURE
    return module


def test_a_machine_set_by_hand_copies() -> None:
    module, count = copying_machine(8), 6
    digits = torch.sign(random_inputs(3, count, 3))
    x = torch.zeros(3, 2 * count + 2, 7, dtype=torch.float64)
    x[:, 0, MARK] = x[:, count + 1, BACK] = 1
    x[:, 1 : count + 1, :3], x[:, 1 : count + 1, WRITE] = digits, 1
    x[:, count + 2 :, READ] = 1
    y, (memory, places, _) = run(module, x)
    torch.testing.assert_close(y[:, count + 2 :, :3], digits, rtol=0, atol=1e-9)
    torch.testing.assert_close(memory[:, 1 : count + 1, :3], digits, rtol=0, atol=1e-9)
    assert places.argmax(-1).tolist() == [[count, count]] * 3


# ------------------------------------------------------------------------------------------- states


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weightings_stay_distributions(dtype: torch.dtype) -> None:
    module = block(slots=128, slot_width=20, read_heads=2).to(dtype)
    _, (memory, places, _) = run(module, 3 * random_inputs(2, 500, WIDTH).to(dtype))
    assert memory.isfinite().all()
    assert bool((places >= 0).all())
    torch.testing.assert_close(
        places.double().sum(-1), torch.ones(2, 3), rtol=0, atol=8 * torch.finfo(dtype).eps
    )


def test_heads_start_at_the_first_slot_and_its_content() -> None:
    module = block(read_heads=2)
    memory, places, read = module.start(random_inputs(3, 1, WIDTH), context_of(mask_of(1, 1, 1)))
    assert places.tolist() == [[[1, 0, 0, 0, 0]] * 3] * 3
    close(memory[1], module.initial.filled)
    close(read, memory[:, 0].repeat(1, 2))
    close(module.initial_output(random_inputs(3, 1, WIDTH), (memory, places, read)), read[:, None])


def test_a_learned_state_starts_near_the_first_slot() -> None:
    module = Ntm(site_of(WIDTH), slots=SLOTS, slot_width=CELL, initial_state="learned")
    memory, places, read = module.start(torch.zeros(2, 1, WIDTH), context_of(mask_of(1, 1)))
    torch.testing.assert_close(places.sum(-1), torch.ones(2, 2))
    torch.testing.assert_close(places[..., 0], torch.full((2, 2), 25 / 29))
    assert memory.tolist() == torch.full((2, SLOTS, CELL), 1e-6).tolist()
    assert not read.any()


def test_a_copied_state_continues_the_other_block() -> None:
    first = block()
    memories = {"encoder": Named(first.out), "encoder.tape": Named(first.out, first.state_kind)}
    site, copying = site_of(WIDTH, memories=memories), {"copy": "encoder.tape"}
    second = Ntm(site, slots=SLOTS, slot_width=CELL, initial_state=copying)
    second.double().load_state_dict(
        {name: item for name, item in first.state_dict().items() if "initial" not in name}
    )
    x = random_inputs(2, 6, WIDTH)
    full, last = run(first, x)
    left, state = run(first, x[:, :4])
    context = context_of(mask_of(2, 2), {"encoder.tape": Output(left, mask_of(4, 4), state)})
    y, after = second(x[:, 4:], second.start(x[:, :1], context), context)
    close(y, full[:, 4:])
    close(after, last)


def test_a_masked_position_does_not_change_the_state() -> None:
    module = block(write_heads=2)
    x = random_inputs(2, 4, WIDTH)
    _, after = run(module, x[:, :2])
    context = context_of(mask_of(0, 0).expand(2, 1))
    _, later = module(torch.full((2, 1, WIDTH), 9.0).double(), after, context)
    assert [a.tolist() for a in leaves(later)] == [b.tolist() for b in leaves(after)]


def test_records_are_the_weightings_of_the_heads() -> None:
    module = block(read_heads=2, write_heads=1)
    x, context = random_inputs(2, 3, WIDTH), context_of(mask_of(3, 3))._replace(records={})
    _, (_, places, _) = module(x, module.start(x, context), context)
    result = {key.name: torch.cat(values, 1) for key, values in (context.records or {}).items()}
    assert {name: tuple(value.shape) for name, value in result.items()} == {
        "read_weights": (2, 3, 2, SLOTS),
        "write_weights": (2, 3, 1, SLOTS),
    }
    close(torch.cat([result["read_weights"][:, -1], result["write_weights"][:, -1]], 1), places)
    assert all(isinstance(key, Record) for key in context.records or {})


# ------------------------------------------------------------------------------------------- what
# is refused


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"shift": 3}, "shift"),
        ({"initial_state": {"copy": "encoder.small"}}, "initial_state"),
        ({"initial_state": "nobody"}, "initial_state"),
        ({"initial_state": {"copy": "encoder.same"}, "memory": "random"}, "memory"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], setting: str) -> None:
    small = Ntm(site_of(WIDTH), slots=SLOTS + 1, slot_width=CELL)
    memories = {
        "encoder": Named(Stream(WIDTH)),
        "encoder.small": Named(small.out, small.state_kind),
    }
    with pytest.raises(BlockError) as refused:
        Ntm(site_of(WIDTH, memories=memories), **{"slots": SLOTS, "slot_width": CELL, **settings})
    assert refused.value.setting == setting
    assert refused.value.fix.text
