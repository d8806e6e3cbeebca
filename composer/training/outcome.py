"""What a training came to: which weights are kept, how good they are, and where everything lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.data.pairs import sources
from composer.evaluate import evaluate, token_scores
from composer.runs import Run, device_for
from composer.training import checkpoint
from composer.training.journal import Journal
from composer.training.keeper import History, Keeper
from composer.training.progress import describe
from composer.training.run_folder import now
from composer.training.samples import Judge
from composer.training.session import Session
from composer.training.wandb_log import Sample
from composer.training.weights import save_weights

SHOWN = 3
"""Translations that are shown at the end."""


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder and its run.json."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def scores(self) -> Mapping[str, float]:
        """The scores of the weights that were kept, by the names under which they are logged."""
        return self.record.get("scores", {})


def conclude(session: Session, journal: Journal | None) -> Outcome:
    """Writes the final weights, measures them, and says where everything is."""
    folder, course = session.folder, session.course
    if journal is None:
        return Outcome(folder.path, {})
    how, paths = chosen(course.keeper, course.history, session.recipe.training["average_checkpoints"])
    model = session.module.model
    model.load_state_dict(checkpoint.average(paths) if len(paths) > 1 else checkpoint.weights(paths[0]))
    save_weights(model, folder.weights)
    journal.display.close()
    run = Run(folder, session.recipe, session.data.tokenizers, model.eval().to(device_for(session.recipe)))
    known = scores_known(session, paths)
    new = ({} if known else validation_scores(session, run)) | test_scores(session, run)
    if new:
        journal.write({"step": course.now.step, **new})
    record = folder.update(
        status="finished",
        ended=now(),
        minutes=round(course.clock.minutes(), 3),
        steps=course.now.step,
        epochs=round(course.order.epochs(), 3),
        kept={"how": how, "checkpoints": [path.name for path in paths]},
        scores=known | new,
    )
    tell(session, run, record)
    return Outcome(folder.path, record)


def chosen(keeper: Keeper, history: History, average: int) -> tuple[str, list[Path]]:
    """Which checkpoints the final weights are made of, and how that is called: average, best or last."""
    there = set(checkpoint.checkpoints(keeper.folder))
    recent = [path for path in keeper.recent(history)[-average:] if path in there]
    if average > 1 and len(recent) > 1:
        return "average", recent
    best = keeper.best(history)
    if best in there:
        return "best", [best]
    return "last", [max(there)]


def scores_known(session: Session, paths: Sequence[Path]) -> dict[str, float]:
    """The validation scores of these weights: nothing where they are an average."""
    for scores in session.course.history:
        if len(paths) == 1 and checkpoint.checkpoint_path(paths[0].parent, int(scores["step"])) == paths[0]:
            return {name: value for name, value in scores.items() if name != "step"}
    return {}


def validation_scores(session: Session, run: Run) -> dict[str, float]:
    """The scores of these weights on the validation part, as they are measured in training."""
    if session.data.val is None:
        return {}
    told = {f"val/{name}": value for name, value in token_scores(run.model, session.data.val).items()}
    return told | Judge(session.data.val, session.data.pairs["val"]).judge(session.module)[0]


def test_scores(session: Session, run: Run) -> dict[str, float]:
    """The scores on the test part, decoded as the recipe says; nothing without such a part."""
    if session.data.test is None:
        return {}
    session.display.say("measuring on the test part")
    return {name: value for name, value in evaluate(run, "test").items() if isinstance(value, float)}


def tell(session: Session, run: Run, record: Mapping[str, Any]) -> None:
    """Says what came out and where it is."""
    say = session.display.say
    kept = ", ".join(name.removesuffix(".ckpt") for name in record["kept"]["checkpoints"])
    say(f"{record['steps']:,} steps, {record['epochs']:.2f} epochs, {record['minutes']:.2f} minutes")
    say(f"weights: {record['kept']['how']} ({kept})")
    for split in ("val", "test"):
        if scores := describe({name: value for name, value in record["scores"].items() if name.startswith(split)}):
            say(f"{split}: {scores}")
    session.display.show(translated(session, run))
    say(f"everything is in {session.folder.path}; try it: seqcomposer translate {session.folder.path}")


def translated(session: Session, run: Run) -> list[Sample]:
    """The first sentences of the test part, or else of the validation part, translated as the recipe says."""
    pairs = session.data.pairs.get("test") or session.data.pairs.get("val")
    read = sources(session.recipe)
    if not pairs or not read:
        return []
    rows = range(min(SHOWN, len(pairs)))
    texts = ["\t".join(pairs.sides[side][row] for side in read) for row in rows]
    found = run.translate(texts)
    return [Sample(texts[row], pairs.sides["target"][row], found[row]) for row in rows]
