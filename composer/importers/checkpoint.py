"""A published checkpoint: the folder of config.json, safetensors and a tokenizer.

Nothing of it is run: tensors are read from safetensors alone, never from a pickle, and the classes
that a configuration names are not looked up.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from composer.atomic_io import parse_json, read_text, sha256_of_file
from composer.errors import RunError, one_line_error, shorten_list

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
CARD, TOKENIZER = "README.md", "tokenizer.json"
GENERATION, PREPROCESSOR = "generation_config.json", "preprocessor_config.json"
SENTENCEPIECE, VOCABULARY = "tokenizer.model", "vocab.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "model.ckpt")
AGAIN = "download the whole checkpoint again"
MAX_JSON = 1 << 26
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
HARMLESS = frozenset(
    [
        "architectures",
        "bos_token_id",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "dtype",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "gradient_checkpointing",
        "id2label",
        "initializer_range",
        "is_llama_config",
        "label2id",
        "max_length",
        "min_length",
        "model_type",
        "num_beams",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "tie_word_embeddings",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "sep_token_id",
        "unk_token_id",
        "unsloth_fixed",
        "use_cache",
        "vocab_size",
    ]
)
"""Keys of config.json that say nothing of the function that weights compute, or that are read for
every family.
"""

Value = TypeVar("Value", bool, int, float, str)


def is_read(name: str) -> bool:
    """True for the files of a repository that an import reads."""
    others = (CONFIG, INDEX, GENERATION, PREPROCESSOR, TOKENIZER, CARD, SENTENCEPIECE, VOCABULARY)
    suffixes = (".safetensors", ".spm")
    return "/" not in name and (name in others or name.endswith(suffixes))


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file. Raises RunError."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise ValueError(f"it has more than {MAX_JSON:,} bytes")
        content = parse_json(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError.of(
            f"this cannot be read: {one_line_error(error)}", AGAIN, str(path)
        ) from None
    if not isinstance(content, dict):
        raise RunError.of("this is no JSON object", AGAIN, str(path))
    return content


@dataclass
class Config:
    """config.json, or an object in it. What no family reads, and may matter, is refused at the end.

    prefix: Keys that lead to the object.
    """

    values: Mapping[str, object]
    file: Path
    prefix: str = ""
    read: set[str] = field(default_factory=set)

    def refuse(self, key: str, message: str) -> NoReturn:
        """Raise the error of a key that no block can say."""
        fix = "import another model; what can be imported is in docs/import.md"
        raise RunError.of(f"`{self.prefix}{key}`: {message}", fix, str(self.file))

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def value(self, key: str, default: Value) -> Value:
        """Return a value of the default's type. Raises RunError."""
        self.read.add(key)
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            self.refuse(key, f"{value!r:.60} is no {type(default).__name__}")
        return value

    def count(self, key: str, default: int = 0) -> int:
        """Return a whole number above 0."""
        value = self.value(key, default)
        if not 0 < value < 1 << 31:
            state = "missing" if key not in self else f"{value}, and no count"
            self.refuse(key, f"this is {state}")
        return value

    def choice(self, key: str, table: Mapping[str, str], default: str) -> str:
        """Return what a table has for a value. Raises RunError where it has nothing."""
        value = self.value(key, default)
        if value not in table:
            self.refuse(key, f"no block computes `{value}`")
        return table[value]

    def expect(self, key: str, *allowed: object) -> None:
        """Refuse a value other than these, of which the first is the default."""
        self.read.add(key)
        value = self.values.get(key)
        if value is not None and value not in allowed:
            self.refuse(key, f"no block computes {json.dumps(value)[:60]}")

    def part(self, key: str) -> Config | None:
        """Return an object inside it; None if there is none."""
        self.read.add(key)
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(key, f"{value!r:.60} is no object")
        return Config(value, self.file, f"{self.prefix}{key}.")

    def ignore(self, *keys: str) -> None:
        """Note keys that a family may leave unread."""
        self.read.update(keys)

    def finish(self) -> None:
        """Refuse keys that nobody has read, unless they are off or known to be harmless.

        Those with a `_` before them are what transformers notes of a checkpoint's files.
        """
        for key in sorted(self.values.keys() - self.read - HARMLESS):
            value = self.values[key]
            if not (
                key.startswith("_") or value is None or value is False or value == [] or value == {}
            ):
                self.refuse(key, "this importer does not know it, and it may change the model")


@dataclass(frozen=True)
class Checkpoint:
    """A folder with config.json, one or more files of safetensors, and a tokenizer."""

    folder: Path

    @cached_property
    def config(self) -> Config:
        """The model's configuration. Raises RunError where there is none, or it needs code."""
        path = self.folder / CONFIG
        if not path.is_file():
            fix = f"name a folder with {CONFIG}, {WEIGHTS} and {TOKENIZER}, or `hub:OWNER/NAME`"
            raise RunError.of("this is no published checkpoint", fix, str(self.folder))
        config = Config(read_object(path), path)
        if "auto_map" in config:
            config.refuse("auto_map", "the model is a program of its own, and none is run")
        if "quantization_config" in config:
            config.refuse("quantization_config", "the weights are quantised")
        return config

    @cached_property
    def shards(self) -> dict[str, Path]:
        """The file of each tensor by its name. Raises RunError."""
        if (self.folder / INDEX).is_file():
            return self._indexed()
        path = self.folder / WEIGHTS
        if not path.is_file():
            pickles = [name for name in PICKLES if (self.folder / name).is_file()]
            message = f"there is no {WEIGHTS}"
            if pickles:
                message += f", and {pickles[0]} could run a program while it is read"
            raise RunError.of(message, "take a revision that has safetensors", str(self.folder))
        with opened(path) as file:
            return dict.fromkeys(file.keys(), path)

    def _indexed(self) -> dict[str, Path]:
        index = self.folder / INDEX
        table = read_object(index).get("weight_map")
        if not isinstance(table, dict) or not table:
            raise RunError.of("it has no `weight_map`", AGAIN, str(index))
        shards = {}
        for name, file in table.items():
            if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+\.safetensors", file):
                raise RunError.of(f"{file!r:.80} is no file of this folder", AGAIN, str(index))
            shards[name] = self.folder / file
        for path in sorted({*shards.values()}):
            with opened(path) as file:
                inside = set(file.keys())
            listed = {name for name, shard in shards.items() if shard == path}
            if inside != listed:
                differing = shorten_list(sorted(inside ^ listed))
                raise RunError.of(f"{INDEX} lists other tensors: {differing}", AGAIN, str(path))
        return shards

    @cached_property
    def sha256(self) -> str:
        """SHA-256 over the names and hashes of the files that decide about the model."""
        names = {CONFIG, *(path.name for path in self.shards.values())}
        names |= {
            name for name in (TOKENIZER, GENERATION, PREPROCESSOR) if (self.folder / name).is_file()
        }
        digest = hashlib.sha256()
        for name in sorted(names):
            digest.update(f"{sha256_of_file(self.folder / name)}  {name}\n".encode())
        return digest.hexdigest()

    @property
    def license(self) -> str:
        """The licence that the card states in its first lines; "" if none."""
        try:
            card = (self.folder / CARD).read_text(encoding="utf-8", errors="replace")[:20_000]
        except OSError:
            return ""
        head = re.match(r"---\s*\n(.*?)\n---", card, re.DOTALL)
        line = re.search(r"^license:[ \t]*([\w.+-]{1,60})", head[1], re.MULTILINE) if head else None
        return line[1] if line else ""

    def id_of(self, token: str) -> int:
        """Return the id of a special token. Raises RunError where there is none."""
        path = self.folder / TOKENIZER
        added = read_object(path).get("added_tokens")
        for entry in added if isinstance(added, list) else ():
            if isinstance(entry, dict) and entry.get("content") == token:
                return int(entry["id"])
        raise RunError.of(f"it has no token `{token}`", AGAIN, str(path))

    def optional(self, name: str) -> dict[str, object]:
        """Return the object of a JSON file; {} if there is none. Raises RunError."""
        path = self.folder / name
        return read_object(path) if path.is_file() else {}


@contextmanager
def opened(path: Path) -> Iterator[safe_open]:
    """Open a file of safetensors. Raises RunError."""
    try:
        if not path.is_file():
            raise FileNotFoundError("there is no such file")
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        message = f"these weights cannot be read: {one_line_error(error)}"
        raise RunError.of(message, AGAIN, str(path)) from None


@dataclass
class Tensors:
    """The tensors of a checkpoint, of which a family takes all, once."""

    checkpoint: Checkpoint
    taken: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        return name in self.checkpoint.shards

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor in float32. Raises RunError if it is missing or of another shape."""
        path = self.checkpoint.shards.get(name)
        if path is None:
            raise RunError.of(f"there is no tensor `{name}`", AGAIN, str(self.checkpoint.folder))
        with opened(path) as file:
            actual = tuple(file.get_slice(name).get_shape())
            if actual != shape:
                message = f"`{name}` has the shape {actual}, and {CONFIG} says {shape}"
                raise RunError.of(message, AGAIN, str(path))
            tensor: Tensor = file.get_tensor(name)
        if tensor.dtype not in FLOATS:
            message = f"`{name}` has numbers of {str(tensor.dtype).removeprefix('torch.')}"
            raise RunError.of(message, "take a revision that is not quantised", str(path))
        self.taken.add(name)
        return tensor.float()

    def take_copy(self, name: str, original: Tensor) -> None:
        """Take a tensor that is stored twice. Raises RunError if the two differ."""
        if not torch.equal(self.take(name, *original.shape), original):
            message = f"`{name}` is tied by {CONFIG}, and has other numbers than the embedding"
            raise RunError.of(message, AGAIN, str(self.checkpoint.folder))

    def finish(self, *ignored: str) -> None:
        """Refuse tensors that nobody took. ignored: Patterns of names."""
        left = self.checkpoint.shards.keys() - self.taken
        for pattern in ignored:
            left = {name for name in left if not re.fullmatch(pattern, name)}
        if left:
            message = f"no block has these tensors: {shorten_list(sorted(left))}"
            fix = "import another model; what can be imported is in docs/import.md"
            raise RunError.of(message, fix, str(self.checkpoint.folder))
