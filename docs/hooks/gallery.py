"""Generate the gallery, a page for each recipe with drawing, cost and scores, and a list of all."""

# ruff: noqa: RUF001
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.results import overrides
from composer.metrics.table import METRICS
from docs.hooks.corpus import (
    ROOT,
    Cost,
    GalleryRecipe,
    Results,
    Run,
    gallery_recipes,
    load_results,
    measured_page,
)
from docs.hooks.markdown import code, collapsible, file_link, format_si, join_parts, table

METRIC_COLUMNS = (
    "exact_match",
    "token_accuracy",
    "bleu",
    "chrf",
    "perplexity",
    "bits_per_sequence",
)
"""Metrics of the tables, in this order; shares are shown in percent."""
SPLITS = {"test": "the test data", "val": "the validation data"}
INTRODUCTION = """\
Every recipe of the repository, with the number of parameters that `seqcomposer plan` counts, and
the mean score of its runs on test data. \\* The runs differ from the recipe in some setting, most
often a smaller budget. † The recipe has changed since they were made. Most recipes of the size of a
paper have not been run here. `docs/results` has all scores with commands and commits. On the site
the name of a recipe leads to its page, with a drawing, its cost and its runs."""
FOLDER_TITLES = {
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
    "mixers": "Mixers in place of attention",
    "language_models": "Language models",
    "speech": "Speech",
    "dialect": "A dialect of an invented language",
    "pictures": "Pictures",
}


def recipe_page(recipe: GalleryRecipe, cost: Cost) -> str:
    """Return the page of a recipe."""
    name = recipe.slug.rpartition("/")[2]
    return join_parts(
        f"# {name}",
        link_arxiv(recipe.description),
        picture(f"{name}.svg", name),
        "## Cost",
        cost_line(cost),
        "## Scores",
        scores(recipe),
        "## Recipe",
        code(
            f"seqcomposer check recipes/{recipe.slug}.yaml\nseqcomposer train"
            f" recipes/{recipe.slug}.yaml",
            "sh",
        ),
        code(recipe.text, "yaml", f"recipes/{recipe.slug}.yaml"),
        *(
            file_link(f"{path.relative_to(ROOT)}", f"gallery/{recipe.slug}.md")
            for path in recipe.extends
        ),
        collapsible("Without `extends` and `vars`", code(recipe.recipe.dump(), "yaml")),
    )


def link_arxiv(text: str) -> str:
    """Return a comment as Markdown: arXiv numbers become links, everything else is escaped."""
    text = re.sub(r"([<>*_\[\]])", r"\\\1", text)
    return re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def picture(file: str, name: str, attributes: str = "") -> str:
    """Return a drawing, loaded when it comes into view."""
    return f'<img src="{file}" alt="The architecture of {name}"{attributes} loading="lazy">'


def cost_line(cost: Cost) -> str:
    """Return the cost as a sentence."""
    state = (
        f"{format_si(cost.state_bytes)}B of decoding state"
        if cost.state_bytes
        else "no decoding state"
    )
    return (
        f"{cost.parameters:,} parameters; {format_si(cost.flops)}FLOPs for a pair of 32 source and"
        f" 32 target tokens; {state} after them."
    )


# ------------------------------------------------------------------------------------------- scores


def scores(recipe: GalleryRecipe) -> str:
    """Return the tables of a recipe's runs, or why it has none."""
    results = load_results().get(recipe.slug)
    if results is not None:
        return score_tables(results)
    if journal := measured_page(recipe.slug):
        up = "../" * f"gallery/{recipe.slug}".count("/")
        return f"[An earlier version]({up}journal/{journal}) was run."
    return "Not run."


def score_tables(results: Results) -> str:
    """Return the table of runs with test scores, then that of runs with validation scores only."""
    runs = results.runs
    parts = [[run for run in runs if scored_split(run) == split] for split in ("test", "val")]
    changed = "" if results.is_current else "The recipe has changed since: another fingerprint."
    return join_parts(changed, *(score_table(part) for part in parts if part), provenance(runs))


def score_table(runs: Sequence[Run]) -> str:
    """Return the table of runs scored on the same split, seeds grouped in a row."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[tuple(differences_except_seed(run))].append(run)
    split = scored_split(runs[0])
    metrics = [
        name
        for name in METRIC_COLUMNS
        if any(metric_value(run, split, name) is not None for run in runs)
    ]
    header = (
        "differences from the recipe",
        "seeds",
        *(METRICS[name].label for name in metrics),
        "steps",
        "minutes",
    )
    rows = [
        score_row(differs, group, split, metrics)
        for differs, group in sorted(groups.items(), key=natural_order)
    ]
    seeds = (
        "; means over seeds, with minimum and maximum in brackets" if len(rows) < len(runs) else ""
    )
    return join_parts(
        f"Measured on {SPLITS[split]}, decoded as in the recipe unless a row says"
        f" otherwise{seeds}.",
        table(header, rows, len(header) - 1),
    )


def natural_order(group: tuple[tuple[str, ...], list[Run]]) -> tuple[list[Any], ...]:
    """Return a sort key of the differences, numbers compared as numbers."""
    return (
        [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", " ".join(group[0]))],
    )


def scored_split(run: Run) -> str:
    """Return the split that a run's scores are shown of."""
    return "test" if any(key.startswith("test/") for key in run["scores"]) else "val"


def score_row(
    differs: tuple[str, ...], group: Sequence[Run], split: str, metrics: Sequence[str]
) -> tuple[str, ...]:
    """Return the row of runs that differ only in their seeds."""
    differences = " ".join(f"`{difference}`" for difference in differs) or "none"
    seeds = str(group[0]["seed"]) if len(group) == 1 else f"{len(group)} seeds"
    cells = [
        format_spread([metric_value(run, split, name) for run in group], metric_unit(name))
        for name in metrics
    ]
    budget = [format_spread([run[key] for run in group]) for key in ("steps", "minutes")]
    return (differences, seeds, *cells, *budget)


def metric_value(run: Run, split: str, name: str) -> float | None:
    """Return a score, or None; BLEU 0 is left out, since answers of fewer than four words always
    have it.
    """
    score = run["scores"].get(f"{split}/{name}")
    if score is None or (name == "bleu" and score == 0.0):
        return None
    return score * (100 if metric_unit(name) else 1)


def metric_unit(name: str) -> str:
    """Return the unit of a metric: % for shares, which are shown in percent."""
    return "%" if METRICS[name].highest == 1 else ""


def format_spread(values: Sequence[float | None], unit: str = "") -> str:
    """Return one value, or the mean of several with minimum and maximum."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    lowest, highest = format_number(min(known)), format_number(max(known))
    extremes = f" ({lowest} to {highest})" if lowest != highest else ""
    return f"{format_number(mean(known))}{f' {unit}' if unit else ''}{extremes}"


def format_number(number: float) -> str:
    """Return a number with at most four digits and without an exponent."""
    if float(number).is_integer() or abs(number) >= 1000:
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.3g}"


def provenance(runs: Sequence[Run]) -> str:
    """Return the origin of the scores: dates, versions, commits, fingerprints."""
    versions = sorted(
        {f"{name} {version}" for run in runs for name, version in run["versions"].items()}
    )
    days = sorted({run["ended"][:10] for run in runs})
    dates = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    header = (
        "differences from the recipe",
        "commit",
        "run fingerprint",
        "parameters",
        "training pairs",
    )
    source = (
        f"Ended {dates}. {', '.join(versions)}. Collected from the run folders by"
        " `benchmarks/results.py`."
    )
    return collapsible("Provenance", f"{source}\n\n{table(header, map(provenance_row, runs), 2)}")


def provenance_row(run: Run) -> tuple[str, ...]:
    """Return the origin of the scores of one run."""
    fingerprint = run["fingerprints"]["run"][:16]
    pairs = str(run["pairs"].get("train") or "–")
    return (
        " ".join(overrides(run)) or "none",
        f"`{run['commit']}`" if run["commit"] else "–",
        f"`{fingerprint}`",
        f"{run['parameters']:,}",
        pairs,
    )


# -------------------------------------------------------------------------------------------- list


def list_page(parameters: Mapping[str, int]) -> str:
    """Return the list of all recipes by folder, with their `parameters` by slug."""
    parts = ["# Recipes", INTRODUCTION]
    for folder in dict.fromkeys(recipe.folder for recipe in gallery_recipes()):
        recipes = [recipe for recipe in gallery_recipes() if recipe.folder == folder]
        rows = [list_row(recipe, parameters[recipe.slug]) for recipe in recipes]
        head = ("recipe", "description and paper", "parameters", "score")
        parts += [f"## {FOLDER_TITLES.get(folder, folder)}", table(head, rows, 2)]
    return join_parts(*parts)


def list_row(recipe: GalleryRecipe, parameters: int) -> tuple[str, str, str, str]:
    """Return the row of a recipe, which links to its file."""
    name = recipe.slug.rpartition("/")[2]
    link = f"[{name}](../recipes/{recipe.slug}.yaml)"
    text = link_arxiv(first_sentence(recipe.description))
    return link, text, format_si(parameters), best_score(recipe)


def first_sentence(text: str) -> str:
    """Return the first sentence of a comment; `et al.` does not end one."""
    match = re.match(r".*?[^A-Z](?<!al)(?<!section)[.:](?= [A-Z]|$)", text)
    return match[0].rstrip(":") if match else text


def best_score(recipe: GalleryRecipe) -> str:
    """Return the score of the runs with the fewest differences from the recipe."""
    results = load_results().get(recipe.slug)
    if results is None:
        journal = measured_page(recipe.slug)
        return f"[earlier version](journal/{journal})" if journal else "not run"
    runs = results.runs
    fewest = min(len(differences_except_seed(run)) for run in runs)
    nearest = [run for run in runs if len(differences_except_seed(run)) == fewest]
    nearest = [run for run in nearest if scored_split(run) == "test"] or nearest
    group = [
        run
        for run in nearest
        if differences_except_seed(run) == differences_except_seed(nearest[0])
    ]
    split = scored_split(group[0])
    name = next(
        name
        for name in metric_preference(recipe)
        if metric_value(group[0], split, name) is not None
    )
    unit = f"{metric_unit(name)} {METRICS[name].label}"
    note = " on validation data" if split == "val" else ""
    score = format_number(mean([metric_value(run, split, name) or 0.0 for run in group]))
    marks = (r" \*" if fewest else "") + ("" if results.is_current else " †")
    return f"{score}{unit}{note}{marks}"


def differences_except_seed(run: Run) -> list[str]:
    """Return the differences of a run except its seed."""
    return [override for override in overrides(run) if not override.startswith("training.seed=")]


def metric_preference(recipe: GalleryRecipe) -> tuple[str, ...]:
    """Return the metrics in order of preference: BLEU for text, exact match for generated tasks."""
    text = recipe.recipe.data.parallel
    names = ("bleu", "exact_match") if text else ("exact_match", "bleu")
    return (*names, "token_accuracy", "perplexity")
