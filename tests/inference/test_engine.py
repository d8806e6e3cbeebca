"""`engine: onnxruntime` finds the answers that PyTorch finds, from programs that are made once."""

from __future__ import annotations

import gc
import os
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from composer.cli import main
from composer.errors import RecipeError, RunError
from composer.inference.answers import Translation
from composer.inference.engine import decoding_models
from composer.inference.methods import Beam, Greedy, Sample
from composer.inference.onnx_model import MEMORIES, OnnxModel
from composer.inference.run import Run, open_run, translate_lines
from composer.inference.run_programs import code_identity, program_key
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.choices import Decoder, Precision
from tests.inference.untrained import ATTENTION, GRU, LANGUAGE, TWO, made

LINES = ["eins zwei drei", "vier", "", "sieben acht neun zehn eins zwei"]
GROWING = """
encoder: [{recurrent: {stack: [{concat: prev.y}, linear, {self_attention: {heads: 2, as: y}}]}}]
decoder: [{residual: [{cross_attention: {heads: 2}}]}]
"""
METHODS: tuple[Decoder, ...] = (
    Greedy(max_length=12),
    Beam(size=4, max_length=12),
    Beam(size=3, max_length=12, no_repeat_ngram=2),
    Sample(seed=3, max_length=12, repetition_penalty=1.5, top_k=5),
)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    return tmp_path / "store" / "programs"


def folders(store: Path) -> list[Path]:
    """The programs of a store, without what locks them."""
    return [path for path in store.glob("*") if path.is_dir()]


def on(engine: str, decoding: Decoder) -> Decoder:
    return replace(decoding, engine=engine)


MODELS = [
    pytest.param(GRU, id="gru"),
    pytest.param(ATTENTION, id="attention", marks=pytest.mark.slow),
    pytest.param(TWO, id="two", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("model", MODELS)
def test_both_engines_find_the_same_answers(model: str, tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", model))
    lines = [f"{line}\t{line}" for line in LINES] if model is TWO else LINES
    prefixes = ["drei", "", "", "eins eins"]
    for decoding in METHODS:
        expected = translate_lines([run], lines, decoding, prefixes)
        actual = translate_lines([run], lines, on("onnxruntime", decoding), prefixes)
        assert texts(actual) == texts(expected), decoding.word
        for one, other in zip(actual, expected, strict=True):
            assert one[0].score == pytest.approx(other[0].score, abs=1e-4)


def texts(rows: list[list[Translation]]) -> list[list[str]]:
    return [[answer.text for answer in row] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_the_engine_leaves_the_mode_of_the_model(training: bool, tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", GRU))
    run.model.train(training)
    translate_lines([run], LINES, on("onnxruntime", METHODS[0]))
    assert {module.training for module in run.model.modules()} == {training}


def test_a_language_model_writes_the_same(tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", LANGUAGE))
    written = run.generate(["eins", "zwei drei"], max_length=9, beam=2)
    fast = open_run(run.run_dir.path, ["decoding.beam.engine=onnxruntime"])
    assert fast.generate(["eins", "zwei drei"], max_length=9, beam=2) == written


def test_programs_are_made_once_and_again_for_other_weights(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = open_run(made(tmp_path / "run", GRU))
    fast = on("onnxruntime", Greedy())
    (opened,) = decoding_models([run], fast)
    (folder,) = folders(store)
    changed = os.stat(folder / "weights.bin").st_mtime_ns
    assert decoding_models([run], on("onnxruntime", Beam(size=2)))[0] is opened
    decoding_models([open_run(tmp_path / "run")], fast)
    assert os.stat(folder / "weights.bin").st_mtime_ns == changed
    with torch.no_grad():
        next(run.model.parameters()).add_(0.1)
    assert decoding_models([run], fast)[0] is not opened
    assert len(folders(store)) == 2
    note = "making the programs of this model for onnxruntime, once ...\n"
    assert capsys.readouterr().err == 2 * note
    model = weakref.ref(run.model)
    del run, opened
    gc.collect()
    assert model() is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weights.bin", "step.onnx", "hashes.json"])
def test_programs_that_are_damaged_are_made_again(name: str, tmp_path: Path, store: Path) -> None:
    run = open_run(made(tmp_path / "run", GRU))
    expected = translate_lines([run], LINES, Greedy())
    decoding_models([run], on("onnxruntime", Greedy()))
    file = folders(store)[0] / name
    file.write_bytes(bytes(32) + file.read_bytes()[32:])
    again = open_run(tmp_path / "run")
    assert texts(translate_lines([again], LINES, on("onnxruntime", Greedy()))) == texts(expected)
    assert file.read_bytes()[:32] != bytes(32)


@pytest.mark.slow
def test_an_ensemble_votes_on_either_engine(tmp_path: Path) -> None:
    runs = [open_run(made(tmp_path / str(seed), GRU, seed=seed)) for seed in range(2)]
    decoding = Beam(size=3, max_length=12)
    expected = translate_lines(runs, LINES, decoding)
    assert texts(translate_lines(runs, LINES, on("onnxruntime", decoding))) == texts(expected)


@pytest.mark.slow
def test_a_leaf_that_a_step_does_not_change_stays_the_same_tensor(tmp_path: Path) -> None:
    """A search would else copy the keys of the source at every step."""
    run = open_run(made(tmp_path / "run", ATTENTION))
    (model,) = decoding_models([run], on("onnxruntime", Greedy()))
    assert isinstance(model, OnnxModel)
    memories = model.encode({"source": torch.tensor([[4, 5, 2], [6, 2, 0]])})
    assert set(memories) == {MEMORIES}
    before = model.start(memories, 2)
    _, after = model.step(torch.tensor([[1], [1]]), before, memories)
    same = [old is new for old, new in zip(before, after, strict=True)]
    assert any(same)
    assert not all(same)


def test_a_block_without_a_program_is_refused_at_its_line(tmp_path: Path, store: Path) -> None:
    run = open_run(made(tmp_path / "run", GROWING))
    with pytest.raises(RecipeError) as raised:
        decoding_models([run], on("onnxruntime", Greedy()))
    (fault,) = raised.value.faults
    assert fault.code == "export"
    assert fault.line > 0
    assert "encoder" in fault.path
    assert not folders(store)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_another_precision_is_refused(precision: Precision, tmp_path: Path) -> None:
    run: Run = open_run(made(tmp_path / "run", GRU))
    with pytest.raises(RunError, match=f"not in `{precision}`"):
        decoding_models([run], on("onnxruntime", Greedy(precision=precision)))


def test_programs_are_those_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is edited has the weights that it had."""
    run = open_run(made(tmp_path / "run", GRU))
    key = program_key(run, run.model)
    assert key == program_key(run, run.model)
    code_identity.cache_clear()
    monkeypatch.setattr("composer.programs.__path__", [str(tmp_path)])
    assert program_key(run, run.model) != key
    monkeypatch.undo()
    code_identity.cache_clear()
    (tmp_path / "own.py").write_text("class Own: pass")
    monkeypatch.setattr("composer.inference.run_programs.inspect.getsourcefile", lambda kind: own)
    own = str(tmp_path / "own.py")
    first = program_key(run, run.model)
    (tmp_path / "own.py").write_text("class Own: a = 1")
    assert program_key(run, run.model) != first


@pytest.mark.slow
def test_programs_run_on_the_cpu_wherever_the_model_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(made(tmp_path / "run", GRU))
    elsewhere = torch.device("cuda")
    own = EncoderDecoder.device.fget
    assert own is not None
    where = property(lambda model: elsewhere if model is run.model else own(model))
    monkeypatch.setattr(EncoderDecoder, "device", where)
    (model,) = decoding_models([run], on("onnxruntime", Greedy()))
    assert model.device.type == "cpu"
    shared = {parameter.data_ptr() for parameter in run.model.parameters()}
    assert not shared & {parameter.data_ptr() for parameter in model.parameters()}


@pytest.mark.slow
def test_the_option_is_the_setting(tmp_path: Path, store: Path) -> None:
    run = made(tmp_path / "run", GRU)
    lines = tmp_path / "lines"
    lines.write_text("eins zwei\n")
    answers = []
    for number, engine in enumerate(("torch", "onnxruntime")):
        output = tmp_path / str(number)
        files = ["--input", str(lines), "--output", str(output)]
        with pytest.raises(SystemExit) as left:
            main.main(["translate", str(run), "--engine", engine, *files])
        assert left.value.code == 0
        answers.append(output.read_text())
    assert answers[0] == answers[1]
    assert len(folders(store)) == 1
