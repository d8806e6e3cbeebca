"""The compiled step of decoding: the same answers for any sizes, compiled once, and never for another model."""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler

import blocks.rnn
from composer.errors import ComposerError, RunError
from composer.inference import compiled_step
from composer.inference.compiled_step import (
    SIZES,
    Code,
    Interface,
    StepModule,
    compilation_problem,
    example_step,
    export_step,
    fingerprint,
)
from composer.inference.decode import decode_all
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe import registry
from composer.recipe.recipe import load_text
from composer.training.preflight import check_recipe

RECIPE = """
recipe: 1
data: {generate: copy}
model:
  width: 16
  encoder: [positions, {residual: [{self_attention: {heads: 2}}]}]
  decoder:
    - {residual: [{self_attention: {heads: 2}}]}
    - {rnn: {cell: gru, initial_state: encoder}}
    - {residual: [cross_attention]}
"""
CHECKED = """
recipe: 1
data: {generate: {copy: {max_length: 6, train: 50, val: 4, test: 4}}}
decoding: {greedy: {compile: true}}
model:
  width: 8
  encoder: [rnn]
  decoder:
    - cross_attention
"""
DECODER = """
recipe: 1
data: {parallel: {train: {target: a.txt}}}
model:
  width: 12
  decoder:
    - BLOCK
"""
WITHOUT_A_SOURCE = (
    "delta_net: {heads: 2}",
    "gated_delta_net: {heads: 2}",
    "gated_linear_attention: {heads: 2}",
    "latent_attention: {heads: 2}",
    "linear_attention: {heads: 2}",
    "long_conv",
    "mamba",
    "mamba2: {head_width: 6}",
    "mlstm: {heads: 2}",
    "ntm: {slots: 5}",
    "recurrent: {stack: [rnn]}",
    "retention: {heads: 2}",
    "rg_lru: {heads: 2}",
    "rnn: {cell: min_gru}",
    "rwkv7: {heads: 2}",
    "self_attention: {heads: 3, window: 3}",
    "self_attention: {heads: 2, kv_heads: 1, positions: rotary}",
    "self_attention: {heads: 4, kv_heads: 2, soft_cap: 3.0}",
    "self_attention: {heads: 4, kv_heads: 2, sinks: true}",
    "slstm",
)
SOURCES = [[5, 7, 6], [9, 4, 4, 8, 6], [5], [6, 6, 7, 5, 4, 9, 8]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def model_of(text: str, seed: int = 1) -> EncoderDecoder:
    torch.manual_seed(seed)
    return build(load_text(text), {"source": 20, "target": 20}).eval()


def module_of(model: EncoderDecoder) -> StepModule:
    ids, state, memories = example_step(model, *SIZES[0])
    return StepModule(model, Interface.observe(model, ids, state, memories)[0], state)


def answers(model: EncoderDecoder, rows: list[list[int]], **decoding: Any) -> list[tuple[list[int], float]]:
    ((method, settings),) = decoding.items()
    decoded = decode_all([model], {"source": rows}, {method: {**settings, "max_length": 12}})
    return [(best.ids, pytest.approx(best.score, abs=1e-4)) for best, *_ in decoded]


@pytest.mark.slow
def test_compiled_answers_are_the_same(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = model_of(RECIPE), model_of(RECIPE, seed=2)
    methods: list[dict[str, Any]] = [{"greedy": {}}, {"beam": {"size": 3}}, {"sample": {"seed": 3}}]
    methods += [{"mbr": {"samples": 2, "seed": 3}}]

    def same(model: EncoderDecoder) -> None:
        for decoding in methods:
            ((method, settings),) = decoding.items()
            for rows in (SOURCES, SOURCES[:1]):
                compiled = answers(model, rows, **{method: {**settings, "compile": True}})
                assert compiled == answers(model, rows, **decoding)

    same(model)
    assert {file.suffix for file in cache.rglob("*.*")} == {".pt2", ".sha256"}
    monkeypatch.setattr(compiled_step, "compile_to", None)  # from here on the cache has it
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    same(model)
    same(other)


def test_code_of_others_and_changed_code_is_not_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = compiled_step.own_folder()
    file = own / "step.pt2"
    assert not compiled_step.is_as_written(file)
    file.write_bytes(b"code")
    assert not compiled_step.is_as_written(file)  # as an earlier version left it
    compiled_step.hash_file(file).write_text(hashlib.sha256(b"code").hexdigest())
    assert compiled_step.is_as_written(file)
    file.write_bytes(b"cope")
    assert not compiled_step.is_as_written(file)
    own.chmod(0o777)
    with pytest.raises(RunError, match="others can write"):
        compiled_step.own_folder()
    own.chmod(0o700)
    file.write_bytes(b"code")
    user = os.getuid()
    monkeypatch.setattr(compiled_step.os, "getuid", lambda: user + 1)
    assert not compiled_step.is_as_written(file)
    (cache / f"compiled-{user + 1}").mkdir()
    with pytest.raises(RunError, match="others can write"):
        compiled_step.own_folder()


def test_the_folders_of_two_users_lie_in_the_store_itself(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = compiled_step.own_folder()  # which nobody else may write into
    monkeypatch.setattr(compiled_step, "is_own", lambda path: True)
    monkeypatch.setattr(compiled_step.os, "getuid", lambda: 12345)
    other = compiled_step.own_folder()
    assert own != other
    assert own.parent == other.parent == cache


def test_a_step_is_exported_for_one_row_too() -> None:
    program = export_step(module_of(model_of(RECIPE)))
    assert not any(program.above_one)


def test_a_step_is_exported_for_sources_of_any_lengths() -> None:
    text = RECIPE.replace(
        "encoder: [positions, {residual: [{self_attention: {heads: 2}}]}]", "encoders: {a: [rnn], b: [rnn]}"
    )
    text = text.replace("initial_state: encoder", "").replace(
        "cross_attention]", "{cross_attention: {from: a}}, {cross_attention: {from: b}}]"
    )
    torch.manual_seed(1)
    model = build(load_text(text), {"a": 20, "b": 20, "target": 20}).eval()
    module = module_of(model)
    memories = model.encode({"a": torch.tensor([[5, 6, 7, 8]] * 2), "b": torch.tensor([[9, 9]] * 2)})
    state = model.step(torch.ones(2, 3, dtype=torch.long), model.start(memories, 2), memories)[1]
    inputs = module.interface.inputs(torch.full((2, 1), 5), state, memories)
    with torch.no_grad():
        assert torch.allclose(export_step(module).graph.module()(*inputs)[0], module(*inputs)[0], atol=1e-5)


def test_code_for_several_rows_gets_a_single_one_twice() -> None:
    code = Code(torch.add, [[0], [0, 1]])
    sizes = {(2, 3): (2, 3), (1, 3): (2, 3), (2, 1): None, (1, 1): None}
    fitting = {
        (rows, length): code.fit((torch.ones(rows, 1), [torch.ones(rows, length)], [])) for rows, length in sizes
    }
    assert {size: fit and tuple(fit[1][0].shape) for size, fit in fitting.items()} == sizes


@pytest.mark.slow
@pytest.mark.parametrize("block", WITHOUT_A_SOURCE)
def test_a_step_of_each_mixer_is_exported_for_any_sizes(block: str) -> None:
    recipe = load_text(DECODER.replace("BLOCK", block))
    assert compilation_problem(lambda: build(recipe, {"target": 20})) == ""


def test_a_write_in_place_that_fixes_a_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(a: torch.Tensor, b: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(b)
        y.unbind(1)[0].copy_(torch.addcmul(b[:, 0], a[:, 0], before))
        return y

    monkeypatch.setattr("blocks.core.selective_scan.scan", scan)
    problem = compilation_problem(lambda: build(load_text(DECODER.replace("BLOCK", "mamba")), {"target": 20}))
    assert problem.endswith("the compiler makes code for inputs of one size alone")


@pytest.mark.slow
@pytest.mark.parametrize("block", ["mamba", "self_attention: {heads: 4, kv_heads: 2, soft_cap: 3.0, window: 5}"])
def test_a_compiled_step_is_the_models_at_any_sizes(block: str) -> None:
    model = build(load_text(DECODER.replace("BLOCK", block)), {"target": 20}).eval()
    step = compiled_step.CompiledStep([])
    with torch.no_grad():
        step(model, *example_step(model, *SIZES[0]))  # the first one is not compiled
        for rows, positions in ((5, 7), (1, 3), (1, 40), (2, 1), (1, 1)):
            inputs = example_step(model, rows, 1, positions)
            torch.testing.assert_close(step(model, *inputs), model.step(*inputs))


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (
            "input_handles[0]: unmatched dim value at 0, expected: 3, but got: 6",
            RunError,
            "for inputs of one size alone",
        ),
        ("not enough memory", RuntimeError, "not enough memory"),
    ],
)
def test_code_that_refuses_its_inputs_ends_in_a_clear_error(
    fault: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*inputs: object) -> None:
        raise RuntimeError(fault)

    monkeypatch.setattr(compiled_step, "load_or_compile", lambda module: Code(refuse, []))
    monkeypatch.setattr(Code, "fit", lambda self, inputs: inputs)
    model = model_of(RECIPE)
    inputs = example_step(model, *SIZES[0])
    step = compiled_step.compiled_step(model)
    step(*inputs)  # the first one is not compiled
    with pytest.raises(error, match=message):
        step(*inputs)


def test_the_fingerprint_is_that_of_the_structure() -> None:
    one = fingerprint(module_of(model_of(RECIPE)))
    assert one == fingerprint(module_of(model_of(RECIPE, seed=2)))
    for old, new in (("heads: 2", "heads: 4"), ("cell: gru", "cell: tanh"), ("encoder}", "zeros}")):
        assert one != fingerprint(module_of(model_of(RECIPE.replace(old, new))))


def test_the_fingerprint_has_all_that_compiled_code_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(model_of(RECIPE))
    base = fingerprint(module)
    source = Path(inspect.getfile(blocks.rnn))
    edited = tmp_path / source.name
    edited.write_text(source.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    own = registry.OwnBlock(blocks.rnn.Rnn, "here", "0" * 64)
    changes = [
        (torch, "__version__", "0.0"),
        (compiled_step.platform, "machine", lambda: "another"),
        (compiled_step, "processor", lambda: "another"),
        (registry, "OWN", {"own": own}),
        (blocks.rnn, "__file__", str(edited)),
    ]
    for place, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            assert fingerprint(module) != base, name
    assert fingerprint(module) == base


@pytest.mark.slow
def test_the_fingerprint_is_the_same_in_every_process() -> None:
    code = "from tests.inference.test_compiled_step import *; print(fingerprint(module_of(model_of(RECIPE))))"
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert len(printed) == 65
    assert printed.strip() == fingerprint(module_of(model_of(RECIPE)))


@pytest.mark.parametrize("method", ["greedy", "beam", "sample", "mbr"])
def test_every_search_runs_the_compiled_step(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[EncoderDecoder] = []
    monkeypatch.setattr(compiled_step, "compiled_step", lambda model: steps.append(model) or model.step)
    model = model_of(RECIPE)
    answers(model, SOURCES[:1], **{method: {"compile": True}})
    assert steps == [model]


def test_check_compiles_nothing_and_knows_what_cannot_be(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    check_recipe(load_text(CHECKED))
    assert not [*cache.glob("compiled*")]

    def missing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(compiled_step, "get_cpp_compiler", missing)
    with pytest.raises(ComposerError) as raised:
        check_recipe(load_text(CHECKED))
    (fault,) = raised.value.faults
    assert fault.path == "decoding.greedy.compile"
    assert "there is no C++ compiler" in fault.message


def test_check_refuses_a_step_that_cannot_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, x: torch.Tensor, state: Any, context: Any) -> tuple[torch.Tensor, Any]:
        if torch.compiler.is_compiling():
            raise NotImplementedError("a block of one's own")
        return x, state

    monkeypatch.setattr("blocks.identity.Identity.forward", forward)
    with pytest.raises(ComposerError) as raised:
        check_recipe(load_text(CHECKED + "    - identity\n"))
    (fault,) = raised.value.faults
    assert fault.path == "decoding.greedy.compile"
    assert "cannot be compiled" in fault.message
    assert "remove `compile`" in fault.hint


def test_a_block_whose_structure_is_not_known_is_not_compiled() -> None:
    def build_model() -> EncoderDecoder:
        model = model_of(RECIPE)
        model.decoder.scale = lambda x: 2 * x
        return model

    assert "cannot be compiled" in compilation_problem(build_model)
    with pytest.raises(RunError, match="cannot be compiled"):
        answers(build_model(), SOURCES[:1], greedy={"compile": True})


def test_words_whose_vectors_would_be_made_at_every_token_are_not_compiled() -> None:
    """A convolution over all of them takes more than a second of a vocabulary of 3,000."""
    recipe = RECIPE + "  output: {kind: {cnn: {kernels: [1, 2], features: [3, 4]}}}\n"
    assert "`cnn` makes the vectors" in compilation_problem(lambda: model_of(recipe))
    with pytest.raises(RunError, match="cannot be compiled: `cnn` makes the vectors"):
        answers(model_of(recipe), SOURCES[:1], greedy={"compile": True})


def test_a_gpu_is_refused() -> None:
    model: Any = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(RunError, match="for CPUs alone"):
        compiled_step.compiled_step(model)
