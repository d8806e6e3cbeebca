"""Random recipes: stacks that a person might write, most of them sound, some not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from composer.recipe import schema_generator
from verify.random_memories import CONTINUABLE, MEMORIES, memory
from verify.random_mixers import MIXERS
from verify.scene import (
    ACTIVATIONS,
    WIDTH,
    Draw,
    Scene,
    drop_keys,
    drop_none,
    inside,
    new_name,
    readable_name,
)

ENCODERS: Sequence[tuple[str, ...]] = [("encoder",)] * 6 + [("image", "text")] * 3 + [()]


@st.composite
def recipes(draw: Draw, encoders: Sequence[tuple[str, ...]] = ENCODERS) -> dict[str, Any]:
    """A recipe as data, with encoders of one of these groups of names; every other one may have
    mistakes.
    """
    base = Scene(draw, causal=True, careless=draw(st.booleans()))
    stacks = (
        {"shelf": stack(replace(base, depth=1, keeps=True, on_shelf=True))}
        if draw(st.booleans())
        else {}
    )
    base = replace(base, stacks=tuple(stacks), keeps=draw(st.booleans()))
    names = draw(st.sampled_from(encoders))
    read: dict[str, Any] = {}
    for name in names:
        scene = replace(base, causal=False, names=["input"], grids=[], named_memories={})
        read[name] = stack(scene)
        base = with_memory(base, name, scene)
    decoder = target_stack(replace(base, names=["input"]))
    uses = list(settings_of("use", [read, decoder]))
    if stacks and not uses and not base.mistake():
        decoder.append({"use": {"stack": "shelf"}})
    elif len(uses) == 1 and not base.mistake():
        uses[0].pop("copy", None)
    decoder.append({"linear": {"width": WIDTH}})
    for name in names:
        is_read = any(text.partition(".")[0] == name for text in strings(decoder))
        if not (draw(st.booleans()) if is_read else base.mistake()):
            decoder.append({"residual": {"stack": [{"cross_attention": {"from": name}}]}})
    model = {
        "width": WIDTH,
        "decoder": decoder,
        "stacks": stacks,
        "dropout": draw(st.sampled_from([0.0, 0.2])),
    }
    joint = draw(st.booleans())
    reads_tokens = "source_state" not in decoder[0] or base.mistake()
    if reads_tokens and draw(st.booleans()):
        with_source = (joint and names == ("encoder",)) or base.mistake()
        model["output"] = {"tie": ["source", "target"] if with_source else ["target"]}
    if names:
        model |= {"encoder": read["encoder"]} if names == ("encoder",) else {"encoders": read}
    return {
        "recipe": 1,
        "data": data(names, joint) if names or base.mistake() else LANGUAGE_MODEL_DATA,
        "model": {key: value for key, value in model.items() if value != {}},
    }


LANGUAGE_MODEL_DATA = {"text": {"train": "text.txt"}, "tokenizer": {"bpe": {"size": 300}}}


def data(names: tuple[str, ...], joint: bool) -> dict[str, Any]:
    """Pairs, with a file for each encoder."""
    texts = {name: f"{name}.txt" for name in names if name != "encoder"} or {"source": "source.txt"}
    return {
        "parallel": {"train": {**texts, "target": "target.txt"}},
        "tokenizer": {"bpe": {"size": 300, "joint": joint}},
    }


def with_memory(scene: Scene, name: str, encoder: Scene) -> Scene:
    """The scene in which an encoder, and all that has a name in it, can be read."""
    return replace(
        scene,
        memories=(*scene.memories, name),
        copies=(*scene.copies, *(f"{name}.{key}" for key in encoder.names)),
        grids=[*scene.grids, *(f"{name}.{key}" for key in encoder.grids)],
        encoder_memories={
            **scene.encoder_memories,
            **{f"{name}.{key}": value for key, value in encoder.named_memories.items()},
        },
    )


def settings_of(word: str, value: Any) -> Iterator[dict[str, Any]]:
    """The settings of every block of a kind, in blocks at any depth."""
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    ):
        if key == word:
            yield inner
        yield from settings_of(word, inner)


def strings(value: Any) -> Iterator[str]:
    """Every string in a value, but the keys of mappings."""
    if isinstance(value, str):
        yield value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from strings(inner)


def stack(scene: Scene) -> list[Any]:
    """One to three blocks; in an encoder now and then a grid after them."""
    blocks = [block(scene) for _ in range(scene.draw(st.integers(1, 3)))]
    fits = not scene.causal and (scene.depth == Scene.depth or scene.mistake())
    return blocks + (image(scene) if fits and scene.sometimes() else [])


def target_stack(scene: Scene) -> list[Any]:
    """A decoder's; now and then it begins with what the encoders leave in place of the tokens."""
    if scene.memories and not scene.draw(st.integers(0, 9)):
        return [
            {"source_state": {"from": scene.draw(st.sampled_from(scene.memories))}},
            *stack(scene),
        ]
    return stack(scene) + (
        active_memory(scene) if scene.grids and scene.draw(st.booleans()) else []
    )


def block(scene: Scene) -> Any:
    """A block; one in four has a name."""
    words = [*LEAVES] * 2 + ([*COMBINATORS] * 4 if scene.depth else [])
    unfit = set() if scene.mistake() else unfit_words(scene)
    word = scene.draw(st.sampled_from([word for word in words if word not in unfit]))
    settings = {
        key: value
        for key, value in (LEAVES | COMBINATORS)[word](scene).items()
        if value is not None
    }
    if scene.sometimes() and (not scene.on_shelf or scene.mistake()):
        settings["as"] = new_name(scene)
        scene.names.append(settings["as"])
        scene.named_memories |= (
            {settings["as"]: (word, settings)} if word in (*CONTINUABLE, *MIXERS, "rnn") else {}
        )
    if word in SHORTENING or "stride" in settings:
        # all others have another length
        scene.names[:] = [settings["as"]] if "as" in settings else []
    return {word: settings} if settings else word


def unfit_words(scene: Scene) -> set[str]:
    """The blocks that would be refused here."""
    unfit = {*SHORTENING, "reverse", "nram"} if scene.causal else set()
    unfit |= OF_GRIDS
    unfit |= {*SHORTENING, "concat"} if scene.keeps else set()
    unfit |= (
        set()
        if scene.memories
        else {"cross_attention", "memory_network", "supporting_facts", "episodic_memory"}
    )
    is_inner = scene.keeps and scene.depth < Scene.depth  # beside a stream that is not lost
    unfit |= set() if scene.memories and is_inner else {"source_state"}
    unfit |= set() if scene.names else {"concat", "add", "multiply"}
    return unfit | (set() if scene.stacks else {"use"})


# ------------------------------------------------------------------------------------------- blocks
# without stacks


def linear(scene: Scene) -> dict[str, Any]:
    width = None if scene.keeps else scene.one_of(None, None, None, None, 4)
    return {
        "width": width,
        "activation": scene.one_of(None, *ACTIVATIONS),
        "bias": scene.one_of(None, False),
        "weight_norm": scene.one_of(None, None, True),
    }


def feed_forward(scene: Scene) -> dict[str, Any]:
    settings = {"hidden": scene.one_of(None, 5), "activation": scene.one_of(*ACTIVATIONS)}
    return {**settings, "bias": scene.one_of(None, False)}


def maxout(scene: Scene) -> dict[str, Any]:
    return {"pieces": scene.one_of(1, 2, 3)}


def norm(scene: Scene) -> dict[str, Any]:
    return {"kind": scene.one_of("layer", "rms")}


def positions(scene: Scene) -> dict[str, Any]:
    kind = scene.one_of("sinusoidal", "learned")
    return {
        "kind": kind,
        "max_length": 3 if (scene.sometimes() if kind == "learned" else scene.mistake()) else None,
        "per_iteration": True
        if (scene.sometimes() if scene.repeated else scene.mistake())
        else None,
    }


def activation(scene: Scene) -> dict[str, Any]:
    gated = ["glu", "swiglu", "geglu"] if scene.mistake() else []
    return {"kind": scene.one_of(None, "relu", "tanh", *gated)}


def dropout(scene: Scene) -> dict[str, Any]:
    rate = scene.one_of(None, 0.5)
    return {"rate": rate, "locked": scene.one_of(None, True) if rate or scene.mistake() else None}


def identity(scene: Scene) -> dict[str, Any]:
    return {}


def scale(scene: Scene) -> dict[str, Any]:
    return {"factor": scene.one_of(None, 0.5, 2), "gradient": scene.one_of(None, 0.5)}


def reverse(scene: Scene) -> dict[str, Any]:
    return {}


def merge_names(scene: Scene) -> dict[str, Any]:
    return {"of": [readable_name(scene) for _ in range(scene.one_of(1, 1, 2))]}


def rnn(scene: Scene) -> dict[str, Any]:
    """One of its own, or one like an encoder's that starts from its last state."""
    alike = {
        name: settings
        for name, (word, settings) in scene.encoder_memories.items()
        if word == "rnn" and not settings.keys() & {"bidirectional", "projection"}
    }
    if alike and scene.draw(st.booleans()):
        name = scene.one_of(*alike)
        return {**drop_keys(alike[name], "as"), "initial_state": {"copy": name}}
    cell, layers = scene.one_of("lstm", "gru", "tanh", "min_gru"), scene.one_of(None, 1, 2)
    dropout = scene.one_of(None, 0.2) if layers == 2 or scene.mistake() else None
    return {
        "cell": cell,
        "layers": layers,
        "dropout": dropout,
        "locked": scene.one_of(None, True) if dropout or scene.mistake() else None,
        "reset": scene.one_of("before", "after") if cell == "gru" else None,
        "weight_dropout": scene.one_of(None, None, 0.5)
        if cell != "min_gru" or scene.mistake()
        else None,
        "bidirectional": True
        if (scene.sometimes() if not scene.causal else scene.mistake())
        else None,
        "projection": 4 if cell == "lstm" and scene.sometimes() and not scene.keeps else None,
        "norm": "gates" if cell != "min_gru" and scene.sometimes() else None,
        "initial_state": initial_state(scene),
    }


def initial_state(scene: Scene) -> Any:
    if scene.copies and scene.mistake():
        return {"copy": scene.one_of(*scene.copies)}
    return scene.one_of(None, None, "zeros", "learned", *scene.memories)


def recurrent_mixer(scene: Scene, **settings: Any) -> dict[str, Any]:
    """Settings of a recurrence element by element."""
    return {**settings, "initial_state": initial_state(scene)}


def mamba(scene: Scene) -> dict[str, Any]:
    return recurrent_mixer(scene, state=scene.one_of(None, 2), short_conv=scene.one_of(None, 0))


def rg_lru(scene: Scene) -> dict[str, Any]:
    return recurrent_mixer(scene, heads=scene.one_of(None, 2), short_conv=scene.one_of(None, 4))


def slstm(scene: Scene) -> dict[str, Any]:
    return recurrent_mixer(scene, heads=scene.one_of(1, 2), short_conv=scene.one_of(None, 0))


def long_conv(scene: Scene) -> dict[str, Any]:
    return recurrent_mixer(scene, state=scene.one_of(None, 2))


def conv(scene: Scene) -> dict[str, Any]:
    stride = (
        scene.one_of(None, None, None, 2)
        if not (scene.causal or scene.keeps) or scene.mistake()
        else None
    )
    kernel = scene.one_of(None, 1, 2, 3, 4)
    return {
        "kernel": kernel,
        "activation": scene.one_of(None, *ACTIVATIONS),
        "dilation": scene.one_of(None, 2) if kernel != 1 or scene.mistake() else None,
        "stride": stride,
        "depthwise": scene.one_of(None, None, True),
        "weight_norm": scene.one_of(None, None, True),
    }


def pool(scene: Scene) -> dict[str, Any]:
    return {"how": scene.one_of("last", "mean", "max", "attention")}


def pool_hierarchical(scene: Scene) -> dict[str, Any]:
    return {
        "max_length": scene.one_of(None, 1, 3),
        "activation": scene.one_of(None, "none", "relu"),
    }


def source_state(scene: Scene) -> dict[str, Any]:
    readable = scene.copies if scene.copies and scene.sometimes() else scene.memories
    chosen = scene.draw(st.sampled_from(readable)) if readable else None
    return {"from": None if len(scene.memories) == 1 and scene.draw(st.booleans()) else chosen}


def self_attention(scene: Scene) -> dict[str, Any]:
    heads = 4 if scene.mistake() else scene.one_of(1, 2, 3)
    window = scene.one_of(None, None, 1, 2, 3)
    has_distances = window != 1 or scene.mistake()
    rotary = "rotary" if (heads != 2 and has_distances) or scene.mistake() else "relative"
    positions = scene.one_of(
        None, "relative", rotary, *(("transformer_xl", "alibi", "t5") if has_distances else ())
    )
    limits = [
        limit for limit in (1, 2) if window is None or limit < max(window, 2) or scene.mistake()
    ]
    return {
        "heads": heads,
        "window": window,
        "dropout": scene.one_of(None, 0.1),
        "bias": scene.one_of(None, False),
        "positions": positions,
        "max_distance": scene.one_of(None, *limits)
        if positions == "relative" or scene.mistake()
        else None,
        "kv_heads": scene.one_of(None, None, 1) if heads != 1 else None,
        "qk_norm": scene.one_of(None, None, True) if has_distances else None,
        "soft_cap": scene.one_of(None, None, 2.0) if has_distances else None,
        "sinks": scene.one_of(None, None, True),
    }


def latent_attention(scene: Scene) -> dict[str, Any]:
    return {
        "heads": scene.one_of(1, 2),
        "latent": scene.one_of(None, 3),
        "query_latent": scene.one_of(None, None, 3),
        "rotary_width": scene.one_of(None, 0, 4),
        "dropout": scene.one_of(None, 0.1),
    }


def differential_attention(scene: Scene) -> dict[str, Any]:
    return {
        "heads": 1,
        "lambda_init": scene.one_of(None, 0.2),
        "positions": scene.one_of(None, "rotary") if scene.mistake() else None,
        "dropout": scene.one_of(None, 0.1),
    }


def cross_attention(scene: Scene) -> dict[str, Any]:
    """One memory or two, mostly read by what keeps the width."""
    readable = None if len(scene.memories) == 1 and scene.draw(st.booleans()) else scene.memories
    if readable and scene.copies and scene.sometimes():
        readable = scene.copies
    memory = scene.draw(st.sampled_from(readable)) if readable else None
    score = scene.one_of(None, None, "additive", "general", "dot", "fine_grained", "location")
    pair = scene.mistake() if score == "location" else scene.sometimes()
    heads = None if score == "fine_grained" and not scene.mistake() else scene.one_of(None, 2, 3)
    return {
        "score": score,
        "heads": heads,
        "merge": scene.one_of(None, "average") if heads or scene.mistake() else None,
        "max_length": 4 if (score == "location") != scene.mistake() else None,
        "query": readable_name(scene) if scene.sometimes() else None,
        "sqrt_length": scene.one_of(None, None, True),
        "gate": scene.one_of(None, None, True),
        "doubly_stochastic": scene.one_of(None, None, 0.5),
        **(two_memories(scene, memory) if pair else {"from": memory, **window(scene)}),
    }


def two_memories(scene: Scene, memory: str | None) -> dict[str, Any]:
    """Side by side, or one for the keys and one for the values."""
    other = scene.draw(st.sampled_from([*scene.memories, *scene.copies] or ["nobody"]))
    if scene.draw(st.booleans()):
        return {"from": [memory or other, other]}
    return {"keys": other} if memory is None else {"keys": memory, "values": other}


def window(scene: Scene) -> dict[str, Any]:
    local = scene.one_of(None, None, "monotonic", "predicted")
    return {"local": local, "window": scene.one_of(None, 1, 2) if local else None}


def window_memory(scene: Scene) -> dict[str, Any]:
    width = None if scene.keeps else scene.one_of(None, 4)
    window = 1 if scene.mistake() else scene.one_of(2, 3, None)
    return {
        "hops": scene.one_of(1, 2),
        "window": window,
        "width": width,
        "relu": scene.one_of(None, 0, 1),
    }


def use(scene: Scene) -> dict[str, Any]:
    name = scene.draw(st.sampled_from(scene.stacks)) if scene.stacks else "nowhere"
    return {"stack": name, "copy": scene.one_of(None, True)}


# ------------------------------------------------------------------------------------------- grids


def image(scene: Scene) -> list[Any]:
    """A grid, steps from it to the next, and what makes a sequence of it; seldom nothing does."""
    name = new_name(scene)
    word = scene.one_of("grid", "grid", "split_columns")
    scene.grids += [name] if word == "grid" else []  # the others have no room for an answer
    repeated = scene.draw(st.booleans())
    made = {word: {**drop_none(LEAVES[word](scene)), "as": name}}
    within = replace(scene, names=[name], copies=(), keeps=scene.keeps or repeated, depth=0)
    steps = [cell(within) for _ in range(scene.one_of(1, 1, 2))]
    if repeated:
        relaxation = scene.one_of(None, None, {"sets": 2})
        settings = {
            "times": scene.one_of("length", "length", 2),
            "share": True if (relaxation is None) != scene.mistake() else None,
            "relaxation": relaxation,
            "recompute": scene.one_of(None, True),
            "stack": steps,
        }
        steps = [{"repeat": drop_none(settings)}]
    word = scene.one_of(
        "select_column", "sum_columns", *([] if scene.keeps else ["flatten", "concat_columns"])
    )
    end = [] if scene.mistake() else [{word: LEAVES[word](scene)}]
    return [made, *steps, *end]


def cell(scene: Scene) -> Any:
    """A block that takes a grid, nearly always."""
    if scene.mistake():
        return block(scene)
    words = [
        "cgru",
        "cgru",
        "conv2d",
        "linear",
        "norm",
        "dropout",
        "scale",
        "feed_forward",
        *["add"] * bool(scene.names),
    ]
    word = scene.draw(st.sampled_from(words))
    settings = drop_none(LEAVES[word](scene))
    if word in SHORTENING or "stride" in settings:
        scene.names[:] = []  # all others have another length
    return {word: settings}


def active_memory(scene: Scene) -> list[Any]:
    """Steps from one grid to the next that write the answer on a tape, and what makes a sequence of
    it.
    """
    within = replace(scene, causal=False, names=["tape"], copies=(), keeps=True, depth=0)
    steps = [{"cgru": drop_none(cgru(within))} for _ in range(scene.one_of(1, 1, 2))]
    memory = scene.draw(st.sampled_from(scene.grids))
    settings = {
        "from": memory,
        "stack": steps,
        "write": scene.one_of(None, "all"),
        "recompute": scene.one_of(None, True),
    }
    return [
        {"active_memory": drop_none(settings)},
        scene.one_of({"select_column": {}}, {"sum_columns": {}}),
    ]


def grid(scene: Scene) -> dict[str, Any]:
    return {"columns": scene.one_of(1, 2, 3), "max_length_ratio": scene.one_of(None, 1, 1.5)}


def split_columns(scene: Scene) -> dict[str, Any]:
    return {"columns": 5 if scene.mistake() else scene.one_of(1, 2)}


def windows(scene: Scene) -> dict[str, Any]:
    return {"size": scene.one_of([2, 1], [3, 1], *[[2, 2]] * scene.mistake())}


def select_column(scene: Scene) -> dict[str, Any]:
    return {"index": 2 if scene.mistake() else 0}


def cgru(scene: Scene) -> dict[str, Any]:
    gates = scene.one_of(None, "cutoff", "plain", "hard")
    saturated = scene.sometimes() and (gates != "plain" or scene.mistake())
    dropout = scene.one_of(None, 0.2)
    return {
        "kernel": scene.one_of(None, [1, 1], [2, 3]),
        "gates": gates,
        "candidate": scene.one_of(None, "hard"),
        "diagonal": scene.one_of(None, True),
        "dropout": dropout,
        "dropout_by": scene.one_of(None, "length", "sqrt_length")
        if dropout or scene.mistake()
        else None,
        "saturation": 0.1 if saturated else None,
        "with": readable_name(scene) if scene.sometimes() else None,
    }


def conv2d(scene: Scene) -> dict[str, Any]:
    width = None if scene.keeps else scene.one_of(None, 4)
    windows = scene.one_of(
        {}, {"kernel": [1, 3]}, {"kernel": [2, 1]}, {"kernel": [1, 3], "align": "start"}
    )
    return {
        **windows,
        "activation": scene.one_of(None, *ACTIVATIONS),
        "width": width,
        "stride": None if scene.keeps else scene.one_of(None, None, None, [2, 1]),
    }


# -------------------------------------------------------------------------------------------
# combinators


def residual(scene: Scene) -> dict[str, Any]:
    return {
        "stack": stack(inside(scene, keeps=True)),
        "norm": scene.one_of(None, "pre", "post"),
        "scale": scene.one_of(None, 0.7),
        "dropout": scene.one_of(None, 0.1),
    }


def highway(scene: Scene) -> dict[str, Any]:
    return {"stack": stack(inside(scene, keeps=True))}


def repeat(scene: Scene) -> dict[str, Any]:
    times = scene.one_of(1, 2, 3)
    share = scene.one_of(None, True) if times > 1 or scene.mistake() else None
    keeps = scene.keeps or share is True
    blocks = stack(inside(scene, keeps=keeps, repeated=True))
    if share and not scene.mistake():
        blocks.append("linear")  # a stack without parameters has nothing to share
    return {"times": times, "stack": blocks, "share": share}


def mixture_of_experts(scene: Scene) -> dict[str, Any]:
    words = ["linear", "feed_forward", "norm", "activation", "scale", *["rnn"] * scene.mistake()]
    within = replace(scene, keeps=True, names=list(scene.names))
    written = (
        (word, drop_none(LEAVES[word](within))) for word in (scene.one_of(*words) for _ in range(2))
    )
    return {
        "stack": [{word: settings} for word, settings in written],
        "experts": scene.one_of(2, 3),
        "top_k": scene.one_of(None, 1, 2),
        "shared": scene.one_of(None, 1),
    }


def parallel(scene: Scene) -> dict[str, Any]:
    before, after = list(scene.names), list(scene.names)
    count = scene.one_of(1, 2, 2, 3)
    merges = [None, "sum", "mean", "max", "gate", "attention", *([] if scene.keeps else ["concat"])]
    merge = scene.one_of(*merges) if count > 1 or scene.mistake() else None
    branches: list[list[Any]] = []
    for _ in range(count):
        branch = inside(scene, names=list(before), keeps=merge != "concat" and not scene.mistake())
        branches.append(stack(branch))
        after += branch.names[len(before) :]
    scene.names[:] = after
    if scene.draw(st.booleans()):
        return {"branches": branches, "merge": merge}
    named = {new_name(scene): branch for branch in branches}
    scene.names.extend(named)
    return {"branches": named, "merge": merge}


def recurrent(scene: Scene) -> dict[str, Any]:
    """Feedback of what the stack ends with, or of what it has named on the way."""
    back = new_name(scene)
    within = inside(scene, causal=True, names=[*scene.names, f"prev.{back}"])
    reads = {scene.one_of("concat", "concat", "add"): {"of": [f"prev.{back}"]}}
    word, settings = scene.one_of(
        ("linear", {"activation": "tanh"}), ("rnn", {"cell": "gru"}), memory(within)
    )
    makes = {word: {**settings, "as": back}}
    scene.named_memories |= {back: (word, settings)} if word in CONTINUABLE else {}
    between = stack(within) if scene.sometimes() else []
    scene.names.extend(
        [name for name in within.names if name not in scene.names and "." not in name] + [back]
    )
    return {"stack": [reads, *between, makes, *([block(within)] if scene.sometimes() else [])]}


LEAVES: dict[str, Callable[[Scene], dict[str, Any]]] = {
    "linear": linear,
    "feed_forward": feed_forward,
    "maxout": maxout,
    "norm": norm,
    "positions": positions,
    "activation": activation,
    "dropout": dropout,
    "identity": identity,
    "scale": scale,
    "reverse": reverse,
    "concat": merge_names,
    "add": merge_names,
    "multiply": merge_names,
    "rnn": rnn,
    "mamba": mamba,
    "rg_lru": rg_lru,
    "slstm": slstm,
    "long_conv": long_conv,
    "conv": conv,
    "pool": pool,
    "pool_hierarchical": pool_hierarchical,
    "source_state": source_state,
    "self_attention": self_attention,
    "latent_attention": latent_attention,
    "differential_attention": differential_attention,
    "cross_attention": cross_attention,
    "window_memory": window_memory,
    "use": use,
    "grid": grid,
    "select_column": select_column,
    "sum_columns": identity,
    "flatten": identity,
    "cgru": cgru,
    "conv2d": conv2d,
    "pool2d": windows,
    "patches": windows,
    "split_columns": split_columns,
    "concat_columns": identity,
    "pyramid": identity,
    **MEMORIES,
    **MIXERS,
}
SHORTENING = {"pool", "pool_hierarchical", "pyramid", "pool2d", "patches"}
"""Blocks after which there are fewer positions."""
OF_GRIDS = {"grid", "select_column", "sum_columns", "flatten", "cgru", "conv2d"}
OF_GRIDS |= {"pool2d", "patches", "split_columns", "concat_columns", "rows"}
"""Blocks that take a grid, or end with one: what `image` is made of, and refused elsewhere."""
COMBINATORS: Mapping[str, Callable[[Scene], dict[str, Any]]] = {
    "residual": residual,
    "highway": highway,
    "repeat": repeat,
    "parallel": parallel,
    "mixture_of_experts": mixture_of_experts,
    "recurrent": recurrent,
}


def new_blocks() -> Iterator[str]:
    """The blocks of the schema that nothing here writes settings for, and that need none."""
    for name, rules in schema_generator.load()["$defs"].items():
        word = name.removeprefix("block.")
        has_settings = {*LEAVES, *COMBINATORS, "no_input"}  # `no_input` only begins a decoder
        if word != name and word not in has_settings and not rules["required"]:
            yield word


LEAVES |= dict.fromkeys([*new_blocks()], identity)
