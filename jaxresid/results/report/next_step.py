"""The one thing to do next after a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as OneOf

from jaxresid.base.text.short_repr import Shown


@dataclass(frozen=True, slots=True, repr=False)
class NextStep(Shown):
    """The one thing to do next, and the command that does it.

    Attributes:
      action: what it is: `plan` checkpoints that fit, `compare` policies, `compile` as the estimate
        is too close to tell, `install` the compiler that can tell, `change` the code or the
        inputs as the message says, `check` what a checkpoint is worth, `return` what depends on the
        gradients; `none` where nothing can be gained.
      message: why, with the figures, without the command: a sentence without its full stop.
      nbytes: the bytes that it is about; None where it is about none.
      words: the words after the command's name that ask it about the same function, inputs and
        place; empty where they are not known, as from Python.
      compiles: whether XLA is to be asked as well: `--compile`, or `compile=True`.
    """

    action: OneOf["plan", "compare", "compile", "install", "change", "check", "return", "none"]
    message: str
    nbytes: int | None = None
    words: tuple[str, ...] = ()
    compiles: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command to run; empty where there is none, or it is not known."""
        if self.call is None or not self.words:
            return ()
        return ("jaxresid", self.action, *self.words, *["--compile"] * self.compiles)

    @property
    def call(self) -> str | None:
        """The function of Python's that does it; None where there is none."""
        if self.action in ("install", "change", "return", "none"):
            return None
        return f"jaxresid.{self.action}" + "(..., compile=True)" * self.compiles
