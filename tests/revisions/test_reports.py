"""Reports that are made elsewhere: in another revision, by another interpreter, under flags."""

import sys

import pytest

import jaxresid
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.revisions.interpreters import interpreter
from jaxresid.revisions.reports import ReportRequest, report_at, reports_of
from tests.repositories import MODEL

TARGET = "model.py:loss"


@pytest.mark.integration
def test_a_revision_and_the_working_tree(repository, left_over):
    before, after = reports_of(
        [
            ReportRequest("main", TARGET, revision="main"),
            ReportRequest("working tree", TARGET),
        ]
    )
    (line,) = (row for row in jaxresid.diff(before, after).lines if row.growth_nbytes > 0)
    assert (line.after.file, line.after.line) == ("model.py", 7)
    assert line.growth_nbytes > 0
    assert left_over(repository) == 0
    assert not list(repository.rglob("*.json"))


@pytest.mark.integration
def test_nothing_of_the_working_tree_is_imported_by_a_revision(
    repository, git, monkeypatch, tmp_path
):
    """What is new here is not there, though this folder is on the path of Python here."""
    package = repository / "src" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(MODEL)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "A package")
    (package / "model.py").write_text(MODEL.replace("jnp.sin(x)", "jnp.exp(jnp.sin(x))"))
    (repository / "src" / "added.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(repository / "src"))
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    was = report_at("HEAD", "mine.model:loss")
    assert was.residuals[0].origin.source.location.code == "return jnp.sum(jnp.sin(x) ** 2)"
    assert was.residuals[0].origin.source.location.file == "src/mine/model.py"
    with pytest.raises(JaxresidError, match=r"^HEAD: no module named 'added'"):
        report_at("HEAD", "added:loss")


@pytest.mark.integration
def test_a_named_target_is_that_of_the_revision_or_else_ours(repository, git):
    table = '[tool.jaxresid.targets.small]\ntarget = "model.py:loss"\nargs = ["f32[{0},4]"]\n'
    (repository / "pyproject.toml").write_text(table.format(2))
    assert report_at("HEAD", "small").residuals[0].aval.shape == (2, 4)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Name the target")
    (repository / "pyproject.toml").write_text(table.format(6))
    assert report_at("HEAD", "small").residuals[0].aval.shape == (2, 4)
    assert report_at("HEAD", "small", ["--arg", "f32[3]"]).residuals[0].aval.shape == (3,)


@pytest.mark.integration
def test_flags(repository):
    names = [f"jax_enable_x64={value}" for value in (0, 1)]
    off, on = reports_of([ReportRequest(n, TARGET, ("--arg", "f64[4]"), flags=(n,)) for n in names])
    assert [off.residuals[0].aval.dtype, on.residuals[0].aval.dtype] == ["float32", "float64"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("jax_no_such=1", r"^there: JAX [\d.]+ has no flag jax_no_such$"),
        ("jax_enable_x64=perhaps", r"^there: ValueError: invalid truth value 'perhaps'"),
    ],
)
def test_flags_that_jax_does_not_take(flag, message, repository):
    with pytest.raises(JaxresidError, match=message):
        reports_of([ReportRequest("there", TARGET, flags=(flag,))])


@pytest.mark.parametrize("flag", ["remat3=1", "jax_remat3", "=1", "jax remat=1"])
def test_what_is_no_flag(flag, repository):
    with pytest.raises(InputsError, match=r"is not jax_NAME=VALUE; write jax_remat3=1"):
        reports_of([ReportRequest("there", TARGET, flags=(flag,))])


@pytest.mark.integration
def test_an_interpreter_that_has_nothing(repository, tmp_path):
    """It has neither this package nor click, and says what it lacks: JAX."""
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    with pytest.raises(JaxresidError) as raised:
        reports_of([ReportRequest("bare", TARGET, python=str(tmp_path / "bare"))])
    assert str(raised.value).startswith("bare: jax is not installed here; install it with: pip")
    assert "\n" not in str(raised.value)


def test_interpreters(tmp_path):
    assert interpreter(sys.executable) == sys.executable
    with pytest.raises(
        InputsError, match=r"^--python nowhere: no such interpreter; write the path"
    ):
        interpreter("nowhere")
    file = tmp_path / "python"
    file.write_text("#!/bin/sh\necho 3 8\n")
    file.chmod(0o755)
    with pytest.raises(InputsError, match=r"is Python 3\.8; jaxresid needs 3\.11$"):
        interpreter(str(file))
    file.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(InputsError, match=r"does not run as Python$"):
        interpreter(str(file))


@pytest.mark.integration
def test_the_folder_is_the_one_that_we_are_in(repository, git, monkeypatch):
    below = repository / "models"
    below.mkdir()
    monkeypatch.chdir(below)
    with pytest.raises(InputsError, match=r"^main: there is no folder models at that revision$"):
        report_at("main", TARGET)
    git(repository, "add", ".", "--intent-to-add")
    (below / "model.py").write_text(MODEL)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Models in a folder")
    found = report_at("main", TARGET)
    assert found.residuals[0].origin.source.location.file == "model.py"


@pytest.mark.integration
def test_a_process_that_dies_says_so(repository):
    (repository / "model.py").write_text("import os\nos._exit(7)\n")
    with pytest.raises(JaxresidError, match=r"^there: the process that traces it ended with 7"):
        reports_of([ReportRequest("there", TARGET)])
