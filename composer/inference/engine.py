"""`engine: onnxruntime` or `torch`: what runs the models of a search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from composer.inference.run import Run
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.choices import Decoder, Engine
from composer.recipe.recipe import load
from composer.run_dir import RunDir, find_run


def decoding_models(runs: Sequence[Run], decoding: Decoder) -> list[EncoderDecoder]:
    """Return the models of runs on the engine of a decoding. Raises RunError and RecipeError."""
    if decoding.engine == "torch":
        return [run.model for run in runs]
    from composer.inference.onnx_model import on_onnxruntime  # it takes PyTorch's compiler

    return [on_onnxruntime(run, decoding) for run in runs]


def engine_override(run: str | Path, overrides: Sequence[str], engine: Engine) -> str:
    """Return the override that lets a run decode on an engine. Raises RecipeError and RunError."""
    recipe = load(RunDir(find_run(run)).recipe, overrides)
    return f"decoding.{recipe.decoding.word}.engine={engine}"
