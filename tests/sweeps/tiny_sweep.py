"""A base and a sweep that train in seconds: replaced blocks, a range, values that are tied, a
condition.
"""

from __future__ import annotations

from pathlib import Path

BASE = """\
recipe: 1
vars: {width: 8, hidden: 16}
data:
  generate: {copy: {symbols: 6, max_length: 6, train: 40, val: 8, test: 8, test_lengths: [4]}}
  tokenizer: {word: {split: spaces, size: 12}}
model:
  width: ${width}
  encoder:
    - rnn: {cell: gru}
  decoder:
    - rnn: {cell: gru, initial_state: encoder}
    - residual: [{cross_attention: {heads: 2}}]
    - residual: [{feed_forward: {hidden: "${hidden}"}}]
training:
  optimizer: {adam: {learning_rate: 1e-3}}
  tokens_per_batch: 100
  max_steps: 4
  validate_every: 2
  seed: 7
decoding: {greedy: {max_length: 8}}
"""

SWEEP = """\
sweep: 1
name: tiny
base: base.yaml
axes:
  encoder: {replace: model.encoder..rnn, with: {recurrent: {rnn: {cell: gru}}, convolution: {conv: {kernel: 3}}}}
  attention: {replace: model.decoder..cross_attention, with: {dot: {cross_attention: {score: dot}}, none: identity}}
  rate: {set: training.optimizer.adam.learning_rate, log_uniform: [1e-4, 1e-2], when: encoder == "recurrent"}
  width: {set: vars.width, values: [8, 16, 512]}
  hidden: {set: vars.hidden, values: [24, 48, 96], zip: width}
where: parameters < 100K
search: {random: {trials: 3, seed: 3}}
prune: {hyperband: {min_steps: 3, reduction: 2}}
seeds: 2
rank: [{val/token_accuracy: max}, {parameters: min}]
"""


def write_sweep(folder: Path, text: str = SWEEP) -> Path:
    """The sweep's file, beside its base."""
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    (folder / "tiny.yaml").write_text(text, encoding="utf-8")
    return folder / "tiny.yaml"
