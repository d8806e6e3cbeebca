"""What a killed process left unfinished is told from what is there as a whole, and removed; where
the cache is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from composer.atomic_io import (
    atomic_directory,
    cache_dir,
    refuse_overwriting,
    remove_abandoned,
    remove_temporaries,
    temporary_sibling,
)
from composer.errors import RunError


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


def test_the_cache_directory_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    assert cache_dir() == tmp_path / "store"
    monkeypatch.setenv("SEQCOMPOSER_STORE", "")
    assert cache_dir() == tmp_path / "cache" / "seqcomposer" / "store"
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")  # relative: the standard has it ignored
    assert cache_dir() == tmp_path / "me" / ".cache" / "seqcomposer" / "store"


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_a_living_one_writes_is_not(
    tmp_path: Path,
) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom composer.atomic_io import"
        " atomic_directory\nwith atomic_directory(Path(sys.argv[1])) as folder:\n    (folder /"
        " 'a').write_text('b')\n    print('writing', flush=True)\n    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "target")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (left,) = tmp_path.iterdir()
        remove_abandoned(tmp_path / "target")
        assert left.exists()
        process.kill()
    other = tmp_path / ".other.123.part"
    other.write_text("")
    with atomic_directory(tmp_path / "target"):
        assert not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"target", other.name}


def test_a_file_is_not_overwritten_and_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("a", "link"):
        with pytest.raises(RunError, match="exists already"):
            refuse_overwriting(tmp_path / name, "--output")
    refuse_overwriting(tmp_path / "b", "--output")
    refuse_overwriting(Path("/dev/null"), "--output")


def test_a_folder_below_a_file_or_where_none_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for below in ("file/one", "file/one/two"):
        with (
            pytest.raises(RunError, match=r"`.*/file` is no folder") as refused,
            atomic_directory(tmp_path / below),
        ):
            pass
        assert refused.value.faults[0].hint == "choose another path"
    with (
        pytest.raises(RunError, match="no such file or directory") as refused,
        atomic_directory(Path("/proc/nope")),
    ):
        pass
    assert refused.value.faults[0].hint == "choose another path"
