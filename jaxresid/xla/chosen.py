"""Choose the place that an answer is for: the one that was asked for, or the accelerator here."""

from __future__ import annotations

import functools
import glob
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace

from jaxresid import jax_compat
from jaxresid.xla.gpus import GPUS
from jaxresid.xla.places import Place, parse_place, why_unavailable

DEFAULT = "gpu:h100"
_TIMEOUT_S = 60
# JAX's names of the TPUs, in lower case, and ours.
_TPU_KINDS = {
    "tpu v2": "v2",
    "tpu v3": "v3",
    "tpu v4": "v4",
    "tpu v5 lite": "v5e",
    "tpu v5e": "v5e",
    "tpu v5": "v5p",
    "tpu v5p": "v5p",
    "tpu v6 lite": "v6e",
    "tpu v6e": "v6e",
    "tpu7x": "tpu7x",
    "tpu v7x": "tpu7x",
}
# The packages through which JAX sees an accelerator, and the files by which a machine has one.
_ACCELERATORS = (
    (("jax_cuda12_plugin", "jax_cuda13_plugin"), ("/dev/nvidia[0-9]*", "/dev/dxg")),
    (("libtpu",), ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")),
)
_ASK = (
    "import json, jax; d = jax.local_devices()[0];"
    " print(json.dumps([d.platform, d.device_kind, d.client.platform_version]))"
)


def choose(
    on: str | Place | None,
    *,
    memory_fraction: float | None = None,
    margin_nbytes: int = 0,
    compiles: bool = False,
) -> Place:
    """Return the place that is asked for; without one the accelerator here, else `gpu:h100`.

    Args:
      on: a place, or how users write one; None: no place was asked for.
      compiles: whether something is compiled for it. The GPU here compiles where it is if nothing
        here compiles for its name, as with JAX's plugin for CUDA 13.

    Raises:
      InputsError: the text is not a place.
    """
    if isinstance(on, Place):
        return on
    here = place_here() if on is None else None
    if on is not None:
        text, origin = on, "as asked"
    elif here is not None:
        text, origin = here, "the accelerator that JAX sees here"
    else:
        text, origin = DEFAULT, "the default, as JAX sees no accelerator here"
    place = parse_place(text, memory_fraction=memory_fraction, margin_nbytes=margin_nbytes)
    if compiles and here is not None and place.target_config and why_unavailable(place):
        place = parse_place("gpu", memory_fraction=memory_fraction, margin_nbytes=margin_nbytes)
    return replace(place, origin=origin)


@functools.cache
def place_here() -> str | None:
    """Return the accelerator that JAX sees on this machine as a place; None where it sees none.

    Where JAX has not looked yet another process does, so that this one takes no accelerator; and
    none is started on a machine without the files of a device.
    """
    seen = jax_compat.first_device()
    if seen is None and may_have_accelerator():
        seen = _asked()
    return None if seen is None else place_of_device(*seen)


def place_of_device(platform: str, kind: str, version: str) -> str | None:
    """Return a device of JAX as a place; None for one that is no place, such as a CPU.

    The version of its client tells CUDA from ROCm.
    """
    if platform == "tpu":
        name = _TPU_KINDS.get(kind.lower())
        return None if name is None else f"tpu:{name}"
    if platform not in ("gpu", "cuda") or "rocm" in version.lower():
        return None
    gpu = next((gpu for gpu in GPUS if f'"{kind}"' in gpu.target_config), None)
    return "gpu" if gpu is None else f"gpu:{gpu.name}"


def may_have_accelerator() -> bool:
    """Return whether this machine has the files of a device that an installed package is for."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and not {"gpu", "cuda", "tpu"} & set(platforms.split(",")):
        return False
    return any(
        any(importlib.util.find_spec(package) for package in packages)
        and any(glob.glob(pattern) for pattern in files)
        for packages, files in _ACCELERATORS
    )


def _asked() -> tuple[str, str, str] | None:
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env=environment,
            check=True,
        )
        platform, kind, version = json.loads(process.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return platform, kind, version
