"""Files that never end, lead elsewhere or are broken: said in one line, and never written to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxresid.cli.main import run
from tests.where import ROOT

CODE = """import jax


@jax.checkpoint
def loss(w, x):
    return (x @ w).sum()


g = jax.grad(loss)
"""
FIXED = CODE.replace("@jax.checkpoint\n", "")
FIXING = "[tool.jaxresid]\nfix = true\nunsafe-fixes = true\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository with a module to fix, as the working directory."""
    top = tmp_path / "repository"
    put(top / ".git/HEAD", "")
    put(top / "model.py", CODE)
    put(tmp_path / "elsewhere/victim.py", CODE)
    monkeypatch.chdir(top)
    return top


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    return path


@pytest.fixture
def lint(capsys):
    """Lints, concisely: the code, stdout and stderr."""

    def lint(*argv):
        code = run(("lint", "-q", "-f", "concise", *argv))
        return code, *capsys.readouterr()

    return lint


# -- what may never end ----------------------------------------------------------------------------


def pipe(path):
    os.mkfifo(path)
    return "it is a named pipe, not a regular file"


def device(path):
    path.symlink_to("/dev/zero")
    return "it is a device, not a regular file"


def big(path):
    with path.open("wb") as file:
        file.truncate((1 << 20) + 1)
    return "it has more than 1 MiB"


def endless(path):
    """A file of Linux that is regular, has no size, and more than fits."""
    path.symlink_to(f"/proc/{os.getpid()}/pagemap")
    return "it has more than 1 MiB"


KINDS = [pipe, device, big]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(
    "name", ["pyproject.toml", ".gitignore", ".git/info/exclude", "sub/.gitignore", "uv.lock"]
)
def test_configuration_that_may_never_end_is_refused(tree, lint, make, name):
    put(tree / "sub/a.py", CODE)
    (tree / name).parent.mkdir(exist_ok=True)
    reason = make(tree / name)
    if name == "uv.lock" and make is big:
        return  # locks are big
    code, out, err = lint()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"jaxresid: error: {name}: cannot be read: {reason}")


@pytest.mark.parametrize("name", ["pyproject.toml", ".gitignore"])
def test_a_file_without_size_or_end_is_refused(tree, lint, name):
    reason = endless(tree / name)
    assert lint() == (2, "", f"jaxresid: error: {name}: cannot be read: {reason}\n")


def test_configuration_above_and_that_is_named(tree, lint):
    pipe(tree / ".gitignore")
    put(tree / "sub/a.py", CODE)
    assert lint("sub")[0] == 2
    (tree / ".gitignore").unlink()
    assert lint("--config", "/dev/zero")[2] == (
        "jaxresid: error: /dev/zero: cannot be read: it is a device, not a regular file\n"
    )
    (tree / ".gitignore").mkdir()
    (tree / "pyproject.toml").mkdir()
    assert lint("sub")[0] == 1


def test_a_work_tree_whose_pointer_is_a_pipe(tree, lint):
    put(tree / "sub/a.py", CODE)
    pipe(tree / "sub/.git")
    code, _, err = lint()
    assert (code, err.count("\n")) == (2, 1)
    assert "sub/.git: cannot be read" in err


# -- configuration inside a tree -------------------------------------------------------------------

ABOVE = "; the files below are linted by the configuration above, and not fixed"


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        ("[tool.jaxresid]\n\nselect = [\n", "3:1", "not valid TOML: Invalid value (at end"),
        ('[tool.jaxresid]\nselect = ["JXX"]\n', "2:1", "unknown rule `JXX` in `select`"),
        ('[tool.jaxresid]\nselect = ["JX\\u0058"]\n', "2:1", "unknown rule `JXX` in `select`"),
        ('[tool.jaxresid]\nper-file-ignores = {"a" = ["Q"]}\n', "2:1", "in `per-file-ignores`"),
        ("[tool.jaxresid]\nignore = 3\n", "2:1", "`ignore` is the number 3; write a list"),
        ("[tool.jaxresid]\n".encode("utf-16"), "1:1", "not valid TOML: it is UTF-16; save it"),
        (pipe, "1:1", "cannot be read: it is a named pipe"),
    ],
)
def test_what_is_wrong_below_is_a_finding_there(tree, lint, content, place, reason):
    put(tree / "sub/a.py", CODE)
    file = tree / "sub/pyproject.toml"
    if callable(content):
        content(file)
    else:
        put(file, content)
    code, out, err = lint("--fix", "--unsafe-fixes")
    assert (code, err) == (2, "")
    lines = out.splitlines()
    (said,) = (line for line in lines if line.startswith("sub/pyproject.toml"))
    assert said.startswith(f"sub/pyproject.toml:{place}: invalid-configuration: ")
    assert reason in said
    assert said.endswith(ABOVE)
    (other,) = (line for line in lines if line != said)
    assert other.startswith("sub/a.py:4:2: JXR101")
    assert (tree / "model.py").read_text() == FIXED
    assert (tree / "sub/a.py").read_text() == CODE


def test_what_is_wrong_is_said_once_and_by_other_processes(tree):
    put(tree / "sub/pyproject.toml", "[tool.jaxresid\n")
    for name in ("a", "b", "deep/c"):
        put(tree / f"sub/{name}.py", CODE + "#" * 400_000)
    # In a process of its own, as what has imported jax lints alone.
    argv = [sys.executable, "-m", "jaxresid", "lint", "-q", "-j", "2", "-f", "concise"]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr) == (2, "")
    assert (done.stdout.count("invalid-configuration"), done.stdout.count("JXR101")) == (1, 4)


def test_what_is_wrong_at_the_top_is_one_line(tree, lint):
    put(tree / "pyproject.toml", "[tool.jaxresid]\nselect = [\n")
    said = "jaxresid: error: pyproject.toml:2: not valid TOML: Invalid value (at end of document)\n"
    assert lint() == (2, "", said)
    put(tree / "pyproject.toml", '[tool.jaxresid]\nselect = ["JX\\u0058"]\n')
    said = "jaxresid: error: pyproject.toml:2: unknown rule `JXX` in `select`"
    assert lint()[2].startswith(said)
    said = "jaxresid: error: unknown rule `JXX` in `--select"
    assert lint("--isolated", "--select", "JXX")[2].startswith(said)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_wide_encodings_have_their_name(tree, lint, encoding):
    mark = "\ufeff" if encoding.endswith("-be") else ""
    put(tree / "wide.py", (mark + CODE).encode(encoding))
    put(tree / "other.py", (mark + "print('x')").encode(encoding))
    name = encoding[:6].upper()
    assert lint("wide.py", "other.py") == (
        1,
        f"wide.py:1:1: invalid-syntax: it is {name}, which Python does not read;"
        " save it as UTF-8\n",
        "",
    )
    put(tree / "pyproject.toml", (mark + "[tool.jaxresid]\n").encode(encoding))
    said = f"jaxresid: error: pyproject.toml: not valid TOML: it is {name}; save it as UTF-8\n"
    assert lint() == (2, "", said)


# -- links -----------------------------------------------------------------------------------------


def left_alone(name, link=None):
    return (
        f"jaxresid: warning: {name} is not changed: the link {link or name} leads out of what is"
        " linted, to "
    )


@pytest.mark.parametrize("argv", [(), ("--fix-only",), ("--diff",), ("--add-noqa", "--no-fix")])
@pytest.mark.parametrize("path", [".", "link.py", "dir/victim.py", "dir"])
def test_nothing_is_written_through_a_link_that_leads_out(tree, lint, argv, path):
    put(tree / "pyproject.toml", FIXING)
    victim = Path("../elsewhere/victim.py")
    (tree / "link.py").symlink_to(victim)
    (tree / "dir").symlink_to(victim.parent)
    code, _, err = lint(path, *argv)
    name, link = ("link.py", None) if path in (".", "link.py") else ("dir/victim.py", "dir")
    assert left_alone(name, link) in err
    assert victim.read_text() == CODE
    assert code == (2 if argv else 1)
    assert (tree / "model.py").read_text() != CODE or path != "." or "--diff" in argv


def test_a_link_out_of_the_part_that_is_linted(tree, lint):
    put(tree / "part/x.py", "")
    (tree / "part/link.py").symlink_to("../model.py")
    assert left_alone("part/link.py") in lint("part", "--fix", "--unsafe-fixes")[2]
    assert (tree / "model.py").read_text() == CODE
    assert lint("part", ".", "--fix", "--unsafe-fixes") == (0, "", "")
    assert (tree / "model.py").read_text() == FIXED
    assert (tree / "part/link.py").is_symlink()


def test_a_project_that_is_reached_by_a_link_is_fixed(tree, lint, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/project").symlink_to(tree)
    monkeypatch.chdir(tmp_path / "home")
    assert lint("project", "--fix", "--unsafe-fixes") == (0, "", "")
    assert (tree / "model.py").read_text() == FIXED


def test_a_link_of_no_project_stays_in_its_directory(tmp_path, lint, monkeypatch):
    put(tmp_path / "a/model.py", CODE)
    put(tmp_path / "b/model.py", CODE)
    (tmp_path / "a/link.py").symlink_to("../b/model.py")
    monkeypatch.chdir(tmp_path / "a")
    assert left_alone("link.py") in lint("link.py", "--fix", "--unsafe-fixes")[2]
    assert (tmp_path / "b/model.py").read_text() == CODE
