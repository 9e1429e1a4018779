"""action.yml: its steps in a scratch repository, its one comment on a GitHub that is an object."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from tests.where import ROOT


def _comment():
    spec = importlib.util.spec_from_file_location("action_comment", ROOT / "action" / "comment.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["action_comment"] = module
    spec.loader.exec_module(module)
    return module


comment = _comment()
MARKER = comment.marker_of("")


class GitHub:
    """The comments of a pull request; some of them may not be changed."""

    def __init__(self, bodies=(), *, others=(), refuses=()):
        self.comments = dict(enumerate(bodies, 1))
        self.others = set(others)
        self.refuses = refuses
        self.calls = []

    def call(self, method, path, payload=None):
        self.calls.append(method)
        if method in self.refuses:
            raise comment.RefusedError(f"{method}: 403 Forbidden")
        if method == "GET":
            match = re.fullmatch(r"/repos/o/r/issues/7/comments\?per_page=100&page=(\d+)", path)
            start = 100 * (int(match[1]) - 1)
            listed = sorted(self.comments.items())[start : start + 100]
            return [{"id": i, "body": body} for i, body in listed]
        if method == "POST":
            assert path == "/repos/o/r/issues/7/comments"
            self.comments[max(self.comments, default=0) + 1] = payload["body"]
            return {}
        number = int(path.removeprefix("/repos/o/r/issues/comments/"))
        if number in self.others:
            raise comment.RefusedError(f"{method}: 403 Forbidden")
        if method == "DELETE":
            del self.comments[number]
        else:
            self.comments[number] = payload["body"]
        return None


def publish(api, body):
    return comment.publish(api, "o/r", 7, f"{MARKER}\n\n{body}\n", MARKER)


def test_written_twice_is_one_comment():
    api = GitHub(["hello", "what about memory?"])
    assert publish(api, "one") == "created"
    assert publish(api, "two") == "updated"
    assert publish(api, "two") == "unchanged"
    assert list(api.comments.values()) == ["hello", "what about memory?", f"{MARKER}\n\ntwo\n"]
    assert api.calls == ["GET", "POST", "GET", "PATCH", "GET"]


def test_it_is_found_behind_many():
    api = GitHub([f"comment {i}" for i in range(250)])
    publish(api, "one")
    publish(api, "two")
    assert sum(body.startswith(MARKER) for body in api.comments.values()) == 1


def test_two_at_the_same_time_become_one():
    api = GitHub([f"{MARKER}\n\none\n", "hello", f"{MARKER}\n\ntwo\n"])
    assert publish(api, "three") == "updated"
    assert list(api.comments.values()) == [f"{MARKER}\n\nthree\n", "hello"]


def test_others_comments_stay():
    quoting = f"> {MARKER}\n> one"
    foreign = f"{MARKER} is what you look for?"
    api = GitHub([quoting, foreign], others={2})
    assert publish(api, "one") == "created"
    assert publish(api, "two") == "updated"
    assert list(api.comments.values()) == [quoting, foreign, f"{MARKER}\n\ntwo\n"]


def test_line_ends_of_github_are_no_change():
    api = GitHub([f"{MARKER}\r\n\r\none\r\nmore"])
    assert publish(api, "one\nmore") == "unchanged"


def test_names_tell_comments_apart():
    markers = {comment.marker_of(name) for name in ("", "gpu", "tpu")}
    assert len(markers) == 3
    assert comment.marker_of("--> <b>").count("-->") == 1


# -- the text


def results(**given):
    empty = {"lint": None, "check": None, "diff": None, "codes": {}, "errors": {}}
    return comment.Results(**{**empty, **given})


def test_the_text():
    check = (
        "::error title=jaxresid (JXR821),file=a%3Ab.py,line=8::a:b.py:8:1: JXR821 100%25 over%0A"
        "  help: less\n::notice title=x,file=c.py::c.py:1:1: JXR830 wide\nnot a command\n"
    )
    text = comment.body_of(
        results(
            lint="",
            check=check,
            diff="### `train`: keeps more\n",
            codes={"lint": "0", "check": "1", "diff": "0"},
        ),
        MARKER,
    )
    assert text.startswith(f"{MARKER}\n\n## jaxresid\n")
    assert "**lint** passed: no findings" in text
    assert "**check** failed: 1 error, 1 info" in text
    assert "```text\na:b.py:8:1: JXR821 100% over\nc.py:1:1: JXR830 wide\n```" in text
    assert "### Against the base\n\n### `train`: keeps more\n" in text
    assert "help" not in text and "not a command" not in text
    assert text.index("\n- `train`: keeps more\n") < text.index("**lint**")
    failed = comment.body_of(results(diff="### `train`: x\n", codes={"diff": "2"}), MARKER)
    assert "- `train`" not in failed


def test_what_could_not_run_is_said():
    text = comment.body_of(
        results(
            check="",
            diff="",
            codes={"check": "2", "diff": "2"},
            errors={"check": "jaxresid: error: gone", "diff": "error: no `revision` ``` here"},
        ),
        MARKER,
    )
    assert "**check** could not run, or not all of it:\n\n```text\njaxresid: error: gone" in text
    assert "The two could not be compared.\n\n````text\nerror: no `revision` ``` here\n````" in text
    assert "**lint**" not in text


def test_nothing_in_a_finding_ends_its_block():
    line = "::error title=x::a.py:1:1: JXR101 `````` # <!-- jaxresid -->\n"
    text = comment.body_of(results(check=line, codes={"check": "1"}), MARKER)
    assert text.rstrip().endswith("`" * 7) and f"{'`' * 7}text\n" in text


def test_long_texts_are_cut_for_the_comment_alone():
    given = results(diff="```text\n" + "kept 1 MiB\n" * 20_000 + "```\n", codes={"diff": "0"})
    text = comment.body_of(given, MARKER)
    assert len(text) < 65_536
    assert text.endswith("kept 1 MiB\n```\n\n*Cut here: the summary of the run has all of it.*\n")
    assert len(comment.body_of(given, MARKER, None)) > 200_000
    many = "".join(f"::error title=x::a.py:{i}:1: JXR101 m\n" for i in range(50))
    assert "... and 30 more" in comment.body_of(results(lint=many, codes={"lint": "1"}), MARKER)


@pytest.mark.parametrize(
    ("event", "number"),
    [
        ({"pull_request": {"number": 7}}, 7),
        ({"ref": "refs/heads/main"}, None),
        ({"pull_request": {"number": "7"}}, None),
        ([], None),
    ],
)
def test_the_pull_request_of_an_event(tmp_path, event, number):
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    assert comment.pull_request(file) == number
    assert comment.pull_request(tmp_path / "gone.json") is None


@pytest.mark.parametrize("refuses", [("POST",), ("GET",)])
def test_a_token_that_may_not_write_is_a_warning(tmp_path, monkeypatch, capsys, refuses):
    event = tmp_path / "event.json"
    event.write_text('{"pull_request": {"number": 7}}')
    summary = tmp_path / "summary.md"
    for name, value in {
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_TOKEN": "t",
    }.items():
        monkeypatch.setenv(name, value)
    api = GitHub(refuses=refuses)
    monkeypatch.setattr(comment, "GitHub", lambda url, token: api)
    assert comment.main([str(tmp_path)]) == 0
    assert "::warning title=jaxresid::no comment: " in capsys.readouterr().out
    assert summary.read_text().startswith(MARKER)
    api.refuses = ()
    assert comment.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "jaxresid: comment created\n"
    assert len(api.comments) == 1


# -- the steps


MODEL = """
import jax, jax.numpy as jnp

def layer(w, x):
    return jnp.tanh(x @ w)

def loss(ws, x):
    for i in range(8):
        x = layer(ws[i], x)
    return jnp.sum(x ** 2)

def loss_inputs():
    struct = jax.ShapeDtypeStruct
    return struct((8, 256, 256), jnp.float32), struct((4096, 256), jnp.float32)
"""
PROJECT = """
[tool.jaxresid]
on = "gpu:h100"
[tool.jaxresid.targets.train]
target = "model.py:loss"
max-kept = "{limit}"
"""


class Runner:
    """A machine of GitHub's as far as the steps see one: they run in bash, in their order."""

    def __init__(self, path, yaml):
        self.path = path
        self.environment = {}
        self.action = yaml.safe_load((ROOT / "action.yml").read_text())
        for name in ("project", "temp"):
            (path / name).mkdir()
        (path / "event.json").write_text('{"pull_request": {"number": 7}}')

    def git(self, *argv):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        done = subprocess.run(
            ["git", *identity, *argv],
            cwd=self.path / "project",
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    def write(self, model=MODEL, limit="1GiB"):
        (self.path / "project" / "model.py").write_text(model)
        (self.path / "project" / "pyproject.toml").write_text(PROJECT.format(limit=limit))

    def run(self, **given):
        """Exit codes of the steps by their names, the log, and the summary."""
        inputs = {name: each["default"] for name, each in self.action["inputs"].items()}
        inputs |= {"python": sys.executable, "install": "false", "token": "", **given}
        summary = self.path / "summary.md"
        summary.write_text("")
        codes, log = {}, ""
        for step in self.action["runs"]["steps"]:
            condition = step.get("if", "true")
            asked = re.findall(r"inputs\.([\w-]+) (==|!=) '(\w*)'", condition)
            if not all((inputs[n] == value) == (op == "==") for n, op, value in asked):
                continue
            env = {
                **os.environ,
                "GITHUB_ACTION_PATH": str(ROOT),
                "GITHUB_EVENT_PATH": str(self.path / "event.json"),
                "GITHUB_STEP_SUMMARY": str(summary),
                "RUNNER_TEMP": str(self.path / "temp"),
                **self.environment,
            }
            for name, value in step.get("env", {}).items():
                env[name] = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: inputs[m[1]], value)
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
                cwd=self.path / "project" / inputs["working-directory"],
                env=env,
                check=False,
                capture_output=True,
                text=True,
            )
            codes[step["name"]] = done.returncode
            log += done.stdout + done.stderr
        return codes, log, summary.read_text()


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path, pytest.importorskip("yaml"))


@pytest.mark.integration
def test_the_steps(runner):
    runner.write()
    runner.git("init", "-q")
    runner.git("add", ".")
    runner.git("commit", "-qm", "one")
    base = runner.git("rev-parse", "HEAD")
    codes, log, summary = runner.run(base=base)
    steps = ("Lint", "Check", "Compare with the base", "Comment", "Result")
    assert codes == dict.fromkeys(steps, 0)
    assert "**lint** passed: no findings" in summary
    assert "**check** passed: no findings" in summary
    assert "could not be compared" not in summary
    runner.write(MODEL.replace("jnp.tanh(x @ w)", "jnp.sin(jnp.tanh(x @ w))"), limit="32MiB")
    codes, log, summary = runner.run(base=base)
    assert codes["Check"] == 0 and codes["Result"] == 1
    assert re.search(r"^::error title=jaxresid \(JXR822\),file=model.py,line=5", log, re.M)
    assert "**check** failed: 1 error" in summary
    assert "model.py:5:" in summary
    assert "no comment: there is no token" in log
    # What was found before does not stay for the next run.
    assert not (runner.path / "temp" / "jaxresid").exists()
    codes, log, summary = runner.run(base="", check="false")
    assert "Check" not in codes and "Compare with the base" not in codes and codes["Result"] == 0


@pytest.mark.integration
def test_a_step_that_cannot_run(runner):
    runner.write()
    runner.git("init", "-q")
    codes, _, summary = runner.run(base="0" * 40, **{"check-arguments": "gone.py:loss"})
    assert codes["Result"] == 2
    assert "**check** could not run" in summary and "gone.py" in summary
    assert "could not be compared" in summary


HOSTILE = """
import os, sys
with open(os.environ["EXECUTED"], "a") as file:
    file.write(f"{__name__} of {sys.argv}\\n")
"""
# What Python, pip, jaxresid and JAX import by themselves, some of it late.
IMPORTED = (
    *(
        "click",
        "concurrent",
        "fractions",
        "hatchling",
        "jaxresid",
        "json",
        "libcst",
        "multiprocessing",
    ),
    *("packaging", "pip", "psutil", "queue", "re", "rich", "scipy", "sitecustomize", "statistics"),
    *("tomllib", "urllib", "usercustomize"),
)


@pytest.fixture
def hostile(runner):
    """A checkout in which everything that could be imported by accident says that it was."""
    runner.write(MODEL + '\nprint("</details>\\n\\n![picture](http://elsewhere.example)")\n')
    project = runner.path / "project"
    for name in IMPORTED:
        (project / f"{name}.py").write_text(HOSTILE)
        package = project / "packages" / name
        package.mkdir(parents=True)
        for module in ("__init__", "__main__"):
            (package / f"{module}.py").write_text(HOSTILE)
    for name in ("setup", "conftest", "hatch_build"):
        (project / f"{name}.py").write_text(HOSTILE)
    runner.environment = {"EXECUTED": str(runner.path / "executed")}
    runner.git("init", "-q")
    runner.git("add", ".")
    runner.git("commit", "-qm", "one")
    # A folder that git would take for a repository, with the configuration of whoever wrote it.
    bare = project / "bare"
    runner.git("clone", "-q", "--bare", ".", "bare")
    program = bare / "program"
    program.write_text('#!/bin/sh\necho "a program of git" >> "$EXECUTED"\n')
    program.chmod(0o755)
    with (bare / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {program}\n\tworktree = ..\n\tbare = false\n")
        config.write(f'[remote "origin"]\n\tuploadpack = {program}\n')
    return runner


def executed(runner):
    file = runner.path / "executed"
    return file.read_text() if file.exists() else ""


@pytest.mark.integration
@pytest.mark.parametrize("folder", [".", "packages"])
def test_installing_linting_and_commenting_execute_nothing_of_a_checkout(hostile, folder):
    # Where a workflow has the project on Python's path, too.
    hostile.environment |= {
        "PYTHONPATH": str(hostile.path / "project" / folder),
        "PIP_NO_INDEX": "1",
    }
    inputs = {"check": "false", "diff": "false", "install": "true", "working-directory": folder}
    codes, log, summary = hostile.run(**inputs)
    assert executed(hostile) == ""
    # pip ran: without an index it does not get what the build needs.
    assert codes["Install jaxresid"] == 1 and "ERROR" in log and "hatchling" in log
    assert codes["Lint"] == codes["Comment"] == codes["Result"] == 0
    assert "**lint** passed: no findings" in summary


@pytest.mark.integration
def test_checking_and_comparing_import_what_targets_import(hostile):
    codes, log, summary = hostile.run(lint="false", base="HEAD")
    assert executed(hostile) == ""
    assert codes["Check"] == codes["Compare with the base"] == codes["Result"] == 0
    assert "**check** passed: no findings" in summary
    assert "### Against the base\n\n### `model.py:loss`: no difference" in summary
    # What the model prints is in the log alone.
    assert "![picture]" in log and "picture" not in summary
    hostile.write("import queue\n" + MODEL)
    hostile.run(lint="false", diff="false")
    assert executed(hostile).startswith("queue of ")


@pytest.mark.integration
def test_a_folder_that_looks_like_a_repository_is_none(hostile):
    inputs = {"working-directory": "bare", "diff-arguments": "--target ../model.py:loss"}
    for base in ("HEAD", "0" * 40):  # the second would be fetched
        _, _, summary = hostile.run(lint="false", check="false", base=base, **inputs)
        assert executed(hostile) == ""
        assert "cannot use bare repository" in summary


@pytest.mark.integration
def test_every_line_of_arguments_is_used(runner):
    runner.write()
    arguments = "train\n--max-peak  1MiB\n\n--ignore JXR842\n"
    codes, log, _ = runner.run(lint="false", diff="false", **{"check-arguments": arguments})
    assert codes["Result"] == 1 and "JXR821" in log and "JXR842" not in log


def test_no_input_becomes_part_of_a_script():
    text = (ROOT / "action.yml").read_text()
    scripts = re.findall(r"run: \|\n((?: {8}.*\n)+)", text)
    assert len(scripts) == 6
    assert not any("${{" in script for script in scripts)
