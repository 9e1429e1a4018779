"""Each command that jaxresid prints runs on the inputs at hand, and ends in 0 or 1."""

import io
import shutil

import pytest
from printed_commands import commands_in, run_printed
from rich.console import Console

from jaxresid.render.style.shell import ShellCommand
from tests.where import ROOT


def test_commands_of_a_text():
    text = (
        "next: fit it:\n  jaxresid plan 'nnx:a.py:M(4)' \\\n    --arg 'f32[4, 4]'\n"
        "the names need `jaxresid check a.py:loss`; then: jaxresid report a.py:loss\n"
        "jaxresid: tracing\njaxresid needs jax\n"
    )
    assert commands_in(text) == [
        ("plan", "nnx:a.py:M(4)", "--arg", "f32[4, 4]"),
        ("check", "a.py:loss"),
        ("report", "a.py:loss"),
    ]
    with pytest.raises(AssertionError, match="neither in backticks"):
        commands_in("ask jaxresid compile --list-places for all")


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_command_is_what_was_broken_into_lines(width):
    words = ("plan", "nnx:a.py:M(layers=4, width=8)", "--arg", "f32[4,$n]", "--on", "gpu:h100")
    console = Console(width=width, file=io.StringIO())
    console.print(ShellCommand(("jaxresid", *words)), crop=False)
    assert commands_in(console.file.getvalue()) == [words]


@pytest.fixture
def fixture_tree(tmp_path, monkeypatch):
    """The working directory is a copy of fixtures/, in which commands may write."""
    shutil.copytree(ROOT / "fixtures", tmp_path / "fixtures")
    monkeypatch.chdir(tmp_path)


@pytest.mark.integration
def test_commands_of_a_report(fixture_tree):
    answers = run_printed("report", "fixtures/inspect/gpt.py:loss", depth=1)
    assert len(answers) == 2, answers[0]


@pytest.mark.integration
@pytest.mark.parametrize("command", ["report", "plan", "check"])
def test_commands_of_an_error(fixture_tree, command):
    run_printed(command, "fixtures/inspect/gpt.py", codes=(2,))
