"""Logs as launchers, terminals and allocators leave them."""

import time
import tracemalloc

import pytest

from jaxresid.xla.logs.lines import read_line
from jaxresid.xla.logs.reading import read_log
from tests import where

LOGS = where.DATA / "logs"
GIB, MIB = 2**30, 2**20
SAYS = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 49592744 bytes."
USED = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm."
    " Used 63.80G of 30.75G hbm. Exceeded hbm capacity by 33.05G."
)


def failures(text):
    return read_log(text.splitlines()).failures


@pytest.mark.parametrize(
    ("raw", "process"),
    [
        (f"{SAYS}", ""),
        (f"\x1b[31m{SAYS}\x1b[0m", ""),
        (f"[31m{SAYS}[0m", ""),
        (f"2022-11-29 20:30:37.803154: E external/xla/client.cc:2153] {SAYS}", ""),
        (f"2024-09-10T20:24:00.123Z {SAYS}", ""),
        (f"E0910 20:24:00.097739   38257 pjrt_stream_executor_client.cc:3067] {SAYS}", ""),
        (f"2020-05-04 09:05:40.719332: E    1578 tensorflow/compiler/xla_util.cc:76] {SAYS}", ""),
        (f"13:16:24.741 [error] {SAYS}", ""),
        (f"ERROR 04-29 13:23:34 [core.py:396] {SAYS}", ""),
        (f"> {SAYS}", ""),
        (f"[1,3]<stderr>:{SAYS}", "1,3"),
        (f"(launch pid=19413, ip=10.128.15.215) {SAYS}", "launch pid=19413, ip=10.128.15.215"),
        (f"71[2m[36m(MeshHostWorker pid=489)[0m {SAYS}", "MeshHostWorker pid=489"),
        (f"[pod/train-0/worker] 2024-09-10T20:24:00Z {SAYS}", "pod/train-0/worker"),
        (f"trainer-1  | {SAYS}", "trainer-1"),
        (f" 7: {SAYS}", "7"),
        (f"[rank3]: {SAYS}", "rank3"),
        (f" 40%|####      | 4/10\r{SAYS}", ""),
    ],
)
def test_prefixes_are_taken_off(raw, process):
    line = read_line(raw)
    assert (line.text, line.process) == (SAYS, process)


def test_a_line_without_a_prefix_is_of_the_process_before():
    first, *rest = (LOGS / "jax-13428.txt").read_text().splitlines()
    (found,) = read_log([f"[1,0]<stderr>:{first}", *rest, "[1,1]<stderr>:x"]).failures
    assert len(found.buffers) == 2


def test_what_is_no_prefix_stays():
    assert read_line("  1. Size: 2.50G").text == "  1. Size: 2.50G"
    assert read_line("x[12m] = 3").text == "x[12m] = 3"


def test_ranks_in_one_log_are_told_apart():
    """The lines of a table of each rank are between those of the others."""
    log = (LOGS / "jax-13428.txt").read_text().splitlines()
    mixed = [f"[1,{rank}]<stderr>:{line}" for line in log for rank in range(4)]
    (found,) = read_log(mixed).failures
    (alone,) = read_log(log).failures
    assert (found.processes, found.count) == (4, 1)
    assert (found.parts, found.buffers) == (alone.parts, alone.buffers)
    assert len(found.buffers) == 2


def test_ranks_with_other_figures_are_other_failures():
    lines = [f"[1,{rank}]<stderr>:{USED.replace('63.80G', f'6{rank}.80G')}" for rank in range(3)]
    assert [round(f.required_nbytes / GIB) for f in read_log(lines).failures] == [61, 62, 63]


@pytest.mark.parametrize("width", [70, 80, 100, 132])
@pytest.mark.parametrize("name", ["easydel-166", "flowpm-27", "multinerf-77"])
def test_lines_that_a_terminal_broke(name, width):
    lines = (LOGS / f"{name}.txt").read_text().splitlines()
    broken = [
        line[start : start + width]
        for line in lines
        for start in range(0, max(len(line), 1), width)
    ]
    (whole,), (found,) = read_log(lines).failures, read_log(broken).failures
    assert found.required_nbytes == whole.required_nbytes
    assert found.capacity_nbytes == whole.capacity_nbytes
    assert found.buffers == whole.buffers


def test_a_word_broken_in_two():
    log = read_log((LOGS / "easylm-14.txt").open())
    assert [f.requested_nbytes for f in log.failures] == [655360000]


def test_the_same_error_said_thrice_is_one():
    (found,) = failures("\n".join([USED, "Traceback (most recent call last):", USED, USED]))
    assert found.count == 1
    apart = "\n".join(["x"] * 200)
    (found,) = failures("\n".join([USED, apart, USED]))
    assert found.count == 2


def test_the_failure_that_says_most_is_first():
    small = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1048576 bytes."
    first, second = failures(f"{small}\n{USED}")
    assert first.required_nbytes == round(63.80 * GIB)
    assert second.requested_nbytes == MIB


def test_what_an_allocator_would_have_liked_is_no_failure():
    """Of https://github.com/flatironinstitute/nemos/issues/345."""
    warns = (
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.37GiB with freed_by_count=0."
        " The caller indicates that this is not a failure, but this may mean that there could be"
        " performance gains if more memory were available."
    )
    log = read_log([warns, warns])
    assert (log.failures, log.not_failures) == ((), 2)


@pytest.mark.parametrize(
    ("said", "limit", "in_use"),
    [
        ("Limit:   4928097484\nInUse:   4248542720", 4928097484, 4248542720),
        ("Limit:   89.77GiB\nInUse:   81.00GiB", round(89.77 * GIB), 81 * GIB),
    ],
)
def test_the_figures_of_a_pool(said, limit, in_use):
    (found,) = failures(f"Stats: \n{said}\n\n{SAYS}")
    assert (found.pool.limit_nbytes, found.pool.in_use_nbytes) == (limit, in_use)
    assert found.pool.free_nbytes == limit - in_use


def test_free_chunks_are_counted_and_not_kept():
    listing = "\n".join(
        f"{state} at 7f0c0d55f000 of size {size} next 1"
        for state, size in (("InUse", 900), ("Free ", 300), ("InUse", 5), ("Free ", 200))
    )
    (found,) = failures(f"{listing}\n{SAYS}")
    assert (found.pool.free_nbytes, found.pool.largest_free_nbytes) == (500, 300)


def test_the_asynchronous_allocator():
    """Of https://github.com/marin-community/marin/issues/8508."""
    (found,) = failures(
        "cuMemAllocAsync failed to allocate 126,257,359,472 bytes (117.59 GiB)\n"
        "Free memory/Total:      18,801,229,824 / 197,890,015,232\n"
    )
    assert found.requested_nbytes == 126257359472
    assert found.pool.device_free_nbytes == 18801229824
    assert found.pool.device_nbytes == 197890015232


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Epoch 1/5\nloss 3.2",
        "grpc: RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Read requests'",
        "grpc._channel: StatusCode.RESOURCE_EXHAUSTED: Received message larger than max",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "Buffer 1 of 3 is being written; program running out of ideas",
    ],
)
def test_what_is_about_something_else(text):
    assert failures(text) == ()


def test_lines_that_speak_of_memory_are_told_where_nothing_is_known():
    log = read_log(["x", "MemoryError: Unable to allocate 37.3 GiB for an array", "y"])
    assert log.hints == ("MemoryError: Unable to allocate 37.3 GiB for an array",)


def noise(count):
    for n in range(count):
        yield f"2025-01-01 00:00:00.{n:06}: I bfc.cc:1109] InUse at 7f3c{n:08x} of size 8000000"
        yield f"step {n}: loss 3.14159, 21,000 tokens per second, nothing else to be said here"


@pytest.mark.integration
def test_a_huge_log_takes_little_time_and_memory():
    """A tenth of 100 MB: time and memory are those of lines, whatever is in them."""

    def lines():
        yield from noise(35_000)
        yield USED
        yield from noise(35_000)

    tracemalloc.start()
    begun = time.process_time()
    log = read_log(lines())
    took = time.process_time() - begun
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(log.failures) == 1
    assert most < 20 * MIB
    assert took < 20


@pytest.mark.parametrize(
    "line",
    [
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate " + "9" * 5000 + " bytes.",
        "Ran out of memory in memory space hbm. Used 1" + "0" * 400 + "P of 1G hbm.",
        "1. Size: 1.0G\n     Shape: f32[" + "9" * 6000 + "]",
        'op_name="' * 3000,
        "(" * 20000 + SAYS,
        "\x1b[" * 20000,
        "1,2,3,4," * 5000 + " Size: ",
        "Buffer 1:\n" * 5000,
    ],
)
def test_hostile_lines_are_read_in_time(line):
    begun = time.process_time()
    failures(line)
    failures(f"{SAYS}\n{line}\n{line}")
    assert time.process_time() - begun < 5
