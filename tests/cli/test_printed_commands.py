"""Each command that jaxresid prints runs on the inputs at hand, and ends in 0 or 1."""

import io
import json
import shutil

import pytest
from printed_commands import answer, commands_in, run_printed
from rich.console import Console

from jaxresid.render.style.shell import ShellCommand
from jaxresid.xla.places import parse_place, why_unavailable
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


# A function, a training step, and a module of a released library; by how often what each takes goes
# into the memory there is.
TARGETS = {
    "checkpointed": ("fixtures/plan/decoder.py:loss_remat",),
    "step": ("fixtures/tutorials/linen_step.py:train_step",),
    "library": ("linen:flax.linen:SelfAttention(8)", "--arg", "f32[8,512,256]"),
}
ROOMS = {"does not fit": 0.5, "too close": 1.0, "fits": 4.0}
ON = "tpu:v5p"


def with_room(words, times):
    """The words with so much memory, as a multiple of the estimated peak."""
    words = (*words, "--on", ON)
    report = json.loads(answer("report", *words, "-f", "json").out)
    margin = report["on"]["memory_nbytes"] - int(times * report["peak"]["nbytes"])
    return (*words, "--margin", f"{margin}B")


@pytest.mark.integration
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("target", TARGETS)
def test_commands_of_each_answer(fixture_tree, target, room):
    pytest.importorskip("flax")
    words, seen = with_room(TARGETS[target], ROOMS[room]), {}
    for command in ("report", "compare", "plan", "check"):
        run_printed(command, *words, seen=seen)
    report = seen["report", *words].out
    assert room in report.splitlines()[1]
    step = commands_in(report)
    if room == "does not fit":
        assert step == [("plan", *words)] and ("plan", *words) in seen
    if room == "too close":
        is_here = why_unavailable(parse_place(ON)) is None
        asked = [command for command in seen if command[0] == "compile" or "--compile" in command]
        assert bool(asked) == is_here
        assert is_here or seen["plan", *words].out.count("pip install") == 1


@pytest.mark.integration
@pytest.mark.parametrize(
    "argv",
    [
        ("report",),
        ("report", "fixtures/inspect/gpt.py"),
        ("plan", "fixtures/inspect/gpt.py"),
        ("check", "fixtures/inspect/gpt.py"),
        ("fixtures/inspect/gpt.py:loss",),
        ("reprot", "fixtures/inspect/gpt.py:loss"),
        ("report", "fixtures/inspect/gpt.py:attention"),
        ("report", "fixtures/inspect/gpt.py:los"),
        ("report", "nobody"),
        ("check",),
        ("check", "fixtures/inspect/gpt.py:loss", "--max-growth", "2%"),
        ("compile", "fixtures/inspect/gpt.py:loss", "--on", "tpu:v99"),
        ("compile", "fixtures/inspect/gpt.py:loss", "--on", "nobody"),
        ("report", "fixtures/inspect/gpt.py:loss", "--on", "cpu", "--on", "tpu:v5e"),
        ("plan", "fixtures/inspect/gpt.py:loss", "--budget", "0"),
        ("split", "fixtures/tutorials/linen_step.py:train_step"),
        ("diff", "fixtures/budgets/jaxresid.lock"),
        ("lint", "--select", "JXR999", "fixtures/lint"),
        ("rules", "JXR801"),
    ],
    ids=" ".join,
)
def test_commands_of_an_error(fixture_tree, argv):
    run_printed(*argv, codes=(2,))


@pytest.mark.integration
def test_commands_of_limits(fixture_tree):
    words = ("fixtures/plan/decoder.py:loss_fn", "--on", ON, "--trips", "2")
    answers = run_printed("check", *words, "--max-peak", "1MiB", "--max-kept", "1MiB", depth=1)
    plans = [each.argv for each in answers if each.argv[0] == "plan"]
    assert [("--budget" in argv, "--microbatches" in argv) for argv in plans] == [
        (True, False),
        (False, True),
    ]
    assert all(argv[1:4] == words[:3] for argv in plans)


@pytest.mark.integration
def test_commands_of_a_project(fixture_tree, monkeypatch):
    monkeypatch.chdir("fixtures/budgets")
    seen = {}
    for argv in (("check",), ("report", "eval"), ("lint", ".")):
        run_printed(*argv, seen=seen)
    assert len(seen) > 3


@pytest.mark.integration
def test_a_plan_that_was_applied_is_not_proposed_again(fixture_tree):
    words = ("fixtures/plan/decoder.py:loss_fn", "--on", ON, "--budget", "1MiB")
    first = answer("plan", *words, "--write")
    assert "fixtures/plan/decoder.py written" in first.err, first
    again = json.loads(answer("plan", *words, "-f", "json", is_apart=True).out)
    assert again["code"] == [] and not any(site["changed"] for site in again["sites"])
