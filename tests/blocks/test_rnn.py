"""`rnn` against torch's own modules, against its equations, and where padding and chunks could go
wrong.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import _VF, Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import BlockError, Named, Output, Stream
from blocks.core.recurrence import build_layer, reverse
from blocks.rnn import Rnn
from tests.blocks.single_block import close, context_of, keeps_chunks, leaves, mask_of, run, site_of
from tests.blocks.step_loops import expect_equations

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "rnn": (
        {},
        {"cell": "tanh", "layers": 2, "dropout": 0.3},
        {"cell": "gru", "reset": "before", "initial_state": "learned"},
        {"cell": "gru", "reset": "after", "layers": 2, "width": 10},
        {"layers": 2, "dropout": 0.3, "locked": True},
        {"cell": "gru", "reset": "before", "weight_dropout": 0.4},
        {"cell": "lstm", "projection": 8, "initial_state": "encoder"},
        {"cell": "tanh", "initial_state": "encoder.grid"},
        {"layers": 2, "initial_state": {"copy": "encoder.same"}},
        {"cell": "gru", "initial_state": {"copy": "encoder.same"}},
        {"bidirectional": True},
        {"cell": "gru", "reset": "after", "bidirectional": True, "layers": 2},
        {"bidirectional": True, "layers": 2, "projection": 8, "initial_state": "learned"},
        {"norm": "gates", "initial_state": "learned"},
        {"norm": "gates", "cell": "gru", "bidirectional": True, "width": 8},
        {"norm": "gates", "cell": "gru", "reset": "after", "layers": 2},
        {"norm": "gates", "cell": "tanh"},
        {"cell": "min_gru", "initial_state": "learned"},
        {"cell": "min_gru", "bidirectional": True, "layers": 2},
        {"cell": "min_gru", "initial_state": {"copy": "encoder.same"}},
    ),
}
"""Settings with which the laws are checked, by block."""

KINDS: list[dict[str, Any]] = [
    {"cell": "lstm"},
    {"cell": "lstm", "layers": 2, "initial_state": "learned"},
    {"cell": "lstm", "projection": 2},
    {"cell": "gru", "reset": "before"},
    {"cell": "gru", "reset": "after", "layers": 2},
    {"cell": "tanh"},
    {"cell": "min_gru", "layers": 2, "initial_state": "learned"},
]


def with_weights_of(block: Rnn, module: nn.RNNBase) -> Rnn:
    """The block with the weights of torch's module, layer by layer and direction by direction."""
    for index, layer in enumerate(block.layers):
        suffix = f"l{index // block.directions}" + ("_reverse" if index % block.directions else "")
        with torch.no_grad():
            layer.arriving.copy_(getattr(module, f"weight_ih_{suffix}"))
            layer.recurrent.copy_(getattr(module, f"weight_hh_{suffix}"))
            layer.arriving_bias.copy_(getattr(module, f"bias_ih_{suffix}"))
            layer.recurrent_bias.copy_(getattr(module, f"bias_hh_{suffix}"))
            if layer.projection is not None:
                layer.projection.copy_(getattr(module, f"weight_hr_{suffix}"))
    return block


@pytest.mark.parametrize(
    ("block", "module"),
    [
        (Rnn(site_of(3), cell="lstm", width=4, layers=2), nn.LSTM(3, 4, 2, batch_first=True)),
        (
            Rnn(site_of(3), cell="lstm", width=4, projection=2),
            nn.LSTM(3, 4, proj_size=2, batch_first=True),
        ),
        (
            Rnn(site_of(3), cell="lstm", width=4, bidirectional=True),
            nn.LSTM(3, 2, bidirectional=True, batch_first=True),
        ),
        (Rnn(site_of(3), cell="gru", reset="after", width=4), nn.GRU(3, 4, batch_first=True)),
        (Rnn(site_of(3), cell="tanh", width=4), nn.RNN(3, 4, batch_first=True)),
        (
            Rnn(site_of(3), cell="lstm", width=4, layers=2, bidirectional=True),
            nn.LSTM(3, 2, 2, bidirectional=True, batch_first=True),
        ),
        (
            Rnn(site_of(3), cell="gru", reset="after", width=4, layers=2, bidirectional=True),
            nn.GRU(3, 2, 2, bidirectional=True, batch_first=True),
        ),
    ],
    ids=["lstm", "projection", "bidirectional", "gru", "tanh", "deep lstm", "deep gru"],
)
def test_equals_torch_over_packed_rows(block: Rnn, module: nn.RNNBase) -> None:
    x, lengths = torch.randn(3, 5, 3), [5, 2, 1]
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
    block, module = with_weights_of(block.double(), module.double()), module.double()
    expected, last = module(packed)
    expected, _ = nn.utils.rnn.pad_packed_sequence(expected, batch_first=True)
    mask = mask_of(*lengths)
    y, state = run(block, x, mask)
    close(y[mask], expected[mask])
    last = last if isinstance(last, tuple) else (last,)
    close(
        tuple(leaf for cell in state for leaf in cell),
        tuple(item[i] for i in range(len(state)) for item in last),
    )


def test_a_projection_has_the_gradients_of_torch() -> None:
    """Two layers, of which the second reads a projection; from a state, with its gradient."""
    block = Rnn(site_of(3), cell="lstm", width=5, projection=2, layers=2).double()
    module = nn.LSTM(3, 5, 2, proj_size=2, batch_first=True).double()
    with_weights_of(block, module)
    x, h, c = (
        torch.randn(shape, requires_grad=True) for shape in ((3, 6, 3), (2, 3, 2), (2, 3, 5))
    )
    y, state = block(x, tuple(zip(h, c, strict=True)), context_of(mask_of(6, 6, 6)))
    expected, last = module(x, (h, c))
    close(y, expected)
    close(tuple(leaves(state)), tuple(leaf for pair in zip(*last, strict=True) for leaf in pair))
    mine = [weight for layer in block.layers for weight in (*layer.weights(), layer.projection)]
    theirs = [weight for layer in module.all_weights for weight in layer]
    weight = torch.randn_like(y)
    grads = torch.autograd.grad((y * weight).sum() + state[1][1].sum(), (x, h, c, *mine))
    close(
        grads, torch.autograd.grad((expected * weight).sum() + last[1][1].sum(), (x, h, c, *theirs))
    )


WEIGHT_DROPPED: list[dict[str, Any]] = [
    {"cell": "lstm"},
    {"cell": "lstm", "projection": 3},
    {"cell": "tanh"},
    {"cell": "gru", "reset": "after"},
    {"cell": "gru", "reset": "before"},
    {"cell": "lstm", "norm": "gates"},
    {"cell": "gru", "norm": "gates"},
    {"cell": "tanh", "norm": "gates"},
]


@pytest.mark.parametrize("settings", WEIGHT_DROPPED, ids=str)
def test_weight_dropout_drops_weights_between_positions_alike_in_all_positions(
    settings: dict[str, Any],
) -> None:
    """The rnn is one with fewer weights: its own gradient says which, and without them it computes
    the same.
    """
    block = Rnn(site_of(3, causal="a decoder"), width=4, weight_dropout=0.5, **settings)
    (layer,), x = block.layers, torch.randn(2, 6, 3)
    matrices = (
        [layer.gates.weight, layer.candidate.weight] if settings.get("reset") == "before" else None
    )
    matrices = (
        [layer.recurrent] if matrices is None and hasattr(layer, "recurrent") else matrices or []
    )
    y, _ = run(block, x)
    grads = torch.autograd.grad((y * torch.randn_like(y)).sum(), matrices)
    dropped = [grad == 0 for grad in grads]
    assert 0.2 < torch.cat([mask.flatten() for mask in dropped]).double().mean() < 0.8
    with torch.no_grad():
        for matrix, mask in zip(matrices, dropped, strict=True):
            matrix.mul_((~mask).double() * 2)
    close(run(block.eval(), x)[0], y)
    # a single position from zeros reads no weight between positions
    one, _ = run(block.train(), x[:, :1])
    close(one, run(block.eval(), x[:, :1])[0])


def test_locked_dropout_between_layers_has_one_mask_for_a_row() -> None:
    block = Rnn(
        site_of(3, causal="a decoder"), width=40, cell="tanh", layers=2, dropout=0.5, locked=True
    )
    with torch.no_grad():
        second = block.layers[1]
        second.arriving.copy_(torch.eye(40))
        second.recurrent.zero_()
    y, _ = run(block, torch.randn(3, 5, 3))
    dropped = y == 0
    assert (dropped == dropped[:, :1]).all()
    assert (dropped[0] != dropped[1]).any()
    assert 0.3 < dropped.double().mean() < 0.7


def test_reset_before_is_the_published_form() -> None:
    block = Rnn(site_of(3, causal="a decoder"), cell="gru", width=4)
    x, layer = torch.randn(2, 6, 3), block.layers[0]
    w_r, w_z, w_n = layer.arriving.weight.split(4)
    b_r, b_z, b_n = layer.arriving.bias.split(4)
    u_r, u_z = layer.gates.weight.split(4)
    h, expected = torch.zeros(2, 4), []
    for t in range(6):
        r = torch.sigmoid(x[:, t] @ w_r.T + b_r + h @ u_r.T)
        z = torch.sigmoid(x[:, t] @ w_z.T + b_z + h @ u_z.T)
        n = torch.tanh(x[:, t] @ w_n.T + b_n + (r * h) @ layer.candidate.weight.T)
        h = z * h + (1 - z) * n
        expected.append(h)
    close(run(block, x)[0], torch.stack(expected, 1))


@pytest.mark.parametrize("settings", KINDS)
def test_ragged_chunks_equal_each_row_alone(settings: dict[str, Any]) -> None:
    block = Rnn(site_of(3, causal="a decoder", model=4), **settings)
    keeps_chunks(block, torch.randn(3, 8, 3), [8, 3, 0])


@pytest.mark.parametrize("settings", KINDS)
def test_padding_does_not_affect_a_bidirectional_row(settings: dict[str, Any]) -> None:
    block = Rnn(site_of(3, model=4), bidirectional=True, **settings)
    x, lengths = torch.randn(3, 6, 3), (6, 4, 1)
    together, state = run(block, x, mask_of(*lengths))
    for row, length in enumerate(lengths):
        alone, last = run(block, x[row : row + 1, :length])
        close(together[row, :length], alone[0])
        close(tuple(leaf[row : row + 1] for leaf in leaves(state)), tuple(leaves(last)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_does_not_change_the_cell(dtype: torch.dtype) -> None:
    block = Rnn(site_of(16, causal="a decoder")).to(dtype)
    x, mask = 100 * torch.randn(2, 40, 16, dtype=dtype, requires_grad=True), mask_of(40, 0)
    before = tuple(torch.randn(2, 16, dtype=dtype, requires_grad=True) for _ in range(2))
    _, ((h, c),) = block(x, (before,), context_of(mask))
    assert torch.equal(h[1], before[0][1])
    assert torch.equal(c[1], before[1][1])
    grads = torch.autograd.grad(c.sum() + h.sum(), (x, *before))
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][1] == 0).all()
    assert (grads[1][1] == 1).all()
    assert (grads[2][1] == 1).all()


def test_bf16_stays_finite_and_the_state_in_full_precision() -> None:
    block = Rnn(site_of(4, causal="a decoder"), layers=2).float()
    x = torch.randn(2, 5, 4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        many, state = run(block, x)
        one, after = block(x[:, :1].bfloat16(), state, context_of(mask_of(1, 1)))
    assert many.isfinite().all()
    assert one.isfinite().all()
    assert {leaf.dtype for leaf in (*leaves(state), *leaves(after))} == {torch.float32}


@pytest.mark.parametrize("settings", KINDS)
def test_gradients_equal_finite_differences(settings: dict[str, Any]) -> None:
    block = Rnn(
        site_of(2, causal="a decoder"),
        **{**settings, "projection": settings.get("projection") and 1},
    )
    x, mask = torch.randn(2, 3, 2, requires_grad=True), mask_of(3, 1)

    def outputs(x: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        y, state = run(block, x, mask)
        return (y[mask], *leaves(state))

    assert torch.autograd.gradcheck(outputs, (x, *block.parameters()))


def test_the_memory_that_it_starts_from_is_a_mean_over_real_positions() -> None:
    memories = {"encoder": Named(Stream(5))}
    block = Rnn(
        site_of(3, causal="a decoder", memories=memories),
        cell="gru",
        initial_state="encoder",
        layers=2,
    )
    states, x = torch.randn(2, 4, 5), torch.randn(2, 3, 3)
    memory = Output(states, mask_of(4, 2))
    full = torch.tanh(
        block.initial.project(torch.stack([states[0].mean(0), states[1, :2].mean(0)]))
    )
    start = block.start(x[:, :1], context_of(mask_of(3, 3), {"encoder": memory}))
    close(start, (tuple(full[:, :3].split(3, -1)), tuple(full[:, 3:].split(3, -1))))
    close(block.initial_output(x, start), full[:, None, 3:])


def test_a_state_is_copied_from_an_encoder_and_only_from_its_own_kind() -> None:
    encoder = Rnn(site_of(3), layers=2, width=4)
    x, mask = torch.randn(2, 5, 3), mask_of(5, 3)
    y, last = run(encoder, x, mask)
    memories = {
        "encoder": Named(encoder.out),
        "encoder.top": Named(encoder.out, encoder.state_kind),
    }
    site = site_of(3, causal="a decoder", memories=memories)
    block = Rnn(site, layers=2, width=4, initial_state={"copy": "encoder.top"})
    context = context_of(mask, {"encoder.top": Output(y, mask, last)})
    close(block.start(x[:, :1], context), last)
    others = {"layers": (1, 2), "cell": ("gru", "lstm"), "width": (6, 4), "projection": (2, "none")}
    for setting, (value, there) in others.items():
        message = (
            f"with {setting} {there}, and this starts from the state of `rnn` with {setting}"
            f" {value}"
        )
        with pytest.raises(BlockError, match=message) as error:
            Rnn(
                site,
                **{"layers": 2, "width": 4, setting: value},
                initial_state={"copy": "encoder.top"},
            )
        assert error.value.setting == "initial_state"
    with pytest.raises(BlockError, match="no state that can be copied"):
        Rnn(site, initial_state={"copy": "encoder"})


@pytest.mark.parametrize(
    ("settings", "setting", "message"),
    [
        ({"bidirectional": True}, "bidirectional", "a decoder may not read the future"),
        ({"cell": "lstm", "reset": "after"}, "reset", "has no reset gate"),
        ({"cell": "gru", "projection": 2}, "projection", "only an lstm"),
        ({"projection": 4}, "projection", "not narrower"),
        ({"layers": 2, "locked": True}, "locked", "nothing is dropped"),
        ({"initial_state": "encodr"}, "initial_state", "no memory is called `encodr`"),
    ],
)
def test_conflicting_settings_are_refused(
    settings: dict[str, Any], setting: str, message: str
) -> None:
    with pytest.raises(BlockError, match=message) as error:
        Rnn(site_of(4, causal="a decoder"), **settings)
    assert error.value.setting == setting


def test_each_direction_has_half_of_the_width() -> None:
    assert Rnn(site_of(3), width=6, bidirectional=True).out == Stream(6, length_ratio=Fraction(1))
    with pytest.raises(BlockError, match="5 is odd"):
        Rnn(site_of(3), width=5, bidirectional=True)


def test_runs_on_meta_and_compiles() -> None:
    with torch.device("meta"):
        y, _ = run(Rnn(site_of(3), bidirectional=True, width=4), torch.randn(2, 5, 3))
    assert y.shape == (2, 5, 4)
    block = Rnn(site_of(3, causal="a decoder"), width=4).float()
    x = torch.randn(2, 4, 3, dtype=torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: run(block, x)[0], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), run(block, x)[0])


def test_reverse_reverses_a_row_within_its_length() -> None:
    x = torch.arange(8.0).view(2, 4, 1)
    close(reverse(x, mask_of(4, 3))[..., 0], torch.tensor([[3.0, 2, 1, 0], [6, 5, 4, 7]]))


def min_gru(block: Any, x: Tensor) -> Tensor:
    """Feng et al. 2024, section 3.1, position by position."""
    (layer,) = block.layers
    h, y = torch.zeros(len(x), 5, dtype=x.dtype), []
    for one in x.unbind(1):
        z, candidate = layer.arriving(one).chunk(2, dim=-1)
        z = torch.sigmoid(z)
        h = (1.0 - z) * h + z * candidate
        y.append(h)
    return torch.stack(y, 1)


@pytest.mark.parametrize("bias", [0.0, 25.0, -12.0])
def test_min_gru_equals_a_loop(bias: float) -> None:
    """With 25 more every h is forgotten, with 12 less hardly anything of one."""
    block = Rnn(site_of(5, causal="a decoder"), cell="min_gru")
    block.layers[0].arriving.bias.data[:5] += bias
    expect_equations(block, min_gru)


def test_min_gru_has_no_weights_between_positions_and_no_normalised_gates() -> None:
    for setting in ({"norm": "gates"}, {"weight_dropout": 0.5}, {"reset": "after"}):
        with pytest.raises(BlockError) as refused:
            Rnn(site_of(4), cell="min_gru", **setting)
        assert (refused.value.setting, bool(refused.value.fix.text)) == (next(iter(setting)), True)


@pytest.mark.parametrize(
    ("cell", "kernel"), [("tanh", "rnn_tanh"), ("gru", "gru"), ("lstm", "lstm")]
)
def test_kernels_get_a_contiguous_state_which_cudnn_insists_on(
    cell: Any, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, seen, compute = (
        build_layer(cell, "after", 3, 6, None),
        list[Tensor](),
        getattr(_VF, kernel),
    )

    def record(x: Tensor, state: Any, *rest: Any) -> Any:
        seen.extend([state] if isinstance(state, Tensor) else state)
        return compute(x, state, *rest)

    monkeypatch.setattr(_VF, kernel, record)
    if cell != "lstm":
        monkeypatch.setattr(type(layer), "many", staticmethod(record))
    state = tuple(torch.zeros(6, 2, dtype=layer.arriving.dtype).t() for _ in layer.sizes)
    assert not state[0].is_contiguous()
    layer(torch.randn(2, 4, 3), state, torch.ones(2, 4, dtype=torch.bool))
    assert [tensor.is_contiguous() for tensor in seen] == [True] * len(layer.sizes)


def test_columns_of_zeros_behind_the_padding_which_a_gpu_gets_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer, x, mask = build_layer("lstm", "after", 3, 6, None), torch.randn(2, 4, 3), mask_of(4, 2)
    state = (torch.randn(2, 6), torch.randn(2, 6))
    expected = layer(x, state, mask)
    closed = layer._closed_gates()
    assert closed.shape == (24, 1)
    monkeypatch.setattr(layer, "_closed_gates", lambda: F.pad(closed, (0, 4)))
    close(layer(x, state, mask), expected)
