"""Nothing of a folder that somebody else wrote runs: programs of git's configuration, modules,
pictures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import wandb

from composer.processes.git import commit_around
from composer.processes.python import (
    python_environment,
    secure_children,
    seqcomposer_command,
)
from composer.sweeps.executors.ray import run_training
from composer.sweeps.executors.slurm import SlurmTraining
from composer.sweeps.executors.training import TrainingCommand, TrainingProcess
from tests.training.tiny_recipes import TINY

ROOT = Path(__file__).parents[1]
HOOKS = (
    "post-checkout",
    "post-index-change",
    "pre-commit",
    "reference-transaction",
    "fsmonitor-watchman",
    "pre-auto-gc",
)
SECTIONS: Mapping[str, str] = {
    "core.fsmonitor": "[core]\n fsmonitor = {program}",
    "core.pager": "[core]\n pager = {program}",
    "core.editor": "[core]\n editor = {program}",
    "core.sshCommand": "[core]\n sshCommand = {program}",
    "core.askPass": "[core]\n askPass = {program}",
    "core.gitProxy": "[core]\n gitProxy = {program}",
    "core.alternateRefsCommand": "[core]\n alternateRefsCommand = {program}",
    "core.hooksPath": "[core]\n hooksPath = {hooks}",
    "alias": '[alias]\n rev-parse = "!{program}"\n status = "!{program}"',
    "pager": "[pager]\n rev-parse = {program}\n status = {program}",
    "filter.clean": '[filter "own"]\n clean = {program}\n smudge = {program}\n required = true',
    "filter.process": '[filter "own"]\n process = {program}',
    "diff.command": (
        '[diff]\n external = {program}\n[diff "own"]\n command = {program}\n textconv = {program}'
    ),
    "merge.driver": '[merge "own"]\n driver = {program}',
    "gpg.program": "[gpg]\n program = {program}\n[log]\n showSignature = true",
    "credential.helper": '[credential]\n helper = "!{program}"',
    "sequence.editor": "[sequence]\n editor = {program}",
    "trailer.command": '[trailer "own"]\n command = {program}',
    "uploadpack.packObjectsHook": "[uploadpack]\n packObjectsHook = {program}",
    "remote.uploadpack": (
        '[remote "origin"]\n url = {outside}\n uploadpack = {program}\n receivepack = {program}'
    ),
    "remote.vcs": (
        '[remote "origin"]\n url = "ext::{program}"\n vcs = ext\n[protocol "ext"]\n allow = always'
    ),
    "promisor": (
        "[core]\n repositoryformatversion = 1\n[extensions]\n partialClone = origin\n[protocol]\n"
        ' allow = always\n[remote "origin"]\n url = "ext::{program}"\n promisor = true\n'
        ' partialclonefilter = "blob:none"'
    ),
    "submodule.update": (
        '[submodule "own"]\n update = "!{program}"\n url = "ext::{program}"\n active = true'
    ),
    "include.path": "[include]\n path = {included}",
}
"""Every kind of key of git's configuration that starts a program, and a file that is included."""


def git(folder: Path, *words: str) -> str:
    who = (
        "-c",
        "user.name=ann",
        "-c",
        "user.email=ann@example.org",
        "-c",
        "init.defaultBranch=main",
    )
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


class Trap:
    """A folder of marks, and programs that leave one in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks = folder, folder / "marks"
        self.marks.mkdir(parents=True)

    def program(self, name: str) -> Path:
        path = self.folder / f"run-{name}"
        path.write_text(f"#!/bin/sh\ntouch '{self.marks / name}'\nexit 1\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def section(self, name: str) -> str:
        """The lines of a configuration that name a program of their own."""
        hooks = self.folder / f"hooks-{name}"
        hooks.mkdir(exist_ok=True)
        for hook in HOOKS:
            self.program(name).replace(hooks / hook)
        included = self.folder / f"included-{name}"
        program = self.program(name)
        included.write_text(f"[core]\n fsmonitor = {program}\n", encoding="utf-8")
        places = {"program": program, "hooks": hooks, "included": included, "outside": self.folder}
        return SECTIONS[name].format(**places)

    def sprung(self) -> set[str]:
        return {path.name for path in self.marks.iterdir()}


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path / "trap")


def repository(folder: Path) -> str:
    """Make a repository whose files have attributes, are changed, and of which a blob is missing;
    return its commit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("one\n", encoding="utf-8")
    (folder / ".gitattributes").write_text("* filter=own diff=own merge=own\n", encoding="utf-8")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    commit, blob = git(folder, "rev-parse", "HEAD"), git(folder, "rev-parse", "HEAD:text.txt")
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    (folder / "text.txt").write_text("two\n", encoding="utf-8")
    return commit


def configure(repository: Path, *sections: str) -> None:
    with (repository / "config").open("a", encoding="utf-8") as file:
        file.write("\n".join(("", *sections, "")))


def embedded(folder: Path, *sections: str) -> None:
    """Put the plain files of a bare repository into a folder."""
    (folder / "objects").mkdir(parents=True)
    (folder / "refs" / "heads").mkdir(parents=True)
    (folder / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    bare = ("[core]", " repositoryformatversion = 0", " bare = false", " worktree = .")
    configure(folder, *bare, *sections)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_commit_is_named_and_no_program_of_a_configuration_runs(
    name: str, trap: Trap, tmp_path: Path
) -> None:
    commit = repository(tmp_path / "clone")
    configure(tmp_path / "clone" / ".git", trap.section(name))
    embedded(tmp_path / "clone" / "evil", trap.section(name))
    trap.marks.mkdir(exist_ok=True)
    assert commit_around(tmp_path / "clone") == commit
    assert commit_around(tmp_path / "clone" / "evil") is None
    assert trap.sprung() == set()


@pytest.mark.parametrize(
    "name", ["core.fsmonitor", "include.path", "filter.clean", "filter.process"]
)
def test_the_traps_are_real(name: str, trap: Trap, tmp_path: Path) -> None:
    repository(tmp_path / "clone")
    configure(tmp_path / "clone" / ".git", trap.section(name))
    subprocess.run(["git", "status"], cwd=tmp_path / "clone", check=False, capture_output=True)
    assert trap.sprung() == {name}


@pytest.mark.parametrize("path", [None, "", ":", "."])
def test_git_is_not_looked_for_in_the_folder(
    path: str | None, trap: Trap, tmp_path: Path, monkeypatch: Any
) -> None:
    commit = repository(tmp_path / "clone")
    trap.program("git").replace(tmp_path / "clone" / "git")
    monkeypatch.setenv("PATH", path or "")
    if path is None:
        monkeypatch.delenv("PATH")
    assert commit_around(tmp_path / "clone") == commit
    assert trap.sprung() == set()


def test_hooks_and_the_environment_of_another_repository_are_ignored(
    trap: Trap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository(tmp_path / "clone")
    repository(tmp_path / "other")
    for hook in HOOKS:
        trap.program("hook").replace(tmp_path / "clone" / ".git" / "hooks" / hook)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_EXEC_PATH", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(trap.program("variable")))
    assert commit_around(tmp_path / "clone") == commit
    assert trap.sprung() == set()


def test_git_is_not_taken_from_the_folder(
    trap: Trap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository(tmp_path / "clone")
    trap.program("git").rename(tmp_path / "clone" / "git")
    monkeypatch.chdir(tmp_path / "clone")
    monkeypatch.setenv("PATH", f":.:{os.environ['PATH']}")
    assert commit_around(tmp_path / "clone") == commit
    assert trap.sprung() == set()


def test_without_a_repository_or_a_commit_there_is_none(tmp_path: Path) -> None:
    assert commit_around(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert commit_around(tmp_path) is None
    assert commit_around(tmp_path / "missing") is None


# -------------------------------------------------------------------------------------------
# modules


def importable() -> Iterator[str]:
    """Every name of the standard library and of what is installed."""
    ours = {"composer", "blocks", "tests", "__main__", "__future__"}
    names = {
        name.partition("/")[0] for name in (*packages_distributions(), *sys.stdlib_module_names)
    }
    yield from (name for name in names if name.isidentifier() and name not in ours)


def plant(folder: Path, marks: Path) -> int:
    """Put a module of every such name into a folder; return how many they are."""
    folder.mkdir(parents=True, exist_ok=True)
    marks.mkdir(parents=True, exist_ok=True)
    names = list(importable())
    for name in names:
        (folder / f"{name}.py").write_text(
            f"open({str(marks / name)!r}, 'w').close()\n", encoding="utf-8"
        )
    return len(names)


SWEEP = """
sweep: 1
base: tiny.yaml
axes:
  rate: {set: training.optimizer.adam.learning_rate, values: [0.1, 0.2]}
"""


@pytest.mark.slow
def test_no_command_runs_what_lies_in_its_folder(trap: Trap, tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    repository(folder)
    evil = folder / "evil"
    sections = [trap.section(name) for name in SECTIONS if name not in ("promisor", "remote.vcs")]
    embedded(evil, *sections)
    configure(folder / ".git", *sections)
    assert plant(folder, trap.marks) > 300
    assert plant(evil, trap.marks) > 300
    recipe = TINY.replace("logging: {wandb: false}", "").replace("max_steps: 12", "max_steps: 2")
    (evil / "tiny.yaml").write_text(
        recipe.replace("validate_every: 4", "validate_every: 2"), encoding="utf-8"
    )
    (evil / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("WANDB")
    }
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    two = "trainer={devices: 2, accelerator: cpu}"
    for words in (
        ("check", "evil/tiny.yaml"),
        ("plan", "evil/tiny.yaml"),
        ("train", "evil/tiny.yaml", "--run", "one"),
        ("train", "evil/tiny.yaml", "--run", "both", two),
        ("sweep", "evil/tiny.yaml", "--run", "seeds", "--seeds", "1"),
        ("sweep", "evil/sweep.yaml", "--run", "sweep", "--workers", "2"),
        ("translate", "one", "--input", "text.txt"),
        ("evaluate", "one"),
        ("report", "one"),
        ("pack", "one", "--output", "one.tar"),
    ):
        done = subprocess.run(
            seqcomposer_command(*words),
            cwd=folder,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (words, done.stderr)
        assert trap.sprung() == set(), words
    assert json.loads((folder / "one" / "run.json").read_text(encoding="utf-8"))["git"] is None
    assert list(folder.glob("one/wandb/offline-run-*"))


LOGS = """
from pathlib import Path
from typing import Any
from composer.training.wandb_logger import WandbLogger
log = WandbLogger("offline", None, Path("run"), "name", "id")
print(log.run.settings.base_url, log.run.settings.entity, log.run.settings.run_notes)
"""
PULLS = """
import wandb
from pathlib import Path
from composer.hub.remotes import parse_reference
class Api:
    def __init__(self, **_): raise SystemExit(wandb.setup().settings.base_url)
wandb.Api = Api
parse_reference("wandb:a/b:v1").download(Path("none"), 1)
"""


@pytest.mark.parametrize(
    ("hidden", "has_own"),
    [
        pytest.param(*case, marks=pytest.mark.slow)
        for case in [("wandb", False), ("wandb", True), (".wandb", False), (".wandb", True)]
    ],
)
def test_wandb_takes_no_settings_from_its_folder(
    hidden: str, has_own: bool, tmp_path: Path
) -> None:
    """With another `base_url` it would send the user's key there. What users have set elsewhere
    holds.
    """
    folder, home = tmp_path / "clone", tmp_path / "home"
    for settings, who in ((folder / hidden / "settings", "foreign"), (home / "settings", "own")):
        settings.parent.mkdir(parents=True)
        settings.write_text(
            f"[default]\nbase_url = https://{who}.example\nentity = {who}\n", encoding="utf-8"
        )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("WANDB")
    }
    environment |= {"PYTHONPATH": str(ROOT), "WANDB_API_KEY": "k" * 40, "HOME": str(tmp_path)}
    if has_own:
        environment["WANDB_CONFIG_DIR"] = str(home)
    url = "https://own.example" if has_own else wandb.Settings().base_url
    for script, said in ((LOGS, f"{url} {'own' if has_own else None} None"), (PULLS, url)):
        command = [sys.executable, "-c", script]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.stdout or done.stderr).strip().splitlines()[-1] == said


def test_a_child_process_imports_nothing_from_its_folder(
    trap: Trap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path / "evil", trap.marks)
    monkeypatch.setenv("PYTHONPATH", f":{ROOT}:.")
    command, log = tuple(seqcomposer_command("--version")), tmp_path / "log"
    training = TrainingCommand("tried", command, tmp_path / "run", log, str(tmp_path / "evil"))
    assert TrainingProcess(training, {}).process.wait() == 0
    assert SlurmTraining(training)() == 0
    assert run_training(training) == 0
    assert trap.sprung() == set()


def test_the_environment_of_children_has_no_element_that_depends_on_the_folder() -> None:
    home = os.path.abspath(os.sep)
    relative = os.pathsep.join(("", ".", "src", home, "./x"))
    assert python_environment({"A": "b", "PYTHONPATH": relative}) == {
        "A": "b",
        "PYTHONPATH": home,
        "PYTHONSAFEPATH": "1",
    }
    assert python_environment({"PYTHONPATH": os.pathsep}) == {"PYTHONSAFEPATH": "1"}


def test_libraries_start_children_in_that_environment_and_ours_is_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", f":{ROOT}")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = dict(os.environ)
    with secure_children():
        assert os.environ["PYTHONPATH"] == str(ROOT)
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert dict(os.environ) == before
