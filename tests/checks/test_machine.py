"""A setting that this machine carries out slowly is a warning; what it cannot do at all is tested
where it is used.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer.api import check
from composer.checks import machine
from composer.checks.machine import speed
from composer.errors import RecipeError
from composer.model.machine import multiplies_bfloat16
from composer.training.preflight import check_recipe
from composer.training.train import train
from tests.training.tiny_recipes import Tiny


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_cpu_without_bfloat16_is_reported_where_it_is_asked_for(
    tiny: Tiny, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda: False)
    recipe = tiny(f"training.precision={precision}", "trainer.accelerator=cpu")
    (warning,) = check_recipe(recipe).warnings
    assert (warning.code, warning.path) == ("slow", "training.precision")
    assert f"`{precision}` is many times slower" in warning.message
    assert not check_recipe(recipe, any_machine=True).warnings


def test_nothing_is_slow_in_float32_on_a_gpu_or_on_a_cpu_that_has_bfloat16(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda: False)
    assert not [*speed(tiny("trainer.accelerator=cpu"))]
    assert not [*speed(tiny("training.precision=bf16-mixed", "trainer.accelerator=gpu"))]
    monkeypatch.setattr(machine, "multiplies_bfloat16", lambda: True)
    assert not [*speed(tiny("training.precision=bf16-mixed", "trainer.accelerator=cpu"))]


def test_a_pytorch_without_onednn_multiplies_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", None)
    assert not multiplies_bfloat16()


@pytest.mark.parametrize(
    ("path", "overrides"),
    [
        ("training.workers", ["training.workers=256"]),
        ("trainer.devices", ["trainer.devices=90", "training.workers=2"]),
    ],
)
def test_more_processes_than_this_machine_has_a_use_for(
    tiny: Tiny, tmp_path: Path, path: str, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "visible_cpus", lambda: 8)
    recipe = tiny("trainer.accelerator=cpu", *overrides)
    (fault,) = check(recipe)
    assert (fault.code, fault.path) == ("bound", path)
    assert check(recipe, any_machine=True) == []
    with pytest.raises(RecipeError) as refused:
        train(recipe, tmp_path / "run")
    assert fault.message == f"on this machine, {refused.value.faults[0].message}"
    assert check(tiny("trainer.accelerator=cpu", "training.workers=7")) == []


def test_the_packages_of_an_engine_are_installed(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("decoding.greedy.engine=onnxruntime")
    assert not check(recipe)
    monkeypatch.setattr(machine, "PROGRAMS", ("onnx", "no_such_package"))
    (fault,) = check(recipe)
    assert (fault.code, fault.path) == ("package", "decoding.greedy.engine")
    assert check(recipe, any_machine=True) == []
