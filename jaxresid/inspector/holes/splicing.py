"""Trace a program with its gradients left out, and put them back, as they were or changed.

While the program is traced, one call stands for the forward pass of each gradient that it takes,
one for the backward pass. What is differentiated is known as a jaxpr of its own; that, or another
in its place, is differentiated, and both passes are put where the calls stand. So the code of the
user, and of the optimizer, runs once for many changes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.call.leaves import float0, is_inexact
from jaxresid.inspector.holes.apart import Change, Loss, callers_of, traced_apart
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.inline import substituted, with_substitutes
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.jaxpr.rewrite import with_inner
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.jax_compat.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr, Var

_FORWARD, _BACKWARD, _BETWEEN = "jaxresid_forward_", "jaxresid_backward_", "jaxresid_between"


class UnjoinableError(RetraceError):
    """A step's gradients cannot be put into the rest of the step; it has to be traced anew."""

    def __init__(self) -> None:
        super().__init__("the gradients of the step cannot be told from the rest")


@dataclass(frozen=True, slots=True, eq=False)
class _Gradient:
    """A gradient that a step takes.

    Attributes:
      loss: what is differentiated.
      closed: the same with what it closes over as its first inputs.
    """

    loss: Loss
    closed: ClosedJaxpr

    @property
    def num_consts(self) -> int:
        """How many inputs are what the loss closes over."""
        return len(self.loss.closed.consts)

    @property
    def num_outputs(self) -> int:
        """How many of its results are differentiated; the others are auxiliary."""
        return self.loss.values

    @property
    def jaxpr(self) -> Jaxpr:
        """The open jaxpr."""
        return jax_compat.open_jaxpr(self.closed)

    @property
    def leaves(self) -> tuple[Var, ...]:
        """The inputs of the jaxpr that are differentiated."""
        return tuple(self.jaxpr.invars[self.num_consts :])


@dataclass(slots=True)
class Gradients:
    """The gradients that are left out of a step while it is traced in `leaving_out`.

    Attributes:
      frames: tells the user's frames.
      found: the gradients, in the order in which they are taken.
      is_inside: whether what is differentiated is being traced.
      is_partial: whether some were taken in a way in which they cannot be left out.
    """

    frames: Frames
    found: list[_Gradient] = field(default_factory=list)
    is_inside: bool = False
    is_partial: bool = False

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Take what is called in the context for a part of what is differentiated."""
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False

    def taken(
        self,
        as_it_is: Callable[[], Any],
        fun: Callable[..., Any],
        primals: tuple[Any, ...],
        has_aux: bool,
    ) -> Any:
        """Return what `jax.vjp` does, with calls in place of its passes."""
        if self.is_inside:
            return as_it_is()
        jax = jax_compat.import_jax()
        with self.inside():
            closed, values, leaves, restored = traced_apart(fun, primals, {}, has_aux)
        loss = Loss(closed, callers_of(self.frames), values)
        lifted = loss.lifted
        if jax_compat.open_jaxpr(lifted).effects:
            raise UnjoinableError
        number, operands = len(self.found), [*closed.consts, *leaves]
        result = restored(jax_compat.bind_call(lifted, f"{_FORWARD}{number}", operands))
        out, *aux = result if has_aux else (result,)
        out_leaves, tree = jax.tree.flatten(out)
        self.found.append(_Gradient(loss, lifted))

        def backward(_: Sequence[Any], __: Sequence[Any]) -> list[Any]:
            return [jax.lax.full(x.shape, 0, x.dtype) for x in map(_typed, leaves) if is_inexact(x)]

        backward.__name__ = f"{_BACKWARD}{number}"
        pulled = jax.jit(backward)

        def pull(cotangents: Any) -> Any:
            given, given_tree = jax.tree.flatten(cotangents)
            if given_tree != tree:
                raise UnjoinableError
            pairs = zip(given, out_leaves, strict=True)
            made = iter(pulled(operands, [ct for ct, x in pairs if is_inexact(_typed(x))]))
            each = [next(made) if is_inexact(_typed(x)) else float0(_typed(x)) for x in leaves]
            return jax.tree.unflatten(jax.tree.structure(primals), each)

        return out, pull, *aux


@contextlib.contextmanager
def leaving_out(gradients: Gradients) -> Iterator[None]:
    """Return the context in which a step is traced with calls in place of its gradients."""

    def other(fun: Callable[..., Any], _: bool) -> Callable[..., Any]:
        gradients.is_partial |= not gradients.is_inside
        return fun

    with jax_compat.replacing_vjp(gradients.taken), jax_compat.replacing_differentiated(other):
        yield


def gradients_in(levels: Levels, top: Level) -> Iterator[tuple[int, Level, int, tuple[Eqn, ...]]]:
    """Yield the gradients that calls stand for in a step, each time that one does.

    That is its number, the level of what is differentiated, how often it runs, and the loop eqns
    around it, outermost first.

    Args:
      levels: descends into the eqns of the step.
      top: the level of the step, traced in `leaving_out`.
    """
    known: dict[int, tuple[Jaxpr, bool]] = {}

    def holds(jaxpr: Jaxpr) -> bool:
        found = known.get(id(jaxpr))
        if found is None:
            inner = (nest.jaxpr for eqn in jaxpr.eqns for nest in levels.nests(eqn))
            is_held = any(_pass_of(e) is not None for e in jaxpr.eqns) or any(map(holds, inner))
            found = known[id(jaxpr)] = jaxpr, is_held
        return found[1]

    def walk(
        level: Level, trips: int, loops: tuple[Eqn, ...]
    ) -> Iterator[tuple[int, Level, int, tuple[Eqn, ...]]]:
        for eqn in level.jaxpr.eqns:
            prefix, number = _pass_of(eqn) or ("", 0)
            if prefix == _FORWARD:
                yield number, levels.enter(level, eqn, 0), trips, loops
            for which, nest in enumerate(() if prefix else levels.nests(eqn)):
                if holds(nest.jaxpr):
                    is_loop = nest.kind in ("scan", "while")
                    inside = levels.enter(level, eqn, which)
                    more = trips * (nest.length or 1) if is_loop else trips
                    yield from walk(inside, more, (*loops, eqn) if is_loop else loops)

    yield from walk(top, 1, ())


def joined(step: StepTrace, gradients: Gradients, change: Change) -> StepTrace:
    """Return a step with its gradients where calls stand for them.

    Args:
      step: the step, traced in `leaving_out`.
      gradients: the gradients that were left out.
      change: what is differentiated in place of what a gradient is of.

    Raises:
      UnjoinableError: it cannot be done, see `_Joining`.
      Exception: JAX cannot differentiate it, or a policy fails.
    """
    with jax_compat.in_mesh(step.arguments.context):
        made = _Joining(gradients, change).jaxpr(step.jaxpr)
    if any(_pass_of(eqn) is not None for eqn in eqns_in(made)):
        raise UnjoinableError
    return replace(step, closed=jax_compat.with_jaxpr(step.closed, made))


class _Joining:
    """Puts gradients into a step.

    That is not possible where one is differentiated or batched as a whole, where its backward pass
    runs elsewhere than its forward pass or more than once, and where JAX makes constants for it.
    """

    def __init__(self, gradients: Gradients, change: Change) -> None:
        self._gradients = gradients
        self._change = functools.cache(
            lambda n: change(n, gradients.found[n].closed)  # several trace one loss once
        )
        self._made: dict[int, tuple[Jaxpr, Jaxpr]] = {}

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        found = self._made.get(id(jaxpr))
        if found is None:
            found = self._made[id(jaxpr)] = jaxpr, self._jaxpr(jaxpr)
        return found[1]

    def _jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        calls = {id(eqn): of for eqn in jaxpr.eqns if (of := _pass_of(eqn)) is not None}
        forwards, backwards = (_numbered(jaxpr, calls, each) for each in (_FORWARD, _BACKWARD))
        if forwards.keys() != backwards.keys():
            raise UnjoinableError
        substitutes: dict[Var, Var] = {}
        eqns: list[Eqn] = []
        passes: dict[int, _Passes] = {}
        for eqn in jaxpr.eqns:
            plain = with_substitutes(eqn, substitutes)
            call = calls.get(id(eqn))
            if call is None:
                eqns.append(with_inner(plain, self.jaxpr))
                continue
            prefix, number = call
            if prefix == _FORWARD:
                made = passes[number] = self._passes(number, plain, backwards[number])
                eqns += made.forward(plain, substitutes)
            elif number not in passes:
                raise UnjoinableError
            else:
                eqns += passes[number].backward(plain, substitutes)
        if not passes and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        return jaxpr.replace(eqns=eqns, outvars=substituted(jaxpr.outvars, substitutes))

    def _passes(self, number: int, forward: Eqn, backward: Eqn) -> _Passes:
        gradient = self._gradients.found[number]
        if jax_compat.open_jaxpr(jax_compat.params(forward)["jaxpr"]) is not gradient.jaxpr:
            raise UnjoinableError
        return _differentiated(gradient, self._change(number), forward, backward)


@dataclass(frozen=True, slots=True, eq=False)
class _Passes:
    """Both passes of a gradient.

    Attributes:
      jaxpr: the open jaxpr of what it reads and the cotangents to its outputs and the gradients.
      between: the number of the eqn between the passes, which is no part of them.
      num_forward: how many of its results the forward pass makes.
      num_operands: how many operands of the backward call stand before the cotangents.
      own: the ids of the tracebacks of what is differentiated.
    """

    jaxpr: Jaxpr
    between: int
    num_forward: int
    num_operands: int
    own: frozenset[int]

    def forward(self, call: Eqn, substitutes: dict[Var, Var]) -> list[Eqn]:
        """Return the eqns of the forward pass, for the call that stands for it.

        Args:
          call: the call.
          substitutes: gets what stands for the inputs and for the results of the call.
        """
        operands = [v for v in call.invars if not jax_compat.is_literal(v)]
        substitutes |= zip(self.jaxpr.invars[: len(operands)], operands, strict=True)
        eqns = self._eqns(0, self.between, call, substitutes)
        results = self.jaxpr.outvars[: self.num_forward]
        made = substituted(results, substitutes)
        substitutes |= zip(call.outvars, made, strict=True)
        return eqns

    def backward(self, call: Eqn, substitutes: dict[Var, Var]) -> list[Eqn]:
        """Return the eqns of the backward pass, as `forward` does."""
        given = call.invars[self.num_operands :]
        cotangents = [v for v in given if not jax_compat.is_literal(v)]
        inputs = self.jaxpr.invars[len(self.jaxpr.invars) - len(cotangents) :]
        substitutes |= zip(inputs, cotangents, strict=True)
        eqns = self._eqns(self.between + 1, len(self.jaxpr.eqns), call, substitutes)
        made = substituted(self.jaxpr.outvars[self.num_forward :], substitutes)
        substitutes |= zip(call.outvars, made, strict=True)
        return eqns

    def _eqns(self, start: int, stop: int, call: Eqn, substitutes: Mapping[Var, Var]) -> list[Eqn]:
        made = (with_substitutes(eqn, substitutes) for eqn in self.jaxpr.eqns[start:stop])
        return [
            eqn
            if id(jax_compat.traceback(eqn)) in self.own
            else jax_compat.with_traceback(eqn, call)
            for eqn in made
        ]


def _differentiated(
    gradient: _Gradient, closed: ClosedJaxpr, forward: Eqn, backward: Eqn
) -> _Passes:
    """Return the passes of a gradient of a closed jaxpr in place of what it was of.

    Args:
      gradient: the gradient.
      closed: the closed jaxpr.
      forward: the call that stands for the forward pass.
      backward: the call that stands for the backward pass.
    """
    jax = jax_compat.import_jax()
    run = jax_compat.as_function(closed)
    given = [*forward.invars, *backward.invars[len(forward.invars) :]]

    def passes(*values: Any) -> list[Any]:
        at = iter(values)
        # A number is one here too, or JAX would make eqns of it that the step has not.
        each = [v.val if jax_compat.is_literal(v) else next(at) for v in given]
        operands, cotangents = each[: len(forward.invars)], iter(each[len(forward.invars) :])
        consts = operands[: gradient.num_consts]

        def differentiated(*leaves: Any) -> tuple[list[Any], list[Any]]:
            results = list(run(*consts, *leaves))
            return results[: gradient.num_outputs], results[gradient.num_outputs :]

        leaves = operands[gradient.num_consts :]
        with _scope(forward):
            out, pull, aux = jax.vjp(differentiated, *leaves, has_aux=True)
        jax_compat.bind_call(_nothing(), _BETWEEN, ())
        each = [next(cotangents) if is_inexact(_typed(x)) else float0(_typed(x)) for x in out]
        with _scope(backward):
            gradients = pull(each)
        pairs = zip(gradients, leaves, strict=True)
        return [*out, *aux, *(g for g, x in pairs if is_inexact(_typed(x)))]

    made = jax.make_jaxpr(passes)(*(v.aval for v in given if not jax_compat.is_literal(v)))
    jaxpr = jax_compat.open_jaxpr(made)
    between = [i for i, eqn in enumerate(jaxpr.eqns) if _is_between(eqn)]
    results = [*forward.outvars, *backward.outvars]
    if made.consts or len(between) != 1 or len(results) != len(jaxpr.outvars):
        raise UnjoinableError
    if any(_type(a) != _type(b) for a, b in zip(results, jaxpr.outvars, strict=True)):
        raise UnjoinableError
    own = (jax_compat.traceback(eqn) for eqn in eqns_in(jax_compat.open_jaxpr(closed)))
    return _Passes(
        jaxpr,
        between[0],
        len(forward.outvars),
        len(forward.invars),
        frozenset(id(each) for each in own),
    )


def _scope(call: Eqn) -> contextlib.AbstractContextManager[Any]:
    """Return the context of what runs where a call stands.

    Raises:
      UnjoinableError: that is in what JAX batches or differentiates.
    """
    stack = jax_compat.name_stack(call)
    if "(" in stack:
        raise UnjoinableError
    return jax_compat.import_jax().named_scope(stack) if stack else contextlib.nullcontext()


@functools.cache
def _nothing() -> ClosedJaxpr:
    made: ClosedJaxpr = jax_compat.import_jax().make_jaxpr(lambda: [])()
    return made


def _is_between(eqn: Eqn) -> bool:
    return jax_compat.params(eqn).get("name") == _BETWEEN


def _numbered(jaxpr: Jaxpr, calls: Mapping[int, tuple[str, int]], prefix: str) -> dict[int, Eqn]:
    """Return the calls of a jaxpr that stand for passes, by the numbers of the gradients.

    Args:
      jaxpr: the open jaxpr.
      calls: what its calls stand for, by their ids, see `_pass_of`.
      prefix: the pass.

    Raises:
      UnjoinableError: one occurs twice.
    """
    own = [eqn for eqn in jaxpr.eqns if calls.get(id(eqn), ("", 0))[0] == prefix]
    found = {calls[id(eqn)][1]: eqn for eqn in own}
    if len(found) != len(own):
        raise UnjoinableError
    return found


def _pass_of(eqn: Eqn) -> tuple[str, int] | None:
    """Return the pass that a call stands for, by its prefix, and the number of the gradient.

    None for another eqn.
    """
    if jax_compat.primitive_name(eqn) != "jit":
        return None
    name = str(jax_compat.params(eqn).get("name"))
    prefix = next((each for each in (_FORWARD, _BACKWARD) if name.startswith(each)), None)
    return None if prefix is None else (prefix, int(name.rpartition("_")[2]))


def _typed(value: Any) -> Any:
    """Return the type of an array or a number."""
    return jax_compat.import_jax().typeof(value)


def _type(var: Var) -> tuple[Any, ...]:
    aval: Any = var.aval
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False)
