"""Models exported for CTranslate2 translate and score the same; models that it does not support are
refused.
"""

from __future__ import annotations

from pathlib import Path

import ctranslate2
import pytest
import torch

import composer
from composer.cli import main
from composer.data.pairs import TARGET
from composer.errors import RunError
from composer.exporters.ctranslate2 import export_ctranslate2
from composer.inference.methods import Greedy
from composer.inference.run import Run, open_run, translate_lines
from composer.model.special_tokens import BOS, EOS, PAD
from tests.inference.untrained import GRU, made

LINES = ["one two three", "seven", "ten nine eight one two"]


def transformer(
    norm: str = "pre",
    last: str = "norm",
    positions: str = "sinusoidal",
    more: str = "",
    forward: str = "feed_forward",
    scale: float = 1.0,
) -> str:
    """A Transformer of two layers."""
    layer = f"{{residual: [self_attention]}}, {{residual: [{forward}]}}"
    decoder_layer = layer.replace("},", "}, {residual: [{cross_attention: {heads: 2}}]},", 1)
    end = f"  - {last}" if last else ""
    return f"""
residual: {{norm: {norm}, scale: {scale}}}
self_attention: {{heads: 2{more}}}
encoder:
  - positions: {positions}
  - repeat: {{times: 2, stack: [{layer}]}}
{end}
decoder:
  - positions: {positions}
  - repeat: {{times: 2, stack: [{decoder_layer}]}}
{end}
"""


@pytest.mark.parametrize(
    "model",
    [
        transformer(),
        transformer(last=""),
        transformer(norm="post", last="", forward="{feed_forward: {activation: gelu}}"),
        transformer(positions="learned", forward="{feed_forward: {activation: swiglu}}"),
        transformer(forward="{feed_forward: {activation: glu, hidden: 24}}"),
        transformer(forward="{feed_forward: {activation: silu}}").replace(
            "times: 2", "times: 2, share: true"
        ),
        transformer() + "output: {tie: [target]}",
    ],
)
def test_ctranslate2_translates_the_same(model: str, tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", model))
    exported = export_ctranslate2(
        Run.from_model(run.recipe, run.tokenizers, run.model), tmp_path / "exported"
    )
    assert (exported / "tokenizer.json").read_bytes() == run.run_dir.tokenizer.read_bytes()
    translator = ctranslate2.Translator(str(exported), intra_threads=1)
    names = {side: run.tokenizers.vocabulary(side) for side in ("source", TARGET)}
    requested = [
        [names["source"][index] for index in row] for row in run.tokenizers.encode("source", LINES)
    ]
    result = translator.translate_batch(
        requested, beam_size=1, max_decoding_length=12, min_decoding_length=0
    )
    known = {name: index for index, name in enumerate(names[TARGET])}
    texts = run.tokenizers.decode(
        TARGET, [[known[item] for item in one.hypotheses[0]] for one in result]
    )
    ours = translate_lines([run], LINES, Greedy(max_length=12, max_ratio=99.0))
    assert texts == [row[0].text for row in ours]
    answers = [[names[TARGET][index] for index in (5, 6, 4)] for _ in LINES]
    scored = translator.score_batch(requested, answers)
    for line, item in zip(LINES, scored, strict=True):
        assert item.log_probs == pytest.approx(log_probabilities(run, line, [5, 6, 4]), abs=2e-3)


def log_probabilities(run: Run, line: str, answer: list[int]) -> list[float]:
    """Of each token of an answer and of its end."""
    source = torch.tensor([[*run.tokenizers.encode("source", [line])[0], EOS]])
    with torch.no_grad():
        logits = run.model({"source": source}, torch.tensor([[BOS, *answer]]))
    logits[..., [PAD, BOS]] = -torch.inf
    result = logits.log_softmax(-1)[0].gather(-1, torch.tensor([*answer, EOS])[:, None])
    return result[:, 0].tolist()


def test_the_command_takes_no_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(tmp_path / "run", transformer())
    for words, status in (([], 0), (["decoding.beam.size=3"], 2)):
        with pytest.raises(SystemExit) as left:
            main.main(
                ["export", str(run), *words, "--ctranslate2", str(tmp_path / f"out-{status}")]
            )
        assert left.value.code == status
    assert (tmp_path / "out-0" / "model.bin").exists()
    assert not (tmp_path / "out-2").exists()
    assert "decoding.beam.size=3" in capsys.readouterr().err


def test_python_exports_a_folder_and_an_open_run(tmp_path: Path) -> None:
    run = made(tmp_path / "run", transformer())
    for index, source in enumerate((run, open_run(run))):
        assert (composer.export(source, tmp_path / str(index)) / "model.bin").exists()


def test_a_recipe_has_no_weights(tmp_path: Path) -> None:
    recipe = made(tmp_path / "run", transformer()) / "recipe.yaml"
    with pytest.raises(RunError, match="this is a file, and a run is a folder"):
        export_ctranslate2(recipe, tmp_path / "exported")


def test_the_folder_has_the_tokenizer(tmp_path: Path) -> None:
    run = made(tmp_path / "run", transformer())
    folder = export_ctranslate2(run, tmp_path / "exported")
    assert (folder / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()
    with pytest.raises(RunError, match="exists already"):
        export_ctranslate2(run, folder)


CROSS = "[{cross_attention: {heads: 2"
NAMED = transformer().replace("- norm", "- norm: {as: x}", 1)
FORWARD = ", {residual: [feed_forward]}"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (GRU, "not with `positions`"),
        (transformer(norm="none"), "residuals have no norm"),
        (transformer(norm="post"), "a norm after the last layer"),
        (
            transformer(more=", window: 4"),
            "`window` of `model.encoder.1.repeat.stack.0.residual.stack.0.",
        ),
        (transformer(more=", positions: rotary"), "`positions` of"),
        (transformer(more=", bias: false"), "`bias` of"),
        (transformer(more=", bias: qkv"), "`bias` of"),
        (transformer(more=", head_width: 4"), "`head_width` of"),
        (transformer(scale=0.7), "`scale` of"),
        (transformer(last="norm: rms"), "`kind` of"),
        (transformer().replace(CROSS, f"{CROSS}, score: dot"), "`score` of"),
        (transformer().replace(CROSS, f"{CROSS}, gate: true"), "`gate` of"),
        (NAMED.replace(CROSS, f"{CROSS}, from: encoder.x"), "does not read the encoder"),
        (transformer().replace(CROSS, CROSS.replace("2", "4")), "differ in `heads`: 2, 4"),
        (transformer().replace(FORWARD, ""), "expected a residual around one `feed_forward`"),
        (
            transformer().replace("times: 2", "times: 3").replace(FORWARD, "", 1),
            "do not make layers of 2",
        ),
    ],
)
def test_an_unsupported_model_is_refused(model: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(RunError) as raised:
        export_ctranslate2(made(tmp_path / "run", model), tmp_path / "exported")
    assert reason in raised.value.faults[0].message
    assert "seqcomposer translate RUN" in raised.value.faults[0].hint
    assert [item.name for item in tmp_path.iterdir() if "exported" in item.name] == []
