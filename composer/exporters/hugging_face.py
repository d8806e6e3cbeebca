"""`export --hf`: a run whose model is of a published family, as a folder that transformers reads.

The map of their tensors to ours is the family's, which is linear: each number of ours is one of
theirs times a factor. It is followed here the other way, and what comes out is mapped back and
compared, so that nothing is lost in silence. Ids stay ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from composer.atomic_io import atomic_directory, require_absent
from composer.data.tokenizer_files import File, SentencePiece
from composer.data.tokenizer_kinds import Bpe, Byte, Char, Unigram
from composer.errors import RunError
from composer.importers.checkpoint import CONFIG, GENERATION, TOKENIZER, WEIGHTS
from composer.importers.family import Family, Theirs
from composer.importers.import_run import FAMILIES, recipe_of
from composer.importers.vocabulary import Vocabulary
from composer.inference.run import Run, open_run
from composer.model.builder import build
from composer.model.encoder_decoder import NEVER, EncoderDecoder
from composer.model.special_tokens import BOS, EOS, NUM_SPECIAL, PAD, UNK
from composer.model.weights import unique_tensors

OTHER_WAY = "export it with `--onnx DIR`, which takes any stack"
IGNORED = ("begins_after_end", "dropout", "path", "training")
"""Attributes of modules that do not say what is computed in evaluation, or have a place there."""


def export_hugging_face(run: str | Path | Run, folder: str | Path) -> Path:
    """Write a run as config.json, safetensors and a tokenizer in a new folder; return its path.

    `AutoModelForCausalLM` or `AutoModelForSeq2SeqLM`, and `AutoTokenizer`, read it without code of
    ours. Raises RunError where no family holds the model or its tokenizer, or `folder` exists.
    Nothing is written then.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    target = Path(folder)
    require_absent(target)
    tokenizer = tokenizer_of(opened)
    family = family_holding(opened).as_exported()
    rows = opened.model.vocabulary
    ours = {name: tensor.cpu() for name, tensor in unique_tensors(opened.model).items()}
    theirs = follow_back(family, ours, rows, opened)
    biases = ours["output.bias"].tolist() if "output.bias" in ours else []
    impossible = [at for at, bias in enumerate(biases) if bias <= NEVER / 2]
    start = first_token(opened)
    ids = {"pad_token_id": PAD, "bos_token_id": start, "eos_token_id": EOS}
    generation: dict[str, object] = {"suppress_tokens": impossible or None}
    if opened.recipe.sources:
        ids["decoder_start_token_id"] = start
    if begun := opened.tokenizers.beginning("target"):
        if len(begun) > 1 or not opened.recipe.sources:
            message = f"answers begin with {len(begun)} tokens, and theirs are made to with one"
            raise RunError.of(message, OTHER_WAY, str(opened.run_dir.path))
        generation["forced_bos_token_id"] = begun[0]
    with atomic_directory(target) as draft:
        write_json(draft / CONFIG, family.config() | ids | {"vocab_size": rows})
        write_json(draft / GENERATION, ids | generation)
        save_file(theirs, draft / WEIGHTS, {"format": "pt"})
        write_json(draft / TOKENIZER, tokenizer)
        write_json(draft / "tokenizer_config.json", tokenizer_config(opened))
    return target


def first_token(run: Run) -> int:
    """Return what the decoder reads first: a model of windows has never read bos, but eos."""
    return EOS if run.model.begins_after_end else BOS


def write_json(path: Path, content: object) -> None:
    """Write a JSON file as transformers does."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def family_holding(run: Run) -> Family:
    """Return the family that holds the model of a run. Raises RunError."""
    for family in dict.fromkeys(FAMILIES.values()):
        try:
            guess = family.of_recipe(run.recipe.canonical["model"])
            guess.config()
        except (KeyError, IndexError, TypeError, ValueError):
            continue
        bias = f"model.output.bias={str(run.recipe.model.output.bias).lower()}"
        other = build(recipe_of(guess, [bias]), run.tokenizers.sizes)
        if computes_the_same(run.model, other):
            return guess
    names = ", ".join(sorted({kind for kind, own in FAMILIES.items() if own.is_exported}))
    message = f"no model of transformers that is known here ({names}) has this stack"
    raise RunError.of(message, OTHER_WAY, str(run.run_dir.path))


def computes_the_same(one: EncoderDecoder, other: EncoderDecoder) -> bool:
    """True if two models differ in nothing but weights and dropout."""
    ours, theirs = dict(one.named_modules()), dict(other.named_modules())
    if ours.keys() != theirs.keys():
        return False
    return all(settings_of(module) == settings_of(theirs[name]) for name, module in ours.items())


def settings_of(module: nn.Module) -> dict[str, object]:
    """Return the class of a module, what its constructor noted, and the shapes of its tensors."""
    noted = {
        name: value
        for name, value in vars(module).items()
        if not (name.startswith("_") or name in IGNORED or isinstance(value, list | dict))
    }
    shapes = {name: tensor.shape for name, tensor in module.named_parameters(recurse=False)}
    return {"class": type(module), **noted, **shapes}


@dataclass
class Traced:
    """Tensors of theirs that are taken by a family, each number a number of its own.

    as_ones: All numbers are 1. places: Where those of each tensor begin, and its shape.
    """

    as_ones: bool = False
    count: int = 0
    places: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name.endswith("bias")

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in which each number is its own place, from 1 on."""
        size = torch.Size(shape).numel()
        self.places[name] = self.count, shape
        numbers = torch.arange(self.count + 1, self.count + size + 1, dtype=torch.float64)
        self.count += size
        return torch.ones(shape, dtype=torch.float64) if self.as_ones else numbers.view(shape)

    def take_copy(self, name: str, original: Tensor) -> None:
        """Nothing is stored twice here."""


@dataclass
class Written:
    """Tensors of theirs, to be mapped again."""

    tensors: Mapping[str, Tensor]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, *shape: int) -> Tensor:
        return self.tensors[name]

    def take_copy(self, name: str, original: Tensor) -> None:
        """Nothing is stored twice here."""


def follow_back(
    family: Family, ours: Mapping[str, Tensor], rows: int, run: Run
) -> dict[str, Tensor]:
    """Return their tensors from ours. Raises RunError where theirs cannot hold a number of ours."""
    vocabulary = Vocabulary(run.tokenizers.parts[0], tuple(range(rows)), ())
    traced, ones = Traced(), Traced(as_ones=True)
    places: Theirs = traced
    numbers = family.weights(places, vocabulary, rows)
    factors = family.weights(ones, vocabulary, rows)
    flat = torch.zeros(traced.count)
    for name, factor in factors.items():
        used = factor != 0
        source = (numbers[name][used] / factor[used]).round().long() - 1
        if name in ours:
            flat[source] = (ours[name][used].double() / factor[used]).float()
    theirs = {}
    for name, (start, shape) in traced.places.items():
        theirs[name] = flat[start : start + torch.Size(shape).numel()].view(shape).clone()
    again = family.weights(Written(theirs), vocabulary, rows)
    for name, tensor in ours.items():
        expected = again[name].float()
        if name == "output.bias":  # what is impossible is suppressed
            possible = tensor > NEVER / 2
            tensor, expected = tensor[possible], expected[possible]
        if not torch.allclose(tensor, expected, rtol=1e-6, atol=0.0):
            message = f"theirs has no numbers such as those of `{name}`"
            raise RunError.of(message, OTHER_WAY, str(run.run_dir.path))
    return theirs


def tokenizer_of(run: Run) -> dict[str, Any]:
    """Return the tokenizer of a run as a tokenizer.json of the library. Raises RunError."""
    kind, tokenizers = run.tokenizers.kind, run.tokenizers
    part = tokenizers.parts[0]
    is_library = not any(isinstance(own, SentencePiece) for own in tokenizers.parts)
    is_readable = is_library and isinstance(kind, Bpe | Byte | Char | Unigram | File)
    if not is_readable or len(tokenizers.parts) > 1:
        message = "transformers reads no tokenizer of this kind"
        raise RunError.of(message, OTHER_WAY, str(run.run_dir.path))
    if tokenizers.lowercase:
        message = "`data.lowercase` is not part of a tokenizer.json"
        raise RunError.of(message, OTHER_WAY, str(run.run_dir.path))
    content: dict[str, Any] = json.loads(part.to_str())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = []
    for index in range(NUM_SPECIAL):
        token = part.id_to_token(index)
        special.append({"id": index, "content": token, **plain, "special": True})
    others = content.get("added_tokens") or []
    content["added_tokens"] = special + [entry for entry in others if entry["id"] >= NUM_SPECIAL]
    content["post_processor"] = template(run)
    return content


def template(run: Run) -> dict[str, object]:
    """Return the step that puts special tokens around a source, or before a text."""
    part = run.tokenizers.parts[0]
    if run.recipe.sources:
        (side,) = run.recipe.sources
        before, after = run.tokenizers.beginning(side), [EOS]
    else:
        before, after = [first_token(run)], []
    names = {f"special {index}": index for index in (*before, *after)}
    first, last = (
        [{"SpecialToken": {"id": f"special {index}", "type_id": 0}} for index in own]
        for own in (before, after)
    )
    one = [*first, {"Sequence": {"id": "A", "type_id": 0}}, *last]
    return {
        "type": "TemplateProcessing",
        "single": one,
        "pair": [*one, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            name: {"id": name, "ids": [index], "tokens": [part.id_to_token(index)]}
            for name, index in names.items()
        },
    }


def tokenizer_config(run: Run) -> dict[str, object]:
    """Return tokenizer_config.json, which names the special tokens."""
    part = run.tokenizers.parts[0]
    names = {"pad_token": PAD, "bos_token": first_token(run), "eos_token": EOS, "unk_token": UNK}
    tokens = {name: part.id_to_token(index) for name, index in names.items()}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
