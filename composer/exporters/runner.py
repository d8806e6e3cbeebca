"""Answers lines with an exported model: `python run.py < lines > answers`, or `import run`.

This file and those beside it are all that is needed, with onnxruntime, numpy and tokenizers. Read
it from top to bottom to write the same in another language: `Text` and `Source` make ids, or the
numbers of a picture or a sound, of a line; `Network` runs the programs; `Search` chooses tokens;
`Runner` puts them together. Programs read and return tensors by name, rows first:

    encode.onnx    source.NAME (B, S), and answer (B, N) if sizes matter -> memory.NAME.*
    start.onnx     ids (R, 1), memories -> state.0, state.1 ...
    step.onnx      ids (R, 1), states, memories -> log_probs, logits (R, V), next.I

`next.I` is `state.I` after a token, of those that change. `ids` are the tokens just chosen, bos at
first; a row whose token is pad keeps its state.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import sys
import unicodedata
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

try:
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer
except ImportError as missing:
    if __name__ != "__main__":
        raise
    sys.stderr.write(f"run.py: error: {missing}: pip install onnxruntime numpy tokenizers\n")
    sys.exit(2)

FORMAT = 1
"""The format of model.json that this file reads."""
PAD, BOS, EOS, UNK = range(4)
"""The special tokens of every vocabulary."""
MAX_CHARACTERS, MAX_POSITIONS = 1 << 20, 10_000
"""Characters of a text and positions of a source that are read at most."""
MAX_HYPOTHESES, MAX_TOKENS = 1024, 8192
"""Rows of a batch, and positions of its sources with padding, at most."""
ALWAYS_ALLOWED = 50
"""Tokens that every answer may have, however short its source is."""
NO_CHARACTER, UNFINISHED = "\U0010ffff", "\N{REPLACEMENT CHARACTER}"
"""A character of no text, and what a part of a character decodes to."""
VISIBLE = re.compile(
    "[^\\s\x00-\x08\x0e-\x1b\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""A character that one can see; a line without any has an empty answer."""
SENTENCE_END = re.compile(r"[.?!](?=\s|$)")
MARK = re.compile(r"(?<=(\S))?([^\w\s])(?=(\w))?")
ZERO = re.compile(r"(?<=[01])@0\.00(?!\S)")

STREAMED, CHUNK = 0x7FFF0000, re.compile(rb"\0?[A-Za-z0-9 _-]{4}")
"""Bytes of a WAV from which on its size was not known, and what follows its samples."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""Pictures that are read, by Pillow's names: for others it would start programs."""

Tensors = dict[str, np.ndarray]
Recipe = Mapping[str, Mapping[str, Any]]


class RunnerError(Exception):
    """What cannot be done, and what to do instead, in one line.

    before: Lines of the same call before the one at fault.
    """

    before = 0


def note(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"run.py: {text}\n")


@contextmanager
def naming(what: str, number: int, before: int) -> Iterator[None]:
    """Say which line is at fault."""
    try:
        yield
    except RunnerError as problem:
        named = RunnerError(f"{what} {number:,}: {problem}")
        named.before = before
        raise named from problem


def check_list(what: str, texts: Any) -> None:
    """Raise RunnerError for what is no list."""
    if isinstance(texts, str | bytes) or not hasattr(texts, "__len__"):
        raise RunnerError(f"{what} are a list of texts: write [text]")


def check_text(text: Any) -> None:
    """Raise RunnerError for what is no text, or cannot be written as UTF-8."""
    if not isinstance(text, str):
        raise RunnerError(f"expected a text, not {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        message = f"it has half of a character, {text[problem.start]!a}: do not cut texts there"
        raise RunnerError(message) from problem


def check_number(name: str, value: Any, kind: Any, least: float, most: float) -> None:
    """Raise RunnerError for what is no number of a kind, or out of bounds."""
    if not isinstance(value, kind) or not least <= value <= most:
        number = "an integer" if kind is Integral else "a number"
        low = "above 0" if 0 < least < 1 else f"of {least} or more"
        high = "" if most == ANY else f", {most:,} at most"
        raise RunnerError(f"{option(name)} takes {number} {low}{high}, not {value!r}")


@dataclass(frozen=True)
class Text:
    """How a text becomes ids, and ids a text; `model.json` says of each side."""

    tokenizer: Any
    lowercase: bool
    prepare: str
    joiner: str
    prefix: str

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text with the prefix of its side, without bos and eos."""
        return self.to_ids(text, self.prefix if VISIBLE.search(text) else "")

    def encode_beginning(self, text: str) -> list[int]:
        """Return the ids of the beginning of a text; an empty one is the prefix without spaces."""
        if text:
            return self.to_ids(text, self.prefix)
        prefix = self.prefix.rstrip()
        return self.to_ids("", prefix) if prefix else []

    def to_ids(self, text: str, prefix: str) -> list[int]:
        """Return the ids of a text after a prefix."""
        text = (prefix + (text.lower() if self.lowercase else text))[:MAX_CHARACTERS]
        if self.prepare == "marks":
            text = self.split_marks(text)
        elif self.prepare == "file":
            text = text.replace(NO_CHARACTER, UNFINISHED)
        elif self.prepare != "none":
            text = self.as_words(ZERO.sub("", text) if self.prepare == "bits" else text)
        return [*self.tokenizer.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Sequence[int], ended: bool = True) -> str:
        """Return the text of ids without the prefix of its side, see `to_text`."""
        text = self.to_text(ids, ended)
        shown = self.to_text(self.encode_beginning("")) if self.prefix else ""
        if not shown or not text.startswith(shown):
            return text
        rest, spaces = text.removeprefix(shown), self.prefix[len(self.prefix.rstrip()) :]
        return rest.removeprefix(spaces) if rest.startswith(spaces) else rest.lstrip()

    def to_text(self, ids: Sequence[int], ended: bool = True) -> str:
        """Return the text of ids, pad, bos and eos left out; a cut one without half a character."""
        words = [index for index in ids if index >= UNK]
        text = str(self.tokenizer.decode(words, skip_special_tokens=False))
        if self.prepare == "file":
            text = text.replace(NO_CHARACTER, "")
        if self.joiner:
            text = text.replace(f"{self.joiner} ", "").replace(f" {self.joiner}", "")
            text = text.strip(self.joiner)
        return text if ended else text.removesuffix(UNFINISHED)

    def as_words(self, text: str) -> str:
        """Return words with single spaces; one that looks like a special token is unknown."""
        special = [self.tokenizer.id_to_token(index) for index in range(4)]
        return " ".join(special[3] if word in special else word for word in text.split())

    def split_marks(self, text: str) -> str:
        """Split marks off words; a joiner is where no space was: `it's` -> `it J'J s`."""

        def split(at: re.Match[str]) -> str:
            if unicodedata.category(at[2]).startswith("M"):  # an accent, part of its word
                return at[2]
            before = f" {self.joiner}" if at[1] else ""
            return f"{before}{at[2]}{f'{self.joiner} ' if at[3] else ''}"

        return " ".join(MARK.sub(split, word) for word in text.split(" "))


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in lower case, with single spaces, without their end marks."""
    parts = [" ".join(part.split()) for part in SENTENCE_END.split(text.lower())]
    return [part for part in parts if part]


@dataclass(frozen=True)
class Source:
    """An input of the encoders; `model.json` lists them in the order that a line has."""

    name: str
    kind: str
    text: Text | None
    shape: tuple[int, ...]
    column: Mapping[str, Any]
    room: float

    def read(self, line: str) -> np.ndarray:
        """Return ids ending in eos (S,), a story (sentences, words), or features (S, ..., F)."""
        if self.kind == "story" and self.text:
            return self.read_story(line, self.text)
        if self.text is None:
            rows = self.read_file(line)
        else:
            line = " ".join(sentences(line)) if self.kind == "question" else line
            rows = np.array(self.text.encode(line), np.int64)
        if len(rows) > MAX_POSITIONS:
            note(f"a line has {len(rows):,} positions, and its first {MAX_POSITIONS:,} are read")
        rows = rows[:MAX_POSITIONS]
        return rows if self.text is None else np.append(rows, EOS)

    def read_file(self, name: str) -> np.ndarray:
        """Return the features of a file. Raises RunnerError."""
        if not name.strip():
            raise RunnerError(f"it has no file for {self.name}: write the file's name")
        try:
            rows = READERS[self.kind](Path(name), self.column, self.shape)
        except Exception as problem:  # those of Pillow and numpy have no common class
            reason = str(problem) or "it is cut off"
            raise RunnerError(f"`{name}` cannot be read: {reason}") from problem
        if rows.size == 0 or (self.kind != "image" and not np.isfinite(rows).all()):
            raise RunnerError(f"`{name}` is empty, or has numbers that are not finite")
        return rows

    def read_story(self, line: str, text: Text) -> np.ndarray:
        """Return the last sentences of a story, a row of words for each, padded."""
        story = sentences(line)[-self.shape[0] :]
        longest = max((len(sentence.split()) for sentence in story), default=0)
        if not 0 < longest <= self.shape[1]:
            message = f"a sentence of this story has {longest} words; write 1 to {self.shape[1]}"
            raise RunnerError(message)
        grid = np.full((len(story), self.shape[1]), PAD, np.int64)
        for row, sentence in zip(grid, story, strict=True):
            ids = text.encode(sentence)
            row[: len(ids)] = ids
        return grid


def real_positions(rows: np.ndarray) -> int:
    """Return how many positions of a source are no padding: not pad, not NaN."""
    real = ~np.isnan(rows[..., 0]) if rows.dtype.kind == "f" else rows != PAD
    return int(real.sum())


def padded(rows: Sequence[np.ndarray], length: int = 0) -> np.ndarray:
    """Return sources as one array (B, S, ...), padded on the right to `length` at least."""
    first = rows[0]
    longest = max(length, *map(len, rows))
    fill = np.nan if first.dtype.kind == "f" else PAD
    batch = np.full((len(rows), longest, *first.shape[1:]), fill, first.dtype)
    for at, row in enumerate(rows):
        batch[at, : len(row)] = row
    return batch


def read_vectors(path: Path, column: Mapping[str, Any], shape: Sequence[int]) -> np.ndarray:
    """Return the frames of a file of numpy. -> (S, F)"""
    frames = np.load(path, allow_pickle=False)
    if frames.ndim != 2 or frames.shape[1] != shape[0]:
        raise ValueError(f"it has the shape {frames.shape}, and frames have {shape[0]} numbers")
    return np.asarray(frames, np.float32)


def read_image(path: Path, column: Mapping[str, Any], shape: Sequence[int]) -> np.ndarray:
    """Return an image from 0 to 1: rows, or columns, by pixels by channels; NaN is no pixel.

    A file of numpy has bytes (H, W) or (H, W, C), as they are after scaling.
    """
    (height, width), channels = column["size"], column["channels"]
    if path.suffix == ".npy":
        pixels = np.load(path, allow_pickle=False)
    else:
        pixels = read_picture(path, height, width, channels)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    fits = pixels.ndim == 3 and pixels.shape[0] <= height and pixels.shape[1] <= width
    if pixels.dtype != np.uint8 or not fits or pixels.shape[2] != channels:
        wanted = f"bytes of {height} x {width} x {channels} at most"
        raise ValueError(f"it has {pixels.dtype} of the shape {pixels.shape}; save {wanted}")
    turned = pixels.transpose(1, 0, 2) if column["positions"] == "columns" else pixels
    grid = np.full((len(turned), *shape), np.nan, np.float32)
    grid[:, : turned.shape[1]] = turned / np.float32(255)
    return grid


def read_picture(path: Path, height: int, width: int, channels: int) -> np.ndarray:
    """Return the bytes of a picture, upright, on white, scaled down to fit. Needs Pillow."""
    try:
        from PIL import Image, ImageOps
    except ImportError as problem:
        raise ValueError("install pillow, or save its bytes with `numpy.save`") from problem
    image: Any = ImageOps.exif_transpose(Image.open(path, formats=FORMATS))
    if image.mode not in ("1", "L", "P", "RGB", "LA", "PA", "RGBA"):
        raise ValueError(f"its pixels are {image.mode}: save it with 8 bits a colour")
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    image = image.convert("L" if channels == 1 else "RGB")
    scale = min(1.0, height / image.height, width / image.width)
    if scale < 1.0:
        size = [max(1, round(length * scale)) for length in image.size]
        image = image.resize(size)
    return np.asarray(image)


def read_sound(path: Path, column: Mapping[str, Any], shape: Sequence[int]) -> np.ndarray:
    """Return the log-mel frames of a WAV file. -> (S, bands)"""
    with path.open("rb") as opened, wave.open(opened, "rb") as file:
        rate, size, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
        data, rest = file.readframes(file.getnframes()), opened.read()
    frame = size * channels
    declared = file.getnframes() * frame
    if len(data) < declared < STREAMED:
        counts = f"{declared:,} bytes of samples, and there are {len(data):,}"
        raise ValueError(f"it is cut off: its header says {counts}")
    if rest.strip(b"\0") and not CHUNK.match(rest):
        data += rest  # the header was written before the sound had ended
    content = np.frombuffer(data, np.uint8)[: len(data) // frame * frame]
    if not len(content):
        raise ValueError("this sound has no samples")
    if rate != column["rate"]:
        raise ValueError(f"it has {rate:,} samples a second; convert it to {column['rate']:,}")
    high = np.zeros((len(content) // size, 4), np.uint8)  # the highest bytes of 32 bits
    high[:, 4 - size :] = content.reshape(-1, size)
    samples = high.view("<i4")[:, 0] / 2.0**31
    if size == 1:  # bytes have no sign
        samples = (content - 128.0) / 128
    mono, mel = samples.reshape(-1, channels).mean(1), column["features"]["log_mel"]
    if column["seconds"] is None:
        frames = log_mel(mono, rate, **mel)
    else:
        count = round(column["seconds"] * rate)
        mono = np.pad(mono[:count], (0, max(0, count - len(mono))))
        frames = log_mel(mono, rate, **mel)[: count // round(mel["hop"] * rate)]
    if column["normalize"] == "range":
        frames = (np.maximum(frames, frames.max() - 8.0) + 4.0) / 4.0
    elif column["normalize"]:
        frames = (frames - frames.mean(0)) / np.maximum(frames.std(0), 1e-5)
    return frames.astype(np.float32)


def log_mel(
    samples: np.ndarray,
    rate: int,
    *,
    bands: int,
    window: float,
    hop: float,
    fft: int | None,
    padding: str,
) -> np.ndarray:
    """Return log10 of the energies in bands of Slaney's mel scale. (N,) -> (1 + N // step, bands)

    A frame is centred at every `hop` seconds, a Hann window wide.
    """
    size, step = round(window * rate), round(hop * rate)
    points = fft or 1 << (size - 1).bit_length()
    left = (points - size) // 2
    weights = np.zeros(points)
    weights[left : left + size] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    around = np.pad(samples, points // 2, mode="reflect" if padding == "reflect" else "constant")
    frames = np.lib.stride_tricks.sliding_window_view(around, points)[::step]  # (S, points)
    energies = np.abs(np.fft.rfft(frames * weights)) ** 2  # (S, points // 2 + 1)
    hertz = np.arange(points // 2 + 1) * rate / points
    # the scale is linear up to 1,000 Hz, and logarithmic above
    top = rate * 3 / 400 if rate < 2000 else 15 + 27 * math.log(rate / 2000) / math.log(6.4)
    mel = np.linspace(0, top, bands + 2)
    edges = np.where(mel < 15, mel * 200 / 3, 1000 * np.exp(np.log(6.4) * (mel - 15) / 27))
    rises = (hertz - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falls = (edges[2:, None] - hertz) / np.diff(edges)[1:, None]
    area = 2 / (edges[2:] - edges[:-2])
    filters = np.maximum(0, np.minimum(rises, falls)) * area[:, None]
    return np.log10(np.maximum(energies @ filters.T, 1e-10))


READERS = {"vectors": read_vectors, "image": read_image, "audio": read_sound}
"""Readers of files by the kind of their source."""


ABOVE_0, MANY, ANY = math.ulp(0.0), 1_000_000, sys.float_info.max


def setting(default: Any, method: str, least: float, most: float, text: str) -> Any:
    """Return a field with its bounds. method: The one that alone has it; "" for all."""
    return field(default=default, metadata={"of": (method, least, most), "help": text})


@dataclass(frozen=True)
class Settings:
    """How answers are searched; a recipe's decoding has the same bounds. method: By its word."""

    method: str
    beam: int = setting(1, "beam", 1, 1000, "hypotheses side by side")
    length_penalty: float = setting(0.0, "beam", 0, ANY, "the higher, the longer the answers")
    temperature: float = setting(1.0, "sample", ABOVE_0, ANY, "what logits are divided by")
    top_k: int | None = setting(None, "sample", 1, MANY, "draw among so many best tokens")
    top_p: float | None = setting(
        None, "sample", ABOVE_0, 1, "among the fewest that have so much p"
    )
    min_p: float | None = setting(
        None, "sample", ABOVE_0, 1, "among those with so much of the best p"
    )
    repetition_penalty: float = setting(
        1.0, "sample", 1, ANY, "what lowers logits of earlier tokens"
    )
    seed: int = setting(1, "sample", 0, 2**31 - 1, "where random numbers start")
    no_repeat_ngram: int | None = setting(None, "", 0, MANY, "no n-gram twice; 0: any is allowed")
    max_length: int = setting(512, "", 1, MANY, "tokens of an answer at most")
    max_ratio: float = setting(3.0, "", ABOVE_0, ANY, "50, and so many for each of its source")

    def __post_init__(self) -> None:
        for own in fields(self)[1:]:
            value, (_, least, most) = getattr(self, own.name), own.metadata["of"]
            if value is not None or "None" not in str(own.type):
                kind = Integral if str(own.type).startswith("int") else Real
                check_number(own.name, value, kind, least, most)

    @classmethod
    def of(cls, recipe: Recipe, methods: Sequence[str], changes: Mapping[str, Any]) -> Settings:
        """Return the settings of the recipe with changes. methods: Possible ones."""
        ((word, values),) = recipe.items()
        owners = {own.name: own.metadata["of"][0] for own in fields(cls)[1:]}
        if unknown := [*changes.keys() - owners - {"method"}]:
            raise RunnerError(f"there is no setting {unknown[0]}: they are {', '.join(owners)}")
        implied = [owner for name, owner in owners.items() if owner and name in changes]
        method = changes.get("method", (implied or [word])[0])
        if method not in methods:
            message = f"this export decodes by {', '.join(methods)}, not by {method}"
            raise RunnerError(f"{message}: write --beam 5")
        others = [name for name, owner in owners.items() if owner not in ("", method)]
        for name in others:
            if name in changes:
                raise RunnerError(f"{method} has no {option(name)}: remove it")
        values = {"beam" if name == "size" else name: value for name, value in values.items()}
        usual = {"beam": 5, "length_penalty": 0.6} if method == "beam" else {}
        own = {name: values[name] for name in owners if name in values and name not in others}
        return cls(**{**usual, **own, **changes, "method": method})

    def limit(self, source: int) -> int:
        """Return the tokens of an answer at most, eos counted; its source has so many, or 0."""
        if not source:
            return self.max_length
        return min(self.max_length, math.ceil(self.max_ratio * source) + ALWAYS_ALLOWED)


def option(name: str) -> str:
    """Return the option of the command line that sets a field."""
    return f"--{name.replace('_', '-')}"


class Network:
    """The programs. A state here is all that `step` reads beside ids: states and memories."""

    def __init__(self, folder: Path, programs: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
        self.programs = programs
        self.sessions = {
            name: onnxruntime.InferenceSession(str(folder / f"{name}.onnx")) for name in programs
        }
        outputs = programs["step"]["outputs"]
        self.changed = [name[len("next.") :] for name in outputs if name.startswith("next.")]

    def run(self, name: str, tensors: Tensors) -> Tensors:
        """Return the outputs of a program by name."""
        outputs = self.programs[name]["outputs"]
        read = {key: tensors[key] for key in self.programs[name]["inputs"]}
        return dict(zip(outputs, self.sessions[name].run(outputs, read), strict=True))

    def start(self, sources: Tensors, rows: int) -> Tensors:
        """Return the state before the first token."""
        tensors = self.run("encode", sources) if "encode" in self.programs else {}
        tensors |= self.run("start", {**tensors, "ids": np.full((rows, 1), BOS, np.int64)})
        return {name: tensors[name] for name in self.programs["step"]["inputs"] if name != "ids"}

    def step(self, ids: Sequence[int], state: Tensors) -> tuple[Tensors, Tensors]:
        """Read a token of each row: return `log_probs` and `logits` (R, V), and the state."""
        after = self.run("step", {**state, "ids": np.array(ids, np.int64)[:, None]})
        return after, {**state, **{f"state.{at}": after[f"next.{at}"] for at in self.changed}}

    def move(self, state: Tensors, rows: Sequence[int], same_lines: bool) -> Tensors:
        """Return the state whose row i is row `rows[i]`.

        same_lines: True if both belong to one line, for every i: what a step never changes stays.
        """
        if same_lines and [*rows] == [*range(len(rows))]:
            return state
        moving = [f"state.{at}" for at in self.changed] if same_lines else [*state]
        return {**state, **{name: state[name][np.array(rows)] for name in moving}}


@dataclass(eq=False)
class Query:
    """An answer to look for, and those that have ended.

    line, number: The place of its line, and among all lines. copy: Of several that are drawn.
    prefix: Ids with which it begins. limit: Tokens after it at most, eos counted. size: Tokens for
    which the encoders make room, all counted; 0 where that does not matter. exact: True if the
    answer fills them.
    """

    line: int
    number: int
    sources: Mapping[str, np.ndarray]
    prefix: tuple[int, ...]
    limit: int
    size: int = 0
    exact: bool = False
    copy: int = 0
    answers: list[Hypothesis] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Positions by which queries are put into batches."""
        return max(self.size, len(self.prefix) + 1, *map(len, self.sources.values()), 0)


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """Tokens with the prefix and without eos, the sum of their log p, and what ranks them."""

    query: Query
    ids: tuple[int, ...]
    score: float
    rank: float = 0.0
    ended: bool = False


class Search:
    """A search for the answers of a batch of queries, token by token."""

    def __init__(self, runner: Runner, settings: Settings, n_best: int, on_token: OnToken) -> None:
        self.network, self.impossible = runner.network, runner.impossible
        self.settings, self.n_best, self.on_token = settings, n_best, on_token

    def run(self, queries: Sequence[Query]) -> None:
        """Find the n best answers of each query, best first."""
        seed = self.settings.seed
        self.random = {
            query: np.random.default_rng([seed, query.number, query.copy]) for query in queries
        }
        hypotheses, scores, state = self.begin(queries)
        while True:
            further, rows = self.extend(hypotheses, scores)
            if not further:
                return
            same_lines = [one.query for one in further] == [one.query for one in hypotheses]
            state = self.network.move(state, rows, same_lines)
            hypotheses = further
            scores, state = self.network.step([one.ids[-1] for one in further], state)

    def begin(self, queries: Sequence[Query]) -> tuple[list[Hypothesis], Tensors, Tensors]:
        """Read sources and prefixes. -> hypotheses, scores of the next tokens, state"""
        state = self.network.start(source_tensors(queries), len(queries))
        longest = max(len(query.prefix) for query in queries)
        hypotheses = [Hypothesis(query, query.prefix, 0.0) for query in queries]
        scores: Tensors = {}
        for at in range(longest + 1):  # shorter prefixes are padded: pad leaves a state as it is
            tokens = [(BOS, *query.prefix, *[PAD] * longest)[at] for query in queries]
            after, state = self.network.step(tokens, state)
            scores = scores or {name: after[name].copy() for name in ("log_probs", "logits")}
            for row, one in enumerate(hypotheses):
                if at < len(one.ids):
                    gain = float(after["log_probs"][row, one.ids[at]])
                    hypotheses[row] = replace(one, score=one.score + gain)
                elif at == len(one.ids):
                    for name, values in scores.items():
                        values[row] = after[name][row]
        return hypotheses, scores, state

    def extend(
        self, hypotheses: Sequence[Hypothesis], scores: Tensors
    ) -> tuple[list[Hypothesis], list[int]]:
        """Extend hypotheses to the best of their continuations. -> those, rows they come from

        A hypothesis that ends keeps its place: the beam of the others narrows.
        """
        log_p = scores["log_probs"].copy()  # (R, V)
        log_p[:, [PAD, BOS]] = -np.inf
        candidates: dict[Query, list[tuple[float, int, int]]] = {}
        for row, one in enumerate(hypotheses):
            self.exclude_impossible(log_p[row], one)
            for token in self.choose(log_p[row], scores["logits"][row], one):
                candidate = one.score + float(log_p[row, token]), int(token), row
                candidates.setdefault(one.query, []).append(candidate)
        further, rows = [], []
        for query, own in candidates.items():
            room = self.settings.beam - len(query.answers)
            going = []
            for score, token, row in sorted(own, key=lambda candidate: -candidate[0])[:room]:
                ids = hypotheses[row].ids
                rank = score / self.penalty(len(ids) + 1)
                if token == EOS and score > -math.inf:
                    query.answers.append(Hypothesis(query, ids, score, rank, ended=True))
                elif score > -math.inf:
                    going.append((Hypothesis(query, (*ids, token), score, rank), row))
            self.on_token([*(one for one, _ in going), *query.answers][0])
            if not self.is_done(query, [one for one, _ in going]):
                further += [one for one, _ in going]
                rows += [row for _, row in going]
        return further, rows

    def is_done(self, query: Query, going: Sequence[Hypothesis]) -> bool:
        """Return whether the n best of a query are known; those that are cut now come last.

        log p only falls, and no answer is longer than the limit: its penalty bounds every rank to
        come.
        """
        query.answers.sort(key=lambda one: -one.rank)
        ranks = [one.rank for one in query.answers[: self.n_best]]
        worst = ranks[-1] if len(ranks) == self.n_best else -math.inf
        longest = len(query.prefix) + query.limit
        bound = going[0].score / self.penalty(longest) if going else -math.inf
        if worst < bound and len(going[0].ids) < longest:
            return False
        query.answers = [*query.answers, *going][: self.n_best]
        return True

    def penalty(self, tokens: int) -> float:
        """Return what the score of so many tokens is divided by (Wu et al. 2016, section 7)."""
        return float(((5 + tokens) / 6) ** self.settings.length_penalty)

    def exclude_impossible(self, log_p: np.ndarray, one: Hypothesis) -> None:
        """Set log p (V,) of tokens that cannot follow to -inf."""
        query, size = one.query, self.settings.no_repeat_ngram
        if query.size and len(one.ids) + 1 >= query.size:
            log_p[np.arange(len(log_p)) != EOS] = -np.inf
        elif query.exact:
            log_p[EOS] = -np.inf
        if self.impossible is not None:
            exclude(log_p, log_p < self.impossible)
        if size:
            exclude(log_p, repeating(one.ids, size))

    def choose(self, log_p: np.ndarray, logits: np.ndarray, one: Hypothesis) -> np.ndarray:
        """Return the tokens by which a hypothesis may go on. log_p, logits: (V,)"""
        settings = self.settings
        if settings.method != "sample":
            # more continuations of one hypothesis cannot be among the best
            count = min(settings.beam, len(log_p))
            return np.argpartition(-log_p, count - 1)[:count]
        scores = log_p.astype(np.float64)
        if settings.repetition_penalty > 1:
            seen, factor = [*{*one.ids}], settings.repetition_penalty
            scores = np.where(np.isneginf(log_p), -np.inf, logits.astype(np.float64))
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / factor, scores[seen] * factor)
        values = (scores - scores.max()) / settings.temperature
        order = np.argsort(-values, kind="stable")
        if settings.top_k:
            values[order[settings.top_k :]] = -np.inf
        if settings.top_p:
            p = np.exp(values[order]) / np.exp(values).sum()
            values[order[p.cumsum() - p >= settings.top_p]] = -np.inf
        if settings.min_p:
            values[values < math.log(settings.min_p)] = -np.inf
        sums = np.exp(values).cumsum()
        number = self.random[one.query].random() * sums[-1]
        return np.searchsorted(sums[:-1], [number], side="right")


def source_tensors(queries: Sequence[Query]) -> Tensors:
    """Return the inputs of `encode`.

    With room for answers, all sources are as long as the longest of sources and answers.
    """
    sizes = np.array([query.size for query in queries])
    length = max(query.length for query in queries) if sizes.any() else 0
    tensors = {"answer": np.arange(length) < sizes[:, None]}
    for name in queries[0].sources:
        tensors[f"source.{name}"] = padded([query.sources[name] for query in queries], length)
    return tensors


def exclude(log_p: np.ndarray, tokens: Any) -> None:
    """Set log p (V,) of tokens to -inf, unless none would remain."""
    remaining = log_p.copy()
    remaining[tokens] = -np.inf
    if remaining.max() > -np.inf:
        log_p[:] = remaining


def repeating(ids: Sequence[int], size: int) -> list[int]:
    """Return the tokens that would repeat an n-gram of `size` tokens."""
    last = ids[len(ids) - size + 1 :]
    starts = range(len(ids) - size + 1)
    return [ids[at + size - 1] for at in starts if ids[at : at + size - 1] == last]


class Answer(NamedTuple):
    """A text, the sum of the log-probabilities of its tokens, and False if it was cut."""

    text: str
    score: float
    ended: bool = True


Line = str | Sequence[str]
OnToken = Callable[[Hypothesis], None]


class Runner:
    """An exported model. All methods raise RunnerError."""

    def __init__(self, folder: str | Path, batch: int = 64) -> None:
        check_number("batch", batch, Integral, 1, MANY)
        self.batch = batch
        folder = Path(folder)
        try:
            model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
            if model["format"] != FORMAT:
                raise ValueError(f"its format is {model['format']}, and run.py reads {FORMAT}")
            for name, digest in model["files"].items():
                # sizes would not tell the weights of two trainings apart
                with (folder / name).open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                        raise ValueError(f"{name} is not of this export")
            self.decoding, self.methods = model["decoding"], model["methods"]
            Settings.of(self.decoding, [*self.decoding], {})
            self.max_positions, self.impossible = model["max_positions"], model["impossible"]
            self.target = text_of(folder, model["target"])
            self.sources = []
            for entry in model["sources"]:
                text = text_of(folder, entry["text"]) if entry["text"] else None
                self.sources.append(Source(**{**entry, "text": text}))
            read = {"answer", *(f"source.{source.name}" for source in self.sources)}
            encode = model["programs"].get("encode", {"inputs": []})
            if not read.issuperset(encode["inputs"]):
                raise ValueError("model.json has other sources than the programs")
            self.network = Network(folder, model["programs"])
        except Exception as problem:  # those of the libraries have no common class
            reason = " ".join(f"{type(problem).__name__}: {problem}".split())
            reason = reason.removeprefix("ValueError: ")
            message = f"this export cannot be opened: {reason}: copy the whole folder again"
            raise RunnerError(message) from problem

    def translate(
        self,
        lines: Sequence[Line],
        prefixes: Sequence[str] | None = None,
        n_best: int = 1,
        first: int = 0,
        **changes: Any,
    ) -> list[list[Answer]]:
        """Return the n best answers of each line, best first; empty ones of a blank line.

        Args:
            lines: Texts, or names of files; for several encoders tuples, or texts with tabs
                between. A model without encoders continues its lines.
            prefixes: How the answers must begin.
            first: Lines that came before, for sampling and errors.
            changes: Fields of `Settings`.
        """
        settings = Settings.of(self.decoding, self.methods, changes)
        check_number("n_best", n_best, Integral, 1, MANY)
        check_list("lines", lines)
        draws = settings.method == "sample"
        if not (draws or n_best <= settings.beam):
            raise RunnerError(f"{n_best} best answers need a beam: write --beam {n_best}")
        if prefixes is not None:
            check_list("prefixes", prefixes)
            if not self.sources:
                raise RunnerError("this model continues its lines: begin them with the prefixes")
            if len(prefixes) != len(lines):
                counts = f"{len(prefixes):,} prefixes for {len(lines):,} lines"
                raise RunnerError(f'{counts}: write one for each, which may be ""')
        queries: list[Query] = []
        for place, line in enumerate(lines):
            prefix = "" if prefixes is None else prefixes[place]
            with naming("line", first + place + 1, place):
                own = self.queries_of(line, place, first + place, prefix, settings)
            for copy in range(n_best if draws else 1):
                queries += [replace(query, copy=copy, answers=[]) for query in own]
        # several hypotheses of a beam may be one text: all of them are compared
        several = settings.beam if n_best > 1 else 1
        answers = [[Answer("", 0.0)] * n_best for _ in lines]
        for place, ranked in self.search(queries, settings, several).items():
            texts: list[Answer] = []
            for one in map(self.to_answer, ranked[: max(several, n_best)]):
                text = " ".join(one.text.splitlines())
                if draws or text not in [answer.text for answer in texts]:
                    texts.append(one._replace(text=text))
            answers[place] = [*texts, *[Answer("", -math.inf)] * n_best][:n_best]
        return answers

    def generate(
        self,
        prompts: Sequence[str] | None = None,
        on_text: Callable[[int, str], None] = lambda place, text: None,
        **changes: Any,
    ) -> list[Answer]:
        """Return the text that a language model writes after each prompt, prompt included.

        Without prompts it writes one from its beginning. on_text: Called at each token with the
        place of a prompt and its text so far. changes: Fields of `Settings`.
        """
        if self.sources:
            raise RunnerError("this model has an encoder: it answers lines, see `translate`")
        settings = Settings.of(self.decoding, self.methods, changes)
        begun = [""] if prompts is None else prompts
        check_list("prompts", begun)
        common, queries = tuple(self.target.encode_beginning("")), list[Query]()
        for at, text in enumerate(begun):
            with naming("prompt", at + 1, at):
                check_text(text)
                queries.append(self.prompt(text, at, at, settings))
                if prompts is not None and queries[-1].prefix == common:
                    raise RunnerError("it is empty: leave it out, for a text from its beginning")

        def on_token(one: Hypothesis) -> None:
            on_text(one.query.line, self.target.decode(one.ids, ended=False))

        best = self.search(queries, settings, 1, on_token)
        return [self.to_answer(best[at][0]) for at in range(len(queries))]

    def queries_of(
        self, line: Line, place: int, number: int, prefix: str, settings: Settings
    ) -> list[Query]:
        """Return a line as a query, or one for each size that its answer may have."""
        texts: list[Any] = [*line] if isinstance(line, list | tuple) else [line]
        for text in [*texts, prefix]:
            check_text(text)
        if not any(map(VISIBLE.search, texts)):
            return []
        if isinstance(line, str) and len(self.sources) > 1:
            texts = line.split("\t")
        names = [source.name for source in self.sources] or ["the beginning of a text"]
        if len(texts) != len(names):
            shown = f"texts: {len(texts)}, and the model reads {len(names)}: {', '.join(names)}"
            raise RunnerError(f"{shown}, tabs between")
        if not self.sources:
            return [self.prompt(texts[0], place, number, settings)]
        pairs = zip(self.sources, texts, strict=True)
        rows = {source.name: source.read(text) for source, text in pairs}
        begun = tuple(self.target.encode_beginning(prefix))
        limit = settings.limit(max(map(real_positions, rows.values())))
        # padding within pictures and stories counts where sizes do
        cells = {name: row[..., 0] if row.dtype.kind == "f" else row for name, row in rows.items()}
        rooms = [(cells[source.name].size, source.room) for source in self.sources if source.room]
        if not rooms:
            return [Query(place, number, rows, begun, limit)]
        own = min(length for length, _ in rooms)
        most = max(math.ceil(length * room - 1e-9) for length, room in rooms)
        smallest = max(own, len(begun) + 1)
        largest = min(most, len(begun) + settings.limit(max(cell.size for cell in cells.values())))
        queries = []
        for size in range(smallest, max(smallest, largest) + 1):
            left = min(limit, size - len(begun))
            queries.append(Query(place, number, rows, begun, left, size, size > own))
        return queries

    def prompt(self, text: str, place: int, number: int, settings: Settings) -> Query:
        """Return the query of a text that goes on."""
        ids, limit = self.target.encode_beginning(text), settings.max_length
        most = self.max_positions
        if most is not None and len(ids) >= most:
            message = f"it has {len(ids):,} tokens, and this model reads {most - 1:,} at most"
            raise RunnerError(f"{message}: give it the end alone")
        limit = limit if most is None else min(limit, most - len(ids))
        return Query(place, number, {}, tuple(ids), limit)

    def search(
        self,
        queries: Sequence[Query],
        settings: Settings,
        n_best: int,
        on_token: OnToken = lambda one: None,
    ) -> dict[int, list[Hypothesis]]:
        """Return the best hypotheses of each line, by its place."""
        most = max(1, min(self.batch, MAX_HYPOTHESES // settings.beam))
        rest = sorted(queries, key=lambda query: -query.length)
        while rest:
            count = max(1, min(most, MAX_TOKENS // rest[0].length))
            Search(self, settings, n_best, on_token).run(rest[:count])
            rest = rest[count:]
        by_line: dict[int, list[Hypothesis]] = {}
        for query in queries:
            by_line.setdefault(query.line, []).extend(query.answers)
        cut_last = settings.method != "sample" or any(query.size for query in queries)
        return {line: best_first(answers, cut_last) for line, answers in by_line.items()}

    def to_answer(self, one: Hypothesis) -> Answer:
        """Return a hypothesis as text."""
        return Answer(self.target.decode(one.ids, one.ended), one.score, one.ended)


def text_of(folder: Path, entry: Mapping[str, Any]) -> Text:
    """Return how a side of `model.json` is read and written."""
    return Text(**{**entry, "tokenizer": Tokenizer.from_file(str(folder / entry["tokenizer"]))})


def best_first(answers: Sequence[Hypothesis], cut_last: bool) -> list[Hypothesis]:
    """Return the answers of a line by rank; one that has several sizes counts at its best."""
    size_of: dict[tuple[int, ...], int] = {}
    ranked = []
    for one in sorted(answers, key=lambda one: (cut_last and not one.ended, -one.rank)):
        if size_of.setdefault(one.ids, one.query.size) == one.query.size:
            ranked.append(one)
    return ranked


HELP = """usage: python run.py [options] < lines > answers

Answer each line of stdin with the model of this folder, as its recipe decodes or as options say:

    printf 'a line\\nanother\\n' | python run.py --beam 5 --n-best 3 --scores
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are RunnerErrors."""

    def error(self, message: str) -> NoReturn:
        raise RunnerError(f"{message}: see --help")


def parser() -> argparse.ArgumentParser:
    """Return the options of the command line."""
    form = argparse.RawDescriptionHelpFormatter
    made = Parser("run.py", argparse.SUPPRESS, HELP, formatter_class=form)
    made.add_argument("file", nargs="?", help=argparse.SUPPRESS)
    made.add_argument("--prefix", metavar="FILE", help="how each line's answers must begin")
    made.add_argument("--n-best", type=int, default=1, metavar="N", help="answers of each line")
    made.add_argument("--scores", action="store_true", help="write log p before each")
    made.add_argument("--batch", type=int, default=64, metavar="N", help="lines at once; 64")
    for method, text in (("greedy", "take the best token"), ("sample", "draw each token")):
        made.add_argument(
            f"--{method}", action="store_const", dest="method", const=method, help=text
        )
    for own in fields(Settings)[1:]:
        kind = int if str(own.type).startswith("int") else float
        made.add_argument(option(own.name), type=kind, metavar="N", help=own.metadata["help"])
    return made


def read_lines(path: str | int) -> Iterator[list[str]]:
    """Yield the lines that a file has now, until it ends. Raises RunnerError after good lines."""
    name, count, rest = "stdin" if path == 0 else path, 0, b""
    try:
        with open(path, "rb") as file:
            while (block := file.read1(1 << 16)) or rest:
                *lines, rest = (rest + (block or b"\n")).split(b"\n")
                texts = to_texts(lines, "utf-8" if count else "utf-8-sig")
                yield texts
                count += len(texts)
                if len(texts) < len(lines):
                    raise RunnerError(f"{name}, line {count + 1:,}: not UTF-8: convert the file")
    except OSError as problem:
        raise RunnerError(f"{name}: {problem.strerror}: name a file of lines") from problem


def to_texts(lines: Sequence[bytes], coding: str) -> list[str]:
    """Decode lines up to the first that is not UTF-8. coding: That of the first line."""
    texts: list[str] = []
    with suppress(UnicodeDecodeError):
        for line in lines:
            texts.append(line.removesuffix(b"\r").decode("utf-8" if texts else coding))
    return texts


def answer_lines(options: dict[str, Any]) -> None:
    """Write the answers of the lines of stdin."""
    names = ("file", "prefix", "n_best", "scores", "batch")
    file, prefix, n_best, scores, batch = map(options.pop, names)
    if file:
        raise RunnerError(f"lines are read from stdin: write `python run.py < {file}`")
    runner = Runner(Path(__file__).parent, batch)
    prefixes = chain.from_iterable(read_lines(prefix)) if prefix else None
    changes = {name: value for name, value in options.items() if value is not None}
    runner.translate([], None, n_best, **changes)  # mistakes of options, before lines are read
    count, cut = 0, list[int]()
    for lines in read_lines(0):
        begun = [*islice(prefixes, len(lines))] if prefixes else None
        if begun is not None and len(begun) < len(lines):
            raise RunnerError(f"{prefix} has {count + len(begun):,} lines, and stdin has more")
        fault = None
        try:
            answers = runner.translate(lines, begun, n_best, count, **changes)
        except RunnerError as problem:
            fault, lines = problem, lines[: problem.before]
            begun = begun and begun[: problem.before]
            answers = runner.translate(lines, begun, n_best, count, **changes)
        for text, score, _ in chain.from_iterable(answers):
            start = f"{score:.4f}\t" if scores else ""
            sys.stdout.buffer.write(f"{start}{text}\n".encode())
        sys.stdout.buffer.flush()
        if fault:
            raise fault
        cut += [at for at, (best, *_) in enumerate(answers, count + 1) if not best.ended]
        count += len(lines)
    if prefixes and [*islice(prefixes, 1)]:
        raise RunnerError(f"{prefix} has more lines than the {count:,} of stdin")
    if cut:
        shown = f"{', '.join(map(str, cut[:10]))}{' ...' if len(cut) > 10 else ''}"
        advice = "raise --max-length, or --max-ratio"
        if runner.max_positions and not runner.sources:
            advice = f"raise --max-length, up to this model's {runner.max_positions:,} positions"
        note(f"answers that were cut: {len(cut):,} of {count:,} (lines: {shown}): {advice}")


def main() -> int:
    """Answer stdin; return the exit status."""
    try:
        answer_lines(vars(parser().parse_args()))
    except BrokenPipeError:  # the reader has left, and Python would write again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (RunnerError, OSError) as problem:
        note(f"error: {problem}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
