"""What logs of public threads come to, and what follows from the figures of others."""

import dataclasses
import json
import subprocess
import sys

import pytest

import jaxresid
from jaxresid.advice.oom.buffers import as_here
from jaxresid.base.errors import JaxresidError
from jaxresid.xla.job import PeakBuffer
from tests import where

LOGS = where.DATA / "logs"
THREADS = json.loads((LOGS / "threads.json").read_text())
GIB, MIB = 2**30, 2**20


def test_every_log_has_its_thread():
    assert {path.name for path in LOGS.glob("*.txt")} == set(THREADS)
    assert all(thread["url"].startswith("https://") for thread in THREADS.values())


@pytest.mark.parametrize("name", THREADS)
def test_the_cause_that_a_thread_ended_with(name):
    thread, found = THREADS[name], jaxresid.oom(LOGS / name)
    assert (found.cause, found.is_certain) == (thread["cause"], thread["is_certain"])
    assert found.ways[0].kind == thread["first_way"]
    assert jaxresid.oom((LOGS / name).read_text()) == found


def test_the_figures_of_padding():
    found = jaxresid.oom(LOGS / "flowpm-27.txt")
    (buffer,) = found.buffers
    assert (buffer.nbytes, buffer.padding_nbytes) == (32 * GIB, 31 * GIB)
    assert found.parts.padding_nbytes == pytest.approx(30.9 * GIB, rel=0.01)
    assert found.required_nbytes == round(41.74 * GIB)


def test_a_buffer_has_its_line_module_and_pass():
    (buffer,) = jaxresid.oom(LOGS / "easydel-166.txt").buffers
    assert buffer.source.location.file.endswith("attention_module.py")
    assert buffer.source.location.line == 1059
    assert "transformer/h/0/self_attention" in buffer.source.scope
    assert (buffer.role, buffer.kind, buffer.residual) == ("forward", "temporary", None)


def test_what_a_loop_stacks_is_a_residual():
    text = """Buffer 1:
        Size: 2.00GiB
        Operator: op_name="jit(f)/jvp()/while/body/dynamic_update_slice" source_file="m.py"
        XLA Label: fusion
        Shape: f32[8,8192,8192]
        ==========================
    """
    (buffer,) = jaxresid.oom(text).buffers
    assert (buffer.role, buffer.stacked) == ("forward", True)


@pytest.mark.parametrize(
    ("op_name", "role"),
    [
        ("jit(f)/jvp()/dot_general", "forward"),
        ("jit(f)/transpose(jvp())/dot_general", "backward"),
        ("jit(f)/transpose(jvp())/rematted_computation/sin", "recompute"),
        ("jit(f)/dot_general", ""),
    ],
)
def test_the_pass_of_an_operation(op_name, role):
    text = f'1. Size: 1.00G\nOperator: op_name="{op_name}"\nShape: f32[256,1024,1024]\n'
    assert jaxresid.oom(text).buffers[0].role == role


def test_equal_buffers_are_one():
    entry = 'Size: 1.00G\nOperator: op_name="jit(f)/layer_{}/dot"\nShape: f32[256,1024,1024]\n'
    text = "\n".join(f"{n}. {entry.format(n)}" for n in range(1, 4))
    (buffer,) = jaxresid.oom(text).buffers
    assert (buffer.count, buffer.nbytes, buffer.padding_nbytes) == (3, 3 * GIB, 0)


@pytest.mark.parametrize(
    ("capacity", "on"),
    [("15.75", "tpu:v5e"), ("31.25", "tpu:v6e"), ("95.74", "tpu:v5p"), ("12.34", "")],
)
def test_a_tpu_is_known_by_its_memory(capacity, on):
    text = f"Ran out of memory in memory space hbm. Used 99.00G of {capacity}G hbm."
    found = jaxresid.oom(text)
    assert found.on == on
    assert f"--on {on or 'PLACE'} " in found.ways[1].command + " "


def test_a_gpu_is_known_by_its_name():
    text = (
        "StreamExecutor device (0): NVIDIA H100 80GB HBM3, Compute Capability 9.0\n"
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 90000000000 bytes."
    )
    assert jaxresid.oom(text).on == "gpu:h100"


def test_plans_have_the_memory_of_the_log_as_their_budget():
    found = jaxresid.oom(LOGS / "easydel-166.txt")
    assert found.ways[0].command == "jaxresid plan TARGET --on PLACE --budget 30.75GiB"


def test_checkpoints_are_for_gradients_alone():
    forward = jaxresid.oom(LOGS / "easydel-108.txt")
    assert "plan" not in [way.kind for way in forward.ways]
    assert "plan" in [way.kind for way in jaxresid.oom(LOGS / "t5x-870.txt").ways]


STATS = """RESOURCE_EXHAUSTED: Out of memory while trying to allocate {asked} bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:   {arguments:.2f}GiB
        maybe_live_out allocation:   {outputs:.2f}GiB
     preallocated temp allocation:   {temps:.2f}GiB
                 total allocation:   {total:.2f}GiB
"""


def stats(arguments, outputs, temps, pool=""):
    total = arguments + outputs + temps
    said = STATS.format(
        asked=round(temps * GIB), arguments=arguments, outputs=outputs, temps=temps, total=total
    )
    return jaxresid.oom(f"{pool}\n{said}")


def test_donation_is_offered_where_it_saves_much():
    kinds = [way.kind for way in stats(10, 10, 20).ways]
    assert kinds[:3] == ["list-buffers", "donate", "plan"]
    assert stats(10, 10, 20).ways[1].nbytes == 10 * GIB
    assert "donate" not in [way.kind for way in stats(10, 1, 20).ways]


POOL = "Limit: {limit}\nInUse: {used}\n"


@pytest.mark.parametrize(
    ("limit", "used", "cause"),
    [(30, 10, "temporaries"), (60, 50, "held"), (60, 20, "fragmentation")],
)
def test_the_pool_decides(limit, used, cause):
    """A program of 40 GiB, 30 of them in one piece."""
    found = stats(5, 5, 30, POOL.format(limit=limit * GIB, used=used * GIB))
    assert (found.cause, found.is_certain) == (cause, True)


def test_more_of_the_gpu_is_offered_only_where_there_is_more():
    device = "{} bytes free, {} bytes total."
    pool = POOL.format(limit=60 * GIB, used=50 * GIB)
    there = [w.kind for w in stats(5, 5, 30, pool + device.format(GIB, 80 * GIB)).ways]
    full = [w.kind for w in stats(5, 5, 30, pool + device.format(GIB, 61 * GIB)).ways]
    assert ("fraction" in there, "fraction" in full) == (True, False)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Memory cgroup out of memory: Killed process 12 (python)", "host"),
        ("Container was OOM killed by the kernel (exit 137)", "host"),
        ("    reason: OOMKilled", "host"),
        ("Ran out of memory in memory space vmem while allocating on stack for %kernel", "on-chip"),
        (
            "TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, exceeding available"
            " bytes: 95.74G",
            "too-large",
        ),
    ],
)
def test_other_memories(text, cause):
    assert jaxresid.oom(text).cause == cause


def test_what_is_not_known_is_said_to_be_unknown():
    found = jaxresid.oom("step 1\nMemoryError: Unable to allocate 37.3 GiB\nstep 2")
    assert (found.cause, found.is_certain) == ("unknown", False)
    assert found.hints == ("MemoryError: Unable to allocate 37.3 GiB",)
    assert [way.kind for way in found.ways] == ["dump"]


@pytest.mark.parametrize("text", ["", "nothing", "RESOURCE_EXHAUSTED: Quota exceeded for metric"])
def test_what_is_about_something_else_is_unknown(text):
    assert jaxresid.oom(text).cause == "unknown"


def test_other_failures_are_not_dropped():
    lines = "\n".join(["x"] * 100)
    texts = [(LOGS / name).read_text() for name in ("easydel-166.txt", "gemma-85.txt")]
    found = jaxresid.oom(lines.join(texts))
    assert found.cause == "temporaries"
    assert [other.requested_nbytes for other in found.others] == [round(15.65 * GIB)]


def test_a_file_of_powershell(tmp_path):
    file = tmp_path / "log.txt"
    file.write_text((LOGS / "easydel-166.txt").read_text(), encoding="utf-16")
    assert jaxresid.oom(file) == jaxresid.oom(LOGS / "easydel-166.txt")


@pytest.mark.parametrize("path", ["nothing.txt", "/dev/zero"])
def test_what_cannot_be_read(path):
    with pytest.raises(JaxresidError, match=path):
        jaxresid.oom(where.DATA.parent / path)


def test_a_log_makes_no_other_file_be_read(tmp_path):
    """A log may name any file: only Python's are looked up, and no device."""
    for file in ("/dev/zero", "/etc/passwd", str(tmp_path)):
        text = f'1. Size: 1.00G\nOperator: op_name="x" source_file="{file}" source_line=1\n'
        assert jaxresid.oom(text).buffers[0].source.location.code == ""


@pytest.mark.integration
def test_a_log_loads_no_jax():
    code = (
        "import sys, jaxresid\n"
        f"jaxresid.oom(open({str(LOGS / 't5x-870.txt')!r}).read()).print()\n"
        "assert not {'jax', 'jaxlib', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


DUMPS = where.DATA / "dumps"


def traced():
    from tests.data.dumps import model

    return jaxresid.inspect(model.loss, on="tpu:v5e")(*model.loss_inputs())


def test_a_dump_of_a_tpu():
    found = jaxresid.oom(DUMPS / "tpu")
    assert (found.cause, found.is_certain) == ("temporaries", True)
    assert (found.source, found.on, found.phase) == ("dump", "tpu:v5e", "compile")
    assert found.ways[0].command == "jaxresid plan TARGET --on tpu:v5e --budget 15.75GiB"


def test_a_program_that_fits_is_not_called_too_large():
    found = jaxresid.oom(DUMPS / "gpu")
    assert (found.cause, found.is_certain) == ("held", False)
    assert found.required_nbytes < found.capacity_nbytes


def test_a_folder_without_a_dump(tmp_path):
    with pytest.raises(JaxresidError, match="has no buffer assignment of XLA's"):
        jaxresid.oom(tmp_path)


@pytest.mark.parametrize("name", ["tpu", "gpu"])
def test_residuals_of_the_target(name):
    """The log is of another machine: the file has another path there."""
    found = jaxresid.oom(DUMPS / name, traced())
    names = {buffer.residual for buffer in found.buffers if buffer.origin is not None}
    assert names == {"sin", "cos"}
    assert {b.residual for b in found.buffers[:2]} == {"sin", "cos"}
    assert found.buffers[0].source.location.line == 9
    assert found.matched_nbytes >= 0.85 * found.required_nbytes
    assert found.target.name == "loss"


def test_residuals_of_a_log():
    """A log lists buffers as a dump has them."""
    text = """RESOURCE_EXHAUSTED: Out of memory while trying to allocate 28051574320 bytes.
Peak buffers:
        Buffer 1:
                Size: 12.00GiB
                Operator: op_name="jit(loss)/jvp()/while/body/eval_jaxpr/cos" AT
                XLA Label: fusion
                Shape: f32[12,65536,4096]
                ==========================

        Buffer 2:
                Size: 1.00GiB
                Entry Parameter Subshape: f32[65536,4096]
                ==========================
""".replace("AT", 'source_file="/elsewhere/model.py" source_line=9')
    found = jaxresid.oom(text, traced())
    assert [buffer.residual for buffer in found.buffers] == ["cos", None]
    assert found.matched_nbytes == 13 * GIB
    assert jaxresid.oom(text).matched_nbytes is None


def test_the_report_of_the_target_stands_beside_the_log():
    text = "Ran out of memory in memory space hbm. Used 23.88G of 15.75G hbm."
    report = traced()
    found = jaxresid.oom(text, report).trace
    assert (found.place, found.peak_nbytes) == ("tpu:v5e", report.peak.nbytes)
    assert found.kept_nbytes == report.totals.computed_nbytes
    assert found.arguments_nbytes == report.peak.arguments_nbytes
    assert [line.source.location.line for line in found.lines] == [9, 11]
    live = sum(value.nbytes for value in report.peak.live if value.source.location)
    assert sum(line.nbytes for line in found.lines) == live
    warned = dataclasses.replace(report, warnings=("it may be wrong",))
    assert jaxresid.oom(text, warned).notes == ("it may be wrong",)
    assert jaxresid.oom(text).trace is None


TRACEBACK = """
E1120 10:14:38.4 41021 pjrt_stream_executor_client.cc:2985] Execution of replica 0 failed: {error}
Traceback (most recent call last):
  File "/home/me/gpt/train.py", line 38, in <module>
    main()
{frames}
{error}
"""
ERROR = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 137492627456 bytes."


def of_traceback(frames, error=ERROR):
    return jaxresid.oom(TRACEBACK.format(frames=frames, error=error)).function


@pytest.mark.parametrize(
    ("frames", "function"),
    [
        (
            '  File "/home/me/gpt/train.py", line 33, in main\n'
            "    loss = train_step(model, optimizer, tokens[:, 1:])\n"
            "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
            '  File "/home/me/.venv/lib/python3.12/site-packages/flax/nnx/c.py", line 431, in f\n'
            "    out = self.jitted_fn(*args, **kwargs)",
            "train.py:train_step",
        ),
        (
            '  File "/home/me/gpt/train.py", line 33, in main\n'
            "    print(step(make(x)))\n"
            "          ^^^^^^^^^^^^^",
            "train.py:step",
        ),
        ('  File "/a/m.py", line 3, in main\n    x = update(y)\n  [... skipping]', "m.py:update"),
        ('  File "/a/m.py", line 3, in forward\n    return jnp.dot(x, y)', "m.py:forward"),
        ('  File "/a/m.py", line 3, in main\n    float(loss)', ""),
        ('  File "/a/m.py", line 3, in main\n    self.step(x)', ""),
        ('  File "<stdin>", line 3, in main\n    step(x)', ""),
    ],
)
def test_the_function_of_the_traceback(frames, function):
    assert of_traceback(frames) == function


def test_a_traceback_of_another_error_names_nothing():
    frames = '  File "/a/m.py", line 3, in main\n    x = update(y)'
    assert of_traceback(frames, "ValueError: no") == ""
    handled = TRACEBACK.format(frames=frames, error="KeyError: 'x'") + f"step 1\n{ERROR}\n"
    assert jaxresid.oom(handled).function == ""


def test_a_guessed_function_stands_in_the_commands(tmp_path, monkeypatch):
    frames = '  File "/home/me/gpt/src/train.py", line 33, in main\n    train_step(model)'
    log = TRACEBACK.format(frames=frames, error=ERROR)
    monkeypatch.chdir(tmp_path)
    assert jaxresid.oom(log).ways[0].command.startswith("jaxresid compile train.py:train_step ")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("train_step = jit(step)\n")
    assert jaxresid.oom(log).function == "src/train.py:train_step"
    (tmp_path / "src" / "train.py").write_text("class Trainer:\n    def train_step(self): ...\n")
    assert jaxresid.oom(log).function == ""
    assert "TARGET" in jaxresid.oom(log).ways[0].command


SMALLEST = (
    "hlo_rematerialization.cc:3005] Can't reduce memory use below 54.12GiB (58109067264 bytes) by"
    " rematerialization; only reduced to 141.30GiB (151720034304 bytes), down from 141.62GiB"
    " (152063639552 bytes) originally\n"
)


@pytest.mark.parametrize(
    ("asked", "cause", "is_certain"),
    [(137492627456, "temporaries", True), (60 * GIB, "temporaries", False), (GIB, "held", False)],
)
def test_what_xla_could_not_make_small_enough_is_temporaries(asked, cause, is_certain):
    log = f"{SMALLEST}RESOURCE_EXHAUSTED: Out of memory while trying to allocate {asked} bytes."
    found = jaxresid.oom(log)
    assert (found.rematerialized_nbytes, found.rematerialization_limit_nbytes) == (
        151720034304,
        58109067264,
    )
    assert (found.cause, found.is_certain) == (cause, is_certain)
    assert jaxresid.oom(SMALLEST).cause == "unknown"


@pytest.mark.parametrize(
    ("text", "platform", "cause", "asked", "free"),
    [
        (
            "ValueError: RESOURCE_EXHAUSTED: Attempting to allocate 3.98G. That was not possible."
            " There are 3.97G free.",
            *("tpu", "held", round(3.98 * GIB), round(3.97 * GIB)),
        ),
        (
            "RESOURCE_EXHAUSTED: Error loading program 'jit_train_step': Attempting to allocate"
            " 1.82G. That was not possible. There are 1.54G free.",
            *("tpu", "held", round(1.82 * GIB), round(1.54 * GIB)),
        ),
        (
            "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 196.00M."
            " That was not possible. There are 134.44M free.; (1x0x0_HBM0): while running replica",
            *("tpu", "held", 196 * MIB, round(134.44 * MIB)),
        ),
        (
            "Resource exhausted: Attempting to reserve 6.48G at the bottom of memory. That was not"
            " possible. There are 6.78G free, 0B reserved, and 3.33G reservable.",
            *("tpu", "fragmentation", round(6.48 * GIB), round(6.78 * GIB)),
        ),
        (
            "INTERNAL: pinned host allocation failed. Please set the environment variable"
            " XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB to allocate larger host memory than the default",
            *("gpu", "pinned-host", None, None),
        ),
        (
            "cuda_driver.cc:796] failed to alloc 12524123136 bytes on host: CUDA_ERROR_OPERATING",
            *("gpu", "pinned-host", 12524123136, None),
        ),
        (
            "Allocator (gpu_host_bfc) ran out of memory trying to allocate 16.00GiB (rounded to"
            " 17179869184)requested by op",
            *("gpu", "pinned-host", 17179869184, None),
        ),
        ("Out of memory allocating 34359738368 bytes.", "cpu", "too-large", 2**35, None),
    ],
)
def test_short_forms(text, platform, cause, asked, free):
    found = jaxresid.oom(text)
    assert (found.platform, found.cause) == (platform, cause)
    assert (found.requested_nbytes, found.pool.free_nbytes) == (asked, free)


def test_more_of_the_pinned_memory_is_offered():
    found = jaxresid.oom("failed to alloc 150000000000 bytes on host: CUDA_ERROR_OUT_OF_MEMORY")
    (way,) = found.ways
    assert way.command == "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB=512 python train.py"


def test_a_line_of_another_machine_is_found_by_the_end_of_its_path():
    buffer = PeakBuffer("temporary", 1, file="/elsewhere/dumps/model.py", line=9)
    here = str(where.DATA / "dumps" / "model.py")
    assert as_here(buffer, frozenset({here, "/other/model.py"})).file == here
    assert as_here(buffer, frozenset({"/a/model.py", "/b/model.py"})) == buffer
    assert as_here(buffer, frozenset({"/a/train.py"})) == buffer
