"""`export --script`: the model of a recipe as one plain PyTorch file, which runs without this project.

What is written is the code that runs here: the classes of the blocks that the recipe uses and all that they need, taken
out of their modules, without their checks. So it gives the same outputs, and begins with the same values from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from composer.atomic_io import atomic_write
from composer.data.sources import source_names
from composer.data.stories import QUESTION, story_shape
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError, os_error_reason
from composer.exporters.literals import Code, blocks_in, in_line, shown, stack
from composer.exporters.script_modules import Library, Target
from composer.exporters.tree_shaking import WIDTH, Shaken
from composer.inference.decode import DECODERS, hypotheses_per_row
from composer.model.builder import build, encoder_stacks, words_per_sentence
from composer.model.encoder_decoder import (
    Embedding,
    EncoderDecoder,
    LinearEmbedding,
    LinearOutput,
    OneHot,
    SigmoidOutput,
)
from composer.model.planner import has_state, vocabulary_bounds
from composer.recipe.cache import is_hash
from composer.recipe.recipe import Recipe, load
from composer.recipe.registry import plug_ins
from composer.run_dir import RunDir

HERE = "composer.exporters"
MODEL = Target("composer.model.encoder_decoder", "EncoderDecoder")
BUILDER = Target(f"{HERE}.standalone", "Builder")
INITIALIZE = Target("composer.model.weights", "initialize")
FEATURES = Target(f"{HERE}.standalone", "vectors")
RESERVED = ("STACKS", "ENCODER", "ENCODERS", "DECODER", "SPEECH", "build", "answer")
"""What this file defines in every script."""
ASKED = ("encoder", "decoder", "set_progress")
"""The methods that are called there alone, or by whoever trains the model."""
RULER = f"# {'-' * 100}\n# the model"
MAIN, SPEECH, SEARCH, HYPOTHESIS = (
    Target(f"{HERE}.spoken", name) for name in ("main", "Speech", "Search", "Hypothesis")
)


def export_script(run_or_recipe: str | Path | Recipe, path: str | Path, overrides: Sequence[str] = ()) -> Path:
    """Writes the model of a run or a recipe as one Python file that needs PyTorch alone, and returns its path.

    run_or_recipe: a run folder, a recipe's file, or a recipe. overrides: `key=value` settings; of a run, those of
    `decoding` alone. Raises RecipeError where the recipe does not hold together, RunError where the file is there
    already or cannot be written, or a block cannot be taken out of its package.
    """
    recipe, sizes, fingerprints = opened(run_or_recipe, overrides)
    file = Path(path)
    if file.exists():
        raise RunError.of("there is something of this name already", "name another file, or remove this one", str(file))
    text = script(recipe, sizes, fingerprints, file.name)
    try:
        atomic_write(file, text.encode())
    except OSError as error:
        raise RunError.of(f"this file cannot be written: {os_error_reason(error)}", "name another", str(file)) from None
    return file


def opened(
    run_or_recipe: str | Path | Recipe, overrides: Sequence[str]
) -> tuple[Recipe, Mapping[str, int], Mapping[str, str]]:
    """A recipe, the sizes of its vocabularies, and its fingerprints; of a run as it was trained."""
    if isinstance(run_or_recipe, Recipe) or not Path(run_or_recipe).is_dir():
        recipe = run_or_recipe if isinstance(run_or_recipe, Recipe) else load(run_or_recipe, overrides)
        recipe.plan()  # what does not hold together is told here
        return recipe, vocabulary_bounds(recipe), recipe.fingerprints
    for setting in overrides:
        if not setting.strip().startswith(("decoding.", "decoding=")):
            raise RunError.of(
                f"`{setting}` cannot be set for a run: only what starts with `decoding` can",
                "name a recipe instead of a run to export another model",
            )
    folder = RunDir(Path(run_or_recipe))
    record = folder.read()
    recipe, tokenizers = load(folder.recipe, overrides), Tokenizers.load(folder.tokenizer)
    sizes = {side: tokenizers.size(side) for side in tokenizers.sides}
    return recipe, sizes, record.get("fingerprints") or recipe.fingerprints


def script(recipe: Recipe, sizes: Mapping[str, int], fingerprints: Mapping[str, str], name: str = "model.py") -> str:
    """The text of the file. sizes: of the vocabularies, by the sides of the data. Raises RecipeError, RunError."""
    with torch.device("meta"):
        model = build(recipe, sizes)
    ((decoder, _),) = recipe.decoding.items()
    if decoder == "viterbi" and has_state(build(recipe, sizes)):
        raise RunError.of(
            "`viterbi` needs a decoder whose next token depends on the last one alone, and this one remembers more",
            "write `decoding.beam.size=5`",
        )
    writer = Writer(recipe, sizes, model)
    parts = [
        said(recipe, fingerprints, name),
        "from __future__ import annotations",
        writer.shaken.imports(),
        writer.shaken.text(),
        "\n" + writer.tail(),
    ]
    return "\n\n".join(parts) + "\n"


def said(recipe: Recipe, fingerprints: Mapping[str, str], name: str) -> str:
    """What the file says of itself."""
    prints = "\n".join(
        f"    {key:<6}{value}"
        for key, value in fingerprints.items()
        if key in ("model", "data", "run") and is_hash(value)
    )  # run.json may have been changed
    title = "".join(each for each in recipe.name if each.isprintable() and each not in '"\\')
    return f'''"""{title}: a model in plain PyTorch, in one file.

Written by seqcomposer {version("seqcomposer")} from a recipe with these fingerprints:
{prints}

    python {name} --weights model.safetensors                                  # tells of the model
    python {name} --weights model.safetensors --tokenizer tokenizer.json < F   # answers the lines of F

    model = load(build(), "model.safetensors")
    logits = model(sources, target)                   # ids (B, S) by their sides, (B, T) -> (B, T, V)
    memories = model.encode(sources)
    state = model.start(memories, batch=1)
    logits, state = model.step(ids, state, memories)  # any number of positions from a state

Ids: 0 pad, 1 bos, 2 eos, 3 unk. A source ends with eos, a target begins with bos; padding is on the right.
Needs torch; safetensors for weights, and tokenizers for text. MIT License, (c) 2026 The seqcomposer authors.
"""'''


@dataclass(frozen=True)
class Writer:
    """Writes the part of a script that is this recipe's alone."""

    recipe: Recipe
    sizes: Mapping[str, int]
    model: EncoderDecoder

    @cached_property
    def stacks(self) -> dict[str, Any]:
        """Every stack by the name that it has in the script."""
        model = self.recipe.model
        named = {"STACKS": model["stacks"], "ENCODER": model["encoder"], "ENCODERS": model["encoders"]}
        return {name: part for name, part in named.items() if part} | {"DECODER": model["decoder"]}

    @cached_property
    def shaken(self) -> Shaken:
        """All code that the model and its search need."""
        stacks = [
            each for part in self.stacks.values() for each in (part.values() if isinstance(part, dict) else [part])
        ]
        kinds = dict.fromkeys(kind for part in stacks for kind in blocks_in(part))
        library = library_of(frozenset(point.module.partition(".")[0] for point in plug_ins()))
        features = [FEATURES] if self.recipe.model["embedding"] == "linear" else []
        made = [target_of(each) for each in (*kinds, type(self.model.output), self.embedding)]
        spoken = [SPEECH, SEARCH, HYPOTHESIS, self.decoder, MAIN]
        values = [INITIALIZE] if self.is_made_anew else []
        return Shaken(library, [*made, MODEL, BUILDER, *features, *values, *spoken], ASKED, RESERVED)

    @property
    def is_made_anew(self) -> bool:
        """Whether a training begins with other values than those that the blocks give themselves."""
        return "default" not in self.recipe.training["initialization"]

    @property
    def embedding(self) -> type[nn.Module]:
        """The class of every embedding."""
        return {"learned": Embedding, "one_hot": OneHot, "linear": LinearEmbedding}[self.recipe.model["embedding"]]

    @property
    def decoder(self) -> Target:
        """The function that searches."""
        return target_of(DECODERS[next(iter(self.recipe.decoding))])

    def name(self, thing: Any) -> str:
        """What a class or function is called in the script."""
        return self.shaken.name(target_of(thing))

    def tail(self) -> str:
        """The stacks, `build`, how answers are searched, and the command line."""
        constants = [f"{name} = {shown(self.pairs(part), 0, len(name) + 3)}" for name, part in self.stacks.items()]
        speech = f"SPEECH = {self.call(Target(*SPEECH), self.speech())}"
        main = f'if __name__ == "__main__":\n    {self.shaken.name(MAIN)}(build, SPEECH)'
        return "\n\n\n".join([RULER, *constants, self.build(), self.answer(), speech, main])

    def pairs(self, part: Any) -> Any:
        """A stack, or a mapping of them, as the script writes it."""
        if isinstance(part, dict):
            return {name: stack(each, self.name) for name, each in part.items()}
        return stack(part, self.name)

    def build(self) -> str:
        """The function that makes the model, in the order in which it is built here."""
        model, called = self.recipe.model, self.shaken.name
        more = ", stacks=STACKS" if "STACKS" in self.stacks else ""
        lines = [f"builder = {called(BUILDER)}({model['width']}{more})", f"target = {self.embedded('target')}"]
        for key, memory, *_ in encoder_stacks(model):
            embedding = "target" if "source" in model["output"]["tie"] else self.embedded(key)
            written = "ENCODER" if memory != key else f"ENCODERS[{in_line(key)}]"
            columns = (
                [f"columns={words_per_sentence(self.recipe, key)}"] if words_per_sentence(self.recipe, key) else []
            )
            lines.append(fitted("builder.encoder", [in_line(key), in_line(memory), embedding, written, *columns]))
        lines += ["decoder = builder.decoder(target, DECODER)", f"output = {self.output()}"]
        lines += ["output.weight = target.weight"] if model["output"]["tie"] else []
        embedding = "None" if self.model.embedding is None else "target"
        length = "" if self.model.length is None else f", length={self.model.length}"
        made = f"{called(MODEL)}(builder.encoders, {embedding}, decoder, output, {self.model.width}{length})"
        if self.is_made_anew:
            chosen = in_line(self.recipe.training["initialization"])
            lines += [f"model = {made}", f"{called(INITIALIZE)}(model, {chosen})"]
        ends = "return model" if self.is_made_anew else f"return {made}"
        body = "\n    ".join(['"""The model, with the values that a training begins with."""', *lines, ends])
        return f"def build() -> {called(MODEL)}:\n    {body}"

    def embedded(self, key: str) -> str:
        """The call that makes an embedding."""
        name, kind = self.name(self.embedding), self.recipe.model["embedding"]
        if kind == "one_hot":
            return f"{name}({self.sizes[key]})"
        if kind == "learned":
            return f"{name}({self.sizes[key]}, {self.recipe.model['width']})"
        told = self.recipe.dataset["tokenizer"]["bits"]
        marks = 0 if key == "target" else len(dict.fromkeys(told["marks"]))
        numbers = told["numbers"] and key != "target"
        levels = "[each / 100 for each in range(-100, 101)]" if numbers else "[0.0]"
        made = f"{self.shaken.name(FEATURES)}({told['size']}, {marks}, {levels}, numbers={numbers})"
        return f"{name}({made}, {self.recipe.model['width']})"

    def output(self) -> str:
        """The call that makes the output."""
        output, arguments = self.model.output, [self.model.output.in_features]
        if isinstance(output, SigmoidOutput):
            arguments.append(self.recipe.dataset["tokenizer"]["bits"]["size"])
        elif isinstance(output, LinearOutput):
            arguments.append(output.out_features)
        return f"{self.name(type(output))}({', '.join(map(str, arguments))})"

    def answer(self) -> str:
        """The function that searches as the recipe says."""
        ((_, settings),) = self.recipe.decoding.items()
        arguments = ", ".join(f"{key}={in_line(value)}" for key, value in settings.items())
        search, found, decoder = map(self.shaken.name, (SEARCH, HYPOTHESIS, self.decoder))
        return (
            f"def answer(search: {search}) -> list[list[{found}]]:\n"
            f'    """How answers are searched."""\n    return {decoder}(search, {arguments})'
        )

    def speech(self) -> dict[str, Any]:
        """The arguments of `Speech`."""
        ((_, settings),) = self.recipe.decoding.items()
        found = {
            "sources": source_names(self.recipe),
            "answer": Code("answer"),
            "max_length": settings["max_length"],
            "max_ratio": settings["max_ratio"],
            "side_by_side": hypotheses_per_row([self.model], self.recipe.decoding),
        }
        stories = {side: shape for side in source_names(self.recipe) if (shape := story_shape(self.recipe, side))}
        if stories:
            ((side, shape),) = stories.items()
            found |= {"story": side, "shape": tuple(shape), "question": QUESTION}
        return found

    def call(self, target: Target, arguments: Mapping[str, Any]) -> str:
        """A call with keywords, an argument a line."""
        lines = [f"    {key}={in_line(value)},\n" for key, value in arguments.items()]
        return f"{self.shaken.name(target)}(\n{''.join(lines)})"


def fitted(name: str, arguments: Sequence[str]) -> str:
    """A call in a function, an argument a line where one line has no room."""
    line = f"{name}({', '.join(arguments)})"
    if len(line) + 4 <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"        {each}," for each in arguments), "    )"])


@lru_cache(maxsize=1)
def library_of(packages: frozenset[str]) -> Library:
    """The modules that have been taken apart, once for any number of scripts."""
    return Library(packages)


def target_of(thing: Any) -> Target:
    """Where a class or a function stands."""
    return Target(thing.__module__, thing.__qualname__)
