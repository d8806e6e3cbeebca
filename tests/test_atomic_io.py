"""What a killed process left unfinished is told from what is there as a whole, and removed."""

from __future__ import annotations

from pathlib import Path

from composer.atomic_io import remove_temporaries, temporary_sibling


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
