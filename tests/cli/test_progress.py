"""What stderr has while something is done, where it is no terminal."""

import pytest

from jaxresid.base.progress import Done, Stage
from jaxresid.cli.main import showing_progress


def test_stages_and_what_is_done_are_lines(capsys):
    with showing_progress("tracing f") as say:
        say("tracing variant 1")
        say(Stage("compiling"))
        say("compiling dots, 1 of 2 done")
        say(Done("compiled dots"))
        say(Stage("compiling"))  # still the same stage
        say(Stage("tracing f"))  # it was said
        say(Stage("measuring 2 programs\x1b"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "jaxresid: tracing f\njaxresid: compiling\njaxresid: compiled dots\n"
        "jaxresid: measuring 2 programs␛\n"
    )


def test_quiet(capsys):
    with showing_progress("tracing f", quiet=True) as say:
        say(Stage("compiling"))
        say(Done("compiled"))
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "oryx.py").write_text(
        "import jax.numpy as jnp\ndef f(x): return jnp.sin(x).sum()\n"
    )


@pytest.mark.parametrize(
    ("command", "stages"),
    [
        (("report",), []),
        (("check",), []),
        (("split",), []),
        (("compare",), ["tracing with each policy"]),
        (("plan", "--budget", "1GiB"), ["looking for a plan"]),
    ],
)
def test_each_stage_is_a_line(project, call, command, stages):
    name, *options = command
    argv = (name, "oryx.py:f", "--arg", "f32[3]", *options)
    code, _, err = call(*argv)
    assert code == 0
    expected = [f"jaxresid: {stage}" for stage in ("tracing oryx.py:f", *stages)]
    assert err.splitlines()[: len(expected)] == expected
    assert call(*argv, "--quiet")[2] == ""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "stages"),
    [
        (("compare", "--measure", "--rounds", "3"), ["tracing with each policy", "measuring "]),
        (("compile", "--on", "cpu"), ["compiling"]),
        (
            ("sweep", "--on", "cpu", "--policy", "none", "--policy", "as-written"),
            ["tracing oryx.py:f", "compiling up to 2 programs"],
        ),
    ],
)
def test_stages_that_take_long(project, call, command, stages):
    name, *options = command
    _, _, err = call(
        name, "oryx.py:f", "--arg", "f32[3]", *options, *(["--no-cache"] * (name != "compare"))
    )
    lines = iter(err.splitlines())
    for stage in stages:
        assert any(line.startswith(f"jaxresid: {stage}") for line in lines), (stage, err)
    assert call(name, "oryx.py:f", "--arg", "f32[3]", *options, "-q")[2] == ""
