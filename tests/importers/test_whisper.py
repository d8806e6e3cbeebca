"""What Whisper's files beside its weights say: how sounds are read, and how answers begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer.errors import RunError
from composer.importers.checkpoint import Checkpoint
from composer.importers.import_run import family_of
from tests.importers.published import BOS, EOS, PUBLISHED, TASK, TOKENIZER


def checkpoint(folder: Path, **files: dict[str, Any]) -> Checkpoint:
    """Return a checkpoint without weights. files: By name, beside config.json."""
    config = {**PUBLISHED["whisper"].config, "model_type": "whisper", "eos_token_id": EOS}
    for name, content in {"config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    TOKENIZER.save(str(folder / "tokenizer.json"))
    return Checkpoint(folder)


@pytest.mark.parametrize(
    ("generation", "prefix"),
    [
        ({}, "<|notimestamps|>"),  # so few rows are of a model for English alone
        ({"is_multilingual": True}, "".join(TASK)),
        (
            {"is_multilingual": True, "language": "<|de|>", "task": "translate"},
            "<|de|><|translate|><|notimestamps|>",
        ),
        ({"is_multilingual": True, "language": "en", "lang_to_id": {"<|en|>": 4}}, "".join(TASK)),
    ],
)
def test_answers_begin_with_language_and_task(
    generation: dict[str, Any], prefix: str, tmp_path: Path
) -> None:
    family = family_of(checkpoint(tmp_path, generation_config=generation))
    assert family.prefixes() == {"target": prefix}


def test_what_is_suppressed_is_impossible_but_for_the_prefix(tmp_path: Path) -> None:
    start, transcribe = BOS, TOKENIZER.token_to_id("<|transcribe|>")
    settings = {"is_multilingual": True, "suppress_tokens": [start, transcribe, EOS, 70, -1]}
    published = checkpoint(tmp_path, generation_config=settings)
    assert family_of(published).roles(published).impossible == {70}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"preprocessor_config": {"hop_length": 80}}, "`hop_length`: sounds are read with 160"),
        (
            {
                "generation_config": {
                    "is_multilingual": True,
                    "language": "german",
                    "lang_to_id": {},
                }
            },
            r"has no token `<\|german\|>`",
        ),
        (
            {"generation_config": {"is_multilingual": True, "language": "de"}},
            r"has no token `<\|de\|>`",
        ),
    ],
)
def test_what_is_no_whisper_is_refused(
    files: dict[str, dict[str, Any]], message: str, tmp_path: Path
) -> None:
    published = checkpoint(tmp_path, **files)
    with pytest.raises(RunError, match=message):
        family_of(published).roles(published)
