"""Training needs a few packages alone: it runs where nothing else can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = """\
recipe: 1
data: {generate: {copy: {train: 64, val: 8, test: 8}}, tokenizer: word}
model:
  width: 8
  encoder: [{rnn: {cell: gru}}]
  decoder: [{rnn: {cell: gru}}, cross_attention]
training: {max_steps: 4, validate_every: 2}
trainer: {accelerator: cpu}
logging: {wandb: false}
"""

BARE = """
import sys
from importlib import metadata

from packaging.requirements import Requirement

def closure(names):
    needed, waiting = set(), list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in needed:
            continue
        needed.add(name)
        try:
            wanted = map(Requirement, metadata.requires(name) or ())
            waiting += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
        except metadata.PackageNotFoundError:
            needed.discard(name)
    return needed

allowed = closure([
    "torch", "pytorch-lightning", "pyyaml", "jsonschema", "tokenizers", "safetensors", "sacrebleu", "rich", "typer",
])
owners = metadata.packages_distributions().items()
refused = {top for top, names in owners if not {n.lower().replace("_", "-") for n in names} & {*allowed, "seqcomposer"}}

class WithoutRefused:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in refused else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

def version_unless_refused(name, version=metadata.version):
    if name.replace("-", "_") in refused:  # torchmetrics asks for SciPy's, and imports it if there is one
        raise metadata.PackageNotFoundError(name)
    return version(name)

metadata.version = version_unless_refused
sys.meta_path[:] = map(WithoutRefused, sys.meta_path)
for name in [name for name in sys.modules if name.partition(".")[0] in refused]:
    del sys.modules[name]
print("refused:", *sorted(refused))

import composer
composer.check(sys.argv[1])
print("trained:", composer.train(sys.argv[1], run=sys.argv[2]).record.status)
optional = {"wandb", "optuna", "datasets", "plotly", "jinja2", "huggingface_hub", "num2words"}
optional |= {"ray", "submitit", "scipy"}
print("imported:", *sorted(optional & set(sys.modules)))
"""


@pytest.mark.slow
def test_training_imports_nothing_but_its_few_packages(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE, encoding="utf-8")
    command = [sys.executable, "-c", BARE, str(tmp_path / "small.yaml"), str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    refused, *_, trained, imported = result.stdout.splitlines()
    assert {
        "wandb",
        "optuna",
        "plotly",
        "datasets",
        "num2words",
        "pandas",
        "pyarrow",
        "scipy",
    } <= set(refused.split())
    assert (trained, imported) == ("trained: finished", "imported:")
