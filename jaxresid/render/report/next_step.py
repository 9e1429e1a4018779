"""The one thing to do next as text, with the command to copy."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from jaxresid.render.style.shell import ShellCommand
from jaxresid.results import NextStep


def next_step_lines(step: NextStep | None) -> Iterator[RenderableType]:
    """Yield what to do next, and the command or the function that does it; nothing for None."""
    if step is None:
        return
    before = Text.assemble(("next: ", "bold"), step.message)
    if step.command:
        yield ShellCommand(step.command, Text.assemble(before, ":"))
    elif step.call is None:
        yield before
    else:
        yield Text.assemble(before, f": {step.call}")
