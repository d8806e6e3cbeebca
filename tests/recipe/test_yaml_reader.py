"""Reading YAML: what it means, where everything stands, and that nothing crashes the reader."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from composer import errors
from composer.errors import RecipeError
from composer.recipe import yaml_reader
from composer.recipe.yaml_reader import dump, parse, parse_value, read, to_data

PARSERS = [item for item in (getattr(yaml, "CSafeLoader", None), yaml.SafeLoader) if item]


@pytest.fixture(params=PARSERS, ids=lambda parser: parser.__name__)
def any_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With libyaml and without it."""
    monkeypatch.setattr(yaml_reader, "_PARSER", request.param)


def faults(text: str) -> list[str]:
    with pytest.raises(RecipeError) as raised:
        parse(text, "f.yaml")
    return [f"{item.line}:{item.column}:{item.code}" for item in raised.value.faults]


SCALARS = {
    "1e-3": 0.001,
    "1E5": 100000.0,
    "3.": 3.0,
    ".5": 0.5,
    "-2": -2,
    "+3": 3,
    "010": 10,
    "0o10": 8,
    "0x1F": 31,
    "no": "no",
    "on": "on",
    "yes": "yes",
    "y": "y",
    "true": True,
    "False": False,
    "null": None,
    "~": None,
    "": None,
    "1_000": "1_000",
    "1:20": "1:20",
    "12:30:45": "12:30:45",
    "2026-01-01": "2026-01-01",
    "0b1": "0b1",
    "1e": "1e",
    "a b": "a b",
    ".": ".",
    "-": "-",
    ".inf": float("inf"),
    "-.inf": float("-inf"),
    "'1'": "1",
    '"no"': "no",
    "1.0e+3": 1000.0,
}


@pytest.mark.parametrize(("text", "value"), SCALARS.items())
def test_scalars_follow_the_core_schema(text: str, value: object) -> None:
    if text == "-":  # a list with one empty item
        value = [None]
    assert to_data(parse(f"a: {text}\n" if text != "-" else "a:\n  -\n", "f"))["a"] == value


def test_nan_is_read_as_a_float() -> None:
    assert str(to_data(parse("a: .nan", "f"))["a"]) == "nan"


@pytest.mark.usefixtures("any_parser")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", ["3:1:duplicate"]),
        ("a:\n  - {b: 1, c: 2, b: 3}\n", ["2:18:duplicate"]),
        ("a: 1\n'a': 2\n", ["2:1:duplicate"]),
        ("a: &x 1\nb: *x\n", ["1:4:alias", "2:4:alias"]),
        ("a: &a [*a]\n", ["1:4:alias", "1:8:alias"]),
        ("<<: {a: 1}\nb: 1\n", ["1:1:merge"]),
        (
            "a: !!set {a}\nb: !!python/name:os.system x\n!!int c: 1\n",
            ["1:4:tag", "2:4:tag", "3:1:tag"],
        ),
        ("a: !!python/object/apply:os.system [ls]\n", ["1:4:tag"]),
        (
            "a: !include x\nb: !!binary aGk=\nc: !!omap []\nd: !!str 1\n",
            ["1:4:tag", "2:4:tag", "3:4:tag", "4:4:tag"],
        ),
        ("a: 1\n---\nb: 2\n", ["2:1:syntax"]),
        ("", ["1:1:empty"]),
        ("# nothing\n\n", ["1:1:empty"]),
        ("- a\n", ["1:1:type"]),
        ("a\n", ["1:1:type"]),
        ("a:\n\tb: 1\n", ["2:1:syntax"]),
        ("a: [1, 2\n", ["1:4:syntax"]),
        ("a: 'x\n", ["1:4:syntax"]),
        ("a: {b: ${x}}\n", ["1:8:syntax"]),
        ("a: [b, ${x} ]\n", ["1:8:syntax"]),
        ("a: b: c\n", ["1:5:syntax"]),
        ('a: ["x", "\\0"]\n"\\x00": 1\n', ["1:10:encoding", "2:1:encoding"]),
        ("a: @x\n", ["1:4:syntax"]),
        ("a: [1,,2]\n", ["1:7:syntax"]),
        ("a: 1\n  b: 2\n", ["2:4:syntax"]),
        ("a:\n  - b\n c: 1\n", ["3:2:syntax"]),
        ("1: a\ntrue: b\n~: c\n[x]: d\n", ["1:1:type", "2:1:type", "3:1:type", "4:1:syntax"]),
        ("a: " + "9" * 5000 + "\n", ["1:4:type"]),
        (
            "a: [" + "9" * 41 + ", 0x" + "f" * 400 + ", 1e" + "9" * 40 + "]\n",
            ["1:5:type", "1:48:type", "1:452:type"],
        ),
        ("é: 1\nü: [é, é: &x 1]\n", ["2:11:alias"]),
    ],
)
def test_a_bad_text_is_refused_where_it_is_bad(text: str, expected: list[str]) -> None:
    assert faults(text) == expected


@pytest.mark.usefixtures("any_parser")
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 50_000,
        "- " * 100_000,
        "? " * 100_000,
        "a:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 800)),
    ],
)
def test_depth_is_bounded(text: str) -> None:
    began = time.process_time()
    assert [item.split(":")[2] for item in faults(text)] == ["depth"]
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x]\n"
        + "".join(f"b{i}: &b{i} [{'*b' + str(i - 1) if i else '*a'}, *a]\n" for i in range(60)),
        "a: &a {x: 1}\n" + "".join(f"b{i}: &b{i} {{<<: *a, y{i}: *a}}\n" for i in range(60)),
        "a:\n" + "  - x\n" * 60_000,
    ],
    ids=["alias bomb", "merge bomb", "many values"],
)
def test_bombs_do_not_go_off(text: str) -> None:
    began = time.process_time()
    assert faults(text)
    assert time.process_time() - began < 2


def test_a_duplicate_names_the_line_of_the_first() -> None:
    with pytest.raises(RecipeError) as raised:
        parse("a: 1\nb:\n  - {c: 1,\n     d: 2, c: 3}\na: 4\n", "f.yaml")
    assert [(item.line, item.message.rpartition(" ")[2]) for item in raised.value.faults] == [
        (4, "3"),
        (5, "1"),
    ]


@pytest.mark.usefixtures("any_parser")
@pytest.mark.parametrize(
    "text",
    [
        "a: [" + "&x 1, " * 4_000 + "]",
        "? a\n" * 4_000,
        "a: &" + "x" * 900_000,
        "a: !" + "x" * 900_000,
        "{" + "x" * 1000 + ": 1, " + "x" * 1000 + ": 1}",
        f"'{'x' * 100_000}': 1\n" * 2,
    ],
)
def test_messages_are_short(text: str) -> None:
    with pytest.raises(RecipeError) as raised:
        parse(text, "f.yaml")
    assert len(raised.value.faults) <= yaml_reader.MAX_SYNTAX_FAULTS + 1
    assert all(len(fault.message) < 2100 for fault in raised.value.faults)
    assert len(raised.value.render()) < 60_000


def test_only_the_part_of_a_long_line_around_a_fault_is_formatted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a hundred faults in one line of a megabyte would else take many seconds to tell
    lengths: list[int] = []
    shown = errors._printable
    monkeypatch.setattr(errors, "_printable", lambda text: lengths.append(len(text)) or shown(text))
    with pytest.raises(RecipeError) as raised:
        parse("a: [" + "&x 1, " * 100_000 + "]", "f.yaml")
    assert "&x 1" in raised.value.render()
    assert max(lengths) < 1000


def test_a_surrogate_is_no_character(monkeypatch: pytest.MonkeyPatch) -> None:
    # libyaml refuses its escape by itself
    monkeypatch.setattr(yaml_reader, "_PARSER", yaml.SafeLoader)
    assert faults('a: "\\ud800"\n') == ["1:4:encoding"]


def test_a_message_is_one_line() -> None:
    with pytest.raises(RecipeError) as raised:
        parse('"a\\nb": 1\n"a\\nb": 2\n', "f.yaml")
    assert [fault.message for fault in raised.value.faults] == [
        "`a b` is a duplicate key; the first is in line 1"
    ]


def test_every_key_and_value_knows_its_place() -> None:
    root = parse("a: 1\nb:\n  - {c: [x, 'y z']}\n  - d\n", "f.yaml")
    inner = root.value["b"].value[0].value["c"]
    assert inner.key is not None
    assert inner.key[:4] == ("f.yaml", 3, 6, 1)
    assert inner.mark[:4] == ("f.yaml", 3, 9, 10)
    assert inner.value[1].mark[:4] == ("f.yaml", 3, 13, 5)
    assert root.value["b"].value[1].mark == ("f.yaml", 4, 5, 1, "  - d")


def test_columns_ignore_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: \xc3\xa9\r\nc: *x\r\n")
    with pytest.raises(RecipeError) as raised:
        read(tmp_path / "a.yaml", "a.yaml")
    assert raised.value.render().splitlines()[:3] == [
        "a.yaml:3:4: error[alias]: `*x` is an alias; a recipe has none",
        "   3 | c: *x",
        "     |    ^^",
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a: 1\nb: \xe9\n", "2:4:encoding"),
        (b"\xef\xbb\xbfa: \xff\n", "1:4:encoding"),
        ("a: 1\n".encode("utf-16"), "1:1:encoding"),
        (b"a: 1\nb: x\x00y\n", "2:5:encoding"),
        (b"\x7fELF\x02\x01\x01\x00", "1:1:encoding"),
        ("a: 1\n# \u2028\n".encode(), "2:3:encoding"),
        (b"a: " + b"x" * (1 << 20), "1:1:size"),
        (b"", "1:1:empty"),
    ],
)
def test_bytes_that_are_no_recipe_are_refused(tmp_path: Path, data: bytes, expected: str) -> None:
    (tmp_path / "a.yaml").write_bytes(data)
    with pytest.raises(RecipeError) as raised:
        read(tmp_path / "a.yaml", "a.yaml")
    assert [f"{item.line}:{item.column}:{item.code}" for item in raised.value.faults] == [expected]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_a_file_in_another_encoding_is_named_as_such(tmp_path: Path, encoding: str) -> None:
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    (tmp_path / "a.yaml").write_bytes(mark + "é: 1\n".encode(encoding))
    with pytest.raises(RecipeError) as raised:
        read(tmp_path / "a.yaml", "a.yaml")
    (fault,) = raised.value.faults
    assert fault.message == (
        "the byte 0xe9 is not UTF-8" if encoding == "latin-1" else "this text is UTF-16"
    )
    assert fault.hint == "save the file as UTF-8"


@pytest.mark.usefixtures("any_parser")
@pytest.mark.parametrize("text", ["a:\n\tb: 1\n", "a:\n  b:\n\t- c\n", "\ta: 1\n"])
def test_a_tab_is_reported_as_a_tab(text: str) -> None:
    with pytest.raises(RecipeError) as raised:
        parse(text, "f.yaml")
    (fault,) = raised.value.faults
    assert (fault.message, fault.hint) == ("a tab cannot indent", "indent with spaces")


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "locked").write_text("a: 1")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "missing", ".", "loop", "locked/x", "x" * 300, "/dev/zero"):
        with pytest.raises(RecipeError) as raised:
            read(tmp_path / name, name)
        assert [item.code for item in raised.value.faults] == ["file"], name


def test_a_value_from_the_command_line_has_its_place() -> None:
    assert to_data(parse_value("a.b={c: [1, x]}", 4)) == {"c": [1, "x"]}
    for text, column, code in (
        ("a=", 3, "override"),
        ("a=[1", 3, "syntax"),
        ("a=b: !x y", 6, "tag"),
        ("a=\x1b", 3, "encoding"),
    ):
        with pytest.raises(RecipeError) as raised:
            parse_value(text, 2)
        (fault,) = raised.value.faults
        assert (fault.file, fault.line, fault.column, fault.code) == (
            "<command line>",
            1,
            column,
            code,
        )


characters = st.characters(
    exclude_categories=["Cs", "Cc"], exclude_characters="\u2028\u2029\ufeff\ufffe\uffff"
)
numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False)
keys = st.text("abc-_:# é1", min_size=1, max_size=4)
plain_data = st.recursive(
    st.none() | st.booleans() | numbers | st.text(characters, max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "no", "1", "1e3", "~", "010"]), plain_data, max_size=3)
)
def test_dumped_data_reads_back_equal(data: dict[str, object]) -> None:
    assert to_data(parse(dump(data), "f")) == data


@settings(max_examples=300, deadline=None)
@given(st.text("ab01: -[]{},#&*!|>'\"%@`\n\t?~<=.$é", max_size=40) | st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(RecipeError):
        parse(text, "f")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(RecipeError):
        yaml_reader.read_bytes(data, "f")


def test_a_setting_without_its_value_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"write `training.max_steps=VALUE`, if it is a setting"):
        read(tmp_path / "training.max_steps", "training.max_steps")
