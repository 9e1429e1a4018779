"""The code of a loop over microbatches, as a person would write it, in the terms of a library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from jaxresid.advice.plan.lower_bound.parts import argument_name
from jaxresid.advice.plan.lower_bound.remedies import batch_of
from jaxresid.inspector.call.arguments import Arguments
from jaxresid.inspector.subject.base import Subject


@dataclass(frozen=True, slots=True)
class _Terms:
    """What gradients are taken with.

    Attributes:
      gradients: the transformation that returns a value and gradients.
      shapes: what returns the shapes of a call.
    """

    gradients: str = "jax.value_and_grad"
    shapes: str = "jax.eval_shape"


_JAX = _Terms()
# Its modules hold functions, which are no arrays.
_EQUINOX = _Terms("eqx.filter_value_and_grad", "eqx.filter_eval_shape")
_NNX = _Terms("nnx.value_and_grad")

_SUM = """\
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    parts = jax.tree.map(lambda a: {split}, {parts})
    total, _ = jax.lax.scan(add, zeros, parts)
    return jax.tree.map(lambda a: a / {count}, total)  # of a mean; of a sum, total itself"""


def accumulation_code(subject: Subject, rows: int, count: int) -> str:
    """Return the gradients of a loss over microbatches as a person would write them.

    It is for a loss that is a mean over the batch; a function is differentiated by its first
    argument, and for a step it is what is to be called where it takes its gradients.

    Args:
      subject: the function or the step.
      rows: the items of a microbatch.
      count: how many microbatches there are.
    """
    if subject.step is not None:
        return _of_step(subject.trace.arguments, rows, count)
    return _of_function(subject, rows, count)


def _of_function(subject: Subject, rows: int, count: int) -> str:
    call, batch = subject.trace.arguments, batch_of(subject, rows)
    assert batch is not None
    terms, modules = _terms(call)
    name = subject.name.rpartition(":")[2].rpartition(".")[2]
    held, others = _held(call, batch.leaves)
    given = ", ".join(held)
    parts = f"({given},)" if len(held) == 1 else f"({given})"
    signature = ", ".join(n for n in call.names if n in held or n in others)
    inside = ", ".join("*part" if n == held[0] else n for n in call.names if n not in held[1:])
    split = f"a.reshape({count}, {rows}, *a.shape[1:])"
    if call.mesh is not None:  # all devices work at each microbatch
        split = f"jnp.swapaxes(a.reshape({rows}, {count}, *a.shape[1:]), 0, 1)"
    head = f"def value_and_gradients({signature}):  # {count} microbatches of {rows}\n"
    end = _SUM.format(split=split, parts=parts, count=count)
    if modules:
        return head + _merged(modules, f"{terms.gradients}({name})({inside})", given) + end
    return (
        head
        + f"""\
    def add(total, part):
        found = {terms.gradients}({name})({inside})
        return jax.tree.map(jnp.add, total, found), None

    shapes = {terms.shapes}({terms.gradients}({name}), {signature})
"""
        + end
    )


def _of_step(call: Arguments, rows: int, count: int) -> str:
    terms, modules = _terms(call)
    model = "params" if terms is _JAX else "model"
    head = f"""\
# where the step takes its gradients, accumulated({terms.gradients}(loss), {model}, *batch)
# in place of {terms.gradients}(loss)({model}, *batch)
def accumulated(gradients, {model}, *batch):  # {count} microbatches of {rows}
"""
    end = _SUM.format(split=f"a.reshape({count}, -1, *a.shape[1:])", parts="batch", count=count)
    if modules:
        return head + _merged(("model",), "gradients(model, *part)", "*batch") + end
    return (
        head
        + f"""\
    def add(total, part):
        return jax.tree.map(jnp.add, total, gradients({model}, *part)), None

    shapes = {terms.shapes}(gradients, {model}, *batch)
"""
        + end
    )


def _merged(modules: Sequence[str], gradients: str, batch: str) -> str:
    """Return the first half of the code where NNX modules are arguments.

    Variables that are made outside of a scan cannot be differentiated in it: they are made anew
    for each microbatch.
    """
    names = ", ".join(modules)
    tree = names if len(modules) == 1 else f"({names})"
    return f"""\
    graphdef, state = nnx.split({tree})

    def of_part(*part):
        {names} = nnx.merge(graphdef, jax.tree.map(jnp.asarray, state))
        return {gradients}

    def add(total, part):
        return jax.tree.map(jnp.add, total, of_part(*part)), None

    shapes = jax.eval_shape(of_part, {batch})
"""


def _terms(call: Arguments) -> tuple[_Terms, tuple[str, ...]]:
    """Return the terms for some arguments, and those that are, or hold, NNX modules."""
    variables = (s.start for s in call.layout.slots if s.treedef is not None)
    modules = {argument_name(call.paths[i]) for i in variables if i < len(call.paths)}
    if modules:
        return _NNX, tuple(n for n in call.names if n in modules)
    # A static argument as a whole is no field.
    fields = (call.paths[i] for i in call.having("static"))
    if "equinox" in sys.modules and any(path not in call.names for path in fields):
        return _EQUINOX, ()
    return _JAX, ()


def _held(call: Arguments, leaves: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return the names of the arguments that hold the batch, and those of the others."""
    holding = {argument_name(call.paths[i]) for i in leaves}
    held = [name for name in call.names if name in holding]
    return held, [name for name in call.names if name not in holding]
