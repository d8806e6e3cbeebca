"""An imported BERT is an encoder that a recipe extends and a training starts from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertModel

import composer
from composer.errors import RunError
from composer.importers.import_run import import_model
from composer.inference.encoders import open_encoder
from composer.model.special_tokens import EOS, PAD
from tests.importers.published import LINES

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def save(folder: Path, size: int) -> BertModel:
    """Write a checkpoint of one of two sizes with random weights; return its model."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(
        LINES * 3, trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL)
    )
    torch.manual_seed(size)
    config = BertConfig(
        vocab_size=made.get_vocab_size(),
        hidden_size=32 + 16 * size,
        num_hidden_layers=2 + size,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=64,
    )
    model = BertModel(config, add_pooling_layer=size == 1).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.15)
    model.save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    return model


@pytest.mark.parametrize("size", [0, 1])
def test_hidden_states_are_theirs(size: int, tmp_path: Path) -> None:
    model = save(tmp_path / "theirs", size)
    run = open_encoder(import_model(tmp_path / "theirs", tmp_path / "ours"))
    theirs = Tokenizer.from_file(str(tmp_path / "theirs" / "tokenizer.json"))
    rows = [theirs.encode("[CLS]" + line + "[SEP]").ids for line in LINES]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    own = [torch.tensor([*row, EOS]) for row in run.tokenizers.encode("source", LINES)]
    source = torch.nn.utils.rnn.pad_sequence(own, batch_first=True, padding_value=PAD)
    assert torch.equal(source != PAD, mask.bool())
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state
        ours = run.model.encode({"source": source})["encoder"].states
    real = mask.bool()
    difference = (ours - expected)[real].abs().max() / expected.abs().max()
    assert difference < 1e-5


def test_a_training_starts_from_an_encoder(tmp_path: Path) -> None:
    save(tmp_path / "theirs", 0)
    folder = import_model(tmp_path / "theirs", tmp_path / "bert")
    record = json.loads((folder / "run.json").read_text())
    assert record["imported"]["source"] == str(tmp_path / "theirs")
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "mine.yaml").write_text(
        """recipe: 1
extends: bert/encoder.yaml
data:
  parallel: {train: {source: lines, target: lines}}
model: {decoder: [positions, residual: [cross_attention: {heads: 4}], norm]}
training: {max_steps: 1}
"""
    )
    run = composer.train(tmp_path / "mine.yaml", run=tmp_path / "run", start_from=folder)
    transferred = json.loads((tmp_path / "run" / "run.json").read_text())["transferred"]
    assert any(path.startswith("encoder.embedding") for path in transferred["taken"])
    assert not any(path.startswith("encoder") for path in transferred["new"])
    assert run is not None


def test_an_encoder_is_no_run(tmp_path: Path) -> None:
    save(tmp_path / "theirs", 0)
    folder = import_model(tmp_path / "theirs", tmp_path / "bert")
    with pytest.raises((RunError, composer.ComposerError)) as caught:
        composer.open_run(folder)
    assert len(caught.value.faults) == 1
