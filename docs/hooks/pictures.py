"""Make the pictures of README, the start page and the tutorial, from their own recipes and a run.

    python -m docs.hooks.pictures

trains the tutorial's recipe for 800 steps and the two of own-media.md for 500, and needs the extras
`figures`, `images` and `audio`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from num2words import num2words

from composer.inference.run import open_run
from composer.run_dir import RunDir, read_metrics
from composer.viz.alignments import alignments
from composer.viz.architecture import draw
from composer.viz.figure_files import chart_svg
from composer.viz.page import learning_charts
from composer.viz.report_figures import vega_lite
from docs.hooks.corpus import ROOT

PICTURES = ROOT / "docs" / "pictures"
SENTENCE = "six thousand, four hundred and twenty-one"


def draw_page(page: Path, name: str) -> None:
    """Draw the recipe of a page that stands above its drawing."""
    text = page.read_text(encoding="utf-8")
    above = text[: text.index(f"pictures/{name}.svg")]
    recipe = re.findall(r"^```yaml.*?\n(.*?)^```", above, re.MULTILINE | re.DOTALL)[-1]
    file = Path("mine.yaml")  # the name of the drawing
    file.write_text(recipe, encoding="utf-8")
    write_svg(name, draw(file).svg())


def write_svg(name: str, svg: str) -> None:
    """Write a picture."""
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")


def run(*arguments: str) -> None:
    """Run a command of seqcomposer. Raises CalledProcessError if it fails."""
    command = Path(sys.executable).with_name("seqcomposer")
    subprocess.run([str(command), *arguments], check=True)


def train_tutorial() -> Path:
    """Make the data and the recipe of the tutorial in this folder, and return its trained run."""
    numbers = range(1, 10_000, 3)
    for file, language in (("train.en", "en"), ("train.fr", "fr")):
        lines = [f"{num2words(number, lang=language)}\n" for number in numbers]
        Path(file).write_text("".join(lines), encoding="utf-8")
    run("new", "--source", "train.en", "--target", "train.fr")
    run("train", "en-fr.yaml", "training.max_minutes=null", "training.max_steps=800")
    return Path("runs/en-fr").absolute()


def train_media() -> None:
    """Make the data of own-media.md, train its recipes, and draw what they read of one file."""
    page = (ROOT / "docs" / "own-media.md").read_text(encoding="utf-8")
    makers = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    subprocess.run([sys.executable, "-c", makers], check=True)
    recipes = re.findall(r'^```yaml title="(.*?)"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    for file, recipe in recipes:
        Path(file).write_text(recipe, encoding="utf-8")
    for name, medium in (("shapes", "pictures/29.png"), ("keys", "recordings/7.wav")):
        run("train", f"{name}.yaml", "training.max_minutes=null", "training.max_steps=500")
        (alignment,) = alignments(open_run(Path("runs", name)), [medium])
        print(f"{name}: {medium}: {alignment.output}")
        write_svg(name, alignment.svg())


def make_pictures() -> None:
    """Make all of them, in a folder that is removed again."""
    with TemporaryDirectory() as folder, chdir(folder):
        draw_page(ROOT / "docs" / "index.md", "mine")
        train_media()
        home = train_tutorial()
        write_svg("en-fr", draw("en-fr.yaml").svg())
        (alignment,) = alignments(open_run(home), [SENTENCE])
        read = [maps for maps in alignment.attentions if maps.word == "cross_attention"]
        write_svg("alignment", replace(alignment, attentions=read).svg())
        charts = learning_charts(read_metrics(RunDir(home).metrics))
        loss = next(chart for chart in charts if chart.spec.title == "Loss")
        write_svg("curves", chart_svg(vega_lite(loss), PICTURES / "curves.svg"))


if __name__ == "__main__":
    make_pictures()
