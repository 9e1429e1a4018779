"""Make variants of a training step of one trace of it: differentiate its losses anew, and join.

While the step is traced, each gradient that it takes is left out: one call stands for the forward
pass, one for the backward pass. What is differentiated is known as a jaxpr of its own, in which
checkpoints have slots for their policies, and values that could be saved have labels. A variant
fills these in, differentiates that jaxpr, and puts both passes where the calls stand. So the code
of the user, and of the optimizer, runs once for many variants.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxresid import jax_compat
from jaxresid.errors import RetraceError
from jaxresid.inspector.call.leaves import float0, is_inexact
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.inspector.jaxpr.inline import substituted, with_substitutes
from jaxresid.inspector.jaxpr.nesting import eqns_in
from jaxresid.inspector.jaxpr.rewrite import with_inner
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.variants.choices import Choice
from jaxresid.inspector.variants.losses import traced_apart
from jaxresid.inspector.variants.naming import expressed
from jaxresid.jaxpr_types import ClosedJaxpr, Eqn, Jaxpr, Var
from jaxresid.model import Expression

_FORWARD, _BACKWARD, _BETWEEN = "jaxresid_forward_", "jaxresid_backward_", "jaxresid_between"
_LABEL = "jaxresid_label_"

# What a checkpoint is of, `checkpoint`, `scan` or `segments`, and the number of its binding.
Key = tuple[str, int]
# A gradient's number and what it differentiates, filled in -> what to differentiate in its place.
Change = Callable[[int, ClosedJaxpr], ClosedJaxpr]


class UnjoinableError(RetraceError):
    """A step's gradients cannot be put into the rest of the step; it has to be traced anew."""

    def __init__(self) -> None:
        super().__init__("the gradients of the step cannot be told from the rest")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class _Slot:
    """The place of a policy in a jaxpr, as a policy that saves nothing."""

    key: Key

    def __call__(self, *_: Any, **__: Any) -> bool:
        return False


class Slots:
    """A maker of checkpoints that are filled in later.

    Args:
      frames: reads the tracebacks of eqns.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._slots: dict[Key, _Slot] = {}
        self._labels: dict[Expression, str] = {}
        self._names: dict[int, tuple[Jaxpr, tuple[tuple[Expression, str], ...]]] = {}
        self._filled = _Filled()

    def choice(self, key: Key, choice: Choice, body: Jaxpr) -> Choice:
        """Return a choice of a slot, with a label for each value of the body."""
        slot = self._slots.setdefault(key, _Slot(key))
        return replace(choice, policy=slot, names=self._names_of(body))

    def _names_of(self, body: Jaxpr) -> tuple[tuple[Expression, str], ...]:
        found = self._names.get(id(body))
        if found is None:
            expressions = dict.fromkeys(
                value.expression
                for value in expressed(body, self._frames)
                if value.name is None and value.expression is not None
            )
            names = tuple((each, self._label(each)) for each in expressions)
            found = self._names[id(body)] = body, names
        return found[1]

    def _label(self, expression: Expression) -> str:
        return self._labels.setdefault(expression, f"{_LABEL}{len(self._labels)}")

    def filling(self, choices: Mapping[Key, Choice]) -> Callable[[Jaxpr], Jaxpr]:
        """Return a function that fills in the slots of an open jaxpr, and names what has labels.

        The labels of what is not named are gone. What jaxprs share stays shared, and so does what
        several variants fill in alike, which JAX then differentiates once.

        Raises:
          UnjoinableError: loops that are cut into segments name one value differently.
        """
        outside: dict[str, str] = {}
        for (kind, _), choice in choices.items():
            # What is left of a loop behind its segments is in no checkpoint.
            for label, name in self._named_by(choice) if kind == "segments" else ():
                if outside.setdefault(label, name) != name:
                    raise UnjoinableError
        filling = _Filling(choices, self._named_by, self._filled)
        return functools.partial(filling.jaxpr, names=outside)

    def _named_by(self, choice: Choice) -> Sequence[tuple[str, str]]:
        labels = ((self._labels.get(expression), name) for expression, name in choice.names)
        return [(label, name) for label, name in labels if label is not None]


class _Filled:
    """The jaxprs without slots that were filled in, by what was named in them.

    Attributes:
      made: by the id of a jaxpr, which is kept, and what has a name in it.
    """

    def __init__(self) -> None:
        self.made: dict[Hashable, tuple[Jaxpr, Jaxpr]] = {}
        self._labels: dict[int, tuple[Jaxpr, frozenset[str] | None]] = {}

    def labels(self, jaxpr: Jaxpr) -> frozenset[str] | None:
        """Return the labels in a jaxpr and in those inside of it; None where it holds a slot."""
        found = self._labels.get(id(jaxpr))
        if found is None:
            eqns = [*eqns_in(jaxpr)]
            labels = frozenset(label for eqn in eqns if (label := _label_of(eqn)) is not None)
            is_fixed = all(_slot_of(eqn) is None for eqn in eqns)
            found = self._labels[id(jaxpr)] = jaxpr, labels if is_fixed else None
        return found[1]


class _Filling:
    def __init__(
        self,
        choices: Mapping[Key, Choice],
        named_by: Callable[[Choice], Sequence[tuple[str, str]]],
        filled: _Filled,
    ) -> None:
        self._choices = choices
        self._named_by = named_by
        self._filled = filled
        self._made: dict[Hashable, tuple[Jaxpr, Jaxpr]] = {}

    def jaxpr(self, jaxpr: Jaxpr, names: Mapping[str, str]) -> Jaxpr:
        labels, known = self._filled.labels(jaxpr), self._made
        if labels is not None:
            names = {label: name for label, name in names.items() if label in labels}
            known = self._filled.made
        key = id(jaxpr), tuple(sorted(names.items()))
        found = known.get(key)
        if found is None:
            found = known[key] = jaxpr, self._jaxpr(jaxpr, names)
        return found[1]

    def _jaxpr(self, jaxpr: Jaxpr, names: Mapping[str, str]) -> Jaxpr:
        substitutes: dict[Var, Var] = {}
        eqns: list[Eqn] = []
        for eqn in jaxpr.eqns:
            made = with_substitutes(eqn, substitutes)
            label = _label_of(eqn)
            if label is None:
                eqns.append(self._eqn(made, names))
            elif label in names:
                eqns.append(jax_compat.with_params(made, {"name": names[label]}))
            else:
                substitutes[eqn.outvars[0]] = made.invars[0]
        if not substitutes and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
            return jaxpr
        return jaxpr.replace(eqns=eqns, outvars=substituted(jaxpr.outvars, substitutes))

    def _eqn(self, eqn: Eqn, names: Mapping[str, str]) -> Eqn:
        slot = _slot_of(eqn)
        if slot is None:
            return with_inner(eqn, functools.partial(self.jaxpr, names=names))
        choice = self._choices[slot.key]
        inside = {**names, **dict(self._named_by(choice))}
        made = with_inner(eqn, functools.partial(self.jaxpr, names=inside))
        return jax_compat.with_params(made, {"policy": choice.policy})


@dataclass(frozen=True, slots=True, eq=False)
class _Gradient:
    """A gradient that a step takes.

    Attributes:
      closed: what is differentiated, with what it closes over as its first inputs.
      num_consts: how many these are.
      num_outputs: how many of its results are differentiated; the others are auxiliary.
    """

    closed: ClosedJaxpr
    num_consts: int
    num_outputs: int

    @property
    def jaxpr(self) -> Jaxpr:
        """The open jaxpr."""
        return jax_compat.open_jaxpr(self.closed)


@dataclass(slots=True)
class Gradients:
    """The gradients that are left out of a step while it is traced in `leaving_out`.

    Attributes:
      found: the gradients, in the order in which they are taken.
      is_inside: whether what is differentiated is being traced.
    """

    found: list[_Gradient] = field(default_factory=list)
    is_inside: bool = False

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
            closed, _, leaves, restored = traced_apart(fun, primals, {}, has_aux)
        lifted = jax_compat.with_constants_as_inputs(closed)
        if jax_compat.open_jaxpr(lifted).effects:
            raise UnjoinableError
        number, operands = len(self.found), [*closed.consts, *leaves]
        result = restored(jax_compat.bind_call(lifted, f"{_FORWARD}{number}", operands))
        out, *aux = result if has_aux else (result,)
        out_leaves, tree = jax.tree.flatten(out)
        self.found.append(_Gradient(lifted, len(closed.consts), len(out_leaves)))

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


def leaving_out(gradients: Gradients) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a step is traced with calls in place of its gradients."""
    return jax_compat.replacing_vjp(gradients.taken)


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


def _label_of(eqn: Eqn) -> str | None:
    if jax_compat.primitive_name(eqn) != "name":
        return None
    name = str(jax_compat.params(eqn)["name"])
    return name if name.startswith(_LABEL) else None


def _slot_of(eqn: Eqn) -> _Slot | None:
    if jax_compat.primitive_name(eqn) != "remat":
        return None
    policy = jax_compat.params(eqn).get("policy")
    return policy if isinstance(policy, _Slot) else None


def _typed(value: Any) -> Any:
    """Return the type of an array or a number."""
    return jax_compat.import_jax().typeof(value)


def _type(var: Var) -> tuple[Any, ...]:
    aval: Any = var.aval
    return aval.shape, aval.dtype, getattr(aval, "weak_type", False)
