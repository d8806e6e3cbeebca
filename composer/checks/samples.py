"""The rules of all data, which need them, or a sample: what they find are warnings."""

from __future__ import annotations

from composer.checks import answers, media, overlap, tables, texts
from composer.checks.problem import faults
from composer.checks.read_data import ReadData
from composer.errors import Fault

RULES = (*answers.RULES, *media.RULES, *overlap.RULES, *tables.RULES, *texts.RULES)


def warnings(read: ReadData) -> list[Fault]:
    """Return all warnings of the data: those that `check` prints of what it reads, and `train` of
    all.

    Raises DataError if the test is the training part.
    """
    return [fault for rule in RULES for fault in faults(read.recipe, rule(read))]
