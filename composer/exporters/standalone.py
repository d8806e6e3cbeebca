"""Command line of an exported model: `python DIR "a sentence"`. Needs PyTorch; for text also `tokenizers`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import torch

from composer.data.stories import encode_side
from composer.errors import ComposerError, Fault, RunError
from composer.formatting import strip_control_characters
from composer.inference.decode import decode_all
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.features import feature_settings
from composer.model.weights import initialize
from composer.recipe.text_lines import answer_line, is_blank, without_break

if TYPE_CHECKING:
    from composer.data.tokenizer import Tokenizers

RECIPE, WEIGHTS, TOKENIZER = "recipe.json", "weights.pt", "tokenizer.json"
BATCH_LINES = 1024
"""Lines of stdin that are decoded together, at most."""


@dataclass(frozen=True)
class ExportedRecipe:
    """The sections of a recipe that building and decoding read, as recipe.json has them."""

    model: dict[str, Any]
    dataset: dict[str, Any]
    decoding: dict[str, Any]
    training: dict[str, Any]
    joint: bool
    vocabularies: dict[str, int]
    begins_after_end: bool
    sources: list[str]  # what the encoders read, in a line's order; a language model goes on from how a text begins

    @property
    def files(self) -> list[str]:
        """Those of the sources that are images, sounds or vectors, whose files need more than PyTorch to be read."""
        return [side for side in self.sources if feature_settings(self.dataset, side)]

    def fault(self, code: str, path: Sequence[str | int], message: str, hint: str = "") -> Fault:
        """Return a fault of the builder's: of a model that is too large for this machine."""
        return Fault(RECIPE, 0, 0, code, ".".join(map(str, path)), message, hint)


def load_recipe(folder: Path) -> ExportedRecipe:
    """Read recipe.json of an exported folder."""
    return ExportedRecipe(**json.loads((folder / RECIPE).read_text(encoding="utf-8")))


def load_model(folder: Path) -> EncoderDecoder:
    """Build the model of an exported folder, with its trained weights; with random ones where a recipe was exported.

    Raises RunError where weights.pt belongs to another model.
    """
    recipe = load_recipe(folder)
    model = build(cast(Any, recipe), recipe.vocabularies)  # it reads nothing but the sections above
    initialize(model, recipe.training["initialization"])
    weights = folder / WEIGHTS
    if weights.exists():
        try:
            model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        except RuntimeError as error:
            message = f"these weights do not fit the model: {error}"
            raise RunError.of(message, "export the run again", str(weights)) from None
    return model.eval()


def load_tokenizers(folder: Path) -> Tokenizers:
    """Read tokenizer.json of an exported folder. Raises RunError."""
    from composer.data.tokenizer import Tokenizers

    return Tokenizers.load(folder / TOKENIZER)


def translate(
    model: EncoderDecoder, recipe: ExportedRecipe, tokenizers: Tokenizers, lines: Sequence[str], first: int = 0
) -> list[str]:
    """Return the best output for each line; a blank line stays blank.

    With several encoders a line holds their texts in the recipe's order, with tabs between; without any, the beginning
    of a text. first: how many lines came before, which the random numbers of sampling depend on. Raises RunError where
    a line has too few or too many texts, or names files.
    """
    if recipe.files:
        message = f"this folder reads text alone, and its model reads files: {', '.join(recipe.files)}"
        raise RunError.of(message, "give the model tensors, as README.md says, or use `seqcomposer translate`")
    sides = recipe.sources
    rows = [row for row, line in enumerate(lines) if not is_blank(line)]
    columns = [lines[row].split("\t") if len(sides) > 1 else [lines[row]] for row in rows]
    if sides and any(len(texts) != len(sides) for texts in columns):
        raise RunError.of(f"the model reads {len(sides)} texts a line", f"put tabs between: {', '.join(sides)}")
    ids = {
        side: encode_side(cast(Any, recipe), tokenizers, side, [texts[column] for texts in columns])
        for column, side in enumerate(sides)
    }
    prefixes = tokenizers.encode("target", [lines[row] if not sides else "" for row in rows])
    to_texts, numbers = partial(tokenizers.decode, "target"), [first + row for row in rows]
    hypotheses = decode_all([model], ids, recipe.decoding, prefixes, numbers=numbers, to_texts=to_texts)
    outputs = [""] * len(lines)
    best = [answer for answer, *_ in hypotheses]
    texts = tokenizers.decode_answers("target", [one.ids for one in best], [one.ended for one in best])
    for row, text in zip(rows, texts, strict=True):
        outputs[row] = answer_line(text)
    return outputs


def read_lines(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines of a stream without line breaks. Raises RunError for one that is not UTF-8."""
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            fix = "convert it, with `iconv -f ISO-8859-1 -t UTF-8` if it is Latin-1"
            raise RunError.of(f"line {number} is not UTF-8", fix) from None
        yield without_break(text)


def main(folder: Path) -> None:
    """Run the command line of an exported folder."""
    recipe = load_recipe(folder)
    description, texts = "Write text on from beginnings, or from lines of stdin.", "how texts begin"
    if recipe.sources:
        description, texts = "Translate sentences, or lines of stdin.", "sentences"
    if recipe.files:
        description = "Show a model that reads files: here it takes their tensors, from Python alone."
    parser = argparse.ArgumentParser(prog=f"python {folder}", description=description)
    parser.add_argument("text", nargs="*", help=f"{texts}; without any, each line of stdin is one")
    parser.add_argument("--info", action="store_true", help="print the model and the number of its parameters")
    arguments = parser.parse_args()
    try:
        model = load_model(folder)
        if arguments.info or not (folder / TOKENIZER).exists():
            parameters = sum(parameter.numel() for parameter in model.parameters())
            weights = "trained" if (folder / WEIGHTS).exists() else "random weights"
            sys.stdout.write(f"{model}\n{parameters:,} parameters, {weights}\n")
            return
        model = model.cuda() if torch.cuda.is_available() else model
        tokenizers = load_tokenizers(folder)
        remaining, first = iter(arguments.text or read_lines(sys.stdin.buffer)), 0
        while batch := list(islice(remaining, BATCH_LINES)):
            outputs = translate(model, recipe, tokenizers, batch, first)
            text = "".join(f"{output}\n" for output in outputs)
            sys.stdout.buffer.write((strip_control_characters(text) if sys.stdout.isatty() else text).encode())
            sys.stdout.buffer.flush()
            first += len(batch)
    except ComposerError as error:
        raise SystemExit(str(error)) from None
    except ModuleNotFoundError as error:  # text needs `tokenizers`, and the decoder `mbr` sacreBLEU
        missing = RunError.of(f"this model needs the package `{error.name}`", f"pip install {error.name}")
        raise SystemExit(str(missing)) from None
