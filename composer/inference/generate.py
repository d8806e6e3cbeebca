"""`generate`: texts that a language model writes, from their beginning or from a prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from composer.data.encoding import MAX_TOKENS
from composer.data.pairs import TARGET
from composer.data.tokenizer import UNFINISHED, Tokenizers
from composer.errors import Fault, RecipeError, RunError
from composer.inference.answers import Translation
from composer.inference.decode import Row, decode_all
from composer.inference.decoders.search import Options
from composer.inference.draft_runs import open_draft
from composer.inference.drafts import Draft
from composer.inference.engine import decoding_models
from composer.inference.lines import check_lines, oom_as_run_failed, write_note
from composer.inference.methods import Sample
from composer.inference.run import Run, decoding_settings, open_run, shared_settings
from composer.model.special_tokens import UNK
from composer.recipe.choices import Decoder
from composer.recipe.recipe import Recipe, load_text


def generate(
    run: Run | str | Path,
    prompts: Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    *,
    samples: int = 1,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    beam: int | None = None,
    max_length: int | None = None,
    scores: bool = False,
    checkpoint: str | int | None = None,
    draft: str | Path | Run | None = None,
    on_text: Callable[[int, str], None] | None = None,
    on_draft: Callable[[Draft], None] = lambda draft: None,
) -> list[Any]:
    """Return the text that a language model writes after each prompt, prompt included.

    Without prompts it writes one text from its beginning.

    It decodes as its recipe does, or samples where one of the settings of `sample` is given, or
    several samples are.

    Args:
        run: A run or its folder.
        prompts: How the texts begin.
        overrides: `decoding...=value`, for a run that is a folder.
        samples: Texts of each prompt, which then has a list of them.
        temperature, top_k, top_p, min_p, repetition_penalty, seed: Settings of `sample`.
        beam: The size of a beam, in place of sampling.
        max_length: Tokens after the prompt at most.
        scores: Whether to return `Translation`s in place of texts.
        checkpoint: `last`, `best` or a step, in place of the final weights.
        draft: A smaller run, which proposes tokens: the model reads several at once, and keeps
            those that it would have written, or may have drawn. The text is the same without one,
            or drawn by the same probabilities, but not with the same random numbers.
        on_draft: Called at the end with the draft, which knows how many tokens were accepted.
        on_text: Called with the number of a text and what is new of it, as it is written; one text
            follows the other.

    Raises RunError, also for a model with an encoder and for a setting that is not possible.
    """
    opened = open_run(run, [overrides] if isinstance(overrides, str) else overrides, checkpoint)
    if samples < 1:
        raise RunError.of(f"there are no {samples} samples", "write `samples=1` or more")
    sampling: dict[str, object] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    sampling = {name: value for name, value in sampling.items() if value is not None}
    decoding = generation_settings(opened.recipe, sampling, samples, beam, max_length)
    drafting = None if draft is None else open_draft(draft, [opened], decoding)
    begun = []
    for ids in encode_prompts(opened, prompts):
        begun += [ids] * samples
    translations = write_texts(opened, begun, decoding, on_text, drafting)
    if drafting:
        on_draft(drafting)
    texts: list[Any] = translations if scores else [text.text for text in translations]
    if samples == 1:
        return texts
    return [texts[at : at + samples] for at in range(0, len(texts), samples)]


def generation_settings(
    recipe: Recipe,
    sampling: dict[str, Any],
    samples: int = 1,
    beam: int | None = None,
    max_length: int | None = None,
) -> Decoder:
    """Return the decoding of a recipe with these settings of `sample`, a beam, or samples.

    Raises RunError.
    """
    if beam is not None and (sampling or samples > 1):
        name = next(iter(sampling), "samples").replace("_", "-")
        message = f"`--{name}` is a setting of sampling, and a beam search draws nothing"
        raise RunError.of(message, f"remove `--beam`, or `--{name}`")
    if (temperature := sampling.get("temperature", 1)) <= 0:
        fix = (
            "for the most probable tokens write `decoding=greedy`, and remove the settings of"
            " sampling"
        )
        raise RunError.of(f"`--temperature` takes a number above 0; `{temperature:g}` is not", fix)
    decoding = decoding_settings(recipe, beam)
    if sampling or samples > 1:
        decoding = shared_settings(Sample, decoding)
    settings = decoding.as_data() | sampling
    if max_length is not None:
        settings["max_length"] = max_length
    try:  # the recipe's own checks say which values are possible
        return load_text(
            recipe.dump(), overrides=[f"decoding={json.dumps({decoding.word: settings})}"]
        ).decoding
    except RecipeError as error:  # at places of a text that nobody wrote
        raise RunError(
            Fault("", 0, 0, "run", "", fault.message, fault.hint) for fault in error.faults
        ) from None


def encode_prompts(run: Run, prompts: Sequence[str] | None) -> list[list[int]]:
    """Return the ids of each prompt; of None, those that every text begins with.

    Raises RunError.
    """
    if run.recipe.sources:
        fix = f"use `seqcomposer translate {run.run_dir.path}`"
        raise RunError.of(
            "this model has an encoder: it answers a source", fix, str(run.run_dir.path)
        )
    every = run.tokenizers.beginning(TARGET)
    if prompts is None:
        return [every]
    prompts = [text for (text,) in check_lines(run.recipe, prompts)[0]]
    most = (run.model.max_positions or MAX_TOKENS) - 1
    rows = run.tokenizers.encode_beginnings(TARGET, prompts)
    for prompt, ids in zip(prompts, rows, strict=True):
        if ids == every:
            raise RunError.of(
                f"the prompt `{prompt}` is empty",
                "leave it out: a text then begins as the model likes",
            )
        if len(ids) > most:
            message = (
                f"the prompt `{prompt[:30]}...` has {len(ids):,} tokens, and this model reads"
                f" {most:,} at most"
            )
            raise RunError.of(message, "give it the end of the prompt alone")
    return rows


def unknown_prompts(run: Run, prompts: Sequence[str]) -> list[str]:
    """Return the prompts of which the run's tokenizer does not know all. Raises RunError."""
    return [
        prompt
        for prompt, ids in zip(prompts, encode_prompts(run, prompts), strict=True)
        if UNK in ids
    ]


def write_texts(
    run: Run,
    begun: Sequence[list[int]],
    decoding: Decoder,
    on_text: Callable[[int, str], None] | None = None,
    draft: Draft | None = None,
) -> list[Translation]:
    """Return the texts that begin with these ids, decoded side by side.

    With `on_text` they are written one after the other. The numbers that sampling draws depend on a
    text's place alone.

    The numbers that sampling draws depend on a text's place alone.
    """
    options = Options(to_texts=partial(run.tokenizers.decode, TARGET), draft=draft)
    rows = [Row(prefix=ids, number=number) for number, ids in enumerate(begun)]
    models = decoding_models([run], decoding)
    with oom_as_run_failed(begun):
        if on_text is None:
            results = decode_all(models, rows, decoding, options)
        else:
            results = []
            for row in rows:
                stream = TextStream(run.tokenizers, partial(on_text, row.number))
                stream.add(*row.prefix)
                watched = replace(options, on_token=stream.add)
                results += decode_all(models, [row], decoding, watched)
                stream.end(results[-1][0].ids, results[-1][0].ended)
    best = [hypotheses[0] for hypotheses in results]
    ended = [hypothesis.ended for hypothesis in best]
    note_beyond_window(run, [len(hypothesis.ids) + hypothesis.ended for hypothesis in best])
    texts = run.tokenizers.decode_answers(TARGET, [hypothesis.ids for hypothesis in best], ended)
    scored = zip(texts, best, strict=True)
    return [Translation(text, answer.score, answer.ended) for text, answer in scored]


def note_beyond_window(run: Run, lengths: Sequence[int]) -> None:
    """Note on stderr the number of texts longer than the window that the model trained on.

    lengths: Tokens of each text with eos.
    """
    window = run.recipe.window
    if window is None or run.recipe.carries_state:
        return
    if beyond := sum(length > window for length in lengths):
        what = f"{beyond:,} of {len(lengths):,} texts are" if len(lengths) > 1 else "this text is"
        write_note(
            f"{what} longer than the {window:,} tokens of a window: the model was never trained to"
            " read so far"
        )


class TextStream:
    """The text of ids that come one after the other, in pieces of whole characters.

    Each piece is decoded behind the one before, since the space before a word depends on that.
    """

    def __init__(self, tokenizers: Tokenizers, write: Callable[[str], None]) -> None:
        self.tokenizers, self.write = tokenizers, write
        self.ids: list[int] = []
        self.first = self.written = 0  # where the last piece began, and where it ended

    def add(self, *ids: int, ended: bool | None = None) -> None:
        """Write the new text of these ids.

        ended: True if the text ends with them, False if it was cut there.
        """
        self.ids += [token for token in ids if token >= UNK]
        pieces = [self.ids[self.first : self.written], self.ids[self.first :]]
        # the prefix of every text is none of its text
        decode = self.tokenizers.decode_pieces if self.first else self.tokenizers.decode
        before, after = decode(TARGET, pieces)
        if ended is False:
            after = after.removesuffix(UNFINISHED)
        if len(after) > len(before) and (ended is not None or not after.endswith(UNFINISHED)):
            self.write(after[len(before) :])
            self.first, self.written = self.written, len(self.ids)

    def end(self, ids: Sequence[int], ended: bool = True) -> None:
        """Write the rest of a text with all these ids; some searches give it at once."""
        self.add(*ids[len(self.ids) :], ended=ended)
