"""What XLA finds out by timing on a GPU, and what can be said of it where there is none.

On a GPU XLA times kernels for each matmul and takes the fastest: one of Triton's, which computes
what leads to the matmul as it goes, or cuBLAS's, which reads arrays. Without a GPU it takes
Triton's wherever there is one. Told to leave those alone it takes cuBLAS's, and which of the two
programs needs more memory differs. Of 56 programs two took over 3 % more on an H100 than the larger
of both (`tests/benchmarks/accuracy/autotuned.py`).
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

from jaxresid.xla.job import Compilation, Job

FLAG = "xla_gpu_enable_triton_gemm"
# The kinds of Triton's matmuls: jaxlib 0.10.2 to 0.12.0.1 have the second after optimization.
_TRITON = re.compile(rb'"kind":"__triton(?:_nested)?_gemm')


def has_triton_matmul(module: bytes) -> bool:
    """Return whether an optimized HloModuleProto has a matmul that is a kernel of Triton's."""
    return _TRITON.search(module) is not None


def with_cublas(job: Job) -> Job | None:
    """Return the job that compiles the same with cuBLAS's matmuls alone.

    None where that is not the question: XLA times kernels there, or has no choice, or the user has
    chosen.
    """
    chosen = {name for name, _ in job.flags}
    is_chosen = FLAG in chosen or FLAG in os.environ.get("XLA_FLAGS", "")
    if not job.place.target_config or is_chosen:
        return None
    label = f"{job.label or job.place.text} with cuBLAS"
    return replace(job, flags=(*job.flags, (FLAG, "false")), within_nbytes=None, label=label)


def job_left(job: Job, result: Compilation) -> Job | None:
    """Return what has to be compiled as well before there is an answer; None where nothing.

    That is the program with cuBLAS's matmuls, where it would be said to fit, or failed: without a
    GPU XLA takes kernels of Triton's that it cannot always make.
    """
    if result.error is not None:
        is_by_compiler = result.seconds is not None and not result.transient
        return with_cublas(job) if is_by_compiler else None
    nbytes = result.stats.get("peak_nbytes")
    if job.within_nbytes is None or nbytes is None or nbytes > job.within_nbytes:
        return None
    return with_cublas(job) if result.has_triton_matmul else None


def joined(result: Compilation, other: Compilation) -> Compilation:
    """Return a result with the peak of the same program compiled with cuBLAS's matmuls alone.

    Where it failed it is that of the same program, with `triton_error`, or both errors.
    """
    shared: dict[str, Any] = {
        "transient": result.transient or other.transient,
        "cached": result.cached and other.cached,
        "seconds": None if result.seconds is None else result.seconds + (other.seconds or 0.0),
    }
    if result.error is not None:
        if other.error is None:
            return replace(other, triton_error=result.error, **shared)
        both = f"{result.error}; with cuBLAS's matmuls: {other.error}"
        return replace(
            result, error=result.error if other.error == result.error else both, **shared
        )
    nbytes = other.stats.get("peak_nbytes")
    error = None if nbytes is not None else other.error or "XLA reports no peak"
    return replace(result, cublas_nbytes=nbytes, cublas_error=error, **shared)
