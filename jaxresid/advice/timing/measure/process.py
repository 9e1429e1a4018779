"""Run a bench in a process of its own, which running out of memory may end.

The process is sent first the bench's arguments, then names of methods with their arguments.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jaxresid import jax_compat
from jaxresid.advice.timing.measure.random_inputs import LeafRecipe
from jaxresid.advice.timing.measure.worker import Bench
from jaxresid.base.errors import summary
from jaxresid.base.text.units import format_bytes
from jaxresid.xla.processes import child
from jaxresid.xla.processes.child import Child, DiedError, FailedError

__all__ = ["BenchProcess", "DiedError", "FailedError", "reason", "serve"]

_START = "from jaxresid.advice.timing.measure.process import serve; serve()"


def reason(error: BaseException) -> str:
    """Return why a program did not run, in one line."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text and "out of memory" not in text.lower():
        return summary(error)
    wanted = re.search(r"\ballocat\w++ (\d+) bytes", text)
    return "out of memory" + (f": needs {format_bytes(int(wanted[1]))} more" if wanted else "")


class BenchProcess:
    """A bench in another process, as seen from this one."""

    def __init__(self, recipes: Sequence[LeafRecipe], seed: int) -> None:
        """Start the process and draw the inputs there.

        Raises:
          FailedError: The inputs cannot be made there.
          DiedError: The process ended while they were made.
        """
        x64 = bool(jax_compat.flags().get("jax_enable_x64"))
        self._child = Child(_START, {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": str(int(x64))})
        try:
            self._child.ask((tuple(recipes), seed))
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the bench and return its result.

        Raises:
          FailedError: The method raised.
          DiedError: The process ended.
        """
        return self._child.ask((method, args))

    def close(self) -> None:
        """End the process, whatever it is doing, and wait until it is gone."""
        self._child.close()


def serve(bench: type[Bench] = Bench) -> None:
    """Answer in the other process until no more messages come."""
    made: Bench | None = None

    def answer(message: Any) -> Any:
        nonlocal made
        if made is None:
            made = bench(*message)
            return None
        method, args = message
        return getattr(made, method)(*args)

    child.serve(answer, reason)
