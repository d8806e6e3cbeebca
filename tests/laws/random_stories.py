"""Random recipes that are all about memories: an encoder leaves one, and the decoder goes on with it or asks it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.laws.law_cases import WIDTH, Draw, Scene, fresh, without
from tests.laws.random_memories import begun, memory, memory_network, supporting_facts
from tests.laws.random_stacks import block, cell, stack

TASK = {"generate": {"copy": {"symbols": 6}}, "tokenizer": {"integers": {"below": WIDTH}}}
BABI = {"babi": {"folder": "babi", "tasks": [1], "words": 3}, "tokenizer": {"word": {"split": "spaces", "size": 10}}}


@st.composite
def continued(draw: Draw) -> dict[str, Any]:
    """A controller with a memory in the encoder, and one in the decoder that goes on with it, nearly always."""
    pool: list[str] = []
    hears = Scene(draw, causal=True, pool=pool, depth=1)
    word, settings = memory(hears)
    read, rnn = fresh(hears), fresh(hears)
    encoder = [*(stack(hears) if hears.sometimes() else []), controlled(rnn, {}, {word: {**settings, "as": read}})]
    left = {f"encoder.{read}": (word, settings)}
    writes = Scene(
        draw,
        causal=True,
        pool=pool,
        depth=1,
        left=left,
        memories=("encoder",),
        copies=(f"encoder.{read}", f"encoder.{rnn}"),
    )
    own, goes_on = (word, without(after(writes, word))) if not writes.rarely() else memory(writes)
    first = {"initial_state": writes.one_of({"copy": f"encoder.{rnn}"}, "encoder", "zeros")}
    decoder = [
        *writes.one_of([], ["no_input"]),
        controlled(fresh(writes), first, {own: {**goes_on, "as": fresh(writes)}}),
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
    pool: list[str] = []
    asks = Scene(draw, causal=False, pool=pool, depth=1)
    question = ["identity"] if draw(st.booleans()) else stack(asks)
    tells = Scene(draw, causal=False, pool=pool, depth=0, keeps=True)
    story = [cell(tells) for _ in range(tells.one_of(0, 1, 2))] + tells.one_of(
        ["identity"], ["identity"], ["sum_columns"]
    )
    writes = Scene(draw, causal=True, pool=pool, depth=1, memories=("story", "question"))
    reads = {"from": "story", "query": writes.one_of("question", "question", None)}
    finds = {"supporting_facts": without({**supporting_facts(writes), **reads})}
    hops = {"memory_network": without({**memory_network(writes), **reads})}
    decoder = [writes.one_of(hops, hops, finds), *(stack(writes) if writes.sometimes() else [])]
    one_hot = {"embedding": "one_hot"} if draw(st.booleans()) else {}
    return recipe(BABI, encoders={"question": question, "story": story}, decoder=decoder, **one_hot)


def recipe(data: dict[str, Any], **model: Any) -> dict[str, Any]:
    """A whole recipe."""
    return {"recipe": 1, "data": data, "model": {"width": WIDTH, **model}}
