"""The rules of data that were read, all or a sample; their problems are warnings."""

from __future__ import annotations

from composer.checks import answers, media, overlap, tables, texts
from composer.checks.problem import faults
from composer.checks.read_data import ReadData
from composer.errors import Fault

RULES = (*answers.RULES, *media.RULES, *overlap.RULES, *tables.RULES, *texts.RULES)


def warnings(read: ReadData) -> list[Fault]:
    """Return all warnings of the data that were read.

    Raises DataError if the test is the training part.
    """
    warned: list[Fault] = []
    for rule in RULES:
        warned += faults(read.recipe, rule(read))
    return warned
