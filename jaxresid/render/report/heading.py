"""The first lines of every text: what was inspected, and by which JAX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.text import Text

from jaxresid.model import JaxInfo, Mesh, PlaceInfo, Target
from jaxresid.units import format_bytes

STEP = "training step: its own gradients are reported"
_SOURCES = {
    "types": "split as the types specify",
    "compiler": "residuals split as XLA splits the compiled forward pass",
    "propagated": "splits derived from those of the arguments; XLA may choose others",
}
_DEFAULT_ON = "jax_use_direct_linearize"


def heading(
    target: Target, jax: JaxInfo, mesh: Mesh | None = None, places: Sequence[PlaceInfo] = ()
) -> Text:
    """Return the first lines of a text, which end in a line break.

    They name the target, the version of JAX and those of its flags that are not at their default,
    the places that the figures are for, what was differentiated, and the mesh.
    """
    text = Text()
    text.append(target.name, style="bold")
    text.append(f"  {jax_text(jax)}\n", style="dim")
    for place in places:
        text.append("on ", style="dim")
        text.append(f"{place.name}  ")
        text.append(f"{place_remark(place)}\n", style="dim")
    if target.mode == "step":
        text.append(f"{STEP}\n", style="bold")
    if target.differentiated:
        text.append("differentiated: ", style="dim")
        text.append(f"{_differentiated(target.differentiated)}\n")
    if mesh is not None:
        text.append("mesh: ", style="dim")
        axes = ",".join(f"{name}={size}" for name, size in mesh.axes)
        text.append(f"{axes} ({mesh.mode})")
        text.append(f"  {_SOURCES[mesh.source]}\n", style="dim")
        if mesh.size > 1:
            text.append(f"Bytes are those of one device, FLOPs those of all {mesh.size}.\n")
    return text


def jax_text(jax: JaxInfo) -> str:
    """Return the version of JAX and its flags that are not at their default: `jax 0.10.2`."""
    flags = [name for name, on in jax.flags.items() if on and name != _DEFAULT_ON]
    flags += [f"{_DEFAULT_ON}=False"] * (jax.flags.get(_DEFAULT_ON) is False)
    return " ".join([f"jax {jax.version}", *flags])


def place_remark(place: PlaceInfo) -> str:
    """Return the memory of one device of a place and who chose the place, as text."""
    each = f"{format_bytes(place.memory_nbytes)} per device" if place.memory_nbytes else ""
    return "; ".join(part for part in (each, place.origin) if part)


def _differentiated(paths: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for path in paths:
        name = re.split(r"[\[.]", path, maxsplit=1)[0]
        if name == "args":
            name = path[: path.find("]") + 1]
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} ({n} leaves)" if n > 1 else name for name, n in counts.items())
