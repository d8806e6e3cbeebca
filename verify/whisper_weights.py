"""Import published weights of Whisper, and measure how they hear.

    python -m verify.whisper_weights model.bin --tokenizer tokenizer.json --settings config.json \\
        [--digits DIR] [--text FILE] [--count 60] [--folder DIR]

The weights are those of CTranslate2, as packages with Whisper have them; parts of a file are named
in their order. They become a checkpoint as transformers reads it, and that a run. Printed are the
largest difference of logits from transformers, the answers that differ from its greedy ones, and
word error rates: of spoken digits (`--digits`: a folder with `manifest.tsv` and `recordings`, of
the Free Spoken Digit Dataset), and of sentences, lines of `--text`, that espeak-ng speaks in many
voices. Texts are compared as in Radford et al. 2022, appendix C: in lower case, without marks,
numbers as digits. Exit status 1 if a logit differs by more than 1e-4 of the largest.
"""

from __future__ import annotations

import argparse
import csv
import json
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import soundfile
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationMixin, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

import composer
from composer.importers.checkpoint import Checkpoint
from composer.importers.import_run import family_of, import_run
from composer.importers.vocabulary import NOWHERE, read_vocabulary
from composer.importers.whisper import MULTILINGUAL_ROWS, RATE
from composer.inference.run import Run
from composer.metrics.references import error_rate
from prepare_data.spoken_sentences import VOICES, speak_sentences

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
"""Types of numbers by their id in a file of CTranslate2 (`include/ctranslate2/types.h`)."""
VERSION, KIND = 6, "WhisperSpec"
"""Of the layout that is read here, and of the model (`src/models/model.cc`)."""
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TOLERANCE = 1e-4


class Spoken(NamedTuple):
    """A file with a sound, and what is said in it."""

    file: str
    text: str


class Reader:
    """A file of CTranslate2: little-endian numbers, and texts with their length."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def take(self, count: int) -> bytes:
        """Return the next bytes; ValueError where the file ends before."""
        taken = self.content[self.at : self.at + count]
        if len(taken) != count:
            raise ValueError("the file is cut off")
        self.at += count
        return taken

    def number(self, kind: str) -> int:
        """Return a number of a kind of `struct`."""
        (value,) = struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))
        return int(value)

    def text(self) -> str:
        """Return a text, which ends with a zero."""
        return self.take(self.number("H"))[:-1].decode()


def read_variables(content: bytes) -> dict[str, np.ndarray]:
    """Return the variables of a model by name; ValueError for another layout.

    Rows of int8 have a scale of their own, which divides them.
    """
    reader = Reader(content)
    version, kind, _ = reader.number("I"), reader.text(), reader.number("I")
    if (version, kind) != (VERSION, KIND):
        raise ValueError(f"this is {kind} of version {version}, not {KIND} of {VERSION}")
    variables: dict[str, np.ndarray] = {}
    for _ in range(reader.number("I")):
        name = reader.text()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        kind_of_numbers = TYPES[reader.number("B")]
        values = np.frombuffer(reader.take(reader.number("I")), kind_of_numbers)
        variables[name] = values.reshape(shape)
    for _ in range(reader.number("I")):
        copy, original = reader.text(), reader.text()
        variables[copy] = variables[original]
    for name in [name for name in variables if f"{name}_scale" in variables]:
        scale = variables[f"{name}_scale"]
        variables[name] = variables[name] / scale.reshape(-1, *[1] * (variables[name].ndim - 1))
    return variables


class Renamed:
    """The variables by the names of transformers, in float32.

    before: Of CTranslate2, (outputs, inputs) as theirs; the queries, keys and values of an
    attention are rows of one matrix. tensors: Those that are renamed.
    """

    def __init__(self, variables: Mapping[str, np.ndarray]) -> None:
        self.before, self.tensors = variables, dict[str, Tensor]()

    def take(self, old: str, new: str) -> None:
        """Rename a variable."""
        self.tensors[f"model.{new}"] = torch.from_numpy(self.before[old].astype(np.float32))

    def norm(self, old: str, new: str) -> None:
        """Rename gain and bias of a layer norm."""
        self.take(f"{old}/gamma", f"{new}.weight")
        self.take(f"{old}/beta", f"{new}.bias")

    def linear(self, old: str, *new: str) -> None:
        """Rename a linear map, or the parts of one that is several; that of keys has no bias."""
        for kind in ("weight", "bias"):
            joined = torch.from_numpy(self.before[f"{old}/{kind}"].astype(np.float32))
            for name, part in zip(new, joined.chunk(len(new)), strict=True):
                if not (name.endswith("k_proj") and kind == "bias"):
                    self.tensors[f"model.{name}.{kind}"] = part.contiguous()

    def attention(self, old: str, new: str, *groups: str) -> None:
        """Rename an attention with its norm. groups: Maps of each matrix, such as `qkv`."""
        self.norm(f"{old}/layer_norm", f"{new}_layer_norm")
        for number, group in enumerate(groups):
            self.linear(f"{old}/linear_{number}", *(f"{new}.{part}_proj" for part in group))
        self.linear(f"{old}/linear_{len(groups)}", f"{new}.out_proj")

    def layer(self, side: str, number: int) -> None:
        """Rename a layer of the encoder or the decoder."""
        old, new = f"{side}/layer_{number}", f"{side}.layers.{number}"
        self.attention(f"{old}/self_attention", f"{new}.self_attn", "qkv")
        if side == "decoder":
            self.attention(f"{old}/attention", f"{new}.encoder_attn", "q", "kv")
        self.norm(f"{old}/ffn/layer_norm", f"{new}.final_layer_norm")
        self.linear(f"{old}/ffn/linear_0", f"{new}.fc1")
        self.linear(f"{old}/ffn/linear_1", f"{new}.fc2")


def their_tensors(variables: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the variables by the names of transformers, in float32."""
    renamed = Renamed(variables)
    renamed.take("decoder/embeddings/weight", "decoder.embed_tokens.weight")
    for name in ("conv1", "conv2"):
        renamed.linear(f"encoder/{name}", f"encoder.{name}")
    for side in ("encoder", "decoder"):
        renamed.take(f"{side}/position_encodings/encodings", f"{side}.embed_positions.weight")
        renamed.norm(f"{side}/layer_norm", f"{side}.layer_norm")
        for number in range(count_layers(variables, side)):
            renamed.layer(side, number)
    return renamed.tensors


def count_layers(variables: Mapping[str, np.ndarray], side: str) -> int:
    """Return the layers of the encoder or the decoder."""
    names = {name.split("/")[1] for name in variables if name.startswith(f"{side}/layer_")}
    return len(names - {"layer_norm"})


def write_checkpoint(content: bytes, tokenizer: Path, settings: Path, folder: Path) -> None:
    """Write a model of CTranslate2 as a checkpoint of transformers."""
    folder.mkdir(parents=True)
    variables, own = read_variables(content), json.loads(settings.read_text())
    rows, width = variables["decoder/embeddings/weight"].shape
    ids = {
        token["content"]: token["id"] for token in json.loads(tokenizer.read_text())["added_tokens"]
    }
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    roles = {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
    }
    config = {
        "model_type": "whisper",
        "vocab_size": rows,
        "d_model": width,
        "num_mel_bins": variables["encoder/conv1/weight"].shape[1],
        "max_source_positions": len(variables["encoder/position_encodings/encodings"]),
        "max_target_positions": len(variables["decoder/position_encodings/encodings"]),
        **roles,
    }
    for side in ("encoder", "decoder"):
        config[f"{side}_layers"] = count_layers(variables, side)
        config[f"{side}_attention_heads"] = int(variables[f"{side}/num_heads"])
        config[f"{side}_ffn_dim"] = len(variables[f"{side}/layer_0/ffn/linear_0/bias"])
    generation = {
        **roles,
        "is_multilingual": rows >= MULTILINGUAL_ROWS,
        "suppress_tokens": own["suppress_ids"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    save_file(their_tensors(variables), folder / "model.safetensors", {"format": "pt"})


def spoken_digits(folder: Path, count: int) -> list[Spoken]:
    """Return recordings of the test part, evenly spaced."""
    with (folder / "manifest.tsv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["split"] == "test"]
    chosen = rows[:: max(1, len(rows) // count)][:count]
    return [
        Spoken(str(folder / "recordings" / row["file"]), DIGITS[int(row["digit"])])
        for row in chosen
    ]


def spoken_sentences(text: Path, count: int, folder: Path) -> Iterator[Spoken]:
    """Yield lines of a text in the voices of the test part."""
    lines = text.read_text(encoding="utf-8").splitlines()[:count]
    for number, (content, (line, _)) in enumerate(speak_sentences(lines, VOICES["test"], [1])):
        path = folder / f"{number}.wav"
        path.write_bytes(content)
        yield Spoken(str(path), line)


def compare(run: Run, folder: Path, spoken: Sequence[Spoken]) -> float:
    """Print how a run differs from transformers on sounds; return the difference of logits."""
    model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    checkpoint = Checkpoint(folder)
    roles = family_of(checkpoint).roles(checkpoint)
    vocabulary = read_vocabulary(checkpoint, model.config.vocab_size, roles)
    rows = torch.tensor(vocabulary.rows)
    impossible = set(vocabulary.impossible)
    possible = [at for at, row in enumerate(rows) if row != NOWHERE and at not in impossible]
    extractor = WhisperFeatureExtractor(model.config.num_mel_bins)
    largest, differing = 0.0, 0
    for sound, ours in zip(spoken, run.translate([it.file for it in spoken]), strict=True):
        batch = run.batch([sound.file], [sound.text])
        frames = batch["sources"]["source"]  # (1, S, F)
        if soundfile.info(sound.file).samplerate == RATE:
            samples, _ = soundfile.read(sound.file, dtype="float32")
            features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        else:  # transformers resamples nothing
            features = frames.transpose(1, 2)
        with torch.inference_mode():
            logits = run.model(batch["sources"], batch["target_in"])
            theirs = model(features, decoder_input_ids=rows[batch["target_in"]]).logits
            begun = rows[batch["target_in"]][:, : 1 + len(run.tokenizers.beginning("target"))]
            answer = GenerationMixin.generate(
                model, features, decoder_input_ids=begun, max_new_tokens=100, num_beams=1
            )
        scale = float(theirs.abs().max())
        difference = (logits[..., possible] - theirs[..., rows[possible]]).abs().max()
        largest = max(largest, float(difference) / scale)
        ids = [vocabulary.rows.index(row) for row in answer[0, begun.shape[1] :].tolist()]
        (text,) = run.tokenizers.decode("target", [ids])
        differing += text.strip() != ours.strip()
    print(
        f"{len(spoken)} sounds: logits differ by {largest:.1e} of the largest, {differing} answers"
    )
    return largest


def measure(run: Run, name: str, spoken: Sequence[Spoken]) -> None:
    """Print the word error rate of a run, and what it hears in the first sounds.

    Where greedy answers go round in circles one answer has more errors than all others: the rate
    without those that do not end is printed, too.
    """
    answers = run.translate([it.file for it in spoken], scores=True)
    for sound, answer in zip(spoken[:3], answers, strict=False):
        print(f"  {sound.text!r} is heard as {answer.text.strip()!r}")
    normalize = EnglishTextNormalizer({})
    heard = [normalize(answer.text) for answer in answers]
    said = [normalize(sound.text) for sound in spoken]
    ended = [at for at, answer in enumerate(answers) if answer.ended]
    rate = error_rate("wer")(heard, [said])
    print(f"{name}: {len(spoken)} sounds, word error rate {rate:.1%}")
    if len(ended) < len(answers):
        rate = error_rate("wer")([heard[at] for at in ended], [[said[at] for at in ended]])
        print(f"  {len(ended)} answers end, word error rate {rate:.1%}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--compared", type=int, default=4, help="sounds compared one by one")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        content = b"".join(path.read_bytes() for path in arguments.weights)
        write_checkpoint(content, arguments.tokenizer, arguments.settings, folder / "whisper")
        run = composer.open_run(import_run(folder / "whisper", folder / "run"))
        sets: dict[str, list[Spoken]] = {}
        if arguments.digits:
            sets["digits"] = spoken_digits(arguments.digits, arguments.count)
        if arguments.text:
            sentences = spoken_sentences(arguments.text, arguments.count, folder)
            sets["sentences"] = list(sentences)
        largest = 0.0
        for name, spoken in sets.items():
            largest = max(largest, compare(run, folder / "whisper", spoken[: arguments.compared]))
            measure(run, name, spoken)
    return int(largest > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
