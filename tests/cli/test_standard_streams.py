"""Standard streams that are full, closed or read by nobody: one line and a code."""

import errno
import json
import os
import subprocess
import sys

import pytest

from jaxresid.cli import COMMANDS
from jaxresid.cli.main import run
from tests.where import ROOT

FULL = "jaxresid: error: cannot write to standard output: No space left on device\n"
CLOSED = "jaxresid: error: cannot write to standard output: it is closed\n"
NO_INPUT = "jaxresid: error: cannot read standard input: it is closed\n"
MODEL = """
import jax
import jax.numpy as jnp


def loss(w, x):
    return jnp.tanh(x @ w).sum()


def loss_inputs():
    return jnp.ones((4, 4)), jnp.ones((2, 4))


@jax.checkpoint
def other(w, x):
    return (x @ w).sum()


g = jax.grad(other)
"""
LOG = "RESOURCE_EXHAUSTED: Out of memory allocating 1073741824 bytes.\n"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"processId": None, "rootUri": None, "capabilities": {}},
}
LOSS = ("model.py:loss",)
# What each command is called with, so that it writes to standard output.
CALLS = {
    "report": LOSS,
    "split": LOSS,
    "check": LOSS,
    "diff": ("a.json", "a.json"),
    "plan": (*LOSS, "--budget", "1GiB"),
    "compare": LOSS,
    "compile": (*LOSS, "--on", "cpu"),
    "sweep": (*LOSS, "--on", "cpu", "--policy", "none"),
    "oom": ("train.log",),
    "lint": (),
    "explain": ("JXR101",),
    "rules": (),
    "completion": ("bash",),
    "server": (),
}
QUICK = (("--help",), ("--version",), ("lint",), ("lint", "--fix", "-"), ("completion", "bash"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("streams")
    (path / "model.py").write_text(MODEL)
    (path / "train.log").write_text(LOG)
    body = json.dumps(INITIALIZE)
    (path / "input").write_bytes(f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return path


def in_shell(folder, script, *argv, **environment):
    """Code, stdout and stderr of a script, in which "$0" is Python and "$@" are the arguments."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    more = {"JAXRESID_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": paths}
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, *argv],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **more, **environment},
    )
    return done.returncode, done.stdout, done.stderr


def called(folder, argv, redirections, **environment):
    """Code, stdout and stderr of the command line in a shell, with its redirections."""
    return in_shell(folder, f'exec "$0" -m jaxresid "$@" {redirections}', *argv, **environment)


@pytest.mark.parametrize("argv", QUICK, ids=" ".join)
@pytest.mark.parametrize(("to", "said"), [(">/dev/full", FULL), (">&-", CLOSED)])
def test_output_that_cannot_be_written(folder, argv, to, said):
    assert called(folder, argv, f"<model.py {to}") == (2, "", said)


@pytest.mark.integration
@pytest.mark.parametrize("command", COMMANDS)
def test_output_of_every_command(folder, command):
    if command == "server":
        pytest.importorskip("pygls")
    if command == "diff" and not (folder / "a.json").exists():
        assert called(folder, ("report", *LOSS, "-o", "a.json"), "")[0] == 0
    for to, said in ((">/dev/full", FULL), (">&-", CLOSED)):
        code, _, err = called(folder, (command, *CALLS[command]), f"<input {to}")
        assert (code, err.splitlines(keepends=True)[-1]) == (2, said)
        assert "bug" not in err
        assert "Traceback" not in err


def test_unbuffered_output_that_is_full(folder):
    got = called(folder, ("--version",), ">/dev/full", PYTHONUNBUFFERED="1")
    assert got == (2, "", FULL)


@pytest.mark.parametrize("argv", [("lint", "-"), ("oom", "-"), ("oom",), ("server",)], ids=" ".join)
def test_input_that_is_closed(folder, argv):
    if argv == ("server",):
        pytest.importorskip("pygls")
    assert called(folder, argv, "<&-") == (2, "", NO_INPUT)


@pytest.mark.parametrize("to", ["2>&-", "2>/dev/full", "2>&- <&-"])
def test_messages_that_cannot_be_written_are_dropped(folder, to):
    assert called(folder, ("bogus",), to) == (2, "", "")
    code, out, _ = called(folder, ("rules",), to)
    assert (code, out[:4]) == (0, "code")


def test_no_file_takes_the_number_of_a_closed_stream(folder):
    assert called(folder, ("rules", "-o", "rules.txt"), "<&- >&- 2>&-") == (0, "", "")
    assert (folder / "rules.txt").read_text().startswith("code")


@pytest.mark.parametrize(
    ("argv", "code"), [(("--help",), 0), (("rules",), 0), (("lint",), 1)], ids=str
)
def test_nobody_reads_any_more(folder, argv, code):
    script = '{ sleep .3; "$0" -m jaxresid "$@"; echo "code $?" >&2; } | true'
    assert in_shell(folder, script, *argv)[2] == f"code {code}\n"


def test_a_working_directory_that_is_gone(folder):
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" -m jaxresid lint'
    said = "jaxresid: error: the working directory cannot be read: No such file or directory\n"
    assert in_shell(folder, script) == (2, "", said)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EMFILE])
def test_what_the_machine_lacks_is_no_bug(number, monkeypatch, capsys):
    def full(*args, **options):
        raise OSError(number, os.strerror(number), "/data/x")

    monkeypatch.setattr("jaxresid.cli.lint_files.load", full)
    assert run(["lint"]) == 2
    said = f"jaxresid: error: [Errno {number}] {os.strerror(number)}: '/data/x'\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("name", ["x" * 300, "/" + "/".join(["y" * 200] * 30), "~nobody-here/z"])
def test_a_cache_that_cannot_be_had(folder, name):
    code, _, err = called(folder, ("rules",), "", JAXRESID_CACHE_DIR=name)
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        ("9" * 21, "'999999999999999999999'; messages have from 1 to 268435456 bytes"),
        ("9" * 6000, f"'{'9' * 40}…'; messages have from 1 to 268435456 bytes"),
        ("4000000000", "'4000000000'; messages have from 1 to 268435456 bytes"),
        ("0", "'0'; messages have from 1 to 268435456 bytes"),
        ("-5", "'-5'"),
        ("x", "'x'"),
    ],
)
def test_a_length_that_no_message_has(folder, length, reason):
    pytest.importorskip("pygls")
    script = f"printf 'Content-Length: {length}\\r\\n\\r\\n{{}}' | \"$0\" -m jaxresid server"
    said = f"jaxresid: error: standard input has a Content-Length of {reason}\n"
    assert in_shell(folder, script) == (2, "", said)
