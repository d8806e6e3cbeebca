"""One way leads from lines to answers, and one from these to scores: in training, evaluations,
reports, comparisons.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import composer
from composer.comparison.outputs import compare_trials
from composer.errors import DataError
from composer.run_dir import read_metrics
from composer.viz.report import report

TEXT = {
    "parallel": {
        "train": {"source": "s", "target": "t"},
        "val": {"source": "vs", "target": "vt"},
        "test": 4,
    }
}
TWO = {
    "parallel": {
        "train": {"one": "s", "other": "s", "target": "t"},
        "val": {"one": "vs", "other": "tabs", "target": "vt"},
        "test": {"one": "tabs", "other": "vs", "target": "vt"},
    }
}
MEDIA = {
    "table": {
        "train": "media.tsv",
        "val": 4,
        "source": {"column": "v", "kind": "vectors", "width": 3},
        "target": "a",
    }
}
TASK = {"generate": {"copy": {"symbols": 4, "train": 60, "val": 12, "test": 4}}}
ONE = {"encoder": [{"rnn": {}}], "decoder": [{"rnn": {"initial_state": "encoder"}}]}
BOTH = {
    "encoders": {"one": [{"rnn": {}}], "other": [{"rnn": {}}]},
    "decoder": [{"rnn": {"initial_state": "one"}}, {"cross_attention": {"from": "other"}}],
}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": (TEXT, ONE),
    "several encoders": (TWO, BOTH),
    "media": (MEDIA, {**ONE, "encoder": ["linear", {"rnn": {}}]}),
    "task": (TASK, ONE),
}


def write(folder: Path, kind: str) -> Path:
    """A recipe of data of a kind, some of whose sources and references are blank, or have tabs."""
    words = [f"{a} {b} {a} {b}" for a in "abcd" for b in "efgh"]
    sources, targets = [*words], [*words]
    sources[2] = sources[7] = targets[4] = ""
    files = {
        "s": words * 2,
        "t": words * 2,
        "vs": sources,
        "vt": targets,
        "tabs": [f"a\t{word}" for word in words],
    }
    (folder / "v").mkdir()
    for number, word in enumerate(words):
        np.save(
            folder / f"v/{number}.npy", np.full((2 + number % 3, 3), len(word) + number, np.float32)
        )
    files["media.tsv"] = ["v\ta", *(f"v/{number}.npy\t{word}" for number, word in enumerate(words))]
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    data, model = KINDS[kind]
    watch = {"metric": "val/chrf", "patience": None}
    recipe = {
        "recipe": 1,
        "data": data,
        "model": {"width": 8, **model},
        "training": {
            "max_steps": 12,
            "validate_every": 4,
            "early_stopping": watch,
            "tokens_per_batch": 64,
        },
        "evaluation": {
            "metrics": [
                "chrf",
                "bleu",
                "ter",
                "exact_match",
                "word_error_rate",
                "character_error_rate",
            ]
        },
        "decoding": {"sample": {"max_length": 6}},
        "logging": {"wandb": False},
    }
    file = folder / "recipe.yaml"
    file.write_text(json.dumps(recipe), encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_a_validation_are_those_of_an_evaluation(kind: str, tmp_path: Path) -> None:
    composer.train(write(tmp_path, kind), run=tmp_path / "run")
    rows = [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if "val/chrf" in row]
    assert len(rows) >= 3
    for row in rows[-2:]:
        scores = composer.evaluate(tmp_path / "run", "val", checkpoint=int(row["step"]))
        names = [name for name in scores if isinstance(scores[name], float)]
        assert {name: row[name] for name in names if not name.endswith(("loss", "perplexity"))} == {
            name: scores[name] for name in names if not name.endswith(("loss", "perplexity"))
        }
        assert row["val/loss"] == pytest.approx(scores["val/loss"])


def test_a_tab_in_a_text_of_several_encoders_is_a_character(tmp_path: Path) -> None:
    result = composer.train(write(tmp_path, "several encoders"), run=tmp_path / "run")
    run = composer.open_run(tmp_path / "run")
    assert composer.evaluate(run, "test")["test/chrf"] == result.scores["test/chrf"]
    (answer,) = run.translate([("a\tb", "c")])
    assert run.translate(["a b\tc"]) == run.translate([("a b", "c")])
    assert isinstance(answer, str)
    assert compare_trials(tmp_path / "run", tmp_path / "run").same_lines == 15
    assert "a e a e" in report(tmp_path / "run").read_text(encoding="utf-8")
    assert len(run.alignments([("a\tb", "c")])) == 1
    for wrong in (["one text"], [("one text",)], [("a", "b", "c")]):
        with pytest.raises(DataError, match="the model reads 2: one, other"):
            run.translate(wrong)


def test_a_line_without_a_reference_is_counted_and_in_no_metric(tmp_path: Path) -> None:
    composer.train(write(tmp_path, "text"), run=tmp_path / "run")
    lines = [(tmp_path / name).read_text(encoding="utf-8").splitlines() for name in ("vs", "vt")]
    pairs = [pair for pair in zip(*lines, strict=True) if pair[1]]
    for name, column in zip(("s2", "t2"), zip(*pairs, strict=True), strict=True):
        (tmp_path / name).write_text("\n".join(column) + "\n", encoding="utf-8")
    (tmp_path / "blank").write_text("\n" * 16, encoding="utf-8")
    run, files = (
        composer.open_run(tmp_path / "run", ["decoding={greedy: {max_length: 6}}"]),
        {"name": "news"},
    )
    file = tmp_path / "out.jsonl"
    blank = composer.evaluate(
        run,
        sources=[tmp_path / "vs"],
        targets=[tmp_path / "vt", tmp_path / "blank"],
        hypotheses=file,
        **files,
    )
    full = composer.evaluate(run, sources=[tmp_path / "s2"], targets=[tmp_path / "t2"], **files)
    assert (
        blank.pop("news/without_reference")
        == "1 of 16 lines have no reference; they are left out of all metrics"
    )
    others = ("news/measured", "news/truncated")  # of all lines
    assert {key: value for key, value in blank.items() if key not in others} == {
        key: value for key, value in full.items() if key not in others
    }
    assert [lines["lines"] for lines in (blank["news/measured"], full["news/measured"])] == [16, 15]
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [row.get("ref", "") for row in rows] == lines[1]
    assert not [row for row in rows if "refs" in row]
