"""Weights & Biases: the one door to it. Offline inside the run folder unless the recipe and a login say otherwise."""

from __future__ import annotations

import json
import netrc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlparse

from composer.errors import one_line_error

Mode = Literal["online", "offline", "disabled"]
ONLINE: Mode = "online"
OFFLINE: Mode = "offline"
DISABLED: Mode = "disabled"
SPOKEN: dict[str, Mode] = {"online": ONLINE, "run": ONLINE, "offline": OFFLINE, "dryrun": OFFLINE, "disabled": DISABLED}
"""What WANDB_MODE may say."""
HOST = "https://api.wandb.ai"
ANSWERS = 30.0
"""Seconds in which W&B has to answer when a run begins."""
SENDS = 300.0
"""Seconds in which it has to take what is left when a run ends; after them it can be sent with `wandb sync`."""


class Sample(NamedTuple):
    """One translation: what was read, what was asked for, what came."""

    source: str
    reference: str
    translation: str


def wandb_mode(settings: Mapping[str, Any] | bool | None, environment: Mapping[str, str], logged_in: bool) -> Mode:
    """online, offline or disabled. `settings` is `logging.wandb`: False is without, None keeps the run at home."""
    if settings is False:
        return DISABLED
    asked = SPOKEN.get(environment.get("WANDB_MODE", "").lower())
    if asked is None and isinstance(settings, Mapping):
        asked = settings.get("mode") or ONLINE
    return OFFLINE if asked == ONLINE and not logged_in else asked or OFFLINE


def current_wandb_mode(settings: Mapping[str, Any] | bool | None) -> Mode:
    """The mode of a run on this machine."""
    return wandb_mode(settings, os.environ, is_logged_in(os.environ))


def is_logged_in(environment: Mapping[str, str]) -> bool:
    """Whether the user has given W&B a key, in the environment or by `wandb login`. Asks nobody."""
    if environment.get("WANDB_API_KEY"):
        return True
    host = urlparse(environment.get("WANDB_BASE_URL") or HOST).hostname or ""
    named = environment.get("NETRC")
    places = [Path(named).expanduser()] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    return any(_has_entry(place, host) for place in places)


def _has_entry(place: Path, host: str) -> bool:
    try:
        return host in netrc.netrc(str(place)).hosts
    except (OSError, netrc.NetrcParseError):
        return False


def describe_mode(mode: Mode, folder: Path) -> str:
    """One line: where the metrics of a run in `folder` go."""
    places = {
        ONLINE: "to Weights & Biases, online",
        OFFLINE: f"to Weights & Biases' files in {folder / 'wandb'} (offline: nothing is sent)",
        DISABLED: "nowhere else: Weights & Biases is off",
    }
    return f"logging to {folder / 'metrics.jsonl'}, and {places[mode]}"


def logged_samples(folder: Path) -> dict[int, list[Sample]]:
    """The translations that a run has logged into its folder, by step, in order. Asks no W&B."""
    found: dict[int, list[Sample]] = {}
    for path in sorted(folder.glob("wandb/*run-*/files/media/table/samples_*.table.json")):
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            rows = [
                (int(step), Sample(str(source), str(reference), str(written)))
                for step, source, reference, written in told["data"]
            ]
        except (OSError, ValueError, KeyError, TypeError):  # cut off, or another's
            continue
        for step in dict.fromkeys(step for step, _ in rows):
            found[step] = [sample for each, sample in rows if each == step]
    return dict(sorted(found.items()))


class WandbLogger:
    """One run of W&B, or nothing at all where the mode is disabled or W&B fails: training goes on without.

    `trouble` says why it could not start. What fails later is said through `say`, once, and nothing more is logged.
    """

    def __init__(
        self,
        mode: Mode,
        settings: Mapping[str, Any] | bool | None,
        folder: Path,
        name: str,
        run_id: str,
        say: Callable[[str], None] = print,
    ) -> None:
        self.mode, self.say = mode, say
        self.run: Any = None
        self.trouble = ""
        self.data_dir = ""
        if self.mode != DISABLED:
            chosen = {key: value for key, value in settings.items() if value} if isinstance(settings, Mapping) else {}
            self._start(chosen, folder, name, run_id)

    def _start(self, settings: Mapping[str, Any], folder: Path, name: str, run_id: str) -> None:
        if "WANDB_DATA_DIR" not in os.environ:
            # where artifacts wait to be sent; without it that is the user's home
            self.data_dir = os.environ["WANDB_DATA_DIR"] = str((folder / "wandb").absolute())
        try:
            self.run = _opened(self.mode, settings, folder, name, run_id)
        except Exception as error:  # whatever W&B meets, a training does not end for it
            self.trouble, was, self.mode = one_line_error(error), self.mode, DISABLED
            if was == ONLINE:
                self._keep(settings, folder, name, run_id)

    def _keep(self, settings: Mapping[str, Any], folder: Path, name: str, run_id: str) -> None:
        """Logs offline what cannot be sent now."""
        _forget_service()  # it holds the run's id
        with suppress(Exception):
            self.run, self.mode = _opened(OFFLINE, settings, folder, name, run_id), OFFLINE
            self.trouble += f"; what it would have been sent is kept in {folder / 'wandb'}, for `wandb sync`"

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Whatever W&B meets in the middle of a run, a full disk or its own end, a training does not end for it."""
        try:
            yield
        except Exception as error:
            self.run, self.mode = None, DISABLED
            self.say(f"Weights & Biases has failed, and gets nothing more: {one_line_error(error)}")
            if isinstance(error, ConnectionError):
                _forget_service()

    @property
    def is_on(self) -> bool:
        """Whether anything is logged."""
        return self.run is not None

    def describe(self, recipe: Path, config: Mapping[str, Any]) -> None:
        """The resolved recipe: as the run's config and as an artifact."""
        if self.run is None:
            return
        import wandb

        with self._harmless():
            self.run.config.update(dict(config), allow_val_change=True)
            artifact = wandb.Artifact(f"recipe-{self.run.id}", type="recipe")
            artifact.add_file(str(recipe), name="recipe.yaml")
            self.run.log_artifact(artifact)

    def write(self, row: Mapping[str, Any]) -> None:
        """One row of metrics, which has a `step`."""
        if self.run is not None:
            with self._harmless():
                self.run.log(dict(row))

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Translations after `step` steps, as a table."""
        if self.run is None or not samples:
            return
        import wandb

        with self._harmless():
            table = wandb.Table(columns=["step", *Sample._fields], data=[[step, *sample] for sample in samples])
            self.run.log({"step": step, "samples": table})

    def pictures(self, step: int, alignments: Sequence[str], by_length: Sequence[Mapping[str, Any]]) -> None:
        """Alignments and film strips as pages; BLEU by source length as bars, accuracy as a line."""
        if self.run is None:
            return
        import wandb

        row: dict[str, Any] = {"step": step}
        if alignments:
            row["alignments"] = [wandb.Html(page, inject=False) for page in alignments]
        bleu = [[each["words"], each["lines"], each["bleu"]] for each in by_length if "bleu" in each]
        exact = [[each["tokens"], each["lines"], each["exact_match"]] for each in by_length if "exact_match" in each]
        if exact:
            table = wandb.Table(columns=["words", "lines", "exact_match"], data=exact)
            title = "Exact match by words of the source"
            row["accuracy_by_source_length"] = wandb.plot.line(table, "words", "exact_match", title=title)
        if bleu:
            table = wandb.Table(columns=["words", "lines", "bleu"], data=bleu)
            row["bleu_by_source_length"] = wandb.plot.bar(table, "words", "bleu", title="BLEU by words of the source")
        self.run.log(row)

    def finish(self, status: int) -> None:
        """Ends the run; `status` is 0 where all went well."""
        if self.run is not None:
            with self._harmless():
                self.run.finish(exit_code=status)
            self.run = None
        if self.data_dir and os.environ.get("WANDB_DATA_DIR") == self.data_dir:
            del os.environ["WANDB_DATA_DIR"]


def _opened(mode: Mode, settings: Mapping[str, Any], folder: Path, name: str, run_id: str) -> Any:
    """A run of W&B. Raises what W&B raises, also where it is not installed."""
    import wandb

    run = wandb.init(
        project=settings.get("project", "seqcomposer"),
        entity=settings.get("entity"),
        group=settings.get("group"),
        tags=settings.get("tags"),
        name=settings.get("name", name),
        id=run_id,
        resume="allow" if mode == ONLINE else None,
        dir=str(folder),
        mode=mode,
        settings=wandb.Settings(
            silent=True, console="off", init_timeout=ANSWERS, finish_timeout=SENDS, x_disable_stats=True
        ),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def _forget_service() -> None:
    """Ends W&B's process beside this one, if it still is there: the next run gets a new one."""
    import wandb

    with suppress(Exception):
        wandb.teardown()
