"""The architecture of a recipe or of a run as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from composer.atomic_io import atomic_write
from composer.errors import RunError, os_error_reason
from composer.model.planner import plan, vocabulary_bounds
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir, recorded_vocabularies
from composer.viz.architecture.graph import Scene, scene
from composer.viz.architecture.mermaid import BEGINNING, mermaid
from composer.viz.architecture.svg import svg
from composer.viz.html import tag
from composer.viz.page import html_document

FORMS = {".svg": "an SVG picture", ".mmd": "Mermaid", ".md": "Markdown with Mermaid", ".html": "a page"}
"""The kinds of file that a picture is written to, by how their names end."""
BEGINNINGS = {
    ".svg": b'<svg xmlns="http://www.w3.org/2000/svg" class="architecture"',
    ".mmd": BEGINNING[0].encode(),
    ".html": b"<!DOCTYPE html>",
}
"""How a file begins that may be written over: as a picture does."""


@dataclass(frozen=True)
class Drawing:
    """The picture of an architecture: what stands in it. A notebook shows it."""

    scene: Scene

    def mermaid(self) -> str:
        """The picture as Mermaid's flowchart."""
        return mermaid(self.scene)

    def svg(self) -> str:
        """The picture as an SVG file, in light and in dark."""
        return svg(self.scene)

    def markdown(self) -> str:
        """A Markdown file that GitHub shows with the picture."""
        return f"# {self.scene.name}\n\n{self.scene.about}\n\n```mermaid\n{self.mermaid()}```\n"

    def html(self) -> str:
        """A page with the picture that needs nothing but itself."""
        picture = tag("div", {"class": "scroll"}, svg(self.scene))
        return html_document(
            f"{self.scene.name}: architecture", tag("main", {}, picture), style="main { max-width: none; }"
        )

    def save(self, path: str | Path) -> Path:
        """Writes the picture in the form that the file's name ends with: .svg, .mmd, .md or .html. Raises RunError."""
        file = Path(path)
        made = {".svg": self.svg, ".mmd": self.mermaid, ".md": self.markdown, ".html": self.html}
        require_format(file)
        require_picture_suffix(file)
        try:
            atomic_write(file, made[file.suffix.lower()]().encode())
        except OSError as error:
            raise cannot_write(file, os_error_reason(error)) from None
        return file

    def _repr_html_(self) -> str:
        return self.svg()


def draw(
    recipe: Recipe | str | Path, overrides: Sequence[str] = (), vocabularies: Mapping[str, int] | None = None
) -> Drawing:
    """The architecture of a recipe: one that is loaded, a recipe's file, or a run folder, with its real vocabularies.

    `overrides` are `key=value` settings that are laid over a file. Raises RecipeError with every fault, and RunError.
    """
    if not isinstance(recipe, Recipe):
        recipe, vocabularies = opened(Path(recipe), overrides, vocabularies)
    bounds = vocabulary_bounds(recipe)
    known = vocabularies if vocabularies is not None and vocabularies.keys() == bounds.keys() else bounds
    return Drawing(scene(recipe, plan(recipe, known)))


def opened(
    path: Path, overrides: Sequence[str], known: Mapping[str, int] | None
) -> tuple[Recipe, Mapping[str, int] | None]:
    """The recipe in a file or a run folder, and the sizes of the vocabularies where a run has found them."""
    if not path.is_dir():
        return load(path, overrides), known
    folder = RunDir(path)
    record = folder.read()
    return load(folder.recipe, overrides), known or (None if overrides else recorded_vocabularies(record))


def require_format(file: Path) -> None:
    """Raises RunError where a file's name does not say which kind of picture it is to hold."""
    if file.suffix.lower() not in FORMS:
        forms = ", ".join(f"`{suffix}` for {what}" for suffix, what in FORMS.items())
        raise RunError.of("the name of the file does not say what to draw", f"end it with {forms}", str(file))


def require_picture_suffix(file: Path) -> None:
    """Raises RunError where a picture cannot be written; what is there may only be a picture."""
    if not file.parent.is_dir():
        raise cannot_write(file, "its folder is not there")
    try:
        is_picture = not file.exists() or (file.is_file() and holds_picture(file))
    except OSError as error:
        raise cannot_write(file, os_error_reason(error)) from None
    if not is_picture:
        raise cannot_write(file, "what is there is no picture, and would be lost")


def holds_picture(file: Path) -> bool:
    """Whether a file is one that was drawn; a Markdown file, only if it has nothing else than a picture."""
    content = file.read_bytes()
    if file.suffix.lower() == ".md":
        return (
            content.count(b"```") == 2
            and content.endswith(b"```\n")
            and b"\n```mermaid\n" + BEGINNINGS[".mmd"] in content
        )
    return content.startswith(BEGINNINGS[file.suffix.lower()])


def cannot_write(file: Path, why: str) -> RunError:
    """That a picture cannot be written, in words."""
    return RunError.of(f"the drawing cannot be written: {why}", "name another file with `--output FILE`", str(file))
