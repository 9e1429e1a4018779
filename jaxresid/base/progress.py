"""What is being done, as it goes to whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable

# Takes a text that says what is being done at the moment; one that is `Stage` says what begins, one
# that is `Done` what is done.
Progress = Callable[[str], None]


class Done(str):
    """A text of something that is done: where progress cannot be redrawn, a line of its own."""

    __slots__ = ()


class Stage(str):
    """A text of what begins and may take long: where progress cannot be redrawn, a line too."""

    __slots__ = ()


__all__ = ["Done", "Progress", "Stage"]
