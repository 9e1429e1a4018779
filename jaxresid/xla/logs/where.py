"""Tell which place a log is of."""

from __future__ import annotations

from jaxresid.xla import tpus
from jaxresid.xla.gpus import GPUS
from jaxresid.xla.logs.failure import Failure

# Figures of logs have two decimals of a GiB, and libtpu's own differ by one of the last.
_ROUNDING_NBYTES = 2**30 * 2 // 100


def place_of(failure: Failure) -> str:
    """Return the place that a log is of, `tpu:v5e`; '' where it names none that is known.

    A GPU is known by its name, a TPU by the memory that a program can have.
    """
    if failure.platform == "cpu":
        return "cpu"
    if failure.device.startswith(("gpu:", "tpu:")):  # of a dump
        return failure.device
    if failure.platform == "gpu":
        named = (gpu.name for gpu in GPUS if failure.device and failure.device in gpu.target_config)
        return next((f"gpu:{name}" for name in named), "")
    capacity = failure.capacity_nbytes
    if failure.platform != "tpu" or capacity is None:
        return ""
    generations = {
        it.generation
        for it in tpus.topologies()
        if abs(it.memory_nbytes - capacity) <= _ROUNDING_NBYTES
    }
    return f"tpu:{next(iter(generations))}" if len(generations) == 1 else ""
