"""Generated tasks: pairs that need no files."""

from __future__ import annotations

from collections.abc import Callable

from composer.data.tasks.draws import Lines
from composer.data.tasks.numbers import (
    binary_addition,
    binary_multiplication,
    increment,
    number_words,
    ram_access,
    ram_copy,
    ram_increment,
)
from composer.data.tasks.sequences import (
    bigram_flip,
    copy,
    counting,
    dialect,
    duplicate,
    dynamic_ngrams,
    parentheses,
    reverse,
    sort,
)
from composer.data.tasks.vectors import associative_recall, priority_sort, repeat_copy, vector_copy

TASKS: dict[str, Callable[..., Lines]] = {
    "number_words": number_words,
    "copy": copy,
    "reverse": reverse,
    "duplicate": duplicate,
    "sort": sort,
    "bigram_flip": bigram_flip,
    "binary_addition": binary_addition,
    "binary_multiplication": binary_multiplication,
    "increment": increment,
    "parentheses": parentheses,
    "dialect": dialect,
    "vector_copy": vector_copy,
    "repeat_copy": repeat_copy,
    "associative_recall": associative_recall,
    "priority_sort": priority_sort,
    "dynamic_ngrams": dynamic_ngrams,
    "counting": counting,
    "ram_access": ram_access,
    "ram_increment": ram_increment,
    "ram_copy": ram_copy,
}
"""Every generated task by its word in a recipe: `task(split, epoch, *, settings)`."""
