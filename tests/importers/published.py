"""Checkpoints as transformers writes them: every family at two sizes, with random weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from composer.data.audio import wav_file

LINES = [
    "hello world",
    "the quick brown fox jumps over the lazy dog",
    "how are you",
    "naïve café: 12 + 30 = 42",
]
TASK = ["<|en|>", "<|transcribe|>", "<|notimestamps|>"]
SPECIAL = ["<s>", "<pad>", "</s>", "<|other|>", *TASK]
BOS, PAD, EOS = 0, 1, 2
RATE = 16_000


@dataclass(frozen=True)
class Published:
    """A model of transformers.

    config: Of its small size. larger: What its other size has. generation: How it answers. hears:
    Its sources are sounds.
    """

    kind: str
    config: dict[str, Any]
    larger: dict[str, Any] = field(default_factory=dict)
    has_encoder: bool = False
    generation: dict[str, Any] = field(default_factory=dict)
    hears: bool = False

    def make(self, size: int) -> PreTrainedModel:
        """Return the model of one of two sizes, with weights that make answers differ."""
        torch.manual_seed(size)
        settings = self.config | (self.larger if size else {})
        ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
        config = AutoConfig.for_model(self.kind, **ids, **settings)
        auto = AutoModelForSeq2SeqLM if self.has_encoder else AutoModelForCausalLM
        if self.hears:
            auto = AutoModelForSpeechSeq2Seq
        model: PreTrainedModel = auto.from_config(config).eval()
        model.generation_config.update(**self.generation)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue  # the sinusoids of positions
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.15)
            elif name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.1)
            else:
                torch.nn.init.normal_(parameter, 1.0, 0.1)
        return model.requires_grad_(True)

    def source(self, line: str, folder: Path) -> str:
        """Return the source of a line: itself, or the name of a file with a sound."""
        if not self.hears:
            return line
        path, random = folder / f"{len(line)}.wav", np.random.default_rng(len(line))
        waves = random.normal(size=len(line) * 700) * np.sin(np.arange(len(line) * 700) / 900) / 5
        path.write_bytes(wav_file(waves, RATE))
        return str(path)


def tokenizer() -> Tokenizer:
    """Return a tokenizer of bytes with special tokens and a few merges."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet)
    made.train_from_iterator(LINES * 3, trainer)
    return made


TOKENIZER = tokenizer()
ROWS = TOKENIZER.get_vocab_size() + 3
"""Rows of embeddings: three more than tokens, as in many published models."""
DECODER = {"vocab_size": ROWS, "num_attention_heads": 4, "num_hidden_layers": 2}
PAIR = {
    "vocab_size": ROWS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "decoder_start_token_id": EOS,
}
LLAMA = {**DECODER, "hidden_size": 32, "intermediate_size": 48, "num_key_value_heads": 2}
LARGER = {"hidden_size": 48, "num_hidden_layers": 3, "num_key_value_heads": 4}
PUBLISHED = {
    "llama": Published(
        "llama",
        {**LLAMA, "tie_word_embeddings": True},
        {**LARGER, "head_dim": 16, "attention_bias": True, "mlp_bias": True},
    ),
    "llama3": Published(
        "llama",
        {
            **LLAMA,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
        {
            **LARGER,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "mistral": Published("mistral", {**LLAMA, "sliding_window": 5}, LARGER),
    "qwen2": Published("qwen2", LLAMA, {**LARGER, "tie_word_embeddings": True}),
    "gpt2": Published(
        "gpt2",
        {"vocab_size": ROWS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        {"n_embd": 48, "n_layer": 3, "n_inner": 50, "activation_function": "relu"},
    ),
    "bart": Published("bart", PAIR, {"d_model": 48, "scale_embedding": True}, has_encoder=True),
    "marian": Published(
        "marian",
        {**PAIR, "decoder_start_token_id": PAD, "scale_embedding": True},
        {"d_model": 48, "activation_function": "swish"},
        has_encoder=True,
    ),
    "t5": Published(
        "t5",
        {
            "vocab_size": ROWS,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_heads": 4,
            "num_layers": 2,
            "num_decoder_layers": 1,
            "relative_attention_max_distance": 20,
            "decoder_start_token_id": PAD,
        },
        {"d_model": 48, "d_kv": 12, "feed_forward_proj": "gated-gelu"},
        has_encoder=True,
    ),
    "whisper": Published(
        "whisper",
        {
            **PAIR,
            "decoder_start_token_id": BOS,
            "num_mel_bins": 20,
            "max_source_positions": 50,
            "max_target_positions": 64,
        },
        {"d_model": 48, "num_mel_bins": 80, "max_source_positions": 100},
        has_encoder=True,
        generation={"suppress_tokens": [5, 70, 71, 72, 260], "is_multilingual": True},
        hears=True,
    ),
}


def save(model: PreTrainedModel, folder: Path) -> PreTrainedTokenizerFast:
    """Write a model and its tokenizer as a checkpoint of several files; return the tokenizer."""
    model.save_pretrained(folder, max_shard_size="40KB")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZER, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)
    return fast
