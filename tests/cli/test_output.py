"""The format by the suffix of -o, colours, and quiet."""

import click
import pytest

from jaxresid.cli.options.output import format_of
from tests.render.pprof_reader import read
from tests.render.test_perfetto import read as read_trace

OURS = ("text", "json", "markdown")
LINTED = ("text", "concise", "json", "json-lines", "sarif", "github", "gitlab", "junit", "lsp")


@pytest.mark.parametrize(
    ("file", "formats", "default", "found"),
    [
        (None, OURS, "text", "text"),
        ("-", OURS, "text", "text"),
        ("report", OURS, "text", "text"),
        ("report.log", OURS, "text", "text"),
        ("report.JSON", OURS, "text", "json"),
        ("folder.json/report.md", OURS, "text", "markdown"),
        ("a.json", LINTED, "text", "json"),
        ("a.json", LINTED, "gitlab", "gitlab"),  # as configured, and it is JSON as well
        ("a.txt", LINTED, "json", "text"),
        ("a.txt", LINTED, "concise", "concise"),
        ("a.sarif", LINTED, "text", "sarif"),
        ("a.xml", LINTED, "text", "junit"),
        ("a.jsonl", LINTED, "json", "json-lines"),
        ("a.pb.gz", (*OURS, "pprof"), "text", "pprof"),
        ("a.pprof", (*OURS, "pprof"), "text", "pprof"),
        ("a.gz", (*OURS, "pprof"), "text", "text"),
        ("a.pftrace", (*OURS, "perfetto"), "text", "perfetto"),
        ("/dev/stdout", LINTED, "github", "github"),
    ],
)
def test_the_suffix_chooses(file, formats, default, found):
    assert format_of(file, formats, default) == found


def test_a_suffix_of_a_format_that_the_command_has_not():
    with pytest.raises(click.UsageError, match=r"-o a.sarif: .sarif is none .* -f text, json"):
        format_of("a.sarif", OURS, "text")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "okapi.py").write_text(
        "import jax.numpy as jnp\ndef f(x): return jnp.sin(x).sum()\n"
    )
    return tmp_path


ARGUMENTS = ("okapi.py:f", "--arg", "f32[3]", "--on", "gpu:h100")


def test_a_profile(project, call):
    assert call("report", *ARGUMENTS, "-o", "a.pb.gz")[0] == 0
    types, samples, _ = read((project / "a.pb.gz").read_bytes())
    assert len(types) == 3 and samples
    code, _, err = call("compile", *ARGUMENTS, "--on", "cpu", "-f", "pprof", "-o", "b.pb.gz")
    assert (code, (project / "b.pb.gz").exists()) == (2, False)
    assert "-f pprof is a profile of one place: give --on once" in err


@pytest.mark.parametrize(
    ("words", "groups"),
    [(("report",), 1), (("compare",), 4), (("plan", "--budget", "1GiB"), 1)],
)
def test_a_trace(words, groups, project, call):
    command, *more = words
    assert call(command, *ARGUMENTS, *more, "-o", "a.pftrace")[0] == 0
    found = read_trace((project / "a.pftrace").read_bytes())
    assert len(found) >= groups
    assert found[0]["name"].startswith("okapi.py:f on gpu:h100: peak ")


@pytest.mark.parametrize("words", [("report",), ("compare",), ("plan", "--budget", "1GiB")])
def test_a_trace_is_of_an_estimate(words, project, call):
    code, _, err = call(*words, "okapi.py:f", "--arg", "f32[3]", "--on", "cpu", "-o", "a.pftrace")
    assert (code, (project / "a.pftrace").exists()) == (2, False)
    assert "lifetimes are part of the estimate, and there is none for cpu" in err


@pytest.mark.parametrize("words", [("-v",), ("--view", "peak")])
@pytest.mark.parametrize("form", ["pprof", "perfetto"])
def test_files_of_viewers_have_everything(words, form, project, call):
    code, _, err = call("report", *ARGUMENTS, "-f", form, "-o", "a", *words)
    assert (code, (project / "a").exists()) == (2, False)
    assert f"{words[0]} shows more or less of the text; -f {form} has everything" in err


@pytest.mark.integration
def test_a_profile_of_what_is_compiled(project, call):
    words = "okapi.py:f", "--arg", "f32[3]", "--on", "cpu", "-o", "a.pb.gz"
    for command in ("compile", "report"):
        assert call(command, *words)[0] == 0
        _, samples, comments = read((project / "a.pb.gz").read_bytes())
        assert comments[1] == "peak: XLA's"
        assert sum(values["peak"] for _, values, _ in samples) > 0


def test_report_by_suffix(project, call):
    assert call("report", *ARGUMENTS, "-o", "a.json")[0] == 0
    assert (project / "a.json").read_text().startswith("{")
    assert call("report", *ARGUMENTS, "-o", "b.json", "-f", "text")[0] == 0
    assert not (project / "b.json").read_text().startswith("{")
    code, _, err = call("report", *ARGUMENTS, "-o", "c.sarif")
    assert (code, (project / "c.sarif").exists()) == (2, False)
    assert "-f text, json, html, jax" in err


def test_findings_by_suffix(project, call):
    assert call("lint", "-o", "a.sarif")[0] == 0
    assert (
        "sarifLog" in (project / "a.sarif").read_text()
        or "$schema" in (project / "a.sarif").read_text()
    )
    assert call("lint", "-o", "b.json", "-f", "concise")[0] == 0
    assert not (project / "b.json").read_text().startswith("[")
    (project / "pyproject.toml").write_text('[tool.jaxresid]\noutput-format = "gitlab"\n')
    call("check", *ARGUMENTS, "-o", "c.xml")
    assert (project / "c.xml").read_text().startswith("<?xml")


@pytest.mark.parametrize("command", ["report", "plan", "compare"])
def test_colours(project, call, monkeypatch, command):
    def shown(*options):
        code, out, err = call(command, *ARGUMENTS, *options)
        assert code < 2, err
        return out

    plain = shown()
    assert "\x1b[" not in plain
    assert "\x1b[" in shown("--color", "always")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" in shown("--color", "always")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert shown("--color", "never") == plain
