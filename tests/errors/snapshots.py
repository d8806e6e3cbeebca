"""Broken recipes, and what is said of each: a list in each YAML file here.

A case has the text of a `recipe`, and the `faults` of `seqcomposer check --any-machine
--without-data`, in order, each with its `place` (line and column), `code`, path (`at`), `message`
and `fix`. Where there is no error they are warnings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import yaml

import composer

FILES = sorted(Path(__file__).parent.glob("*.yaml"))


class Fault(TypedDict):
    place: str
    code: str
    at: str
    message: str
    fix: str


class Case(TypedDict):
    recipe: str | bytes
    faults: list[Fault]


def read(file: Path) -> list[Case]:
    """Return the cases of a file."""
    cases: list[Case] = yaml.load(file.read_text(encoding="utf-8"), Loader)
    return cases


def write(file: Path, cases: list[Case]) -> None:
    """Write cases into a file, texts of several lines as they are."""
    text = yaml.dump(cases, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    file.write_text(text, encoding="utf-8")


def faults_of(recipe: str | bytes, folder: Path) -> list[Fault]:
    """Return what is said of a recipe now; `folder` is an empty one, for its file."""
    file = folder / "recipe.yaml"
    file.write_bytes(recipe if isinstance(recipe, bytes) else recipe.encode())
    faults = composer.check(file, any_machine=True, without_data=True, strict=True)
    return [
        {
            "place": f"{fault.line}:{fault.column}",
            "code": fault.code if fault.severity == "error" else f"{fault.code} (warning)",
            "at": fault.path,
            "message": fault.message.replace(str(folder), "FOLDER"),
            "fix": fault.hint.replace(str(folder), "FOLDER"),
        }
        for fault in faults
    ]


def meaning(faults: list[Fault]) -> list[str]:
    """Return the place and the code of each fault."""
    return [f"{fault['place']}: {fault['code']}" for fault in faults]


Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Dumper(yaml.SafeDumper):
    """Writes a text of several lines as a block, where YAML can."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        )

    def ignore_aliases(self, data: object) -> bool:
        return True


Dumper.add_representer(str, Dumper.represent_text)
