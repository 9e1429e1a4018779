"""What every text says of its figures: the target and the place above them, the rest below."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from jaxresid.base.text.units import format_bytes
from jaxresid.render.style.wrapping import FlowingParts
from jaxresid.results import JaxInfo, Mesh, PlaceInfo, Target

_SOURCES = {
    "types": "split as the types specify",
    "compiler": "residuals split as XLA splits the compiled forward pass",
    "propagated": "splits derived from those of the arguments; XLA may choose others",
}
_DEFAULT_ON = "jax_use_direct_linearize"


def target_line(target: Target, places: Sequence[PlaceInfo], mesh: Mesh | None) -> FlowingParts:
    """Return the first line of a text: the target, the places of the figures, and the mesh."""
    parts = [Text(target.name, style="bold"), Text(f"on {', '.join(p.name for p in places)}")]
    parts.append(Text(question(target)))
    if mesh is not None:
        parts.append(Text(f"mesh {_axes(mesh)}"))
        if mesh.size > 1:
            parts.append(Text(f"bytes of one of {mesh.size} devices"))
    return FlowingParts(parts, separator="  ", indent=2)


def asked(target: Target) -> str:
    """Return in words which question about a target was answered."""
    count = len(target.gradients)
    if target.mode == "loss":
        return "with its gradient"
    if target.is_step:
        return "training step"
    if not count:
        return "as it is, no gradient"
    return f"as it is, with {'the gradient' if count == 1 else f'the {count} gradients'} it takes"


def question(target: Target) -> str:
    """Return what `asked` does, and the mode that answers the other question that makes sense."""
    if target.other_mode is None:
        return asked(target)
    otherwise = "without" if target.mode == "loss" else "with it"
    return f"{asked(target)} (mode {target.other_mode}: {otherwise})"


def about(
    target: Target, jax: JaxInfo, places: Sequence[PlaceInfo], mesh: Mesh | None = None
) -> Iterator[RenderableType]:
    """Yield what the figures of a text are for, to stand below them.

    That is the version of JAX with those of its flags that are not at their default, the memory of
    each place and who chose it, what was differentiated, and where splits over a mesh are from.
    """
    remarks = [f"{place.name}: {place_remark(place)}" for place in places]
    yield FlowingParts([jax_text(jax), *remarks], style="dim", indent=2)
    if target.differentiated:
        yield Text(f"differentiated: {_differentiated(target.differentiated)}", style="dim")
    if mesh is not None:
        text = f"mesh: {_axes(mesh)} ({mesh.mode})  {_SOURCES[mesh.source]}"
        each = f"; FLOPs are those of all {mesh.size} devices" if mesh.size > 1 else ""
        yield Text(f"{text}{each}", style="dim")


def _axes(mesh: Mesh) -> str:
    """Return the axes that split something: MaxText's meshes have eleven more."""
    axes = [(name, size) for name, size in mesh.axes if size > 1] or mesh.axes
    return ",".join(f"{name}={size}" for name, size in axes)


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
