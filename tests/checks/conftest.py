"""Recipes for the tests of rules: tiny ones, and those of files that a test writes."""

from __future__ import annotations

from tests.data.conftest import make as make
from tests.data.conftest import texts as texts
from tests.training.conftest import one_thread as one_thread
from tests.training.conftest import tiny as tiny
