"""The code blocks of a page of documentation, tried in order and in one folder, as a reader would.

What a block is stands in its first line, where the reader sees it too:

    ```yaml title="mine.yaml"           a whole recipe or sweep; it is written there, and `check` must accept it
    ```yaml title="mine.yaml, refused"  the same, which `check` must refuse
    ```yaml title="model.decoder"       a fragment; `check` must accept it at that place of a small recipe
    ```yaml                             a whole recipe or sweep, or sections of one, which begin with their keys
    ```sh                               commands; all must succeed. A training is cut short by `CUT`
    ```sh title="needs ..."             what a test cannot run: commands and options are still held against the parsers
    ```text title="$ COMMAND"           what that command prints, to the letter
    ```python                           runs, and sees what the blocks before it have defined
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import typer
import yaml
from typer.main import get_command

import composer
from composer.cli import main
from composer.sweeps.search_space import list_points
from composer.sweeps.spec import read_sweep

ROOT = Path(__file__).parents[2]
CUT = (
    "training.max_steps=4",
    "training.tokens_per_batch=400",
    "logging={wandb: false}",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
)
"""What every `train` of a page is given beside what the page says: it is then over in seconds."""
GENERATED = (
    "data.generate.number_words.train=200",
    "data.generate.number_words.val=20",
    "data.generate.number_words.test=20",
)
"""The same for the quick start, whose data would be tried for longer than it is trained on."""
NOT_OURS = {
    "python3",
    "python",
    ".venv/bin/pip",
    ".venv/bin/pytest",
    ".venv/bin/ruff",
    ".venv/bin/mypy",
    "pytest",
    "pip",
    "mkdocs",
    "git",
    "hf",
    "wandb",
}
"""Commands that only set up a machine; of those below benchmarks/ the options are looked up."""
SKELETON: dict[str, Any] = {
    "recipe": 1,
    "data": {"generate": "copy"},
    "model": {
        "width": 64,
        "encoder": [{"rnn": {"cell": "gru", "as": "state"}}],
        "decoder": [{"rnn": {"cell": "gru"}}, "cross_attention"],
    },
}
FENCE = re.compile(r"^( *)(`{3,})(\w*)([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)


class Fenced(NamedTuple):
    """A code block."""

    page: str
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class WrongPage(AssertionError):
    """What a page says is not so."""


def fenced(page: str, text: str) -> Iterator[Fenced]:
    """The code blocks of a page, those inside lists and notes too."""
    for found in FENCE.finditer(text):
        indent, _, language, rest, inner = found.groups()
        title = re.search(r'title="([^"]*)"', rest)
        plain = re.sub(rf"^{indent}", "", inner, flags=re.MULTILINE)
        yield Fenced(page, text.count("\n", 0, found.start()) + 1, language, title[1] if title else "", plain)


def tried(blocks: Sequence[Fenced], folder: Path) -> None:
    """Tries the blocks of a page, in order; the working directory is `folder`. Raises WrongPage."""
    for name in ("recipes", "schemas", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    known: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        try:
            _try(block, folder, known)
        except WrongPage as error:
            raise WrongPage(f"{block.place}: {error}") from error


def _try(block: Fenced, folder: Path, known: dict[str, Any]) -> None:
    if block.language == "yaml":
        _yaml(block, folder)
    elif block.language == "sh":
        for command in commands(block.text):
            looked_up(command) if block.title.startswith("needs ") else ran(command)
    elif block.language == "text" and block.title.startswith("$ "):
        printed = "".join(ran(command, strict=False) for command in commands(block.title[2:]))
        _same(block.text, printed)
    elif block.language == "python":
        _python(block, known)


def _same(told: str, printed: str) -> None:
    bare = [dedent("\n".join(line.rstrip() for line in text.splitlines())).strip("\n") for text in (told, printed)]
    if bare[0] != bare[1]:
        raise WrongPage(f"what is printed is not what the page says, but:\n{bare[1]}")


def _python(block: Fenced, known: dict[str, Any]) -> None:
    try:
        exec(compile(block.text, block.place, "exec"), known)
    except Exception as error:
        raise WrongPage(f"{type(error).__name__}: {error}") from error


# ------------------------------------------------------------------------------------------- YAML


def _yaml(block: Fenced, folder: Path) -> None:
    name, _, refused = block.title.partition(", ")
    if name.endswith((".yaml", ".yml")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(block.text, encoding="utf-8")
        accepted(folder / name, refused == "refused")
    else:
        whole = re.match(r"(?:#.*\n|\s)*(recipe|sweep):", block.text)
        text = block.text if whole else yaml.safe_dump(placed(yaml.safe_load(block.text), name), sort_keys=False)
        (folder / "fragment.yaml").write_text(text, encoding="utf-8")
        accepted(folder / "fragment.yaml", refused="refused" in block.title)


def placed(fragment: Any, place: str) -> dict[str, Any]:
    """The skeleton with a fragment at its place, or laid over its sections where they are the fragment's own keys."""
    place = place.removesuffix("refused").strip(", ")
    if not place:
        if not isinstance(fragment, dict) or not set(fragment) <= {
            *SKELETON,
            "vars",
            "training",
            "decoding",
            "trainer",
            "logging",
            "name",
            "description",
        }:
            raise WrongPage('say what it is a fragment of: ```yaml title="model.encoder"')
        return {**SKELETON, **{key: over(SKELETON.get(key), value) for key, value in fragment.items()}}
    *outer, last = place.split(".")
    for key in (last, *reversed(outer)):
        fragment = {key: fragment}
    return {**SKELETON, **{key: over(SKELETON.get(key), value) for key, value in fragment.items()}}


def over(below: Any, above: Any) -> Any:
    """A mapping laid over another."""
    if isinstance(below, dict) and isinstance(above, dict) and "generate" not in below:
        return {**below, **above}
    return above


def accepted(path: Path, refused: bool) -> None:
    """Raises WrongPage where a file is not accepted, or not refused, as the page says."""
    try:
        if re.match(r"(?:#.*\n|\s)*sweep:", path.read_text(encoding="utf-8")):
            list_points(read_sweep(path))
        else:
            composer.load(path).plan()
    except composer.ComposerError as error:
        if not refused:
            raise WrongPage(f"it is refused:\n{error.render()}") from error
    else:
        if refused:
            raise WrongPage("it is accepted")


# ------------------------------------------------------------------------------------------- commands


def commands(text: str) -> Iterator[list[str]]:
    """The commands of a block, each a list of words and of the signs `|`, `<`, `>`; a loop is its body, once."""
    joined = re.sub(r"\\\n\s*", " ", text)
    loops = dict(re.findall(r"for (\w+) in (?:\$\(seq )?(\w+)", joined))
    for line in joined.splitlines():
        for name, value in loops.items():
            line = line.replace(f"${name}", value)
        words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        words.whitespace_split = True
        for ends, command in groupby(words, lambda word: word in ("&&", ";")):
            found = _bare(list(command))
            if not ends and found and found[0] not in ("for", "done"):
                yield found


def _bare(words: list[str]) -> list[str]:
    """A command without `do` and the variables set for it."""
    while words and (words[0] == "do" or re.fullmatch(r"[A-Z_]+=.*", words[0])):
        words = words[1:]
    return words


def ran(command: list[str], strict: bool = True) -> str:
    """What a pipeline prints. Raises WrongPage where a part of it fails."""
    text = ""
    for pipe, words in groupby(command, lambda word: word == "|"):
        if not pipe:
            text, status = _part(list(words), text)
            if status and strict:
                raise WrongPage(f"`{shlex.join(command)}` ends with status {status}:\n{text}")
    return text


def _part(words: list[str], text: str) -> tuple[str, int]:
    """One part of a pipeline: what it prints, and its status."""
    output = None
    for sign in ("<", ">"):
        if sign in words:
            where = words.index(sign)
            name, words = Path(words[where + 1]), words[:where] + words[where + 2 :]
            text, output = (name.read_text(encoding="utf-8"), output) if sign == "<" else (text, name)
    if words[0] == "seqcomposer":
        printed, status = _ours(cut(words[1:]), text, only_out=output is not None)
    else:
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        printed, status = done.stdout + done.stderr, done.returncode
    if output is not None:
        output.write_text(printed, encoding="utf-8")
        printed = ""
    return printed, status


def cut(arguments: list[str]) -> list[str]:
    """The same command, over in seconds: a training of a few steps, a sweep that only lists its points."""
    if arguments[0] == "sweep":
        return [*arguments, *([] if "--dry-run" in arguments else ["--dry-run"])]
    if arguments[0] != "train":
        return arguments
    generated = any(each.endswith("quickstart.yaml") for each in arguments)
    return [*arguments, *CUT, *(GENERATED if generated else ())]


def _ours(arguments: list[str], text: str, only_out: bool) -> tuple[str, int]:
    """A command of ours in this process: what it prints, and its status."""
    out, before = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), sys.stdin
    err = io.StringIO() if only_out or arguments[0] == "train" else out
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main.main(arguments)
    except SystemExit as left:
        status = int(left.code or 0)
    except Exception as error:
        raise WrongPage(f"`seqcomposer {shlex.join(arguments)}` raises {type(error).__name__}: {error}") from error
    finally:
        sys.stdin = before
    out.flush()
    printed = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return printed + (err.getvalue() if isinstance(err, io.StringIO) and status else ""), status


def looked_up(command: list[str]) -> None:
    """Holds commands against the parsers, without running them. Raises WrongPage."""
    for pipe, part in groupby(command, lambda word: word == "|"):
        words = [word for word in part if word not in ("<", ">")]
        if pipe:
            continue
        if words[0].endswith("seqcomposer"):
            _parsed(words[1:])
        elif (script := _benchmark(words)) is not None:
            _has_options(script, words)
        elif "/" in words[0] and (ROOT / words[0]).exists():
            continue
        elif words[0] not in NOT_OURS | {"echo", "cat", "sbatch", "head"}:
            raise WrongPage(f"`{words[0]}` is no command that is known here")


def _parsed(arguments: list[str]) -> None:
    found = get_command(main.app).commands.get(arguments[0])  # type: ignore[attr-defined]
    if found is None:
        raise WrongPage(f"there is no command `{arguments[0]}`")
    try:
        found.make_context(arguments[0], list(arguments[1:]))
    except (typer.Exit, typer.Abort) as error:
        raise WrongPage(f"`seqcomposer {shlex.join(arguments)}` ends at once") from error
    except Exception as error:  # the parser's own errors have no public name
        raise WrongPage(f"`seqcomposer {shlex.join(arguments)}`: {error}") from error


def _benchmark(words: list[str]) -> Path | None:
    named = re.search(r"benchmarks[./](\w+)", " ".join(words[:3]))
    if named is None:
        return None
    script = ROOT / f"benchmarks/{named[1]}.py"
    if not script.exists():
        raise WrongPage(f"there is no {script.relative_to(ROOT)}")
    return script


def _has_options(script: Path, words: list[str]) -> None:
    text = script.read_text(encoding="utf-8")
    for option in (word.split("=")[0] for word in words if word.startswith("--")):
        if not re.search(rf"{option}(?![\w-])", text):
            raise WrongPage(f"{script.name} takes no {option}")
