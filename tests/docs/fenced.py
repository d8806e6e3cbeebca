"""Run the code blocks of a documentation page, in order and in one folder, as a reader would.

The first line of a block, which readers see too, says how to run it:

    ```yaml title="mine.yaml"           a recipe or sweep, written to that file, for `check`
    ```yaml title="mine.yaml, refused"  the same, but `check` must refuse it
    ```yaml title="model.decoder"       a fragment; `check` must accept it there, in a small recipe
    ```yaml                             a recipe or sweep, or sections of one
    ```sh                               commands that succeed; `SHORT_TRAINING` shortens trainings
    ```sh title="needs ..."             commands that are not run; their options are checked
    ```text title="$ COMMAND"           the exact output of that command
    ```python                           is run with the names that earlier blocks have defined
"""

from __future__ import annotations

import contextlib
import io
import linecache
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
from composer.sweeps.points import list_points
from composer.sweeps.spec import read_sweep

ROOT = Path(__file__).parents[2]
SHORT_TRAINING = (
    "training.max_steps=4",
    "training.tokens_per_batch=400",
    "logging={wandb: false}",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
)
"""Overrides for every `train` of a page, so that it takes seconds."""
SHORT_QUICKSTART = (
    "data.generate.number_words.train=200",
    "data.generate.number_words.val=20",
    "data.generate.number_words.test=20",
)
"""The same for the quick start, whose validation would take longer than its training."""
SHORT_LOOPS = {"in range(3000):": "in range(300):", "in range(2000):": "in range(300):"}
"""In Python, the same for files that a page writes one by one."""
OTHER_COMMANDS = {
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
    "docker",
    "du",
    "sort",
}
"""Commands that set up a machine, and are not checked; the options of SCRIPTS are."""
SCRIPTS = ("benchmarks", "verify", "prepare_data")
SMALL_RECIPE: dict[str, Any] = {
    "recipe": 1,
    "data": {"generate": "copy"},
    "model": {
        "width": 64,
        "encoder": [{"rnn": {"cell": "gru", "as": "state"}}],
        "decoder": [{"rnn": {"cell": "gru"}}, "cross_attention"],
    },
}
FENCE = re.compile(r"^( *)(`{3,})(\w*)([^\n`]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)


class CodeBlock(NamedTuple):
    """A code block of a page."""

    page: str
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class PageError(AssertionError):
    """A page is wrong."""


def code_blocks(page: str, text: str) -> Iterator[CodeBlock]:
    """Yield the code blocks of a page, including those in lists and notes."""
    for match in FENCE.finditer(text):
        indent, _, language, attributes, body = match.groups()
        title = re.search(r'title="([^"]*)"', attributes)
        content = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        yield CodeBlock(
            page,
            text.count("\n", 0, match.start()) + 1,
            language,
            title[1] if title else "",
            content,
        )


def run_blocks(blocks: Sequence[CodeBlock], folder: Path) -> None:
    """Run the blocks of a page in order; the working directory is `folder`. Raises PageError."""
    for name in ("recipes", "schemas", *SCRIPTS):
        (folder / name).symlink_to(ROOT / name)
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        try:
            _run_block(block, folder, namespace)
        except PageError as error:
            raise PageError(f"{block.place}: {error}") from error


def _run_block(block: CodeBlock, folder: Path, namespace: dict[str, Any]) -> None:
    if block.language == "yaml":
        _check_yaml(block, folder)
    elif block.language == "sh":
        for command in split_commands(block.text):
            check_options(command) if block.title.startswith("needs ") else run_pipeline(command)
    elif block.language == "text" and block.title.startswith("$ "):
        printed = "".join(
            run_pipeline(command, strict=False) for command in split_commands(block.title[2:])
        )
        _check_output(block.text, printed)
    elif block.language == "python":
        _run_python(block, namespace)


def _check_output(expected: str, printed: str) -> None:
    expected, printed = (
        dedent("\n".join(line.rstrip() for line in text.splitlines())).strip("\n")
        for text in (expected, printed)
    )
    if expected != printed:
        raise PageError(f"the output differs from the page:\n{printed}")


def _run_python(block: CodeBlock, namespace: dict[str, Any]) -> None:
    text = block.text
    for long, short in SHORT_LOOPS.items():
        text = text.replace(long, short)
    # as a notebook does, so that the source of a class can be read
    linecache.cache[block.place] = (len(text), None, text.splitlines(keepends=True), block.place)
    try:
        exec(compile(text, block.place, "exec"), namespace)
    except Exception as error:
        raise PageError(f"{type(error).__name__}: {error}") from error


# ------------------------------------------------------------------------------------------- YAML


def _check_yaml(block: CodeBlock, folder: Path) -> None:
    name, _, refused = block.title.partition(", ")
    if name.endswith((".yaml", ".yml")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(block.text, encoding="utf-8")
        check_accepted(folder / name, refused == "refused")
    else:
        text = block.text
        if not re.match(r"(?:#.*\n|\s)*(recipe|sweep):", text):
            text = yaml.safe_dump(insert_fragment(yaml.safe_load(text), name), sort_keys=False)
        (folder / "fragment.yaml").write_text(text, encoding="utf-8")
        check_accepted(folder / "fragment.yaml", refused="refused" in block.title)


def insert_fragment(fragment: Any, path: str) -> dict[str, Any]:
    """Insert a fragment into the small recipe: at a path, or over its sections if it has their
    keys.
    """
    path = path.removesuffix("refused").strip(", ")
    if not path:
        if not isinstance(fragment, dict) or not set(fragment) <= {
            *SMALL_RECIPE,
            "vars",
            "training",
            "decoding",
            "trainer",
            "logging",
            "name",
            "description",
        }:
            raise PageError('name the path of the fragment: ```yaml title="model.encoder"')
        return {
            **SMALL_RECIPE,
            **{key: merge(SMALL_RECIPE.get(key), value) for key, value in fragment.items()},
        }
    *parents, last = path.split(".")
    for key in (last, *reversed(parents)):
        fragment = {key: fragment}
    return {
        **SMALL_RECIPE,
        **{key: merge(SMALL_RECIPE.get(key), value) for key, value in fragment.items()},
    }


def merge(base: Any, override: Any) -> Any:
    """Merge a mapping over another."""
    if isinstance(base, dict) and isinstance(override, dict) and "generate" not in base:
        return {**base, **override}
    return override


def check_accepted(path: Path, refused: bool) -> None:
    """Raise PageError if a file is not accepted, or not refused, as the page says."""
    try:
        if re.match(r"(?:#.*\n|\s)*sweep:", path.read_text(encoding="utf-8")):
            list_points(read_sweep(path))
        else:
            composer.load(path).plan()
    except composer.ComposerError as error:
        if not refused:
            raise PageError(f"check refuses it:\n{error.render()}") from error
    else:
        if refused:
            raise PageError("check accepts it")


# -------------------------------------------------------------------------------------------
# commands


def split_commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a block as lists of words and `|`, `<`, `>`; a loop once."""
    joined = re.sub(r"\\\n\s*", " ", text)
    loops = dict(re.findall(r"for (\w+) in (?:\$\(seq )?(\w+)", joined))
    for line in joined.splitlines():
        for name, value in loops.items():
            line = line.replace(f"${name}", value)
        words = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        words.whitespace_split = True
        for is_separator, command in groupby(words, lambda word: word in ("&&", ";")):
            command = _strip_shell(list(command))
            if not is_separator and command and command[0] not in ("for", "done"):
                yield command


def _strip_shell(words: list[str]) -> list[str]:
    """Return a command without `do` and variable assignments."""
    while words and (words[0] == "do" or re.fullmatch(r"[A-Z_]+=.*", words[0])):
        words = words[1:]
    return words


def run_pipeline(command: list[str], strict: bool = True) -> str:
    """Run a pipeline and return its output. Raises PageError if a part fails."""
    text = ""
    for pipe, words in groupby(command, lambda word: word == "|"):
        if not pipe:
            text, status = _run_part(list(words), text)
            if status and strict:
                raise PageError(f"`{shlex.join(command)}` ends with status {status}:\n{text}")
    return text


def _run_part(words: list[str], text: str) -> tuple[str, int]:
    """Run one part of a pipeline; return its output and status."""
    output = None
    for sign in ("<", ">"):
        if sign in words:
            index = words.index(sign)
            name, words = Path(words[index + 1]), words[:index] + words[index + 2 :]
            text, output = (
                (name.read_text(encoding="utf-8"), output) if sign == "<" else (text, name)
            )
    if words[0] == "seqcomposer":
        printed, status = _run_in_process(shorten(words[1:]), text, only_out=output is not None)
    else:
        words = [sys.executable, *words[1:]] if words[0] == "python" else words
        process = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        printed, status = process.stdout + process.stderr, process.returncode
    if output is not None:
        output.write_text(printed, encoding="utf-8")
        printed = ""
    return printed, status


def shorten(arguments: list[str]) -> list[str]:
    """Shorten a command: a training of a few steps, a sweep that only lists its points."""
    if arguments[0] == "sweep":
        return [*arguments, *([] if "--dry-run" in arguments else ["--dry-run"])]
    if arguments[0] != "train":
        return arguments
    quickstart = any(argument.endswith("quickstart.yaml") for argument in arguments)
    return [*arguments, *SHORT_TRAINING, *(SHORT_QUICKSTART if quickstart else ())]


def _run_in_process(arguments: list[str], text: str, only_out: bool) -> tuple[str, int]:
    """Run a seqcomposer command in this process; return its output and status."""
    out, stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), sys.stdin
    err = io.StringIO() if only_out or arguments[0] == "train" else out
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main.main(arguments)
    except SystemExit as exit_error:
        status = int(exit_error.code or 0)
    except Exception as error:
        raise PageError(
            f"`seqcomposer {shlex.join(arguments)}` raises {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.stdin = stdin
    out.flush()
    printed = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    return printed + (err.getvalue() if isinstance(err, io.StringIO) and status else ""), status


def check_options(command: list[str]) -> None:
    """Check the options of commands without running them. Raises PageError."""
    for pipe, part in groupby(command, lambda word: word == "|"):
        words = [word for word in part if word not in ("<", ">")]
        if pipe:
            continue
        if words[0].endswith("seqcomposer"):
            _check_arguments(words[1:])
        elif (script := _script(words)) is not None:
            _check_script_options(script, words)
        elif "/" in words[0] and (ROOT / words[0]).exists():
            continue
        elif words[0] not in OTHER_COMMANDS | {
            "echo",
            "cat",
            "sbatch",
            "head",
            "tail",
            "mkdir",
            "curl",
            "gunzip",
            "tar",
            "sacrebleu",
        }:
            raise PageError(f"`{words[0]}` is not a known command")


def _check_arguments(arguments: list[str]) -> None:
    command = get_command(main.app).commands.get(arguments[0])  # type: ignore[attr-defined]
    if command is None:
        raise PageError(f"there is no command `{arguments[0]}`")
    try:
        command.make_context(arguments[0], list(arguments[1:]))
    except (typer.Exit, typer.Abort) as error:
        raise PageError(f"`seqcomposer {shlex.join(arguments)}` exits at once") from error
    except Exception as error:  # the parser's own errors have no public name
        raise PageError(f"`seqcomposer {shlex.join(arguments)}`: {error}") from error


def _script(words: list[str]) -> Path | None:
    """Return the script of this repository that a command runs, or None."""
    match = re.search(rf"({'|'.join(SCRIPTS)})[./](\w+)", " ".join(words[:3]))
    if match is None:
        return None
    folder, name = match.groups()
    for script in (ROOT / folder / f"{name}.py", ROOT / folder / name / "__main__.py"):
        if script.exists():
            return script
    raise PageError(f"there is no {folder}/{name}.py")


def _check_script_options(script: Path, words: list[str]) -> None:
    text = script.read_text(encoding="utf-8")
    for option in (word.split("=")[0] for word in words if word.startswith("--")):
        if not re.search(rf"{option}(?![\w-])", text):
            raise PageError(f"{script.name} has no option {option}")
