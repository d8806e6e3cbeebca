"""`nram`: on what is certain it is an integer machine; programs set by hand; what leaves is the
mixture over stops.
"""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import BlockError, Record
from blocks.nram import (
    LOG_EPSILON,
    MODULES,
    Choices,
    Nram,
    choice_entropy,
    choice_sizes,
    initial_machine,
    read_choices,
    run_step,
    tape_from_stream,
)
from tests.blocks.single_block import NoNumbersFromPython, close, context_of, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "nram": ({"steps": 3}, {"steps": 2, "registers": 2, "hidden": 5, "layers": 2, "entropy": 0.3}),
}
"""Settings with which the laws are checked, by block."""

ORDER = list(MODULES)
Wiring = tuple[list[list[int]], list[int]]
"""Of each module whence its arguments come, and whence each register: places among registers and
modules.
"""


def one_hot(values: list[int], count: int) -> Tensor:
    return F.one_hot(torch.tensor(values), count).double()


# ------------------------------------------------------------------------------------------- an
# integer machine


def plain_step(
    tape: list[int], registers: list[int], wiring: Wiring, m: int
) -> tuple[list[int], list[int]]:
    """One step on Python's integers."""
    values, tape = list(registers), list(tape)
    for name, places in zip(ORDER, wiring[0], strict=True):
        inputs = [values[place] for place in places]
        values.append(plain(name, tape, inputs, m))
        if name == "write":
            tape[inputs[0]] = inputs[1]
    return tape, [values[place] for place in wiring[1]]


def plain(name: str, tape: list[int], inputs: list[int], m: int) -> int:
    a, b = (*inputs, 0, 0)[:2]
    results = {
        "read": tape[a],
        "zero": 0,
        "one": 1,
        "two": 2,
        "inc": a + 1,
        "add": a + b,
        "sub": a - b,
        "dec": a - 1,
        "less_than": int(a < b),
        "less_or_equal": int(a <= b),
        "equal": int(a == b),
        "min": min(a, b),
        "max": max(a, b),
        "write": 0,
    }
    return results[name] % m


def any_wiring(draw: random.Random, registers: int) -> Wiring:
    modules = [
        [draw.randrange(registers + at) for _ in range(count)]
        for at, (count, _) in enumerate(MODULES.values())
    ]
    return modules, [draw.randrange(registers + len(MODULES)) for _ in range(registers)]


def one_hot_choices(wiring: Wiring, registers: int) -> Choices:
    """The wiring as choices of a batch of one."""
    modules = [
        torch.zeros(1, 0, registers + at).double()
        if not places
        else one_hot(places, registers + at)[None]
        for at, places in enumerate(wiring[0])
    ]
    return Choices(modules, one_hot(wiring[1], registers + len(MODULES))[None])


@pytest.mark.parametrize("seed", range(20))
def test_on_one_hot_inputs_it_equals_an_integer_machine(seed: int) -> None:
    draw = random.Random(seed)
    m, count = draw.randint(3, 9), draw.randint(1, 4)
    tape, registers = draw.choices(range(m), k=m), draw.choices(range(m), k=count)
    machine, held = initial_machine(one_hot(tape, m)[None]), one_hot(registers, m)[None]
    for _ in range(12):
        wiring = any_wiring(draw, count)
        tape, registers = plain_step(tape, registers, wiring, m)
        machine, held = run_step(machine, held, one_hot_choices(wiring, count))
        assert machine.tape[0].tolist() == one_hot(tape, m).tolist()
        assert held[0].tolist() == one_hot(registers, m).tolist()


@pytest.mark.parametrize("name", [name for name, (count, _) in MODULES.items() if name != "write"])
def test_modules_return_the_distribution_of_the_result(name: str) -> None:
    """Summed over all integers that independent arguments can be."""
    m, (count, module) = 5, MODULES[name]
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(count, m, generator=generator).double().softmax(-1)
    tape = [3, 0, 4, 4, 1]
    expected = [0.0] * m
    for places in torch.cartesian_prod(*[torch.arange(m)] * 2).tolist():
        weight = math.prod(float(p[at]) for p, at in zip(inputs, places, strict=False)) / m ** (
            2 - count
        )
        expected[plain(name, tape, places[:count], m)] += weight
    close(
        module(initial_machine(one_hot(tape, m)[None]), *inputs[:, None])[0],
        torch.tensor(expected).double(),
    )


def test_half_a_write_leaves_half_of_the_old_cell() -> None:
    tape, p, q = (
        one_hot([2, 1, 0], 3)[None],
        torch.tensor([[0.5, 0.5, 0.0]]),
        torch.tensor([[0.0, 0.0, 1.0]]),
    )
    wiring = Choices(
        [torch.zeros(1, count, 2 + at) for at, (count, _) in enumerate(MODULES.values())],
        torch.eye(2, 2 + len(MODULES))[None],
    )
    wiring.arguments[-1][0, 0, 0] = wiring.arguments[-1][0, 1, 1] = 1.0
    double = Choices([item.double() for item in wiring.arguments], wiring.registers.double())
    machine, _ = run_step(initial_machine(tape), torch.stack((p, q), 1).double(), double)
    assert machine.tape[0].tolist() == [[0.0, 0.0, 1.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]


# ------------------------------------------------------------------------------------------- the
# block


def wired(
    block: Nram,
    program: dict[str, list[str]],
    idle: dict[str, list[str]] | None = None,
    stop: tuple[float, float, float] = (-60.0, 0.0, 0.0),
) -> Nram:
    """The block with a controller set by hand: `program` where r1 is not 0, `idle` where it is.

    A program says what each module and register (r0, r1) reads; what it leaves out reads r0, or
    stays. The two units of the hidden layer are 1 where r0, and where r1, is 0, else -1; `stop` has
    the bias and the two weights of stopping.
    """
    active, other = (
        controller_logits(block, program),
        controller_logits(block, program if idle is None else idle),
    )
    first, _, last = block.controller
    with torch.no_grad():
        first.weight.copy_(50.0 * torch.eye(2))
        first.bias.fill_(-25.0)
        last.bias.copy_(torch.cat((torch.tensor(stop[:1]), (active + other) / 2)))
        last.weight.zero_()
        last.weight[0] = torch.tensor(stop[1:])
        last.weight[1:, 1] = (other - active) / 2
    return block.double()


def controller_logits(block: Nram, program: dict[str, list[str]]) -> Tensor:
    """What a controller says for a program."""
    names = [*(f"r{at}" for at in range(block.registers)), *ORDER]
    places = [
        (place, block.registers + at)
        for at, (name, (count, _)) in enumerate(MODULES.items())
        for place in program.get(name, ["r0"] * count)
    ]
    places += [
        (place, len(names))
        for name in names[: block.registers]
        for place in program.get(name, [name])
    ]
    return torch.cat(
        [F.one_hot(torch.tensor(names.index(place)), count) * 60.0 for place, count in places]
    )


FORWARD = {
    "read": ["r0"],
    "inc": ["read"],
    "add": ["r0", "one"],
    "write": ["r0", "inc"],
    "r0": ["add"],
}
"""r0 goes through the tape, and cell r0 becomes one more."""


def test_a_program_with_weights_set_by_hand_runs() -> None:
    block = wired(Nram(site_of(6), steps=4, registers=2, hidden=2), FORWARD)
    y, _ = run(block, one_hot([1, 4, 5, 0, 3, 2], 6)[None])
    close(y, (one_hot([2, 5, 0, 1, 3, 2], 6)[None] + LOG_EPSILON).log())


@pytest.mark.parametrize(
    ("array", "m"), [([3], 5), ([1, 3, 3], 5), ([7, 1, 2, 8, 5, 5], 10), ([1, 2, 20, 4] * 5, 31)]
)
def test_an_array_of_any_length_is_incremented_up_to_its_end(array: list[int], m: int) -> None:
    """The paper's task, with the same parameters for all sizes: r1 is what was read one step
    before; 0 ends it.
    """
    active = {
        "read": ["r0"],
        "inc": ["r1"],
        "add": ["r0", "one"],
        "dec": ["r0"],
        "write": ["dec", "inc"],
        "r0": ["add"],
        "r1": ["read"],
    }
    idle = active | {"write": ["r0", "read"]}
    block = Nram(site_of(m), steps=m + 2, registers=2, hidden=2)
    wired(block, active, idle, stop=(-30.0, -60.0, 60.0))  # where r1 is 0 and r0 is not
    padding = [0] * (m - len(array))
    y, _ = run(block, one_hot(array + padding, m)[None])
    close(y, (one_hot([item + 1 for item in array] + padding, m)[None] + LOG_EPSILON).log())
    Nram(site_of(7), registers=2, hidden=2).load_state_dict(block.state_dict())


@pytest.mark.parametrize("stop", [-1.0, 0.5])
def test_the_output_is_weighted_by_the_halting_probabilities(stop: float) -> None:
    m, steps = 5, 4
    x = one_hot([0, 3, 1, 2, 2], m)
    block = wired(
        Nram(site_of(m), steps=steps, registers=2, hidden=2), FORWARD, stop=(stop, 0.0, 0.0)
    )
    f, tapes = (
        1 / (1 + math.exp(-stop)),
        [[1, 3, 1, 2, 2], [1, 4, 1, 2, 2], [1, 4, 2, 2, 2], [1, 4, 2, 3, 2]],
    )
    weights = [f, f * (1 - f), f * (1 - f) ** 2, (1 - f) ** 3]
    assert sum(weights) == pytest.approx(1.0)
    logs = [
        weight * (one_hot(tape, m) + LOG_EPSILON).log()
        for weight, tape in zip(weights, tapes, strict=True)
    ]
    context = context_of(mask_of(m), input=x[None])._replace(records={}, path=("here",))
    y, _ = block(x[None], (), context)
    close(y[0], torch.stack(logs).sum(0))
    result = {record.name: values for record, values in context.records.items()}
    close(result["halting"][0][0], torch.tensor(weights).double())
    assert result["registers"][0][0, :, 0].argmax(-1).tolist() == [1, 2, 3, 4]
    assert Record(("here",), (), "halting") in context.records


def test_padding_cells_hold_zero_and_positions_beyond_the_tape_pass() -> None:
    x = torch.tensor([[[0.0, 2.0, 2.0], [-1.0, 0.0, 0.0], [9.0, 9.0, 9.0]]]).double()
    cells = tape_from_stream(x, mask_of(2, 3)[:1])
    assert cells.tolist() == [[[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]]
    longer = torch.cat((x, torch.full((1, 2, 3), 7.0).double()), 1)
    y, _ = run(Nram(site_of(3)).double(), longer)
    assert y.shape == (1, 5, 3)
    assert (y[0, 3:] == 7.0).all()
    assert (y[0, :3] < 0.0).all()


def test_the_bonus_is_the_entropy_of_the_choices_and_ends_with_the_training() -> None:
    block = Nram(site_of(4), steps=2, registers=3, entropy=0.5).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()  # every choice is even
    counts = [3 + at for at, (count, _) in enumerate(MODULES.values()) for _ in range(count)] + [
        17
    ] * 3
    even = sum(math.log(count) for count in counts) / len(counts)
    x = one_hot([1, 2, 3, 0], 4)[None]
    for progress, left in ((None, 1.0), (torch.tensor(0.25), 0.75), (torch.tensor(1.0), 0.0)):
        context = context_of(mask_of(4), input=x)._replace(penalties={}, progress=progress)
        block(x, (), context)
        result = torch.cat(context.penalties["entropy", "mean"]).detach()
        torch.testing.assert_close(
            result, torch.full((2,), -0.5 * left * even).double(), atol=1e-3, rtol=0.0
        )
    choices = read_choices(torch.zeros(2, sum(choice_sizes(3))), 3)
    assert choice_entropy(choices).tolist() == pytest.approx([even] * 2, abs=1e-3)
    assert MODULES["zero"][1](initial_machine(torch.zeros(2, 4, 4)))[..., 0].tolist() == [1.0] * 2


def test_a_long_run_in_low_precision_stays_a_distribution() -> None:
    torch.manual_seed(4)
    block = Nram(site_of(12), steps=500).bfloat16()
    x = one_hot(list(range(12)), 12)[None].bfloat16().requires_grad_()
    context = context_of(mask_of(12), input=x)._replace(records={})
    y, _ = block(x, (), context)
    y.sum().backward()
    result = {record.name: values[0].float() for record, values in context.records.items()}
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in block.parameters())
    assert (result["registers"].sum(-1) - 1.0).abs().max() < 0.05
    assert abs(float(result["halting"].sum()) - 1.0) < 0.05


def test_a_site_without_a_tape_is_refused() -> None:
    with pytest.raises(BlockError, match="a decoder may not read the future, and `nram` does"):
        Nram(site_of(8, causal="a decoder"))
    with pytest.raises(BlockError, match="needs 3 integers or more"):
        Nram(site_of(2))


def test_a_gpu_need_not_wait_for_integers() -> None:
    block = Nram(site_of(5), steps=2)
    x = torch.eye(5)[None]
    context = context_of(torch.ones(1, 5, dtype=torch.bool))
    with NoNumbersFromPython():
        block(x, block.start(x, context), context)
