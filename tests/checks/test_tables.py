"""Warnings of tables that are read otherwise than their writers meant."""

from __future__ import annotations

import csv
import io
import unicodedata
from pathlib import Path

import pytest

from composer.checks.problem import faults
from composer.checks.read_data import ReadData
from composer.checks.tables import contents
from composer.checks.texts import forms
from composer.data.answer_limits import AnswerLimits
from composer.data.encoding import Data, load_data
from composer.data.sources import DataSource, check_files
from composer.errors import Fault, RecipeError
from composer.training.preflight import check_recipe

COLUMNS = {"source": "en", "target": "de"}
QUOTES = [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]


def warnings_of(recipe) -> list[Fault]:
    assert check_files(recipe, recipe.folders()) == []
    nothing = Data(None, {}, {}, [])
    return [
        *faults(
            recipe,
            contents(ReadData(DataSource(recipe, recipe.folders()), AnswerLimits(), nothing)),
        )
    ]


def forms_of(recipe) -> list[Fault]:
    source = DataSource(recipe, recipe.folders())
    return [
        *faults(
            recipe, forms(ReadData(source, AnswerLimits(), load_data(recipe, recipe.folders())))
        )
    ]


def parallel(name: str) -> dict[str, object]:
    return {"parallel": {"train": {"file": name, **COLUMNS}}}


def test_line_breaks_in_a_csv_are_counted_at_the_row_with_the_most(make, tmp_path):
    (tmp_path / "t.csv").write_text('en,de\na,"b\nc"\n"d\ne","f\ng\nh"\ni,"j, k"\n')
    (warning,) = warnings_of(make(parallel("t.csv")))
    assert (warning.file, warning.line, warning.code) == (str(tmp_path / "t.csv"), 4, "lines")
    assert "3 of 8 fields have line breaks" in warning.message
    assert "has 4 lines" in warning.message
    (tmp_path / "t.csv").write_text('en,de\na,"b, c"\n\n\nd,"e ""f"""\n')
    assert warnings_of(make(parallel("t.csv"))) == []


@pytest.mark.parametrize("quoting", QUOTES)
def test_a_tsv_that_was_written_with_quotes_is_reported_and_read_as_it_stands(
    quoting, make, tmp_path
):
    rows = [("en", "de"), ("a man", "x"), ('he said "hi"', "y"), ("no", "z")]
    file = io.StringIO(newline="")
    csv.writer(file, delimiter="\t", quoting=quoting, lineterminator="\n").writerows(rows)
    text = file.getvalue().replace('"en"\t"de"', "en\tde")
    (tmp_path / "t.tsv").write_text(text)
    recipe = make(parallel("t.tsv"))
    first, *others = warnings_of(recipe)
    count = text.splitlines()[1:]
    assert (first.file, first.line, first.code) == (str(tmp_path / "t.tsv"), 3, "quotes")
    assert '`"he said ""hi"""`' in first.message
    assert f"{sum(line.startswith(chr(34)) for line in count)} of 3 cells of `en`" in first.message
    assert len(others) == (quoting != csv.QUOTE_MINIMAL)
    assert (
        '"he said ""hi"""' in load_data(recipe, recipe.folders()).pairs["train"].sides["source"][:]
    )


@pytest.mark.parametrize(
    ("cells", "is_told"),
    [
        (['"Hello, world"', "no", '"one, two, three"'], True),  # as Excel has it
        (['"Hello, world"', "no, yes"], False),
        (['"Yes."', "no", '"Hello, world"'], False),
        (['"Yes."', '"No."'], True),
        (['"Yes," she said', "no"], False),
        (['"a" and "b"', "no"], False),
        (['""', '"x"'], True),
        (["''", "5\" disk"], False),
    ],
)  # fmt: skip
def test_quotes_that_are_text_are_no_fault(cells, is_told, make, tmp_path):
    (tmp_path / "t.tsv").write_text("en\tde\n" + "".join(f"{cell}\tx\n" for cell in cells))
    assert len(warnings_of(make(parallel("t.tsv")))) == is_told


def test_a_row_that_quotes_were_to_keep_together_is_told_how_to_be_saved(make, tmp_path):
    (tmp_path / "t.tsv").write_text('en\tde\n"a\tb"\tc\n')
    (fault,) = check_files(make(parallel("t.tsv")), [tmp_path])
    assert fault.line == 2
    assert fault.hint.endswith("save it as CSV if fields have tabs or line breaks")


def write_pictures(folder: Path, suffix: str) -> None:
    (folder / "files").mkdir(exist_ok=True)
    for number in range(30):
        (folder / "files" / f"{number}{suffix}").touch()
    rows = "".join(f"files/{number}{suffix}\ttext {number}\n" for number in range(30))
    (folder / "t.tsv").write_text(f"picture\tcaption\n{rows}")


@pytest.mark.parametrize(
    ("suffix", "kind"), [(".png", "image"), (".wav", "audio"), (".npy", "vectors"), (".xyz", "...")]
)
def test_names_of_files_that_are_read_as_text_are_reported(suffix, kind, make, tmp_path):
    write_pictures(tmp_path, suffix)
    table = {"train": "t.tsv", "val": "t.tsv", "target": "caption"}
    for source in ("picture", {"column": "picture"}):
        (warning,) = warnings_of(make({"table": {**table, "source": source}}))
        assert (warning.path, warning.code, warning.severity) == (
            "data.table.source",
            "column",
            "warning",
        )
        assert f"`files/0{suffix}`" in warning.message
        assert f"source: {{column: picture, kind: {kind}" in warning.hint
    assert (
        warnings_of(make({"table": {**table, "source": {"column": "picture", "kind": "text"}}}))
        == []
    )
    split = {"file": "t.tsv", "source": "picture", "target": "caption"}
    (warning,) = warnings_of(make({"parallel": {"train": split}}))
    assert (warning.path, "data.table" in warning.hint) == ("data.parallel.train.source", True)
    (warning,) = warnings_of(
        make({"table": {"train": "t.tsv", "source": "caption", "target": "picture"}})
    )
    assert (warning.path, warning.hint) == ("data.table.target", "name a column of text")
    (tmp_path / "files" / f"0{suffix}").unlink()  # of a name that is no file it may be a text
    assert warnings_of(make({"table": {**table, "source": "picture"}})) == []


def test_check_has_the_warnings_of_tables(make, tmp_path):
    write_pictures(tmp_path, ".png")
    model = {"encoder": ["rnn"], "decoder": ["rnn", "cross_attention"]}
    recipe = make({"table": {"train": "t.tsv", "source": "picture", "target": "caption"}}, model)
    assert "column" in [warning.code for warning in check_recipe(recipe).warnings]


OTHER_WORDS = {
    "picture": "image",
    "photo": "image",
    "Sound": "audio",
    "speech": "audio",
    "npy": "vectors",
}


@pytest.mark.parametrize(("word", "kind"), OTHER_WORDS.items())
def test_other_words_for_kinds_are_known(word, kind, make):
    source = {"column": "picture", "kind": word}
    with pytest.raises(RecipeError) as caught:
        make({"table": {"train": "t.tsv", "source": source, "target": "caption"}})
    assert f"did you mean `{kind}`?" in caught.value.faults[0].message


WORDS = ["das Mädchen", "ein Kind", "über alles"]


@pytest.mark.parametrize(("trained", "measured"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_accents_in_a_form_that_is_not_trained_on_are_counted(trained, measured, make, texts):
    lines = {
        form: [unicodedata.normalize(form, word) for word in WORDS] for form in (trained, measured)
    }
    plain = ["a", "b", "c"]
    splits = {
        "train": texts("train", source=plain, target=lines[trained]),
        "val": texts("val", source=plain, target=lines[trained]),
        "test": texts("test", source=lines[measured], target=lines[measured]),
    }
    recipe = make({"parallel": splits})
    (warning,) = forms_of(recipe)
    assert (warning.path, warning.code) == ("data.parallel.test", "form")
    assert (
        f"2 of 3 lines of the target have letters with accents in the form {measured}"
        in warning.message
    )
    assert f"'{trained}'" in warning.hint
    splits["train"] = texts("train", source=plain, target=[lines[trained][0], *lines[measured][1:]])
    recipe = make({"parallel": splits})
    assert forms_of(recipe) == []
