"""`jaxresid oom` as a command."""

import io
import json
import os
import re
import subprocess
import sys

import pytest
from printed_commands import answer, commands_in, run_printed

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
    assert "the dump says that it needs 23.88 GiB" in out
    assert "far more" not in out
    assert f"jaxresid plan {dumps / 'model.py'}:loss --on tpu:v5e --budget 15.75GiB" in out


LOG = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99999999999999 bytes.\n"
MODEL = """
import jax, jax.numpy as jnp


def layer(x, w):
    return jnp.tanh(x @ w), None


def loss(x, w=jnp.ones((4, 16, 16))):
    return jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2)


def {inputs}({parameters}):
    return (jax.ShapeDtypeStruct(({size}, 16), jnp.float32),)
"""


def printed(folder, *argv, inputs="none", parameters="", size=64):
    """The commands of jaxresid that are printed for a model, each of which was run."""
    (folder / "train.log").write_text(LOG)
    file = f"m{abs(hash((inputs, parameters, size)))}.py"
    (folder / file).write_text(MODEL.format(inputs=inputs, parameters=parameters, size=size))
    commands = commands_in(answer("oom", "train.log", f"{file}:loss", *argv).out)
    for command in commands:
        if "--mesh" in command:  # whose devices a JAX that is loaded does not get any more
            run_ = (sys.executable, "-m", "jaxresid", *command)
            env = {**os.environ, "PYTHONPATH": str(where.ROOT)}
            assert subprocess.run(run_, env=env, capture_output=True, check=False).returncode < 2
        else:
            run_printed(*command, depth=0)
    return [" ".join(command).replace(f"{file}:", "m.py:") for command in commands]


@pytest.mark.integration
def test_commands_run_and_do_something_with_typed_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert printed(tmp_path, "--arg", "f32[64,16]", "--on", "gpu:h100") == [
        "plan m.py:loss --arg f32[64,16] --on gpu:h100",
        "plan m.py:loss --arg f32[batch,16] --batch 8..64 --on gpu:h100",
        "plan m.py:loss --arg f32[64,16]@data --mesh data=8 --on gpu:h100",
    ]


@pytest.mark.integration
def test_commands_run_and_do_something_with_inputs_of_a_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sized = {"inputs": "loss_inputs", "parameters": "batch=32", "size": "batch"}
    assert printed(tmp_path, "--on", "gpu:h100", **sized) == [
        "plan m.py:loss --on gpu:h100",
        "plan m.py:loss --batch 4..32 --on gpu:h100",
    ]
    assert printed(tmp_path, inputs="loss_inputs", size=63) == ["plan m.py:loss --on gpu:h100"]


def test_inputs_that_no_batch_and_no_mesh_fits(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "m.py").write_text(MODEL.format(inputs="none", parameters="", size=1))
    said = answer("oom", "train.log", "m.py:loss", "--arg", "f32[9,16]", "--on", "cpu")
    assert commands_in(said.out) == [
        ("compile", "m.py:loss", "--arg", "f32[9,16]", "--on", "cpu"),
    ]
    said = answer("oom", "train.log", "m.py:loss", "--arg", "f32[9,16]", "--on", "gpu:h100")
    model = ("m.py:loss", "--arg")
    assert commands_in(said.out) == [
        ("plan", *model, "f32[9,16]", "--on", "gpu:h100"),
        ("plan", *model, "f32[batch,16]", "--batch", "1..9", "--on", "gpu:h100"),
    ]
    assert "for gpu:h100: given with --on" in said.out
    assert "far more than the estimate: it was another function" in said.out


@pytest.mark.parametrize(
    ("typed", "commands"),
    [
        (
            "--arg f32[batch,16] --batch 32",
            [
                "--arg f32[batch,16] --batch 32",
                "--arg f32[batch,16] --batch 4..32",
                "--arg f32[batch,16]@data --batch 32 --mesh data=8",
            ],
        ),
        (
            "--arg f32[64,16]@data --mesh data=1",
            ["--arg f32[64,16]@data --mesh data=1"],
        ),
        (
            "--kwarg x=f32[6,16]",
            [
                "--kwarg x=f32[6,16]",
                "--kwarg x=f32[batch,16] --batch 1..6",
                "--kwarg x=f32[6,16]@data --mesh data=2",
            ],
        ),
    ],
)
def test_commands_have_what_was_typed_and_one_change(typed, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "m.py").write_text(MODEL.format(inputs="none", parameters="", size=1))
    out = answer("oom", "train.log", "m.py:loss", *typed.split(), "--on", "gpu:h100").out
    said = [" ".join(command) for command in commands_in(out)]
    assert said == [f"plan m.py:loss {each} --on gpu:h100" for each in commands]


def test_the_place_of_the_log_is_the_one_that_is_traced_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(MODEL.format(inputs="none", parameters="", size=1))
    for text, said in (
        ("Used 99.00G of 31.25G hbm.", "for tpu:v6e: as the log says"),
        ("Used 99.00G of 12.34G hbm.", "for tpu:v5e: the log does not say of which one it is"),
    ):
        log = f"Ran out of memory in memory space hbm. {text}"
        (tmp_path / "train.log").write_text(log)
        assert said in answer("oom", "train.log", "m.py:loss", "--arg", "f32[4,16]").out


def test_commands_have_the_inputs_that_were_typed(capsys):
    dumps = where.DATA / "dumps"
    specs = ["--arg", "f32[2,4,4]", "--arg", "f32[8,4]"]
    assert run(["oom", str(dumps / "tpu"), f"{dumps / 'model.py'}:loss", *specs]) == 0
    typed = "model.py:loss --arg 'f32[2,4,4]' --arg 'f32[8,4]' --on tpu:v5e --budget"
    # Their first dimensions differ: none is known to be that of a batch.
    out = unbroken(capsys.readouterr().out)
    assert typed in out
    assert "--batch" not in out and "--mesh" not in out
