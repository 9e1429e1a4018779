"""`jaxresid.policy`: what a plan chose for a checkpoint, as a policy of JAX's."""

from __future__ import annotations

import ast
import os
import warnings
from pathlib import Path
from typing import Any

from jaxresid.advice.plan.emit.jax_policies import Policy, jax_policy
from jaxresid.advice.plan.emit.treatments import Treated, treated
from jaxresid.base import regular_files
from jaxresid.results import Plan
from jaxresid.serialization.files import load

_AS_WITHOUT = "everything_saveable"


def policy(
    plan: Plan | str | os.PathLike[str], *, at: str | None = None, call: int | None = None
) -> Policy:
    """Return the policy that a plan chose for a checkpoint, one of `jax.checkpoint_policies`.

    Give it to `jax.checkpoint`, or to what takes such a policy: `flax.linen.remat`,
    `flax.nnx.remat`, `equinox.filter_checkpoint`. Where the plan has no checkpoint it saves
    everything, and where it has one without a policy it saves nothing.

    Args:
      plan: The plan, or a file that `jaxresid plan -f json` or `save` wrote. It is parsed as
        JSON: nothing in it is run.
      at: Which place, where the plan differs between places: the line where the function is called
        or defined, `model.py:42`, or the function's name, `Block`. None: all of them.
      call: Which of that place's calls, in program order from 0, where the plan treats them
        differently.

    Warns:
      UserWarning: The plan also names values that have no such name in their file, takes
        microbatches or cuts a loop into segments; no policy does that.

    Raises:
      JaxresidError: It is no plan, has no such place, is ambiguous, or keeps a policy that is none
        of JAX's.
    """
    read = plan if isinstance(plan, Plan) else load(plan, Plan)
    chosen = treated(read, at, call)
    made = jax_policy(chosen.policy if chosen.checkpointed else _AS_WITHOUT)
    for missing in _left_out(read, chosen):
        warnings.warn(missing, stacklevel=2)
    return made


def _left_out(plan: Plan, chosen: Treated) -> list[str]:
    """Return what a plan asks for that no policy does, a line each."""
    unnamed = [
        f"{value.expression.file}:{value.expression.line} {value.expression.code} as {value.name!r}"
        for value in chosen.values
        if value.expression is not None and _lacks(value.expression.file, value.name)
    ]
    found = [f"the policy finds values by checkpoint_name; name {', '.join(unnamed)}"] * bool(
        unnamed
    )
    found += [f"the plan also needs that {cut}, which no policy does" for cut in chosen.cuts]
    microbatches = plan.selection.configuration.microbatches
    if microbatches > 1:
        found.append(f"the plan also needs {microbatches} microbatches, which no policy makes")
    return found


def _lacks(file: str, name: str) -> bool:
    """Return whether no string of a Python file is a name; False where it cannot be read."""
    try:
        tree: Any = ast.parse(regular_files.read(Path(file)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return not any(isinstance(n, ast.Constant) and n.value == name for n in ast.walk(tree))
