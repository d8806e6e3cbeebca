"""The gallery: a page for each recipe of the repository, with its picture, what it costs and what it has scored."""

# ruff: noqa: RUF001
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from composer.recipe.metrics import METRICS
from docs.hooks.corpus import RECIPES, Cost, Shown, results, shown
from docs.hooks.pages import code, folded, page, short, table

Run = Mapping[str, Any]
Costs = Mapping[str, Cost]
SHOWN = ("exact_match", "token_accuracy", "bleu", "chrf", "perplexity", "bits_per_sequence")
"""The metrics of the tables, in this order; shares are shown in percent."""
SPLITS = {"test": "the test data", "val": "the validation data"}
ABOUT = """\
Every recipe of the repository, checked, costed and trained by the same commands as your own. Parameters and FLOPs, of a
pair of 32 source and 32 target tokens, are told by `plan`; scores on test data by finished runs, and a recipe without
one says so. A score with a star is of a run that had something otherwise than its recipe says, most often its budget:
its page tells what."""
CHAPTERS = {
    "quickstart": "Quick start",
    "papers": "The literature",
    "domhan": "How much attention do you need?",
    "ladder": "The Multi30k ladder",
    "multi30k": "Multi30k",
    "active_memory": "Active memory, translation",
    "algorithms": "Algorithms",
    "stacks": "Neural stacks",
    "memory": "External memories",
    "babi": "bAbI",
    "dialect": "A dialect of an invented language",
}


def recipe_page(each: Shown, costs: Costs) -> str:
    """The page of a recipe."""
    return page(
        f"---\ntitle: {each.place.rpartition('/')[2]}\n---",
        f"# {each.place.rpartition('/')[2]}",
        linked(each.about),
        picture(each, costs.get(each.place)),
        "## What it costs",
        cost(costs.get(each.place)),
        "## What it has scored",
        scores(results().get(each.place, ())),
        "## The recipe",
        code(f"seqcomposer check recipes/{each.place}.yaml\nseqcomposer train recipes/{each.place}.yaml", "sh"),
        code(each.text, "yaml", f"recipes/{each.place}.yaml"),
        *(
            folded(f"{path.relative_to(RECIPES.parent)}", code(path.read_text(encoding="utf-8"), "yaml"))
            for path in each.extends
        ),
        folded("The same without `extends` and `vars`", code(each.recipe.dump(), "yaml")),
    )


def linked(text: str) -> str:
    """A comment of a recipe as prose: arXiv's numbers are links, and nothing in it is Markdown."""
    text = re.sub(r"([<>*_\[\]])", r"\\\1", text)
    return re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def picture(each: Shown, told: Cost | None) -> str:
    """The architecture as it is drawn; the file lies beside the page."""
    name = each.place.rpartition("/")[2]
    return f"![The architecture of {name}]({name}.svg){{ .picture loading=lazy }}" if told else ""


def cost(told: Cost | None) -> str:
    """What `plan` tells, in a line."""
    if told is None:
        return "Not computed for this copy of the site; `seqcomposer plan` tells."
    state = f"{short(told.state_bytes)}B of decoding state" if told.state_bytes else "no decoding state"
    return (
        f"{told.parameters:,} parameters; {short(told.flops)}FLOPs for a pair of 32 source and 32 target tokens; "
        f"{state} after them."
    )


# ------------------------------------------------------------------------------------------- scores


def scores(runs: Sequence[Run]) -> str:
    """The tables of a recipe's runs: of those that were tested, and of those that have only been validated."""
    if not runs:
        return "Not run."
    parts = [[run for run in runs if split_of(run) == split] for split in ("test", "val")]
    return page(*(scored(part) for part in parts if part), provenance(runs))


def scored(runs: Sequence[Run]) -> str:
    """Runs that are told of the same data, several seeds of the same in one row."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[tuple(others(run))].append(run)
    split = split_of(runs[0])
    metrics = [name for name in SHOWN if any(value(run, split, name) is not None for run in runs)]
    head = ("otherwise than the recipe", "seeds", *(METRICS[name].label for name in metrics), "steps", "minutes")
    rows = [row(differs, group, split, metrics) for differs, group in sorted(groups.items(), key=in_order)]
    seeds = "; the mean of several seeds, and in brackets the least and the most" if len(rows) < len(runs) else ""
    return page(
        f"Measured on {SPLITS[split]}, decoded as the recipe says unless a row says otherwise{seeds}.",
        table(head, rows, len(head) - 1),
    )


def in_order(group: tuple[tuple[str, ...], list[Run]]) -> tuple[list[Any], ...]:
    """By what differs, numbers as numbers."""
    return ([int(part) if part.isdigit() else part for part in re.split(r"(\d+)", " ".join(group[0]))],)


def split_of(run: Run) -> str:
    """The data that a run's scores are told of."""
    return "test" if any(key.startswith("test/") for key in run["scores"]) else "val"


def row(differs: tuple[str, ...], group: Sequence[Run], split: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """Runs that differ in their seeds alone."""
    said = " ".join(f"`{each}`" for each in differs) or "nothing"
    seeds = str(group[0]["seed"]) if len(group) == 1 else f"{len(group)} seeds"
    shown = [spread([value(run, split, name) for run in group], percent(name)) for name in metrics]
    return (said, seeds, *shown, spread([run["steps"] for run in group]), spread([run["minutes"] for run in group]))


def value(run: Run, split: str, name: str) -> float | None:
    """A score; BLEU 0 of answers of a word or two says nothing, since it counts four in a row."""
    found = run["scores"].get(f"{split}/{name}")
    if found is None or (name == "bleu" and found == 0.0):
        return None
    return found * (100 if percent(name) else 1)


def percent(name: str) -> str:
    """Return the unit of a metric: % for shares, which are shown in percent."""
    return "%" if METRICS[name].highest == 1 else ""


def spread(values: Sequence[float | None], unit: str = "") -> str:
    """One value, or the mean of several with their ends."""
    there = [each for each in values if each is not None]
    if not there:
        return "–"
    ends = f" ({plain(min(there))} to {plain(max(there))})" if plain(min(there)) != plain(max(there)) else ""
    return f"{plain(mean(there))}{f' {unit}' if unit else ''}{ends}"


def plain(number: float) -> str:
    """Four digits at most, and no exponent for what people read."""
    if float(number).is_integer() or abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.3g}"


def provenance(runs: Sequence[Run]) -> str:
    """Where the numbers are from."""
    versions = sorted({f"{name} {version}" for run in runs for name, version in run["versions"].items()})
    days = sorted({run["ended"][:10] for run in runs})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    prints = table(
        ("otherwise than the recipe", "run's fingerprint", "parameters", "pairs trained on"),
        [
            (
                " ".join(run["differs"]) or "nothing",
                f"`{run['fingerprints']['run'][:16]}`",
                f"{run['parameters']:,}",
                str(run["pairs"].get("train") or "–"),
            )
            for run in runs
        ],
        2,
    )
    text = (
        f"Ended {when}. {', '.join(versions)}. Collected from the run folders by `benchmarks/results.py`.\n\n{prints}"
    )
    return folded("Where these numbers are from", text)


# ------------------------------------------------------------------------------------------- index


def index_page(costs: Costs) -> str:
    """All recipes, by their folders."""
    parts = ["---\nhide: [toc]\n---", "# Gallery", ABOUT]
    for chapter in dict.fromkeys(each.chapter for each in shown()):
        inside = [each for each in shown() if each.chapter == chapter]
        rows = [index_row(each, costs) for each in inside]
        parts += [
            f"## {CHAPTERS.get(chapter, chapter)}",
            table(("recipe", "what it is", "parameters", "FLOPs", "score"), rows, 3),
        ]
    return page(*parts)


def index_row(each: Shown, costs: Costs) -> tuple[str, ...]:
    """A recipe in a line."""
    told = costs.get(each.place)
    numbers = (short(told.parameters), short(told.flops)) if told else ("–", "–")
    name = each.place.rpartition("/")[2]
    return (f"[{name}]({each.place}.md)", linked(first_sentence(each.about)), *numbers, best_known(each))


def first_sentence(text: str) -> str:
    """The first sentence of a comment; `et al.` ends none."""
    found = re.match(r".*?[^A-Z](?<!al)(?<!section)[.:](?= [A-Z]|$)", text)
    return found[0].rstrip(":") if found else text


def best_known(each: Shown) -> str:
    """The scores of the runs that differ from the recipe in least."""
    runs = results().get(each.place, ())
    if not runs:
        return "not&nbsp;run"
    least = min(len(others(run)) for run in runs)
    nearest = [run for run in runs if len(others(run)) == least]
    nearest = [run for run in nearest if split_of(run) == "test"] or nearest
    group = [run for run in nearest if others(run) == others(nearest[0])]
    split = split_of(group[0])
    name = next(name for name in order_of(each) if value(group[0], split, name) is not None)
    unit = percent(name) or f" {METRICS[name].label}"
    only = " on validation data" if split == "val" else ""
    return f"{plain(mean([value(run, split, name) or 0.0 for run in group]))}{unit}{only}{'&nbsp;*' if least else ''}"


def others(run: Run) -> list[str]:
    """What differs but for the seed."""
    return [each for each in run["differs"] if not each.startswith("training.seed=")]


def order_of(each: Shown) -> tuple[str, ...]:
    """Text is told by BLEU, generated answers by how many are right."""
    text = "parallel" in each.recipe.dataset and each.recipe.dataset["parallel"]
    names = ("bleu", "exact_match") if text else ("exact_match", "bleu")
    return (*names, "token_accuracy", "perplexity")
