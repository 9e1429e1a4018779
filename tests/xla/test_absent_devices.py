"""Failures that only the absence of a device causes, by the words of JAX and XLA."""

import pytest

from jaxresid.xla.absent_devices import reason_not_lowered, with_reason


@pytest.mark.parametrize(
    "error",
    [
        "INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.54 = bf16[50176,768]",
        "NOT_FOUND: Autotuning failed for HLO: %fusion. No supported configs found for this",
        "INTERNAL: Autotuning failed. Profiler is null (no Tuner available).",
        "UNIMPLEMENTED: Cannot get default config for cudnn backend without device.",
        "INTERNAL: Could not get config for HLO: %dot",
        "SIGABRT: compiler.cc:12] Check failed: stream_exec->StreamExecutor() != nullptr",
    ],
)
def test_what_xla_asks_the_gpu_for(error):
    assert with_reason(error) == (
        f"only because the GPU is not here, on which XLA chooses and tries kernels: {error}"
    )


@pytest.mark.parametrize(
    "error",
    [
        "UNIMPLEMENTED: Unsupported algorithm on the current device(s): ALG_DOT_BF16_BF16_F32",
        "UNIMPLEMENTED: Can't lower one or more integer convolutions to idioms supported by CuDNN.",
        "INVALID_ARGUMENT: No such compile option: 'xla_no_such_flag'",
        "compiling for a GPU needs jax-cuda12-plugin, but no GPU; install it with: pip",
        "took longer than 600 s",
        "killed (out of memory?)",
    ],
)
def test_what_the_program_or_the_machine_is_to_blame_for(error):
    assert with_reason(error) == error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("cuDNN is not detected.", "it calls cuDNN's attention"),
        ("cuDNN not found.", "it calls cuDNN's attention"),
        (
            "jaxlib/cuda/versions_helpers.cc:66: operation cusolverGetVersion(&version) failed",
            "JAX asks",
        ),
        ("the platform is different from the lowering platform", "it calls back into Python"),
        ("MLIR translation rule for primitive 'schur' not found for platform cuda", None),
    ],
)
def test_what_jax_lowers_only_where_the_device_is(error, reason):
    said = reason_not_lowered(error)
    assert (said is None) == (reason is None)
    assert reason is None or said.startswith(reason)
