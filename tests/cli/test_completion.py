"""Completion: what is offered, and that bash, zsh and fish themselves complete with it."""

import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import time

import click
import pytest

from jaxresid.cli import cli
from jaxresid.cli.completion.answer import answer
from jaxresid.cli.completion.scripts import SCRIPTS
from jaxresid.cli.completion.values import POLICIES
from jaxresid.linter.rules import all_rules
from tests.where import ROOT

POLICY_RULES = [rule.code for rule in all_rules() if rule.code.startswith("JXR20")]

# What is completed must not be imported.
MODEL = """raise RuntimeError("imported")
def loss(params, x, rate=0.1): ...
def loss_inputs(): ...
def train_step(state, batch): ...
def _hidden(x): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("completed")
    (path / "model.py").write_text(MODEL)
    (path / "notes.txt").write_text("")
    (path / "my file.py").write_text(MODEL)
    (path / "sub").mkdir()
    (path / "sub" / "deep.py").write_text(MODEL)
    (path / "pyproject.toml").write_text(
        '[tool.jaxresid.targets.small]\ntarget = "model.py:loss"\n'
    )
    program = path / "bin" / "jaxresid"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jaxresid "$@"\n')
    program.chmod(0o755)
    return path


@pytest.fixture
def offered(folder, monkeypatch):
    """What is offered after some words, the last of which is not complete."""
    monkeypatch.chdir(folder)

    def offered(*words):
        kind, *lines = answer(cli, words, {"_JAXRESID_COMPLETE": "fish"}).splitlines()
        return kind, [line.partition("\t")[0] for line in lines]

    return offered


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("pl",), ["plan"]),
        (("completion", ""), ["bash", "fish", "zsh"]),
        (("report", "mod"), ["model.py:"]),
        (("report", "s"), ["small", "sub/"]),
        (("report", "sub/"), ["sub/deep.py:"]),
        (("report", "model.py:"), ["model.py:loss", "model.py:train_step"]),
        (("report", "model:t"), ["model:train_step"]),
        (("report", "sub.deep:l"), ["sub.deep:loss"]),
        (("report", "nowhere.py:"), []),
        (("compare", "small", "--policy", "dots_s"), ["dots_saveable"]),
        (("sweep", "small", "--policy", "model.py:_"), ["model.py:_hidden"]),
        (("report", "small", "--inputs", "l"), ["loss", "loss_inputs"]),
        (("report", "sub/deep.py:loss", "--inputs", "loss_"), ["loss_inputs"]),
        (("report", "small", "--on", "gpu:h"), ["gpu:h100", "gpu:h100-pcie", "gpu:h200"]),
        (("plan", "small", "--budget", "tpu:v6e"), ["tpu:v6e"]),
        (("report", "--on=tpu:v6e:2"), ["--on=tpu:v6e:2x2", "--on=tpu:v6e:2x4"]),
        (("report", "small", "--min"), ["--min-bytes"]),
        (("report", "small", "--color", "a"), ["always", "auto"]),
        (("explain", "jxr20"), POLICY_RULES),
        (("explain", "called"), ["called-policy"]),
        (("diff", "model.py:l"), ["model.py:loss"]),
        (("diff", "--target", "sm"), ["small"]),
        (("lint", "--select", "JXR101,JXR20"), [f"JXR101,{code}" for code in POLICY_RULES]),
    ],
)
def test_words(offered, words, expected):
    kind, found = offered(*words)
    assert sorted(found) == sorted(expected)
    ends = {each[-1] in ":/" for each in found}
    assert kind == ("begun" if ends == {True} else "words")


@pytest.mark.parametrize(
    "words",
    [
        ("lint", ""),
        ("diff", "a.json", "b"),
        ("oom", "t"),
        ("report", "small", "-o", ""),
        ("check", "small", "--config", "p"),
    ],
)
def test_files_are_the_shells(offered, words):
    assert offered(*words) == ("files", [])


def test_the_commands_have_what_they_are_for(folder):
    lines = answer(cli, ["re"], {"_JAXRESID_COMPLETE": "zsh"}).splitlines()
    assert lines[1].startswith("report\twhat its backward pass keeps")


def test_every_script_is_printed(call):
    for shell, script in SCRIPTS.items():
        assert call("completion", shell) == (0, script, "")
    code, out, err = call("completion", "tcsh")
    assert (code, out) == (2, "")
    assert "'bash', 'zsh', 'fish'" in err


def test_the_policies_are_jaxs():
    from jaxresid.inspector.checkpoints.policies import builtins

    assert {*builtins(), "none", "as-written"} == set(POLICIES)


def test_a_line_that_makes_no_sense(offered, monkeypatch):
    assert answer(cli, ["nosuch", ""], {"_JAXRESID_COMPLETE": "fish"}) == "words\n"
    assert answer(cli, [], {"_JAXRESID_COMPLETE": "bash"}).startswith("words\n")
    assert answer(cli, ["jaxresid report 'model.p"], {"_JAXRESID_COMPLETE": "bash"}).startswith(
        "begun\nmodel.py:"
    )

    def raises(*_):
        raise ValueError

    monkeypatch.setattr(click.Group, "resolve_command", raises)
    monkeypatch.setattr(type(cli), "resolve_command", raises)
    assert answer(cli, ["report", ""], {"_JAXRESID_COMPLETE": "fish"}) == ""


def test_jax_is_not_imported(folder):
    code = (
        "import sys; from jaxresid.cli.main import run; run(['report', 'model.py:l']);"
        "print(sorted({'jax', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "_JAXRESID_COMPLETE": "fish", "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "words\nmodel.py:loss\t(params, x, rate=...)\n[]\n"


class Interactive:
    """A shell on a terminal of its own."""

    def __init__(self, argv, folder, setup):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ.update(
                PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                PYTHONPATH=str(ROOT),
                HOME=str(folder),
                TERM="xterm",
                ZDOTDIR=str(folder),
            )
            os.execvp(argv[0], argv)
        self.pid = pid
        import fcntl
        import termios

        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.send(f"{setup}\necho re''ady\n")
        self.until("ready")

    def send(self, text):
        os.write(self.fd, text.encode())

    def until(self, pattern, timeout_s=60):
        """What is printed up to a pattern, and the match."""
        text, end = "", time.monotonic() + timeout_s
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                text += os.read(self.fd, 65536).decode(errors="replace")
                if match := re.search(pattern, text, re.DOTALL):
                    return text, match
        raise AssertionError(f"no {pattern!r} in {text!r}")

    def typed(self, line):
        """The line after a tab, and what was printed meanwhile."""
        self.send(f"\x15{line}\t\x18p")
        text, match = self.until(r"@@(.*?)@@")
        return match[1], text

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


SETUP = {
    "bash": """PS1='$ '; bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'
        bind -x '"\\C-xp": printf "@""@%s@""@" "$READLINE_LINE"'""".replace("\n        ", "; "),
    "zsh": "PS1='$ '; unsetopt beep; autoload -Uz compinit; compinit -u; bindkey -e;"
    """ shown() { print -rn -- '@''@'"$BUFFER"'@''@' }; zle -N shown; bindkey '^Xp' shown""",
}
ARGV = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


@pytest.fixture(scope="module", params=["bash", "zsh"])
def shell(request, folder):
    if shutil.which(request.param) is None:
        pytest.skip(f"there is no {request.param} on this machine")
    sourced = f'eval "$(jaxresid completion {request.param})"'
    started = Interactive(ARGV[request.param], folder, f"{SETUP[request.param]}; {sourced}")
    yield started
    started.close()


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("jaxresid pl", "jaxresid plan "),
        ("jaxresid report mod", "jaxresid report model.py:"),
        ("jaxresid report model.py:tr", "jaxresid report model.py:train_step "),
        ("jaxresid report sm", "jaxresid report small "),
        ("jaxresid report sub/d", "jaxresid report sub/deep.py:"),
        ("jaxresid report my", r"jaxresid report my\ file.py:"),
        (r"jaxresid report my\ file.py:tr", r"jaxresid report my\ file.py:train_step "),
        ("jaxresid report small --on gpu:h2", "jaxresid report small --on gpu:h200 "),
        ("jaxresid report small --on=gpu:h2", "jaxresid report small --on=gpu:h200 "),
        ("jaxresid report small --on tpu:v5e:16", "jaxresid report small --on tpu:v5e:16x16 "),
        ("jaxresid report small -o no", "jaxresid report small -o notes.txt "),
        ("jaxresid report small --output=no", "jaxresid report small --output=notes.txt "),
        ("jaxresid lint no", "jaxresid lint notes.txt "),
        ("jaxresid lint su", "jaxresid lint sub/"),
        (
            "jaxresid sweep small --policy dots_w",
            "jaxresid sweep small --policy dots_with_no_batch_dims_saveable ",
        ),
        ("jaxresid report small --min", "jaxresid report small --min-bytes "),
        ("jaxresid explain JXR101", "jaxresid explain JXR101 "),
    ],
)
def test_a_shell_completes(shell, line, completed):
    assert shell.typed(line)[0] == completed


@pytest.mark.nightly
@pytest.mark.integration
def test_a_shell_lists_what_is_ambiguous(shell):
    line, text = shell.typed("jaxresid report model.py:")
    assert line == "jaxresid report model.py:"
    assert {"loss", "train_step"} <= set(re.findall(r"\w+", text))
    assert "Error" not in text


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("jaxresid pl", ["plan"]),
        ("jaxresid report mod", ["model.py:"]),
        ("jaxresid report model.py:", ["model.py:loss", "model.py:train_step"]),
        ("jaxresid report s", ["small", "sub/"]),
        ("jaxresid report small --on gpu:h2", ["gpu:h200"]),
        ("jaxresid report --on=gpu:h2", ["--on=gpu:h200"]),
        ("jaxresid report small -o no", ["notes.txt"]),
        ("jaxresid report small --output=no", ["--output=notes.txt"]),
        ("jaxresid lint su", ["sub/"]),
        ("jaxresid compare small --policy none", ["none"]),
        ("jaxresid explain JXR20", POLICY_RULES),
    ],
)
def test_fish_completes(folder, line, found):
    if shutil.which("fish") is None:
        pytest.skip("there is no fish on this machine")
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"jaxresid completion fish | source; complete -C '{line}'"],
        env={
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [each.partition("\t")[0] for each in done.stdout.splitlines()] == found
