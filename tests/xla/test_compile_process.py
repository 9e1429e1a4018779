"""One compile in a process of its own: whatever becomes of it is a value, and nothing is left."""

import io
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fake_compilers
import jax
import psutil
import pytest
from fake_compilers import CHECK, job

from jaxresid.xla.job import Job, LoweredModule
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.child import Child, DiedError, fatal_line
from jaxresid.xla.processes.process import execute
from tests.where import TESTS


def run(name, a_job=None, **options):
    return execute(a_job or job(), compiler=f"fake_compilers:{name}", **options)


def read_pid(file, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not file.exists():
        assert time.monotonic() < deadline, f"nobody wrote {file.name}"
        time.sleep(0.02)
    return int(file.read_text())


def is_gone(pid, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


def in_thread(function):
    """What gives the function's result when it is called."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()

    def result():
        thread.join(30)
        return results[0]

    return result


def test_what_the_compiler_says_comes_back_and_what_it_prints_does_not(capfd):
    found = run("measures", job(b"x" * 100_000))
    assert found.stats == {"temp_nbytes": 100_000}
    assert (found.error, found.seconds) == (None, 0.5)
    assert capfd.readouterr() == ("", "")


@pytest.mark.integration
def test_what_a_killed_compiler_dumped_is_gone(tmp_path):
    where = tmp_path / "where"
    found = run("dumps_and_hangs", job(label=where, timeout_s=2))
    assert found.error == "took longer than 2 s"
    assert where.read_text()
    assert not Path(where.read_text()).exists()


@pytest.mark.parametrize(
    ("on", "set_here", "platforms", "devices"),
    [
        ("cpu", "cpu", "cpu", "8"),
        ("tpu:v5e:2x4", None, "cpu", "None"),
        ("tpu:v5e:2x4", "cuda", "cpu", "None"),
        ("gpu", "cpu", "None", "None"),  # it was set so that tracing leaves the GPU alone
        ("gpu", "cuda,cpu", "cuda,cpu", "None"),
    ],
)
def test_the_child_sees_the_devices_it_compiles_for(on, set_here, platforms, devices, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    if set_here is None:
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    else:
        monkeypatch.setenv("JAX_PLATFORMS", set_here)
    found = run("measures", Job(LoweredModule(b"", "cpu", 8), parse_place(on)))
    assert found.notes == (
        f"JAX_PLATFORMS={platforms}",
        f"JAX_NUM_CPU_DEVICES={devices}",
        "TPU_SKIP_MDS_QUERY=1",
    )


def test_a_worker_that_is_killed(tmp_path):
    pid = tmp_path / "pid"
    result = in_thread(lambda: run("hangs", job(label=pid)))
    os.kill(read_pid(pid), signal.SIGKILL)
    found = result()
    assert (found.error, found.transient) == ("killed (out of memory?)", True)


@pytest.mark.integration
def test_an_interrupt_that_reaches_the_child(tmp_path):
    pid = tmp_path / "pid"
    result = in_thread(lambda: run("hangs", job(label=pid, timeout_s=1.5)))
    os.kill(read_pid(pid), signal.SIGINT)
    assert result().error == "took longer than 1.5 s"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_is_the_first_to_go_and_leaves_no_core_dump():
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        assert run("looks_around").notes == ("1000", "0")
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def test_a_compiler_that_aborts():
    found = run("aborts")
    assert found.error == f"SIGABRT: {CHECK}"
    assert not found.transient


@pytest.mark.parametrize(
    ("name", "error", "transient"),
    [
        ("crashes", "SIGSEGV", False),
        (
            "leaves",
            "its process exited with code 3: ERROR: Unknown command line flag 'foo'.",
            False,
        ),
        ("exits", "SystemExit: no licence", False),
        ("raises", "ValueError: no such layout as {1,0}", False),
        ("gives_a_number", "fake_compilers:gives_a_number returned int, not a Compilation", False),
        ("gives_what_cannot_be_sent", "TypeError: cannot pickle 'mappingproxy' object", False),
        (
            "lacks_a_package",
            f"cannot compile with {sys.executable}:"
            " ModuleNotFoundError: No module named 'no_such_package'",
            True,
        ),
    ],
)
def test_what_else_becomes_of_a_compiler(name, error, transient):
    found = run(name)
    assert (found.error, found.transient) == (error, transient)
    assert found.stats == {}


def test_a_compiler_that_cannot_be_imported():
    found = execute(job(), compiler="no_such_package:compilation")
    assert "No module named 'no_such_package'" in found.error
    assert sys.executable in found.error
    assert found.transient
    assert "\n" not in found.error


@pytest.mark.integration
def test_a_time_limit(tmp_path):
    pid = tmp_path / "pid"
    found = run("hangs_with_a_child", job(label=pid, timeout_s=2.0))
    assert (found.error, found.transient) == ("took longer than 2 s", True)
    assert 2 <= found.seconds < 10
    assert is_gone(read_pid(pid)), "what the compiler started is left"


@pytest.mark.integration
def test_a_memory_limit(tmp_path):
    pid = tmp_path / "pid"
    found = run("grows", job(label=pid, memory_nbytes=256 << 20, timeout_s=60))
    assert found.transient
    assert found.error.endswith(" of memory, over its limit of 256.00 MiB")
    taken = float(found.error.split()[1])
    assert 256 < taken < 640
    assert is_gone(read_pid(pid))


def test_a_memory_limit_needs_psutil(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert run("measures").error is None
    found = run("measures", job(memory_nbytes=1 << 30))
    assert found.error == "a memory limit needs psutil: pip install psutil"


def test_a_compile_that_is_given_up(tmp_path):
    stop, pid = threading.Event(), tmp_path / "pid"
    result = in_thread(lambda: run("hangs", job(label=pid), stop=stop))
    child = read_pid(pid)
    assert psutil.pid_exists(child)
    stop.set()
    assert result().error == "interrupted"
    assert is_gone(child, timeout_s=0)


def test_what_cannot_be_sent():
    found = execute(
        Job(LoweredModule(lambda: 0, "cpu"), parse_place("cpu")), compiler="fake_compilers:measures"
    )
    assert found.error.startswith("the program cannot be sent to a process: ")
    assert "lambda" in found.error


def test_no_process_can_be_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    found = run("measures")
    assert found.error == "the compiler's process cannot be started: No such file or directory"
    assert found.transient


def test_a_child_that_hangs_before_it_reads():
    def watch():
        if time.monotonic() > deadline:
            raise TimeoutError

    deadline = time.monotonic() + 0.3
    child = Child("import time; time.sleep(600)", {})
    try:
        with pytest.raises(TimeoutError):
            child.ask(b"x" * (8 << 20), watch)
    finally:
        child.close()
    assert is_gone(child.pid, timeout_s=0)


def test_a_message_that_the_child_cannot_read():
    child = Child("from jaxresid.xla.processes.child import serve; serve(str)", {})
    try:
        assert child.ask(17) == "17"
        # sys.path was handed on when the child began.
        sys.modules["born_later"] = module = type(sys)("born_later")
        module.Later = type("Later", (), {"__module__": "born_later"})
        with pytest.raises(DiedError, match="No module named 'born_later'"):
            child.ask(module.Later())
    finally:
        del sys.modules["born_later"]
        child.close()


PARENT = f"""
import sys
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from fake_compilers import job
from jaxresid.xla.processes.process import execute
execute(job(label=sys.argv[1]), compiler="fake_compilers:hangs")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_the_child_leaves_with_its_parent(number, tmp_path):
    pid = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(pid)])
    try:
        child = read_pid(pid)
        parent.send_signal(number)
        assert parent.wait(10) == -number
        assert is_gone(child)
    finally:
        parent.kill()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", ""),
        (fake_compilers.ABORTED, CHECK),
        # libtpu 0.0.52 with SIGSEGV, before and after: nothing of it is a reason.
        (
            "Failed to find host bounds for accelerator type: WARNING: could not determine TPU\n"
            "E0000 00:00:1795295044.645853   27973 common_lib.cc:906] INVALID_ARGUMENT: Error\n"
            "=== Source Location Trace: === \n"
            "learning/45eac/tfrc/runtime/libtpu_init_utils.cc:370\n"
            "https://symbolize.stripped_domain/r/?trace=7f7c92385ad8,7f7c9225a04f&map= \n"
            "*** SIGSEGV (@(nil)), si_code=1 received by PID 27973 on cpu 1; stack trace: ***\n"
            "PC: @     0x7f7c92385ad8  (unknown)  (unknown)\n"
            "    @     0x7f7c73358493       1888  FailureSignalHandler()\n"
            "E1121 21:04:04.739994   27973 process_state.cc:796] RAW: Raising signal 11\n",
            "",
        ),
        # A banner of libtpu 0.0.52 is no crash.
        (
            "E1123 00:12:40.119233    2149 slow_operation_alarm.cc:73]\n"
            "********************************\n"
            "[Compiling module jit_loss] Very slow compile? If you want to file a bug, run with\n"
            "********************************\n"
            "terminate called after throwing an instance of 'std::bad_alloc'\n"
            "  what():  std::bad_alloc\n",
            "std::bad_alloc",
        ),
        (
            "=== Source Location Trace: === \n"
            "ERROR: Unknown command line flag 'foo'. Did you mean: gid, uid, v ?\n",
            "ERROR: Unknown command line flag 'foo'. Did you mean: gid, uid, v ?",
        ),
        (
            "F1121 21:03:50.346450   27810 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS:"
            " --xla_foo=1\n",
            "parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_foo=1",
        ),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'\n"
            "  what():  std::bad_alloc\n",
            "std::bad_alloc",
        ),
        (
            "Traceback (most recent call last):\n"
            '  File "<string>", line 2, in <module>\n'
            "ModuleNotFoundError: No module named 'jaxresid'\n",
            "ModuleNotFoundError: No module named 'jaxresid'",
        ),
        (f"F {'x' * 400}", "F " + "x" * 297 + "…"),
    ],
)
def test_last_words(log, words):
    assert fatal_line(log) == words


@pytest.mark.integration
def test_the_compiler_itself():
    matrix = jax.ShapeDtypeStruct((256, 256), "float32")
    lowered = jax.jit(lambda x: x @ x).trace(matrix).lower(lowering_platforms=("cpu",))
    code = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(code)
    found = execute(
        Job(
            LoweredModule(code.getvalue(), parse_place("cpu")),
            parse_place("cpu"),
            memory_nbytes=8 << 30,
        )
    )
    assert found.error is None
    assert found.stats["argument_nbytes"] == found.stats["output_nbytes"] == 256 * 256 * 4
    assert found.seconds > 0
    assert found.compiler.startswith("jaxlib ")
