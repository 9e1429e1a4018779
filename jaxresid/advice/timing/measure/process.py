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
from jaxresid.xla.processes.child import Child

_START = "from jaxresid.advice.timing.measure.process import serve; serve()"


def reason(error: BaseException) -> str:
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text and "out of memory" not in text.lower():
        return summary(error)
    wanted = re.search(r"\ballocat\w++ (\d+) bytes", text)
    return "out of memory" + (f": needs {format_bytes(int(wanted[1]))} more" if wanted else "")


class BenchProcess:
    """A bench in another process, as seen from this one."""

    def __init__(self, recipes: Sequence[LeafRecipe], seed: int) -> None:
        x64 = bool(jax_compat.flags().get("jax_enable_x64"))
        self._child = Child(_START, {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": str(int(x64))})
        try:
            self._child.ask((tuple(recipes), seed))
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any) -> Any:
        return self._child.ask((method, args))

    def close(self) -> None:
        self._child.close()


def serve(bench: type[Bench] = Bench) -> None:
    made: Bench | None = None

    def answer(message: Any) -> Any:
        nonlocal made
        if made is None:
            made = bench(*message)
            return None
        method, args = message
        return getattr(made, method)(*args)

    child.serve(answer, reason)
