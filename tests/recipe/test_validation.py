"""Every mistake that can be seen without a model: where it is told, what was meant, how to mend it."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer.errors import RecipeError
from composer.model.planner import plan
from composer.recipe.recipe import load, load_text
from composer.recipe.yaml_reader import dump, parse, to_data
from tests.laws.section_cases import recipe_of
from tests.small_recipes import SMALL, assert_fault, faults_of, loaded, places, refused

# one block in a decoder; the block begins in line 6, column 7
BLOCK = """recipe: 1
data: {generate: copy}
model:
  width: 64
  decoder:
    - @
"""

BLOCKS = [
    # what is written, where the fault is, what the message says, what the hint says
    ("transfomer", "6:7:unknown", "there is no block called `transfomer`", "the names are"),
    ("self_atention", "6:7:unknown", "did you mean `self_attention`?", "write `self_attention`"),
    ("self_atention: {heads: 2}", "6:7:unknown", "did you mean `self_attention`?", "write `self_attention`"),
    ("lstm", "6:7:unknown", "did you mean `rnn`?", "write `rnn: {cell: lstm}`"),
    ("gru: {width: 32}", "6:7:unknown", "did you mean `rnn`?", "write `rnn: {cell: gru}`"),
    (
        "residual: {concat: enc}",
        "6:18:unknown",
        "`concat` is a block",
        "write it into the stack: `stack: [concat: enc]`",
    ),
    ("repeat: {times: 2, norm: rms}", "6:26:unknown", "`norm` is a block", "`stack: [norm: rms]`"),
    ("self_attention: {haeds: 2}", "6:24:unknown", "has no setting `haeds`; did you mean `heads`?", "write `heads`"),
    ("identity: {heads: 2}", "6:18:unknown", "`identity` has no setting `heads`", "`as`"),
    ("self_attention: {heads: 4.0}", "6:31:type", "`4.0` is not a whole number", "write `4`"),
    ("self_attention: {heads: true}", "6:31:type", "`true` is not a number", "the default is `8`"),
    ("self_attention: {heads: '8'}", "6:31:type", "`8` is text", "write `8` without quotes"),
    ("self_attention: {heads: 1_000}", "6:31:type", "`1_000` is text", "write `1000`"),
    ("self_attention: {heads: 0}", "6:31:bound", "takes a whole number, 1 or more; `0` is too small", "default is `8`"),
    (
        "linear: {width: 100000000000000000000}",
        "6:23:bound",
        "at most 1000000; `100000000000000000000` is too large",
        "",
    ),
    ("repeat: {times: 9999999, stack: [norm]}", "6:23:bound", "(1 or more and at most 1000000) or `length`", ""),
    ("self_attention: {heads: 1000000000000}", "6:31:bound", "at most 1000000; `1000000000000` is too large", "8"),
    ("self_attention: {heads: null}", "6:31:type", "`null` is no value here", "8"),
    ("self_attention: {heads: }", "6:24:type", "there is nothing here", "8"),
    ("self_attention: {heads: [4]}", "6:31:type", "this is a list", "8"),
    ("self_attention: {heads: .inf}", "6:31:type", "`.inf` is not a finite number", "8"),
    ("dropout: 1.0", "6:16:bound", "`rate` of `dropout` takes a number, 0 or more and below 1", "below 1"),
    ("dropout: -0.1", "6:16:bound", "`-0.1` is too small", "0 or more"),
    ("dropout: .nan", "6:16:type", "`.nan` is not a finite number", "0 or more"),
    ("dropout: 1e999", "6:16:type", "`1e999` is not a finite number", "0 or more"),
    ("norm: rsm", "6:13:value", "`rsm` is not; did you mean `rms`?", "write `rms`"),
    ("norm: {kind: rsm}", "6:20:value", "one of `layer`, `rms`", "write `rms`"),
    ("rnn: {bidirectional: no}", "6:28:type", "takes `true` or `false`; `no` is text", "write `false`"),
    ("linear: {bias: 1}", "6:22:type", "takes `true` or `false`; `1` is a number", "write `true`"),
    ("linear: {as: 'a b'}", "6:20:type", "`as` takes a name of letters", "write `a_b`: a name begins with a letter"),
    ("linear: {as: 1st}", "6:20:type", "`1st` is not", "write `x1st`"),
    ("linear: {as: größe}", "6:20:type", "it has the character `ö`", "a name begins with a letter from a to z"),
    ("linear: {as: 3}", "6:20:type", "`3` is a number", "write `x3`"),
    ("repeat", "6:7:missing", "`repeat` needs `times`, `stack`", "write `repeat: {times: ..., stack: [...]}`"),
    (
        "repeat: 3",
        "6:15:type",
        "`repeat` takes a mapping; `3` is a number",
        "write `repeat: {times: ..., stack: [...]}`",
    ),
    ("repeat: {times: 2}", "6:7:missing", "`repeat` needs `stack`", "add `stack:`"),
    ("repeat:", "6:7:type", "`repeat` has nothing after its colon", "write `repeat: {times: ..., stack: [...]}`"),
    ("norm:", "6:7:type", "`norm` has nothing after its colon", "write `norm` without the colon"),
    ("residual: []", "6:7:empty", "a stack without blocks", "write `[identity]`"),
    ("residual: norm", "6:17:type", "takes a stack (a list of blocks); `norm` is text", "write `[norm]`"),
    ("residual: {norm: pre}", "6:7:missing", "`residual` needs `stack`", "add `stack:`"),
    ("norm: {}\n      dropout: 0.1", "7:7:exclusive", "`dropout` is a second block after `norm`", "begin a new item"),
    (
        "self_attention:\n      heads: 4",
        "7:7:exclusive",
        "`heads` is a setting of `self_attention`",
        "indent `heads` further",
    ),
    ("linear: {}\n      as: x", "7:7:exclusive", "`as` is a setting of `linear`", "write `linear: {..., as: ...}`"),
    ("linear: {}\n      widht: 3", "7:7:exclusive", "did you mean `width`?", "new item"),
    ("{type: rnn, width: 3}", "6:8:unknown", "a block has no `type`; its name is", "write `- rnn: {width: ...}`"),
    ("{type: rnn}", "6:8:unknown", "a block has no `type`", "write `- rnn`"),
    ("{}", "6:7:empty", "there is no block here", "write its name"),
    ("[norm]", "6:7:type", "a block is a name, or a name with settings; this is a list", "the names are"),
    ("5", "6:7:type", "`5` is a number", "the names are"),
    ("null", "6:7:type", "`null` is no value here", "the names are"),
    ("parallel: {branches: {a: []}, merge: sum}", "6:29:empty", "`a` is a stack without blocks", "identity"),
    ("parallel: {branches: {'a b': [norm]}}", "6:29:name", "`a b` cannot be a name", "write `a_b`"),
    ("parallel: {branches: {x2w: [norm], 2w: [norm]}}", "6:42:name", "`2w` cannot be a name", "write `xx2w`"),
    ("parallel: {branches: {x2w: [norm], 2: [norm]}}", "6:42:type", "a key is text, and this is `2`", "write `x2`"),
    ("parallel: {branches: {größe: [norm]}}", "6:29:name", "it has the character `ö` (U+00F6", "from a to z"),
    (
        "dropout: {rate: 0,1}",
        "6:25:type",
        "a key is text, and this is `1`",
        "a comma parts the items of a mapping: write `0.1`",
    ),
    (
        "rnn: {width: 1,024}",
        "6:22:type",
        "a key is text, and this is `024`",
        "write `1.024`, or `1024` if it parts thousands",
    ),
    ("parallel: {branches: [norm]}", "6:29:type", "a stack (a list of blocks); `norm` is text", "write `[norm]`"),
    ("parallel: {branches: [[nomr]]}", "6:30:unknown", "did you mean `norm`?", "write `norm`"),
    ("concat: {of: [1]}", "6:21:type", "an item of `of` takes text; `1` is a number", 'write `"1"`'),
    ("rnn: {initial_state: [a]}", "6:28:type", "takes text or `{copy: ...}`; this is a list", "the default is `zeros`"),
    (
        "repeat: {times: 0, stack: [norm]}",
        "6:23:bound",
        "a whole number (1 or more) or `length`; `0` is too small",
        "write a whole number (1 or more) or `length`",
    ),
    ("repeat: {times: lenght, stack: [norm]}", "6:23:value", "did you mean `length`?", "write `length`"),
    ("concat: 3", "6:15:type", "takes text or a list of texts; `3` is a number", 'write `"3"`'),
    ("conv2d: {kernel: 3}", "6:24:type", "a list of 2 whole numbers; `3` is a number", "write `[3, 3]`"),
    ("conv2d: {kernel: [3]}", "6:24:bound", "a list of 2 whole numbers; this has 1", "the default is `[3, 3]`"),
    ("parallel: {branches: 3}", "6:28:type", "takes a list of stacks or a mapping of names to stacks", "write a list"),
    ("self_attention: {mask: causal}", "6:24:unknown", "has no setting `mask`", "remove it: in a decoder it sees what"),
    ("mamba2: {bidirectional: true}", "6:16:unknown", "has no setting `bidirectional`", "it reads both ways"),
    ("self_attention: {head_dim: 8}", "6:24:unknown", "has no setting `head_dim`", "width divided by `heads`"),
    ("self_attention: {rope: true}", "6:24:unknown", "has no setting `rope`", "write `positions: rotary`"),
    ("self_attention: {positions: rope}", "6:35:value", "did you mean `rotary`?", "write `rotary`"),
    ("dropout: 10%", "6:16:type", "`10%` is text", "write `0.1`"),
    ("dropout: 0,1", "6:16:type", "`0,1` is text", "write `0.1`"),
    ("dropout: 0,001", "6:16:type", "`0,001` is text", "write `0.001`"),
    (
        "transformer: {layers: 6}",
        "6:7:unknown",
        "no block called `transformer`",
        "write `residual: [self_attention]` and",
    ),
    ("rnn: {initial_state: {cop: encoder.x}}", "6:29:unknown", "did you mean `copy`?", "write `copy`"),
]


@pytest.mark.parametrize(("block", "place", "message", "hint"), BLOCKS, ids=[item[0] for item in BLOCKS])
def test_an_invalid_block_is_refused(tmp_path: Path, block: str, place: str, message: str, hint: str) -> None:
    assert_fault(refused(tmp_path, BLOCK.replace("@", block))[0], place, message, hint)


SECTIONS = [
    # a line after SMALL, which has five lines; "-" in front takes a line of SMALL away
    ("trainig: {}", "6:1:unknown", "a recipe has no key `trainig`; did you mean `training`?", "write `training`"),
    ("optimizer: adam", "6:1:unknown", "a recipe has no key `optimizer`", "write it in `training.optimizer`"),
    (
        "training: {decoding: beam}",
        "6:12:unknown",
        "`training` has no key",
        "write it in `decoding`",
    ),
    ("training: {optimizer: adm}", "6:23:unknown", "no optimizer called `adm`; did you mean `adam`?", "adam"),
    (
        "training: {lr: 3}",
        "6:12:unknown",
        "`training` has no key `lr`",
        "write `optimizer: {adam: {learning_rate: 3}}`",
    ),
    ("training: {optimizer: sgd, lr: 3}", "6:28:unknown", "has no key `lr`", "`optimizer: {sgd: {learning_rate: 3}}`"),
    (
        "training: {optimizer: {sgd: {momentum: 0.9}}, lr: 3}",
        "6:47:unknown",
        "has no key `lr`",
        "write `optimizer: {sgd: {..., learning_rate: 3}}`",
    ),
    ("training: {optimizer: {lr: 3}}", "6:24:unknown", "no optimizer called `lr`", "{adam: {learning_rate: 3}}`"),
    (
        "training: {optimizer: {sgd: {}, lr: 3}}",
        "6:33:exclusive",
        "did you mean `learning_rate`?",
        "write `optimizer: {sgd: {learning_rate: 3}}`",
    ),
    ("lr: 3", "6:1:unknown", "a recipe has no key `lr`", "`training: {optimizer: {adam: {learning_rate: 3}}}`"),
    (
        "training: {warmup_steps: 9}",
        "6:12:unknown",
        "has no key `warmup_steps`",
        "write `schedule: {constant: {warmup_steps: 9}}`",
    ),
    ("beam_size: 4", "6:1:unknown", "a recipe has no key `beam_size`", "write `decoding: {beam: {size: 4}}`"),
    ("layers: 2", "6:1:unknown", "a recipe has no key `layers`", "remove it; allowed here: `recipe`"),
    ("clip: 1", "6:1:unknown", "a recipe has no key `clip`", "write it in `training.clip_norm`"),
    ("decoding: {num_beams: 4}", "6:12:unknown", "no way of decoding called `num_beams`", "write `beam: {size: 4}`"),
    ("decoding: {beam: {size: 4, width: 3}}", "6:28:unknown", "`beam` has no key `width`", "write `size`: it is the"),
    ("training: {max_tokens: 4}", "6:12:unknown", "did you mean `tokens_per_batch`?", "write `tokens_per_batch`"),
    ("training: {gradient_clipping: 1}", "6:12:unknown", "did you mean `clip_norm`?", "write `clip_norm`"),
    ("training: {save_every: 9}", "6:12:unknown", "`save_every`", "at each validation: write `validate_every: 9`"),
    ("training: {max_minutes: 5m}", "6:25:type", "`5m` is text", "write `5`"),
    ("training: {max_minutes: 2h}", "6:25:type", "`2h` is text", "write `120`"),
    ("training: {max_steps: 5k}", "6:23:type", "`5k` is text", "write `5000`"),
    ("training: {max_steps: 5m}", "6:23:type", "`5m` is text", "write a whole number, 1 or more"),
    ("training: {clip_norm: '1,5'}", "6:23:type", "`1,5` is text", "write `1.5`"),
    ("training: {checkpoints_gib: 10GB}", "6:29:type", "`10GB` is text", "write `10`"),
    ("training: {precision: fp16}", "6:23:value", "did you mean `16-mixed`?", "write `16-mixed`"),
    ("training: {precision: bf16}", "6:23:value", "did you mean `bf16-mixed`?", "write `bf16-mixed`"),
    ("trainer: {accelerator: cuda}", "6:24:value", "did you mean `gpu`?", "write `gpu`"),
    ("trainer: {gpus: 1}", "6:11:unknown", "did you mean `devices`?", "write `devices`"),
    ("  output: {tie: true}", "6:17:type", "`true` is a boolean", "`[target]`, `[source, target]`, or `[]` for none"),
    ("training: {warmup: 9}", "6:12:unknown", "has no key `warmup`", "write `schedule: {constant: {warmup_steps: 9}}`"),
    ("training: {optimizer: {adam: {lr: 1}}}", "6:31:unknown", "did you mean `learning_rate`?", "write `learn"),
    (
        "training: {optimizer: {adam: {}, sgd: {}}}",
        "6:34:exclusive",
        "`sgd` is a second optimizer after `adam`",
        "keep one",
    ),
    ("training: {optimizer: {adam: {eps: 1e-300}}}", "6:36:type", "`1e-300` is too small: float32 computes", "1e-09"),
    (
        "training: {clip_norm: 1e30}",
        "6:23:type",
        "`1e30` is too large: float32 computes with 1e-18 to",
        "write a number, above 0",
    ),
    (
        "training: {clip_norm: 1e-30}",
        "6:23:type",
        "`1e-30` is too small: float32 computes with",
        "write a number, above 0",
    ),
    ("training: {clip_norm: '1e30'}", "6:23:type", "`1e30` is text", "write a number, above 0"),
    ("training: {optimizer: {adam: {learning_rate: 0}}}", "6:46:bound", "a number, above 0; `0` is too small", "0.001"),
    ("training: {optimizer: {type: sgd}}", "6:24:unknown", "an optimizer has no `type`", "write `sgd`"),
    ("training: {schedule: [linear]}", "6:22:type", "a schedule is a name, or a name with settings", "the names are"),
    ("training: {max_steps: 4e3}", "6:23:type", "`4e3` is not a whole number", "write `4000`"),
    ("training: {seed: 18446744073709551616}", "6:18:bound", "at most 4294967295", ""),
    ("training: {clip_norm: }", "6:12:unused", "`clip_norm` has nothing after its colon", "remove it"),
    ("training:\n  max_steps:3", "7:3:syntax", "a space is missing after the `:`", "write `max_steps: 3`"),
    ("training:\n  max_steps\uff1a 3", "7:3:syntax", "is one word", "write `max_steps: 3`"),
    ("decoding:\n  -greedy", "7:3:syntax", "a space is missing after this `-`", "write `- greedy`"),
    ("training: {label_smoothing: 1}", "6:29:bound", "below 1; `1` is too large", "the default is `0.0`"),
    ("training: {seed: -1}", "6:18:bound", "0 or more; `-1` is too small", "more; the default is `1`"),
    ("training: {precision: ''}", "6:23:value", "; this is empty", "write one of them; the default is `32`"),
    ("training: {precision: '32'}", "6:23:value", "`32` is text", "write `32` without quotes"),
    ("training: {precision: 33}", "6:23:value", "one of `32`, `bf16-mixed`", "32"),
    ("training: {early_stopping: 3}", "6:28:type", "`early_stopping` takes a mapping", "patience"),
    ("training: {early_stopping: {metric: val/blue}}", "6:37:value", "did you mean `val/bleu`?", "write `val/bleu`"),
    ("training:", "6:1:type", "`training` has nothing after its colon", "remove the key"),
    ("trainer: {max_steps: 3}", "6:11:refused", "cannot be set under `trainer`", "`training.max_steps`"),
    ("trainer: {logger: false}", "6:11:refused", "`logger`", "write `logging`"),
    ("trainer: {devicse: 2}", "6:11:unknown", "did you mean `devices`?", "write `devices`"),
    ("decoding: beem", "6:11:unknown", "did you mean `beam`?", "write `beam`"),
    ("logging: {wandb: true}", "6:18:value", "a mapping such as `{project: ...}` or `false`; `true` is not", "`false`"),
    ("logging: {wandb: {mode: onlin}}", "6:25:value", "did you mean `online`?", "write `online`"),
    ("name: a/b", "6:7:type", "`a/b` is not", "letters, digits"),
    ("name: ../x", "6:7:type", "`../x` is not", "letters, digits"),
    ("name: .x", "6:7:type", "`.x` is not", "letters, digits"),
    ('name: "x\\n"', "6:7:type", "is not", "letters, digits"),
    ("name: 5", "6:7:type", "`5` is a number", 'write `"5"`'),
    (f"name: {'x' * 300}", "6:7:type", "too long: it has 300 characters", "write a name of at most 100 letters"),
    ("name: [x]", "6:7:type", "this is a list", "letters"),
    (
        "trainer: {devices: 0}",
        "6:20:bound",
        "`devices` takes `auto`, a whole number (1 or more) or a list of whole numbers; `0` is too small",
        "write 1 or more; the default is `auto`",
    ),
    ("trainer: {devices: 1000000000}", "6:20:bound", "too large", "write 1 or more and at most 128; the default"),
    (
        "trainer: {devices: [0, x]}",
        "6:24:type",
        "an item of `devices` takes a whole number, 0 or more; `x` is text",
        "write a whole number",
    ),
    (
        "trainer: {limit_val_batches: 1.5}",
        "6:30:bound",
        "a whole number (0 or more and at most 10000) or a number (0 or more and at most 1); `1.5` is too large",
        "write 0 or more and at most 1; the default is `1.0`",
    ),
    (
        "trainer: {deterministic: wran}",
        "6:26:value",
        "takes `true`, `false` or `warn`; `wran` is not; did you mean",
        "write `warn`",
    ),
    ("trainer: {deterministic: 1}", "6:26:type", "`1` is a number", "write `true`"),
    ("trainer: 3", "6:10:type", "takes a mapping; `3` is a number", "write `trainer: {accelerator: ...}`"),
    ("logging: {wandb: [a]}", "6:18:type", "this is a list", "write a mapping such as `{project: ...}` or `false`"),
    ("vars: [a]", "6:7:type", "takes a mapping; this is a list", "write `vars: {NAME: ...}`"),
    (
        "training: {optimizer: {adam: {learning_rate: 1e-2x}}}",
        "6:46:type",
        "takes a number, above 0; `1e-2x` is text",
        "write a number, above 0; the default is `0.001`",
    ),
]


@pytest.mark.parametrize(("line", "place", "message", "hint"), SECTIONS, ids=[item[0] for item in SECTIONS])
def test_an_invalid_section_is_refused(tmp_path: Path, line: str, place: str, message: str, hint: str) -> None:
    (fault,) = refused(tmp_path, f"{SMALL}{line}\n")
    assert_fault(fault, place, message, hint)


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        ("{train: a, val: b, unit: sentence}", "`sentence` is not", "write one of them; the default is `line`"),
        (
            "{train: '', val: b}",
            "a list of them or a mapping; this is empty",
            "write text, a list of them or a mapping",
        ),
    ],
)
def test_a_fix_of_a_text_says_what_to_write(tmp_path: Path, data: str, message: str, hint: str) -> None:
    (fault,) = refused(tmp_path, SMALL.replace("{generate: copy}", f"{{text: {data}}}"))
    assert fault.message.endswith(message)
    assert fault.hint == hint


def test_a_choice_without_its_setting_says_what_that_is(tmp_path: Path) -> None:
    (fault,) = refused(tmp_path, f"{SMALL}  output: {{kind: adaptive}}\n")
    assert fault.hint == "write `adaptive: {cutoffs: [...]}`: the first id of each cluster, ascending"


WHOLES = [
    ("recipe: 1\n", ["1:1:missing", "1:1:missing"]),
    (SMALL.replace("recipe: 1\n", ""), ["1:1:missing"]),
    (SMALL.replace("recipe: 1", "recipe: 2") + "unheard: of\n", ["1:9:version"]),
    (SMALL.replace("recipe: 1", "recipe: one"), ["1:9:type"]),
    (SMALL.replace("recipe: 1", "recipe: 1.0"), ["1:9:type"]),
    (SMALL.replace("recipe: 1", "recipe: true"), ["1:9:type"]),
    (SMALL.replace("generate: copy", "tokenizer: word"), ["2:1:missing"]),
    (SMALL.replace("copy}", "copy, hub: {id: x, target: y}}"), ["2:24:exclusive"]),
    (SMALL.replace("copy}", "{copy: {}, sort: {}}}"), ["2:29:exclusive"]),
    (SMALL.replace("copy}", "cpoy}"), ["2:18:unknown"]),
    (SMALL.replace("generate: copy", "parallel: {train: {source: a}}"), ["2:19:missing"]),
    (SMALL.replace("generate: copy", "parallel: {val: {target: a}}"), ["2:8:missing"]),
    (SMALL.replace("generate: copy", "parallel: {train: {taget: a}}"), ["2:19:missing"]),
    (SMALL.replace("generate: copy", "paralel: {}"), ["2:8:unknown"]),
    (SMALL.replace("decoder", "dcoder"), ["5:3:unknown"]),
    (SMALL.replace("width: 64", "width: 64\n  Width: 3"), ["5:3:unknown"]),
    (SMALL.replace("  width: 64\n", ""), ["3:1:missing"]),
    (SMALL.replace("[norm]", "[]"), ["5:3:empty"]),
    (SMALL.replace("[norm]", "{norm: {}}"), ["5:12:type"]),
    (SMALL.replace("[norm]", "norm"), ["5:12:type"]),
    (SMALL.replace("[norm]", ""), ["5:3:unused"]),
    (SMALL + "  encoder: [norm]\n  encoders: {a: [norm]}\n", ["7:3:exclusive"]),
    (SMALL + "  encoders: {a: [norm]}\n  encoder: [norm]\n", ["7:3:exclusive"]),
    (SMALL + "  residual: {stack: [norm]}\n", ["6:14:unknown"]),
    (SMALL + "  residual: [norm]\n", ["6:13:type"]),
    (SMALL + "  norm: {}\n", ["6:3:empty"]),
    (SMALL + "  linear: 5.5\n", ["6:11:type"]),
    (SMALL + "  stacks: {a: []}\n", ["6:12:empty"]),
    (SMALL + "  dropout: {rate: 0.1}\n", ["6:12:type"]),
    (SMALL.replace("64", "1000000000000"), ["4:10:bound"]),
    (SMALL.replace("copy}", "copy, tokenizer: {word: {size: 4}}}"), ["2:49:bound"]),
    (SMALL.replace("copy}", "copy, tokenizer: {word: {size: 1000000000000}}}"), ["2:49:bound"]),
    (SMALL.replace("copy}", "copy, tokenizer: {integers: {below: 2}}}"), ["2:54:bound"]),
    (SMALL.replace("copy}", "copy, tokenizer: {bits: {size: 64}}}"), ["2:49:bound"]),
]


@pytest.mark.parametrize(("text", "expected"), WHOLES)
def test_an_invalid_recipe_is_refused(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert places(refused(tmp_path, text)) == expected


def test_an_encoder_that_is_left_empty_is_no_language_model(tmp_path: Path) -> None:
    text = SMALL.replace("  decoder", "  encoder:\n  decoder")
    (fault,) = refused(tmp_path, text)
    assert_fault(fault, "5:3:unused", "`encoder` has nothing after its colon", "remove it, or give it a value")
    assert not loaded(tmp_path, text.replace("encoder:", "encoder: null")).model.encoder


@pytest.mark.parametrize(
    ("first", "place", "message", "fix"),
    [
        ("name: x", "1:1:missing", "a recipe begins with the version of its language", "`recipe: 1` as the first line"),
        ("recipe: 0", "1:9:value", "and the only one is 1; `0` is not", "write `recipe: 1`"),
        ("recipe: '1'", "1:9:type", "and the only one is 1; `1` is text", "write `recipe: 1`"),
        ("recipe: 1.0", "1:9:type", "and the only one is 1; `1.0` is a number", "write `recipe: 1`"),
        (
            "recipe: 7",
            "1:9:version",
            "written in version 7 of its language; this seqcomposer reads version 1",
            "install a newer seqcomposer",
        ),
    ],
)
def test_another_language_version_is_refused(tmp_path: Path, first: str, place: str, message: str, fix: str) -> None:
    (fault,) = refused(tmp_path, SMALL.replace("recipe: 1", first))
    assert_fault(fault, place, message, fix)


def test_a_file_of_a_newer_version_is_not_laid_under_another(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("# newer\nrecipe: 2\n", encoding="utf-8")
    (fault,) = refused(tmp_path, f"extends: base.yaml\n{SMALL}")
    assert (Path(fault.file).name, fault.line, fault.code) == ("base.yaml", 2, "version")


@pytest.mark.parametrize(
    ("data", "place", "message", "fix"),
    [
        (
            "text: {train: {file: a.txt, weight: 2}}",
            "2:44:type",
            "`weight` takes text or `{file: ...}`; `2` is a number",
            "write `train: [{file: ..., weight: ...}]`",
        ),
        (
            "text: {train: a.txt, val: 0}",
            "2:34:bound",
            "`0` is too small",
            "write how many documents are held out, or name a file",
        ),
        (
            "parallel: {train: {target: a}, val: 0.1}",
            "2:44:type",
            "`0.1` is not a whole number",
            "write how many are held out, such as `500`, not their share",
        ),
        ("parallel: {train: {target: a}, test: 10%}", "2:45:type", "`10%` is text", "not their share"),
        ("text: {train: {a: a.txt, b: 0}}", "2:36:type", "`0` is a number", "name a file"),
        (
            "text: {train: {a: a.txt, b: {file: b.txt, weight: 0}}}",
            "2:58:bound",
            "`weight` takes a number, above 0 and at most 1000; `0` is too small",
            "write a number above 0, or remove the file",
        ),
        (
            "text: {train: [a.txt, {file: b.txt, weight: -1}]}",
            "2:52:bound",
            "`weight` takes a number, above 0 and at most 1000; `-1` is too small",
            "write a number above 0, or remove the file",
        ),
        (
            "parallel: {train: [{source: a, target: b}, {source: a, target: b, weight: 0}]}",
            "2:82:bound",
            "`weight` takes a number, above 0 and at most 1000; `0` is too small",
            "write a number above 0, or remove the file",
        ),
        (
            "text: {train: [{file: a.jsonl, column: body}]}",
            "2:39:unknown",
            "`train` has no setting `column`",
            "write it in `data.text.column`; allowed here: `file`, `weight`",
        ),
        ("text: {train: [{file: b.txt, weight: true}]}", "2:45:type", "`true` is not a number", "the default is `1.0`"),
        ("text: {train: a.txt, column: 5}", "2:37:type", "`5` is a number", 'write `"5"`'),
        (
            "text: {train: a.txt}, tokenizer: their/tokenizer.json",
            "2:41:unknown",
            "no tokenizer called `their/tokenizer.json`",
            "write `tokenizer: {file: their/tokenizer.json}`",
        ),
    ],
)
def test_files_in_the_wrong_form_are_refused(tmp_path: Path, data: str, place: str, message: str, fix: str) -> None:
    (fault,) = refused(tmp_path, SMALL.replace("generate: copy", data))
    assert_fault(fault, place, message, fix)


@pytest.mark.parametrize(("key", "value"), [("column", "body"), ("unit", "file")])
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_setting_of_a_text_is_no_name_of_a_file(tmp_path: Path, split: str, key: str, value: str) -> None:
    text = {"train": "b.txt", split: {"file": "a.jsonl", key: value}}
    model = {"width": 16, "decoder": ["rnn"]}
    (fault,) = refused(tmp_path, dump({"recipe": 1, "data": {"text": text}, "model": model}))
    assert (fault.code, fault.path) == ("name", f"data.text.{split}.{key}")
    assert f"write it in `data.text.{key}`" in fault.hint
    assert "`[{file: ..., weight: ...}]`" in fault.hint
    text = {"train": "b.txt", split: {"file": "a.jsonl"}, key: value}
    loaded(tmp_path, dump({"recipe": 1, "data": {"text": text}, "model": model}))


@pytest.mark.parametrize("key", ["hop", "window"])
@pytest.mark.parametrize("rate", ["", "rate: 8000, ", "rate: 44100, "])
def test_a_frame_and_a_hop_have_a_sample_and_the_fix_is_accepted(tmp_path: Path, key: str, rate: str) -> None:
    sound = f"{{column: sound, kind: audio, {rate}features: {{log_mel: {{{key}: 0.00001}}}}}}"
    text = SMALL.replace("generate: copy", f"table: {{train: a.tsv, source: {sound}, target: text}}")
    (fault,) = refused(tmp_path, text)
    assert (fault.code, fault.path) == ("bound", f"data.table.source.features.log_mel.{key}")
    written = re.match(f"write `({key}: .*?)` or more", fault.hint)
    assert written
    load_text(text.replace(f"{key}: 0.00001", written[1]))


def test_pairs_have_no_state_to_carry(tmp_path: Path) -> None:
    """What says that there are no windows is `plan`, and its fix is no window."""
    assert loaded(tmp_path, SMALL + "training: {carry: true}\n").training.carry


FILES = "recipe: 1\ndata: {parallel: {train: @}}\nmodel: {width: 8, %, decoder: [norm]}\n"
AGREEMENT = [
    ("{source: a, target: b}", "encoder: [norm]", []),
    ("{target: b}", "dropout: 0.1", []),
    ("{source: a, target: b}", "dropout: 0.1", []),
    ("{target: b}", "encoder: [norm]", ["2:19:missing"]),
    ("{sorce: a, target: b}", "encoder: [norm]", ["2:27:unknown"]),
    ("{sorce: a, taget: b}", "encoder: [norm]", ["2:27:unknown", "2:37:unknown"]),
    ("{source: a, target: b, wieght: 2}", "encoder: [norm]", ["2:49:unknown"]),
    ("[{source: a, target: 3}, {source: a, target: b, x: 2}]", "encoder: [norm]", ["2:47:type", "2:74:unknown"]),
    ("{source: a, target: b}, val: [{sorce: a}]", "encoder: [norm]", ["2:55:type"]),
    ("{text: a, image: b, target: c}", "encoders: {text: [norm], image: [norm]}", []),
    ("{file: f.tsv, text: a, image: b, target: c}", "encoders: {text: [norm], image: [norm]}", []),
    ("{source: a, target: c}", "encoders: {text: [norm]}", ["2:19:missing", "2:27:unknown"]),
    ("{input: a, target: c}", "encoders: {input: [norm]}", ["3:30:name"]),
    ("{target: c}", "encoders: {target: [norm]}", ["3:30:name"]),
    ("{source: a, target: c}", "encoder: [norm], output: {tie: [source, traget]}", ["3:59:unknown"]),
    ("{target: c}", "output: {tie: [source]}", ["3:34:unknown"]),
]


@pytest.mark.parametrize(("split", "model", "expected"), AGREEMENT)
def test_data_and_encoders_agree(tmp_path: Path, split: str, model: str, expected: list[str]) -> None:
    text = FILES.replace("@", split).replace("%", model)
    if expected:
        assert places(refused(tmp_path, text)) == expected
    else:
        loaded(tmp_path, text)


def test_early_stopping_watches_a_metric_that_is_logged(tmp_path: Path) -> None:
    data = "recipe: 1\ndata: {hub: {id: x/y, target: de, val: null}}\nmodel: {width: 8, decoder: [rnn]}\n"
    text = f"{data}training:\n  early_stopping: {{metric: val/bleu}}\n"
    assert places(refused(tmp_path, text)) == ["5:28:metric"]
    assert places([*plan(loaded(tmp_path, text.replace("bleu", "loss"))).warnings]) == ["5:3:unused"]


def test_early_stopping_needs_a_validation(tmp_path: Path) -> None:
    text = FILES.replace("@", "{target: b}").replace(", %", "") + "training: {early_stopping: {patience: 2}}\n"
    assert places([*plan(loaded(tmp_path, text)).warnings]) == ["4:12:unused"]


VECTORS = """recipe: 1
data: {generate: vector_copy, tokenizer: @}
model:
  width: 8
  embedding: linear
  output: {kind: sigmoid, tie: [target]}
  encoder: [rnn]
  decoder: [rnn]
training: {early_stopping: {metric: val/bits_per_sequence}}
"""


def test_bits_need_vectors_and_share_no_matrix(tmp_path: Path) -> None:
    assert places(refused(tmp_path, VECTORS.replace("@", "char"))) == [
        "5:14:tie",
        "5:14:vectors",
        "6:18:tie",
        "6:18:vectors",
    ]
    assert places(refused(tmp_path, VECTORS.replace("@", "bits"))) == ["5:14:tie", "6:18:tie"]
    words = VECTORS.replace("@", "bits").replace("linear", "learned").replace("sigmoid", "linear")
    assert places(refused(tmp_path, words)) == ["9:37:metric"]


def test_answers_of_one_length_go_with_what_makes_them(tmp_path: Path) -> None:
    text = VECTORS.replace("@", "{bits: {size: 8}}").replace("{kind: sigmoid, tie: [target]}", "{kind: identity}")
    assert places(refused(tmp_path, text)) == ["6:18:missing", "9:37:metric"]
    text = text.replace("identity", "identity, length: 3").replace(
        "{early_stopping: {metric: val/bits_per_sequence}}", "{label_smoothing: 0.1}"
    )
    assert places(refused(tmp_path, text)) == ["6:18:value", "6:36:value"]


def test_all_faults_at_once_in_order(tmp_path: Path) -> None:
    text = "recipe: 1\ndat: {}\ndata: {generate: cpy}\nmodel:\n  width: x\n  decoder: [nrm, {norm: rmss}]\n"
    text += "training: {sed: 1}\n"
    assert places(refused(tmp_path, text)) == [
        "2:1:unknown",
        "3:18:unknown",
        "5:10:type",
        "6:13:unknown",
        "6:25:value",
        "7:12:unknown",
    ]


def test_paths_are_reported_as_the_recipe_writes_them(tmp_path: Path) -> None:
    text = BLOCK.replace("@", "repeat: {times: 2, stack: [{residual: [{residual: {stack: [{rnn: {cel: 1}}]}}]}]}")
    (fault,) = refused(tmp_path, text)
    assert fault.path == "model.decoder[0].repeat.stack[0].residual[0].residual.stack[0].rnn.cel"


def test_a_thousand_blocks_are_checked_quickly(tmp_path: Path) -> None:
    blocks = "\n".join("    - residual: [{self_attention: {heads: 4}}]" for _ in range(1000))
    loaded(tmp_path, SMALL)
    began = time.process_time()
    loaded(tmp_path, SMALL.replace("[norm]", f"\n{blocks}"))
    refused(tmp_path, SMALL.replace("[norm]", f"\n{blocks}\n    - nrm"))
    assert time.process_time() - began < 3


def test_the_deepest_nesting_is_checked(tmp_path: Path) -> None:
    loaded(tmp_path, SMALL.replace("[norm]", "[{residual: " * 30 + "[norm]" + "}]" * 30))


def test_a_typo_is_reported_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(SMALL.replace("norm", "nrm"))
    code = (
        "import sys, composer\n"
        "try: composer.load(sys.argv[1])\n"
        "except composer.RecipeError as error: faults = error.faults\n"
        "print(len(faults), *({'torch', 'pytorch_lightning'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r.yaml")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1"]


FULL = """recipe: 1
name: full
data:
  parallel: {train: {source: a, target: b}, val: {file: f, source: a, target: b}}
  tokenizer: {bpe: {size: 500, joint: true}}
model:
  width: 32
  dropout: 0.1
  residual: {norm: pre}
  encoder: [norm, {positions: learned}, {repeat: {times: 2, stack: [{residual: [{self_attention: 4}]}]}}]
  decoder:
    - rnn: {cell: gru, as: x, initial_state: {copy: encoder.x}}
    - parallel: {branches: {a: [norm], b: [{linear: 4}]}, merge: concat}
    - concat: [x, input]
    - use: y
  output: {tie: [source, target]}
  stacks: {y: [norm]}
training: {optimizer: {adam: 0.1}, schedule: cosine, max_steps: 3, early_stopping: {patience: 2}, precision: 32}
decoding: {beam: {size: 2}}
trainer: {devices: 1}
logging: {wandb: {tags: [a]}}
"""
JUNK = [
    None,
    True,
    0,
    -1,
    1.5,
    1e-05,
    float("nan"),
    10**30,
    "",
    "norm",
    "x y",
    "${w}",
    "null",
    "1_000",
    [],
    [[]],
    ["norm"],
    [None],
    {},
    {"a": 1},
    {"norm": {}},
    {"norm": None, "linear": 3},
    [{"residual": {"norm": "pre"}}],
    {"type": "rnn"},
]


def paths(data: Any) -> Iterator[tuple[Any, ...]]:
    """The path of every value."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (key,)
        yield from ((key, *inner) for inner in paths(value))


WHERE = list(paths(to_data(parse(FULL, "f"))))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(WHERE), st.sampled_from(JUNK), st.booleans()), min_size=1, max_size=3))
def test_junk_anywhere_is_refused_or_accepted(tmp_path: Path, changes: list[tuple[Any, Any, bool]]) -> None:
    data = to_data(parse(FULL, "f"))
    for path, junk, beside in changes:
        inner = data
        with contextlib.suppress(KeyError, IndexError, TypeError):
            for step in path[:-1]:
                inner = inner[step]
            inner[f"{path[-1]}x" if beside and isinstance(inner, dict) else path[-1]] = copy.deepcopy(junk)
    with contextlib.suppress(RecipeError):
        recipe = loaded(tmp_path, dump(data))
        assert recipe.fingerprints
        assert loaded(tmp_path, recipe.dump()).fingerprints == recipe.fingerprints
        for path in WHERE:
            recipe.fault("some", path, "wrong").render()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(WHERE),
    st.sampled_from([*map(str, JUNK), "[", "{a: b", "&x", "!t", "*x"]),
    st.sampled_from(["", ".x", "[0]"]),
)
def test_junk_on_the_command_line_is_refused_or_accepted(tmp_path: Path, path: Any, junk: str, more: str) -> None:
    with contextlib.suppress(RecipeError):
        loaded(tmp_path, FULL, [".".join(map(str, path)) + more + "=" + junk])


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("model.output.tie", "target"),
        ("logging.wandb.tags", "a"),
        ("trainer.devices", 0),
        ("data.generate.copy.test_lengths", 3),
        ("data.tokenizer.bits.marks", ";"),
        ("data.babi.tasks", 1),
        ("evaluation.metrics", "bleu"),
        ("extends", "base.yaml"),
    ],
)
def test_a_list_in_which_a_repetition_means_nothing_has_each_item_once(path: str, first: Any, tmp_path: Path) -> None:
    text, keys = json.dumps([first, first]), path.split(".")
    for key in reversed(keys):
        text = f"{{{key}: {text}}}"
    file = tmp_path / "recipe.yaml"
    file.write_text(f"recipe: 1\n{text[1:-1]}\n")
    with pytest.raises(RecipeError) as raised:
        load(file)
    (fault,) = [fault for fault in raised.value.faults if fault.code == "duplicate"]
    assert (fault.path, fault.line, fault.hint) == (f"{path}[1]", 2, "keep one")
    assert fault.message == f"`{first}` is listed twice"


def test_numbers_that_are_none_are_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("recipe: 1\ndata: {generate: {copy: {test_lengths: [.nan, .nan]}}}\n")
    with pytest.raises(RecipeError) as raised:
        load(tmp_path / "recipe.yaml")
    paths = [fault.path for fault in raised.value.faults if "not a finite number" in fault.message]
    assert paths == [f"data.generate.copy.test_lengths[{index}]" for index in (0, 1)]


def test_shares_and_names_to_add_may_be_repeated(tmp_path: Path) -> None:
    twice = "model.decoder=[{linear: {as: a}}, {add: [a, a]}, cross_attention]"
    recipe_of(tmp_path, "pairs", "training.schedule={staircase: {shares: [0.5, 0.5]}}", twice)


def test_of_very_many_mistakes_the_first_thousand_are_explained_within_seconds() -> None:
    text = SMALL + "".join(f"key{number}: 1\n" for number in range(5_000))
    began = time.process_time()
    faults = faults_of(lambda: load_text(text))
    assert time.process_time() - began < 10
    assert len(faults) == 1_001
    assert (faults[-1].code, faults[-1].line) == ("size", faults[-2].line)
    assert "more than 1,000 faults" in faults[-1].message


def test_misspelt_sides_are_reported_beside_misspelt_blocks() -> None:
    text = """recipe: 1
data: {parallel: {train: {sorce: a, target: b}}}
model: {widht: 8, encoder: [nrm], decoder: [nrm, cross_attention]}
"""
    faults = faults_of(lambda: load_text(text))
    assert [fault.path for fault in faults] == [
        "data.parallel.train.sorce",
        "model.widht",
        "model.encoder[0]",
        "model.decoder[0]",
    ]
    assert [fault.hint for fault in faults[2:]] == ["write `norm`"] * 2


def test_a_key_that_is_allowed_twice_is_listed_once() -> None:
    columns = "{train: a.tsv, target: c, picture: p}"
    text = f"recipe: 1\ndata: {{table: {columns}}}\nmodel: {{width: 8, encoders: {{train: [rnn]}}, decoder: [rnn]}}\n"
    with pytest.raises(RecipeError) as refusal:
        load_text(text)
    faults = {fault.path: fault for fault in refusal.value.faults}
    assert faults["data.table.picture"].hint.count("`train`") == 1


def test_an_encoder_is_not_called_as_a_key_of_the_hub_that_means_something_else() -> None:
    model = "model: {width: 8, encoders: {config: [rnn], text: [rnn]}, decoder: [rnn]}\n"
    with pytest.raises(RecipeError, match="`config` is reserved") as refusal:
        load_text(f"recipe: 1\ndata: {{hub: {{id: a/b, config: en, text: c, target: d}}}}\n{model}")
    assert [fault.path for fault in refusal.value.faults] == ["model.encoders.config"]
    load_text(f"recipe: 1\ndata: {{table: {{train: a.tsv, config: e, text: c, target: d}}}}\n{model}")
