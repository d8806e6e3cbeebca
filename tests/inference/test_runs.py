"""Opening a run folder, and translating with it from Python."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import composer
from composer.cli import main
from composer.cli.options import find_run
from composer.errors import DataError, RecipeError, RunError
from composer.inference.lines import source_form
from composer.inference.methods import Beam, Greedy
from composer.inference.run import decoding_settings, open_run, translate_lines
from composer.run_dir import RunDir, checkpoint_path
from tests.inference.untrained import LANGUAGE, SWAPPED, TWO, made, record_hashes
from tests.run_records import change_record
from tests.small_recipes import SMALL, loaded
from tests.sweeps.leaderboard_dirs import begun, trial

LINES = ["eins zwei", "", "drei", "vier fünf sechs sieben acht", "  ", "neun"]


def test_a_run_translates(gru: Path) -> None:
    translations = composer.open_run(gru).translate(LINES)
    assert [bool(text) for text in translations] == [bool(line.strip()) for line in LINES]
    assert translations == open_run(str(gru)).translate(LINES)


def test_a_blank_line_changes_no_other(gru: Path) -> None:
    run = open_run(gru)
    full = [line for line in LINES if line.strip()]
    assert run.translate(full) == [text for text in run.translate(LINES) if text]
    assert run.translate([]) == []


def test_the_beam_can_be_set(gru: Path) -> None:
    run = open_run(gru, ["decoding.beam.length_penalty=1.5", "decoding.beam.max_length=9"])
    settings = {
        "size": 3,
        "length_penalty": 1.5,
        "ctc_weight": None,
        "no_repeat_ngram": None,
        "precision": "float32",
        "max_length": 9,
        "max_ratio": 3.0,
    }
    assert run.recipe.decoding == Beam(**settings)
    assert decoding_settings(run.recipe, 7) == replace(run.recipe.decoding, size=7)


def test_a_beam_in_place_of_another_decoder_keeps_what_fits(gru: Path) -> None:
    run = open_run(gru, ["decoding={sample: {max_length: 9, top_k: 4}}"])
    same = {"no_repeat_ngram": None, "precision": "float32", "max_length": 9, "max_ratio": 3.0}
    assert decoding_settings(run.recipe, 7) == Beam(**same, size=7)
    assert run.translate(["eins"], beam=2)


@pytest.mark.parametrize("beam", [0, -3, 1001])
def test_a_beam_has_a_size(beam: int, gru: Path) -> None:
    with pytest.raises(RunError, match="from 1 to 1000"):
        open_run(gru).translate(["eins"], beam=beam)


def test_out_of_memory_names_the_longest_line(gru: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(gru)

    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(run.model.decoder, "forward", full)
    with pytest.raises(RunError, match="out of memory; the longest of these lines has 2 tokens"):
        run.translate(["eins zwei"])


def test_a_mistake_that_names_a_memory_is_no_want_of_memory(
    gru: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(gru)

    def wrong(*_: object) -> None:
        raise RuntimeError("stack_memory: sizes 3 and 4 do not agree")

    monkeypatch.setattr(run.model.decoder, "forward", wrong)
    with pytest.raises(RuntimeError, match="sizes 3 and 4"):
        run.translate(["eins zwei"])


def test_only_decoding_can_be_set(gru: Path) -> None:
    with pytest.raises(RunError, match=r"`model.width=8` cannot be set for a run"):
        open_run(gru, ["model.width=8"])
    for setting in ("decodings=beam", "data.generates=copy", "data.tokenizer=word"):
        with pytest.raises(
            RunError, match=r"only what starts with `decoding`, `evaluation`, `data\.generate`, "
        ):
            open_run(gru, [setting])
    with pytest.raises(RecipeError, match="<command line>:1:"):
        open_run(gru, ["decoding.beam.sise=8"])
    message = r"expected `key=value`, got `runs/b`\n *fix: name one run; `translate` and"
    with pytest.raises(RunError, match=message):
        open_run(gru, ["runs/b"])


def test_a_path_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        open_run(tmp_path / "nothing")


def test_the_folder_of_several_runs_names_one(
    gru: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = begun(tmp_path / "sweep", [{"val/bleu": "max"}])
    folders = [trial(sweep, number) for number in (1, 2)]
    for folder, bleu in zip(folders, (10.0, 20.0), strict=True):
        shutil.copytree(gru, folder / "seed-1")
        change_record(RunDir(folder / "seed-1"), status="finished", scores={"val/bleu": bleu})
    for path, kind in (
        (sweep, "this folder holds a whole sweep"),
        (folders[1], "this folder holds one run for each seed"),
    ):
        with pytest.raises(RunError, match=kind) as caught:
            open_run(path)
        (fault,) = caught.value.faults
        assert open_run(fault.hint.split("`")[1]).run_dir.path.parent in folders
    assert find_run(f"{sweep}#1") == folders[1] / "seed-1"
    (tmp_path / "pairs").write_text("eins\tzwei\n", encoding="utf-8")
    printed = []
    for word in (f"{sweep}#1", str(folders[1] / "seed-1")):
        with pytest.raises(SystemExit, match="0"):
            main.main(["score", word, str(tmp_path / "pairs")])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    with pytest.raises(SystemExit, match="2"):
        main.main(["evaluate", f"{sweep}#9"])
    assert "no trial is called `9`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("running", "has not finished\n.*`train ... --finish`"),
        ("finished", "has finished, are missing\n.*restore"),
    ],
)
def test_a_run_without_weights_is_refused(
    status: str, words: str, gru: Path, tmp_path: Path
) -> None:
    shutil.copytree(gru, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    (tmp_path / "run" / "checkpoints").mkdir(exist_ok=True)
    checkpoint_path(tmp_path / "run" / "checkpoints", 1).touch()
    change_record(RunDir(tmp_path / "run"), status=status)
    with pytest.raises(RunError, match=words):
        open_run(tmp_path / "run")


def test_a_run_that_has_saved_nothing_is_told_what_there_is_to_do(
    gru: Path, tmp_path: Path
) -> None:
    """Its loss diverged before the first checkpoint: there is nothing that `--finish` could end it
    with.
    """
    shutil.copytree(gru, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    change_record(RunDir(tmp_path / "run"), status="failed")
    with pytest.raises(RunError, match="nothing of its training has been saved yet") as refused:
        open_run(tmp_path / "run")
    assert "--finish" not in refused.value.faults[0].hint
    assert "smaller learning rate" in refused.value.faults[0].hint


@pytest.mark.parametrize("name", ["recipe.yaml", "tokenizer.json"])
def test_a_missing_file_of_a_run_is_named(name: str, gru: Path, tmp_path: Path) -> None:
    shutil.copytree(gru, tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with pytest.raises(composer.ComposerError, match=name):
        open_run(tmp_path / "run")


def test_the_tokenizer_of_another_run_is_refused(gru: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "run", TWO)
    shutil.copy(other / "tokenizer.json", shutil.copytree(gru, tmp_path / "mixed"))
    record_hashes(tmp_path / "mixed")
    with pytest.raises(RunError, match="the tokenizer knows no source"):
        open_run(tmp_path / "mixed")


def test_an_ensemble_of_other_architectures_votes(gru: Path, attention: Path) -> None:
    runs = [open_run(gru), open_run(attention)]
    decoding = decoding_settings(runs[0].recipe)
    both = translate_lines(runs, LINES, decoding)
    swapped = translate_lines(runs[::-1], LINES, decoding)
    assert [[best.text for best in row] for row in both] == [
        [best.text for best in row] for row in swapped
    ]
    assert both != translate_lines(runs[:1], LINES, decoding)


def test_an_ensemble_shares_a_tokenizer(gru: Path, tmp_path: Path) -> None:
    other = open_run(made(tmp_path / "run", tokenizer="char"))
    with pytest.raises(RunError, match="the tokenizer is not that of"):
        translate_lines([open_run(gru), other], LINES, Greedy())


def test_an_ensemble_reads_the_same_sources(gru: Path, tmp_path: Path) -> None:
    other = open_run(made(tmp_path / "run", TWO))
    with pytest.raises(RunError, match="this run reads left, right, and "):
        translate_lines([open_run(gru), other], LINES, Greedy())


@pytest.mark.parametrize(
    ("setting", "same"), [(", augment: {rotate: 5}", True), (", channels: 3", False), ("", True)]
)
def test_what_is_read_of_an_image_does_not_depend_on_how_it_was_augmented(
    setting: str, same: bool, tmp_path: Path
) -> None:
    table = "table: {train: t.tsv, source: {column: a, kind: image, size: [4, 4]}, target: b}"
    text = SMALL.replace("generate: copy", table) + "  encoder: [sum_columns]\n"
    plain, other = (loaded(tmp_path, text.replace("4]", f"4]{more}")) for more in ("", setting))
    assert (source_form(plain, "source") == source_form(other, "source")) is same


def test_several_encoders_read_columns(tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", TWO))
    lines = ["eins zwei\tdrei", "eins zwei\tneun zehn acht"]
    one, other = translate_lines([run], lines, run.recipe.decoding)
    assert one[0].score != other[0].score
    with pytest.raises(DataError, match="this line has 1 text, and the model reads 2: "):
        run.translate(["eins\tzwei", "drei"])


def test_texts_of_several_encoders_have_the_order_of_the_recipe(tmp_path: Path) -> None:
    folders = made(tmp_path / "one", TWO), made(tmp_path / "other", SWAPPED)
    one, other = map(open_run, folders)
    assert one.recipe.fingerprints == other.recipe.fingerprints
    assert composer.fingerprints(one.recipe, tmp_path / "data") == composer.fingerprints(
        other.recipe, tmp_path / "data"
    )
    assert one.tokenizers.sha256 == other.tokenizers.sha256
    lines, targets = ["eins zwei\tdrei", "vier\tneun neun fünf"], ["acht", "sechs zwei"]
    swapped = ["drei\teins zwei", "neun neun fünf\tvier"]
    assert one.translate(lines) == other.translate(swapped) != other.translate(lines)
    assert one.score(lines, targets) == other.score(swapped, targets) != other.score(lines, targets)
    with pytest.raises(DataError, match="reads 2: right, left"):
        other.translate(["eins"])
    assert (
        one.evaluate(data=tmp_path / "data")["test/chrf"]
        == other.evaluate(data=tmp_path / "data")["test/chrf"]
    )
    left, right, target = (tmp_path / "data" / f"test.{place}" for place in range(3))
    scores = composer.evaluate(folders[0], sources=[left, right], targets=[target], name="news")
    assert (
        composer.evaluate(folders[1], sources=[right, left], targets=[target], name="news")[
            "news/loss"
        ]
        == (scores["news/loss"])
    )


def test_a_language_model_continues_its_prompt(tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", LANGUAGE))
    translations = run.translate(["eins zwei", "drei"])
    assert [
        text.startswith(line)
        for text, line in zip(translations, ["eins zwei", "drei"], strict=True)
    ] == [
        True,
        True,
    ]


def test_a_language_model_refuses_what_it_would_not_read(tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", LANGUAGE))
    with pytest.raises(RunError, match="continues its lines"):
        run.translate(["eins zwei"], prefix=["drei"])
    for use in (run.score, run.logits, run.batch):
        with pytest.raises(RunError, match="reads no sources"):
            use(["eins zwei"], ["drei"])
    assert run.score(["drei"])[0].tokens == ["drei", "⟨eos⟩"]


def test_bytes_never_break_a_line(tmp_path: Path) -> None:
    folder = made(
        tmp_path / "run",
        tokenizer="{bpe: {size: 300}}",
        decoding="{sample: {temperature: 3.0, seed: 5}}",
    )
    translations = open_run(folder).translate(["eins zwei drei"] * 40)
    assert not any("\n" in text or "\r" in text for text in translations)


def test_a_misspelt_run_is_guessed(
    gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match=f"it is not there; did you mean `{gru}`"):
        open_run(gru.with_name(f"{gru.name}m"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(gru.parent)
    with pytest.raises(RunError, match=f"it is not there; did you mean `runs/{gru.name}`"):
        open_run(f"run/{gru.name}")
