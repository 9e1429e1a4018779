"""Which compiler's rules the estimate for a place follows."""

from __future__ import annotations

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError
from jaxresid.inspector.memory.intervals import Gradients, basis_of
from jaxresid.inspector.memory.profile import GPU, GPU_BEFORE_0_12, TPU, Profile
from jaxresid.results import Mesh, PlaceInfo
from jaxresid.xla.places import Place


def profile_of(place: Place, jaxlib: str | None = None) -> Profile:
    """Return what the compiler of a place materialises.

    For a place without an estimate it is a guide to what may be worth asking the compiler about;
    none of its figures are shown.

    Args:
      place: the place.
      jaxlib: the version of jaxlib, whose compiler a GPU's is; None: the installed one.
    """
    if place.platform == "tpu":
        return TPU
    release = (jaxlib or jax_compat.jaxlib_version()).split(".")[:2]
    return GPU_BEFORE_0_12 if [int(part) for part in release] < [0, 12] else GPU


def has_estimate(place: Place) -> bool:
    """Return whether peaks at a place are estimated; a CPU's compiler is asked, in seconds."""
    return place.platform != "cpu"


def check_lifetimes(place: Place) -> None:
    """Raise an error if there are no lifetimes of values at a place, as there is no estimate.

    Raises:
      InputsError: there is none.
    """
    if not has_estimate(place):
        raise InputsError(
            f"lifetimes are part of the estimate, and there is none for {place.text}, whose"
            " compiler is asked instead; ask about an accelerator, such as gpu:h100, which need not"
            " be here"
        )


def place_info(place: Place, mesh: Mesh | None = None, gradients: Gradients = "one") -> PlaceInfo:
    """Return a place as results show it.

    Args:
      place: the place.
      mesh: what the program is split over; None: one device.
      gradients: how many the program takes.
    """
    is_split = mesh is not None and mesh.size > 1
    is_estimated = has_estimate(place)
    basis = None
    if is_estimated:
        versions = jax_compat.compilers()
        basis = basis_of(place.kind, versions, is_split=is_split, gradients=gradients)
    return PlaceInfo(
        place.text,
        place.kind,
        place.origin,
        profile_of(place).name if is_estimated else None,
        place.memory_nbytes,
        basis,
    )
