"""An imported model computes what transformers computes, to the last digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import soundfile
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationMixin,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    WhisperFeatureExtractor,
)

import composer
from composer.errors import RunError
from composer.exporters.hugging_face import export_hugging_face
from composer.importers.checkpoint import Checkpoint, Tensors
from composer.importers.import_run import family_of, import_run
from composer.importers.vocabulary import NOWHERE, Vocabulary, read_vocabulary
from composer.inference.answers import read_lines
from composer.inference.decode import Row, decode_all
from composer.inference.methods import Beam, Greedy
from composer.inference.run import Run
from composer.model.special_tokens import BOS, EOS, PAD
from composer.recipe.choices import Decoder
from tests.importers.published import LINES, PUBLISHED, RATE, Published, save

pytestmark = pytest.mark.slow
TOLERANCE = 1e-5
"""Of differences, relative to the largest number."""


@dataclass(frozen=True)
class Pair:
    """A model of transformers and the run that was imported from it."""

    published: Published
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    folder: Path
    run: Run

    @cached_property
    def vocabulary(self) -> Vocabulary:
        checkpoint = Checkpoint(self.folder)
        roles = family_of(checkpoint).roles(checkpoint)
        return read_vocabulary(checkpoint, self.model.config.vocab_size, roles)

    def their_ids(self, ours: Tensor) -> Tensor:
        """Return their ids of ours; padding is theirs."""
        rows = torch.tensor(self.vocabulary.rows)[ours]
        return torch.where(ours == PAD, self.model.config.pad_token_id, rows)

    def sources(self, lines: Sequence[str]) -> list[str]:
        """Return the sources of lines, texts or names of files."""
        return [self.published.source(line, self.folder) for line in lines]

    def inputs(self, sources: Sequence[str]) -> dict[str, Tensor]:
        """Return what their encoder reads."""
        if self.published.hears:
            config = self.model.config
            extractor = WhisperFeatureExtractor(
                config.num_mel_bins, chunk_length=config.max_source_positions // 50
            )
            sounds = [soundfile.read(name, dtype="float32")[0] for name in sources]
            features = extractor(sounds, sampling_rate=RATE, return_tensors="pt")
            return {"input_features": features.input_features}
        ids = self.run.batch(sources, [""] * len(sources))["sources"]["source"]
        return {"input_ids": self.their_ids(ids), "attention_mask": (ids != PAD).long()}

    @property
    def possible(self) -> list[int]:
        """Our ids that can be an answer."""
        rows, impossible = self.vocabulary.rows, self.vocabulary.impossible
        return [at for at, row in enumerate(rows) if row != NOWHERE and at not in impossible]

    def logits(self) -> tuple[Tensor, Tensor]:
        """Return our logits of LINES, padded, and theirs: of real positions, possible tokens."""
        sources = self.sources(LINES)
        lines = (sources, LINES[::-1]) if self.published.has_encoder else (sources,)
        batch = self.run.batch(*lines)
        target = batch["target_in"]
        ours = self.run.model(batch["sources"], target)
        ids = self.their_ids(target)
        if self.published.has_encoder:
            theirs = self.model(**self.inputs(sources), decoder_input_ids=ids).logits
        else:
            theirs = self.model(input_ids=ids, attention_mask=(target != PAD).long()).logits
        rows = torch.tensor(self.vocabulary.rows)[self.possible]
        real = target != PAD
        return ours[real][:, self.possible], theirs[real][:, rows]


@pytest.fixture(
    scope="module",
    params=[(name, size) for name in PUBLISHED for size in (0, 1)],
    ids=lambda made: f"{made[0]}-{made[1]}",
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    name, size = request.param
    folder = tmp_path_factory.mktemp(name)
    model = PUBLISHED[name].make(size)
    tokenizer = save(model, folder / "theirs")
    run = composer.open_run(import_run(folder / "theirs", folder / "ours"))
    return Pair(PUBLISHED[name], model, tokenizer, folder / "theirs", run)


def test_the_way_out_is_the_way_in(pair: Pair, tmp_path: Path) -> None:
    if pair.published.hears:
        with pytest.raises(RunError, match="has this stack"):
            export_hugging_face(pair.run, tmp_path / "again")
        return
    folder = export_hugging_face(pair.run, tmp_path / "again")
    auto = AutoModelForSeq2SeqLM if pair.published.has_encoder else AutoModelForCausalLM
    model = auto.from_pretrained(folder).eval()
    lines = (LINES, LINES[::-1]) if pair.published.has_encoder else (LINES,)
    batch = pair.run.batch(*lines)
    target = batch["target_in"]
    inputs = {"input_ids": target, "attention_mask": (target != PAD).long()}
    if pair.published.has_encoder:
        source = batch["sources"]["source"]
        mask = (source != PAD).long()
        inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target}
    with torch.no_grad():
        ours, theirs = pair.run.model(batch["sources"], target), model(**inputs).logits
    real = target != PAD
    assert difference(ours[real][:, pair.possible], theirs[real][:, pair.possible]) < TOLERANCE
    read = AutoTokenizer.from_pretrained(folder)(lines[0])["input_ids"]
    side = batch["sources"]["source"] if pair.published.has_encoder else target
    assert read == [[index for index in row if index != PAD] for row in side.tolist()]
    assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors"}


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the largest number."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def test_logits_are_theirs(pair: Pair) -> None:
    with torch.no_grad():
        ours, theirs = pair.logits()
    assert difference(ours, theirs) < TOLERANCE
    assert difference(ours.log_softmax(-1), theirs.log_softmax(-1)) < TOLERANCE


def test_gradients_are_theirs(pair: Pair, tmp_path: Path) -> None:
    ours, logits = pair.logits()
    weights = torch.linspace(-1, 1, logits.numel()).view_as(logits)
    (ours * weights).sum().backward()
    (logits * weights).sum().backward()
    gradients = {
        name: parameter.grad
        for name, parameter in pair.model.named_parameters()
        if parameter.grad is not None
    }
    ones = {name: torch.ones_like(gradient) for name, gradient in gradients.items()}
    # ours are theirs times factors, c: a gradient is theirs divided by c
    expected, factors = (imported(pair, tmp_path, tensors) for tensors in (gradients, ones))
    compared = 0
    for name, parameter in pair.run.model.named_parameters():
        if name.startswith(("embedding", "encoders.source.embedding", "output")):
            continue  # rows of ours may share one of theirs
        if name.endswith("relative.bias"):
            continue  # layers share theirs
        factor, gradient = factors[name], parameter.grad
        assert gradient is not None
        used = factor != 0  # theirs may lack a bias
        if used.any():
            theirs = expected[name][used] / factor[used]
            assert difference(gradient[used] * factor[used], theirs) < 1e-4, name
            compared += 1
    assert compared > 10


def imported(pair: Pair, folder: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of theirs by our names."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_bytes((pair.folder / "config.json").read_bytes())
    checkpoint = Checkpoint(folder)
    rows = pair.model.config.vocab_size
    return family_of(checkpoint).weights(Tensors(checkpoint), pair.vocabulary, rows)


def answer_ids(run: Run, row: Row, decoding: Decoder) -> list[int]:
    """Return the ids of our answer to a row, without bos."""
    ((best, *_),) = decode_all([run.model], [row], decoding)
    return [*best.ids, *([EOS] if best.ended else [])]


@pytest.mark.parametrize("beam", [1, 4])
def test_answers_are_theirs(pair: Pair, beam: int) -> None:
    own, length = pair.run, 12
    settings = {"max_length": length, "max_ratio": 100.0}
    for line in pair.sources(LINES):
        (row,) = read_lines(own.recipe, own.tokenizers, [(line,)]).rows
        if pair.published.has_encoder:
            begun = torch.tensor([[BOS, *row.prefix]])
            inputs = {**pair.inputs([line]), "decoder_input_ids": pair.their_ids(begun)}
        else:
            target = own.batch([line])["target_in"]
            inputs = {"input_ids": pair.their_ids(target)}
        theirs = GenerationMixin.generate(
            pair.model,
            **inputs,
            max_new_tokens=length,
            num_beams=beam,
            do_sample=False,
            length_penalty=0.0,
            forced_eos_token_id=None,
            forced_bos_token_id=None,
        )[0]
        decoding = (
            Greedy(**settings) if beam == 1 else Beam(size=beam, length_penalty=0.0, **settings)
        )
        ours = answer_ids(own, row, decoding)
        expected = theirs[1:].tolist()
        mapped = [pair.vocabulary.rows[at] for at in ours]
        assert mapped == expected, line
