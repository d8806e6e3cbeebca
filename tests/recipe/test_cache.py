"""The cache of recipes: stored by their hash, verified at every reading, extended by `{pull: REF,
sha256: HEX}`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from composer.errors import RecipeError, RunError
from composer.recipe import cache, schema_generator
from composer.recipe.extends_and_overrides import portable_text
from composer.recipe.recipe import load
from composer.recipe.yaml_reader import read, to_data
from composer.sweeps.spec import read_sweep
from composer.sweeps.substitution import apply_point
from tests.samples import sampled
from tests.small_recipes import SMALL, loaded, places, refused

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    file for file in (ROOT / "recipes").rglob("*.yaml") if file.parent.name != "sweeps"
)
REF = "git+https://example.org/r.git@main#a b.yaml"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))


def pin(sha256: str, ref: str = REF) -> str:
    return f"{{pull: '{ref}', sha256: '{sha256}'}}"


# ------------------------------------------------------------------------------------------- the
# cache


def test_a_cached_recipe_is_read_by_its_hash(tmp_path: Path) -> None:
    sha256 = cache.put("recipe: 1  # ü\n")
    assert sha256 == hashlib.sha256("recipe: 1  # ü\n".encode()).hexdigest()
    assert cache.get(sha256) == tmp_path / "store" / "recipes" / f"{sha256}.yaml"
    assert cache.read(sha256) == (cache.get(sha256), "recipe: 1  # ü\n".encode())
    assert [path.name for path in (tmp_path / "store" / "recipes").iterdir()] == [f"{sha256}.yaml"]
    assert cache.get("0" * 64) is None


def test_putting_again_changes_nothing_and_repairs_a_changed_file() -> None:
    sha256 = cache.put(SMALL)
    path = cache.get(sha256)
    assert path is not None
    before = path.stat()
    assert cache.put(SMALL) == sha256
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    path.chmod(0o644)
    path.write_text("recipe: 1\n")
    with pytest.raises(RunError, match="file was changed"):
        cache.get(sha256)
    cache.put(SMALL)
    assert path.read_text() == SMALL


def put_link(path: Path) -> None:
    path.with_name("elsewhere").write_text(SMALL)
    path.symlink_to("elsewhere")


CHANGED: dict[str, Any] = {
    "another text": lambda path: path.write_text("recipe: 1\n"),
    "one byte more": lambda path: path.write_text(SMALL + "\n"),
    "cut": lambda path: path.write_text(SMALL[:-1]),
    "too large": lambda path: path.write_bytes(b"#" * (1 << 21)),
    "a link to the very text": put_link,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
    "the terminal": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=list(CHANGED))
def test_anything_else_under_a_hash_is_refused(tmp_path: Path, change: Any) -> None:
    sha256 = cache.put(SMALL)
    path = cache.get(sha256)
    assert path is not None
    path.unlink()
    change(path)
    with pytest.raises(RunError) as raised:
        cache.get(sha256)
    assert raised.value.faults[0].file == str(path)
    (fault,) = refused(tmp_path, f"extends: {pin(sha256)}\n")
    assert (places([fault]), fault.path) == (
        [f"1:{len(f'extends: {pin(sha256)}') - 66}:sha256"],
        "extends",
    )
    assert str(path) in fault.message
    assert f"remove that file, then run `seqcomposer pull {shlex.quote(REF)}`" in fault.hint


@pytest.mark.parametrize(
    "text",
    ["", "x", "A" * 64, "0" * 63, "0" * 65, "0" * 63 + "\n", "../" * 21 + "0", "\u0660" * 64],
)
def test_a_text_that_is_no_hash_names_no_file(text: str) -> None:
    assert not cache.is_hash(text)
    with pytest.raises(RunError, match="is no SHA-256"):
        cache.get(text)


def test_a_cache_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "file"))
    assert cache.get("0" * 64) is None
    with pytest.raises(RunError, match="SEQCOMPOSER_STORE") as raised:
        cache.put(SMALL)
    assert raised.value.faults[0].file.startswith(str(tmp_path / "file"))


def test_a_recipe_that_is_too_large_is_not_cached(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="1 MiB"):
        cache.put("#" * (1 << 20) + "\n")
    assert not (tmp_path / "store").exists()


PUT_REPEATEDLY = (
    "import sys; from composer.recipe.cache import put; print({put(sys.argv[1]) for _ in"
    " range(300)})"
)


def test_several_processes_put_the_same_recipe_at_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PUT_REPEATEDLY, SMALL], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert {process.communicate()[0] for process in processes} == {f"{ {cache.put(SMALL)} }\n"}
    assert len(list((tmp_path / "store" / "recipes").iterdir())) == 1


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="no space left"):
        cache.put(SMALL)
    assert list((tmp_path / "store" / "recipes").iterdir()) == []


# -------------------------------------------------------------------------------------------
# portable recipes


def test_the_bytes_of_a_portable_recipe_are_a_promise(tmp_path: Path) -> None:
    """Others have written their hash down: whoever changes this text breaks every pin."""
    (tmp_path / "base.yaml").write_text(
        "recipe: 1\nvars: {w: 1_0, r: 1e-5}\nmodel: {width: '${w}', dropout: 0.10}\n",
        encoding="utf-8",
    )
    (tmp_path / "own.yaml").write_text(
        "extends: base.yaml\nname: 'no'  # a comment\ndata: {generate: copy, lowercase:"
        " null}\nmodel: {dropout: null, encoder: [norm, {rnn: {width: 0x10}}], decoder: [{norm:"
        " layer}, {dropout: '010'}]}\n",
        encoding="utf-8",
    )
    assert (
        portable_text(tmp_path / "own.yaml") == "recipe: 1\n"
        "vars: {w: '1_0', r: 1e-05}\n"
        "model:\n"
        "  width: ${w}\n"
        "  encoder:\n"
        "  - norm\n"
        "  - rnn: {width: 16}\n"
        "  decoder:\n"
        "  - {norm: layer}\n"
        '  - dropout: "010"\n'
        "name: 'no'\n"
        "data: {generate: copy, lowercase: null}\n"
    )


@pytest.mark.parametrize(
    "file", sampled(RECIPES, 40, slow=40), ids=lambda file: str(file.relative_to(ROOT / "recipes"))
)
def test_every_recipe_is_the_same_out_of_the_store(tmp_path: Path, file: Path) -> None:
    text = portable_text(file)
    sha256 = cache.put(text)
    path = cache.get(sha256)
    assert path is not None
    assert portable_text(path) == text
    if "fragments" not in file.parts:
        extended = loaded(tmp_path, f"extends: {pin(sha256)}\n", name=file.name)
        original = load(file)
        assert extended.explicit == original.explicit
        assert extended.fingerprints == original.fingerprints


def test_somebody_elses_recipe_stays_in_its_folder(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "inner"
    theirs.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "mine.yaml").write_text(SMALL)
    (theirs.parent / "base.yaml").write_text(SMALL)
    (theirs / "r.yaml").write_text("extends: ../../mine.yaml\n")
    (theirs / "good.yaml").write_text("extends: ../base.yaml\n")
    (theirs / "link.yaml").symlink_to(tmp_path / "mine.yaml")
    assert portable_text(theirs / "r.yaml") == portable_text(theirs / "good.yaml")
    assert portable_text(theirs / "good.yaml", ceiling=theirs.parent)
    for name in ("r.yaml", "link.yaml"):
        with pytest.raises(RecipeError, match="leads out of"):
            portable_text(theirs / name, ceiling=theirs.parent)


# -------------------------------------------------------------------------------------------
# extends


def test_a_pinned_recipe_is_extended_and_its_variables_stay_open(tmp_path: Path) -> None:
    base = cache.put(SMALL.replace("64", "${w}") + "vars: {w: 64}\n")
    (tmp_path / "fragment.yaml").write_text("training: {seed: 5, max_steps: 3}\n")
    recipe = loaded(
        tmp_path,
        f"extends: [{pin(base)}, fragment.yaml, {pin(cache.put('training: {seed: 9}'))}]\n",
        ["vars.w=32"],
    )
    assert (recipe.model.width, recipe.training.seed, recipe.training.max_steps) == (32, 9, 3)
    assert loaded(tmp_path, f"extends: {pin(base)}\nvars: {{w: 16}}\n").model.width == 16


def test_a_missing_recipe_is_reported_with_the_command_that_pulls_it(tmp_path: Path) -> None:
    ref = "it's; rm -rf ~ #x"
    (fault,) = refused(tmp_path, f'recipe: 1\nextends:\n- pull: "{ref}"\n  sha256: {"0" * 63}a\n')
    assert (places([fault]), fault.path, fault.length) == (["3:9:pull"], "extends", len(ref) + 2)
    command = fault.hint.removeprefix("run `").removesuffix("`")
    assert shlex.split(command) == ["seqcomposer", "pull", ref]


WRONG = [
    # what stands after `extends: `, and the places of the faults
    ("{pull: a}", ["1:1:missing"]),
    ("[{pull: a}]", ["1:11:missing"]),
    (f"{{sha256: {'a' * 64}}}", ["1:1:missing"]),
    (f"{{pull: a, sha: {'a' * 64}}}", ["1:20:unknown"]),
    (f"{{pull: a, sha256: {'a' * 64}, as: x}}", ["1:94:unknown"]),
    ("{pull: a, sha256: abc}", ["1:28:sha256"]),
    ("{pull: a, sha256: 123}", ["1:28:sha256"]),
    ("{pull: a, sha256: }", ["1:20:sha256"]),
    (f"{{pull: a, sha256: {'A' * 64}}}", ["1:28:sha256"]),
    (f"{{pull: '${{x}}', sha256: '{'a' * 63}'}}", ["1:33:sha256"]),
    (f"{{pull: --output, sha256: {'a' * 64}}}", ["1:17:type"]),
    (f"{{pull: '', sha256: {'a' * 64}}}", ["1:17:type"]),
    (f"{{pull: [a], sha256: {'a' * 64}}}", ["1:17:type"]),
    (f'{{pull: "a\\nb", sha256: {"a" * 64}}}', ["1:17:type"]),
    (f'{{pull: "a\\e[2J", sha256: {"a" * 64}}}', ["1:17:type"]),
    ("[{pull: 1, sha256: 2}, nothing.yaml]", ["1:18:type", "1:29:sha256", "1:33:file"]),
    ("{}", ["1:10:type"]),
    ("{path: base.yaml}", ["1:10:type"]),
]


@pytest.mark.parametrize(("extends", "expected"), WRONG, ids=[item[0][:40] for item in WRONG])
def test_an_invalid_pin_is_refused(tmp_path: Path, extends: str, expected: list[str]) -> None:
    assert places(refused(tmp_path, f"extends: {extends}\n{SMALL}")) == expected


def test_a_missing_hash_is_reported_with_the_command_that_prints_it(tmp_path: Path) -> None:
    (fault,) = refused(tmp_path, f"extends: {{pull: 'a b'}}\n{SMALL}")
    assert fault.hint == "run `seqcomposer pull 'a b'`, which prints it"


def test_a_fault_of_a_cached_recipe_points_into_the_cache(tmp_path: Path) -> None:
    sha256 = cache.put(SMALL.replace("[norm]", "[nrm]"))
    (fault,) = refused(tmp_path, f"extends: {pin(sha256)}\n")
    assert (Path(fault.file), fault.line, fault.column) == (cache.get(sha256), 5, 13)


@pytest.mark.parametrize(
    "extends", ["base.yaml", "/etc/passwd", "{pull: a, sha256: " + "a" * 64 + "}"]
)
def test_a_cached_recipe_extends_no_other(tmp_path: Path, extends: str) -> None:
    sha256 = cache.put(f"{SMALL}extends: {extends}\n")
    (fault,) = refused(tmp_path, f"extends: {pin(sha256)}\n")
    assert (Path(fault.file), places([fault])) == (cache.get(sha256), ["6:1:pull"])


def test_a_cached_text_that_is_no_recipe_is_reported_in_its_file(tmp_path: Path) -> None:
    for text, code in (
        ("- a\n", "type"),
        ("a: !!python/none x\n", "tag"),
        ("recipe: 2\n", "version"),
        ("", "empty"),
    ):
        sha256 = cache.put(text)
        assert [
            (Path(item.file), item.code) for item in refused(tmp_path, f"extends: {pin(sha256)}\n")
        ] == [(cache.get(sha256), code)]


def test_pins_count_among_the_files(tmp_path: Path) -> None:
    pins = ", ".join(pin(cache.put(f"training: {{seed: {seed}}}\n")) for seed in range(40))
    assert "size" in {fault.code for fault in refused(tmp_path, f"extends: [{pins}]\n")}


def test_editors_accept_what_we_accept(tmp_path: Path) -> None:
    validator = Draft202012Validator(schema_generator.load())
    good = {"pull": REF, "sha256": "a" * 64}
    for extends in (good, [good, "base.yaml"], "base.yaml", ["base.yaml"]):
        assert validator.is_valid({"extends": extends})
    for extends in (
        {"pull": REF},
        {**good, "as": "x"},
        {**good, "sha256": "x"},
        [[good]],
        [{"pull": REF}],
        [],
    ):
        assert not validator.is_valid({"extends": extends})


# ------------------------------------------------------------------------------------------- sweeps

AXES = "axes: {width: {set: model.width, values: [8, 16]}, size: {extend: {short: @}}}\n"


def test_a_sweep_begins_from_a_pinned_recipe(tmp_path: Path) -> None:
    base, short = cache.put(SMALL), cache.put("training: {max_steps: 3}\n")
    file = tmp_path / "s.yaml"
    file.write_text(
        f"sweep: 1\nbase: {pin(base)}\n{AXES.replace('@', pin(short))}", encoding="utf-8"
    )
    sweep = read_sweep(file)
    assert sweep.base == file  # whose folder has the data
    root = to_data(apply_point(sweep, {"width": 16, "size": "short"}))
    assert (root["model"]["width"], root["training"]["max_steps"]) == (16, 3)


def test_a_sweeps_missing_pin_is_reported_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        f"sweep: 1\nbase: {pin('a' * 64)}\n{AXES.replace('@', pin('b' * 64))}", encoding="utf-8"
    )
    with pytest.raises(RecipeError) as raised:
        read_sweep(file)
    assert [(item.path, item.line, item.code) for item in raised.value.faults] == [
        ("base", 2, "pull"),
        ("axes.size.extend.short", 3, "pull"),
    ]
    assert to_data(read(file, "s"))["base"]["pull"] == REF
