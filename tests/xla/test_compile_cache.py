"""Compilations on disk: what counts, what is kept, and what goes wrong with a directory."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxresid.base import user_cache
from jaxresid.xla.job import (
    CollectiveOp,
    Compilation,
    CompilerMessage,
    Job,
    LoweredModule,
    PeakBuffer,
)
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes import cache as cache_module
from jaxresid.xla.processes.cache import CompileCache, default_directory, key
from tests.where import ROOT

JOB = Job(LoweredModule(b"module", "tpu", 8), parse_place("tpu:v5e:2x4"), (("xla_a", "1"),))
FULL = Compilation(
    stats={"temp_nbytes": 17 << 20, "host_argument_nbytes": 0, "peak_nbytes": 3 << 40},
    required_nbytes=None,
    capacity_nbytes=15 << 30,
    buffers=(
        PeakBuffer("temporary", 1 << 20, "f32[512,512]", "fusion", "jit(f)/mul", "möbius.py", 7),
        PeakBuffer("argument", 4, memory="host"),
    ),
    live_nbytes=2 << 20,
    collectives=(CollectiveOp("all-reduce", 4, 64), CollectiveOp("all-gather", 1, 8, False)),
    output_shards=((), (4, 2), None),
    seconds=1.25,
    compiler=f"jaxlib {cache_module._version('jaxlib')}",
    notes=("of 8 devices",),
    messages=(
        CompilerMessage(
            "resharding", 2, "cannot", 1 << 20, None, "f32[8]", "f/mul", "möbius.py", 7
        ),
        CompilerMessage("memory-limit", nbytes=9, limit_nbytes=7),
    ),
    has_triton_matmul=True,
    cublas_nbytes=4 << 40,
    cublas_error="killed",
    triton_error="no tile sizes",
)


def entry(cache, job=JOB):
    return cache.directory / f"{key(job)}.json"


def test_a_result_comes_back_as_it_was(tmp_path):
    cache = CompileCache(tmp_path / "a" / "b")
    assert cache.get(JOB) is None
    cache.put(JOB, FULL)
    assert cache.get(JOB) == dataclasses.replace(FULL, cached=True)
    assert CompileCache(tmp_path / "a" / "b").get(JOB) == cache.get(JOB)
    assert cache.warnings == ()
    names = {"CACHEDIR.TAG", ".gitignore", entry(cache).name}
    assert {file.name for file in cache.directory.iterdir()} == names


@pytest.mark.parametrize("shards", [None, (), ((),)])
def test_output_shards_that_are_not_known_are_told_from_none(shards, tmp_path):
    cache = CompileCache(tmp_path)
    cache.put(JOB, dataclasses.replace(FULL, output_shards=shards))
    assert cache.get(JOB).output_shards == shards


def test_every_field_is_kept(tmp_path):
    # Whoever adds a field gives it a value here.
    defaults = Compilation()
    plain = {"error", "transient", "cached", "required_nbytes"}
    for field in dataclasses.fields(Compilation):
        if field.name not in plain:
            assert getattr(FULL, field.name) != getattr(defaults, field.name), field.name


def test_what_counts(monkeypatch):
    module = JOB.module
    others = [
        dataclasses.replace(JOB, place=parse_place("tpu:v5e:4x4")),
        dataclasses.replace(JOB, place=parse_place("gpu:h100")),
        dataclasses.replace(JOB, flags=()),
        dataclasses.replace(JOB, flags=(("xla_a", "2"),)),
        dataclasses.replace(JOB, module=dataclasses.replace(module, code=b"modulf")),
        dataclasses.replace(JOB, module=dataclasses.replace(module, devices=4)),
        dataclasses.replace(JOB, module=dataclasses.replace(module, platform="cpu")),
    ]
    keys = {key(JOB), *map(key, others)}
    assert len(keys) == 8
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "--xla_b=1")
            keys.add(key(JOB))
    version = cache_module._version.__wrapped__
    monkeypatch.setattr(cache_module, "_versions", cache_module._versions.__wrapped__)
    for package in ("jax", "jaxlib", "libtpu"):
        newer = {package: "99"}
        monkeypatch.setattr(cache_module, "_version", lambda p, n=newer: n.get(p) or version(p))
        keys.add(key(JOB))
    assert len(keys) == 13


def test_what_does_not_count():
    assert key(JOB) == key(
        dataclasses.replace(JOB, timeout_s=1.0, memory_nbytes=1 << 30, label="dots")
    )
    flags = (("xla_a", "1"), ("xla_b", "2"))
    assert key(dataclasses.replace(JOB, flags=flags)) == key(
        dataclasses.replace(JOB, flags=flags[::-1])
    )


@pytest.mark.parametrize(
    ("on", "goes_by_it"),
    [("cpu", True), ("gpu", True), ("gpu:h100", False), ("tpu:v4:2x2x1", False)],
)
def test_the_machine_counts_for_its_own_devices(on, goes_by_it, monkeypatch):
    job = dataclasses.replace(JOB, place=parse_place(on))
    here = key(job)
    monkeypatch.setattr(cache_module, "_machine", lambda: ("another",))
    assert (key(job) != here) == goes_by_it


def test_what_jax_may_take_of_a_gpu_is_none_of_its_result():
    half, whole = (
        dataclasses.replace(JOB, place=parse_place("gpu:h100:8", memory_fraction=fraction))
        for fraction in (0.5, 1.0)
    )
    assert key(half) == key(whole)


def test_errors_are_no_results_but_not_to_fit_is_one(tmp_path):
    cache = CompileCache(tmp_path)
    cache.put(JOB, Compilation(error="took longer than 1 s", transient=True))
    cache.put(JOB, Compilation(error="SIGABRT"))
    assert cache.get(JOB) is None
    exhausted = Compilation(required_nbytes=54 << 30, capacity_nbytes=15 << 30)
    cache.put(JOB, exhausted)
    assert cache.get(JOB).is_out_of_memory


def test_what_another_version_said_is_not_kept(tmp_path):
    cache = CompileCache(tmp_path)
    cache.put(JOB, dataclasses.replace(FULL, compiler="jaxlib 0.1.2, libtpu 0.0.1"))
    assert cache.get(JOB) is None


def truncated(data):
    return data[: len(data) // 2]


def changed(data):
    assert data.count(b"17825792") == 1
    return data.replace(b"17825792", b"17825793")


def without_a_field(data):
    name = json.loads(data.partition(b"\n")[0])["jaxresid-compile"]
    body = b'{"stats":{}}'
    return json.dumps(cache_module._head(name, body)).encode() + b"\n" + body


def of_another_job(data):
    name = json.loads(data.partition(b"\n")[0])["jaxresid-compile"]
    return data.replace(name.encode(), b"0" * 64)


@pytest.mark.parametrize(
    "corrupted",
    [
        lambda data: b"",
        lambda data: b"\x80\x04\x95",
        lambda data: b"[" * 100_000,
        lambda data: b"{}\n[]",
        truncated,
        changed,
        without_a_field,
        of_another_job,
    ],
    ids="empty pickle nested other truncated changed field job".split(),
)
def test_a_corrupted_entry_is_replaced(corrupted, tmp_path):
    cache = CompileCache(tmp_path)
    cache.put(JOB, FULL)
    entry(cache).write_bytes(corrupted(entry(cache).read_bytes()))
    cache = CompileCache(tmp_path)
    assert cache.get(JOB) is None
    assert cache.warnings == (
        f"an entry of the compile cache cannot be read and will be replaced: {entry(cache)}",
    )
    cache.put(JOB, FULL)
    assert CompileCache(tmp_path).get(JOB) == dataclasses.replace(FULL, cached=True)


def test_many_corrupted_entries_are_one_line(tmp_path):
    cache = CompileCache(tmp_path)
    for i in range(3):
        job = dataclasses.replace(JOB, flags=(("xla_a", f"{i}"),))
        entry(cache, job).write_bytes(b"?")
        cache.get(job)
    (line,) = cache.warnings
    assert line.startswith("3 entries of the compile cache cannot be read")
    assert line.endswith(".json and 2 more")


def test_a_full_disk(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = CompileCache(tmp_path)
    cache.put(JOB, FULL)
    monkeypatch.setattr(user_cache.os, "replace", full)
    other = dataclasses.replace(JOB, flags=())
    cache.put(other, FULL)
    cache.put(other, FULL)
    assert cache.warnings == (
        f"the compile cache cannot be written (No space left on device: {tmp_path});"
        " continuing without it",
    )
    assert not list(tmp_path.glob("*.tmp"))
    assert cache.get(JOB) == dataclasses.replace(FULL, cached=True)  # what is there still counts


def test_a_full_disk_that_is_one(tmp_path, monkeypatch):
    """/dev/full takes no byte; a file system that does not is seldom at hand."""
    cache = CompileCache(tmp_path)
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr(user_cache, "open", lambda *_: full, raising=False)
        cache.put(JOB, FULL)
    assert "No space left on device" in cache.warnings[0]
    assert cache.get(JOB) is None


def test_a_path_that_is_too_long(tmp_path):
    cache = CompileCache(tmp_path / ("x" * 300))
    assert cache.get(JOB) is None
    cache.put(JOB, FULL)
    (line,) = cache.warnings
    assert line.startswith("the compile cache cannot be read (File name too long: ")


@pytest.mark.parametrize("action", ["get", "put"])
def test_a_directory_that_is_a_file(action, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    cache = CompileCache(file)
    if action == "get":
        assert cache.get(JOB) is None
    cache.put(JOB, FULL)
    (line,) = cache.warnings
    assert str(file) in line
    assert line.endswith("continuing without it")
    assert "\n" not in line
    assert file.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    cache = CompileCache(tmp_path)
    cache.put(JOB, FULL)
    assert "Permission denied" in cache.warnings[0]


def test_the_oldest_make_room(tmp_path):
    jobs = [dataclasses.replace(JOB, flags=(("xla_a", f"{i}"),)) for i in range(4)]
    cache = CompileCache(tmp_path)
    cache.put(jobs[0], FULL)
    size = entry(cache, jobs[0]).stat().st_size
    mine = tmp_path / "notes.json"
    mine.write_text("x" * 10 * size)
    (tmp_path / "CACHEDIR.TAG").unlink()  # whoever removes it gets it not back
    abandoned = tmp_path / f"{'a' * 64}.xyz.tmp"
    abandoned.write_text("")
    os.utime(abandoned, (0, 0))
    cache = CompileCache(tmp_path, limit_nbytes=3 * size + size // 2)
    for i, job in enumerate(jobs[:3]):
        cache.put(job, FULL)
        os.utime(entry(cache, job), (i + 1, i + 1))
    assert cache.get(jobs[0]) is not None  # it was used, so the next is the oldest
    cache.put(jobs[3], FULL)
    assert [cache.get(job) is not None for job in jobs] == [True, False, True, True]
    assert mine.exists()
    assert not abandoned.exists()
    assert not (tmp_path / "CACHEDIR.TAG").exists()


FILLING = f"""
import dataclasses, sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from tests.xla.test_compile_cache import FULL, JOB, CompileCache

cache, n_found = CompileCache(sys.argv[1]), 0
sys.stdin.readline()
for turn in range(3):
    for i in range(60):
        job = dataclasses.replace(JOB, flags=(("xla_a", f"{{i}}"),))
        found = cache.get(job)
        n_found += found is not None
        assert found is None or found == dataclasses.replace(FULL, live_nbytes=i, cached=True)
        if turn < 2:
            cache.put(job, dataclasses.replace(FULL, live_nbytes=i))
assert not cache.warnings, cache.warnings
print(n_found)
"""


@pytest.mark.integration
def test_two_processes_fill_one_cache(tmp_path):
    command = [sys.executable, "-c", FILLING, str(tmp_path / "cache")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        said, complaints = process.communicate(timeout=60)
        assert process.returncode == 0, complaints
        assert int(said) >= 120
    cache = CompileCache(tmp_path / "cache")
    assert all(cache.get(dataclasses.replace(JOB, flags=(("xla_a", f"{i}"),))) for i in range(60))
    assert len(list(cache.directory.iterdir())) == 62


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"JAXRESID_CACHE_DIR": "/scratch/c", "XDG_CACHE_HOME": "/x"}, "/scratch/c/compiled"),
        ({"JAXRESID_CACHE_DIR": "~/c", "HOME": "/home/me"}, "/home/me/c/compiled"),
        ({"JAXRESID_CACHE_DIR": "", "XDG_CACHE_HOME": "/x"}, "/x/jaxresid/compiled"),
        ({"XDG_CACHE_HOME": "x", "HOME": "/home/me"}, "/home/me/.cache/jaxresid/compiled"),
    ],
)
def test_where_it_is(environment, directory, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("JAXRESID_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_directory() == Path(directory)


def test_nothing_is_loaded_for_a_key():
    code = (
        "import sys; from jaxresid.xla.processes.cache import key;"
        "from jaxresid.xla.job import Job, LoweredModule;"
        "from jaxresid.xla.places import parse_place;"
        "key(Job(LoweredModule(b'', 'cpu'), parse_place('cpu')));"
        "print({'jax', 'jaxlib', 'libtpu'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    "change",
    [
        {"stats": {"temp_nbytes": "1"}},
        {"stats": {"temp_nbytes": -1}},
        {"messages": [dataclasses.asdict(CompilerMessage("resharding", nbytes=-1))]},
        {"messages": [dataclasses.asdict(CompilerMessage("another"))]},
        {"buffers": [1]},
        {"compiler": None},
        {"notes": "abc"},
        {"error": "no"},
        {"output_shards": [["a"]]},
        {"more": 1},
    ],
    ids=str,
)
def test_an_entry_that_is_no_compilation_is_a_miss(change, tmp_path):
    """With the digest that it has to have."""
    import hashlib
    import json

    cache = CompileCache(tmp_path)
    cache.put(JOB, FULL)
    head, _, body = entry(cache).read_bytes().partition(b"\n")
    body = json.dumps(json.loads(body) | change).encode()
    head = json.dumps(json.loads(head) | {"digest": hashlib.sha256(body).hexdigest()}).encode()
    entry(cache).write_bytes(head + b"\n" + body)
    assert cache.get(JOB) is None
    assert cache.warnings
