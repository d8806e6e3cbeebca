"""Pairs from every kind of source, and every fault a data file can have, told at its place in the
recipe.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from composer.data.encoding import load_data
from composer.data.sources import check_files, open_pairs
from composer.errors import DataError

ROWS = [
    ("a man", "ein Mann"),
    ('say "hi"', "2020-01-01"),
    ("NA", "null"),
    ("1.0", "007"),
    ("x\u2028y", "ü\x85z"),
]
TWO = {"encoders": {"left": ["rnn"], "right": ["rnn"]}, "decoder": ["rnn"]}
LANGUAGE_MODEL = {"decoder": ["rnn"]}


def write(path: Path, kind: str, rows) -> None:
    table = {"en": [en for en, _ in rows], "de": [de for _, de in rows]}
    if kind == "parquet":
        parquet.write_table(arrow.table(table), path)
    elif kind == "tsv":
        path.write_text(
            "".join(f"{en}\t{de}\n" for en, de in [("en", "de"), *rows]), encoding="utf-8"
        )
    elif kind == "csv":
        quoted = (
            ",".join('"' + cell.replace('"', '""') + '"' for cell in row)
            for row in [("en", "de"), *rows]
        )
        path.write_text("\n".join(quoted), encoding="utf-8")
    else:
        path.write_text(
            "".join(json.dumps({"en": en, "t": {"de": de}}) + "\n" for en, de in rows),
            encoding="utf-8",
        )


def codes_and_paths(faults) -> list[tuple[str, str]]:
    return [(fault.code, fault.path) for fault in faults]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "json", "parquet"])
def test_tables_give_every_text_verbatim(kind, make, tmp_path):
    write(tmp_path / f"rows.{kind}", kind, ROWS)
    target = "t.de" if kind.startswith("json") else "de"
    recipe = make(
        {"parallel": {"train": {"file": f"rows.{kind}", "source": "en", "target": target}}}
    )
    assert check_files(recipe, recipe.folders()) == []
    pairs = open_pairs(recipe, "train", recipe.folders())
    assert [
        (pair["source"], pair["target"]) for pair in (pairs[at] for at in range(len(pairs)))
    ] == ROWS
    assert list(pairs.sides["source"]) == [en for en, _ in ROWS]
    assert pairs.sides["target"][1:3] == [de for _, de in ROWS[1:3]]


def test_only_a_line_feed_ends_a_line(make, tmp_path):
    (tmp_path / "a").write_bytes("\ufeffone\u2028still\x0cone\r\n\r\nthree\rstill three".encode())
    (tmp_path / "b").write_bytes(b"1\n2\n3\n")
    recipe = make({"parallel": {"train": {"source": "a", "target": "b"}}})
    pairs = open_pairs(recipe, "train", recipe.folders())
    assert check_files(recipe, recipe.folders()) == []
    assert pairs.sides["source"][:] == ["one\u2028still\x0cone", "", "three\rstill three"]
    assert pairs.sides["source"][-1] == "three\rstill three"
    assert [pairs[at]["target"] for at in range(len(pairs))] == ["1", "2", "3"]


def test_files_are_looked_up_in_every_folder_in_order(make, tmp_path, texts):
    split = texts(source=["beside"], target=["beside"])
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.source").write_text("first\n")
    recipe = make({"parallel": {"train": split}})
    assert open_pairs(recipe, "train", recipe.folders(other))[0] == {
        "source": "first",
        "target": "beside",
    }


def test_pairs_have_one_side_per_encoder(make, texts):
    split = texts(left=["l"], right=["r"], target=["t"])
    recipe = make({"parallel": {"train": split}}, TWO)
    assert open_pairs(recipe, "train", recipe.folders())[0] == {
        "left": "l",
        "right": "r",
        "target": "t",
    }
    recipe = make({"parallel": {"train": {"target": split["target"]}}}, LANGUAGE_MODEL)
    assert open_pairs(recipe, "train", recipe.folders())[0] == {"target": "t"}
    assert load_data(recipe, recipe.folders()).train.sources == {}


@pytest.mark.usefixtures("own_cache")
def test_a_hub_id_may_be_a_local_folder(make, tmp_path):
    (tmp_path / "set").mkdir()
    for split, rows in (("train", ROWS), ("validation", ROWS[:2])):
        pairs = [{"translation": {"en": en, "de": de}} for en, de in rows]
        parquet.write_table(arrow.table({"row": pairs}), tmp_path / "set" / f"{split}.parquet")
    hub = {
        "id": "set",
        "source": "row.translation.en",
        "target": "row.translation.de",
        "test": None,
    }
    recipe = make({"hub": hub, "tokenizer": "char"})
    assert check_files(recipe, recipe.folders()) == []
    data = load_data(recipe, recipe.folders())
    assert (len(data.train), len(data.val), "test" in data.splits) == (5, 2, False)
    assert data.tokenizers.decode("target", [data.train.target[4]]) == [ROWS[4][1]]
    recipe = make({"hub": {**hub, "target": "row.translation.dee"}})
    with pytest.raises(DataError, match=r"did you mean `row\.translation\.de`"):
        open_pairs(recipe, "train", recipe.folders())
    recipe = make({"hub": {**hub, "train": "trein"}})
    with pytest.raises(DataError, match="trein"):
        open_pairs(recipe, "train", recipe.folders())


def test_an_encoder_called_revision_is_no_revision_of_the_data_set(make, monkeypatch):
    received = {}

    def load_dataset(*_, **options):
        received.update(options)
        raise ValueError("no network")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    model = {
        "encoders": {"revision": ["linear"]},
        "decoder": [{"cross_attention": {"from": "revision"}}],
    }
    recipe = make({"hub": {"id": "pairs", "revision": "draft", "target": "final"}}, model)
    with pytest.raises(DataError, match="no network"):
        open_pairs(recipe, "train", recipe.folders())
    assert received == {"split": "train"}


def test_an_unreachable_hub_is_one_fault(make, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    recipe = make({"hub": {"id": "./nowhere", "source": "en", "target": "de"}})
    with pytest.raises(DataError) as caught:
        load_data(recipe, recipe.folders())
    assert codes_and_paths(caught.value.faults) == [("hub", "data.hub.id")]


FILES = {
    "good.en": b"a\nb\nc\n",
    "good.de": b"A\nB\nC",
    "short.de": b"A\nB\n",
    "empty.de": b"",
    "latin.de": "A\nBü\n".encode("latin-1"),
    "wide.de": "A\nB\nC\n".encode("utf-16"),
    "packed.de": b"\x1f\x8b\x08\x00",
    "cut.de": b"A\nB\n\xc3",
    "folder": None,
}


@pytest.mark.parametrize(
    ("source", "target", "code", "key", "words"),
    [
        (
            "good.en",
            "god.de",
            "file",
            "target",
            ["no file `god.de` in `", "did you mean `good.de`?"],
        ),
        ("GOOD.EN", "good.de", "file", "source", ["did you mean `good.en`?"]),
        ("good.en", "quite/other", "file", "target", ["no file `quite/other`"]),
        ("good.en", "short.de", "lines", "target", ["`good.en` has 3 lines", "`short.de` has 2"]),
        ("empty.de", "good.de", "empty", "source", ["is empty"]),
        (
            "good.en",
            "latin.de",
            "encoding",
            "target",
            ["line 2, byte 2 of the line (offset 3): 0xfc"],
        ),
        ("good.en", "wide.de", "encoding", "target", ["line 1, byte 1", "UTF-16"]),
        ("good.en", "packed.de", "encoding", "target", ["gzip"]),
        ("good.en", "cut.de", "encoding", "target", ["line 3, byte 1 of the line (offset 4)"]),
        ("good.en", "folder", "file", "target", ["is a directory"]),
        ("good.en", "pipe", "file", "target", ["not an ordinary file"]),
        ("good.en", "x" * 5000, "file", "target", ["no file"]),
    ],
)
def test_faults_of_text_files_are_reported_at_their_key(
    source, target, code, key, words, make, tmp_path
):
    for name, content in FILES.items():
        (tmp_path / name).mkdir() if content is None else (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    recipe = make({"parallel": {"train": {"source": source, "target": target}}})
    faults = check_files(recipe, recipe.folders())
    assert codes_and_paths(faults) == [(code, f"data.parallel.train.{key}")]
    assert all(word in faults[0].message for word in words), faults[0].message
    assert faults[0].hint
    assert faults[0].line > 1
    with pytest.raises(DataError):
        load_data(recipe, recipe.folders())


def test_all_faults_are_reported_together(make, tmp_path):
    (tmp_path / "empty").touch()
    splits = {
        "train": {"source": "no", "target": "empty"},
        "test": {"source": "none", "target": "empty"},
    }
    recipe = make({"parallel": splits})
    assert sorted(codes_and_paths(check_files(recipe, recipe.folders()))) == [
        ("empty", "data.parallel.test.target"),
        ("empty", "data.parallel.train.target"),
        ("file", "data.parallel.test.source"),
        ("file", "data.parallel.train.source"),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_is_a_fault(make, texts, tmp_path):
    split = texts(source=["a"], target=["b"])
    (tmp_path / split["target"]).chmod(0)
    recipe = make({"parallel": {"train": split}})
    assert codes_and_paths(check_files(recipe, recipe.folders())) == [
        ("file", "data.parallel.train.target")
    ]


@pytest.mark.parametrize(
    ("name", "content", "code", "key", "words"),
    [
        ("t.tsv", b"en\tde-DE\na\tb\n", "column", "target", "no column `de`"),
        ("t.tsv", b"en\tde\n", "empty", "file", "has no rows"),
        ("t.tsv", b"en\tde\na\t\xff\n", "encoding", "file", "line 2, byte 3"),
        ("t.tsv", b"en\tdee\na\tb\n", "column", "target", "did you mean `dee`"),
        ("t.json", b'{"en": "a", "de": 3}\n', "column", "target", "is not a text"),
        ("t.parquet", b"PAR0", "table", "file", "not a Parquet file"),
        ("t.txt", b"a\tb\n", "file", "file", "ends in none of"),
        ("s.tsv", b"a\tb\n", "file", "file", "did you mean `s.tsv`"),
        ("s.tvs", b"a\tb\n", "file", "file", "did you mean `s.tsv`"),
        ("t.tsv", b"", "empty", "file", "is empty"),
    ],
)
def test_faults_of_tables_are_reported_at_their_key(
    name, content, code, key, words, make, tmp_path
):
    (tmp_path / ("s.tsv" if name == "s.tvs" else name)).write_bytes(content)
    file = "ss.tsv" if name == "s.tsv" else name
    recipe = make({"parallel": {"train": {"file": file, "source": "en", "target": "de"}}})
    faults = check_files(recipe, recipe.folders())
    assert codes_and_paths(faults) == [(code, f"data.parallel.train.{key}")]
    assert words in faults[0].message


@pytest.mark.parametrize(
    ("name", "content", "code", "line", "words"),
    [
        ("t.tsv", b"en\tde\na\tb\nc\n", "table", 3, "row 3 has 1 field"),
        ("t.csv", b'en,de\n"a\nb,c"\n', "table", 2, "row 2 has 1 field"),
        ("t.csv", b'en,de\n"a,b', "table", 2, "a quote opens here and is never closed"),
        ("t.csv", b'en,de\n\n"a\nb",c\nd\n', "table", 5, "row 3 has 1 field"),
        ("t.csv", b"en;de\na;b\n", "table", 1, "the first row has semicolons and no commas"),
        ("t.csv", b"\nen\tde\na\tb\n", "table", 2, "the first row has tabs and no commas"),
        ("t.tsv", b"en,de\na,b\n", "table", 1, "the first row has commas and no tabs"),
        ("t.json", b'{"en": "a", "de": "b"}\n{"en": "a"}\n', "column", 2, "line 2 has no key `de`"),
        (
            "t.json",
            b'{"en": "a", "de": "b"}\n{"en": "a", "de": 3}\n',
            "column",
            2,
            "`de` in line 2 is not a text",
        ),
        ("t.json", b'[{"en": "a", "de": "b"}]', "table", 1, "not a JSON object"),
        ("t.jsonl", b'{"en": "a", "de": "b"\n', "table", 1, "line 1 is not JSON"),
        ("t.jsonl", b"[" * 100_000, "table", 1, "line 1 is not JSON"),
        (
            "t.jsonl",
            b' {"en": "a", "de": "b"} \n{"en": "a", "de": "b"} {}\n',
            "table",
            2,
            "Extra data at column 24",
        ),
        (
            "t.jsonl",
            b'{"en": "a", "de": "b"}\n{"en": "a", "de": "b", "en": "a"}\n',
            "table",
            2,
            "the key `en` more",
        ),
        (
            "t.jsonl",
            b'{"en": "a", "de": "b", "id": [{"n": 1, "n": 2}]}\n',
            "table",
            1,
            "the key `n` more",
        ),
        (
            "t.jsonl",
            b'{"en": "a \\ud800", "de": "b"}\n',
            "encoding",
            1,
            "line 1 contains an unpaired surrogate",
        ),
    ],
)
@pytest.mark.parametrize("section", ["parallel", "table"])
def test_faults_of_rows_are_reported_at_their_line_of_the_table(
    section, name, content, code, line, words, make, tmp_path
):
    (tmp_path / name).write_bytes(content)
    columns = {"source": "en", "target": "de"}
    tables = {"parallel": {"train": {"file": name, **columns}}, "table": {"train": name, **columns}}
    recipe = make({section: tables[section]})
    (fault,) = check_files(recipe, recipe.folders())
    assert (fault.file, fault.line, fault.column, fault.code) == (
        str(tmp_path / name),
        line,
        1,
        code,
    )
    assert words in fault.message


def test_a_table_with_other_separators_is_refused_with_a_fix_and_a_column_may_have_them_in_its_name(
    make, tmp_path
):
    columns = {"source": "en", "target": "de"}
    for name, separator, hint in (
        ("a.csv", ";", "save it with commas, or as TSV"),
        ("a.tsv", ",", "save it with tabs, or as CSV"),
    ):
        (tmp_path / name).write_text(f"en{separator}de\na{separator}b\n")
        recipe = make({"parallel": {"train": {"file": name, **columns}}})
        assert [fault.hint for fault in check_files(recipe, recipe.folders())] == [hint]
    (tmp_path / "b.csv").write_text("en,de; de-AT\na,b\n")
    recipe = make({"parallel": {"train": {"file": "b.csv", "source": "en", "target": "de; de-AT"}}})
    assert check_files(recipe, recipe.folders()) == []


def test_parquet_columns_must_exist_and_hold_text(make, tmp_path):
    parquet.write_table(arrow.table({"en": ["a"], "de": [1]}), tmp_path / "t.parquet")
    recipe = make({"parallel": {"train": {"file": "t.parquet", "source": "eng", "target": "de"}}})
    assert sorted(codes_and_paths(check_files(recipe, recipe.folders()))) == [
        ("column", "data.parallel.train.source"),
        ("column", "data.parallel.train.target"),
    ]


@pytest.mark.parametrize("suffix", ["tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("wrap", [str, lambda name: {"column": name}])
def test_a_column_that_no_table_has_is_one_fault_at_its_name(suffix, wrap, make, tmp_path):
    for name in ("a", "b"):
        rows = {"tsv": "en\tde\nx\ty\n", "jsonl": '{"id": 1, "en": "x", "de": "y"}\n'}
        if suffix == "parquet":
            parquet.write_table(
                arrow.table({"id": [1], "en": ["x"], "de": ["y"]}), tmp_path / f"{name}.parquet"
            )
        else:
            (tmp_path / f"{name}.{suffix}").write_text(rows[suffix])
    files = {"train": f"a.{suffix}", "val": f"b.{suffix}"}
    recipe = make({"table": {**files, "source": wrap("eng"), "target": "ids"}})
    source, target = check_files(recipe, recipe.folders())
    assert source.path == "data.table.source" + (".column" if wrap is not str else "")
    assert (source.hint, target.path) == ("write `en`; there are `en`, `de`", "data.table.target")
    assert target.hint == "name one of `en`, `de`"
    recipe = make({"table": {**files, "source": wrap("en"), "target": "de"}})
    assert check_files(recipe, recipe.folders()) == []


@pytest.mark.parametrize("place", ["~", "$HOME"])
def test_a_path_from_the_home_folder_is_to_be_written_out(place, make):
    recipe = make({"parallel": {"train": {"source": f"{place}/t.en", "target": f"{place}/t.de"}}})
    assert [fault.hint for fault in check_files(recipe, recipe.folders())] == [
        "write the path out: `~` and `$HOME` are not expanded here"
    ] * 2


def test_a_file_that_is_named_by_its_whole_path_is_proposed_so(make, tmp_path):
    (tmp_path / "other.txt").write_text("x\n")
    recipe = make(
        {"parallel": {"train": dict.fromkeys(("source", "target"), str(tmp_path / "othr.txt"))}}
    )
    assert {fault.hint for fault in check_files(recipe, recipe.folders())} == {
        f"write `{tmp_path}/other.txt`"
    }


def test_a_pair_file_or_table_that_is_named_elsewhere_is_not_proposed(make, tmp_path):
    for name in ("val.en", "val.de"):
        (tmp_path / name).write_text("x\n")
    val = {"source": "val.en", "target": "val.de"}
    recipe = make({"parallel": {"train": {"source": "vals.en", "target": "val.e"}, "val": val}})
    assert [fault.hint for fault in check_files(recipe, recipe.folders())] == [
        "put the file there, or pass `--data DIR`"
    ] * 2
    names = {"source": "en", "target": "de"}
    (tmp_path / "val.tsv").write_text("en\tde\nx\ty\n")
    recipe = make({"table": {"train": "vals.tsv", "val": "val.tsv", **names}})
    (fault,) = check_files(recipe, recipe.folders())
    assert "val.tsv" not in fault.message + fault.hint
    recipe = make({"table": {"train": "vals.tsv", **names}})
    assert [fault.hint for fault in check_files(recipe, recipe.folders())] == ["write `val.tsv`"]
    (tmp_path / "val.tsv").rename(tmp_path / "val.txt")
    assert [fault.hint for fault in check_files(recipe, recipe.folders())] == [
        "put the file there, or pass `--data DIR`"
    ]


def test_line_breaks_and_nulls_inside_a_table_become_one_line(make, tmp_path):
    rows = [{"en": "a\nb", "de": None}, {"en": "c\r\nd", "de": "e"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = make({"parallel": {"train": {"file": "t.jsonl", "source": "en", "target": "de"}}})
    pairs = open_pairs(recipe, "train", recipe.folders())
    assert [pairs[0], pairs[1]] == [
        {"source": "a b", "target": ""},
        {"source": "c d", "target": "e"},
    ]


def test_a_big_file_is_checked_in_blocks(make, tmp_path, monkeypatch):
    monkeypatch.setattr("composer.data.text_files.READ_BYTES", 3)
    lines = ["ä€😀" * 3, "b", "", "c"]
    for name in ("a", "b"):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    recipe = make({"parallel": {"train": {"source": "a", "target": "b"}}})
    assert check_files(recipe, recipe.folders()) == []
    assert open_pairs(recipe, "train", recipe.folders()).sides["source"][:] == lines
