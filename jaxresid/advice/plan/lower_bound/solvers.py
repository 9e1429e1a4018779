"""Say what fewer checkpoints in a solver's loop are, in words."""

from __future__ import annotations

from jaxresid.inspector.variants.solver_checkpoints import CheckpointedLoop


def change_text(loop: CheckpointedLoop, checkpoints: int) -> str:
    """Return in words what to write, and how often the body then runs."""
    text = f"{loop.written(checkpoints)}, {checkpoints} in place of {loop.checkpoints}"
    before, after = loop.runs(loop.checkpoints), loop.runs(checkpoints)
    if before is None or after is None:
        return text
    return (
        f"{text}: {loop.steps:,} steps run {after:,} times in the backward pass in place of"
        f" {before:,}"
    )
