"""Tokenizers of other models: their tokens are those of their own library, and a file at fault is
one clear error.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from composer.data import documents
from composer.data.encoding import load_data
from composer.data.pairs import TARGET
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers, tokenizer_kind
from composer.data.tokenizer_files import is_exponential
from composer.errors import RecipeError, RunError
from composer.fingerprint import fingerprints
from composer.model.builder import vocabulary_bounds
from composer.model.special_tokens import UNK
from composer.recipe.recipe import load
from tests.data.conftest import Make
from tests.data.test_corpora import check_pieces

LINES = [
    f"the {noun} was  not {verb}, said number {number}"
    for number, noun in enumerate(["dog", "company", "man"] * 9)
    for verb in ("running", "sold", "going to buy")
]
SPECIAL = "<|end|> [CLS] [PAD] </s> <pad> <unk> ⟨pad⟩ ⟨unk⟩ \U0010ffff⟨bos⟩"
LM = {"decoder": ["rnn"]}


def gpt2() -> Tokenizer:
    part = Tokenizer(models.BPE())
    part.pre_tokenizer, part.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    part.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {
        "special_tokens": ["<|end|>"],
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    part.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=300, **options))
    part.add_tokens(["  "])
    return part


def bert() -> Tokenizer:
    part = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    part.normalizer, part.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    part.decoder = decoders.WordPiece()
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    part.train_from_iterator(
        LINES, trainers.WordPieceTrainer(vocab_size=80, special_tokens=tokens, show_progress=False)
    )
    part.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    part.enable_truncation(4)
    part.enable_padding(length=50)
    return part


def t5() -> Tokenizer:
    part = Tokenizer(models.Unigram())
    part.normalizer, part.decoder = normalizers.NFKC(), decoders.Metaspace()
    part.pre_tokenizer = pre_tokenizers.Metaspace()
    options: dict[str, Any] = {"special_tokens": ["<pad>", "</s>", "<unk>"], "unk_token": "<unk>"}
    part.train_from_iterator(
        LINES, trainers.UnigramTrainer(vocab_size=70, show_progress=False, **options)
    )
    return part


TRAINED: dict[str, Callable[[], Tokenizer]] = {"gpt2.json": gpt2, "bert.json": bert, "t5.json": t5}
NAMES = [*TRAINED, "unigram.model", "bpe.model"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of every kind, each trained by its own library."""
    folder = tmp_path_factory.mktemp("files")
    for name, train in TRAINED.items():
        train().save(str(folder / name))
    for kind in ("unigram", "bpe"):
        model = io.BytesIO()
        options = {"vocab_size": 40, "model_type": kind, "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_writer=model, **options
        )
        (folder / f"{kind}.model").write_bytes(model.getvalue())
    return folder


def read(path: Path) -> Tokenizers:
    settings = {"file": {"path": path.name}}
    kind = tokenizer_kind(settings).with_folders([path.parent])
    return Tokenizers(kind, settings, False, {"target": 0}, tuple(kind.train({"target": []})))


@pytest.fixture(scope="module")
def opened(folder: Path) -> dict[str, Tokenizers]:
    return {name: read(folder / name) for name in NAMES}


def own_tokens(path: Path, text: str) -> list[str]:
    if path.suffix == ".model":
        return sentencepiece.SentencePieceProcessor(model_file=str(path)).encode(text, out_type=str)
    part = Tokenizer.from_file(str(path))
    part.no_truncation()
    part.no_padding()
    return part.encode(text, add_special_tokens=False).tokens


@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_are_those_of_the_files_own_library(
    name: str, folder: Path, opened: dict[str, Tokenizers]
) -> None:
    tokenizers = opened[name]
    names = tokenizers.vocabulary(TARGET)
    for line in LINES:
        (ids,) = tokenizers.encode(TARGET, [line])
        assert [names[index] for index in ids] == own_tokens(folder / name, line)
        expected = line if name in ("gpt2.json", "t5.json") else " ".join(line.split())
        assert tokenizers.decode(TARGET, [[1, *ids, 2, 0]])[0].replace(" ,", ",") == expected


@given(text=st.text(max_size=30) | st.sampled_from([SPECIAL, SPECIAL.replace(" ", "")]))
@settings(max_examples=60, deadline=None)
def test_no_text_is_read_as_a_special_token(opened: dict[str, Tokenizers], text: str) -> None:
    for name, tokenizers in opened.items():
        (ids,) = tokenizers.encode(TARGET, [text])
        assert all(UNK <= index < tokenizers.sizes[TARGET] for index in ids)
        if name == "gpt2.json":
            assert UNK not in ids
            assert tokenizers.decode(TARGET, [ids]) == [text.replace("\U0010ffff", "\ufffd")]


@pytest.mark.parametrize("name", NAMES)
def test_a_long_document_has_the_same_tokens_in_pieces(
    name: str, opened: dict[str, Tokenizers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PIECE", 40)
    check_pieces(opened[name], list(documents.cut(" ".join(LINES))), " ".join(LINES))


@pytest.mark.parametrize("text", ["dogcat" * 40, "dog\ncat\n" * 30])
@pytest.mark.parametrize("name", NAMES)
def test_a_document_that_is_cut_within_words_has_the_same_text(
    name: str, text: str, opened: dict[str, Tokenizers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PIECE", 40)
    pieces = [piece.text for piece in documents.cut(text)]
    rows = opened[name].encode_pieces(TARGET, pieces, [at > 0 for at in range(len(pieces))])
    together, whole = (
        [index for row in rows for index in row],
        opened[name].encode(TARGET, [text])[0],
    )
    # a word that `bert.json` does not know is one token, and so is each of its parts
    if UNK not in whole:
        assert opened[name].decode(TARGET, [together]) == opened[name].decode(TARGET, [whole])


def test_special_tokens_of_the_file_have_no_ids(
    folder: Path, opened: dict[str, Tokenizers]
) -> None:
    for name, missing in zip(NAMES, (1, 4, 3, 3, 3), strict=True):
        own = folder / name
        size = (
            sentencepiece.SentencePieceProcessor(model_file=str(own)).get_piece_size()
            if own.suffix == ".model"
            else Tokenizer.from_file(str(own)).get_vocab_size()
        )
        assert opened[name].sizes[TARGET] == 4 + size - missing
    names = opened["bert.json"].vocabulary(TARGET)
    assert not {"[PAD]", "[UNK]", "[CLS]"} & {*names}
    assert opened["t5.json"].decode(TARGET, opened["t5.json"].encode(TARGET, ["dog ≠"])) == [
        "dog ⟨unk⟩"
    ]
    assert opened["bpe.model"].decode(TARGET, opened["bpe.model"].encode(TARGET, ["dog ≠"])) == [
        "dog ⟨unk⟩"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_needs_no_file(
    name: str, folder: Path, opened: dict[str, Tokenizers], make: Make, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / name).write_bytes((folder / name).read_bytes())
    recipe = make({"text": {"train": "a.txt"}, "tokenizer": {"file": name}}, LM)
    data = load_data(recipe, [tmp_path])
    assert vocabulary_bounds(recipe) == data.tokenizers.sizes == opened[name].sizes
    (tmp_path / "run").mkdir()
    data.tokenizers.save(tmp_path / "run" / "tokenizer.json")
    (tmp_path / "run" / "recipe.yaml").write_text(recipe.dump())
    (tmp_path / name).unlink()
    stored = load(tmp_path / "run" / "recipe.yaml", data_dir=tmp_path)
    loaded = Tokenizers.load(tmp_path / "run" / "tokenizer.json")
    assert loaded.text == data.tokenizers.text
    assert loaded.encode(TARGET, LINES) == data.tokenizers.encode(TARGET, LINES)
    assert loaded.decode(TARGET, loaded.encode(TARGET, LINES)) == data.tokenizers.decode(
        TARGET, data.tokenizers.encode(TARGET, LINES)
    )
    assert vocabulary_bounds(stored) == loaded.sizes
    assert (
        load_data(stored, [tmp_path], loaded).splits["train"].sha256 == data.splits["train"].sha256
    )


def test_the_content_counts_in_the_fingerprint_and_not_the_name(
    folder: Path, make: Make, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES), encoding="utf-8")

    def fingerprint(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return fingerprints(make({"text": {"train": "a.txt"}, "tokenizer": {"file": name}}, LM))[
            "data"
        ]

    first, other = (folder / "gpt2.json").read_bytes(), (folder / "t5.json").read_bytes()
    assert (
        fingerprint("x.json", first) == fingerprint("y.json", first) != fingerprint("x.json", other)
    )


def damaged(content: dict[str, Any], **model: Any) -> bytes:
    return json.dumps({**content, "model": {**content["model"], **model}}).encode()


FAULTS: dict[str, tuple[str, Callable[[dict[str, Any]], bytes], str]] = {
    "cut off": (
        "x.json",
        lambda own: json.dumps(own).encode()[:-50],
        "not a readable tokenizer: ",
    ),
    "no JSON": ("x.json", lambda own: b"\xff\x00\x01", "not a readable tokenizer: "),
    "a list": ("x.json", lambda own: b"[1]", "not a readable tokenizer"),
    "a vocabulary alone": (
        "x.json",
        lambda own: json.dumps(own["model"]["vocab"]).encode(),
        "it has no 'model'",
    ),
    "of a later version": (
        "x.json",
        lambda own: json.dumps({**own, "version": "9.0"}).encode(),
        "9.0",
    ),
    "an unknown model": (
        "x.json",
        lambda own: damaged(own, type="Tree"),
        "not a readable tokenizer",
    ),
    "an unknown step": (
        "x.json",
        lambda own: json.dumps({**own, "pre_tokenizer": {"type": "Tree"}}).encode(),
        "not a readable tokenizer",
    ),
    "merges without pieces": (
        "x.json",
        lambda own: damaged(own, vocab={"a": 0}),
        "not a readable tokenizer",
    ),
    "a prefix of merges": (
        "x.json",
        lambda own: damaged(own, continuing_subword_prefix="#"),
        "can crash",
    ),
    "empty": ("x.json", lambda own: b"", "is empty"),
    "no model of SentencePiece": (
        "x.model",
        lambda own: b"no model at all",
        "not a readable tokenizer",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_file_at_fault_is_one_error_at_its_line(
    case: str, folder: Path, make: Make, tmp_path: Path
) -> None:
    name, spoil, message = FAULTS[case]
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / name).write_bytes(spoil(json.loads((folder / "gpt2.json").read_bytes())))
    recipe = make({"text": {"train": "a.txt"}, "tokenizer": {"file": name}}, LM)
    (fault,) = DataSource(recipe, [tmp_path]).faults
    assert message in fault.message
    assert fault.hint
    assert (fault.path, Path(fault.file).name) == ("data.tokenizer.file", "t.yaml")
    assert recipe.file.read_text().splitlines()[fault.line - 1].strip() == f"file: {name}"
    with pytest.raises(RecipeError) as refused:
        recipe.plan()
    assert [*refused.value.faults] == [fault]


def test_a_missing_file_is_an_error_with_the_name_that_was_meant(
    make: Make, tmp_path: Path, folder: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "gpt2.json").write_bytes((folder / "gpt2.json").read_bytes())
    (fault,) = DataSource(
        make({"text": {"train": "a.txt"}, "tokenizer": {"file": "gtp2.json"}}, LM), [tmp_path]
    ).faults
    assert (fault.code, fault.hint) == ("file", "write `gpt2.json`")


def test_a_file_that_is_no_tokenizer_is_not_the_name_that_was_meant(
    make: Make, tmp_path: Path
) -> None:
    for name in ("a.txt", "train.jsonl"):
        (tmp_path / name).write_text("one\ntwo\n")
    data = {"text": {"train": "a.txt"}, "tokenizer": {"file": "train.json"}}
    (fault,) = DataSource(make(data, LM), [tmp_path]).faults
    assert fault.message.startswith("no file `train.json`")
    assert "jsonl" not in fault.message + fault.hint


def test_without_sentencepiece_the_fault_says_what_to_install(
    folder: Path,
    opened: dict[str, Tokenizers],
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "x.model").write_bytes((folder / "bpe.model").read_bytes())
    (fault,) = DataSource(
        make({"text": {"train": "a.txt"}, "tokenizer": {"file": "x.model"}}, LM), [tmp_path]
    ).faults
    assert (fault.code, fault.hint) == ("package", "run `pip install sentencepiece`")
    with pytest.raises(RunError, match=r"pip install sentencepiece"):
        Tokenizers.from_text(opened["bpe.model"].text)


def spoiled(part: dict[str, Any], spoil: str) -> None:
    """Write what no training writes into the JSON of a byte-level BPE."""
    match spoil:
        case "padding":
            part["padding"] = {
                "strategy": {"Fixed": 99},
                "direction": "Right",
                "pad_id": 0,
                "pad_type_id": 0,
            }
            part["padding"] |= {"pad_to_multiple_of": None, "pad_token": "x"}
        case "truncation":
            part["truncation"] = {
                "direction": "Right",
                "max_length": 1,
                "strategy": "LongestFirst",
                "stride": 0,
            }
        case "a special token in text":
            part["added_tokens"] = [
                {**part["added_tokens"][0], "id": 0, "content": "\U0010ffff⟨pad⟩"}
            ]
        case "a special id for a piece":
            part["model"]["vocab"]["a"] = 0
        case "an id without a row":
            part["model"]["vocab"]["a"] = 10**6
        case "pieces by chance":
            part["model"]["dropout"] = 0.5
        case "a library that panics":
            part["model"]["continuing_subword_prefix"] = "x" * 100
        case "exponential time":
            part["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "c"}
        case "a text without end":
            steps = [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40
            part["normalizer"] = {"type": "Sequence", "normalizers": steps}


@pytest.mark.parametrize(
    "case",
    [
        "padding",
        "truncation",
        "a special token in text",
        "a special id for a piece",
        "an id without a row",
        "pieces by chance",
        "a library that panics",
        "exponential time",
        "a text without end",
    ],
)
def test_a_run_whose_copy_was_changed_is_refused(case: str, opened: dict[str, Tokenizers]) -> None:
    content = json.loads(opened["gpt2.json"].text)
    spoiled(content["parts"][0], case)
    with pytest.raises(RunError, match="the tokenizer cannot be read"):
        Tokenizers.from_text(json.dumps(content))


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t|'re)?|\p{N}{1,3}|\s+(?!\S)|\s+"
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|\s+"
)


@pytest.mark.parametrize(
    "regex", [LLAMA3, GPT4O, DEEPSEEK, r"\d{1,3}(?=(?:\d{3})*\b)", "(ab)+", r"\(a+\)+"]
)
def test_patterns_of_known_models_are_used(regex: str) -> None:
    assert not is_exponential(regex)


@pytest.mark.parametrize(
    "regex", ["(a*)*b", "(a|aa)+$", "((a)+)*", "(?:x(a?)y){3,}", "(?=(a+)+)", "(?<n>a|b)*"]
)
def test_patterns_in_exponential_time_are_refused(regex: str) -> None:
    assert is_exponential(regex)
