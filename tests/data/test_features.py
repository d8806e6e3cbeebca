"""Columns of files: padding, the cache, archives, faults with their lines, and what differs in each
epoch.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from composer.data import columns, feature_files
from composer.data.augmentation import (
    AugmentedFeatures,
    augment_image,
    augment_sound,
    augmentation,
)
from composer.data.cache_entries import entry_in_memory
from composer.data.columns import FileNames, RowSubset, SampledLines
from composer.data.feature_files import append_features, encode_features, load_frames, missing_files
from composer.data.features import Features, Reading, Remark
from composer.data.line_hashes import line_hashes
from composer.data.media_files import MediaError, open_file
from composer.data.tables import open_columns
from composer.errors import DataError, Fault
from composer.recipe.data_sections import (
    AudioFeatures,
    ImageAugment,
    LogMel,
    SpecAugment,
    TableColumn,
)

VECTORS = TableColumn(column="frames", kind="vectors", width=3)


def write_vectors(folder: Path, *lengths: int) -> FileNames:
    for length in lengths:
        np.save(folder / f"{length}.npy", np.full((length, 3), length, np.float32))
    return FileNames([f"{length}.npy" for length in lengths], folder)


def features_of(arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> Features:
    """Return frames (T, F), or images (T, columns, C). shape: (F,) or (W, C)"""
    _, parts = entry_in_memory(lambda append: append_features(append, map(Reading, arrays), shape))
    starts = parts["ends"] - [*map(len, arrays)]
    return Features(
        parts["values"], starts, parts["ends"], parts["columns"] if len(shape) == 2 else None
    )


def test_rows_are_padded_with_nan() -> None:
    features = features_of([np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)], (3,))
    batch = features.outputs(np.array([1, 0]))
    assert batch.shape == (2, 2, 3)
    assert np.isnan(batch[0, 1]).all()
    assert features.keep(np.array([1])).lengths().tolist() == [1]
    assert features[1].tolist() == [[0, 0, 0]]


def test_images_have_nan_beside_and_below_them() -> None:
    features = features_of(
        [np.full((1, 2, 1), 255, np.uint8), np.full((2, 3, 1), 51, np.uint8)], (4, 1)
    )
    batch = features.outputs(np.array([0, 1]))[..., 0]  # (B, T, W)
    assert batch.shape == (2, 2, 4)
    assert (~np.isnan(batch)).sum((1, 2)).tolist() == [2, 6]
    assert batch[0, 0, :2].tolist() == [1, 1]
    assert np.allclose(batch[1, :, :3], 0.2)


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    names = write_vectors(tmp_path, 2, 1, 3)
    first = encode_features(names, VECTORS, "a column")
    monkeypatch.setattr(feature_files, "read_files", None)
    again = encode_features(RowSubset(names, np.array([2, 0])), VECTORS, "a column")
    assert isinstance(again.values, np.memmap)
    rows = np.array([0, 1])
    assert np.array_equal(again.outputs(rows), first.outputs(np.array([2, 0])), equal_nan=True)


def test_a_file_that_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    names = write_vectors(tmp_path, 2)
    encode_features(names, VECTORS, "a column")
    np.save(tmp_path / "2.npy", np.zeros((5, 3), np.float32))
    assert encode_features(names, VECTORS, "a column").lengths().tolist() == [5]
    # as large, and as old: from another archive, whose files all have one time
    before, hashes = os.stat(tmp_path / "2.npy"), line_hashes(names)
    np.save(tmp_path / "2.npy", np.ones((5, 3), np.float32))
    os.utime(tmp_path / "2.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert encode_features(names, VECTORS, "a column").values.all()
    assert line_hashes(names).tolist() != hashes.tolist()


def test_a_damaged_entry_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    names = write_vectors(tmp_path, 2, 1)
    encode_features(names, VECTORS, "a column")
    (values,) = (tmp_path / "store").rglob("values.bin")
    values.write_bytes(b"12")
    assert encode_features(names, VECTORS, "a column").lengths().tolist() == [2, 1]


def test_files_that_cannot_be_used_are_reported_with_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(feature_files, "MAX_FILE_FAULTS", 7)
    np.save(tmp_path / "wide.npy", np.zeros((2, 4)))
    np.save(tmp_path / "nan.npy", np.full((2, 3), np.nan))
    np.save(tmp_path / "flat.npy", np.zeros(3))
    np.save(tmp_path / "empty.npy", np.zeros((0, 3)))
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    write_vectors(tmp_path, 2)
    bad = ["gone.npy", "wide.npy", "nan.npy", "flat.npy", "empty.npy", "text.npy", "object.npy"]
    (tmp_path / "table.tsv").write_text("\n".join(["name", "2.npy", *bad]))
    names = open_columns(tmp_path / "table.tsv", {"source": "name"})["source"]
    with pytest.raises(DataError) as error:
        encode_features(FileNames(names, tmp_path), VECTORS, "the column")
    assert [fault.line for fault in error.value.faults] == [*range(3, 10)]
    for name, fault in zip(bad, error.value.faults, strict=True):
        assert fault.file == str(tmp_path / "table.tsv")
        assert fault.message.startswith(f"`{tmp_path / name}`: ")
    assert not [*(tmp_path / "store").rglob("values.bin")]


def test_of_many_files_that_cannot_be_used_the_first_few_are_reported_with_the_number_of_all(
    tmp_path: Path,
) -> None:
    names = [str(tmp_path / f"{number % 300}.npy") for number in range(600)]
    for read, count in ((missing_files, "300 files"), (refused_files, "at least 256 files")):
        faults = read(names, "a column")
        assert [fault.line for fault in faults] == [1, 2, 3, 4, 5]
        end = (
            f"2 lines name it (these are the first 5 of {count} of this column that cannot be used)"
        )
        assert [fault.message.endswith(end) for fault in faults] == [False] * 4 + [True]
        assert "first" not in read(names[:5], "a column")[-1].message
    # all were read before there were too many to go on
    assert "the first 5 of 200 files" in refused_files(names[:200], "a column")[-1].message


def refused_files(names: Sequence[str], origin: str) -> list[Fault]:
    with pytest.raises(DataError) as error:
        encode_features(names, VECTORS, origin)
    return error.value.faults


def test_a_damaged_archive_of_arrays_is_reported() -> None:
    with pytest.raises(MediaError, match="not a NumPy array"):
        load_frames(BytesIO(b"PK\x03\x04" + bytes(60)))


@pytest.mark.parametrize(
    ("more", "words"), [(b"\n", "1 byte behind"), (bytes(1_200), "1,200 bytes behind")]
)
def test_bytes_behind_an_array_are_refused(more: bytes, words: str, tmp_path: Path) -> None:
    for name, array in (("rows", np.ones((2, 3))), ("columns", np.ones((2, 3), order="F"))):
        path = tmp_path / f"{name}.npy"
        np.save(path, array)
        assert load_frames(BytesIO(path.read_bytes())).shape == (2, 3)
        path.write_bytes(path.read_bytes() + more)
        with pytest.raises(DataError, match=f"{path}.*{words} its array"):
            encode_features([str(path)], VECTORS, "a column")


def test_another_width_is_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    for number, width in enumerate((3, 4)):
        np.save(tmp_path / f"{number}.npy", np.zeros((2, width)))
    with pytest.raises(DataError) as error:
        encode_features(FileNames(["0.npy", "1.npy"], tmp_path), VECTORS, "the column")
    fix = "mend it, or remove the line; if all files have it, write `width: 4`"
    assert [fault.hint for fault in error.value.faults] == [fix]


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar"])
def test_files_are_read_from_archives(tmp_path: Path, name: str) -> None:
    if name.endswith("zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as packed:
            packed.writestr("in/x.txt", "content")
    else:
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
            entry = tarfile.TarInfo("./in/x.txt")
            entry.size = 7
            archive.addfile(entry, BytesIO(b"content"))
    assert open_file(tmp_path / name / "in" / "x.txt").read() == b"content"
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / name / "in" / "y.txt")
    faults = missing_files(
        FileNames([f"{name}/in/x.txt", f"{name}/in/y.txt", "z.txt"], tmp_path), "a column"
    )
    assert [(fault.line, fault.file) for fault in faults] == [(2, "a column"), (3, "a column")]


def test_an_archive_is_opened_once_whoever_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{which}.tar/{number}.txt" for number in range(20) for which in "ab"]
    for which in "ab":
        with tarfile.open(tmp_path / f"{which}.tar", "w") as archive:
            for number in range(20):
                entry = tarfile.TarInfo(f"{number}.txt")
                entry.size = 2
                archive.addfile(entry, BytesIO(b"%02d" % number))
    opened = list[Path]()
    real = tarfile.open
    monkeypatch.setattr(
        tarfile, "open", lambda path, mode="r": opened.append(path) or real(path, mode)
    )
    with ThreadPoolExecutor(6) as pool:
        contents = [*pool.map(lambda name: open_file(tmp_path / name).read(), names)]
    assert contents == [b"%02d" % (row // 2) for row in range(40)]
    assert sorted(opened) == [tmp_path / "a.tar", tmp_path / "b.tar"]


def test_names_of_files_in_a_packed_table_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gzip.open(tmp_path / "table.tsv.gz", "wt") as packed:
        packed.write("name\n" + "".join(f"{row}.npy\n" for row in range(50)))
    names = open_columns(tmp_path / "table.tsv.gz", {"source": "name"})["source"]
    reads = list[int]()
    read = type(names).read
    monkeypatch.setattr(
        type(names), "read", lambda self, rows: reads.append(len(rows)) or read(self, rows)
    )
    monkeypatch.setattr(columns, "CHUNK_LINES", 10)
    assert [*FileNames(names, tmp_path)] == [str(tmp_path / f"{row}.npy") for row in range(50)]
    assert not reads  # the file is unpacked once, whatever its length
    assert FileNames(names, tmp_path)[40:] == [
        str(tmp_path / f"{row}.npy") for row in range(40, 50)
    ]
    assert reads == [10]


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz"])
def test_a_damaged_archive_is_reported_and_nothing_outside_an_archive_is_read(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "secret").write_text("not of the archive")
    if name.endswith("zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as packed:
            packed.writestr("x.npy", bytes(2000))
    else:
        with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
            entry = tarfile.TarInfo("x.npy")
            entry.size = 2000
            archive.addfile(entry, BytesIO(np.random.default_rng(1).bytes(2000)))
    climbing = f"{name}/../secret"
    (fault,) = missing_files(FileNames([climbing], tmp_path), "a column")
    assert "no such file" in fault.message
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / climbing)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:700])
    assert not missing_files(FileNames([f"{name}/x.npy"], tmp_path), "a column")
    with pytest.raises(
        DataError, match=r"this archive cannot be opened: .*; 3 lines name it"
    ) as error:
        encode_features(
            [str(tmp_path / name / file) for file in ("x.npy", "y.npy", "z.npy")],
            VECTORS,
            "a column",
        )
    (fault,) = error.value.faults  # it is one archive
    assert fault.hint.startswith("get the archive again")


def test_an_archive_with_a_password_is_reported(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("x.npy", "content")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[6] |= 1  # the flag of a member that is encrypted, here and in the index
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(DataError, match="password"):
        encode_features([str(tmp_path / "a.zip" / "x.npy")], VECTORS, "a column")


def test_what_is_no_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    os.mkfifo(tmp_path / "pipe.npy")
    names = [
        str(tmp_path / name) for name in ("folder.npy", "pipe.npy", "gone.npy", "gone.npy#t=1")
    ]
    reasons = ["this is a folder; the cell is blank, perhaps", "no regular file", "no such file"]
    faults = missing_files([*names, ""], "a column")  # each file once
    assert all(
        reason in fault.message
        for fault, reason in zip(faults, [*reasons, reasons[0]], strict=True)
    )
    with pytest.raises(DataError) as error:
        encode_features([*names, ""], VECTORS, "a column")
    expected = [*reasons, "only a sound has parts", reasons[0]]
    assert all(
        reason in fault.message for fault, reason in zip(error.value.faults, expected, strict=True)
    )


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("value", [1e300, -3.5e38, np.inf, np.nan, np.longdouble("1e4000")])
def test_a_number_that_is_too_large_where_it_is_trained_on_is_reported(
    value: float, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", np.array([[1, 2, 3]]))
    np.save(tmp_path / "b.npy", np.array([[1, 2, value]]))
    with pytest.raises(DataError, match="NaN or infinite as float32") as error:
        encode_features([str(tmp_path / name) for name in ("a.npy", "b.npy")], VECTORS, "a column")
    assert [fault.line for fault in error.value.faults] == [2]


@pytest.mark.parametrize("dtype", ["f2", "f8", ">f4", "i8", "u8", "i1"])
def test_the_largest_numbers_that_fit_are_kept(dtype: str, tmp_path: Path) -> None:
    largest = np.finfo("f4" if "8" in dtype else dtype).max if "f" in dtype else np.iinfo(dtype).max
    np.save(tmp_path / "a.npy", np.array([[0, 1, largest]], dtype))
    encoded = encode_features([str(tmp_path / "a.npy")], VECTORS, "a column")
    assert encoded.values.tolist() == [[0, 1, np.float32(largest)]]


def test_a_sound_whose_energies_are_too_large_is_reported(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.full(800, 1e30), 8000, "FLOAT")
    energies = AudioFeatures(log_mel=LogMel(bands=4))
    settings = TableColumn(column="sound", kind="audio", rate=8000, features=energies)
    with pytest.raises(DataError, match="NaN or infinite as float32"):
        encode_features([str(tmp_path / "a.wav")], settings, "a column")


@pytest.mark.parametrize("part", ["0.1,-1", "a,b", ""])
def test_what_is_no_part_of_a_sound_is_reported(part: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"")
    name = f"{tmp_path / 'a.wav'}#t={part}"
    (fault,) = missing_files([name], "a column")
    assert f"`{part}` is not a part of a sound" in fault.message
    with pytest.raises(DataError, match="is not a part of a sound"):
        encode_features([name], TableColumn(column="sound", kind="audio"), "a column")


def test_what_was_noticed_is_kept_with_the_first_line_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    write_vectors(tmp_path, 1, 2, 3)
    (tmp_path / "table.tsv").write_text("name\n1.npy\n2.npy\n3.npy\n2.npy\n")
    read = feature_files.read_file

    def noticing(name: str, settings: Mapping[str, Any]) -> Any:
        reading = read(name, settings)
        assert isinstance(reading, Reading)
        return reading._replace(notices=(("even", "2"),)) if "2.npy" in name else reading

    monkeypatch.setattr(feature_files, "read_file", noticing)
    names = FileNames(open_columns(tmp_path / "table.tsv", {"source": "name"})["source"], tmp_path)
    expected = (Remark("even", "2", 2, str(tmp_path / "table.tsv"), 3),)
    assert encode_features(names, VECTORS, "a column").remarks == expected
    monkeypatch.setattr(feature_files, "read_file", None)
    assert (
        encode_features(RowSubset(names, np.array([2, 0])), VECTORS, "a column").remarks == expected
    )
    monkeypatch.setattr(feature_files, "read_file", noticing)
    part = RowSubset(names, np.array([2, 3]))
    sample = SampledLines(part, part)
    assert encode_features(sample, VECTORS, "a column").remarks == (
        replace(expected[0], count=1, line=5),
    )


# -------------------------------------------------------------------------------------------
# augmentation


def of_key(features: Features, settings: TableColumn, *key: int) -> AugmentedFeatures:
    way = augmentation(settings)
    assert way is not None
    return AugmentedFeatures(**vars(features), augment=way, key=key)


def test_an_epoch_has_its_own_images_and_always_the_same() -> None:
    image = np.random.default_rng(1).integers(0, 256, (6, 5, 1), dtype=np.uint8)
    features = features_of([image, image[:4, :3]], (7, 1))
    turns = ImageAugment(rotate=20.0, scale=0.1, shift=0.1)
    settings = TableColumn(column="image", kind="image", augment=turns)
    rows = np.array([0, 1])
    plain, one, again, other = (
        part.outputs(rows)
        for part in (features, *(of_key(features, settings, 1, epoch) for epoch in (0, 0, 1)))
    )
    assert np.array_equal(one, again, equal_nan=True)
    assert not np.array_equal(one, other, equal_nan=True)
    assert np.array_equal(np.isnan(one), np.isnan(plain))
    assert np.array_equal(
        of_key(features, settings, 1, 0).outputs(rows[1:])[0, :4, :3], one[1, :4, :3]
    )


def test_nothing_is_moved_by_nothing_and_a_quarter_turn_turns() -> None:
    image = np.random.default_rng(1).random((5, 5, 3), dtype=np.float32)
    random = np.random.default_rng(1)
    assert np.allclose(augment_image(image, random, ImageAugment()), image, atol=1e-5)

    class Always(np.random.Generator):
        def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
            return np.full(size, 0.0) if size else high

    turned = augment_image(image, Always(np.random.PCG64()), ImageAugment(rotate=90.0))
    assert min(np.abs(turned - np.rot90(image, k)).max() for k in (1, 3)) < 1e-5


def test_masks_cover_at_most_what_they_may() -> None:
    frames = np.random.default_rng(1).random((40, 10), dtype=np.float32)
    for seed in range(50):
        masks = SpecAugment(bands=3, frames=9, band_masks=1, frame_masks=2, share=0.1)
        masked = augment_sound(frames, np.random.default_rng(seed), masks)
        changed = masked != frames
        assert changed.all(0).sum() <= 3
        assert changed.all(1).sum() <= 2 * 4
        assert (masked[changed] == frames.mean()).all()


def test_vectors_are_augmented_as_sounds_are() -> None:
    masks = SpecAugment(bands=2, frames=1)
    features = features_of([np.random.default_rng(1).random((4, 3), dtype=np.float32)], (3,))
    rows = np.array([0])
    one, other = (
        of_key(features, replace(VECTORS, spec_augment=masks), 1, epoch).outputs(rows)
        for epoch in (0, 1)
    )
    assert one.shape == (1, 4, 3)
    assert one.dtype == np.float32
    assert not np.array_equal(one, other)
    assert augmentation(VECTORS) is None
