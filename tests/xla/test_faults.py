"""Bad inputs, odd code and bad moments end in one clear line and a code."""

import os
import signal
import subprocess
import sys
import time

import pytest

from jaxresid.cli.main import run
from tests.stages import without_stages
from tests.where import TESTS

PROGRAM = """
import jax, jax.numpy as jnp

W = None

class Odd(BaseException):
    pass

class Asked:
    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")
    def __call__(self, x):
        return jnp.sum(jnp.sin(x))

def loss(x):
    return jnp.sum(jnp.sin(x))

def reading(x):
    return jnp.sum(jnp.sin(x) if W is None else jnp.sin(x * W))

def checkpointed(x):
    return jnp.sum(jax.checkpoint(lambda x: jnp.sin(x) * W)(x))

def leaking():
    global W
    W = jnp.ones(4) * 2
    return (jnp.zeros(4),)

def exiting():
    raise SystemExit(9)

def raising():
    raise Odd("said")

def ends(x):
    raise SystemExit(5)

def fails(x):
    raise Odd("said")

def plain():
    return (jnp.zeros(4),)

asked = Asked()

def holding(x, f):
    return jnp.sum(jnp.sin(x))

def holding_inputs():
    return jnp.zeros(4), Asked()
"""


@pytest.fixture(autouse=True)
def program(tmp_path, monkeypatch):
    (tmp_path / "faulty.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("faulty", None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("reading --inputs leaking", "reads values leaked from another trace (float32[4])"),
        ("checkpointed --inputs leaking", "--concrete-inputs calls it without tracing"),
        ("reading --inputs leaking --mode program", "reads values leaked from another trace"),
        ("loss --inputs exiting", "exiting() exits the program: sys.exit(9)"),
        ("loss --inputs exiting --concrete-inputs", "exiting() exits the program"),
        ("exiting --build", "exiting() exits the program"),
        ("loss --inputs raising", "raising() cannot be traced: Odd: said"),
        ("loss --inputs raising --concrete-inputs", "raising() fails: Odd: said"),
        ("ends --inputs plain", "the target exits the program while it is traced"),
        ("fails --inputs plain", "the inspected code raises Odd: said (faulty.py, line"),
    ],
)
def test_one_line(given, said, capsys):
    target, *options = given.split()
    assert run(["report", f"faulty.py:{target}", *options]) == 2
    err = without_stages(capsys.readouterr().err)
    assert said in err
    assert err.startswith("jaxresid: error: ")
    assert "internal" not in err
    assert err.count("\n") <= 2


@pytest.mark.parametrize(
    "given",
    ["asked --inputs plain", "holding", "checkpointed --inputs leaking --concrete-inputs"],
)
def test_odd_code_that_can_be_read(given, capsys):
    target, *options = given.split()
    if "--concrete-inputs" not in options and target == "holding":
        options += ["--inputs", "holding_inputs"]
    assert run(["report", f"faulty.py:{target}", *options]) == 0
    assert "\npeak about " in capsys.readouterr().out


def test_a_keyword_twice(capsys):
    argv = ["report", "faulty.py:loss", "--kwarg", "x=f32[2]", "--kwarg", "x=f32[3]"]
    assert run(argv) == 2
    assert "--kwarg gives x twice" in capsys.readouterr().err


def test_an_interrupt_comes_after_the_import(tmp_path):
    """Of a package that says when it is half loaded, and notes when it is loaded."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from jaxresid.base.interrupts import deferring_interrupts\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n"
        "    with deferring_interrupts():\n"
        "        with deferring_interrupts():\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            for _ in range(1000): pass\n"
        "        print('inner', flush=True)\n"
        "    print('outer', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('came', flush=True)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["inner", "came"]


# A shell's background jobs, and so the tests in one, start with SIGINT ignored.
INTERRUPTED = """
import os, signal, sys
from importlib.abc import MetaPathFinder

awaited = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == awaited:
            sys.meta_path.remove(self)
            print("interrupted", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from jaxresid.__main__ import main
main()
"""


@pytest.mark.integration
@pytest.mark.parametrize("module", ["jax", "jaxlib", "jax._src.core", "jax.numpy"])
def test_an_interrupt_while_jax_is_loaded(module):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, "report", "faulty.py:loss", "--arg", "f32[4]"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "interrupted\n" in done.stderr
    assert done.returncode in (130, -signal.SIGINT)
    assert "internal" not in done.stderr
    assert not done.stdout


def test_the_folder_of_a_compile_goes_with_its_parent(tmp_path):
    """Its own process sees to that, whatever ended the parent."""
    folder, started = tmp_path / "tmp", tmp_path / "pid"
    folder.mkdir()
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fake_compilers import job\n"
        "from jaxresid.xla.processes.process import execute\n"
        "execute(job(b'', sys.argv[2]), compiler='fake_compilers:hangs')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(TESTS), str(started)],
        env={**os.environ, "TMPDIR": str(folder)},
    )
    deadline = time.monotonic() + 30
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert any(folder.iterdir())
    process.terminate()
    assert process.wait() == -signal.SIGTERM
    while any(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(folder.iterdir())
