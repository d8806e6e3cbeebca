"""What `model.json` says of a run, and the files of its tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from composer.atomic_io import sha256_of_file
from composer.data.pairs import TARGET
from composer.data.stories import QUESTION, story_shape
from composer.data.tokenizer_files import File, SentencePiece
from composer.data.tokenizer_kinds import JOINER, Bits, Integers, TokenizerKind, Word
from composer.errors import RunError
from composer.exporters.model_file import (
    ModelFile,
    Preparation,
    Source,
    SourceKind,
    Text,
)
from composer.inference.methods import Beam, Greedy, Sample
from composer.inference.run import Run
from composer.inference.run_programs import weighted
from composer.model.encoder_decoder import NEVER, Encoder
from composer.model.features import feature_settings, feature_shape
from composer.model.special_tokens import BOS, EOS, PAD, UNK
from composer.programs.files import WEIGHTS, program_file
from composer.programs.parts import Signature

IMPOSSIBLE = NEVER / 2
"""Below this a log-probability is that of a token that cannot be."""


def describe(
    run: Run, programs: Mapping[str, Signature], texts: Mapping[str, Text], folder: Path
) -> ModelFile:
    """Return the description of a run that was exported as these programs to a folder.

    texts: By side.
    """
    model = run.model
    readers = model.readers()
    names = [WEIGHTS, *map(program_file, programs), *(text.tokenizer for text in texts.values())]
    sources = [describe_source(run, key, readers[key], texts) for key in run.recipe.sources]
    return ModelFile(
        name=run.recipe.name,
        exporter=version("seqcomposer"),
        files={name: sha256_of_file(folder / name) for name in names},
        programs=programs,
        sources=tuple(sources),
        target=texts[TARGET],
        state=len(programs["start"].outputs),
        vocabulary=model.vocabulary,
        max_positions=model.max_positions,
        impossible=IMPOSSIBLE if model.has_impossible_tokens else None,
        decoding=run.recipe.canonical["decoding"],
        methods=methods_of(run),
        pad=PAD,
        bos=BOS,
        eos=EOS,
        unk=UNK,
    )


def methods_of(run: Run) -> tuple[str, ...]:
    """Return the methods that decode with the recipe's programs as this project does."""
    # sampling has no `ctc_weight`, which is part of the programs
    is_own = weighted(run.model, run.recipe.decoding) is run.model
    return (Greedy.word, Beam.word, *([Sample.word] if is_own else []))


def describe_source(run: Run, key: str, encoder: Encoder, texts: Mapping[str, Text]) -> Source:
    """Return the description of an encoder's input."""
    room = encoder.max_target_ratio
    column = feature_settings(run.recipe.data, key)
    if column is not None:
        kind: SourceKind = column.kind
        return Source(key, kind, None, feature_shape(column), column.as_data(), room)
    if story := story_shape(run.recipe, key):
        return Source(key, "story", texts[key], (story.sentences, story.words), {}, room)
    kind = "question" if run.recipe.data.babi and key == QUESTION else "text"
    return Source(key, kind, texts[key], (), {}, room)


def save_tokenizers(run: Run, folder: Path) -> dict[str, Text]:
    """Write the tokenizer of each side as a file of the library; return how they are used."""
    tokenizers = run.tokenizers
    texts: dict[str, Text] = {}
    for side, part in tokenizers.sides.items():
        if isinstance(tokenizers.parts[part], SentencePiece):
            message = "a SentencePiece model has no form that other programs here read"
            fix = "train with `tokenizer: unigram`, or a tokenizer.json"
            raise RunError.of(message, fix, str(run.run_dir.path))
        name = f"tokenizer.{side}.json"
        content = json.loads(tokenizers.parts[part].to_str())
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        prepare = preparation(tokenizers.kind)
        joiner = JOINER if prepare == "marks" else ""
        prefix = tokenizers.prefixes.get(side, "")
        texts[side] = Text(name, tokenizers.lowercase, prepare, joiner, prefix)
    return texts


def preparation(kind: TokenizerKind) -> Preparation:
    """Return what is done to a text before the library encodes it."""
    if isinstance(kind, Bits):
        return "bits"
    if isinstance(kind, File):
        return "file"
    if isinstance(kind, Integers):
        return "words"
    if isinstance(kind, Word):
        return "words" if kind.splits_at_spaces else "marks"
    return "none"
