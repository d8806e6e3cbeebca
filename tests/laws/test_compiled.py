"""A whole model compiles to one graph, with the loss and gradients of the eager model."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch._dynamo import lookup_backend

from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import PAD
from composer.training.loss import sum_loss
from tests.laws.on_two_devices import module_of, pairs_of, share_of
from tests.laws.test_recipes import HOME

SAMPLE = (
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("multi30k/gru_attention", "multi30k/convolutional")
    ),
    pytest.param("active_memory/neural_gpu", marks=pytest.mark.slow),
    pytest.param("memory/repeat_copy_ntm", marks=pytest.mark.exhaustive),
)
"""One of each kind, since compiling takes seconds; `test_precision.py` has a transformer in a whole
training.
"""


def gradients(model: EncoderDecoder, called: Any, batch: dict[str, Any]) -> dict[str, Tensor]:
    """The loss, and the gradient of every parameter by its name."""
    model.zero_grad()
    loss = sum_loss(called(batch["sources"], batch["target_in"]), batch["target_out"])
    loss.backward()
    reached = {
        name: cast("Tensor", parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {"loss": loss.detach()} | {name: gradient.clone() for name, gradient in reached.items()}


@pytest.mark.parametrize("recipe", SAMPLE)
def test_a_compiled_model_is_one_graph_and_the_same(recipe: str) -> None:
    module = module_of(HOME / f"{recipe}.yaml")
    batch = share_of(pairs_of(module), (0, 1, 2, 3), 0, 1)
    assert (batch["target_out"] == PAD).any(), "without padding this shows less"
    graphs = []

    def compiled(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    torch.compiler.reset()
    expected = gradients(module.model, module.model, batch)
    actual = gradients(module.model, torch.compile(module.model, backend=compiled), batch)
    torch.compiler.reset()
    assert len(graphs) == 1
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name],
            value,
            atol=1e-5,
            rtol=1e-4,
            msg=lambda message, of=name: f"{of}: {message}",
        )
