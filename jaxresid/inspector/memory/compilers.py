"""Which compiler's rules the estimate for a place follows."""

from __future__ import annotations

from jaxresid import jax_compat
from jaxresid.inspector.memory.compiler_versions import cpu_compiler
from jaxresid.inspector.memory.cpu.profile import Cpu
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.tpu.profile import Tpu
from jaxresid.model import PlaceInfo
from jaxresid.xla.places import Place


def profile_of(place: Place) -> Profile:
    """Return what the compiler of a place materialises; that of GPUs is taken for a TPU's."""
    if place.platform != "cpu":
        return Tpu()
    jaxlib = jax_compat.jaxlib_version()
    is_kept = cpu_compiler(jaxlib).keeps_barriers
    return Cpu("" if is_kept else f"XLA:CPU of jaxlib {jaxlib}")


def place_info(place: Place) -> PlaceInfo:
    """Return a place as results show it."""
    return PlaceInfo(
        place.text, place.kind, place.origin, profile_of(place).name, place.memory_nbytes
    )
