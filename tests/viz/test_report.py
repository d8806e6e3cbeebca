"""The page of a run: what stands on it, and what does not."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from composer.cli import main
from composer.data.pairs import Pairs
from composer.data.sources import open_pairs
from composer.errors import DataError, RecipeError, RunError
from composer.evaluation.hypotheses import write_hypotheses
from composer.evaluation.scores import evaluate
from composer.inference.run import Translation, open_run
from composer.recipe.recipe import load
from composer.run_dir import RunDir, locked
from composer.viz.alignments import alignments
from composer.viz.page import plotly_script, points
from composer.viz.report import NUM_EXAMPLES, report
from tests.inference.untrained import LANGUAGE, TWO, made, record_hashes
from tests.run_records import change_record, write_record
from tests.viz.pages import by_class, check_self_contained, figures, headings, read, texts

SECTIONS = [
    "Learning curves",
    "Accuracy by source length",
    "Translations",
    "Alignments",
    "Architecture",
    "Recipe",
]


def facts(page: Any) -> dict[str, str]:
    (output,) = by_class(page, "facts")
    words = ["".join(item.itertext()) for item in output.iter() if item.tag in ("dt", "dd")]
    return dict(zip(words[::2], words[1::2], strict=True))


def changed(run: Path, **changes: Any) -> None:
    change_record(RunDir(run), **changes)


@pytest.fixture(scope="module")
def page(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return read(report(trained, output=tmp_path_factory.mktemp("page") / "page.html"))


def test_the_page_holds_all_parts(page: Any) -> None:
    assert headings(page) == SECTIONS
    links = [item.get("href", "")[1:] for nav in page.iter("nav") for item in nav]
    assert links == [item.get("id") for item in page.iter("section")]
    check_self_contained(page)


def test_its_figures_are_files_in_three_formats(trained: Path, tmp_path: Path) -> None:
    report(trained, output=tmp_path / "page.html", figures=tmp_path / "figures")
    files = {path.name for path in (tmp_path / "figures").iterdir()}
    names = {Path(name).stem for name in files}
    assert files == {f"{name}.{suffix}" for name in names for suffix in ("svg", "png", "pdf")}
    assert {"architecture", "curves-loss", "alignment-1"} <= names
    curves = (tmp_path / "figures/curves-loss.svg").read_text(encoding="utf-8")
    assert "train/loss" in curves
    assert "val/loss" in curves
    with pytest.raises(RunError, match="exists and is not empty"):
        report(trained, output=tmp_path / "page.html", figures=tmp_path / "figures")


def test_only_its_own_script_may_run(page: Any) -> None:
    (policy,) = (item.get("content", "") for item in page.iter("meta") if item.get("http-equiv"))
    plotly, ours = ("".join(item.itertext()) for item in page.iter("script"))
    assert plotly == ""  # the reader of pages leaves it out
    digests = [
        base64.b64encode(hashlib.sha256(item.encode()).digest()).decode()
        for item in (plotly_script(), ours)
    ]
    assert policy.startswith("default-src 'none';")
    assert policy.endswith(f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}'")


def test_the_header_has_the_facts_of_the_run(page: Any, trained: Path) -> None:
    record = json.loads((trained / "run.json").read_text())
    output = facts(page)
    assert "".join(next(page.iter("h1")).itertext()) == "tinyfinished"
    assert output["parameters"] == f"{record['parameters']:,}"
    assert (output["seed"], output["steps"], output["training pairs"]) == ("1", "12", "90")
    assert output["weights on this page"] == "the final weights"
    assert f"{record['scores']['test/loss']:.4g}" in texts(page, "number")
    assert f"{record['scores']['val/bleu']:.2f}" in texts(page, "number")


def test_the_commit_is_that_of_the_repository_of_the_recipe(copy: Path) -> None:
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(
        json.dumps(record | {"git": {"commit": "abcdef01" * 5, "dirty": True}})
    )
    commit = facts(read(report(copy)))["commit of the recipe's repository"]
    assert commit.startswith("abcdef01")
    assert commit.endswith(", with changes")


def titles(page: Any) -> list[str]:
    return [figure["layout"]["title"]["text"] for figure in figures(page)]


def test_the_curves_are_the_metrics(page: Any, trained: Path) -> None:
    assert titles(page) == [
        "Loss",
        "Perplexity",
        "Accuracy",
        "BLEU and chrF",
        "Error rates",
        "Learning rate",
        "Speed",
        "Accuracy on test",
    ]
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    curves = figures(page)[0]["data"]
    assert [curve["name"] for curve in curves] == ["train/loss", "val/loss"]
    for curve in curves:
        logged = [(row["step"], row[curve["name"]]) for row in rows if curve["name"] in row]
        assert list(zip(curve["x"], curve["y"], strict=True)) == logged


def test_the_curves_can_be_drawn_over_epochs_and_minutes(page: Any, trained: Path) -> None:
    (controls,) = by_class(page, "controls")
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    passed = [[row["step"], row["epoch"], row["minutes"]] for row in rows if "epoch" in row]
    assert json.loads(controls.get("data-clock", "")) == passed
    assert [option.text for option in controls.iter("option")] == ["step", "epoch", "minutes"]
    assert "with dropout" in "".join(page.itertext())


def test_outputs_can_be_marked_against_their_references(page: Any) -> None:
    (listed,) = by_class(page, "samples")
    parts = [
        [item.get(key) for key in ("data-reference", "data-output")] for item in listed.iter("dd")
    ]
    assert parts == [[None, None], ["1", None], [None, "1"]] * 8
    assert "; of a reference without spaces, characters." in "".join(page.itertext())


def test_every_chart_has_axis_labels(page: Any) -> None:
    axes = [figure["layout"][axis] for figure in figures(page) for axis in ("xaxis", "yaxis")]
    assert all(axis["title"]["text"] for axis in axes)
    assert axes[1]["title"]["text"] == "nats per token"
    assert figures(page)[1]["layout"]["yaxis"]["type"] == "log"


def test_translations_are_the_outputs_of_the_run(page: Any, trained: Path) -> None:
    run = open_run(trained)
    (listed,) = by_class(page, "samples")
    output = ["".join(item.itertext()) for item in listed.iter("dd")]
    assert len(output) == 8 * 3  # all of the test part
    assert output[2::3] == run.translate(output[::3])
    assert {item.get("dir") for item in listed.iter("dd")} == {"auto"}


def test_scores_of_the_training_are_not_recomputed(copy: Path) -> None:
    known = json.loads((copy / "run.json").read_text())["by_length"]
    assert known["test"] == evaluate(copy)["test/accuracy_by_length"]
    changed(copy, by_length={"test": [{"words": 400, "lines": 7, "exact_match": 0.99}]})
    assert accuracies(read(report(copy))) == {"exact match": [(400.0, 0.99)]}
    assert accuracies(read(report(copy, data=copy.parent))) == as_points(known["test"])
    (copy / "model.safetensors").unlink()
    assert all(
        len(curve) == len(known["test"]) for curve in accuracies(read(report(copy))).values()
    )


def accuracies(page: Any) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each curve of the chart of accuracies by length."""
    (section,) = (item for item in page.iter("section") if item.get("id") == "accuracy")
    (chart,) = (json.loads(item.get("data-figure", "")) for item in by_class(section, "plot"))
    return {
        curve["name"]: list(zip(curve["x"], curve["y"], strict=True)) for curve in chart["data"]
    }


def as_points(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return the points that the curves of these rows should have."""
    names = {"exact_match": "exact match", "positional_accuracy": "positional accuracy"}
    return {label: [(row["words"], row[name]) for row in rows] for name, label in names.items()}


def test_texts_have_bleu_by_length(gru: Path, tmp_path: Path) -> None:
    result = read(report(gru, output=tmp_path / "page.html"))
    assert "BLEU by source length" in headings(result)
    measured = evaluate(gru)["test/bleu_by_source_length"]
    assert bars(result) == [
        (f"{row['words']}<br>n={row['lines']}", row["bleu"]) for row in measured
    ]
    copied = Path(shutil.copytree(gru, tmp_path / "run"))
    changed(copied, by_length={"test": [{"words": "51+", "lines": 7, "bleu": 99.0}]})
    result = read(report(copied))
    assert bars(result) == [("51+<br>n=7", 99.0)]


def bars(page: Any) -> list[tuple[str, float]]:
    """Return the names and the heights of the bars of the first chart."""
    chart = figures(page)[0]["data"][0]
    return list(zip(chart["x"], chart["y"], strict=True))


def test_sentences_of_each_length_are_counted(copy: Path) -> None:
    rows = [
        {"words": length, "lines": lines, "exact_match": 0.5, "positional_accuracy": 0.75}
        for length, lines in ((100, 1000), (20, 1000), (40, 9))
    ]
    changed(copy, by_length={"test": rows})
    result = read(report(copy))
    assert accuracies(result) == as_points(sorted(rows, key=lambda row: row["words"]))
    (section,) = (item for item in result.iter("section") if item.get("id") == "accuracy")
    assert "9 to 1,000 sentences of each length" in "".join(section.itertext())


def test_a_curriculum_is_among_the_curves(copy: Path) -> None:
    with (copy / "metrics.jsonl").open("a") as file:
        file.write(
            '{"step": 13, "train/level": 6, "train/sequence_error": 0.25}\n{"step": 14,'
            ' "train/level": 7}\n'
        )
    result = read(report(copy))
    curves = {
        curve["name"]: (curve["x"], curve["y"])
        for figure in figures(result)
        for curve in figure["data"]
    }
    assert curves["train/level"] == ([13.0, 14.0], [6.0, 7.0])
    assert curves["train/sequence_error"] == ([13.0], [0.25])


def test_another_split_is_evaluated(trained: Path, tmp_path: Path) -> None:
    result = read(report(trained, split="val", output=tmp_path / "page.html"))
    assert "Accuracy on val" in titles(result)
    assert accuracies(result) == as_points(evaluate(trained, "val")["val/accuracy_by_length"])


def test_of_train_the_lines_that_are_trained_on_are_shown(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    recipe = run / "recipe.yaml"
    recipe.write_text(
        recipe.read_text(encoding="utf-8").replace("tokenizer:", "max_length: 14\n  tokenizer:"),
        "utf-8",
    )
    record_hashes(run)
    lines = (tmp_path / "data" / "train.0").read_text(encoding="utf-8").splitlines()
    trained = [line for line in lines if len(line.split()) < 14]
    assert len(trained) < len(lines)
    page = read(report(run, split="train"))
    assert f"The worst 10 of {len(trained)} lines of train, by chrF" in [
        "".join(item.itertext()) for item in page.iter("h3")
    ]


def test_requested_sentences_have_alignments(trained: Path, tmp_path: Path) -> None:
    result = read(report(trained, sentences=["a b c", "<b>"], output=tmp_path / "page.html"))
    recorded = [
        "".join(item.itertext()) for item in by_class(result, "sentence") for item in list(item)[:1]
    ]
    assert [item.split(" → ")[0] for item in recorded] == ["a b c", "<b>"]


def test_the_pictures_of_a_sentence_can_be_saved(trained: Path, tmp_path: Path) -> None:
    result = read(report(trained, sentences=["a b c", "b"], output=tmp_path / "page.html"))
    links = [item for place in by_class(result, "save") for item in place.iter("a")]
    assert [link.get("download") for link in links] == ["alignment-1.svg", "alignment-2.svg"]
    kind, _, content = links[0].get("href", "").partition(",")
    assert kind == "data:image/svg+xml;base64"
    (first, _) = alignments(open_run(trained), ["a b c", "b"])
    assert base64.b64decode(content).decode() == first.svg()


def test_a_trial_of_a_sweep_is_titled_with_its_values(trained: Path, tmp_path: Path) -> None:
    # W&B moves its logs when it likes
    no_logs = shutil.ignore_patterns("wandb")
    run = Path(shutil.copytree(trained, tmp_path / "trial" / "seed-1", ignore=no_logs))
    trial = run.parent / "trial.json"
    trial.write_text('{"point": {"arch": "gru", "width": 32}}', encoding="utf-8")
    result = read(report(run))
    assert next(result.iter("h1")).text == "arch=gru, width=32"
    assert next(result.iter("title")).text == "arch=gru, width=32: report"
    assert "A trial of a sweep: tiny" in texts(result, "soft")
    trial.write_text("[]", encoding="utf-8")
    assert next(read(report(run)).iter("h1")).text == "tiny"


def test_a_test_of_long_lines_leaves_the_pictures_to_the_validation(copy: Path) -> None:
    text = (copy / "recipe.yaml").read_text(encoding="utf-8")
    (copy / "recipe.yaml").write_text(
        text.replace("test: 8", "test: 8, test_lengths: [40]"), encoding="utf-8"
    )
    record_hashes(copy)
    result = read(report(copy))
    (listed,) = by_class(result, "samples")
    assert {len(item.text.split()) for item in list(listed.iter("dd"))[::3] if item.text} == {40}
    output = [
        "".join(item.itertext()).split(" → ")[0]
        for sentence in by_class(result, "sentence")
        for item in sentence[:1]
    ]
    recipe = load(copy / "recipe.yaml")
    assert output == list(open_pairs(recipe, "val", []).sides["source"][:3])


# ------------------------------------------------------------------------------------------- text
# from anywhere


def test_text_cannot_become_markup(tmp_path: Path) -> None:
    run = made(tmp_path / "run", tokenizer="char")
    nasty = [
        "<script>alert(1)</script>",
        "</dd></dl><h2>&lt;",
        '" onload="x',
        "\0\x1b[31m",
        "שלום <b>עולם",
        "\u202e abc",
    ]
    lines = [nasty[at % len(nasty)] for at in range(12)]
    for side in ("0", "1"):
        (tmp_path / "data" / f"test.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    changed(
        run,
        name="<i>",
        commit="<i>",
        git={"commit": "<script>"},
        status="<b>",
        versions={"<a>": "<b>"},
    )
    result = read(report(run))
    check_self_contained(result)
    _, listed = by_class(result, "samples")
    assert ["".join(item.itertext()) for item in listed.iter("dd")][:3:3] == nasty[:1]
    assert [script.get("class") for script in result.iter("script")] == ["plotly", None]
    assert headings(result) == [
        "BLEU by source length",
        "Translations",
        "Alignments",
        "Architecture",
        "Recipe",
    ]


# ------------------------------------------------------------------------------------------- runs
# of all kinds


def test_an_unfinished_run_is_reported_from_its_checkpoint(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    record = json.loads((copy / "run.json").read_text())
    late = {"scores", "by_length", "steps", "epochs", "minutes", "ended_at", "checkpoints_used"}
    record = {name: value for name, value in record.items() if name not in late}
    write_record(RunDir(copy), record | {"status": "running"})
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"step": 14, "train/loss": null}\n{"step": 16, "tra')
    result = read(report(copy))
    assert headings(result) == SECTIONS
    output = facts(result)
    assert output["weights on this page"] == "the checkpoint after 12 steps"
    assert output["steps"] == "14"
    assert texts(result, "status") == ["killed, or running on another machine"]
    with locked(RunDir(copy)):
        assert texts(read(report(copy)), "status") == ["running"]
    assert by_class(result, "finished") == []
    assert texts(result, "number")  # the scores of the last validation


def test_a_run_without_any_weights_has_its_curves(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    shutil.rmtree(copy / "checkpoints")
    result = read(report(copy))
    assert headings(result) == ["Learning curves", "Architecture", "Recipe"]
    assert texts(result, "note") == [
        "No translations and no alignments: the run has neither final weights nor a checkpoint."
    ]
    with pytest.raises(RunError, match="`--sentence` needs weights"):
        report(copy, sentences=["a"])


def test_a_run_that_has_just_begun_has_a_report(copy: Path) -> None:
    for name in ("model.safetensors", "metrics.jsonl"):
        (copy / name).unlink()
    for name in ("checkpoints", "wandb"):
        shutil.rmtree(copy / name)
    changed(copy, status="running", scores={})
    assert headings(read(report(copy))) == ["Architecture", "Recipe"]


def test_a_damaged_checkpoint_is_skipped(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "checkpoints" / "step-00000012.ckpt").write_bytes(b"no")
    assert facts(read(report(copy)))["weights on this page"] == "the checkpoint after 10 steps"


def test_without_its_data_a_run_has_no_translations(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    shutil.rmtree(tmp_path / "data")
    result = read(report(run, sentences=["eins zwei"]))
    assert headings(result) == ["Alignments", "Architecture", "Recipe"]
    (note,) = texts(result, "note")
    assert note.startswith("No translations of data: ")
    assert "test.0" in note
    assert headings(read(report(run))) == ["Architecture", "Recipe"]
    for asked in ({"split": "test"}, {"data": tmp_path}):
        with pytest.raises(DataError, match=r"test\.0"):
            report(run, **asked)


def test_the_worst_lines_are_those_of_all_that_the_training_decoded(copy: Path) -> None:
    """Nothing is decoded again: the page has the outputs of the run folder."""
    file = RunDir(copy).hypotheses("test")
    assert len(file.read_text(encoding="utf-8").splitlines()) == 8
    lines = [f"source {number}" for number in range(30)]
    references = [
        "the very same words",
        *(f"a reference of {number} words" for number in range(29)),
    ]
    outputs = [*references]
    outputs[5], outputs[20], outputs[25] = "", "a reference of 7 words", "something else"
    write_hypotheses(file, lines, outputs, [references])
    change_record(RunDir(copy), hypotheses_sha256={})  # as in a run of 0.1.0
    with pytest.MonkeyPatch.context() as patch:
        pairs = Pairs({"source": lines, "target": references})
        patch.setattr("composer.viz.report_lines.open_split", lambda *arguments: pairs)
        page = read(report(copy))
        patch.setattr(
            "composer.viz.report_lines.decode_lines",
            lambda run, lines, say: [Translation("", 0.0)] * len(lines),
        )
        file.write_text('{"mt": "cut off', encoding="utf-8")
        damaged = read(report(copy))
    worst, first = by_class(page, "samples")
    decoded = ["".join(item.itertext()) for item in worst.iter("dd")][2::3]
    assert decoded == ["", "something else", "a reference of 7 words"]
    assert len(list(first)) == NUM_EXAMPLES
    assert "The worst 3 of 30 lines of test, by chrF" in [
        "".join(item.itertext()) for item in page.iter("h3")
    ]
    assert next(item.text for item in worst.iter("p")) == "chrF 0.0"
    (listed,) = by_class(damaged, "samples")
    assert [item.text for item in listed.iter("dd")][2::3] == [None] * NUM_EXAMPLES


def test_data_are_read_from_the_folder_in_the_option(gru: Path, tmp_path: Path) -> None:
    data = shutil.copytree(gru.parent / "data", tmp_path / "data")
    (data / "test.0").write_text("zehn\n" * 12, encoding="utf-8")
    _, listed = by_class(read(report(gru, data=data, output=tmp_path / "page.html")), "samples")
    assert next(item.text for item in listed.iter("dd")) == "zehn"


def test_a_model_without_encoders_continues_the_line(tmp_path: Path) -> None:
    run = made(tmp_path / "run", LANGUAGE)
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    changed(run, data=record["data"] | {"train_pairs_used": 7})
    result = read(report(run))
    assert facts(result)["training texts"] == "7"
    assert headings(result) == ["Continuations", "Alignments", "Architecture", "Recipe"]
    (listed,) = by_class(result, "samples")
    names = [item.text for item in listed.iter("dt")]
    beginning, reference, written = (
        [item.text or "" for item in listed.iter("dd")][at::3] for at in range(3)
    )
    assert names[:3] == ["beginning", "reference", "continuation"]
    assert all(text.startswith(start) for text, start in zip(reference, beginning, strict=True))
    assert written == open_run(run).translate(beginning)


def test_two_encoders_have_two_sources(tmp_path: Path) -> None:
    result = read(report(made(tmp_path / "run", TWO)))
    _, listed = by_class(result, "samples")
    assert [item.text for item in listed.iter("dt")][:4] == [
        "left",
        "right",
        "reference",
        "translation",
    ]


# ------------------------------------------------------------------------------------------- what
# is refused


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        report(tmp_path)
    with pytest.raises(RunError, match="not a run folder"):
        report(tmp_path / "nothing")


def test_an_unknown_split_is_refused(gru: Path) -> None:
    for split in ("val", "tset"):
        with pytest.raises(RunError, match=f"no data called `{split}`"):
            report(gru, split=split)
    assert not (gru / "report.html").exists()


def test_a_broken_run_is_refused(copy: Path) -> None:
    (copy / "recipe.yaml").write_text("recipe: 1\n", encoding="utf-8")
    with pytest.raises(RunError, match="not the one that the training wrote"):
        report(copy)
    record_hashes(copy)
    with pytest.raises(RecipeError):
        report(copy)


def test_only_a_report_is_overwritten(copy: Path, tmp_path: Path) -> None:
    before = (copy / "model.safetensors").read_bytes()
    for place in (copy / "model.safetensors", tmp_path, tmp_path / "none" / "page.html"):
        with pytest.raises(RunError, match="the report cannot be written"):
            report(copy, output=place)
    assert (copy / "model.safetensors").read_bytes() == before
    first = report(copy)
    assert first == copy / "report.html"
    assert report(copy) == first


def test_the_command_writes_a_report(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.html"
    with pytest.raises(SystemExit) as left:
        main.main(
            ["report", str(trained), "--split", "val", "--sentence", "a b", "--output", str(file)]
        )
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith(f"wrote {file} (")
    assert len(by_class(read(file), "sentence")) == 1


# ------------------------------------------------------------------------------------------- small
# things


def test_values_that_are_no_numbers_are_no_points() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 1, "a": None},
        {"step": 2, "a": 0.0},
        {"step": 3, "b": 1.0},
        {"step": 4, "a": 2},
    ]
    assert points(rows, "a", positive=False) == [(2.0, 0.0), (4.0, 2.0)]
    assert points(rows, "a", positive=True) == [(4.0, 2.0)]
