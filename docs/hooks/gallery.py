"""Generate the gallery: a page for each recipe, with its drawing, cost and scores."""

# ruff: noqa: RUF001
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from composer.recipe.metrics import METRICS
from docs.hooks.corpus import (
    ROOT,
    Cost,
    GalleryRecipe,
    gallery_recipes,
    load_results,
    measured_page,
)
from docs.hooks.markdown import code, collapsible, file_link, format_si, join_parts, table

Run = Mapping[str, Any]
Costs = Mapping[str, Cost]
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
Every recipe of the repository. Parameters and FLOPs (for a pair of 32 source and 32 target tokens) are those of
`plan`; scores are on test data, from finished runs. A star marks runs with settings that differ from the recipe, most
often a smaller budget; the recipe's page lists them. Recipes that nobody has trained here, most at the size of their
paper, are *not run*; of some an *earlier version* was."""
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
        score_tables(load_results().get(recipe.slug, ()))
        or no_scores(recipe, f"gallery/{recipe.slug}.md"),
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


def score_tables(runs: Sequence[Run]) -> str:
    """Return the tables of a recipe's runs: those with test scores, then those with validation
    scores only.
    """
    if not runs:
        return ""
    parts = [[run for run in runs if scored_split(run) == split] for split in ("test", "val")]
    return join_parts(*(score_table(part) for part in parts if part), provenance(runs))


def no_scores(recipe: GalleryRecipe, page: str) -> str:
    """Return why a recipe has no scores: an earlier version of it was run, or nobody has run it
    here.
    """
    if measured := measured_page(recipe.slug):
        return f"[An earlier version]({'../' * page.count('/')}{measured}) was run."
    return "Not run."


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
    """Return where the scores come from: dates, versions, fingerprints."""
    versions = sorted(
        {f"{name} {version}" for run in runs for name, version in run["versions"].items()}
    )
    days = sorted({run["ended"][:10] for run in runs})
    dates = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    header = ("differences from the recipe", "run fingerprint", "parameters", "training pairs")
    rows = []
    for run in runs:
        fingerprint, pairs = (
            f"`{run['fingerprints']['run'][:16]}`",
            str(run["pairs"].get("train") or "–"),
        )
        rows.append(
            (" ".join(run["differs"]) or "none", fingerprint, f"{run['parameters']:,}", pairs)
        )
    source = (
        f"Ended {dates}. {', '.join(versions)}. Collected from the run folders by"
        " `benchmarks/results.py`."
    )
    return collapsible("Provenance", f"{source}\n\n{table(header, rows, 2)}")


# ------------------------------------------------------------------------------------------- index


def index_page(costs: Costs) -> str:
    """Return the index of all recipes, by folder."""
    parts = ["# Gallery", INTRODUCTION]
    for folder in dict.fromkeys(recipe.folder for recipe in gallery_recipes()):
        recipes = [recipe for recipe in gallery_recipes() if recipe.folder == folder]
        rows = [index_row(recipe, costs) for recipe in recipes]
        parts += [
            f"## {FOLDER_TITLES.get(folder, folder)}",
            table(("", "recipe", "description", "parameters", "FLOPs", "score"), rows, 3),
        ]
    return join_parts(*parts)


def index_row(recipe: GalleryRecipe, costs: Costs) -> tuple[str, ...]:
    """Return the row of a recipe."""
    cost, name = costs[recipe.slug], recipe.slug.rpartition("/")[2]
    text = link_arxiv(first_sentence(recipe.description))
    thumbnail = picture(f"{recipe.slug}.svg", name, ' width="120"')
    numbers = (format_si(cost.parameters), format_si(cost.flops))
    return (thumbnail, f"[{name}]({recipe.slug}.md)", text, *numbers, best_score(recipe))


def first_sentence(text: str) -> str:
    """Return the first sentence of a comment; `et al.` does not end one."""
    match = re.match(r".*?[^A-Z](?<!al)(?<!section)[.:](?= [A-Z]|$)", text)
    return match[0].rstrip(":") if match else text


def best_score(recipe: GalleryRecipe) -> str:
    """Return the score of the runs with the fewest differences from the recipe."""
    runs = load_results().get(recipe.slug, ())
    if not runs:
        measured = measured_page(recipe.slug)
        return f"[earlier version](../{measured})" if measured else "not&nbsp;run"
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
    unit = metric_unit(name) or f" {METRICS[name].label}"
    note = " on validation data" if split == "val" else ""
    score = format_number(mean([metric_value(run, split, name) or 0.0 for run in group]))
    return f"{score}{unit}{note}{'&nbsp;*' if fewest else ''}"


def differences_except_seed(run: Run) -> list[str]:
    """Return the differences of a run except its seed."""
    return [
        difference for difference in run["differs"] if not difference.startswith("training.seed=")
    ]


def metric_preference(recipe: GalleryRecipe) -> tuple[str, ...]:
    """Return the metrics in order of preference: BLEU for text, exact match for generated tasks."""
    text = recipe.recipe.data.parallel
    names = ("bleu", "exact_match") if text else ("exact_match", "bleu")
    return (*names, "token_accuracy", "perplexity")
