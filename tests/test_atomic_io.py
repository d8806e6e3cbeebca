"""What a killed process left unfinished is told from what is there as a whole, and removed; where the cache is."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.atomic_io import cache_dir, remove_temporaries, temporary_sibling


def test_unfinished_files_and_folders_are_removed(tmp_path: Path) -> None:
    page, aside, hidden = tmp_path / "report.7.html", tmp_path / "aside", tmp_path / ".notes.2026"
    page.touch()
    aside.mkdir()
    hidden.mkdir()
    temporary_sibling(page).touch()
    folder = temporary_sibling(aside)
    folder.mkdir()
    (folder / "part.json").touch()
    temporary_sibling(tmp_path / "link").symlink_to(aside)
    remove_temporaries(tmp_path)
    assert sorted(tmp_path.iterdir()) == [hidden, aside, page]


def test_the_cache_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    assert cache_dir() == tmp_path / "store"
    monkeypatch.setenv("SEQCOMPOSER_STORE", "")
    assert cache_dir() == tmp_path / "cache" / "seqcomposer" / "store"
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")  # relative: the standard has it ignored
    assert cache_dir() == tmp_path / "me" / ".cache" / "seqcomposer" / "store"
