"""GPUs that are not there: what XLA's CUDA compiler says of them, each compile in a process."""

import functools
import glob
import importlib.metadata
import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxresid
from fixtures.inspect import gpt, offload, train_step
from jaxresid import jax_compat
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.residuals.matching import matched
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.xla import compiler, places
from jaxresid.xla.gpus import GPUS
from jaxresid.xla.job import Job
from jaxresid.xla.places import for_devices, parse_place
from jaxresid.xla.processes.process import execute
from tests.where import ROOT

pytestmark = pytest.mark.gpu
GIB = 2**30


def asked(fun, inputs, on="gpu:h100", **options):
    """A job, and the subject that it is of."""
    found = subject(Question(fun, inputs, **options))
    module = lowered(found.trace, "cuda")
    return Job(module, for_devices(parse_place(on), module.devices)), found


def answer(*args, **options):
    return execute(asked(*args, **options)[0])


def f32(*shape, **options):
    return jax.ShapeDtypeStruct(shape, jnp.float32, **options)


def loss(w, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)


def split(*spec, devices=8):
    mesh = jax_compat.new_mesh({"data": devices}, explicit=False)
    return NamedSharding(mesh, PartitionSpec(*spec))


@functools.cache
def job_over(devices, program):
    """The job of a program over more CPU devices than this process has."""
    code = f"""
import pickle, sys
from tests.xla.test_gpu import *
sys.stdout.buffer.write(pickle.dumps(asked(*{program})[0]))
"""
    environment = {"JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        cwd=ROOT,
        env=os.environ | environment,
    )
    return pickle.loads(done.stdout)


def meshed(devices=8):
    whole, parts = split(devices=devices), split("data", devices=devices)
    return f32(256, 256, sharding=whole), f32(1024, 256, sharding=parts)


def scanned(policy):
    """`gpt.loss_scan` with each layer under a policy, and its inputs, the batch over a mesh or not.

    `none` is no checkpoint.
    """
    policies = jax.checkpoint_policies
    chosen = {
        "dots": policies.dots_saveable,
        "dots_no_batch": policies.dots_with_no_batch_dims_saveable,
        "nothing": policies.nothing_saveable,
        "offloaded": policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
    }
    layer = gpt.layer
    if policy != "none":
        layer = jax.checkpoint(gpt.layer, policy=chosen[policy], prevent_cse=False)

    def loss(stacked, x):
        x, _ = jax.lax.scan(lambda x, p: (layer(x, p), None), x, stacked)
        return x.astype(jnp.float32).sum()

    return loss


def batch_over_eight():
    weights, x = gpt.loss_scan_inputs()
    whole, parts = split(), split("data")
    return (
        {k: jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=whole) for k, w in weights.items()},
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=parts),
    )


PROGRAMS = {
    "scan": lambda: (gpt.loss_scan, (gpt.weights(256, 2), gpt.tokens(2, 128, 256))),
    "unrolled": lambda: (gpt.loss, ([gpt.weights(256)] * 2, gpt.tokens(2, 128, 256))),
    "donated": lambda: (train_step.train_step_donated, train_step.train_step_donated_inputs()),
    "offloaded": lambda: (offload.offloaded, offload.inputs()),
    "on the host": lambda: (offload.weights_on_host, offload.weights_on_host_inputs()),
}
EIGHT = "(loss, meshed())"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PROGRAMS, "eight"])
def test_stopping_early_changes_no_byte(name):
    job = job_over(8, EIGHT) if name == "eight" else asked(*PROGRAMS[name]())[0]
    found = execute(job)
    assert found.error is None
    devices = compiler._devices(job.place, job.module.devices)
    flags = {"xla_gpu_cuda_data_dir": places.cuda_toolkit()}
    whole = jax_compat.compiled(job.module.code, devices, flags).get_compiled_memory_stats()
    full = compiler._with_peak(compiler._stats(whole))
    assert "generated_code_nbytes" not in found.stats
    assert dict(found.stats) == {n: b for n, b in full.items() if n != "generated_code_nbytes"}


@pytest.mark.slow
def test_what_the_programs_put_where():
    """Else the figures that are held against each other above are mostly zeros."""
    assert answer(*PROGRAMS["donated"]()).stats["alias_nbytes"] > 0
    assert answer(*PROGRAMS["offloaded"]()).stats["host_temp_nbytes"] > 0
    on_host = answer(*PROGRAMS["on the host"]())
    assert on_host.stats["host_argument_nbytes"] == 20 << 20
    eight = execute(job_over(8, EIGHT))
    assert eight.stats["argument_nbytes"] == 4 * (256 * 256 + 1024 * 256 // 8)
    assert eight.output_shards == ((), (256, 256), (128, 256))
    assert sum(op.count for op in eight.collectives if op.opcode == "all-reduce") >= 1


@pytest.mark.parametrize("name", [gpu.name for gpu in GPUS])
def test_each_gpu_compiles_something(name):
    found = answer(loss, (f32(256, 256), f32(1024, 256)), f"gpu:{name}")
    assert found.error is None
    least = 4 * 2 * (256 * 256 + 1024 * 256)
    assert found.stats["argument_nbytes"] + found.stats["output_nbytes"] >= least
    assert 0.8 < found.live_nbytes / found.stats["peak_nbytes"] <= 1
    assert found.capacity_nbytes is None  # the place knows it
    version = importlib.metadata.version("jax-cuda12-plugin")
    assert found.compiler.endswith(f", jax-cuda12-plugin {version}")
    assert any("NCCL" in note for note in found.notes)


# GiB of one H100 by the minor version of jaxlib: what was measured when the plugin was first tried.
MEASURED = {
    "none": {10: 14.27, 12: 13.55},
    "dots": {10: 6.47, 12: 6.71},
    "dots_no_batch": {10: 3.30, 12: 3.55},
    "nothing": {10: 1.65, 12: 2.08},
    "offloaded": {10: 1.79, 12: 1.82},
}


def measured(figures):
    minor = int(importlib.metadata.version("jaxlib").split(".")[1])
    if minor not in figures:
        pytest.skip("measured with other versions of jaxlib")
    return figures[minor] * GIB


@pytest.mark.slow
@pytest.mark.parametrize("policy", MEASURED)
def test_the_scanned_gpt_under_five_policies(policy):
    expected = measured(MEASURED[policy])
    job, about = asked(scanned(policy), gpt.loss_scan_inputs())
    found = execute(job)
    assert found.stats["peak_nbytes"] == pytest.approx(expected, rel=0.01)
    assert 0.97 < found.live_nbytes / found.stats["peak_nbytes"] <= 1
    host = 1.5 * GIB if policy == "offloaded" else 0
    assert found.stats["host_temp_nbytes"] == pytest.approx(host, rel=0.01)
    if policy == "none":
        _, nbytes = matched(found.buffers, about.residuals, about.trace.parameters)
        assert nbytes >= 0.95 * found.live_nbytes


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "figures"), [("none", {10: 2.29}), ("nothing", {10: 0.72})])
def test_the_scanned_gpt_with_its_batch_over_eight(policy, figures):
    expected = measured(figures)
    found = execute(job_over(8, f"(scanned({policy!r}), batch_over_eight())"))
    assert found.stats["peak_nbytes"] == pytest.approx(expected, rel=0.01)
    assert any(op.opcode.startswith(("all-reduce", "reduce-scatter")) for op in found.collectives)


def test_two_hosts_of_eight():
    job = job_over(16, "(loss, meshed(16))")
    assert job.place.text == "gpu:h100:2x8"
    found = execute(job)
    assert found.error is None
    assert found.stats["argument_nbytes"] == 4 * (256 * 256 + 1024 * 256 // 16)


def test_more_gpus_than_the_place_has():
    found = execute(replace(job_over(8, EIGHT), place=parse_place("gpu:h100:4")))
    assert found.error == "the program is split over 8 devices, but gpu:h100:4 has 4"


def sines(weights, x):
    for w in weights:
        x = jnp.sin(x @ w)
    return jnp.sum(x.astype(jnp.float32))


def sines_inputs():
    def bf16(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    return [bf16(1024, 1024)] * 4, bf16(65536, 1024)


def row_of(on="gpu:h100", fun=sines, inputs=sines_inputs, **flags):
    compiled = jaxresid.compile(fun, on=on, flags=flags, cache=False)(*inputs())
    return compiled.compiled[0]


def attention(out, x):
    """A product of three, of which Triton's matmul cannot be tiled."""
    scores = jnp.einsum("bthk,bshk->bhts", x, x)
    return jnp.sum(jnp.einsum("bhqt,bthk,hkd->bqd", scores, x, out).astype(jnp.float32) ** 2)


def attention_inputs(batch=32, length=49, heads=3, width=32):
    shapes = (heads, width, heads * width), (batch, length, heads, width)
    return tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 12), reason="XLA of jaxlib 0.12.0.1 tiles all that was tried"
)
def test_what_triton_cannot_tile_is_compiled_with_cublas():
    row = row_of(fun=attention, inputs=attention_inputs)
    cublas = row_of(fun=attention, inputs=attention_inputs, xla_gpu_enable_triton_gemm=False)
    triton = row_of(fun=attention, inputs=attention_inputs, xla_gpu_enable_triton_gemm=True)
    assert (row.error, row.fits) == (None, True)
    assert row.peak_nbytes == row.cublas_peak_nbytes == cublas.peak_nbytes > 0
    assert any("with cuBLAS's matmuls alone" in note for note in row.notes)
    assert triton.error.startswith("only because the GPU is not here")
    assert "Couldn't find output tile sizes" in triton.error


def test_what_jax_lowers_only_beside_a_gpu_says_so():
    row = row_of(fun=lambda x: jnp.sum(jnp.abs(jnp.linalg.eigvals(x))), inputs=lambda: (f32(8, 8),))
    assert row.error.startswith("JAX cannot lower this for cuda: ")
    assert "only a machine with an NVIDIA GPU tells" in row.error


@pytest.mark.slow
def test_it_fits_with_both_kinds_of_matmuls_or_it_may_not():
    """The sines are computed inside Triton's matmuls, and are arrays for cuBLAS's."""
    both = row_of()
    cublas = row_of(xla_gpu_enable_triton_gemm=False)
    triton = row_of(xla_gpu_enable_triton_gemm=True)
    assert (both.peak_nbytes, both.cublas_peak_nbytes) == (triton.peak_nbytes, cublas.peak_nbytes)
    assert both.cublas_peak_nbytes - both.peak_nbytes >= 3 * 65536 * 1024 * 2
    assert triton.cublas_peak_nbytes is cublas.cublas_peak_nbytes is None
    between = (both.peak_nbytes + both.cublas_peak_nbytes) // 2
    h100 = parse_place("gpu:h100")
    tight = row_of(replace(h100, memory_nbytes=between))
    assert (both.fits, both.may_fit, tight.fits, tight.may_fit) == (True, False, False, True)
    tighter = row_of(replace(h100, memory_nbytes=both.peak_nbytes - 1))
    assert (tighter.fits, tighter.may_fit, tighter.cublas_peak_nbytes) == (False, False, None)


@pytest.mark.slow
def test_a_gpu_without_triton_has_one_kind():
    row = row_of("gpu:v100")
    assert (row.error, row.fits, row.cublas_peak_nbytes) == (None, True, None)


def test_what_is_too_big_is_for_us_to_refuse():
    found = answer(loss, (f32(2**16, 2**16), f32(2**17, 2**16)), "gpu:v100")
    assert found.error is None
    assert found.stats["peak_nbytes"] > 3 * parse_place("gpu:v100").memory_nbytes


def test_a_description_that_xla_does_not_read(tmp_path):
    file = tmp_path / "newer.txtpb"
    text = parse_place("gpu:h100").target_config
    file.write_text(text.replace("core_count:", "no_such_field: 1\n  core_count:"))
    found = answer(loss, (f32(8, 8), f32(8, 8)), f"gpu:{file}")
    assert found.error.startswith(f"gpu:{file} is not available: ")
    assert "\n" not in found.error


# Without the folders where a CUDA toolkit usually is; those in HIDDEN as well.
HIDE = """
for folder in /usr/local/cuda* /opt/cuda* $HIDDEN; do
  if [ -d "$folder" ] && [ ! -L "$folder" ]; then mount -t tmpfs none "$folder" || exit 77; fi
done
exec "$@"
"""
ASK = """
import json
from tests.xla.test_gpu import answer, f32, loss
found = answer(loss, (f32(256, 256), f32(1024, 256)))
print(json.dumps([found.error, dict(found.stats)]))
"""


def without_cuda(code, *hidden):
    """What a program prints where no CUDA toolkit and none of some folders can be found."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("hides folders by unshare, which is not here")
    found = {k: v for k, v in os.environ.items() if not k.startswith("CUDA")}
    environment = {"PATH": "/usr/bin:/bin", "HIDDEN": " ".join(hidden), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [
            unshare,
            "--map-root-user",
            "--mount",
            "bash",
            "-c",
            HIDE,
            "_",
            sys.executable,
            "-c",
            code,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=found | environment,
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip("this machine lets nobody mount")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_no_cuda_toolkit_is_needed():
    inside = without_cuda("import shutil; print(shutil.which('ptxas'))")
    assert inside.strip() == "None"
    error, stats = json.loads(without_cuda(ASK))
    assert error is None
    assert stats == dict(answer(loss, (f32(256, 256), f32(1024, 256))).stats)


def test_without_the_assembler_a_row_says_what_to_install():
    error, _ = json.loads(without_cuda(ASK, str(Path(places.cuda_toolkit()).parent)))
    assert "needs nvidia-cuda-nvcc-cu12" in error
    assert "pip install 'jaxresid[gpu]'" in error


def test_the_command_line_logs_no_traceback_of_a_plugin_without_a_gpu():
    if glob.glob("/dev/nvidia[0-9]*"):
        pytest.skip("there is a GPU, whose plugin may say what it likes")
    done = subprocess.run(
        [sys.executable, "-m", "jaxresid", "report", "fixtures/inspect/gpt.py:loss"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={name: text for name, text in os.environ.items() if name != "JAX_PLATFORMS"},
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr and "plugin" not in done.stderr
