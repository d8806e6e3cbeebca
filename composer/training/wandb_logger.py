"""Weights & Biases: place and config of a run, its rows, pictures and artifacts."""

from __future__ import annotations

import json
import netrc
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from composer import formatting
from composer.errors import one_line_error
from composer.inference.run import Sample
from composer.processes.python import secure_children
from composer.processes.wandb import load_wandb_settings
from composer.recipe.canonical_form import block_paths
from composer.recipe.recipe import Recipe
from composer.recipe.registry import RUN_FACTS
from composer.recipe.training_sections import WandB
from composer.runs.record import RunRecord
from composer.training.wandb_history import recorded_names

WandbMode = Literal["online", "offline", "disabled"]
WANDB_MODES: dict[str, WandbMode] = {
    "online": "online",
    "offline": "offline",
    "disabled": "disabled",
}
WANDB_MODES |= {"run": "online", "dryrun": "offline"}  # its older names
"""The values of the environment variable WANDB_MODE."""
EARLIER_HOST = "api.wandb.ai"
"""Whose keys W&B takes for its default host, too, where that is another one, as in 0.31."""
INIT_TIMEOUT = 30.0
"""Seconds in which W&B has to answer when a run begins."""
FINISH_TIMEOUT = 300.0
"""Seconds in which it has to take what is left when a run ends; after them it can be sent with
`wandb sync`.
"""
MIXING_FAMILIES = ("attention", "convolution", "memory", "recurrence")
"""Families of blocks that tell architectures apart; a run is tagged with those that it has."""


def wandb_mode(
    settings: WandB | Literal[False] | None, environment: Mapping[str, str] = os.environ
) -> WandbMode:
    """Return the W&B mode of a run.

    settings: `logging.wandb`; False disables it, None is offline.
    """
    if settings is False:
        return "disabled"
    mode = WANDB_MODES.get(environment.get("WANDB_MODE", "").lower())
    if mode is None and settings is not None:
        mode = settings.mode or "online"
    return (
        "offline" if mode is None or (mode == "online" and not is_logged_in(environment)) else mode
    )


def is_logged_in(environment: Mapping[str, str]) -> bool:
    """True if there is a W&B key, in the environment or from `wandb login`. Contacts no server."""
    if environment.get("WANDB_API_KEY"):
        return True
    named, known = environment.get("NETRC"), set[str]()
    for path in (
        [Path(named).expanduser()] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    ):
        with suppress(OSError, netrc.NetrcParseError):
            known |= netrc.netrc(str(path)).hosts.keys()
    return bool(known) and not known.isdisjoint(hosts_of_key(environment))


def hosts_of_key(environment: Mapping[str, str]) -> set[str | None]:
    """Return the hosts whose key W&B would send: of WANDB_BASE_URL, else its installed default."""
    # imported late: it takes half a second, and most machines have no key
    from wandb import Settings

    default = Settings.model_fields["base_url"].default
    host, own = (
        urlparse(url).hostname for url in (environment.get("WANDB_BASE_URL") or default, default)
    )
    return {host, EARLIER_HOST} if host == own else {host}


def is_cache_writable() -> bool:
    """True if W&B can write into the user's cache; else its service prints its log."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    return os.access(folder, os.W_OK)


def describe_mode(mode: WandbMode, folder: Path) -> str:
    """Say in one line where the metrics of a run in `folder` go."""
    places = {
        "online": "to Weights & Biases, online",
        "offline": f"to Weights & Biases' files in {folder / 'wandb'} (offline: nothing is sent)",
        "disabled": "nowhere else: Weights & Biases is off",
    }
    return f"logging to {folder / 'metrics.jsonl'}, and {places[mode]}"


def run_config(recipe: Recipe, record: RunRecord) -> dict[str, object]:
    """Return the config of a run: its recipe with all defaults, and the RUN_FACTS of run.json.

    Names of axes are no keys of these; they are `logging.wandb.config`, which the run has from its
    start.
    """
    facts = {
        "parameters": record.parameters,
        "vocabularies": record.vocabularies,
        "pairs": record.data.pairs,
        "fingerprints": record.fingerprints,
    }
    return {**recipe.canonical, **{name: facts[name] for name in RUN_FACTS}}


def run_tags(recipe: Recipe) -> list[str]:
    """Return the families of a recipe's blocks, such as `attention`, in order."""
    words = {str(path[-1]) for path in block_paths(recipe.canonical["model"])}
    families = {recipe.rules["$defs"][f"block.{word}"]["x-family"] for word in words}
    return [family for family in MIXING_FAMILIES if family in families]


def sweep_overrides(recipe: Recipe, name: str, point: Mapping[str, object]) -> list[str]:
    """Return the overrides by which W&B shows a run as one of a sweep: its group, and its axes.

    A recipe's own group is kept; without `logging.wandb` it logs offline.
    """
    settings = recipe.logging.wandb
    if settings is False or (settings and settings.mode == "disabled"):
        return []
    axes = [f"logging.wandb.config.{axis}={json.dumps(value)}" for axis, value in point.items()]
    group = [] if settings and settings.group else [f"logging.wandb.group={name}"]
    return [*group, *axes, *(["logging.wandb.mode=offline"] if settings is None else [])]


class WandbLogger:
    """One run of W&B, or nothing if the mode is disabled or W&B fails: training goes on without.

    `trouble` says why it could not start. What fails later is said through `say`, once, and nothing
    more is logged.
    """

    def __init__(
        self,
        mode: WandbMode,
        settings: WandB | Literal[False] | None,
        folder: Path,
        name: str,
        run_id: str,
        say: Callable[[str], None] = print,
    ) -> None:
        self.mode, self.say = mode, say
        self.run: Any = None
        self.trouble = ""
        self.variables: dict[str, str] = {}
        self.logs_model = False
        self.recorded: Mapping[int, set[str]] = {}
        if mode == "disabled":
            return
        # where artifacts wait to be sent, and where the service writes its log; without them that
        # is the user's home
        names = ["WANDB_DATA_DIR", *(["WANDB_CACHE_DIR"] if not is_cache_writable() else [])]
        self.variables = {
            name: str((folder / "wandb").absolute()) for name in names if name not in os.environ
        }
        os.environ.update(self.variables)
        chosen = settings or WandB()
        self.logs_model = chosen.artifact == "final"
        try:
            self.run = _init(mode, chosen, folder, name, run_id)
        except Exception as error:  # whatever W&B raises, a training does not end for it
            self.trouble, self.mode = one_line_error(error), "disabled"
        if self.run is None and mode == "online":  # log offline what cannot be sent now
            _stop_service()  # it holds the run's id
            with suppress(Exception):
                self.run, self.mode = _init("offline", chosen, folder, name, run_id), "offline"
                self.trouble += (
                    f"; what it would have been sent is kept in {folder / 'wandb'}, for `wandb"
                    " sync`"
                )

    def _attempt(self, log: Callable[[Any], object]) -> None:
        """Call `log` with W&B's run, if there is one. Whatever W&B raises, training goes on."""
        try:
            if self.run is not None:
                log(self.run)
        except Exception as error:
            self.run, self.mode = None, "disabled"
            self.say(
                "Weights & Biases has failed, and nothing more is logged to it:"
                f" {one_line_error(error)}"
            )
            if isinstance(error, ConnectionError):
                _stop_service()

    @property
    def is_on(self) -> bool:
        """Whether anything is logged."""
        return self.run is not None

    def describe(
        self, recipe: Path, config: Mapping[str, Any], tags: Sequence[str] = (), picture: str = ""
    ) -> None:
        """Log a run's config, tags and recipe, and its architecture as a page of HTML."""

        def log(run: Any) -> None:
            import wandb

            run.config.update(dict(config), allow_val_change=True)
            run.tags = tuple(dict.fromkeys([*(run.tags or ()), *tags]))
            artifact = wandb.Artifact(f"recipe-{run.id}", type="recipe")
            artifact.add_file(str(recipe), name="recipe.yaml")
            run.log_artifact(artifact)
            if picture and "architecture" not in self.recorded.get(0, ()):
                run.log({"step": 0, "architecture": wandb.Html(picture, inject=False)}, step=0)

        self._attempt(log)

    def resume(self, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        """Read the rows that W&B has of a resumed run, so that nothing is logged twice.

        A row is known by its step and its names. Online it is the server that knows up to which
        step there are rows.
        """

        def learn(run: Any) -> None:
            sent = {int(row["step"]): {*row} for row in rows if row["step"] < run.starting_step}
            self.recorded = (
                sent if self.mode == "online" else recorded_names(folder, Path(run.dir).parent)
            )

        self._attempt(learn)

    def log_row(self, run: Any, row: Mapping[str, Any]) -> None:
        """Log the part of a row that W&B lacks; rows of one step are joined."""
        step = int(row["step"])
        new = {
            name: value for name, value in row.items() if name not in self.recorded.get(step, ())
        }
        if new:
            run.log({"step": step, **new}, step=step)

    def model(self, pack: Path, weights: Path) -> str:
        """Log a pack as the artifact of the final model; return its name for `pull`, or "".

        weights: The same weights where they stay. W&B reads them there and keeps no copy of its
        own.
        """
        names: list[str] = []

        def log(run: Any) -> None:
            import wandb

            artifact = wandb.Artifact(f"model-{run.id}", type="model")
            for name in sorted(file.name for file in pack.iterdir()):
                path, policy = (
                    (weights, "immutable") if name == weights.name else (pack / name, "mutable")
                )
                artifact.add_file(str(path), name, policy=policy)
            run.log_artifact(artifact)
            names.append(
                "/".join(filter(None, (run.entity, run.project, f"model-{run.id}:latest")))
            )

        self._attempt(log)
        return f"wandb:{names[0]}" if names else ""

    def write(self, row: Mapping[str, Any]) -> None:
        """Log one row of metrics, which has a `step`."""
        self._attempt(lambda run: self.log_row(run, row))

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Log translations after `step` steps, as a table."""

        def log(run: Any) -> None:
            import wandb

            table = wandb.Table(
                columns=["step", *Sample._fields], data=[[step, *sample] for sample in samples]
            )
            self.log_row(run, {"step": step, "samples": table})

        if samples:
            self._attempt(log)

    def pictures(
        self, step: int, alignments: Sequence[str], by_length: Sequence[Mapping[str, object]]
    ) -> None:
        """Log attention maps and film strips as HTML, and the report's charts by source length."""
        if self.run is None:
            return
        import wandb

        from composer.viz.page import accuracy_chart, bleu_chart

        row: dict[str, Any] = {"step": step}
        if alignments:
            row["alignments"] = [wandb.Html(page, inject=False) for page in alignments]
        for name, draw in (
            ("bleu_by_source_length", bleu_chart),
            ("accuracy_by_source_length", accuracy_chart),
        ):
            if chart := draw("test", by_length):
                row[name] = chart[0]
        self.log_row(self.run, row)

    def finish(self, status: int) -> None:
        """End the run; `status` is 0 if all went well."""
        self._attempt(lambda run: run.finish(exit_code=status))
        self.run = None
        for name, value in self.variables.items():
            if os.environ.get(name) == value:
                del os.environ[name]


def _printable(setting: object) -> Any:
    # `wandb sync` prints names on a terminal
    return formatting.map_scalars(
        setting,
        lambda leaf: formatting.strip_control_characters(leaf) if isinstance(leaf, str) else leaf,
    )


def _init(mode: WandbMode, settings: WandB, folder: Path, name: str, run_id: str) -> Any:
    """Start a W&B run. Raises what W&B raises, also if it is not installed."""
    import wandb

    load_wandb_settings()
    limits = {"init_timeout": INIT_TIMEOUT, "finish_timeout": FINISH_TIMEOUT}
    own: dict[str, Any] = {
        "project": settings.project or "seqcomposer",
        "name": settings.name or name,
    }
    more = {"entity": settings.entity, "group": settings.group, "config": settings.config}
    own |= {key: value for key, value in more.items() if value}
    # else it runs `git diff` in the current folder, and so what the folder's configuration names
    quiet = wandb.Settings(silent=True, console="off", disable_git=True, **limits)
    with secure_children():
        run = wandb.init(
            **_printable(own),
            mode=mode,
            tags=_printable([*(settings.tags or ())]),
            job_type="train",
            id=run_id,
            resume="allow" if mode == "online" else None,
            dir=str(folder),
            settings=quiet,
        )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def _stop_service() -> None:
    """Stop W&B's background process, if there is one, so that the next run gets a new one."""
    import wandb

    with suppress(Exception):
        wandb.teardown()
