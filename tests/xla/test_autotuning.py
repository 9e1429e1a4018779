"""What a GPU would choose by timing: when it is asked about, and what becomes of the answers."""

import time
from dataclasses import replace

import pytest
from fake_compilers import UNTILED, job

from jaxresid.xla import autotuning
from jaxresid.xla.absent_devices import with_reason
from jaxresid.xla.autotuning import has_triton_matmul, job_left, joined, with_cublas
from jaxresid.xla.job import Compilation
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.cache import CompileCache, key
from tests.xla.test_compile_pool import run

H100 = parse_place("gpu:h100")
FOUND = Compilation(stats={"peak_nbytes": 10}, has_triton_matmul=True, seconds=1.5)


@pytest.fixture(autouse=True)
def no_flags(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def gpu_job(code=b"a", within=100, on=H100, **options):
    return replace(job(code, **options), place=on, within_nbytes=within)


@pytest.mark.parametrize(
    ("config", "is_one"),
    [
        (b'{"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion","b":1}}', True),
        (b'{"fusion_backend_config":{"kind":"__triton_gemm"}}', True),
        (b'{"fusion_backend_config":{"kind":"__triton"}}', False),
        (b'custom_call_target="__cublas$gemm"', False),
        (b"", False),
    ],
)
def test_a_matmul_of_triton_is_seen(config, is_one):
    assert has_triton_matmul(b"\x0a\x10module" + config + b"\x00") is is_one


def test_the_other_job_differs_in_the_flag_alone():
    first = gpu_job(label="dots for gpu:h100")
    other = with_cublas(first)
    assert other.flags == (("xla_gpu_enable_triton_gemm", "false"),)
    assert other.label == "dots for gpu:h100 with cuBLAS"
    assert replace(other, flags=(), label=first.label, within_nbytes=100) == first
    assert key(other) != key(first) == key(replace(first, within_nbytes=7))


@pytest.mark.parametrize("value", ["true", "false"])
def test_what_the_user_chose_stays(value, monkeypatch):
    assert with_cublas(replace(gpu_job(), flags=((autotuning.FLAG, value),))) is None
    monkeypatch.setenv("XLA_FLAGS", f"--xla_a=1 --{autotuning.FLAG}={value}")
    assert with_cublas(gpu_job()) is None


@pytest.mark.parametrize("place", ["gpu", "tpu:v5e", "cpu"])
def test_where_kernels_are_timed_or_there_is_no_choice(place):
    assert job_left(gpu_job(on=parse_place(place)), FOUND) is None


@pytest.mark.parametrize(
    ("within", "found", "is_asked"),
    [
        (10, FOUND, True),
        (9, FOUND, False),  # it does not fit either way
        (None, FOUND, False),
        (10, replace(FOUND, has_triton_matmul=False), False),
        (10, replace(FOUND, stats={}), False),
    ],
)
def test_it_is_asked_where_it_can_change_the_answer(within, found, is_asked):
    assert (job_left(gpu_job(within=within), found) is not None) is is_asked


def test_both_results_are_one():
    both = joined(replace(FOUND, cached=True), replace(FOUND, stats={"peak_nbytes": 12}))
    assert both == replace(FOUND, cublas_nbytes=12, seconds=3.0)
    failed = joined(FOUND, Compilation(error="killed", transient=True))
    assert (failed.cublas_nbytes, failed.cublas_error, failed.transient) == (None, "killed", True)
    assert joined(FOUND, Compilation()).cublas_error == "XLA reports no peak"


FAILED = Compilation(error=UNTILED, seconds=1.5)


@pytest.mark.parametrize(
    ("found", "on", "is_asked"),
    [
        (FAILED, H100, True),
        (FAILED, parse_place("gpu"), False),
        (FAILED, parse_place("tpu:v5e"), False),
        (replace(FAILED, transient=True), H100, False),  # its time was up
        (replace(FAILED, seconds=None), H100, False),  # nothing was compiled
    ],
)
def test_what_fails_is_tried_with_cublas(found, on, is_asked):
    job = gpu_job(on=on, within=None)
    assert job_left(job, found) == (with_cublas(job) if is_asked else None)


def test_a_failure_and_what_came_of_cublas():
    assert joined(FAILED, replace(FOUND, cached=True)) == replace(
        FOUND, triton_error=UNTILED, seconds=3.0
    )
    assert joined(FAILED, FAILED) == replace(FAILED, seconds=3.0)
    late = joined(FAILED, Compilation(error="killed", transient=True))
    assert late.error == f"{UNTILED}; with cuBLAS's matmuls: killed"
    assert late.transient


# In the pool


def compiled(file):
    return file.read_text().split() if file.exists() else []


@pytest.mark.integration
def test_what_fits_is_compiled_twice_and_answered_once(tmp_path):
    lines = tmp_path / "lines"
    jobs = [
        gpu_job(b"a", 10, label=lines),
        gpu_job(b"bb", 9, label=lines),
        gpu_job(b"none", label=lines),
        gpu_job(b"fails", label=lines),
    ]
    said = []
    found = dict(run([*jobs, jobs[0]], "chooses", workers=2, progress=said.append))
    assert {i: (c.stats["peak_nbytes"], c.cublas_nbytes) for i, c in found.items()} == {
        0: (10, 12),
        1: (10, None),
        2: (10, None),
        3: (10, None),
        4: (10, 12),
    }
    assert (found[3].cublas_error, found[0].cublas_error) == ("it crashed", None)
    assert sorted(compiled(lines)) == ["1", "2", "4", "5"]
    assert sorted(compiled(tmp_path / "lines with cuBLAS")) == ["1", "5"]
    assert any("5 of 5 done" in text for text in said)
    assert not any("6 of" in text for text in said)


def test_both_are_kept_each_for_itself(tmp_path):
    cache, lines = CompileCache(tmp_path / "cache"), tmp_path / "lines"
    other = tmp_path / "lines with cuBLAS"
    (first,) = dict(run([gpu_job(label=lines, within=9)], "chooses", cache=cache)).values()
    (second,) = dict(run([gpu_job(label=lines)], "chooses", cache=cache)).values()
    assert (first.cublas_nbytes, second.cublas_nbytes, second.cached) == (None, 12, False)
    (third,) = dict(run([gpu_job(label=lines)], "chooses", cache=cache)).values()
    assert (third.cublas_nbytes, third.cached) == (12, True)
    assert (compiled(lines), compiled(other)) == (["1"], ["1"])


@pytest.mark.integration
def test_what_triton_fails_at_is_compiled_with_cublas_and_kept(tmp_path):
    cache, lines = CompileCache(tmp_path / "cache"), tmp_path / "lines"
    jobs = [gpu_job(code, label=lines) for code in (b"untiled", b"neither", b"untiled")]
    said = []
    found = dict(run(jobs, "chooses", cache=cache, progress=said.append))
    tried = [text for text in said if text.endswith("trying cuBLAS's matmuls")]
    assert len(tried) == 2 and all(text.startswith("could not compile") for text in tried)
    assert [found[i].stats.get("peak_nbytes") for i in range(3)] == [12, None, 12]
    assert [found[i].triton_error for i in range(3)] == [UNTILED, None, UNTILED]
    assert found[1].error == with_reason(UNTILED) != UNTILED
    assert sorted(compiled(lines)) == sorted(compiled(tmp_path / "lines with cuBLAS")) == ["7", "7"]
    (again,) = dict(run(jobs[:1], "chooses", cache=cache)).values()
    assert (again.triton_error, again.cached) == (UNTILED, True)
    assert len(compiled(lines)) == 2


@pytest.mark.integration
def test_one_that_there_was_no_time_for_says_so(tmp_path):
    job = gpu_job(b"slow", label=tmp_path / "lines")
    (found,) = dict(run([job], "chooses", until=time.monotonic() + 5)).values()
    assert (found.stats["peak_nbytes"], found.cublas_nbytes) == (10, None)
    assert (found.cublas_error, found.transient) == ("there was no time for it", True)
