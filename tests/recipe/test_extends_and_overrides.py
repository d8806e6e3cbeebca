"""`extends`, the command line, and variables."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from composer.recipe import schema_generator
from composer.recipe.extends_and_overrides import MEANINGFUL_NULLS, portable_text
from composer.recipe.recipe import load, load_text
from composer.recipe.schema_reader import Schema
from composer.recipe.section import BlockSpec
from tests.small_recipes import SMALL, loaded, places, refused

BASE = """recipe: 1
vars: {width: 32, heads: 4}
data:
  parallel: {train: {source: a, target: b}}
  tokenizer: {bpe: {size: 500}}
model:
  width: ${width}
  dropout: 0.1
  residual: {norm: pre, scale: 0.5}
  encoder: [norm, linear]
  decoder: [{self_attention: {heads: "${heads}"}}]
training: {optimizer: {adam: {learning_rate: 0.1}}, clip_norm: 1.0, max_steps: 3}
decoding: {beam: {size: 3}}
"""
TEXT = """recipe: 1
data:
  text: {train: a.txt, val: b.txt, test: c.txt}
model:
  width: 8
  decoder: [rnn]
  output: {kind: {sampled: {samples: 9}}, tie: [target]}
"""
ADAPTIVE = TEXT.replace(
    "sampled: {samples: 9}}, tie: [target]", "adaptive: {cutoffs: [9], div_value: 2}}"
)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


# -------------------------------------------------------------------------------------------
# extends


def test_mappings_merge_lists_and_choices_are_replaced_null_removes(tmp_path: Path) -> None:
    write(tmp_path, base=BASE)
    own = """extends: base.yaml
vars: {width: 64}
data: {tokenizer: char, lowercase: true}
model: {residual: {norm: post}, encoder: [norm], dropout: null}
training: {optimizer: sgd, clip_norm: null}
decoding: {beam: {length_penalty: 1.0}}
"""
    merged = loaded(tmp_path, own).explicit
    assert merged["data"] == {
        "parallel": {"train": {"source": "a", "target": "b"}},
        "tokenizer": "char",
        "lowercase": True,
    }
    assert merged["model"] == {
        "width": 64,
        "residual": {"norm": "post", "scale": 0.5},
        "encoder": ["norm"],
        "decoder": [{"self_attention": {"heads": 4}}],
    }
    assert merged["training"] == {"optimizer": "sgd", "max_steps": 3}
    assert merged["decoding"] == {"beam": {"length_penalty": 1.0}}
    assert not {"extends", "vars"} & set(merged)


def test_what_decodes_the_validation_sample_is_a_choice_as_well(tmp_path: Path) -> None:
    write(
        tmp_path,
        base=SMALL + "training: {validation_sample: {lines: 9, decoding: {beam: {size: 3}}}}\n",
    )
    own = (
        "extends: base.yaml\ntraining: {validation_sample: {decoding: {sample: {temperature:"
        " 0.5}}}}\n"
    )
    assert loaded(tmp_path, own).explicit["training"]["validation_sample"] == {
        "lines": 9,
        "decoding": {"sample": {"temperature": 0.5}},
    }
    recipe = load(tmp_path / "base.yaml", ["training.validation_sample.decoding.max_length=9"])
    assert recipe.explicit["training"]["validation_sample"]["decoding"] == {
        "beam": {"size": 3, "max_length": 9}
    }


def test_another_data_source_takes_the_place_of_the_inherited_one(tmp_path: Path) -> None:
    write(tmp_path, base=BASE)
    assert loaded(tmp_path, "extends: base.yaml\ndata: {generate: copy}\n").explicit["data"] == {
        "tokenizer": {"bpe": {"size": 500}},
        "generate": "copy",
    }


def test_of_several_bases_later_wins(tmp_path: Path) -> None:
    (tmp_path / "fragments").mkdir()
    write(tmp_path, base=BASE)
    write(
        tmp_path / "fragments",
        slow="training: {max_steps: 99}\n",
        slower="extends: slow.yaml\ntraining: {seed: 7}\n",
    )
    recipe = loaded(tmp_path, "extends: [base.yaml, fragments/slower.yaml]\n")
    assert (recipe.training.max_steps, recipe.training.seed) == (99, 7)


def test_a_fault_in_an_extended_file_names_that_file(tmp_path: Path) -> None:
    write(tmp_path, base=BASE.replace("clip_norm", "clip_nrm"))
    (fault,) = refused(tmp_path, "extends: base.yaml\n")
    assert (Path(fault.file).name, fault.line, fault.column, fault.code) == (
        "base.yaml",
        12,
        53,
        "unknown",
    )
    write(tmp_path, base=BASE + "a: *b\n")
    (fault,) = refused(tmp_path, "extends: base.yaml\n")
    assert (Path(fault.file).name, fault.line, fault.code) == ("base.yaml", 14, "alias")


@pytest.mark.parametrize(
    ("extends", "expected"),
    [
        ("nothing.yaml", ["1:10:file"]),
        (".", ["1:10:file"]),
        ("pipe", ["1:10:file"]),
        ("/etc/passwd", ["1:10:file"]),
        ("../outside.yaml", ["1:10:file"]),
        ("link.yaml", ["1:10:file"]),
        ("loop.yaml", ["1:10:file"]),
        ("[nothing.yaml, ../outside.yaml]", ["1:11:file", "1:25:file"]),
        ("3", ["1:10:type"]),
        ("[base.yaml, {a: b}]", ["1:22:type"]),
        ("r.yaml", ["1:10:cycle"]),
        ("'x\\0y'", ["1:10:file"]),
        ('"' + "x" * 5000 + '"', ["1:10:file"]),
        ('"' + "x/" * 5000 + '"', ["1:10:file"]),
        ("../../../../../../../../../../etc/passwd", ["1:10:file"]),
        ("folder_link/outside.yaml", ["1:10:file"]),
        ("device", ["1:10:file"]),
        ("socket", ["1:10:file"]),
        ("'~/base.yaml'", ["1:10:file"]),
        ("https://example.org/base.yaml", ["1:10:file"]),
    ],
)
def test_an_invalid_base_is_refused(
    tmp_path: Path, extends: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    write(folder, base=BASE)
    write(tmp_path, outside=BASE)
    os.mkfifo(folder / "pipe")
    (folder / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "folder_link").symlink_to(tmp_path)
    (folder / "device").symlink_to("/dev/zero")
    bound = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(folder)  # a socket's path is short
    bound.bind("socket")
    bound.close()
    assert places(refused(folder, f"extends: {extends}\n{SMALL}")) == expected


def test_a_repository_is_the_ceiling(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "recipes").mkdir()
    write(tmp_path, base=BASE)
    assert loaded(tmp_path / "recipes", "extends: ../base.yaml\n").model.width == 32


def test_the_working_folder_is_the_ceiling_without_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").mkdir()
    write(tmp_path, base=BASE)
    monkeypatch.chdir(tmp_path)
    assert loaded(Path("recipes"), "extends: ../base.yaml\n").model.width == 32
    monkeypatch.chdir(tmp_path / "recipes")
    (fault,) = refused(Path("."), "extends: ../base.yaml\n")
    assert "run this in the folder of both" in fault.hint


def test_a_recipe_of_the_package_is_extended_by_its_name(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, "extends: composer:papers/vaswani2017_base\nmodel: {width: 64}\n")
    assert (recipe.model.width, recipe.explicit["model"]["feed_forward"]["hidden"]) == (64, 2048)
    assert portable_text(tmp_path / "r.yaml", ceiling=tmp_path)  # also in a recipe of somebody else


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("papers/vaswani2017_bse", "did you mean `composer:papers/vaswani2017_base`?"),
        ("papers", "does not exist in this package"),
        ("../pyproject", "leads out of"),
        ("/etc/passwd", "leads out of"),
        ("", "does not exist in this package"),
    ],
)
def test_no_other_file_is_reached_through_the_package(
    tmp_path: Path, name: str, message: str
) -> None:
    (fault,) = refused(tmp_path, f"extends: 'composer:{name}'\n")
    assert message in fault.message


def test_a_cycle_is_reported_where_it_closes(tmp_path: Path) -> None:
    write(tmp_path, b="extends: c.yaml\n", c="recipe: 1\nextends: r.yaml\n")
    (fault,) = refused(tmp_path, "extends: b.yaml\n")
    assert (Path(fault.file).name, fault.line, fault.column, fault.code) == (
        "c.yaml",
        2,
        10,
        "cycle",
    )
    assert "r.yaml -> b.yaml -> c.yaml -> r.yaml" in fault.message


def test_files_that_extend_each_other_twice_each_are_read_once(tmp_path: Path) -> None:
    for number in range(14):
        both = f"extends: [f{number + 1}.yaml, g{number + 1}.yaml]\n"
        write(tmp_path, **{f"f{number}": both, f"g{number}": both})
    write(tmp_path, f14=BASE, g14=BASE)
    assert load(tmp_path / "f0.yaml").model.width == 32


def test_too_long_a_chain_of_bases_is_refused(tmp_path: Path) -> None:
    for number in range(80):
        write(tmp_path, **{f"f{number}": f"extends: f{number + 1}.yaml\n"})
    assert [fault.code for fault in refused(tmp_path, "extends: f0.yaml\n")] == ["size"]


# ------------------------------------------------------------------------------------------- the
# command line

WRITTEN = """recipe: 1
vars: {w: 64}
data: {generate: copy}
model:
  width: ${w}
  decoder:
    - norm
    - dropout: 0.1
    - residual: [{self_attention: {heads: 4}}]
"""


@pytest.mark.parametrize(
    ("setting", "where", "value"),
    [
        ("vars.w=32", ("width",), 32),
        ("model.width=16", ("width",), 16),
        ("model.decoder.0=linear", ("decoder", 0), "linear"),
        ("model.decoder[0]={norm: rms}", ("decoder", 0), {"norm": "rms"}),
        ("model.decoder.0.norm.kind=rms", ("decoder", 0), {"norm": {"kind": "rms"}}),
        ("model.decoder.1.dropout=0.2", ("decoder", 1), {"dropout": 0.2}),
        ("model.decoder.1.dropout.rate=0.2", ("decoder", 1), {"dropout": {"rate": 0.2}}),
        ("model.decoder.1.dropout.as=x", ("decoder", 1), {"dropout": {"rate": 0.1, "as": "x"}}),
        (
            "model.decoder.2.residual.0.self_attention.heads=8",
            ("decoder", 2, "residual", 0),
            {"self_attention": {"heads": 8}},
        ),
        (
            "model.decoder.2.residual.stack.0.self_attention.heads=8",
            ("decoder", 2, "residual", "stack", 0),
            {"self_attention": {"heads": 8}},
        ),
        ("model.decoder.2.residual.norm=pre", ("decoder", 2, "residual", "norm"), "pre"),
        ("model.norm.kind=rms", ("norm",), {"kind": "rms"}),
        ("model.decoder=[linear]", ("decoder",), ["linear"]),
        (
            "model.decoder.2.residual.0.self_attention.heads=${w}",
            ("decoder", 2, "residual", 0),
            {"self_attention": {"heads": 64}},
        ),
    ],
)
def test_an_override_can_set_whatever_a_recipe_can(
    tmp_path: Path, setting: str, where: tuple[str | int, ...], value: object
) -> None:
    actual = loaded(tmp_path, WRITTEN, [setting]).explicit["model"]
    for step in where:
        actual = actual[step]
    assert actual == value


def null_properties(schema: Schema) -> set[tuple[str, str]]:
    """The keys of sections that may be null and have another default: the section and the key."""
    return {
        (name, key)
        for name, section in schema["$defs"].items()
        for key, rule in section.get("properties", {}).items()
        if rule.get("default") is not None and {"type": "null"} in rule.get("anyOf", ())
    }


def test_a_null_that_means_something_is_set_and_not_removed(tmp_path: Path) -> None:
    keys = {(section.replace("_", ""), key) for *_, section, key in MEANINGFUL_NULLS}
    assert keys == null_properties(schema_generator.load())
    write(tmp_path, base=f"{WRITTEN}training: {{validation_sample: {{lines: 4}}}}\n")
    (tmp_path / "mine.yaml").write_text(
        "extends: base.yaml\ntraining: {validation_sample: {lines: null}}\n", encoding="utf-8"
    )
    for recipe in (
        load(tmp_path / "base.yaml", ["training.validation_sample.lines=null"]),
        load(tmp_path / "mine.yaml"),
    ):
        assert recipe.training.validation_sample.lines is None


def test_settings_make_sections_and_null_removes(tmp_path: Path) -> None:
    recipe = loaded(
        tmp_path,
        WRITTEN,
        ["training.early_stopping.patience=3", "training.max_steps=5", "training.max_steps=null"],
    )
    assert recipe.explicit["training"] == {"early_stopping": {"patience": 3}}


@pytest.mark.parametrize(
    ("setting", "column", "code"),
    [
        ("training.max_steps", 1, "override"),
        ("=3", 1, "override"),
        ("training..x=2", 9, "override"),
        ("a b=3", 2, "override"),
        ("training.seed=", 15, "override"),
        ("training.seed=[1", 15, "syntax"),
        ("training.seed=!x 1", 15, "tag"),
        ("training.seed=*x", 15, "alias"),
        ("training.sed=3", 10, "unknown"),
        ("training.seed=abc", 15, "type"),
        ("training.seed=-1", 15, "bound"),
        ("model.width.x=3", 13, "override"),
        ("model.decoder.7=norm", 15, "override"),
        ("model.decoder.x=norm", 15, "override"),
        ("model.0=norm", 7, "override"),
        ("vars.a=3", 6, "variable"),
        ("extends=x.yaml", 1, "override"),
        ("model.decoder.0=nrm", 17, "unknown"),
        ("model.width=${v}", 13, "variable"),
        (".".join("a" * 70) + "=1", 1, "override"),
        ("a=" + "[" * 100_000, 67, "depth"),
    ],
)
def test_a_bad_override_is_reported_in_its_own_text(
    tmp_path: Path, setting: str, column: int, code: str
) -> None:
    (fault,) = refused(tmp_path, WRITTEN, [setting])
    assert (fault.file, fault.line, fault.column, fault.code) == ("<command line>", 1, column, code)
    assert fault.excerpt == setting


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("data.text.train.0=d.txt", "data.text.train"),
        ("training.0=1", "training"),
        ("model.0=norm", "model"),
        ("model.output.kind.adaptive.cutoffs.0=5", "model.output.kind.adaptive.cutoffs"),
    ],
)
def test_an_index_into_what_is_no_list_is_told_where_to_go(
    override: str, path: str, tmp_path: Path
) -> None:
    (fault,) = refused(
        tmp_path, ADAPTIVE.replace("[9]", "$cuts") + "vars: {cuts: [9]}\n", [override]
    )
    assert fault.message == f"`{path}` is no list"
    assert fault.hint == f"set `{path}` itself, or name a key of it"


def test_a_setting_of_a_block_is_told_the_name_that_it_lacks(tmp_path: Path) -> None:
    (fault,) = refused(tmp_path, SMALL, ["model.decoder.0.kind=rms"])
    assert fault.hint == "write `model.decoder[0].norm.kind`"
    assert loaded(tmp_path, SMALL, ["model.decoder[0].norm.kind=rms"]).model.decoder == (
        BlockSpec("norm", {"kind": "rms", "eps": 1e-5}),
    )


def test_all_bad_overrides_are_reported(tmp_path: Path) -> None:
    assert len(refused(tmp_path, WRITTEN, ["a", "b", "vars.x=1"])) == 3


def test_a_second_choice_on_the_command_line_is_refused(tmp_path: Path) -> None:
    text = WRITTEN + "training: {optimizer: {adam: {}}}\n"
    (fault,) = refused(tmp_path, text, ["training.optimizer.sgd.momentum=0.5"])
    assert (fault.code, fault.column, fault.edit) == ("exclusive", 24, None)
    override = "training.optimizer={sgd: {momentum: 0.5}}"
    assert loaded(tmp_path, text, [override]).training.optimizer.momentum == 0.5


# -------------------------------------------------------------------------------------------
# variables


def test_a_variable_alone_keeps_its_type_and_inside_a_text_is_text(tmp_path: Path) -> None:
    text = """recipe: 1
vars: {w: 64, half: "${w}", yes: true, name: run, list: [source, "${t}"], t: target, rate: 1e-1}
name: ${name}-${w}-${yes}
data: {generate: copy, lowercase: "${yes}", tokenizer: {word: {joint: true}}}
model: {width: "${half}", dropout: '${rate}', output: {tie: "${list}"}, encoder: [norm], decoder: ["${b}"]}
"""
    recipe = loaded(tmp_path, text.replace("t: target", "t: target, b: norm"))
    assert recipe.name == "run-64-true"
    assert recipe.model.width == 64
    assert recipe.model.dropout == 0.1
    assert recipe.model.output.tie == ("source", "target")
    assert recipe.model.decoder == (BlockSpec("norm", {"kind": "layer", "eps": 1e-5}),)
    assert recipe.data.lowercase is True


@pytest.mark.parametrize(
    ("variables", "name", "expected"),
    [
        ("{a: 1}", "${b}", ["1:7:variable"]),
        ("{a: 1}", "x${b}y${c}", ["1:8:variable", "1:13:variable"]),
        ("{a: 1}", "x${a", ["1:8:variable"]),
        ("{a: null}", "x${a}", ["1:8:variable"]),
        ("{a: $}", "x${a}{b}", ["1:7:variable"]),
        ("{a: [1]}", "x${a}", ["1:8:variable"]),
        ("{a: 1}", "${a.b}", ["1:7:variable"]),
        ("{a: {b: 1}}", "x", ["2:11:variable"]),
        ("{a: '${b}', b: '${a}'}", "x", ["2:23:cycle"]),
        ("{a: '${a}'}", "${a}", ["2:12:cycle"]),
        ("{a: '${zz}'}", "x", ["2:12:variable"]),
        ("{a: [1, '${b}'], b: [2]}", "x", ["2:15:variable"]),
        ("{a b: 1}", "x", ["2:8:name"]),
        ("3", "x", ["2:7:type"]),
    ],
)
def test_invalid_variables_are_refused(
    tmp_path: Path, variables: str, name: str, expected: list[str]
) -> None:
    assert places(refused(tmp_path, f"name: {name}\nvars: {variables}\n{SMALL}")) == expected


def test_an_unknown_variable_is_guessed(tmp_path: Path) -> None:
    (fault,) = refused(
        tmp_path, WRITTEN.replace("vars: {w: 64}", "vars: {width: 64}").replace("${w}", "${widht}")
    )
    assert "did you mean `width`" in fault.message
    assert (fault.line, fault.column, fault.length, fault.path) == (5, 10, 8, "model.width")


def test_a_value_that_is_only_a_variable_needs_no_quotes(tmp_path: Path) -> None:
    text = """recipe: 1
vars: {w: 64, half: $w, yes: true, list: [source, $t], t: target, rate: 1e-1, b-2: norm, _h: 4}
data: {generate: copy, lowercase: $yes}
model:
  width: $half
  dropout: "$rate"
  output: {tie: $list}
  encoder: [$b-2, {self_attention: {heads: $_h}}]
  decoder: [norm]
"""
    model = loaded(tmp_path, text).explicit["model"]
    assert (model["width"], model["dropout"], model["output"]) == (
        64,
        0.1,
        {"tie": ["source", "target"]},
    )
    assert model["encoder"] == ["norm", {"self_attention": {"heads": 4}}]
    assert loaded(tmp_path, text).data.lowercase is True
    assert loaded(tmp_path, text, ["model.width=$_h"]).model.width == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$5", "$5"),
        ("$", "$"),
        ("$w.", "$w."),
        ("a $w", "a $w"),
        ("$w $w", "$w $w"),
        ("$$w", "$w"),
        ("$$$w", "$$w"),
        ("$$5", "$$5"),
        ("$$w$", "$$w$"),
        ("$$w ${w}", "$$w 64"),
        ("$${w}", "$64"),
    ],
)
def test_a_text_with_a_dollar_sign_stays_a_text(tmp_path: Path, text: str, value: str) -> None:
    recipe = loaded(tmp_path, WRITTEN + f"description: {text}\n")
    assert recipe.explicit["description"] == value
    again = load_text(recipe.dump())
    assert again.explicit["description"] == value, "what is dumped reads back as the same recipe"


@pytest.mark.parametrize(
    ("name", "variables", "expected"),
    [
        ("$b", "{a: 1}", "1:7:variable"),
        ("$a", "{a: $a}", "2:11:cycle"),
        ("x", "{a: $zz}", "2:11:variable"),
        ("x", "{a: [$b], b: [2]}", "2:12:variable"),
    ],
)
def test_an_invalid_variable_without_braces_is_refused(
    tmp_path: Path, name: str, variables: str, expected: str
) -> None:
    assert places(refused(tmp_path, f"name: {name}\nvars: {variables}\n{SMALL}")) == [expected]


def test_an_unknown_variable_without_braces_is_guessed(tmp_path: Path) -> None:
    (fault,) = refused(
        tmp_path, WRITTEN.replace("vars: {w: 64}", "vars: {width: 64}").replace("${w}", "$widht")
    )
    assert "did you mean `width`" in fault.message
    assert (fault.line, fault.column, fault.length, fault.path) == (5, 10, 6, "model.width")


@pytest.mark.parametrize(
    "value",
    [
        "{heads: ${heads}}",
        "{heads: ${heads} }",
        "{heads: ${heads}, window: 3}",
        "{heads: ${heads",
        "{heads: ${heads}x}",
        "{heads: x${heads}}",
    ],
)
def test_braces_inside_braces_are_answered_with_the_form_without_them(
    tmp_path: Path, value: str
) -> None:
    text = SMALL.replace("decoder: [norm]", f"decoder: [{{self_attention: {value}}}]")
    (fault,) = refused(tmp_path, text)
    hint = "write `$heads`, or put quotes around a text with a variable in it"
    assert (fault.code, fault.hint) == ("syntax", hint)
    assert fault.excerpt[fault.column - 1 :].startswith("${heads")


def test_variable_bombs_do_not_go_off(tmp_path: Path) -> None:
    doubled = "".join(f"  v{i}: ${{v{i - 1}}}${{v{i - 1}}}${{v{i - 1}}}\n" for i in range(1, 40))
    assert "size" in {
        fault.code for fault in refused(tmp_path, f"{SMALL}vars:\n  v0: xxxxxxxx\n{doubled}")
    }
    listed = (
        SMALL
        + "vars: {v: ["
        + "1, " * 3000
        + "]}\ntrainer: {devices: ["
        + "'${v}', " * 3000
        + "]}\n"
    )
    assert "size" in {fault.code for fault in refused(tmp_path, listed)}
    chain = "".join(f"  v{i}: ${{v{i + 1}}}\n" for i in range(3000))
    assert "depth" in {
        fault.code for fault in refused(tmp_path, f"{SMALL}vars:\n{chain}  v3000: 1\n")
    }


@pytest.mark.parametrize(
    ("overrides", "section", "value"),
    [
        (["decoding.max_length=9"], "decoding", {"beam": {"size": 3, "max_length": 9}}),
        (
            ["decoding=greedy", "decoding.precision=int8"],
            "decoding",
            {"greedy": {"precision": "int8"}},
        ),
        (["decoding=null", "decoding.max_length=9"], "decoding", {"greedy": {"max_length": 9}}),
        (
            ["data.tokenizer.joint=false"],
            "data",
            {"tokenizer": {"bpe": {"size": 500, "joint": False}}},
        ),
    ],
)
def test_a_setting_of_what_is_chosen_needs_no_name(
    overrides: list[str], section: str, value: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text(BASE, encoding="utf-8")
    explicit = load(tmp_path / "base.yaml", overrides).explicit
    assert {key: explicit[section][key] for key in value} == value


@pytest.mark.parametrize(
    ("own", "warning"),
    [
        (
            "decoding: {beam: {length_penalty: 1.0}}",
            ("10:12", "decoding.beam", "`beam` in {}:13, `size: 3` too"),
        ),
        ("decoding: {beam: {size: 4}}", None),
        ("decoding: {greedy: {max_length: 4}}", None),
        ("data: {tokenizer: bpe}", None),
        (
            "data: {tokenizer: {bpe: {joint: false}}}",
            ("10:20", "data.tokenizer.bpe", "{}:5, `size: 500` too"),
        ),
        (
            "training: {optimizer: {adam: {eps: 1e-6}}}",
            ("10:24", "training.optimizer.adam", "`learning_rate: 0.1` too"),
        ),
    ],
)
def test_settings_that_a_choice_loses_by_being_chosen_again_are_named(
    own: str, warning: tuple[str, str, str] | None, tmp_path: Path
) -> None:
    write(tmp_path, base=BASE, mine="recipe: 1\nextends: base.yaml" + "\n" * 8 + own)
    warnings = load(tmp_path / "mine.yaml").warnings
    assert [(f"{fault.line}:{fault.column}", fault.path) for fault in warnings] == (
        [warning[:2]] if warning else []
    )
    if warning:
        assert warning[2].format(tmp_path / "base.yaml") in warnings[0].message
        assert warnings[0].severity == "warning"


@pytest.mark.parametrize(
    ("base", "own", "warning"),
    [
        (
            TEXT,
            "data: {text: {train: d.txt}}",
            ("data.text", "`text` in {}:3, `val: b.txt`, `test: c.txt` too"),
        ),
        (TEXT, "data: {text: {train: d.txt, val: null, test: null}}", None),
        (TEXT, "data: {text: null, generate: copy}\nmodel: {output: null}", None),
        (
            TEXT,
            "model: {output: {kind: {sampled: {samples: 4}}}}",
            ("model.output", "`output` in {}:7, `tie` too"),
        ),
        (TEXT, "model: {output: {kind: linear, tie: []}}", None),
        (
            ADAPTIVE,
            "model: {output: {kind: {adaptive: {cutoffs: [4]}}}}",
            ("model.output.kind.adaptive", "`adaptive` in {}:7, `div_value: 2` too"),
        ),
    ],
)
def test_what_a_value_loses_by_being_replaced_whole_is_named(
    base: str, own: str, warning: tuple[str, str] | None, tmp_path: Path
) -> None:
    write(tmp_path, base=base)
    warnings = loaded(tmp_path, f"recipe: 1\nextends: base.yaml\n{own}\n").warnings
    assert [fault.path for fault in warnings] == ([warning[0]] if warning else [])
    if warning:
        assert warning[1].format(tmp_path / "base.yaml") in warnings[0].message


def test_a_missing_key_that_the_replaced_value_had_is_said_to_be_replaced(tmp_path: Path) -> None:
    write(tmp_path, base=TEXT)
    (fault,) = refused(tmp_path, "extends: base.yaml\ndata: {text: {val: d.txt}}\n")
    assert (
        fault.message
        == f"`text` needs `train`; this replaces the whole of `text` in {tmp_path / 'base.yaml'}:3"
    )
    (fault,) = refused(
        tmp_path,
        "extends: base.yaml\ndata: {text: null, parallel: {val: {source: a, target: b}}}\n",
    )
    assert fault.message == "`parallel` needs `train`"
