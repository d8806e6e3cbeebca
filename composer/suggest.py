"""Suggestions for a wrong word or file name: the closest allowed one, or its name in recipes."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

MAX_ENTRIES = 10_000
"""Entries of a folder among which a file name is looked for."""
TYPO = 0.68
"""How similar a word is to the one that it misspells: `mask` and `as`, two letters of four, are
less.
"""
OTHER_WORDS = {
    "true": "yes on 1",
    "false": "no off 0",
    "learning_rate": "lr",
    "warmup": "warmup_steps",
    "tokens_per_batch": "batch_size max_tokens",
    "max_steps": "steps max_update max_updates num_steps",
    "clip_norm": "grad_clip gradient_clip gradient_clip_val gradient_clipping max_grad_norm clip",
    "accumulate": "accumulate_grad_batches gradient_accumulation_steps grad_accum update_freq",
    "patience": "early_stopping",
    "validate_every": "save_every save_steps checkpoint_every eval_steps val_check_interval",
    "precision: 16-mixed": "fp16",
    "precision: bf16-mixed": "bf16",
    "32": "fp32 float32",
    "16-mixed": "fp16 float16 half 16",
    "bf16-mixed": "bf16 bfloat16",
    "gpu": "cuda",
    "devices": "gpus num_gpus",
    "positions: rotary": "rope",
    "rotary": "rope",
    "optimizer": "optim",
    "schedule": "lr_scheduler scheduler",
    "width": "d_model hidden_size dim",
    "hidden": "d_ff",
    "rate": "p",
    "heads": "nhead num_heads",
    "times": "n",
    "size": "beam_size num_beams beam_width vocab_size",
    "beam": "beam_size num_beams beam_width",
    "bpe": "wordpiece",
    "additive": "bahdanau",
    "length_penalty": "lenpen",
    "source": "src",
    "target": "tgt",
    "self_attention": "attention",
    "cross_attention": "encoder_attention",
    "feed_forward": "ffn mlp",
    "rnn: {cell: lstm}": "lstm",
    "rnn: {cell: gru}": "gru",
    "norm: {kind: layer}": "layer_norm layernorm",
    "norm: {kind: rms}": "rms_norm rmsnorm",
    "linear": "dense",
    "positions": "positional_encoding",
    "conv": "cnn",
    "residual": "skip",
    "data": "corpus",
    "image": "picture pictures images img photo",
    "audio": "sound sounds speech recording wav",
    "vectors": "vector array npy numpy",
}
"""What recipes call a thing, a word or a word and its settings, and what other toolkits or YAML 1.1
call the same.
"""
OF_OTHER_UNITS = ("batch_size",)
"""Of the others, what counts something else: its number is not one of the same meaning."""
TRAINER_KEYS = {
    **dict.fromkeys(("max_steps", "limit_train_batches"), "write `training.max_steps`"),
    "max_epochs": "write `training.max_epochs`",
    "max_time": "write `training.max_minutes`",
    "min_steps": "write `training.max_steps`, and no `early_stopping`",
    "min_epochs": "write `training.max_epochs`, and no `early_stopping`",
    "precision": "write `training.precision`",
    "accumulate_grad_batches": "write `training.accumulate`",
    **dict.fromkeys(("gradient_clip_val", "gradient_clip_algorithm"), "write `training.clip_norm`"),
    **dict.fromkeys(
        ("val_check_interval", "check_val_every_n_epoch"), "write `training.validate_every`"
    ),
    "callbacks": "write `training.early_stopping` or `training.average_checkpoints`",
    "logger": "write `logging`",
    "default_root_dir": "use `--run DIR` on the command line",
    "fast_dev_run": "set `training.max_steps=1` on the command line",
}
"""Arguments of Lightning's Trainer that the section `trainer` refuses, and what to write instead.
"""


def closest_word(word: str, words: Iterable[str]) -> str:
    """Return the word that is called so elsewhere, or is spelt most alike; "" if none is close."""
    return suggested_form(word, words).partition(": ")[0]


def suggested_form(word: str, words: Iterable[str]) -> str:
    """Like `closest_word`, with settings that make it the same: `rnn: {cell: lstm}` for `lstm`."""
    return _suggested_form(word.lower(), tuple(words))


def synonyms(word: str) -> list[str]:
    """Return the names in recipes of a foreign term, each a word or a word and its settings."""
    return [form for form, others in OTHER_WORDS.items() if word.lower() in others.split()]


@lru_cache(maxsize=512)
def _suggested_form(word: str, words: tuple[str, ...]) -> str:
    for form in synonyms(word):
        if form.partition(": ")[0] in words:
            return form
    if ":" in word and not any(":" in other for other in words):  # more than one word
        return ""
    spellings = {other.lower(): other for other in reversed(words)}
    parts = sorted(word.split("_"))
    for other in spellings:
        if sorted(other.split("_")) == parts:  # in another order
            return spellings[other]
    ranked: list[tuple[float, int, str]] = []
    for other in difflib.get_close_matches(word, spellings, cutoff=0.6):
        ratio = difflib.SequenceMatcher(None, other, word).ratio()
        if ratio >= TYPO or sorted(other) == sorted(word):
            ranked.append((ratio, sum(map(str.__eq__, other, word)), other))
    return spellings[max(ranked)[2]] if ranked else ""


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `; did you mean ...?` for the end of a message, or ""."""
    words = list(words)
    close = closest_word(word, words)
    foreign = foreign_letter(word) if all(map(str.isascii, words)) else ""
    return foreign + (f"; did you mean `{close}`?" if close else "")


def foreign_letter(word: str) -> str:
    """Name the first character that is not ASCII, for the end of a message; "" without one."""
    letter = next((char for char in word if char > "~"), "")
    return f"; it has the character {character_name(letter)}" if letter else ""


def valid_name(text: str) -> str:
    """Return a text as a name: `_` for other characters, and `x` before anything but a letter."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", text)
    return name if name[:1].isalpha() else f"x{name}"


def character_name(character: str) -> str:
    """Return a character with its number and name: `\N{CYRILLIC SMALL LETTER O}` (U+043E, ...)."""
    name = unicodedata.name(character, "").capitalize()
    shown = f"`{character}` " if character.isprintable() and not character.isspace() else ""
    described = f"U+{ord(character):04X}{', ' if name else ''}{name}"
    return f"{shown}({described})" if shown else described


def suggest_file(
    name: str | Path, folder: Path, suffixes: Sequence[str] = ("",), taken: Collection[Path] = ()
) -> str | None:
    """Return the file that `name`, a path from `folder`, probably means: its parts are similar.

    suffixes, taken: It ends in one of these, and is none of those files.
    """
    named = Path(name)
    parts, path = named.relative_to(named.anchor).parts, folder / named.anchor
    for number, part in enumerate(parts, start=1):
        entries = [path / part]
        if not os.path.exists(path / part):
            entries = sorted(path.glob("*"))[:MAX_ENTRIES]
        if number == len(parts):
            entries = [entry for entry in entries if entry.name.lower().endswith((*suffixes,))]
            entries = [entry for entry in entries if os.path.isfile(entry)]
            entries = [entry for entry in entries if entry.absolute() not in taken]
        names = [entry.name for entry in entries]
        same = [entry for entry in names if entry.casefold() == part.casefold()]
        close = same or difflib.get_close_matches(part, names, n=1, cutoff=0.6)
        if not close:
            return None
        path /= close[0]
    if not os.path.isfile(path):
        return None
    return (path if named.anchor else path.relative_to(folder)).as_posix()
