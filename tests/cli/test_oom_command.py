"""`jaxresid oom` as a command."""

import io
import json
import re
import sys

import pytest

from jaxresid.cli.main import run
from tests import where

LOGS = where.DATA / "logs"


def test_a_file(capsys):
    assert run(["oom", str(LOGS / "easydel-166.txt")]) == 0
    assert capsys.readouterr().out.startswith("too large, mostly temporaries")


@pytest.mark.parametrize("args", [[], ["-"]])
def test_stdin(monkeypatch, capsys, args):
    stdin = io.TextIOWrapper(io.BytesIO((LOGS / "gemma-85.txt").read_bytes() + b"\xff\xfe"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run(["oom", *args]) == 0
    assert "the memory was already taken" in capsys.readouterr().out


def test_a_terminal_is_no_log(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert run(["oom"]) == 2
    assert "give a log: jaxresid oom train.log" in capsys.readouterr().err


def test_an_unknown_log_is_told_by_the_exit_code(tmp_path, capsys):
    (tmp_path / "log").write_text("all is well\n")
    assert run(["oom", str(tmp_path / "log")]) == 1
    assert capsys.readouterr().out.startswith("unknown")


def test_json(tmp_path):
    file = tmp_path / "oom.json"
    assert run(["oom", str(LOGS / "flowpm-27.txt"), "-o", str(file)]) == 0
    assert json.loads(file.read_text())["cause"] == "padding"


@pytest.mark.parametrize("name", ["no.log", "/dev/zero"])
def test_what_is_no_log(name, capsys):
    assert run(["oom", name]) == 2
    assert capsys.readouterr().err.startswith("jaxresid: error: ")


def test_the_place_of_the_command_line_is_in_the_commands(capsys):
    assert run(["oom", str(LOGS / "easydel-166.txt"), "--on", "tpu:v4"]) == 0
    assert "jaxresid plan TARGET --on tpu:v4 --budget 30.75GiB" in capsys.readouterr().out


def unbroken(text):
    """A text with each command in one line."""
    return re.sub(r" \\\n +", " ", text)


def test_a_target_beside_a_dump(capsys):
    dumps = where.DATA / "dumps"
    assert run(["oom", str(dumps / "tpu"), f"{dumps / 'model.py'}:loss"]) == 0
    out = unbroken(capsys.readouterr().out)
    assert "residual cos" in out
    assert f"jaxresid plan {dumps / 'model.py'}:loss --on tpu:v5e --budget 15.75GiB" in out


def test_commands_have_the_inputs_that_were_typed(capsys):
    dumps = where.DATA / "dumps"
    specs = ["--arg", "f32[2,4,4]", "--arg", "f32[8,4]"]
    assert run(["oom", str(dumps / "tpu"), f"{dumps / 'model.py'}:loss", *specs]) == 0
    typed = "model.py:loss --arg 'f32[2,4,4]' --arg 'f32[8,4]' --on tpu:v5e --budget"
    assert typed in unbroken(capsys.readouterr().out)
