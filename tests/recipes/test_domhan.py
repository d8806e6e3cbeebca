"""The rows of Domhan 2018, tables 3, 4 and 5: each recipe is what its authors wrote, block by block
and in its size.

The rows stand here in the authors' notation, shortened: `a->b` in sequence, `6x(...)` repeated,
`res(...)` a residual, `att` attention to the source with 8 heads (`att1` with one), `ff->linear`
the halves of a feed-forward network, `glu` and `relu` a convolution of three positions with that
activation; capital letters are below. In the authors' code (Sockeye, branch acl18) a residual has
no dropout of its own; attention, convolutions, positions and both halves of the feed-forward
network end with one, and an LSTM only where `dropout` is written after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.model.builder import build
from composer.recipe.recipe import load
from composer.recipe.section import read_stack

HOME = Path(__file__).parents[2] / "recipes" / "domhan"
SHORT = {
    "SELF": "res(norm->self)",
    "ATT": "res(norm->att)",
    "ATT1": "res(norm->att1)",
    "FF": "res(norm->ff->linear)",
    "RNN": "res(norm->rnn->dropout)",
    "GLU": "res(norm->glu)",
    "RELU": "res(norm->relu)",
}
TRANSFORMER = (
    "table5_self_attention_to_self_attention",
    "pos->6x(SELF->FF)->norm",
    "pos->6x(SELF->ATT->FF)->norm",
)
RNN_TO_RNN = (
    "table5_rnn_to_rnn",
    "pos->res(norm->birnn->dropout)->FF->5x(RNN->FF)->norm",
    "pos->6x(RNN->ATT->FF)->norm",
)
CNN_TO_CNN = ("table5_cnn_to_cnn", "pos->6x(RELU->FF)->norm", "pos->6x(RELU->ATT->FF)->norm")
RNN_PLAIN = "res(birnn->dropout)->5x(res(rnn->dropout))"
RNN_NORM = "pos->res(norm->birnn->dropout)->5x(RNN)->norm"
ROWS = (
    # table 3
    TRANSFORMER,
    (
        "table3_rnn",
        f"dropout->{RNN_PLAIN}",
        "dropout->6x(res(rnn->dropout))->res(att1)->res(ff->linear)",
    ),
    (
        "table3_rnn_mh",
        f"dropout->{RNN_PLAIN}",
        "dropout->6x(res(rnn->dropout))->res(att)->res(ff->linear)",
    ),
    (
        "table3_rnn_pos",
        f"pos->{RNN_PLAIN}",
        "pos->6x(res(rnn->dropout))->res(att)->res(ff->linear)",
    ),
    ("table3_rnn_norm", RNN_NORM, "pos->6x(RNN)->ATT->FF->norm"),
    ("table3_rnn_multi_att_1h", RNN_NORM, "pos->6x(RNN->ATT1)->FF->norm"),
    ("table3_rnn_multi_att", RNN_NORM, "pos->6x(RNN->ATT)->FF->norm"),
    RNN_TO_RNN,
    # table 4
    TRANSFORMER,
    ("table4_cnn_glu", "pos->6x(res(glu))", "pos->6x(res(glu->res(att1)))"),
    ("table4_cnn_glu_norm", "pos->6x(GLU)->norm", "pos->6x(GLU->ATT1)->norm"),
    ("table4_cnn_glu_mh", "pos->6x(GLU)->norm", "pos->6x(GLU->ATT)->norm"),
    ("table4_cnn_glu_ff", "pos->6x(GLU->FF)->norm", "pos->6x(GLU->ATT->FF)->norm"),
    ("table4_cnn_relu", "pos->6x(res(relu))", "pos->6x(res(relu)->res(att1))"),
    ("table4_cnn_relu_norm", "pos->6x(RELU)->norm", "pos->6x(RELU->ATT1)->norm"),
    ("table4_cnn_relu_mh", "pos->6x(RELU)->norm", "pos->6x(RELU->ATT)->norm"),
    CNN_TO_CNN,
    # table 5
    TRANSFORMER,
    ("table5_self_attention_to_rnn", TRANSFORMER[1], RNN_TO_RNN[2]),
    ("table5_self_attention_to_cnn", TRANSFORMER[1], CNN_TO_CNN[2]),
    ("table5_rnn_to_self_attention", RNN_TO_RNN[1], TRANSFORMER[2]),
    ("table5_cnn_to_self_attention", CNN_TO_CNN[1], TRANSFORMER[2]),
    RNN_TO_RNN,
    CNN_TO_CNN,
    (
        "table5_self_attention_to_combined",
        TRANSFORMER[1],
        "pos->2x(SELF->ATT->FF->RNN->ATT->FF->RELU->ATT->FF)->norm",
    ),
    ("table5_self_attention_to_none", TRANSFORMER[1], "pos->6x(ATT->FF)->norm"),
)
MODELS = sorted(set(ROWS))
ENDS_WITH_DROPOUT = ("pos", "self", "att", "att1", "linear", "glu", "relu")
"""The layers of the authors' code whose output is dropped; that of `ff` is too, before the `linear`
that follows.
"""

Tree = tuple[Any, ...]
"""Blocks in order, each a word; a residual is the tuple of what stands in it."""


def parsed(text: str) -> Tree:
    """A row's text, with its repeats written out."""
    for short, long in SHORT.items():
        text = re.sub(rf"\b{short}\b", long, text)
    return _sequence(iter(re.findall(r"\d+x\(|res\(|\)|\w+", text)))


def _sequence(tokens: Iterator[str]) -> Tree:
    tree: Tree = ()
    for token in tokens:
        if token == ")":
            return tree
        if token == "res(":
            tree += (_sequence(tokens),)
        elif token.endswith("x("):
            tree += int(token[:-2]) * _sequence(tokens)
        else:
            tree += (token, "dropout") if token in ENDS_WITH_DROPOUT else (token,)
    return tree


def written(stack: Sequence[Any]) -> Tree:
    """The same of a canonical stack."""
    return tuple(
        word for block in read_stack(stack, ()) for word in _words(block.word, block.settings)
    )


def _words(block: str, settings: Mapping[str, Any]) -> Tree:
    match block:
        case "repeat":
            assert not settings["share"]
            return settings["times"] * written(settings["stack"])
        case "residual":
            assert settings["scale"] == 1.0
            norm = {"pre": ("norm",), "none": ()}[settings["norm"]]
            dropout = {0.1: ("dropout",), 0.0: ()}[settings["dropout"]]
            return ((*norm, *written(settings["stack"]), *dropout),)
        case "positions":
            return ({"sinusoidal": "pos"}[settings["kind"]],)
        case "rnn":
            assert (settings["cell"], settings["layers"], settings["initial_state"]) == (
                "lstm",
                1,
                "zeros",
            )
            return ("birnn" if settings["bidirectional"] else "rnn",)
        case "conv":
            assert (settings["kernel"], settings["dilation"], settings["stride"]) == (3, 1, 1)
            return (settings["activation"],)
        case "cross_attention":
            assert settings["dropout"] == 0.1
            return ({8: "att", 1: "att1"}[settings["heads"]],)
        case "self_attention":
            assert settings["dropout"] == 0.1
            return ({8: "self"}[settings["heads"]],)
        case "feed_forward":
            assert (settings["hidden"] or 4 * 256, settings["activation"], settings["dropout"]) == (
                1024,
                "relu",
                0.1,
            )
            return "ff", "linear"
    assert block in ("norm", "dropout")
    return (block,)


def parameters(tree: Tree, width: int = 256, hidden: int = 1024) -> int:
    """How many parameters a row has, by the layers' equations; a recurrence has a bias on either
    product.
    """
    sizes = {
        "pos": 0,
        "dropout": 0,
        "norm": 2 * width,
        "ff": width * hidden + hidden,
        "linear": hidden * width + width,
        "rnn": 4 * (2 * width * width + 2 * width),
        "birnn": 2 * 4 * (width * width // 2 + width * width // 4 + 2 * (width // 2)),
        "relu": 3 * width * width + width,
        "glu": 3 * width * 2 * width + 2 * width,
        **dict.fromkeys(("self", "att", "att1"), 4 * (width * width + width)),
    }
    return sum(
        parameters(item, width, hidden) if isinstance(item, tuple) else sizes[item] for item in tree
    )


def test_there_are_26_rows_of_22_models_and_each_has_a_file() -> None:
    assert len(ROWS) == 8 + 9 + 9
    assert [file for file, _, _ in MODELS] == sorted(path.stem for path in HOME.glob("*.yaml"))


def test_the_notation_of_the_paper_is_parsed() -> None:
    assert parsed("dropout->2x(ATT1->ff)->res(glu->res(att))") == (
        *("dropout", ("norm", "att1", "dropout"), "ff", ("norm", "att1", "dropout"), "ff"),
        ("glu", "dropout", ("att", "dropout")),
    )


@pytest.mark.parametrize(
    ("file", "encoder", "decoder"), MODELS, ids=[file for file, _, _ in MODELS]
)
def test_a_recipe_equals_its_row_of_the_table(file: str, encoder: str, decoder: str) -> None:
    recipe = load(HOME / f"{file}.yaml")
    assert written(recipe.model.encoder) == parsed(encoder)
    assert written(recipe.model.decoder) == parsed(decoder)
    words = 8000
    with torch.device("meta"):
        model = build(recipe, {"source": words, "target": words})
    tied = words * 256 + words  # one matrix for source, target and output, and the output's bias
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == tied + parameters(parsed(encoder)) + parameters(parsed(decoder))
