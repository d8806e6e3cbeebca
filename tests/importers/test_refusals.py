"""A damaged, hostile or foreign checkpoint is one error, and nothing is written."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from composer.errors import RunError
from composer.importers.import_run import import_model
from tests.importers.published import PUBLISHED, save

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints: `llama` with several files, and `whole` with one."""
    folder = tmp_path_factory.mktemp("checkpoints")
    save(PUBLISHED["llama"].make(0), folder / "llama")
    PUBLISHED["llama"].make(0).save_pretrained(folder / "whole")
    (folder / "whole" / "tokenizer.json").write_bytes(
        (folder / "llama" / "tokenizer.json").read_bytes()
    )
    return folder


@pytest.fixture
def folder(checkpoints: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint with one file of weights."""
    return copied(checkpoints / "whole", tmp_path / "theirs")


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def config(**values: object) -> Change:
    """Return a change of config.json."""
    return json_change("config.json", lambda content: content.update(values))


def json_change(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def end(index: int | None) -> Change:
    """Return a change of the id of eos, wherever it is said."""

    def apply(folder: Path) -> None:
        for name in ("config.json", "generation_config.json"):
            json_change(name, lambda content: content.update(eos_token_id=index))(folder)

    return apply


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    """Return a change of the tensors."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


def without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def text(name: str, content: str | bytes) -> Change:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data) and None


def cut(name: str, size: int) -> Change:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:size])

    return apply


def only_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


EMBEDDING = "model.embed_tokens.weight"
HUGE = struct.pack("<Q", 1 << 40) + b"{}"
HUGE_SHAPE = b'{"x": {"dtype": "F32", "shape": [9999999999, 9999999999], "data_offsets": [0, 4]}}'
REFUSED: dict[str, tuple[Change, str]] = {
    "no configuration": (without("config.json"), "no published checkpoint"),
    "broken configuration": (cut("config.json", 40), "cannot be read"),
    "a list": (text("config.json", "[]"), "no JSON object"),
    "deep": (text("config.json", "[" * 100_000), "cannot be read"),
    "another model": (config(model_type="mamba"), "`model_type`: `mamba` is none of"),
    "its own code": (config(auto_map={"AutoModel": "x.Y"}), "`auto_map`"),
    "quantised": (config(quantization_config={"bits": 4}), "`quantization_config`"),
    "unknown key": (config(logit_softcap=30.0), "`logit_softcap`"),
    "activation": (config(hidden_act="relu2"), "`hidden_act`"),
    "scaling": (
        config(rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
        "`rope_parameters.rope_type`",
    ),
    "key of a scaling": (
        config(rope_parameters={"rope_type": "linear", "factor": 2.0, "mscale": 1.0}),
        "`rope_parameters.mscale`",
    ),
    "sizes": (config(num_hidden_layers=0), "`num_hidden_layers`"),
    "text for a number": (config(hidden_size="32"), "`hidden_size`"),
    "another width": (config(hidden_size=64), "has the shape"),
    "more layers": (config(num_hidden_layers=3), "no tensor"),
    "fewer layers": (config(num_hidden_layers=1), "no block has these tensors"),
    "no end": (end(None), "`eos_token_id`"),
    "an end beyond": (end(5000), "no token 5,000"),
    "no weights": (without("model.safetensors"), "no model.safetensors"),
    "pickle": (only_a_pickle, "could run a program"),
    "partial weights": (cut("model.safetensors", 5000), "cannot be read"),
    "header without end": (text("model.safetensors", HUGE), "cannot be read"),
    "huge shape": (
        text("model.safetensors", struct.pack("<Q", len(HUGE_SHAPE)) + HUGE_SHAPE + b"0000"),
        "cannot be read",
    ),
    "integers": (
        weights(lambda own: own.update({EMBEDDING: own[EMBEDDING].to(torch.int8)})),
        "numbers of int8",
    ),
    "not finite": (weights(lambda own: own[EMBEDDING].fill_(torch.nan)), "not finite"),
    "a tied copy that differs": (
        weights(lambda own: own.update({"lm_head.weight": own[EMBEDDING] + 1})),
        "other numbers than the embedding",
    ),
    "no tokenizer": (without("tokenizer.json"), "neither tokenizer.json nor tokenizer.model"),
    "broken tokenizer": (cut("tokenizer.json", 500), "cannot be read"),
    "hostile tokenizer": (text("tokenizer.json", '{"model": {"type": "BPE"}}'), "cannot be read"),
    "a larger vocabulary": (
        json_change("tokenizer.json", lambda own: own["model"]["vocab"].update(more=9000)),
        "embedding 303 rows",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_checkpoint_that_cannot_be_imported_is_one_error(
    case: str, folder: Path, tmp_path: Path
) -> None:
    change, message = REFUSED[case]
    change(folder)
    before = {file: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(RunError) as caught:
        import_model(folder, tmp_path / "ours")
    (fault,) = caught.value.faults
    assert message in fault.message
    assert fault.hint
    assert str(tmp_path) in fault.file
    assert {*tmp_path.iterdir()} == {folder}
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


SHARD = "model-00002-of-"
OF_SHARDS: dict[str, tuple[Change, str]] = {
    "path out of the folder": (
        json_change(
            "model.safetensors.index.json",
            lambda own: own["weight_map"].update({EMBEDDING: "../x.safetensors"}),
        ),
        "no file of this folder",
    ),
    "another list": (
        json_change(
            "model.safetensors.index.json",
            lambda own: own["weight_map"].update(more=own["weight_map"][EMBEDDING]),
        ),
        "lists other tensors",
    ),
    "no list": (text("model.safetensors.index.json", "{}"), "no `weight_map`"),
    "a missing file": (lambda folder: next(folder.glob(f"{SHARD}*")).unlink(), "no such file"),
}


@pytest.mark.parametrize("case", OF_SHARDS)
def test_files_that_do_not_belong_together_are_one_error(
    case: str, checkpoints: Path, tmp_path: Path
) -> None:
    change, message = OF_SHARDS[case]
    folder = copied(checkpoints / "llama", tmp_path / "theirs")
    change(folder)
    with pytest.raises(RunError, match=message) as caught:
        import_model(folder, tmp_path / "ours")
    assert len(caught.value.faults) == 1
    assert not (tmp_path / "ours").exists()


def test_a_tied_matrix_may_be_stored_twice(folder: Path, tmp_path: Path) -> None:
    weights(lambda own: own.update({"lm_head.weight": own[EMBEDDING].clone()}))(folder)
    assert import_model(folder, tmp_path / "ours").is_dir()


def test_ends_that_end_nothing_here_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = json_change("generation_config.json", lambda own: own.update(eos_token_id=[2, 3]))
    change(folder)
    import_model(folder, tmp_path / "ours")
    assert "of the ends 2, 3 the first alone ends a text here" in capsys.readouterr().err


def test_a_folder_that_exists_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    with pytest.raises(RunError, match="exists"):
        import_model(folder, tmp_path / "ours")


@pytest.mark.parametrize("ref", ["git+https://example.org/a/b", "wandb:a/b/c", "hub:a"])
def test_other_places_are_refused(ref: str, tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        import_model(ref, tmp_path / "ours")
    assert len(caught.value.faults) == 1
