"""`repeat`: as many steps as a row has positions, sets of parameters that become one, values that
are made again.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.core.contract import BlockError, Penalties
from blocks.linear import Linear
from blocks.repeat import Repeat, mean_parameters
from blocks.rnn import Rnn
from composer.errors import RecipeError
from composer.recipe.recipe import load_text
from composer.testing.harness import Case
from composer.testing.harness import run as harness_run
from tests.blocks.inner_stacks import ATTENTION, CGRU, RNN, WIDER
from tests.blocks.inner_stacks import TANH as TANH_STACK
from tests.blocks.single_block import close, context_of, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

SATURATING = [{"cgru": {"kernel": [3, 2], "gates": "hard", "saturation": 0.5}}]
VALUES = [{"rwkv7": {"heads": 2, "rank": 2, "value_residual": True}}]
VARIANTS = {
    "repeat": (
        {"times": 2, "stack": ATTENTION},
        {"times": 3, "stack": WIDER},
        {"times": 2, "stack": [*RNN, *TANH_STACK], "share": True},
        {"times": 3, "stack": TANH_STACK, "relaxation": {"sets": 2}},
        {
            "times": "length",
            "stack": [{"conv": {}}, {"linear": {"activation": "tanh", "as": "made"}}],
            "share": True,
        },
        {"times": "length", "stack": SATURATING, "relaxation": {"sets": 2}},
        {"times": 2, "stack": [{"residual": {"stack": VALUES}}]},
        {"times": 2, "stack": [*CGRU, {"conv2d": {"activation": "tanh"}}]},
    ),
}
"""Settings with which the laws are checked, by block."""

TANH = [{"block": Linear, "activation": "tanh"}]
X = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
MASK = mask_of(4, 1, 2)


def repeat(stack: Any = TANH, **settings: Any) -> Repeat:
    torch.manual_seed(1)
    block = Repeat(site_of(5), stack=stack, **settings).double()
    for parameter in block.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return block


def test_each_row_takes_as_many_steps_as_it_has_positions() -> None:
    block = repeat(times="length", share=True)
    y, _ = run(block, X, MASK)
    for row, count in enumerate((4, 1, 2)):
        stepped = X[row]
        for _ in range(count):
            stepped = block.stacks[0](stepped[None], ((),), context_of(MASK[:1]))[0][0]
        close(y[row], stepped)


def test_names_and_states_of_a_finished_row_do_not_change() -> None:
    block = repeat([{"block": Rnn, "cell": "gru", "as": "inside"}], times="length", share=True)
    context = context_of(MASK)
    y, state, outputs = block(X, block.start(X[:, :1], context), context)
    alone = context_of(MASK[2:, :2])
    expected, last, _ = block(X[2:, :2], block.start(X[2:, :1], alone), alone)
    close(y[2:, :2], expected)
    close(outputs["inside"].states[2:, :2], expected)
    close(tuple(leaf[2:] for leaf in flat(state)), flat(last))


def flat(state: Any) -> tuple[torch.Tensor, ...]:
    return (
        (state,)
        if isinstance(state, torch.Tensor)
        else tuple(leaf for part in state for leaf in flat(part))
    )


def test_iterations_alternate_the_parameter_sets_until_they_join() -> None:
    block = repeat(times=3, relaxation={"sets": 2, "until": 0.5})
    first, second = ([*item.parameters()] for item in block.stacks)

    def by_hand(*sets: Any) -> torch.Tensor:
        y = X
        for weight, bias in sets:
            y = torch.tanh(y @ weight.T + bias)
        return y

    block.set_progress(0.49)
    close(run(block, X)[0], by_hand(first, second, first))
    block.set_progress(0.5)
    mean = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    close(run(block, X)[0], by_hand(mean, mean, mean))


READING = ([{"cross_attention": {"heads": 2}}], [{"rnn": {"initial_state": "learned"}}])
"""Stacks that compute with their parameters before the first position."""


@pytest.mark.parametrize("times", [3, "length"])
@pytest.mark.parametrize("stack", READING)
def test_sets_that_have_joined_compute_as_one_from_the_start(stack: Any, times: Any) -> None:
    settings = {"times": times, "stack": stack}
    relaxed, shared = (
        Case(Repeat, {**settings, **how}, "encoder")
        for how in ({"relaxation": {"sets": 2}}, {"share": True})
    )
    block, one = relaxed.exact(), shared.exact()
    one.stacks[0].load_state_dict(mean_parameters(block.stacks))
    block.set_progress(1.0)
    close(harness_run(block, relaxed.batch()).real, harness_run(one, relaxed.batch()).real)


def test_each_step_begins_with_the_state_of_its_own_set() -> None:
    case = Case(
        Repeat, {"times": "length", "stack": READING[0], "relaxation": {"sets": 2}}, "encoder"
    )
    block = case.exact()
    harness_run(block, case.batch()).real.sum().backward()
    assert all(parameter.grad is not None for parameter in block.parameters())


def test_the_penalty_grows_to_two_hundred_times_its_first_weight() -> None:
    block = repeat(times=2, relaxation={"sets": 2, "weight": 0.01, "until": 0.5})
    apart = sum(
        (item - (one + other) / 2).square().sum()
        for one, other in zip(*(list(stack.parameters()) for stack in block.stacks), strict=True)
        for item in (one, other)
    )
    for progress, weight in ((0.0, 0.01), (0.25, 0.01 * 200**0.5), (0.5, 2.0), (0.9, 2.0)):
        penalties: Penalties = {}
        context = context_of(mask_of(4, 4, 4))._replace(
            penalties=penalties, progress=torch.tensor(progress)
        )
        block(X, block.start(X, context), context)
        ((penalty,),) = penalties.values()
        torch.testing.assert_close(penalty, weight * apart)


@pytest.mark.parametrize("times", [3, "length"])
def test_recomputing_gives_equal_values_and_gradients(times: Any) -> None:
    result = []
    for recompute in (False, True):
        block = repeat(
            [{"block": Rnn, "cell": "gru", "as": "inside"}],
            times=times,
            share=True,
            recompute=recompute,
        )
        context = context_of(MASK)
        y, _, outputs = block(X, block.start(X[:, :1], context), context)
        loss = y.square().sum() + outputs["inside"].states.sum()
        result.append((loss.detach(), *torch.autograd.grad(loss, list(block.parameters()))))
    close(*result)


def test_recomputing_saves_fewer_bytes() -> None:
    saved_bytes = []
    for recompute in (False, True):
        block = repeat([*TANH, *TANH, *TANH], times=4, share=True, recompute=recompute)
        sizes: list[int] = []

        def note(item: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(item.numel())
            return item

        with torch.autograd.graph.saved_tensors_hooks(note, lambda item: item):
            run(block, X)
        saved_bytes.append(sum(sizes))
    assert saved_bytes[1] < saved_bytes[0] / 2


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"times": "length"}, "times"),
        ({"times": 2, "relaxation": {"sets": 3}}, "relaxation"),
        ({"times": 1, "relaxation": {"sets": 2}}, "relaxation"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], setting: str) -> None:
    with pytest.raises(BlockError) as refused:
        repeat(**settings)
    assert refused.value.setting == setting
    assert refused.value.fix.text


def test_sets_of_other_parameters_are_refused() -> None:
    """The second `rwkv7` mixes the first one's values in, and so has parameters that the first has
    not.
    """
    repeated = "{times: 2, relaxation: {sets: 2}, stack: [rwkv7: {heads: 2, value_residual: true}]}"
    model = f"{{width: 8, decoder: [repeat: {repeated}]}}"
    recipe = load_text(f"{{recipe: 1, data: {{generate: reverse}}, model: {model}}}")
    with pytest.raises(
        RecipeError, match="a block has others after the first iteration"
    ) as refused:
        recipe.plan()
    assert [fault.path for fault in refused.value.faults] == ["model.decoder[0].repeat.relaxation"]


def test_times_length_is_refused_in_a_decoder() -> None:
    with pytest.raises(BlockError) as refused:
        Repeat(site_of(5, causal="a decoder"), times="length", stack=TANH, share=True)
    assert refused.value.code == "causality"
