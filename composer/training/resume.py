"""Initial state of a training: of its own run, which must be the same, or another run's weights
that fit (`--from`).
"""

from __future__ import annotations

import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blocks.core.contract import Path as BlockPath
from composer.data.encoding import Data
from composer.data.pairs import text_names
from composer.data.sources import DataSource
from composer.data.text_files import named_files
from composer.data.tokenizer import Tokenizers
from composer.errors import MAX_LISTED, RecipeError, RunError
from composer.fingerprint import (
    describe_differences,
    differ_in_budget_alone,
    is_recorded,
    read_verified,
    result_differences,
)
from composer.inference.run import Run
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.parameter_paths import Owner, module_owners
from composer.model.weights import initialize, shapes, unique_tensors
from composer.recipe.canonical_form import (
    BUDGET_KEYS,
    DEFAULT_EPOCHS,
    TRAINER_WITH_EFFECT,
    TRAINING_WITHOUT_EFFECT,
)
from composer.recipe.earlier_versions import without_removed_settings
from composer.recipe.interpolation import substitute
from composer.recipe.own_blocks import check_recorded_blocks
from composer.recipe.recipe import Recipe, as_trained, from_node, load, load_node, stored_by
from composer.recipe.tree import match_trees, stack_trees
from composer.recipe.yaml_reader import COMMAND_LINE, read, to_data
from composer.run_dir import OTHER_RUN, START_FROM, RunDir, is_verifying
from composer.runs.record import Budget, RunRecord
from composer.training.budget import budget_of
from composer.training.reproduce import ReproducedRun

NEW_RUN = f"begin a new run with {OTHER_RUN}; {START_FROM} starts it from these weights"


def existing_tokenizers(
    recipe: Recipe, run_dir: RunDir, start_from: Path | None
) -> Tokenizers | None:
    """Return the tokenizers of this run or of the run to start from, or None if they are to be
    trained.

    Those of a run whose kind of tokenizer, or whose encoders, are others are of no use.
    """
    if run_dir.tokenizer.exists():
        return Tokenizers.load(run_dir.tokenizer)
    if start_from is None or recipe.tokenizer.is_extendable:
        return None
    other = RunDir(start_from)
    read_verified(other)
    tokenizers = Tokenizers.load(other.tokenizer)
    is_same = tokenizers.settings == recipe.canonical["data"]["tokenizer"] and set(
        tokenizers.sides
    ) == set(text_names(recipe))
    return tokenizers if is_same else None


def resolve_initial_run(
    requested: str | Path | None,
    record: RunRecord | None,
    run_dir: RunDir,
    original: ReproducedRun | None = None,
) -> Path | None:
    """Return the run whose weights this run starts from, or None for random weights.

    A resumed run keeps the one that run.json records, even if it was killed before its first
    checkpoint; a reproduction keeps its original's. Raises RunError if `requested` differs from the
    recorded run.
    """
    path = Path(requested).absolute() if requested is not None else None
    if record is None:
        return original.initial_run() if path is None and original is not None else path
    recorded = Path(record.start_from) if record.start_from else None
    if path is not None and path != recorded:
        began = f"from the weights of {recorded}" if recorded else "from random weights"
        fix = f"omit {START_FROM}, or begin a new run with {OTHER_RUN}"
        raise RunError.of(
            f"this run started {began}, not from those of {path}", fix, str(run_dir.path)
        )
    return recorded


def keep_meaning(recipe: Recipe, run_dir: RunDir, record: RunRecord) -> Recipe:
    """Return a recipe with the meaning that it had when a run was begun with it, if it says what
    the run's own says.

    A command that is given again then resumes a run of an earlier version, whose defaults were
    others. The budget and `logging` may be others; a setting that the run's recipe leaves out is
    another one even where it is the default.
    """
    is_own = recipe.file.resolve() == run_dir.recipe.resolve()
    if is_own or not run_dir.recipe.is_file() or is_recorded(recipe, record):
        return recipe
    root = without_removed_settings(read(run_dir.recipe, str(run_dir.recipe)))
    own = literal_settings(load_node(run_dir.recipe, root))  # as it is written, in no run
    if own == literal_settings(recipe):
        return as_trained(recipe, stored_by(run_dir) or {})
    # a run of an earlier version that was resumed before has what was another default written in
    # its recipe
    trained = as_trained(recipe, {})
    return trained if own == literal_settings(trained) else recipe


def literal_settings(recipe: Recipe) -> Mapping[str, Any]:
    """Return what decides a result as it is written in a recipe, without defaults and without the
    budget.
    """
    free = (*BUDGET_KEYS, *TRAINING_WITHOUT_EFFECT)
    sections = {
        key: value
        for key, value in recipe.explicit.items()
        if key not in ("name", "description", "logging")
    }
    training = {
        key: value for key, value in sections.get("training", {}).items() if key not in free
    }
    trainer = {
        key: value
        for key, value in sections.get("trainer", {}).items()
        if key in TRAINER_WITH_EFFECT
    }
    return sections | {"training": training, "trainer": trainer}


def check_same_recipe(recipe: Recipe, run_dir: RunDir, record: RunRecord) -> None:
    """Raise RunError if own blocks, or the recipe but for its budget, are not those that the run
    was started with.
    """
    check_recorded_blocks(record, run_dir.path, is_verifying())
    if is_recorded(recipe, record):
        return
    begun = load(run_dir.recipe)
    if not is_recorded(begun, record) and is_verifying():
        message = "this recipe is not the one that the run was started with"
        raise RunError.of(message, f"put it back as it was, or {NEW_RUN}", str(run_dir.recipe))
    if differ_in_budget_alone(begun, recipe):
        return
    differences = [*result_differences(begun, recipe)]
    began = [
        shlex.quote(f"{path}={json.dumps(old)}") for path, old, _ in differences if "[" not in path
    ]
    # they were overrides then, or the recipe's file was edited since, or a default is another in
    # this version
    repeat = (
        f"give {' '.join(began)} on the command line or in the recipe, or "
        if 0 < len(began) <= MAX_LISTED
        else ""
    )
    fix = f"{repeat}resume with its own recipe, {run_dir.recipe}; or {NEW_RUN}"
    cause = describe_differences(differences)
    raise RunError.of(f"this run was started with another recipe: {cause}", fix, str(run_dir.path))


def check_same_data(source: DataSource, data: Data, record: RunRecord, run_dir: RunDir) -> None:
    """Raise RunError if the tokenizer, or the training or validation data, are not those of the
    run's start.
    """
    if data.tokenizers.sha256 != record.tokenizer_sha256:
        message = "this tokenizer has changed since the run was started"
        raise RunError.of(message, "restore tokenizer.json as it was", str(run_dir.tokenizer))
    recorded = record.data
    hashes = ("training", "train", recorded.sha256), ("validation", "val", recorded.val_sha256)
    for name, split, sha256 in hashes:
        encoded = data.splits.get(split)
        if sha256 is not None and (encoded is None or encoded.sha256 != sha256):
            message = (
                f"the {name} data have changed since this run was started, so it cannot be resumed"
                " exactly"
            )
            raise RunError.of(
                message, f"restore {_files_of(source, split)}, or {NEW_RUN}", str(run_dir.path)
            )


def _files_of(source: DataSource, split: str) -> str:
    """Return the files that a split is read from, for a message; `the files` where they are not
    known, or are many.
    """
    data = source.recipe.canonical["data"]
    settings = data["parallel"] or data["table"] or data["text"] or {}
    held_out = isinstance(settings.get(split), int)
    files = sorted(named_files(settings.get("train" if held_out else split), source.folders))
    return (
        " and ".join(f"`{file}`" for file in files) if 0 < len(files) <= MAX_LISTED else "the files"
    )


def file_budget(recipe: Recipe) -> Budget | None:
    """Return the limits of a training in a recipe's file, without overrides; None if the file alone
    is at fault.
    """
    root = recipe.root
    if recipe.unchanged is not None:
        try:
            root = from_node(recipe.file, substitute(recipe.unchanged), recipe.rules).root
        except RecipeError:
            return None
    training = to_data(root).get("training") or {}
    limits = {key: training[key] for key in BUDGET_KEYS if training.get(key) is not None}
    return Budget(**limits) if limits else Budget(max_epochs=DEFAULT_EPOCHS)


def resumed_recipe(
    recipe: Recipe, run_dir: RunDir, record: RunRecord, finish: bool, say: Callable[[str], None]
) -> Recipe:
    """Return the recipe with the budget with which its run goes on; say which limits change, and
    why.

    Each limit stays as run.json has it, unless the command line gives it, or the recipe's file
    gives another than it did when the run last began. To `finish`, all stay.
    """
    run = record.budgets[-1] if record.budgets else budget_of(recipe.training)
    section = recipe.root.value.get("training")
    of_file, is_own = file_budget(recipe), recipe.file.resolve() == run_dir.recipe.resolve()
    then = of_file if is_own else record.recipe_budget or of_file
    changes: dict[str, float | None] = {}
    for key in BUDGET_KEYS:
        old, new = run.limits[key], recipe.training.limits[key]
        if old == new:
            continue
        node = section and section.value.get(key)
        is_override = (node and node.place.file == COMMAND_LINE) or (
            of_file and new != of_file.limits[key]
        )
        has_changed = (
            of_file is not None and then is not None and of_file.limits[key] != then.limits[key]
        )
        source = "command line" if is_override else "recipe" if has_changed else ""
        unit = key.removeprefix("max_")
        was, now = (f"{limit:,.10g}" if limit else "no limit" for limit in (old, new))
        if source and not finish:
            say(f"budget: {was} -> {now}{'' if new else ' of'} {unit} (from the {source})")
            continue
        changes[key] = old
        if not finish:
            say(
                f"budget: {was}{'' if old else ' of'} {unit}, as the run has it (the recipe: {now})"
            )
    training = {**recipe.explicit.get("training", {}), **changes}
    training = {
        key: value for key, value in training.items() if value is not None or key not in changes
    }
    explicit = recipe.explicit | {"training": training}
    canonical = recipe.canonical | {"training": recipe.canonical["training"] | changes}
    return replace(recipe, explicit=explicit, canonical=canonical) if changes else recipe


class Transfer(NamedTuple):
    """Parameters that were taken from another run, and those that start anew, counted by the paths
    of their blocks.
    """

    taken: Mapping[str, int]
    new: Mapping[str, int]
    has_own_tokenizer: bool

    def describe(self) -> list[str]:
        """Return in lines what was taken, and each block that starts anew."""
        taken, new = sum(self.taken.values()), sum(self.new.values())
        if not new:
            return []
        reason = (
            "; its tokenizer is another, so embeddings and output do"
            if self.has_own_tokenizer
            else ""
        )
        width = max(map(len, self.new))
        rows = [f"    {path:<{width}}  {count:>12,}" for path, count in self.new.items()]
        return [
            f"{taken:,} of {taken + new:,} parameters have its weights; these start anew{reason}:",
            *rows,
        ]


def transfer_weights(
    recipe: Recipe, tokenizers: Tokenizers, model: EncoderDecoder, other: Run
) -> Transfer:
    """Load the weights of another run into the blocks that `diff` calls the same, if all their
    shapes are.

    Embeddings and output are taken where the tokenizer is the same. If anything starts anew, the
    model is initialized first as the recipe says. Raises RunError if no weights fit.
    """
    is_same = tokenizers.sha256 == other.tokenizers.sha256 or recipe.tokenizer.is_extendable
    theirs, origins = owned_tensors(other.recipe, other.model), matched_paths(other.recipe, recipe)
    unique = {tensor.data_ptr(): tensor.numel() for tensor in unique_tensors(model).values()}
    pairs: list[tuple[Tensor, Tensor]] = []
    counts = (Counter[str](), Counter[str]())  # of what starts anew, and of what is taken
    for owner, tensors in owned_tensors(recipe, model).items():
        origin = Owner(origins.get(owner.path, ()), owner.copy) if owner.is_block else owner
        weights = theirs.get(origin, {}) if owner.is_block or is_same else {}
        fits = shapes(weights) == shapes(tensors)
        pairs += [(tensor, weights[name]) for name, tensor in tensors.items()] if fits else []
        counts[fits][owner.text(recipe)] += sum(
            unique.pop(tensor.data_ptr(), 0) for tensor in tensors.values()
        )
    new, taken = counts
    if not taken:
        message = "these weights do not fit the model: no block is there that has the same shapes"
        fix = "use blocks of the same shapes; `seqcomposer diff` compares the two models"
        raise RunError.of(message, fix, str(other.run_dir.weights))
    if new:
        initialize(model, recipe.training.initialization)
    with torch.no_grad():
        for tensor, weight in pairs:
            tensor.copy_(weight)
    return Transfer(taken, new, not is_same)


def owned_tensors(recipe: Recipe, model: EncoderDecoder) -> dict[Owner, dict[str, Tensor]]:
    """Return the tensors of a model's state by what they belong to, and by their names in it."""
    owners, first = module_owners(recipe, model), dict[Owner, str]()
    for name, owner in owners.items():
        first.setdefault(owner, name)
    tensors: defaultdict[Owner, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in model.state_dict().items():
        owner = owners[name.rpartition(".")[0]]
        tensors[owner][name.removeprefix(first[owner])] = tensor
    return tensors


def matched_paths(one: Recipe, other: Recipe) -> dict[BlockPath, BlockPath]:
    """Return the path in `one` of each block of `other` that is the same block, as `diff` sees it."""
    trees, others = stack_trees(one), stack_trees(other)
    pairs = [
        pair
        for key in trees.keys() & others.keys()
        for pair in match_trees(trees[key], others[key])
    ]
    return {
        new.path: old.path for old, new in pairs if old.kind == new.kind and old.word == new.word
    }
