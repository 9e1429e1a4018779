"""Findings about one checkpoint besides its verdict: saved in vain, saved twice, not needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from jaxresid import jax_compat
from jaxresid.base.text.units import format_bytes, format_flops
from jaxresid.inspector.checkpoints.verdicts import VerdictFacts, is_useless
from jaxresid.inspector.cost.jaxpr_cost import eqn_cost
from jaxresid.inspector.jaxpr.phases import RECOMPUTE
from jaxresid.inspector.jaxpr.primitives import CONTRACTIONS
from jaxresid.inspector.memory.peak import OpSources
from jaxresid.inspector.program.build import Program, all_ops
from jaxresid.inspector.program.ops import Op, Value
from jaxresid.results import Computed, Finding, Location, Mark, Residual, Source

# Of the residual bytes; less is not worth a reader's time.
_WORTH_SAYING = 0.01


def findings(
    facts: VerdictFacts,
    residuals: Sequence[Residual],
    whole: Callable[[], tuple[Program, OpSources]],
    named: Callable[[], Program],
) -> tuple[Finding, ...]:
    """Return the findings about one checkpoint.

    Args:
      facts: the facts that the verdict on the checkpoint is made of.
      residuals: the residuals of the whole function.
      whole: makes the whole program, and finds the source lines of its ops.
      named: makes the program that shows the checkpoint, with names; see `judging.Case`.
    """
    return (
        *_saved_in_vain(facts, residuals, whole, named),
        *_saved_twice(facts, residuals),
        *_recomputed_anyway(facts),
    )


def _saved_in_vain(
    facts: VerdictFacts,
    residuals: Sequence[Residual],
    whole: Callable[[], tuple[Program, OpSources]],
    named: Callable[[], Program],
) -> Iterator[Finding]:
    """Yield findings of names that are saved in vain, after a nonlinearity.

    The derivative of a nonlinearity needs its input, so the matmul that makes the input is
    recomputed although its named result is saved.
    """
    names = facts.answers.saved_names
    if not names:
        return
    program, places = whole()
    recomputed: dict[object, Op] = {}
    for op in all_ops(program.block.ops):
        if op.phase == RECOMPUTE and op.name in CONTRACTIONS:
            recomputed[_identity(op)] = op
    everything = all_ops(named().block.ops)
    makers = {v: op for op in everything for v in op.results}
    policy_answers: set[str] = set()
    for op, name in _named(everything):
        if name not in names or name in policy_answers:
            continue
        for matmul in _matmuls_behind(makers, op.operands[0]):
            again = recomputed.get(_identity(matmul))
            if again is None:
                continue
            policy_answers.add(name)
            saved = [r for r in residuals if getattr(r.origin, "name", None) == name]
            nbytes = sum(r.nbytes for r in saved)
            if not nbytes:  # the policy names it and the backward pass does not read it
                continue
            named_at = next(filter(None, map(_named_at, saved)), None)
            flops = eqn_cost(again.eqn).flops * facts.site.trips
            where = places.location(again)
            at = f" at line {where.line}, `{where.code}`," if where else ""
            yield Finding(
                "named-nonlinearity-output",
                f"{name!r} is saved ({format_bytes(nbytes)}), yet the {again.name} that it is"
                f" computed from{at} is recomputed anyway ({format_flops(flops)}): the operation"
                " after the matmul is nonlinear, and its derivative needs the matmul's result",
                Source(named_at) if named_at else facts.site.source,
                help="name the result of the matmul instead, before the nonlinearity",
                measured={"name": name, "nbytes": nbytes, "recompute_flops": flops},
            )
            break


def _identity(op: Op) -> tuple[object, ...]:
    return (op.name, jax_compat.traceback(op.eqn), tuple(v.shape for v in op.results))


def _named_at(residual: Residual) -> Location | None:
    return residual.origin.named_at if isinstance(residual.origin, Computed) else None


def _named(ops: Sequence[Op]) -> Iterator[tuple[Op, str]]:
    for op in ops:
        if op.name == "name":
            yield op, str(op.params["name"])


def _matmuls_behind(makers: Mapping[Value, Op], value: Value) -> Iterator[Op]:
    """Yield the matmuls that a value is made from through other operations."""
    todo, seen = [value], set()
    first = True
    while todo:
        op = makers.get(todo.pop())
        if op is None or id(op) in seen:
            continue
        seen.add(id(op))
        if op.name in CONTRACTIONS:
            if not first:
                yield op
        elif not op.bodies:
            todo += [v for v in op.operands if v.literal is None]
        first = False


def _saved_twice(facts: VerdictFacts, residuals: Sequence[Residual]) -> Iterator[Finding]:
    at = facts.site.location
    for r in residuals:
        origin = r.origin
        if Mark.DUPLICATE not in r.marks or not isinstance(origin, Computed):
            continue
        if "remat" not in origin.within or not _passes(origin.stack, at):
            continue
        if r.nbytes <= _WORTH_SAYING * facts.figures.kept_nbytes:
            continue
        what = f"named {origin.name!r}, " if origin.name else ""
        line = f"at line {origin.location.line}" if origin.location else ""
        yield Finding(
            "value-saved-twice",
            f"the {origin.primitive} {line} ({what}{format_bytes(r.nbytes)}) is kept although an"
            " earlier checkpoint keeps the same value",
            origin.source if origin.location else facts.site.source,
            help="compute it once, outside the checkpoints, or put both uses under one checkpoint",
            measured={"nbytes": r.nbytes},
        )


def _passes(stack: Sequence[Location], at: Location | None) -> bool:
    """Return whether a stack goes through a line; true where the line is not known."""
    return at is None or any((f.file, f.line) == (at.file, at.line) for f in stack)


def _recomputed_anyway(facts: VerdictFacts) -> Iterator[Finding]:
    """Yield a finding where an accelerator's compiler saves the same bytes without the policy."""
    site = facts.site
    if not facts.answers.saves or site.in_loops or site.is_nested:
        return
    if facts.peaks is None or not is_useless(facts):
        return
    dropped = facts.without.kept_nbytes - facts.figures.kept_nbytes
    if dropped <= _WORTH_SAYING * facts.without.kept_nbytes:
        return
    yield Finding(
        "compiler-recomputes",
        f"the compiler would recompute most of the {format_bytes(dropped)} that it drops anyway:"
        " in straight-line code it computes cheap elementwise values again where they are read",
        site.source,
        help="a checkpoint that saves the matmuls pays off around a loop's body, or where sin, cos"
        " or erf are kept",
        measured={"nbytes": dropped},
    )
