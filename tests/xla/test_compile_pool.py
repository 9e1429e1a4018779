"""Many compiles: in which order they come, where they run, and that nothing is lost or left."""

import contextlib
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)

import psutil
import pytest
from fake_compilers import job

from jaxresid.base.progress import Done
from jaxresid.xla.job import Job, LoweredModule
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes import pool
from jaxresid.xla.processes.cache import CompileCache
from tests.where import TESTS
from tests.xla.test_compile_process import is_gone, read_pid


def run(jobs, name="measures", **options):
    return pool.compile_jobs(jobs, compiler=f"fake_compilers:{name}", **options)


def sizes(found):
    return {index: compilation.stats.get("temp_nbytes") for index, compilation in found.items()}


def jobs(n, label=""):
    return [job(b"x" * (i + 1), label) for i in range(n)]


def compilers():
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            found += [process] if "jaxresid.xla.processes.process" in str(process.cmdline()) else []
    return found


@pytest.mark.integration
def test_an_interrupt_that_python_drops_ends_it(tmp_path):
    """As in a callback of the garbage collector, of which JAX has one."""

    def callback(phase, info):
        gc.callbacks.remove(callback)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    def made():
        yield job(label=tmp_path / "pid", timeout_s=10)
        gc.callbacks.append(callback)
        gc.collect()
        time.sleep(5)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(run(made(), "hangs", workers=2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not compilers()


@pytest.mark.integration
def test_each_has_its_index():
    found = dict(run(jobs(5), workers=3))
    assert sizes(found) == {i: i + 1 for i in range(5)}


def test_nothing_to_do():
    assert not list(run([]))


@pytest.mark.integration
def test_they_come_as_they_are_done(tmp_path):
    slow = job(b"x" * 2000, tmp_path / "pid", timeout_s=3)
    order = [(i, found.error) for i, found in run([slow, job()], "hangs_if_big", workers=2)]
    assert order == [(1, None), (0, "took longer than 3 s")]


def test_equal_jobs_are_compiled_once(tmp_path):
    compiled = tmp_path / "lines"
    same = [job(b"a", compiled), job(b"bb", compiled), job(b"a", compiled, timeout_s=60)]
    found = dict(run([*same, *same], "counts", workers=2))
    assert sizes(found) == {0: 1, 1: 2, 2: 1, 3: 1, 4: 2, 5: 1}
    assert sorted(compiled.read_text().split()) == ["1", "2"]


@pytest.mark.integration
def test_a_job_that_equals_one_that_is_done_is_not_compiled(tmp_path):
    compiled = tmp_path / "lines"
    a, b, c = jobs(3, compiled)
    # One compiles and one waits, so that the last is asked for when the first has ended.
    found = dict(run([a, b, c, a], "counts", workers=1))
    assert sizes(found) == {0: 1, 1: 2, 2: 3, 3: 1}
    assert sorted(compiled.read_text().split()) == ["1", "2", "3"]


@pytest.mark.integration
def test_what_is_known_is_not_compiled(tmp_path):
    lines, cache = tmp_path / "lines", CompileCache(tmp_path / "cache")
    first = dict(run(jobs(2, lines), "counts", cache=cache))
    again = dict(run(jobs(3, lines), "counts", cache=cache))
    assert sorted(lines.read_text().split()) == ["1", "2", "3"]
    assert [found.cached for found in first.values()] == [False, False]
    assert {i: found.cached for i, found in again.items()} == {0: True, 1: True, 2: False}
    assert sizes(again) == {0: 1, 1: 2, 2: 3}


@pytest.mark.integration
def test_a_cache_that_fails_loses_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = CompileCache(tmp_path / "file")
    assert sizes(dict(run(jobs(2), cache=cache))) == {0: 1, 1: 2}
    assert len(cache.warnings) == 1


@pytest.mark.integration
def test_what_fails_fails_alone(tmp_path):
    cache = CompileCache(tmp_path / "cache")
    big = job(b"x" * 2000, tmp_path / "pid", timeout_s=1)
    found = dict(run([big, job(b"x")], "hangs_if_big", workers=1, cache=cache))
    assert found[0].error == "took longer than 1 s"
    assert found[0].transient
    assert sizes(found) == {0: None, 1: 1}
    assert cache.get(big) is None
    assert cache.get(job(b"x")) is not None


@pytest.mark.integration
def test_jobs_are_made_while_others_compile():
    made = []

    def making():
        for i, one in enumerate(jobs(9)):
            made.append(i)
            yield one

    with contextlib.closing(run(making(), workers=2)) as found:
        next(found)
        # Two compile, one waits, and one took the place of what is here.
        assert len(made) <= 4
        assert len(list(found)) == 8


def test_jobs_that_cannot_be_made_end_the_others(tmp_path):
    pid = tmp_path / "pid"

    def making():
        yield job(label=pid)
        read_pid(pid)
        raise RuntimeError("no such batch")

    with pytest.raises(RuntimeError, match="no such batch"):
        list(run(making(), "hangs", workers=2))
    assert is_gone(read_pid(pid), timeout_s=0)


@pytest.mark.integration
def test_progress():
    said = []
    list(run([job(b"a", "dots"), job(b"b", "none")], "naps", workers=2, progress=said.append))
    assert said[0] == "compiling up to 2 programs"
    assert re.fullmatch("1 to compile, 0 of 2 done, 0 s|compiling dots, 0 of 2 done, 0 s", said[1])
    both = r"compiling (dots|none) and 1 more, 0 of 2 done, 1 s"
    assert any(re.fullmatch(both, line) for line in said)
    # Each that has ended is said once, as a text that stays.
    ended = [line for line in said if isinstance(line, Done)]
    assert len(ended) == 2
    for line, n_done in zip(ended, (1, 2), strict=True):
        assert re.fullmatch(rf"compiled (dots|none), {n_done} of 2 done, [12] s", line)


def test_progress_of_what_fails_and_of_what_is_known(tmp_path):
    said = []
    list(run([job(b"a", "dots")], "raises", progress=said.append))
    assert re.fullmatch(r"could not compile dots, 1 of 1 done, \d+ s", said[-1])
    assert isinstance(said[-1], Done)
    cache = CompileCache(tmp_path)
    list(run([job(b"a", "dots")], "measures", cache=cache))
    said.clear()
    list(run([job(b"a", "dots")], "measures", cache=cache, progress=said.append))
    assert said == []


@pytest.mark.integration
def test_progress_of_who_knows_how_many():
    said = []
    list(run((job(code) for code in (b"a", b"b")), "naps", workers=1, progress=said.append))
    assert "compiling cpu, 0 done, 1 s" in said
    assert said[-2].startswith("compiling cpu, 1 done, ")
    assert said[-1].startswith("compiled cpu, 2 done, ")


@pytest.mark.integration
def test_leaving_early_leaves_nothing(tmp_path):
    pids = [tmp_path / "a", tmp_path / "b"]
    some = [job(), job(b"x" * 2000, pids[0]), job(b"y" * 2000, pids[1])]
    with contextlib.closing(run(some, "hangs_if_big", workers=3)) as found:
        assert next(found)[0] == 0
        started = [read_pid(pid) for pid in pids]
        assert all(psutil.pid_exists(pid) for pid in started)
    assert all(is_gone(pid, timeout_s=0) for pid in started)
    assert not compilers()


def test_an_interrupt_while_it_waits_leaves_nothing(tmp_path):
    pid = tmp_path / "pid"

    def interrupted(_):
        if pid.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run([job(label=pid)], "hangs", progress=interrupted))
    assert is_gone(read_pid(pid), timeout_s=0)


INTERRUPTED = f"""
import signal, sys, time
# Whoever starts the tests in the background may have told them to ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]
from fake_compilers import job
from jaxresid.xla.processes.pool import compile_jobs
jobs = [job(2000 * name.encode(), name) for name in sys.argv[2:]]
if sys.argv[1] == "body":
    jobs = [job(), *jobs]
kept = compile_jobs(jobs, workers=2, compiler="fake_compilers:hangs_if_big")
for found in kept:
    time.sleep(600)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "where"),
    [
        (signal.SIGINT, "iterator"),
        (signal.SIGINT, "body"),
        (signal.SIGTERM, "iterator"),
        (signal.SIGKILL, "iterator"),
    ],
)
def test_no_child_is_left(number, where, tmp_path):
    """Nor does the process wait for its children, where nobody closes the iterator: it is the body
    of the loop over it that is interrupted."""
    pids = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    parent = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, where, *map(str, pids)], stderr=subprocess.PIPE
    )
    try:
        started = [read_pid(pid) for pid in pids[:2]]
        assert {p.pid for p in psutil.Process(parent.pid).children()} == set(started)
        parent.send_signal(number)
        _, said = parent.communicate(timeout=30)
        assert parent.returncode == -number
        assert said == b"" or said.count(b"Traceback") == 1
        assert all(is_gone(pid) for pid in started)
        assert not pids[2].exists()
    finally:
        parent.kill()


@pytest.mark.integration
def test_in_threads_of_someone_else(tmp_path):
    pid = tmp_path / "pid"
    some = [job(), job(b"x" * 2000, pid)]
    with ThreadPoolExecutor(2) as executor:
        with contextlib.closing(run(some, "hangs_if_big", executor=executor)) as found:
            next(found)
            child = read_pid(pid)
        assert is_gone(child, timeout_s=0)
        assert sizes(dict(run(jobs(3), executor=executor))) == {0: 1, 1: 2, 2: 3}


@pytest.mark.integration
def test_a_process_pool_that_loses_a_worker(tmp_path):
    pid = tmp_path / "pid"
    some = [*jobs(2, pid), job(b"x" * 2000, pid), *(job(b"x" * n, pid) for n in (3, 4, 5))]
    killed = threading.Thread(target=lambda: kill_the_parent_of(read_pid(pid)), daemon=True)
    killed.start()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        found = dict(run(some, "hangs_once", executor=executor))
    killed.join()
    assert sizes(found) == {0: 1, 1: 2, 2: 2000, 3: 3, 4: 4, 5: 5}
    notes = {note for compilation in found.values() for note in compilation.notes[3:]}
    (note,) = notes
    assert note.startswith("compiled on this machine, as the executor failed (BrokenProcessPool: ")
    assert is_gone(int(pid.read_text()))


def kill_the_parent_of(pid):
    parent = psutil.Process(pid).ppid()
    # Where the pool was lost before, the parent is this process, and all of its tests with it.
    os.kill(pid if parent == os.getpid() else parent, signal.SIGKILL)


class Silent(ThreadPoolExecutor):
    """Does not tell what it has begun, as Dask's."""

    def submit(self, *args, **kwargs):
        future = super().submit(*args, **kwargs)
        future.running = lambda: False
        return future


@pytest.mark.integration
def test_progress_of_an_executor_that_does_not_tell():
    said = []
    some = [job(b"a"), job(b"b")]
    with Silent(2) as executor:
        list(run(some, "naps", executor=executor, progress=said.append))
    assert "2 to compile, 0 of 2 done, 1 s" in said


class Losing(Executor):
    """Its jobs of a size that is given are lost, in its way."""

    def __init__(self, how):
        self.how = how

    def submit(self, fn, *args, **kwargs):
        future = Future()
        size = len(args[0].module.code)
        if size == 2 and self.how == "cancels":
            future.cancel()
            future.set_running_or_notify_cancel()
        elif size == 2 and self.how == "refuses":
            raise TypeError("cannot pickle it")
        elif size == 2:
            future.set_exception(self.how)
        else:
            future.set_result(fn(*args, **kwargs))
        return future


class KilledWorker(Exception):
    pass


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("cancels", "cancelled by the executor"),
        ("refuses", "lost by the executor: TypeError: cannot pickle it"),
        (KilledWorker("4 died\nof it"), "lost by the executor: KilledWorker: 4 died of it"),
        (KeyboardInterrupt(), "lost by the executor: KeyboardInterrupt"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value)[:9],
)
def test_what_an_executor_loses_is_a_result(how, error):
    found = dict(run(jobs(3), executor=Losing(how)))
    assert sizes(found) == {0: 1, 1: None, 2: 3}
    assert (found[1].error, found[1].transient) == (error, True)


@pytest.mark.integration
def test_an_executor_that_was_shut_down():
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    found = dict(run(jobs(3), executor=executor))
    assert sizes(found) == {0: 1, 1: 2, 2: 3}
    note = found[0].notes[-1]
    assert note.startswith("compiled on this machine, as the executor failed (RuntimeError: cannot")


class Breaking(Losing):
    """Takes two jobs, loses them with itself, and takes no more."""

    taken = 0

    def submit(self, fn, *args, **kwargs):
        self.taken += 1
        if self.taken > 2:
            raise BrokenExecutor("gone")
        future = Future()
        future.set_exception(BrokenExecutor("gone"))
        return future


@pytest.mark.integration
def test_an_executor_that_breaks():
    executor = Breaking(None)
    found = dict(run(jobs(4), executor=executor))
    assert sizes(found) == {0: 1, 1: 2, 2: 3, 3: 4}
    notes = [c.notes[-1] for c in found.values() if c.notes[3:]]
    assert "compiled on this machine, as the executor failed (BrokenExecutor: gone)" in notes
    assert executor.taken <= 3


@pytest.mark.integration
def test_what_another_machine_says_of_itself_is_not_kept(tmp_path):
    """Nor asked of the cache: the memory of this machine is not that of the other."""
    cache, remote = CompileCache(tmp_path), Losing(None)
    tpu = Job(LoweredModule(b"x", "tpu"), parse_place("tpu:v5e:2x2"))
    for _ in range(2):
        found = dict(run([job(b"x"), tpu], executor=remote, cache=cache))
    assert {i: compilation.cached for i, compilation in found.items()} == {0: False, 1: True}
    assert cache.get(job(b"x")) is None


@pytest.mark.integration
def test_no_more_than_that_at_once(tmp_path):
    most = []

    def watch():
        while not done.is_set():
            most.append(len(compilers()))
            time.sleep(0.01)

    done = threading.Event()
    watching = threading.Thread(target=watch)
    watching.start()
    list(run(jobs(6), workers=2))
    done.set()
    watching.join()
    assert max(most) == 2


def test_workers_by_default(monkeypatch):
    for cores, workers in ((1, 1), (2, 2), (64, 4), (None, 1)):
        monkeypatch.setattr(pool.os, "cpu_count", lambda n=cores: n)
        assert pool.default_workers() == workers
