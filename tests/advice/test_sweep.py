"""`jaxresid sweep`: the product, its file, interruptions, clusters."""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import psutil
import pytest

import jaxresid
import jaxresid.advice.sweep.sweep as sweeping
from jaxresid.advice.compile.ahead_of_time import CompileSettings, places_of
from jaxresid.advice.sweep.results import Results, row_of
from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.cli.options import batches
from jaxresid.inspector.call.question import Question
from jaxresid.results import Collective, Compiled, CompilerWarning, Location, Source, SweepRow
from jaxresid.xla.processes import pool
from jaxresid.xla.processes.cluster import cluster
from tests.schemas import validate
from tests.stages import without_stages
from tests.where import TESTS

WIDTH, LAYERS = 8, 3


def loss(w, x):
    def layer(h, w):
        return jnp.tanh(h @ w), None

    h, _ = jax.lax.scan(layer, x, w)
    return (h**2).sum()


def other_loss(w, x):
    return loss(w, 2 * x)


def inputs(batch):
    struct = jax.ShapeDtypeStruct
    return struct((LAYERS, WIDTH, WIDTH), "float32"), struct((batch, WIDTH), "float32")


@pytest.fixture(autouse=True)
def no_test_finds_what_another_compiled(tmp_path, monkeypatch):
    """Sweeps use the cache, and some compilers here are not real."""
    monkeypatch.setenv("JAXRESID_CACHE_DIR", str(tmp_path / "compiled-cache"))


@pytest.fixture
def log(tmp_path, monkeypatch):
    """What was compiled, a line each, by the fake compilers."""
    file = tmp_path / "log"
    monkeypatch.setenv("SWEEP_LOG", str(file))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), str(TESTS)]))
    return file


@pytest.fixture
def compiler(monkeypatch, log):
    """Has a fake one do the compiling."""

    def use(name):
        fake = functools.partial(pool.compile_jobs, compiler=f"sweep_compilers:{name}")
        monkeypatch.setattr(sweeping, "compile_jobs", fake)

    use("quick")
    return use


def sweep(batches=(2, 4), policies=("none", "nothing_saveable"), fun=loss, **options):
    options = {"cache": False, **options}  # a fake compiler's results are its own
    return jaxresid.sweep(
        fun, batches=batches, on="cpu", policies=policies, mode="loss", **options
    )(inputs)


def lines(file):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def identity(row):
    return row["policy"], row["batch"], row["on"]


@pytest.mark.integration
def test_the_product_with_its_static_figures(compiler, tmp_path, log):
    file = tmp_path / "r.jsonl"
    policies = ("none", "dots_saveable", "nothing_saveable")
    found = sweep((4, 16), policies, results=str(file))
    assert [(r.on, r.policy, r.batch) for r in found.rows] == [
        ("cpu", policy, batch) for policy in policies for batch in (4, 16)
    ]
    for batch in (4, 16):
        static = {r.policy: r for r in jaxresid.compare(loss)(*inputs(batch)).rows}
        for row in found.rows:
            if row.batch == batch:
                same = static[row.policy]
                assert row.kept_nbytes == same.kept_nbytes
                assert row.peak_nbytes is row.compiled.estimate_nbytes is None
                assert row.recompute_flops == same.recompute_flops
                assert row.compiled.peak_nbytes == batch * 100
                assert row.compiled.fits == (batch == 4)
    assert sorted(map(identity, lines(file))) == sorted(
        (r.policy, r.batch, r.on) for r in found.rows
    )
    assert len({line["key"] for line in lines(file)}) == 6
    for line in lines(file):
        validate(line, "sweep-row")
    assert {row_of(line.encode()).key for line in file.read_text().splitlines()} == {
        r.key for r in found.rows
    }


@pytest.mark.integration
def test_the_compiler_itself():
    (row,) = sweep((4,), ("none",)).rows
    nbytes = 4 * (LAYERS * WIDTH * WIDTH + 4 * WIDTH)
    assert row.error is None
    assert row.compiled.argument_nbytes == nbytes
    assert row.compiled.output_nbytes >= nbytes + 4
    assert row.compiled.fits
    assert row.compiled.compiler.startswith("jaxlib")


@pytest.mark.slow
@pytest.mark.tpu
def test_the_compiler_of_a_tpu():
    found = jaxresid.sweep(
        loss,
        batches=(8, 1 << 27),
        on=("tpu:v5e:1x1", "tpu:v5p:2x2x1"),
        policies=("none", "nothing_saveable"),
        mode="loss",
    )(inputs)
    assert [row.error for row in found.rows] == [None] * 8
    peaks = {(r.on, r.policy, r.batch): r.compiled.peak_nbytes for r in found.rows}
    fits = {(r.on, r.policy, r.batch): r.compiled.fits for r in found.rows}
    for on in (place.name for place in found.on):
        assert fits[on, "none", 8]
        assert fits[on, "nothing_saveable", 8]
        # 2 ** 27 x 8 in float32 are 4 GiB: the argument, its gradient, and one for each layer.
        assert peaks[on, "none", 1 << 27] > 5 * (4 << 30)
        assert peaks[on, "nothing_saveable", 1 << 27] < peaks[on, "none", 1 << 27]
    assert not fits["tpu:v5e:1x1", "none", 1 << 27]


class TestResumed:
    @pytest.mark.integration
    def test_nothing_is_compiled_again(self, compiler, tmp_path, log):
        file = tmp_path / "r.jsonl"
        first = sweep(results=str(file))
        before, compiled = file.read_bytes(), log.read_text()
        again = sweep(results=str(file))
        assert file.read_bytes() == before
        assert log.read_text() == compiled
        assert all(row.resumed for row in again.rows)
        assert [replace(row, resumed=False) for row in again.rows] == list(first.rows)

    @pytest.mark.integration
    def test_what_is_new_is_added(self, compiler, tmp_path, log):
        file = tmp_path / "r.jsonl"
        sweep((2,), results=str(file))
        before = file.read_bytes()
        found = sweep((2, 4), results=str(file))
        assert file.read_bytes().startswith(before)
        assert [row.resumed for row in found.rows] == [True, False, True, False]
        assert len(lines(file)) == len(log.read_text().splitlines()) == 4

    @pytest.mark.integration
    @pytest.mark.parametrize(
        "changed",
        [{"fun": other_loss}, {"flags": {"a": "b"}}, {"at": "whole"}],
        ids=["code", "flags", "at"],
    )
    def test_something_else_is_compiled_beside_it(self, compiler, tmp_path, changed):
        file = tmp_path / "r.jsonl"
        sweep((2,), results=str(file))
        before = file.read_bytes()
        assert not any(row.resumed for row in sweep((2,), results=str(file), **changed).rows)
        assert file.read_bytes().startswith(before)
        assert len({line["key"] for line in lines(file)}) == len(lines(file)) == 4

    @pytest.mark.integration
    @pytest.mark.parametrize("kept", [1, 20, -30, -1])
    def test_a_torn_last_line(self, compiler, tmp_path, log, kept):
        file = tmp_path / "r.jsonl"
        whole = sweep(results=str(file))
        *others, last = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(others) + last[:kept])
        found = sweep(results=str(file))
        if kept == -1:  # all of it but the line break
            assert found.warnings == ()
        else:
            assert found.warnings == (f"{file}: the last line was incomplete; removed",)
        assert sum(not row.resumed for row in found.rows) == (kept != -1)
        assert file.read_bytes() == b"".join([*others, last])
        assert [r.key for r in found.rows] == [r.key for r in whole.rows]

    @pytest.mark.integration
    @pytest.mark.parametrize("kept", [1, 2, 15, 30, 100, -2])
    @pytest.mark.parametrize("is_old", [False, True], ids=["", "spaced"])
    def test_a_torn_first_line(self, compiler, tmp_path, kept, is_old):
        file = tmp_path / "r.jsonl"
        sweep((2,), ("none",), results=str(file))
        whole = file.read_bytes()
        first = json.dumps(json.loads(whole)).encode() + b"\n" if is_old else whole
        file.write_bytes(first[:kept])
        found = sweep((2,), ("none",), results=str(file))
        assert found.warnings == (f"{file}: the last line was incomplete; removed",)
        assert file.read_bytes() == whole

    @pytest.mark.integration
    def test_a_bad_line_in_the_midst(self, compiler, tmp_path, log):
        file = tmp_path / "r.jsonl"
        sweep(results=str(file))
        first, second, *others = file.read_bytes().splitlines(keepends=True)
        bad = second.replace(b'"policy"', b'"polity"')
        file.write_bytes(b"".join([first, bad, *others]))
        found = sweep(results=str(file))
        assert found.warnings == (f"{file}: line 2 cannot be read as a result; skipped",)
        assert file.read_bytes() == b"".join([first, bad, *others, second])

    @pytest.mark.integration
    def test_errors_that_may_not_come_again(self, compiler, tmp_path, log):
        file = tmp_path / "r.jsonl"
        compiler("killed_once")
        first = sweep((2,), results=str(file))
        assert [(r.error, r.transient) for r in first.rows] == [("killed", True)] * 2
        again = sweep((2,), results=str(file))
        assert [(r.error, r.resumed) for r in again.rows] == [(None, False)] * 2
        assert all(row.resumed for row in sweep((2,), results=str(file)).rows)
        assert log.read_text().count("tried") == 4
        assert [line["transient"] for line in lines(file)] == [True, True, False, False]

    @pytest.mark.integration
    def test_errors_that_would(self, compiler, tmp_path, log):
        file = tmp_path / "r.jsonl"
        compiler("refuses")
        sweep((2,), results=str(file))
        again = sweep((2,), results=str(file))
        assert [(r.error, r.resumed) for r in again.rows] == [("INVALID_ARGUMENT: no", True)] * 2
        assert log.read_text().count("tried") == len(lines(file)) == 2


class TestTheFile:
    ROW = SweepRow(
        target="m.py:f",
        policy="save_only_these_names('é')",
        batch=8,
        on="tpu:v5e:2x4",
        at="whole",
        key="0" * 32,
        peak_nbytes=7,
        recompute_fraction=0.25,
        compiled=Compiled(
            on="tpu:v5e:2x4",
            fits=False,
            collectives=(Collective("all-reduce", 3, 12),),
            notes=("on 1 of 8 devices",),
            warnings=(
                CompilerWarning(
                    "resharding",
                    3,
                    "cannot go",
                    1 << 16,
                    shape="f32[8,64,32]",
                    op_name="jit(f)/mul",
                    source=Source(Location("m.py", 6, None, "f", "x * y"), scope="trunk"),
                ),
                CompilerWarning("memory-limit", nbytes=9, limit_nbytes=7),
            ),
        ),
    )

    def test_a_line_says_what_the_row_does(self):
        validate(json.loads(self.ROW.to_json()), "sweep-row")
        assert row_of(self.ROW.to_json().encode()) == replace(self.ROW, resumed=True)

    @pytest.mark.parametrize(
        "content",
        [b"def f():\n    pass\n", b"{}\n", b'{"schema": 1}', b'{"schema": 1, "key": "a"}\n', b"x"],
    )
    def test_something_else_is_left_as_it_is(self, tmp_path, content):
        file = tmp_path / "model.py"
        file.write_bytes(content)
        with pytest.raises(JaxresidError, match="something other than the results of a sweep"):
            Results.open(str(file)).__enter__()
        assert file.read_bytes() == content

    @pytest.mark.parametrize(
        ("name", "words"),
        [("no/r.jsonl", "No such file"), (".", "Is a directory"), ("pipe", "not a regular file")],
    )
    def test_where_none_can_be(self, tmp_path, name, words):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(JaxresidError, match=words):
            Results.open(str(tmp_path / name)).__enter__()

    def test_one_sweep_at_a_time(self, tmp_path):
        file = str(tmp_path / "r.jsonl")
        with Results.open(file) as results:
            results.append(self.ROW)
            with pytest.raises(JaxresidError, match=r"another sweep is writing .*r\.jsonl; wait"):
                Results.open(file).__enter__()
        with Results.open(file) as results:
            assert list(results.rows) == [self.ROW.key]

    def test_a_full_disk(self, tmp_path, monkeypatch):
        file = tmp_path / "r.jsonl"
        write = os.write
        with Results.open(str(file)) as results:
            results.append(self.ROW)
            before = file.read_bytes()
            monkeypatch.setattr(os, "write", lambda handle, line: write(handle, line[:9]))
            with pytest.raises(JaxresidError, match=r"cannot write .*: No space left on device"):
                results.append(self.ROW)
        assert file.read_bytes() == before

    def test_a_full_disk_ends_the_sweep(self, compiler, tmp_path, monkeypatch):
        def full(results, row):
            raise JaxresidError("cannot write r.jsonl: No space left on device")

        monkeypatch.setattr(Results, "append", full)
        with pytest.raises(JaxresidError, match="No space left"):
            sweep((2,), results=str(tmp_path / "r.jsonl"))
        assert not compilers_below(os.getpid())


def compilers_below(pid):
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(pid).children(recursive=True)
        return [c for c in children if "serve" in " ".join(c.cmdline())]
    return []


class TestErrors:
    def test_a_batch_that_fails(self, compiler, tmp_path):
        def made(batch):
            w, x = inputs(batch)
            return (w, x) if batch == 4 else (w, jax.ShapeDtypeStruct((batch, 3), "float32"))

        file = tmp_path / "r.jsonl"
        found = [
            jaxresid.sweep(loss, batches=(2, 4), on="cpu", policies=["none"], results=str(file))(
                made
            )
            for _ in range(2)
        ][1]
        bad, good = found.rows
        assert bad.batch == 2
        assert "dot_general" in bad.error
        assert bad.compiled is None
        assert good.error is None
        assert len(lines(file)) == 2
        for line in lines(file):
            validate(line, "sweep-row")

    def test_all_that_fail(self, compiler, tmp_path):
        file = tmp_path / "r.jsonl"
        with pytest.raises(JaxresidError, match="loss fails to trace"):
            jaxresid.sweep(loss, batches=(2, 4), on="cpu", results=str(file))(
                lambda batch: inputs(batch)[::-1]
            )
        assert file.read_bytes() == b""

    def test_a_policy_that_fails(self, compiler):
        found = sweep((2,), ("none", "test_sweep:a_bad_policy"))
        assert [row.error is None for row in found.rows] == [True, False]
        assert "ValueError: never" in found.rows[1].error

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"policies": ["dots_savable"]}, "no policy 'dots_savable'; did you mean `dots_sav"),
            ({"policies": ["save_only_these_names('a')"]}, 'no policy "save_only_these_names'),
            ({"policies": ["test_sweep:no_such"]}, "no attribute 'no_such'"),
            ({"batches": ()}, "at least one batch size"),
            ({"policies": ()}, "at least one policy"),
        ],
    )
    def test_what_cannot_be_meant(self, compiler, options, words):
        with pytest.raises(JaxresidError, match=re.escape(words)):
            sweep(**options)

    def test_one_policy_and_each_batch_once(self, compiler):
        found = sweep((2, 2), "none")
        assert [(row.policy, row.batch) for row in found.rows] == [("none", 2)]

    @pytest.mark.parametrize("made", [jnp.ones(3), {"x": jnp.ones(3)}])
    def test_inputs_that_are_no_arguments(self, compiler, made):
        with pytest.raises(InputsError, match="positional arguments as a tuple or list"):
            jaxresid.sweep(jnp.sum, batches=(2,), on="cpu")(lambda batch: made)

    def test_no_such_place(self, compiler):
        with pytest.raises(InputsError, match="unknown TPU 'v5x'"):
            jaxresid.sweep(loss, batches=(2,), on="tpu:v5x:2x4")(inputs)

    def test_jax_has_two_names_for_some(self, compiler):
        found = sweep((2,), ("checkpoint_dots", "dots_saveable"))
        assert found.policies == ("dots_saveable",)


def a_bad_policy(*args, **kwargs):
    raise ValueError("never")


class Lossy(Executor):
    """Its workers have no jaxresid."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_exception(ModuleNotFoundError("No module named 'jaxresid'"))
        return future


def test_workers_without_jaxresid(log, tmp_path):
    found = sweep((2,), executor=Lossy(), results=str(tmp_path / "r.jsonl"))
    for row in found.rows:
        assert row.error == "lost by the executor: ModuleNotFoundError: No module named 'jaxresid'"
        assert row.transient


class TestDask:
    @pytest.mark.integration
    def test_a_worker_is_killed_half_way(self, compiler, tmp_path, log, monkeypatch):
        distributed = pytest.importorskip("distributed")
        compiler("slow")
        file = str(tmp_path / "r.jsonl")
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as workers:
            killed = []

            def kill_half_way(text):
                if not killed and log.exists() and log.read_text().count("compiled") >= 3:
                    killed.append(workers.workers[0].process.pid)
                    os.kill(killed[0], signal.SIGKILL)

            with cluster(workers.scheduler_address) as executor, Results.open(file) as results:
                found = sweeping.swept(
                    lambda batch: sweeping.subject(Question(loss, inputs(batch), mode="loss")),
                    sweeping.Grid(places_of("cpu"), ("none", "nothing_saveable"), (2, 4, 8, 16)),
                    CompileSettings(executor=executor),
                    results=results,
                    progress=kill_half_way,
                )
        assert killed
        assert [row.error for row in found.rows] == [None] * 8
        assert len({line["key"] for line in lines(file)}) == len(lines(file)) == 8
        assert {r.compiled.peak_nbytes for r in found.rows} == {200, 400, 800, 1600}

    @pytest.mark.integration
    def test_a_scheduler_that_does_not_answer(self, monkeypatch):
        pytest.importorskip("distributed")
        monkeypatch.setattr("jaxresid.xla.processes.cluster._CONNECT_S", 0.5)
        start = time.monotonic()
        with pytest.raises(JaxresidError, match="no Dask scheduler answers at tcp://127"):
            cluster("tcp://127.0.0.1:1").__enter__()
        assert time.monotonic() - start < 5

    @pytest.mark.parametrize(
        ("address", "words"), [("here", "missing port"), ("x://h:1", "unknown address scheme")]
    )
    def test_no_address(self, address, words):
        pytest.importorskip("distributed")
        with pytest.raises(InputsError, match=rf"--scheduler {address}: {words}.*tcp://host:8786"):
            cluster(address).__enter__()

    def test_without_dask(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "distributed", None)
        with pytest.raises(JaxresidError, match=r"pip install 'jaxresid\[dask\]'"):
            cluster("tcp://127.0.0.1:8786").__enter__()


MODEL = """
import jax, jax.numpy as jnp

def loss(w, x):
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)
    return (h**2).sum()

def loss_inputs(batch):
    return jnp.zeros((3, 8, 8)), jnp.zeros((batch, 8))

def fixed_inputs():
    return loss_inputs(2)
"""
# A shell's background jobs, and so the tests in one, start with SIGINT ignored.
DRIVER = """
import functools, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import jaxresid.advice.sweep.sweep as sweeping
from jaxresid.cli.main import run
from jaxresid.xla.processes import pool
compiler = f"sweep_compilers:{sys.argv[1]}"
sweeping.compile_jobs = functools.partial(pool.compile_jobs, compiler=compiler)
sys.exit(run(["sweep", *sys.argv[2:]]))
"""
EVERYTHING = ("m.py:loss", "--on", "cpu", "--batch", "2,4,16", "--policy", "none")
EVERYTHING += ("--policy", "nothing_saveable")
NONE = ("--policy", "none")


@pytest.fixture
def started(tmp_path, log, monkeypatch):
    """Starts `jaxresid sweep` in a process of its own, with a fake compiler."""
    (tmp_path / "m.py").write_text(MODEL)
    monkeypatch.setenv("JAXRESID_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("COLUMNS", "80")
    processes = []

    def start(compiler, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, compiler, *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def ran(started):
    """Runs it to its end: its exit code and what it printed."""

    def run(compiler, *arguments):
        process = started(compiler, *arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    return run


def wait_for(question, timeout_s=30):
    deadline = time.monotonic() + timeout_s
    while not question():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def besides_compiles(err):
    """What is on stderr besides a line for each compile that has ended."""
    shown = without_stages(err).splitlines(keepends=True)
    kept = [x for x in shown if not x.startswith("jaxresid: compiled ")]
    return "".join(kept)


class TestProcesses:
    @pytest.mark.integration
    def test_interrupted_and_run_again(self, started, ran, tmp_path, log):
        file = tmp_path / "r.jsonl"
        interrupted = started(
            "hangs_from_the_third", *EVERYTHING, "--results", "r.jsonl", "--jobs", "2", "--no-cache"
        )
        wait_for(lambda: log.exists() and log.read_text().count("began") >= 4)
        wait_for(lambda: len(file.read_text().splitlines()) == 2)
        children = compilers_below(interrupted.pid)
        assert len(children) == 2
        interrupted.send_signal(signal.SIGINT)
        _, err = interrupted.communicate(timeout=20)
        assert interrupted.returncode == 130
        assert besides_compiles(err) == (
            "jaxresid: interrupted; r.jsonl has the results so far, and the same command"
            " continues from there\n\n"
        )
        assert not psutil.wait_procs(children, timeout=5)[1]
        assert len(lines(file)) == 2
        code, out, err = ran("quick", *EVERYTHING, "--results", "r.jsonl", "--no-cache")
        assert (code, besides_compiles(err)) == (0, "")
        assert out.endswith("6 results: 4 compiled, 2 already in the file\n")
        assert len({line["key"] for line in lines(file)}) == len(lines(file)) == 6
        compiled = [c for c in log.read_text().splitlines() if c.startswith("compiled")]
        assert len(set(compiled)) == len(compiled) == 6

    @pytest.mark.slow
    def test_two_at_once(self, started, tmp_path, log):
        """On one cache, each with a file of its own."""
        both = [started("slow", *EVERYTHING, "--results", f"{name}.jsonl") for name in "ab"]
        for process in both:
            out, err = process.communicate(timeout=60)
            assert (process.returncode, besides_compiles(err)) == (0, "")
            assert "\n6 results: " in out
        for name in "ab":
            found = lines(tmp_path / f"{name}.jsonl")
            assert len({line["key"] for line in found}) == len(found) == 6
        entries = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
        assert sum(file.suffix == ".json" for file in entries) == 6
        assert not [file for file in entries if file.suffix == ".tmp"]

    @pytest.mark.slow
    def test_killed_and_run_again(self, started, ran, tmp_path, log):
        file = tmp_path / "r.jsonl"
        killed = started(
            "hangs_from_the_third", *EVERYTHING, "--results", "r.jsonl", "--jobs", "2", "--no-cache"
        )
        wait_for(lambda: log.exists() and log.read_text().count("began") >= 4)
        wait_for(lambda: len(file.read_text().splitlines()) == 2)
        children = compilers_below(killed.pid)
        killed.kill()
        assert not psutil.wait_procs(children, timeout=10)[1]
        code, out, _ = ran("quick", *EVERYTHING, "--results", "r.jsonl", "--no-cache")
        assert (code, len(lines(file))) == (0, 6)
        assert out.endswith("6 results: 4 compiled, 2 already in the file\n")


@pytest.mark.parametrize(
    ("spec", "sized"),
    [
        ("f32[batch,2048]", "f32[4,2048]"),
        ("i32[ batch ]", "i32[ 4 ]"),
        ('{"batch": f32[2, batch], "b": [bf16[batch]]}', '{"batch": f32[2, 4], "b": [bf16[4]]}'),
        ("f32[batch,8]@batch,model", "f32[4,8]@batch,model"),
        ("[\"batch\", 'f32[batch]']", "[\"batch\", 'f32[batch]']"),
        ("f32[batches,batch_size]", "f32[batches,batch_size]"),
        ("tokens=i32[batch,16]", "tokens=i32[4,16]"),
    ],
)
def test_the_batch_in_a_spec(spec, sized):
    assert batches.sized_spec(spec, batches.Sizes(((4, 4),))) == sized
    assert batches.is_sized(spec) == (spec != sized)


class TestCommandLine:
    """In this process, which has jax already."""

    @pytest.fixture
    def run(self, compiler, tmp_path, monkeypatch, capfd):
        (tmp_path / "m.py").write_text(MODEL)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("JAXRESID_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("COLUMNS", "80")

        def run(*arguments):
            from jaxresid.cli.main import run

            code = run(["sweep", *arguments])
            out, err = capfd.readouterr()
            return code, out, err

        yield run
        sys.modules.pop("m", None)

    @pytest.mark.integration
    def test_the_table(self, run):
        code, out, err = run(*EVERYTHING)
        assert (code, besides_compiles(err)) == (0, "")
        table = out.partition("(<lambda>) ×3 trips\n")[2]
        assert (
            re.sub(r"[1-9]\d\.\d%", "some%", table)
            .replace(jax.__version__, "JAX")
            .replace(" jax_remat3", "")
            == """
cpu  1000 B per device
batch 2        4       16      largest  recompute
    KiB      KiB      KiB    that fits      FLOPs  policy
  0.195    0.391    1.562 x          4       0.0%  no checkpoint
  0.195    0.391    1.562 x          4      some%  nothing_saveable
memory at XLA's peak · x does not fit · none 1.0

jax JAX · cpu: given with --on
differentiated: w, x
6 results: 6 compiled
"""
        )

    @pytest.mark.integration
    @pytest.mark.parametrize(
        "arguments",
        [
            ("--arg", "f32[3,8,8]", "--arg", "f32[batch,8]"),
            ("--inputs", "loss_inputs"),
            ("--kwarg", "w=f32[3,8,8]", "--kwarg", "x=f32[batch,8]"),
        ],
    )
    def test_where_the_batch_goes(self, run, arguments):
        code, _, err = run(
            "m.py:loss", *arguments, "--on", "cpu", "--batch", "2,4", *NONE, "--results", "r"
        )
        assert code == 0
        assert {line.partition(",")[0] for line in without_stages(err).splitlines()} == {
            f"jaxresid: compiled none at batch {n} for cpu" for n in (2, 4)
        }
        found = {line["batch"]: line for line in lines("r")}
        assert found[4]["kept_nbytes"] == 2 * found[2]["kept_nbytes"]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--batch", "2,x"], "'x' is not a batch size; write whole numbers such as 8,16,32"),
            (["--batch", "0"], "'0' is not a batch size"),
            (
                ["--batch", "2", "--inputs", "fixed_inputs"],
                "fixed_inputs has no parameter named batch",
            ),
            (["--batch", "2", "--arg", "f32[3,8,8]"], "no SPEC has a dimension named batch"),
            (["--arg", "f32[batch,8]"], "has a dimension `batch`: give its size with --batch"),
            ([], "loss_inputs is called with no arguments to make the inputs, but needs batch"),
            (["--batch", "2", "--results", "-"], "not stdout"),
            (["--batch", "2", "--results", "m.py"], "something other than the results of a sweep"),
            (["--batch", "2", "--policy", "dotty"], "no policy 'dotty'"),
            (["--batch", "2", "--at", "m.py:99"], "no place 'm.py:99'"),
        ],
    )
    def test_mistakes(self, run, arguments, words):
        code, out, err = run("m.py:loss", "--on", "cpu", *arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert "Traceback" not in err

    def test_no_batch(self, run):
        code, out, _ = run("m.py:loss", "--inputs", "fixed_inputs", "--on", "cpu", *NONE)
        assert code == 0
        assert "\npeak        recompute\n   B  fits      FLOPs  policy\n" in out
        assert "\n 100   yes       0.0%  no checkpoint\n" in out

    def test_what_cannot_be_compiled(self, run, compiler):
        compiler("refuses")
        code, out, err = run("m.py:loss", "--inputs", "fixed_inputs", "--on", "cpu", *NONE)
        assert code == 2
        progress, error = without_stages(err).splitlines()
        assert progress.startswith("jaxresid: could not compile none for cpu, 1 of 1 done")
        assert error == "jaxresid: error: 1 of 1 could not be compiled"
        assert "\nnot compiled\ncpu; no checkpoint: INVALID_ARGUMENT: no\n" in out

    @pytest.mark.integration
    def test_warnings_are_said(self, run):
        run(*EVERYTHING, "--results", "r")
        with open("r", "a") as file:
            file.write('{"schema"')
        code, out, _ = run(*EVERYTHING, "--results", "r")
        assert code == 0
        assert "\nwarning: r: the last line was incomplete; removed\n" in out
        assert out.endswith("\n6 results: 6 already in the file\n")


def rendered(rows, policies, sizes, on="cpu"):
    """The text of a sweep in 60 columns."""
    from rich.console import Console

    from jaxresid.render.tables.sweep import render_sweep
    from jaxresid.results import JaxInfo, PlaceInfo, Sweep, Target

    place = PlaceInfo(on, on.partition(":")[0], "as asked", "cpu")
    sweep = Sweep(Target("f", ()), JaxInfo("0.0", {}), "whole", (), policies, sizes, (place,), rows)
    console = Console(width=60, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(render_sweep(sweep))
    return console.export_text()


@pytest.mark.parametrize("sizes", [(2, 4), ()])
def test_what_may_not_fit_has_a_mark_of_its_own(sizes):
    def row(batch, peak, cublas):
        fits = peak <= 8 and cublas is not None and cublas <= 8
        error = "killed" if cublas is None else None
        figures = Compiled(
            on="gpu:h100",
            peak_nbytes=peak,
            cublas_peak_nbytes=cublas,
            cublas_error=error,
            capacity_nbytes=8,
            fits=None if error else fits,
        )
        return SweepRow("f", "none", batch, "gpu:h100", "whole", compiled=figures)

    first, second = sizes or (None, None)
    may = rendered((row(first, 7, 8), row(second, 7, 9)), ("none",), sizes, "gpu:h100")
    legend = "? fits if the GPU takes Triton's matmuls, but not surely with cuBLAS's"
    assert legend in " ".join(may.split())
    assert ("7    7 ?" in may) if sizes else (" 7 ?" in may and "yes" not in may)
    assert "x does not fit" not in may
    unknown = rendered((row(first, 7, None),), ("none",), sizes[:1], "gpu:h100")
    assert legend in " ".join(unknown.split())
    assert "the available memory is not known" not in unknown


def test_many_batches_take_several_tables():
    sizes = tuple(2**n for n in range(12))
    rows = tuple(
        SweepRow("f", policy, n, "cpu", "whole", compiled=Compiled(on="cpu", peak_nbytes=n << 30))
        for policy in ("none", "dots_saveable")
        for n in sizes
        if n != 64
    )
    rows += (SweepRow("f", "none", 64, "cpu", "whole", error="took longer than 600 s"),)
    text = rendered(rows, ("none", "dots_saveable"), sizes)
    assert max(map(len, text.splitlines())) <= 60
    assert [text.count(f" {n}  ") + text.count(f" {n}\n") for n in (32, 2048)] == [1, 1]
    assert "error" in text
    assert "cpu; no checkpoint; batch 64: took longer than 600 s" in text
    assert "the available memory is not known" in text
