"""Libraries' logs: which lines they are, where they go, and what still comes to stderr."""

import importlib
import logging
import os
import subprocess
import sys

import pytest

from jaxresid.base.library_logs import keeping_logs, logs_kept
from jaxresid.jax_compat import version
from tests.stages import without_stages
from tests.where import ROOT

LOGGED = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    "I0000 00:00:1795802407.538381    7546 cudart_stub.cc:31] Could not find cuda drivers\n"
    "Failed to find host bounds for accelerator type: WARNING: could not determine TPU type\n"
    "WARNING: Logging before InitGoogle() is written to STDERR\n"
    "E0000 00:00:1795802408.359581    7546 common_lib.cc:906] INVALID_ARGUMENT: no such host\n"
    "=== Source Location Trace: === \n"
    "learning/45eac/tfrc/runtime/libtpu_init_utils.cc:370\n"
    "W1127 18:35:33.654451   18749 pjrt_client.cc:579] PjRt\n"
)
# Of Python's, of JAX's own logger and of a user's code.
SHOWN = (
    "WARNING:2026-11-27 18:00:00,000:jax._src.xla_bridge:864: An NVIDIA GPU may be present\n"
    "Traceback (most recent call last):\n"
    '  File "a.cc", line 31, in b\n'
    "WARNING: low learning rate\n"
    "Info: I0 = 3\n"
    "=== epoch 1 ===\n"
    "caf\xe9 without an end"
)


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)


def write(*texts):
    for text in texts:
        os.write(2, text.encode())


def test_log_lines_go_to_the_logger_and_the_rest_to_stderr(capfd, caplog):
    lines = [text.splitlines(keepends=True) for text in (LOGGED, SHOWN)]
    mixed = [line for pair in zip(*lines, strict=False) for line in pair]
    with caplog.at_level(logging.DEBUG, "jaxresid"), keeping_logs():
        with logs_kept():
            write("".join(lines[0]), *mixed[1::2], "".join(lines[1][len(lines[0]) :]))
        write("after\n")
    assert capfd.readouterr().err == f"{SHOWN}after\n"
    assert [record.message for record in caplog.records] == [line.rstrip() for line in lines[0]]
    assert {(record.name, record.levelname) for record in caplog.records} == {("jaxresid", "DEBUG")}


def test_all_of_it_is_shown_where_it_ends_in_an_error(capfd):
    @logs_kept()
    def failing():
        write(LOGGED)
        raise RuntimeError("no backend")

    with keeping_logs(), pytest.raises(RuntimeError):
        failing()
    assert capfd.readouterr().err == LOGGED


def test_nothing_is_kept_unless_the_command_line_runs(capfd):
    with logs_kept():
        write(LOGGED)
    with keeping_logs():
        pass
    with logs_kept():
        write("later\n")
    assert capfd.readouterr().err == f"{LOGGED}later\n"


@pytest.mark.parametrize(("level", "is_kept"), [("0", False), ("1", True), ("", True)])
def test_who_asks_jax_for_all_of_it_gets_it(level, is_kept, monkeypatch, capfd):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    with keeping_logs(), logs_kept():
        write(LOGGED)
    assert capfd.readouterr().err == ("" if is_kept else LOGGED)


def test_a_stderr_that_is_closed_is_left_alone(monkeypatch, capfd):
    def refuse(descriptor):
        raise OSError(9, "Bad file descriptor")

    with monkeypatch.context() as patch, keeping_logs():
        patch.setattr(os, "dup", refuse)
        with logs_kept():
            write("here\n")
    assert capfd.readouterr().err == "here\n"


def test_what_backends_log_as_they_start_is_kept_once(monkeypatch, capfd):
    xla_bridge = importlib.import_module("jax._src.xla_bridge")

    def start():
        write(LOGGED, "user\n")
        return {"cpu": 1}

    monkeypatch.setattr(xla_bridge, "backends", start)
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)
    version._keep_logs_of_backends()
    assert xla_bridge.backends is start  # in Python nothing changes
    with keeping_logs():
        version._keep_logs_of_backends()
        assert xla_bridge.backends() == {"cpu": 1}
    assert xla_bridge.backends is start
    assert capfd.readouterr().err == "user\n"


NOISY = f"""
import os
os.write(2, {LOGGED!r}.encode())
def initialize():
    os.write(2, {LOGGED!r}.encode() + b"plugin\\n")
"""
USER = f"""
import os, sys
sys.stderr.write("before jax\\n")
import jax
print("imported", jax.default_backend())
os.write(2, {LOGGED!r}.encode())
def plain(x):
    return jax.numpy.sin(x).sum()
"""


@pytest.mark.integration
def test_a_plugin_is_quiet_and_the_users_code_is_not(tmp_path):
    (tmp_path / "jax_plugins" / "noisy").mkdir(parents=True)
    (tmp_path / "jax_plugins" / "noisy" / "__init__.py").write_text(NOISY)
    (tmp_path / "mine.py").write_text(USER)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    environment.pop("JAX_PLATFORMS", None)
    done = subprocess.run(
        [sys.executable, "-m", "jaxresid", "report", "mine:plain", "--arg", "f32[3]"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0
    assert without_stages(done.stderr) == f"before jax\nplugin\nimported cpu\n{LOGGED}"


@pytest.mark.gpu
@pytest.mark.tpu
@pytest.mark.parametrize("command", ["report", "compile --on cpu", "compare", "sweep --on cpu"])
def test_the_compilers_that_are_installed_are_quiet(command):
    name, *options = command.split()
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jaxresid",
            name,
            "fixtures/inspect/block.py:checkpointed",
            *options,
        ],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0
    assert all(line.startswith("jaxresid: ") for line in done.stderr.splitlines())
