"""Random recipes that are all about memories: an encoder leaves one, and the decoder goes on with
it or asks it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from verify.random_memories import (
    begun,
    episodic_memory,
    memory,
    memory_network,
    supporting_facts,
)
from verify.random_models import block, cell, stack, strings
from verify.scene import WIDTH, Draw, Scene, drop_none, new_name

TASK = {"generate": {"copy": {"symbols": 6}}, "tokenizer": {"integers": {"below": WIDTH}}}
BABI = {
    "babi": {"folder": "babi", "tasks": [1], "words": 3},
    "tokenizer": {"word": {"split": "spaces", "size": 10}},
}


@st.composite
def continued(draw: Draw) -> dict[str, Any]:
    """A controller with a memory in the encoder, and one in the decoder that goes on with it,
    nearly always.
    """
    hears = Scene(draw, causal=True, depth=1, careless=draw(st.booleans()))
    word, settings = memory(hears)
    read, rnn = new_name(hears), new_name(hears)
    encoder = [
        *(stack(hears) if hears.sometimes() else []),
        controlled(rnn, {}, {word: {**settings, "as": read}}),
    ]
    writes = replace(
        hears,
        names=["input"],
        named_memories={},
        encoder_memories={f"encoder.{read}": (word, settings)},
        memories=("encoder",),
        copies=(f"encoder.{read}", f"encoder.{rnn}"),
    )
    own, goes_on = (
        (word, drop_none(after(writes, word))) if not writes.mistake() else memory(writes)
    )
    is_read = writes.mistake() or any(text.startswith("encoder") for text in strings(goes_on))
    zeros = ["zeros"] if is_read else []
    first = {"initial_state": writes.one_of({"copy": f"encoder.{rnn}"}, "encoder", *zeros)}
    decoder = [
        *writes.one_of([], ["no_input"]),
        controlled(new_name(writes), first, {own: {**goes_on, "as": new_name(writes)}}),
    ]
    decoder += [block(writes)] if writes.sometimes() else []
    return recipe(TASK, encoder=encoder, decoder=decoder)


def controlled(name: str, first: dict[str, Any], memory: dict[str, Any]) -> dict[str, Any]:
    """A controller that hears what its memory read one step before."""
    ((_, settings),) = memory.items()
    rnn = {"rnn": {**first, "cell": "gru", "width": WIDTH, "as": name}}
    return {"recurrent": {"stack": [{"concat": {"of": [f"prev.{settings['as']}"]}}, rnn, memory]}}


def after(scene: Scene, word: str) -> dict[str, Any]:
    """The settings of what goes on."""
    return begun(scene, word, {})


@st.composite
def stories(draw: Draw) -> dict[str, Any]:
    """Stories and questions: the decoder asks the one with the other, or with what it writes."""
    asks = Scene(
        draw, causal=False, depth=1, keeps=draw(st.booleans()), careless=draw(st.booleans())
    )
    question = ["identity"] if draw(st.booleans()) else stack(asks)
    tells = replace(asks, depth=0, keeps=True, names=["input"])
    story = [cell(tells) for _ in range(tells.one_of(0, 1, 2))] + tells.one_of(
        ["identity"], ["identity"], ["sum_columns"]
    )
    writes = replace(
        asks, causal=True, names=["input"], named_memories={}, memories=("story", "question")
    )
    reads = {"from": "story", "query": "question"}
    finds = {"supporting_facts": drop_none({**supporting_facts(writes), **reads})}
    episodes = {"episodic_memory": drop_none({**episodic_memory(writes), **reads})}
    hops = {"memory_network": drop_none({**memory_network(writes), **reads})}
    asks_itself = {
        "memory_network": drop_none({**memory_network(writes), "from": "story", "query": None})
    }
    attends = {"residual": {"stack": [{"cross_attention": {"from": "question", "heads": 1}}]}}
    first = writes.one_of([hops], [finds], [episodes], [attends, asks_itself])
    decoder = [*first, *(stack(writes) if writes.sometimes() else [])]
    one_hot = {"embedding": "one_hot"} if draw(st.booleans()) else {}
    return recipe(BABI, encoders={"question": question, "story": story}, decoder=decoder, **one_hot)


def recipe(data: dict[str, Any], **model: Any) -> dict[str, Any]:
    """A whole recipe."""
    return {"recipe": 1, "data": data, "model": {"width": WIDTH, **model}}
