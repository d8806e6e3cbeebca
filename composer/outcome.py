"""What a training came to: which weights are kept, how good they are, and where everything lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer import checkpoint
from composer.journal import Journal
from composer.keeper import History, Keeper
from composer.run_folder import now
from composer.session import Session
from composer.weights import save_weights


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder and its run.json."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def scores(self) -> Mapping[str, float]:
        """The last scores, by the names under which they are logged."""
        return self.record.get("scores", {})


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


def conclude(session: Session, journal: Journal | None) -> Outcome:
    """Writes the final weights, measures them, and says where everything is."""
    folder, course = session.folder, session.course
    if journal is None:
        return Outcome(folder.path, {})
    how, paths = chosen(course.keeper, course.history, session.recipe.training["average_checkpoints"])
    weights = checkpoint.average(paths) if len(paths) > 1 else checkpoint.weights(paths[0])
    session.module.model.load_state_dict(weights)
    save_weights(session.module.model, folder.weights)
    scores = {key: value for key, value in course.history[-1].items() if key != "step"}
    record = folder.update(
        status="finished",
        ended=now(),
        minutes=round(course.clock.minutes(), 3),
        steps=course.now.step,
        epochs=round(course.order.epochs(), 3),
        kept={"how": how, "checkpoints": [path.name for path in paths]},
        scores=scores,
    )
    journal.close(0)
    session.display.say(f"everything is in {folder.path}")
    return Outcome(folder.path, record)
