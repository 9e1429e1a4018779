"""What JAX and XLA cannot do for a device only because it is not here, by what they say then."""

from __future__ import annotations

import re

# What JAX says when it lowers, and the reason in words that tell what to do.
_LOWERING = (
    (
        r"cuDNN (is )?not (detected|found)|dot_product_attention_",
        "it calls cuDNN's attention (implementation='cudnn'), which needs an NVIDIA GPU",
    ),
    (
        r"is different from the lowering platform",
        "it calls back into Python (jax.debug.print, pure_callback, io_callback), which JAX lowers"
        " only where the device is present; leave those calls out",
    ),
    # jnp.linalg.eig asks for cuSOLVER's.
    (
        r"versions_helpers\.cc|Error loading CUDA libraries",
        "JAX asks for the version of one of CUDA's libraries, which only a machine with an NVIDIA"
        " GPU tells",
    ),
)
# What XLA:GPU says where it cannot choose or try a kernel, in jaxlib 0.9 to 0.12.0.1.
_COMPILING = re.compile(
    r"output tile sizes|[Aa]utotuning failed|[Nn]o supported configs|[Cc]ould not get config for"
    r"|config for \w+ backend without device|[Nn]o valid config|target compilation environment"
    r"|[Ss]tream ?[Ee]xecutor|cudnn handle|GPU driver|CUDA_ERROR|cuInit|cuDeviceGet"
)


def reason_not_lowered(error: str) -> str | None:
    """Return why JAX lowers something only where the device is; None where that is not why."""
    reasons = (reason for pattern, reason in _LOWERING if re.search(pattern, error))
    return next(reasons, None)


def with_reason(error: str) -> str:
    """Return what a GPU's compiler says where there is no GPU, after the reason if that is it."""
    if _COMPILING.search(error):
        return f"only because the GPU is not here, on which XLA chooses and tries kernels: {error}"
    return error
