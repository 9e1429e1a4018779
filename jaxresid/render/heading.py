"""What was inspected, and by which JAX: the first lines of every text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.text import Text

from jaxresid.model import JaxInfo, Target

STEP = "training step: its own gradients are reported"
_DEFAULT_ON = "jax_use_direct_linearize"


def heading(target: Target, jax: JaxInfo) -> Text:
    """The target, the JAX and those of its flags that are not as they come, what was
    differentiated; ends in a line break."""
    flags = [name for name, on in jax.flags.items() if on and name != _DEFAULT_ON]
    flags += [f"{_DEFAULT_ON}=False"] * (jax.flags.get(_DEFAULT_ON) is False)
    text = Text()
    text.append(target.name, style="bold")
    text.append(f"  {' '.join([f'jax {jax.version}', *flags])}\n", style="dim")
    if target.mode == "step":
        text.append(f"{STEP}\n", style="bold")
    if target.differentiated:
        text.append("differentiated: ", style="dim")
        text.append(f"{_differentiated(target.differentiated)}\n")
    return text


def _differentiated(paths: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for path in paths:
        name = re.split(r"[\[.]", path, maxsplit=1)[0]
        if name == "args":
            name = path[: path.find("]") + 1]
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} ({n} leaves)" if n > 1 else name for name, n in counts.items())
