"""How an error is rendered."""

from __future__ import annotations

from dataclasses import replace

from composer.errors import (
    ComposerError,
    Edit,
    Fault,
    RecipeError,
    RunError,
    count_faults,
    format_path,
)

LINE = "          - residual: [{rnn: {cell: lstm, bidirectional: true}}]"
CAUSALITY = Fault(
    "recipes/mine.yaml",
    14,
    43,
    "causality",
    "model.decoder[1].repeat.stack[0].residual[0].rnn.bidirectional",
    "a decoder may not read the future, and a bidirectional rnn does",
    "remove `bidirectional: true`, or move this block to the encoder",
    LINE,
    13,
)


def test_the_form_is_the_promised_one() -> None:
    other = Fault(
        "recipes/mine.yaml",
        17,
        24,
        "name",
        "",
        "nothing here is called `enc`; did you mean `encoder`?",
        "",
    )
    assert (
        ComposerError([other, CAUSALITY, CAUSALITY]).render()
        == """\
recipes/mine.yaml:14:43: error[causality]: a decoder may not read the future, and a bidirectional rnn does
   at model.decoder[1].repeat.stack[0].residual[0].rnn.bidirectional
   14 |           - residual: [{rnn: {cell: lstm, bidirectional: true}}]
      |                                           ^^^^^^^^^^^^^
   fix: remove `bidirectional: true`, or move this block to the encoder
recipes/mine.yaml:17:24: error[name]: nothing here is called `enc`; did you mean `encoder`?
2 errors"""
    )


def test_one_error_is_counted_in_the_singular() -> None:
    assert ComposerError([CAUSALITY]).render().endswith("\n1 error")


def test_a_fault_is_a_dictionary() -> None:
    keys = ["file", "line", "column", "code", "path", "message", "hint", "edit"]
    assert list(CAUSALITY.as_dict()) == keys
    assert CAUSALITY.as_dict()["edit"] is None
    edit = Edit("r.yaml", "model.width", (4, 3), (4, 8), "width")
    fields = {
        "file": "r.yaml",
        "path": "model.width",
        "start": (4, 3),
        "end": (4, 8),
        "replacement": "width",
    }
    assert replace(CAUSALITY, edit=edit).as_dict()["edit"] == fields


def test_a_warning_has_the_form_of_an_error() -> None:
    warning = CAUSALITY.as_warning()
    assert warning.render() == CAUSALITY.render().replace("error[", "warning[")
    assert warning.as_dict() == {**CAUSALITY.as_dict(), "severity": "warning"}
    assert count_faults([warning, CAUSALITY, warning]) == "1 error, 2 warnings"


def test_a_run_error_needs_no_place() -> None:
    assert (
        RunError.of("it is full", "say `--resume`").render()
        == "error[run]: it is full\n   fix: say `--resume`\n1 error"
    )
    assert (
        RunError.of("it is full", file="runs/x")
        .render()
        .startswith("runs/x: error[run]: it is full\n")
    )


def test_a_long_line_is_cut_around_the_fault() -> None:
    fault = Fault("f", 1, 501, "type", "", "m", "", "x" * 500 + "HERE" + "y" * 500, 4)
    _, line, carets = fault.render().splitlines()
    assert len(line) < 140
    assert line[carets.index("^") : carets.rindex("^") + 1] == "HERE"


def test_tabs_wide_and_control_characters_are_rendered_safely() -> None:
    fault = Fault(
        "f", 2, 4, "type", "", "a\nb\x1b[31m", "", "\t\N{CJK UNIFIED IDEOGRAPH-4E2D}\x1bx", 1
    )
    head, line, carets = fault.render().splitlines()
    assert head.endswith("a b\N{REPLACEMENT CHARACTER}[31m")
    assert "\x1b" not in line
    assert carets == "     |     ^"


def test_paths_are_formatted() -> None:
    assert format_path(("model", "encoder", 1, "rnn")) == "model.encoder[1].rnn"


def test_the_first_of_very_many_faults_are_printed() -> None:
    faults = [
        Fault("r.yaml", line, 1, "unknown", "", "there is no such block", "")
        for line in range(1, 20_001)
    ]
    lines = RecipeError(faults).render().splitlines()
    assert len(lines) == 22
    assert lines[-2:] == ["... and 19,980 more in r.yaml", "20000 errors"]


def test_the_faults_of_every_file_are_printed_however_many_files_there_are() -> None:
    files = [f"{letter}.yaml" for letter in "abcdefghijklmnopqrstuvwxyz"]
    faults = [
        Fault(file, line, 1, "unknown", "", "no such block", "")
        for file in files
        for line in range(1, 4)
    ]
    text = RecipeError(faults).render()
    assert [line.partition(": ")[0] for line in text.splitlines()[:-1]] == [
        f"{it.file}:{it.line}:1" for it in faults
    ]
    assert text.endswith(f"\n{len(faults)} errors")
