"""Malicious and damaged packs: each is refused with a reason, and leaves no file behind."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import socket
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from composer.atomic_io import sha256_of_file
from composer.errors import ComposerError, RunError
from composer.hub.pack_format import FILES, MANIFEST
from composer.hub.pull import pull
from tests.hub.packs import Member, contents, info, members, names_in, to_archive, update_manifest

PLACES = 60
"""Places at which an archive is damaged."""


def assert_refused(path: Path, target: Path, message: str, max_gib: float = 1.0) -> None:
    """Pulling it raises RunError with this message, and leaves no file behind."""
    before = names_in(target.parent)
    paths = [path]
    if path.is_file():  # as earlier versions wrote it
        paths.append(path.with_suffix(".tar.gz"))
        paths[1].write_bytes(gzip.compress(path.read_bytes(), 1))
    for file in paths:
        with pytest.raises(RunError) as error:
            pull(str(file), target, max_gib=max_gib)
        assert message in error.value.render()
        assert names_in(target.parent) == before


def with_member(folder: Path, head: tarfile.TarInfo, data: bytes = b"", at: int = 1) -> bytes:
    result = members(folder)
    return to_archive([*result[:at], (head, data), *result[at:]])


NAMES = (
    "../recipe.yaml",
    "untrained/../x",
    "/etc/passwd",
    "untrained//recipe.yaml",
    "untrained/a/recipe.yaml",
    "untrained/C:x",
    "untrained/..\\x",
    "untrained/..",
    "untrained/RECIPE.YAML",
    "untrained/recipe.yaml.",
    "untrained/recipe.yaml ",
    "untrained/\uff52ecipe.yaml",
    "untrained/r\u0435cipe.yaml",
    "untrained/recipe.yaml\u200b",
    "untrained/a\u202eb",
    "untrained/a\nb",
    "untrained/\udcff",
    "untrained/.bashrc",
    "untrained/nul",
    "untrained/COM1.txt",
    "untrained/x.",
    "untrained/model.pkl",
    "untrained/setup.py",
    "untrained/inner.tar",
)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_an_unknown_member_name_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    data = with_member(folder, info(name, 2), b"ab", at=len(FILES) + 1)
    (tmp_path / "bad.tar").write_bytes(data)
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", "not part of a pack")


KINDS = (
    *(
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.GNUTYPE_SPARSE,
    ),
    *(tarfile.CONTTYPE, tarfile.DIRTYPE),
)


@pytest.mark.parametrize(
    ("kind", "at"), [(kind, at) for kind in KINDS for at in (0, 1) if at or kind != tarfile.DIRTYPE]
)
def test_a_member_that_is_no_regular_file_is_refused(
    kind: bytes, at: int, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.tar").write_bytes(
        with_member(folder, info("untrained/README.md", 0, kind, "/etc/passwd"), at=at)
    )
    assert_refused(
        tmp_path / "bad.tar",
        tmp_path / "x",
        "is not a regular file",
    )


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_an_extended_header_is_not_read_into_memory(
    kind: bytes, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.tar").write_bytes(
        with_member(folder, info("x", 1 << 30, kind), bytes(1 << 21))
    )
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", "a header is too large")


def test_headers_without_end_are_refused(folder: Path, tmp_path: Path) -> None:
    """Each would take memory, or call for the next one."""
    top = info("untrained", 0, tarfile.DIRTYPE)
    (tmp_path / "bad.tar").write_bytes(to_archive([(top, b"")] * 3 + members(folder)))
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", "not part of a pack")
    extended = (info("x", 14, tarfile.XHDTYPE), b"14 comment=aa\n")
    (tmp_path / "bad.tar").write_bytes(to_archive([extended] * 5000 + members(folder)))
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", "the archive is damaged")
    sparse = b"22 GNU.sparse.major=x\n"
    extended = (info("x", len(sparse), tarfile.XHDTYPE), sparse)
    (tmp_path / "bad.tar").write_bytes(to_archive([extended, *members(folder)]))
    with suppress(ComposerError):
        assert contents(pull(str(tmp_path / "bad.tar"), tmp_path / "x")) == contents(folder)


@pytest.mark.parametrize("top", ["..", "/etc", "a/b", "../x", "."])
def test_a_folder_that_leads_out_is_refused(top: str, folder: Path, tmp_path: Path) -> None:
    """Of every file, so that all are in the same one."""
    (tmp_path / "bad.tar").write_bytes(to_archive(members(folder, f"{top}/")))
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", "not part of a pack")


def with_size(place: int, size: int) -> Callable[[list[Member]], list[Member]]:
    def change(result: list[Member]) -> list[Member]:
        head, data = result[place]
        head.size = size
        return [*result[:place], (head, data), *result[place + 1 :]]

    return change


CHANGES: dict[str, tuple[Callable[[list[Member]], list[Member]], str]] = {
    "a larger file": (with_size(1, 1 << 30), "bytes, and at most"),
    "a smaller file": (with_size(1, 1), "after its end"),
    "a large pack.json": (with_size(0, 1 << 33 - 1), "`pack.json` has"),
    "one less": (lambda result: result[:-1], "is missing"),
    "none": (lambda result: [], "begins with pack.json"),
    "pack.json later": (
        lambda result: [result[1], result[0], *result[2:]],
        "begins with pack.json",
    ),
    "pack.json twice": (lambda result: [result[0], *result], "is listed twice"),
    "a file twice": (lambda result: [*result, result[1]], "is listed twice"),
    "beside the folder": (
        lambda result: [*result, (info("recipe.yaml", 1), b"a")],
        "is listed twice",
    ),
    "another folder": (
        lambda result: [*result[:-1], (info("x/tokenizer.json", 1), b"a")],
        "not part of a pack",
    ),
    "other content": (
        lambda result: [result[0], (result[1][0], result[1][1][::-1]), *result[2:]],
        "SHA-256 differs",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_archive_unlike_its_manifest_is_refused(
    change: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.tar").write_bytes(to_archive(CHANGES[change][0](members(folder))))
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", CHANGES[change][1])


def test_bytes_after_the_end_are_refused_and_not_unpacked(folder: Path, tmp_path: Path) -> None:
    for tail, message in (
        (bytes(1024) + b"x", "data after its end"),
        (bytes(1 << 20), "data after its end"),
        (b"", "cut off"),
    ):
        (tmp_path / "bad.tar").write_bytes(to_archive(members(folder), tail))
        assert_refused(tmp_path / "bad.tar", tmp_path / "x", message)


def test_padding_of_other_archivers_is_accepted(folder: Path, tmp_path: Path) -> None:
    top = info("untrained/", 0, tarfile.DIRTYPE)
    for form, result in (
        (tarfile.GNU_FORMAT, [(top, b""), *members(folder)]),
        (tarfile.USTAR_FORMAT, members(folder, "")),
    ):
        (tmp_path / "good.tar").write_bytes(to_archive(result, bytes(10240), form))
        assert contents(pull(str(tmp_path / "good.tar"), tmp_path / str(form))) == contents(folder)


@pytest.mark.parametrize(
    "size", [b"\x80" + bytes(10) + b"\x01", b"-0000000001\0", b"0x000000001\0", b"           \0"]
)
def test_a_size_in_other_digits_is_refused(size: bytes, folder: Path, tmp_path: Path) -> None:
    block = bytearray(info("untrained/README.md", 0).tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    content = to_archive(members(folder))
    second = 512 + -(-(folder / MANIFEST).stat().st_size // 512) * 512
    (tmp_path / "bad.tar").write_bytes(content[:second] + bytes(block) + content[second + 512 :])
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", "nothing was written")


def test_every_flipped_byte_is_detected(archive: Path, folder: Path, tmp_path: Path) -> None:
    """Each cut and each changed byte is refused, or has no effect, such as the time in a header."""
    plain, expected = archive.read_bytes(), contents(folder)
    for name, good in (("bad.tar", plain), ("bad.tar.gz", gzip.compress(plain, 1))):
        step = max(1, len(good) // PLACES)
        places = [*range(20), *range(20, len(good), step), *range(len(good) - 12, len(good))]
        for place in places:
            damaged = bytearray(good)
            damaged[place] ^= 0x10
            for data in (good[:place], damaged):
                (tmp_path / name).write_bytes(data)
                try:
                    result = contents(pull(str(tmp_path / name), tmp_path / "y"))
                except ComposerError:
                    assert names_in(tmp_path) == []
                else:
                    assert result == expected
                    shutil.rmtree(tmp_path / "y")


def test_a_zip_bomb_is_detected_before_it_is_unpacked(folder: Path, tmp_path: Path) -> None:
    """Both one that says its size, and one whose first header does not end."""
    bad = shutil.copytree(folder, tmp_path / "bad")
    files = json.loads((bad / MANIFEST).read_text(encoding="utf-8"))["files"]
    files["model.safetensors"]["size"] = 1 << 50
    update_manifest(bad, files=files)
    (tmp_path / "bad.tar").write_bytes(to_archive(members(bad)))
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", "does not match")
    assert_refused(tmp_path / "bad", tmp_path / "x", "does not match")
    bomb = [
        (info("untrained/pack.json", 1), b"{"),
        (info("untrained/model.safetensors", (1 << 33) - 1), b""),
    ]
    (tmp_path / "bad.tar").write_bytes(to_archive(bomb))
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", "--max-gib 8")
    (tmp_path / "bad.tar").write_bytes(bytes(1 << 24))
    assert_refused(tmp_path / "bad.tar", tmp_path / "x", "begins with pack.json")


def file_entries(message: dict[str, object]) -> dict[str, object]:
    return dict.fromkeys(FILES, message)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"version": 2}, "is not that of a pack"),
        ({"version": True}, "is not that of a pack"),
        ({"version": 0}, "is not that of a pack"),
        ({"version": "1"}, "is not that of a pack"),
        ({"format": "x"}, "is not that of a pack"),
        ({"name": "../x"}, "is not that of a pack"),
        ({"name": ""}, "is not that of a pack"),
        ({"name": "a\n"}, "is not that of a pack"),
        ({"name": "other"}, "its recipe `untrained`"),
        ({"name": 1}, "is not that of a pack"),
        ({"more": 1}, "is not that of a pack"),
        ({"files": []}, "is not that of a pack"),
        ({"files": {}}, "lists other files"),
        ({"files": {"../x": {}}}, "is not that of a pack"),
        ({"files": {"x.py": {"sha256": "0" * 64, "size": 1}}}, "lists other files"),
        ({"files": {MANIFEST: {"sha256": "0" * 64, "size": 1}}}, "lists other files"),
        ({"files": dict.fromkeys(FILES)}, "is not that of a pack"),
        ({"files": file_entries({"sha256": "0" * 64, "size": -1})}, "is not that of a pack"),
        ({"files": file_entries({"sha256": "0" * 64, "size": True})}, "is not that of a pack"),
        ({"files": file_entries({"sha256": "0" * 64, "size": 1.0})}, "is not that of a pack"),
        ({"files": file_entries({"sha256": "A" * 64, "size": 1})}, "is not that of a pack"),
        ({"files": file_entries({"sha256": "0" * 64, "size": 1, "x": 1})}, "is not that of a pack"),
    ],
)
def test_a_malformed_manifest_is_refused(
    more: dict[str, object], message: str, folder: Path, tmp_path: Path
) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    update_manifest(bad, **more)
    assert_refused(bad, tmp_path / "x", message)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"a": 1, "a": 2}', "[" * 60000, "NaN", "\udcff", "9" * 5000, " " * 70000],
)
def test_a_manifest_that_is_no_json_object_is_refused(
    text: str, folder: Path, tmp_path: Path
) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / MANIFEST).write_text(text, encoding="utf-8", errors="surrogateescape")
    assert_refused(bad, tmp_path / "x", MANIFEST)


def as_link(path: Path) -> None:
    path.rename(path.parent.parent / "bad.tar")
    path.symlink_to(path.parent.parent / "bad.tar")


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_socket(path: Path) -> None:
    path.unlink()
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as result:
        result.bind(path.name)
    os.chdir(here)


@pytest.mark.parametrize("name", ["README.md", MANIFEST])
@pytest.mark.parametrize("change", [as_link, as_fifo, as_folder, as_socket])
def test_a_folder_with_an_irregular_file_is_refused(
    change: Callable[[Path], None], name: str, folder: Path, tmp_path: Path
) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    change(bad / name)
    assert_refused(bad, tmp_path / "x", "is not a regular file")


@pytest.mark.parametrize(
    "name", ["extra.py", ".hidden", "weights.pkl", "Recipe.yaml", "checkpoints"]
)
def test_a_folder_with_unlisted_files_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / name).write_text("import os", encoding="utf-8")
    assert_refused(bad, tmp_path / "x", "nothing was written")


@pytest.mark.parametrize("name", FILES)
def test_a_folder_with_a_changed_file_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    for change in (
        lambda data: data + b" ",
        lambda data: data[:-1],
        lambda data: b"x" + data[1:],
    ):
        bad = shutil.copytree(folder, tmp_path / "bad")
        (bad / name).write_bytes(change((bad / name).read_bytes()))
        assert_refused(bad, tmp_path / "x", f"`{name}` does not match")
        shutil.rmtree(bad)
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / name).unlink()
    assert_refused(bad, tmp_path / "x", f"`{name}` is missing")


def with_file(folder: Path, tmp_path: Path, name: str, data: bytes) -> Path:
    """A pack whose hashes fit, with another file in it."""
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / name).write_bytes(data)
    update_manifest(bad)
    return bad


def test_a_pickle_in_place_of_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    for data in (
        pickle.dumps({"x": 1}),
        b"",
        b"\x02" + bytes(7) + b"[]",
        (1 << 60).to_bytes(8, "little") + b"{}",
    ):
        bad = with_file(folder, tmp_path, "model.safetensors", data)
        assert_refused(bad, tmp_path / "x", "not in the safetensors format")
        shutil.rmtree(bad)


def test_weights_that_are_not_finite_are_refused(folder: Path, tmp_path: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    data = save({**weights, name: torch.full_like(weights[name], float("nan"))})
    bad = with_file(folder, tmp_path, "model.safetensors", data)
    assert_refused(bad, tmp_path / "x", f"these weights are not finite: {name}")


def test_weights_that_fit_no_model_are_refused(folder: Path, tmp_path: Path) -> None:
    """Every hash is right, and nothing could be tried."""
    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    bad = with_file(
        folder, tmp_path, "model.safetensors", save({**weights, name: weights[name][:1]})
    )
    record = json.loads((bad / "run.json").read_text(encoding="utf-8"))
    record["weights_sha256"] = sha256_of_file(bad / "model.safetensors")
    (bad / "run.json").write_text(json.dumps(record), encoding="utf-8")
    update_manifest(bad)
    assert_refused(
        bad,
        tmp_path / "x",
        f"this cannot be opened here: these weights do not fit the model: {name}",
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("recipe: 1", "recipe: 2", "install a newer"),
        ("rnn: {cell: gru}", "odd_block: {cell: gru}", "`odd_block` from odd-blocks==2.1"),
        ("name: untrained", "name: untrained\nextends: ../../secret.yaml", "must not extend"),
        ("name: untrained", "name: other", "its recipe `other`"),
        ("recipe: 1", "{", "cannot be opened here"),
    ],
)
def test_a_recipe_that_is_invalid_here_is_refused(
    old: str, new: str, message: str, folder: Path, tmp_path: Path
) -> None:
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    record["plug_ins"] = (
        {"odd_block": {"distribution": "odd-blocks", "version": "2.1"}} if "odd" in new else {}
    )
    text = (folder / "recipe.yaml").read_text(encoding="utf-8").replace(old, new, 1)
    bad = with_file(folder, tmp_path, "recipe.yaml", text.encode())
    record["recipe_sha256"] = sha256_of_file(bad / "recipe.yaml")
    (bad / "run.json").write_text(json.dumps(record), encoding="utf-8")
    update_manifest(bad)
    with pytest.raises(RunError) as error:
        pull(str(bad), tmp_path / "x")
    assert message in error.value.render()
    assert len(error.value.faults) == 1
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("text", ["[]", "{", '{"status": "running"}', "[" * 100000])
def test_a_run_json_that_is_no_record_is_refused(text: str, folder: Path, tmp_path: Path) -> None:
    assert_refused(with_file(folder, tmp_path, "run.json", text.encode()), tmp_path / "x", "run")
