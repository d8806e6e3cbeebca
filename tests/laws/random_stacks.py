"""Random recipes: stacks that a person might write, most of them sound, some not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.laws.law_cases import ACTIVATIONS, WIDTH, Draw, Scene, a_name, fresh, inside, without
from tests.laws.random_memories import MEMORIES, MEMORIES_KEPT, memory


@st.composite
def recipes(draw: Draw) -> dict[str, Any]:
    """A recipe as data."""
    pool: list[str] = []
    stacks = {"shelf": stack(Scene(draw, True, pool=pool, depth=1, on_shelf=True))} if draw(st.booleans()) else {}
    columns = draw(st.sampled_from([("encoder",)] * 6 + [("image", "text")] * 3 + [()]))
    encoders: dict[str, Any] = {}
    memories: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    grids: list[str] = []
    left: dict[str, Any] = {}
    for name in columns:
        scene = Scene(
            draw, causal=False, memories=memories, copies=copies, stacks=tuple(stacks), pool=pool, left=dict(left)
        )
        encoders[name] = stack(scene)
        left |= {f"{name}.{key}": made for key, made in scene.made.items()}
        copies += tuple(f"{name}.{key}" for key in scene.names)
        grids += [f"{name}.{key}" for key in scene.grids]
        memories += (name,)
    decoder = target_stack(
        Scene(draw, True, memories=memories, copies=copies, stacks=tuple(stacks), grids=grids, pool=pool, left=left)
    )
    for name in memories:
        if draw(st.integers(0, 9)) != 5:
            decoder.append({"residual": {"stack": [{"cross_attention": {"from": name}}]}})
    decoder.append({"linear": {"width": WIDTH}})
    model = {"width": WIDTH, "decoder": decoder, "stacks": stacks, "dropout": draw(st.sampled_from([0.0, 0.2]))}
    if draw(st.booleans()):
        model["output"] = {"tie": draw(st.sampled_from([["target"], ["target"], ["source", "target"]]))}
    if columns:
        model |= {"encoder": encoders["encoder"]} if columns == ("encoder",) else {"encoders": encoders}
    texts = {name: f"{name}.txt" for name in columns if name != "encoder"} or {"source": "source.txt"}
    joint = draw(st.booleans())
    return {
        "recipe": 1,
        "data": {
            "parallel": {"train": {**texts, "target": "target.txt"}},
            "tokenizer": {"bpe": {"size": 300, "joint": joint}},
        },
        "model": {key: value for key, value in model.items() if value != {}},
    }


def stack(scene: Scene) -> list[Any]:
    """One to three blocks; in an encoder now and then a grid after them."""
    blocks = [block(scene) for _ in range(scene.draw(st.integers(1, 3)))]
    fits = not scene.causal and (scene.depth == Scene.depth or scene.rarely())
    return blocks + (image(scene) if fits and scene.sometimes() else [])


def target_stack(scene: Scene) -> list[Any]:
    """A decoder's; now and then it begins with what the encoders left in place of the tokens."""
    if scene.memories and not scene.draw(st.integers(0, 9)):
        return [{"source_state": {"from": scene.draw(st.sampled_from(scene.memories))}}, *stack(scene)]
    return stack(scene) + (active_memory(scene) if scene.grids and scene.draw(st.booleans()) else [])


def block(scene: Scene) -> Any:
    """A block; one in four has a name."""
    words = [*LEAVES] * 2 + ([*COMBINATORS] * 4 if scene.depth else [])
    unfit = set() if scene.rarely() else unfit_words(scene)
    word = scene.draw(st.sampled_from([word for word in words if word not in unfit]))
    settings = {key: value for key, value in (LEAVES | COMBINATORS)[word](scene).items() if value is not None}
    if scene.sometimes() and (not scene.on_shelf or scene.rarely()):
        settings["as"] = fresh(scene)
        scene.names.append(settings["as"])
        scene.made |= {settings["as"]: (word, settings)} if word in MEMORIES_KEPT else {}
    return {word: settings} if settings else word


def unfit_words(scene: Scene) -> set[str]:
    """The blocks that would be refused here."""
    unfit = {"pool", "reverse", "pool_hierarchical", "nram"} if scene.causal else set()
    unfit |= OF_GRIDS
    unfit |= {"pool", "concat", "pool_hierarchical"} if scene.keeps else set()
    unfit |= set() if scene.memories else {"cross_attention", "memory_network", "supporting_facts"}
    unfit |= set() if scene.memories and scene.keeps else {"source_state"}  # beside a stream that is not lost
    return unfit | (set() if scene.stacks else {"use"})


# ------------------------------------------------------------------------------------------- blocks without stacks


def linear(scene: Scene) -> dict[str, Any]:
    width = None if scene.keeps else scene.one_of(None, None, None, None, 4)
    return {
        "width": width,
        "activation": scene.one_of(None, *ACTIVATIONS),
        "bias": scene.one_of(None, False),
        "weight_norm": scene.one_of(None, None, True),
    }


def feed_forward(scene: Scene) -> dict[str, Any]:
    return {"hidden": scene.one_of(None, 5), "activation": scene.one_of(*ACTIVATIONS)}


def maxout(scene: Scene) -> dict[str, Any]:
    return {"pieces": scene.one_of(1, 2, 3)}


def norm(scene: Scene) -> dict[str, Any]:
    return {"kind": scene.one_of("layer", "rms")}


def positions(scene: Scene) -> dict[str, Any]:
    kind = scene.one_of("sinusoidal", "learned")
    return {
        "kind": kind,
        "max_length": 3 if (scene.sometimes() if kind == "learned" else scene.rarely()) else None,
        "per_iteration": True if (scene.sometimes() if scene.repeated else scene.rarely()) else None,
    }


def dropout(scene: Scene) -> dict[str, Any]:
    return {"rate": scene.one_of(None, 0.5)}


def identity(scene: Scene) -> dict[str, Any]:
    return {}


def scale(scene: Scene) -> dict[str, Any]:
    return {"factor": scene.one_of(None, 0.5, 2), "gradient": scene.one_of(None, 0.5)}


def reverse(scene: Scene) -> dict[str, Any]:
    return {}


def reading(scene: Scene) -> dict[str, Any]:
    return {"of": [a_name(scene) for _ in range(scene.one_of(1, 1, 2))]}


def rnn(scene: Scene) -> dict[str, Any]:
    cell = scene.one_of("lstm", "gru", "tanh")
    return {
        "cell": cell,
        "layers": scene.one_of(None, 1, 2),
        "reset": scene.one_of("before", "after") if cell == "gru" else None,
        "bidirectional": True if (scene.sometimes() if not scene.causal else scene.rarely()) else None,
        "projection": 4 if cell == "lstm" and scene.rarely() else None,
        "norm": "gates" if scene.sometimes() else None,
        "initial_state": initial_state(scene),
    }


def initial_state(scene: Scene) -> Any:
    choices: list[Any] = [None, None, "zeros", "learned", *scene.memories]
    if scene.copies and scene.sometimes():
        choices = [{"copy": name} for name in scene.copies]
    return scene.draw(st.sampled_from(choices))


def conv(scene: Scene) -> dict[str, Any]:
    stride = scene.one_of(None, None, None, 2) if not (scene.causal or scene.keeps) or scene.rarely() else None
    return {
        "kernel": scene.one_of(None, 1, 2, 3, 4),
        "activation": scene.one_of(None, *ACTIVATIONS),
        "dilation": scene.one_of(None, 2),
        "stride": stride,
        "depthwise": scene.one_of(None, None, True),
        "weight_norm": scene.one_of(None, None, True),
    }


def pool(scene: Scene) -> dict[str, Any]:
    return {"how": scene.one_of("last", "mean", "max", "attention")}


def condense(scene: Scene) -> dict[str, Any]:
    return {"max_length": scene.one_of(None, 1, 3), "activation": scene.one_of(None, "none", "relu")}


def aligned(scene: Scene) -> dict[str, Any]:
    readable = scene.copies if scene.copies and scene.sometimes() else scene.memories
    chosen = scene.draw(st.sampled_from(readable)) if readable else None
    return {"from": None if len(scene.memories) == 1 and scene.draw(st.booleans()) else chosen}


def self_attention(scene: Scene) -> dict[str, Any]:
    heads = 4 if scene.rarely() else scene.one_of(1, 2, 3)
    places = scene.one_of(None, "relative", "rotary" if heads != 2 or scene.rarely() else "relative")
    return {
        "heads": heads,
        "window": scene.one_of(None, None, 1, 2, 3),
        "dropout": scene.one_of(None, 0.1),
        "positions": places,
        "max_distance": scene.one_of(None, 1, 2) if places == "relative" or scene.rarely() else None,
    }


def cross_attention(scene: Scene) -> dict[str, Any]:
    """One memory or two, mostly read by what keeps the width."""
    readable = None if len(scene.memories) == 1 and scene.draw(st.booleans()) else scene.memories
    if readable and scene.copies and scene.sometimes():
        readable = scene.copies
    memory = scene.draw(st.sampled_from(readable)) if readable else None
    score = scene.one_of(None, None, "additive", "general", "dot", "fine_grained", "location")
    pair = scene.rarely() if score == "location" else scene.sometimes()
    heads = None if score == "fine_grained" and not scene.rarely() else scene.one_of(None, 2, 3)
    return {
        "score": score,
        "heads": heads,
        "merge": scene.one_of(None, "average"),
        "max_length": 4 if (score == "location") != scene.rarely() else None,
        "query": a_name(scene) if scene.sometimes() else None,
        "sqrt_length": scene.one_of(None, None, True),
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


def use(scene: Scene) -> dict[str, Any]:
    name = scene.draw(st.sampled_from(scene.stacks)) if scene.stacks else "nowhere"
    return {"stack": name, "copy": scene.one_of(None, True)}


# ------------------------------------------------------------------------------------------- grids


def image(scene: Scene) -> list[Any]:
    """A grid, steps from it to the next, and what makes a sequence of it; seldom nothing does."""
    name = fresh(scene)
    scene.grids.append(name)
    repeated = scene.draw(st.booleans())
    within = replace(scene, names=[name], copies=(), keeps=scene.keeps or repeated, depth=0)
    steps = [cell(within) for _ in range(scene.one_of(1, 1, 2))]
    if repeated:
        share, relaxation = None if scene.rarely() else True, scene.one_of(None, None, {"sets": 2})
        steps = [
            {
                "repeat": without(
                    {
                        "times": scene.one_of("length", "length", 2),
                        "share": share,
                        "relaxation": relaxation,
                        "recompute": scene.one_of(None, True),
                        "stack": steps,
                    }
                )
            }
        ]
    word = scene.one_of("select_column", "sum_columns", *([] if scene.keeps else ["flatten"]))
    end = [] if scene.rarely() else [{word: LEAVES[word](scene)}]
    return [{"grid": {**without(grid(scene)), "as": name}}, *steps, *end]


def cell(scene: Scene) -> Any:
    """A block that takes a grid, nearly always."""
    if scene.rarely():
        return block(scene)
    words = ["cgru", "cgru", "conv2d", "linear", "norm", "dropout", "scale", "add", "feed_forward"]
    word = scene.draw(st.sampled_from(words))
    return {word: without(LEAVES[word](scene))}


def active_memory(scene: Scene) -> list[Any]:
    """Steps from one grid to the next that write the answer on a tape, and what makes a sequence of it."""
    within = replace(scene, causal=False, names=["tape"], copies=(), keeps=True, depth=0)
    steps = [{"cgru": without(cgru(within))} for _ in range(scene.one_of(1, 1, 2))]
    memory = scene.draw(st.sampled_from(scene.grids))
    settings = {
        "from": memory,
        "stack": steps,
        "write": scene.one_of(None, "all"),
        "recompute": scene.one_of(None, True),
    }
    return [{"active_memory": without(settings)}, scene.one_of({"select_column": {}}, {"sum_columns": {}})]


def grid(scene: Scene) -> dict[str, Any]:
    return {"columns": scene.one_of(1, 2, 3), "max_length_ratio": scene.one_of(None, 1, 1.5)}


def column(scene: Scene) -> dict[str, Any]:
    return {"index": 2 if scene.rarely() else 0}


def cgru(scene: Scene) -> dict[str, Any]:
    gates = scene.one_of(None, "cutoff", "plain", "hard")
    saturated = scene.sometimes() and (gates != "plain" or scene.rarely())
    return {
        "kernel": scene.one_of(None, [1, 1], [2, 3]),
        "gates": gates,
        "candidate": scene.one_of(None, "hard"),
        "diagonal": scene.one_of(None, True),
        "dropout": scene.one_of(None, 0.2),
        "dropout_by": scene.one_of(None, "length", "sqrt_length"),
        "saturation": 0.1 if saturated else None,
        "with": a_name(scene) if scene.sometimes() else None,
    }


def conv2d(scene: Scene) -> dict[str, Any]:
    width = None if scene.keeps else scene.one_of(None, 4)
    return {
        "kernel": scene.one_of(None, [1, 3], [2, 1]),
        "activation": scene.one_of(None, *ACTIVATIONS),
        "width": width,
    }


# ------------------------------------------------------------------------------------------- combinators


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
    share = scene.one_of(None, True)
    keeps = scene.keeps or share is True
    return {"times": scene.one_of(1, 2, 3), "stack": stack(inside(scene, keeps=keeps, repeated=True)), "share": share}


def parallel(scene: Scene) -> dict[str, Any]:
    before, after = list(scene.names), list(scene.names)
    branches: list[list[Any]] = []
    for _ in range(scene.one_of(1, 2, 2, 3)):
        branch = inside(scene, names=list(before))
        branches.append(stack(branch))
        after += branch.names[len(before) :]
    scene.names[:] = after
    merge = scene.one_of(None, "sum", "mean", "max", "gate", "attention", *([] if scene.keeps else ["concat"]))
    if scene.draw(st.booleans()):
        return {"branches": branches, "merge": merge}
    named = {fresh(scene): branch for branch in branches}
    scene.names.extend(named)
    return {"branches": named, "merge": merge}


def recurrent(scene: Scene) -> dict[str, Any]:
    """Feedback of what the stack ends with, or of what it has named on the way."""
    back = fresh(scene)
    within = inside(scene, causal=True, names=[*scene.names, f"prev.{back}"])
    reads = {scene.one_of("concat", "concat", "add"): {"of": [f"prev.{back}"]}}
    word, settings = scene.one_of(("linear", {"activation": "tanh"}), ("rnn", {"cell": "gru"}), memory(within))
    makes = {word: {**settings, "as": back}}
    scene.made |= {back: (word, settings)} if word in MEMORIES_KEPT else {}
    between = stack(within) if scene.sometimes() else []
    scene.names.extend([name for name in within.names if name not in scene.names and "." not in name] + [back])
    return {"stack": [reads, *between, makes, *([block(within)] if scene.sometimes() else [])]}


LEAVES: Mapping[str, Callable[[Scene], dict[str, Any]]] = {
    "linear": linear,
    "feed_forward": feed_forward,
    "maxout": maxout,
    "norm": norm,
    "positions": positions,
    "dropout": dropout,
    "identity": identity,
    "scale": scale,
    "reverse": reverse,
    "concat": reading,
    "add": reading,
    "multiply": reading,
    "rnn": rnn,
    "conv": conv,
    "pool": pool,
    "pool_hierarchical": condense,
    "source_state": aligned,
    "self_attention": self_attention,
    "cross_attention": cross_attention,
    "use": use,
    "grid": grid,
    "select_column": column,
    "sum_columns": identity,
    "flatten": identity,
    "cgru": cgru,
    "conv2d": conv2d,
    **MEMORIES,
}
OF_GRIDS = {"grid", "select_column", "sum_columns", "flatten", "cgru", "conv2d"}
"""Blocks that take a grid, or end with one: what `image` is made of, and refused elsewhere."""
COMBINATORS: Mapping[str, Callable[[Scene], dict[str, Any]]] = {
    "residual": residual,
    "highway": highway,
    "repeat": repeat,
    "parallel": parallel,
    "recurrent": recurrent,
}
