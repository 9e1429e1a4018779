"""A training step whose gradients are added up over microbatches, as a person would write it.

What the step differentiates, its loss, takes the parameters and closes over the rest: the batch,
keys, masks. The step is traced with its whole batch, and where it takes a gradient a scan over
microbatches takes it in its place: each array that has another size with one microbatch is divided
along that dimension. The optimizer's part stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import NOT_CAUGHT, InputsError, JaxresidError, summary
from jaxresid.inspector.holes.apart import Loss, tracing_losses
from jaxresid.inspector.jaxpr.bindings import intercept_bind, strip_trace_context
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.trace.changes import passed_through
from jaxresid.inspector.trace.step import StepTrace, step_primal, step_trace
from jaxresid.jax_compat.jaxpr_types import Aval, ClosedJaxpr, Eqn, Jaxpr

# What the call of a loss's gradients is named in the scan, with the loss's number.
_MARK = "jaxresid_microbatch_"


@dataclass(frozen=True, slots=True)
class _Division:
    """How a loss of the whole batch becomes one of a microbatch.

    Attributes:
      operands: of each operand (what it closes over, then its leaves) the dim that is divided;
        None: each microbatch has all of it.
      results: of each auxiliary result what becomes of those of the microbatches: the number of
        the operand that it is, `stack` (behind each other along a dim), `mean`, or `same`.
    """

    operands: tuple[int | None, ...]
    results: tuple[tuple[str, int], ...]


class AccumulatedStep:
    """A training step over its whole batch, in microbatches: traced once, for all checkpoints.

    Args:
      fun: The step.
      name: What it is called.
      whole: Its trace with the whole batch.
      losses: What it differentiates, traced with one microbatch.
      count: How many microbatches there are.

    Raises:
      InputsError: Its gradients cannot be added up over microbatches.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        name: str,
        whole: StepTrace,
        losses: Sequence[Loss],
        count: int,
    ) -> None:
        self._name, self._count = name, count
        if whole.arguments.mesh is not None:
            raise self._refused(
                "it is split over a mesh, and how the sums of its gradients are split is for its"
                " code to say"
            )

        def in_microbatches(number: int, loss: Loss) -> Callable[..., Sequence[Any]]:
            if number >= len(losses):
                raise self._refused("it differentiates something else with another batch size")
            division = self._division(loss, losses[number])
            return self._accumulated(number, loss, losses[number], division)

        call, frames = whole.arguments, whole.frames
        with intercept_bind({}), tracing_losses(frames, replacement=in_microbatches) as found:
            try:
                primal = step_primal(fun, call)
            except (*NOT_CAUGHT, JaxresidError):
                raise
            except Exception as e:
                raise self._refused(
                    f"no scan over microbatches can be traced: {summary(e).rstrip('.')}"
                ) from e
        if len(found) != len(losses):
            raise self._refused("it differentiates something else with another batch size")
        self._traced = step_trace(primal, call, frames)
        strip_trace_context(self._traced.jaxpr)
        for number, calls in self._calls().items():
            shapes = [v.aval.shape for v in _operands(losses[number])]
            if any([v.aval.shape for v in eqn.invars] != shapes for eqn in calls):
                raise self._refused("it takes several gradients at once (vmap)")

    def trace(self, losses: Sequence[Loss]) -> StepTrace:
        """Return the step with these losses, of the same inputs and outputs, in its microbatches.

        Args:
          losses: What is differentiated, traced with one microbatch.
        """
        marked: dict[int, Callable[[Eqn], Eqn]] = {}
        for number, calls in self._calls().items():
            body = _value_and_gradients(losses[number])
            strip_trace_context(jax_compat.open_jaxpr(body))
            marked.update({id(eqn): functools.partial(_with_body, body=body) for eqn in calls})
        jaxpr = rewritten(self._traced.jaxpr, marked)
        closed = jax_compat.with_jaxpr(self._traced.closed, jaxpr)
        return replace(self._traced, closed=closed)

    def _calls(self) -> dict[int, list[Eqn]]:
        """Return the calls of the gradients of each loss, by its number."""
        found: dict[int, list[Eqn]] = {}
        for eqn in eqns_in(self._traced.jaxpr):
            number = _number(eqn)
            if number is not None:
                found.setdefault(number, []).append(eqn)
        return found

    def _division(self, whole: Loss, one: Loss) -> _Division:
        """Return how a loss is divided, by its shapes with the whole batch and one microbatch.

        Raises:
          InputsError: It cannot be.
        """
        jaxpr, part = whole.jaxpr, one.jaxpr
        operands, parts = [[*j.constvars, *j.invars] for j in (jaxpr, part)]
        if len(operands) != len(parts) or len(jaxpr.outvars) != len(part.outvars):
            raise self._refused("its loss closes over other arrays with another batch size")
        if jaxpr.effects or part.effects:
            raise self._refused("its loss prints, or has other effects")
        dims = tuple(self._divided(v.aval, p.aval) for v, p in zip(operands, parts, strict=True))
        if all(dim is None for dim in dims):
            raise self._refused(
                "a gradient that it takes reads nothing whose size follows the batch, as one of"
                " each item does"
            )
        if any(dim is not None for dim in dims[len(jaxpr.constvars) :]):
            raise self._refused("it differentiates by the batch itself")
        value = jaxpr.outvars[0].aval if whole.values == 1 else None
        if value is None or value.shape or not _is_inexact(value):
            raise self._refused("it pulls back something other than one real scalar")
        if part.outvars[0].aval.shape:
            raise self._refused("its loss is a scalar with one batch size only")
        made = jax_compat.with_constants_as_inputs(one.closed)
        return _Division(dims, tuple(self._results(jaxpr, jax_compat.open_jaxpr(made), dims)))

    def _results(
        self, whole: Jaxpr, part: Jaxpr, dims: Sequence[int | None]
    ) -> Iterator[tuple[str, int]]:
        """Yield what becomes of each auxiliary result.

        Raises:
          InputsError: That of the whole batch does not follow from those of the microbatches.
        """
        changing = _depending(part, [i for i, dim in enumerate(dims) if dim is not None])
        pairs = zip(whole.outvars[1:], part.outvars[1:], strict=True)
        for v, p in pairs:
            origin = None if jax_compat.is_literal(p) else passed_through(part, p)
            dim = self._divided(v.aval, p.aval)
            if origin is not None:
                yield "operand", origin
            elif dim is not None:
                yield "stack", dim
            elif jax_compat.is_literal(p) or p not in changing:
                yield "same", 0
            elif not v.aval.shape and _is_inexact(v.aval):
                yield "mean", 0
            else:
                raise self._refused(
                    f"its loss also returns {_text(v.aval)}, which each batch changes (running"
                    " means, counts): several batches one after the other make something else of"
                    " it"
                )

    def _divided(self, whole: Aval, part: Aval) -> int | None:
        """Return the dim of an array that microbatches divide; None: none.

        Raises:
          InputsError: Its shape depends on the batch in some other way.
        """
        if whole.shape == part.shape:
            return None
        if len(whole.shape) == len(part.shape):
            pairs = enumerate(zip(whole.shape, part.shape, strict=True))
            differing = [(dim, n, m) for dim, (n, m) in pairs if n != m]
            if len(differing) == 1 and differing[0][1] == self._count * differing[0][2]:
                return differing[0][0]
        raise self._refused(
            f"its loss reads, or returns, {_text(whole)} with the whole batch and {_text(part)}"
            " with one microbatch, not one dim divided"
        )

    def _accumulated(
        self, number: int, loss: Loss, one: Loss, division: _Division
    ) -> Callable[..., Sequence[Any]]:
        """Return a function of the leaves of a loss whose gradients are those of a scan."""
        jax = jax_compat.import_jax()
        consts = list(loss.closed.consts)
        count = self._count

        def sums(leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            with jax_compat.untagged():
                return _scanned(number, one, division, count, [*consts, *leaves])

        def values(*leaves: Any) -> list[Any]:
            return sums(leaves)[0]

        def forward(*leaves: Any) -> tuple[list[Any], list[Any]]:
            return sums(leaves)

        def backward(totals: list[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
            with jax_compat.untagged():
                scale = cotangents[0] / count
                found = iter([total * scale.astype(total.dtype) for total in totals])
            leaves = loss.jaxpr.invars
            return tuple(next(found) if _is_inexact(v.aval) else None for v in leaves)

        over_microbatches: Any = jax.custom_vjp(values)
        over_microbatches.defvjp(forward, backward)
        made: Callable[..., Sequence[Any]] = over_microbatches
        return made

    def _refused(self, reason: str) -> InputsError:
        return InputsError(
            f"microbatches: the gradients that {self._name} takes cannot be added up:"
            f" {reason}; plan the loss that it differentiates"
        )


def _scanned(
    number: int, one: Loss, division: _Division, count: int, operands: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the results of a loss over microbatches, and the sums of its gradients."""
    jax = jax_compat.import_jax()
    jnp = jax.numpy
    dims, results = division.operands, division.results
    call = jax_compat.as_function(_value_and_gradients(one))
    call.__name__ = f"{_MARK}{number}"
    run = jax.jit(call)
    shapes = jax.eval_shape(call, *_structs(one))
    aux = len(results)
    added = [0, *range(1 + aux, len(shapes))]
    added += [1 + k for k, (kind, _) in enumerate(results) if kind == "mean"]
    last = [1 + k for k, (kind, _) in enumerate(results) if kind == "same"]
    stacked = [1 + k for k, (kind, _) in enumerate(results) if kind == "stack"]

    def body(totals: tuple[list[Any], list[Any]], parts: list[Any]) -> Any:
        given = list(operands)
        for i, part in zip(divided, parts, strict=True):
            given[i] = part
        found = run(*given)
        sums = [total + found[k] for total, k in zip(totals[0], added, strict=True)]
        return (sums, [found[k] for k in last]), [found[k] for k in stacked]

    divided = [i for i, dim in enumerate(dims) if dim is not None]
    zeros = [[jnp.zeros(shapes[k].shape, shapes[k].dtype) for k in ks] for ks in (added, last)]
    parts = [_in_parts(operands[i], dims[i], count) for i in divided]
    (totals, ends), stacks = jax.lax.scan(body, (zeros[0], zeros[1]), parts)
    known: dict[int, Any] = dict(zip(last, ends, strict=True))
    known.update(zip(added, totals, strict=True))
    known[0] = known[0] / count
    for k, stack in zip(stacked, stacks, strict=True):
        known[k] = _joined(stack, results[k - 1][1])
    for k, (kind, of) in enumerate(results, 1):
        if kind == "mean":
            known[k] = known[k] / count
        elif kind == "operand":
            known[k] = operands[of]
    return [known[k] for k in range(1 + aux)], [known[k] for k in range(1 + aux, len(shapes))]


def _value_and_gradients(loss: Loss) -> ClosedJaxpr:
    """Return the results of a loss, then its gradients, as a jaxpr of all its operands."""
    jax = jax_compat.import_jax()
    closed = jax_compat.with_constants_as_inputs(loss.closed)
    run, lead = jax_compat.as_function(closed), len(loss.jaxpr.constvars)
    operands = _operands(loss)
    wanted = [i for i in range(lead, len(operands)) if _is_inexact(operands[i].aval)]

    def both(*given: Any) -> list[Any]:
        def split(*leaves: Any) -> tuple[Any, list[Any]]:
            inside = list(given)
            for i, leaf in zip(wanted, leaves, strict=True):
                inside[i] = leaf
            value, *others = run(*inside)
            return value, others

        value, pull, others = jax.vjp(split, *(given[i] for i in wanted), has_aux=True)
        return [value, *others, *pull(jax.numpy.ones_like(value))]

    made: ClosedJaxpr = jax.make_jaxpr(both)(*_structs(loss))
    return made


def _operands(loss: Loss) -> list[Any]:
    return [*loss.jaxpr.constvars, *loss.jaxpr.invars]


def _structs(loss: Loss) -> list[Any]:
    jax = jax_compat.import_jax()
    avals = [v.aval for v in _operands(loss)]
    return [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]


def _in_parts(whole: Any, dim: int | None, count: int) -> Any:
    """Return an array divided along a dim, its parts along a new leading one."""
    jnp = jax_compat.import_jax().numpy
    assert dim is not None
    *before, size = whole.shape[: dim + 1]
    split = jnp.reshape(whole, (*before, count, size // count, *whole.shape[dim + 1 :]))
    return split if dim == 0 else jnp.moveaxis(split, dim, 0)


def _joined(stack: Any, dim: int) -> Any:
    """Return what `_in_parts` divided, whole again."""
    jnp = jax_compat.import_jax().numpy
    count, *shape = stack.shape
    shape[dim] *= count
    return jnp.reshape(jnp.moveaxis(stack, 0, dim) if dim else stack, shape)


def _depending(jaxpr: Jaxpr, inputs: Sequence[int]) -> set[Any]:
    """Return the variables of a jaxpr that some of its inputs may have a part in."""
    found = {jaxpr.invars[i] for i in inputs}
    for eqn in jaxpr.eqns:
        if any(not jax_compat.is_literal(v) and v in found for v in eqn.invars):
            found.update(eqn.outvars)
    return found


def _number(eqn: Eqn) -> int | None:
    """Return the number of the loss whose gradients an eqn takes."""
    name = str(jax_compat.params(eqn).get("name", ""))
    return int(name.removeprefix(_MARK)) if name.startswith(_MARK) else None


def _with_body(eqn: Eqn, body: ClosedJaxpr) -> Eqn:
    return jax_compat.with_params(eqn, {"jaxpr": body})


def _is_inexact(aval: Aval) -> bool:
    jnp = jax_compat.import_jax().numpy
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def _text(aval: Aval) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
