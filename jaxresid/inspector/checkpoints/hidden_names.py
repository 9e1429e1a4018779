"""Find names in functions with `jax.custom_vjp` that a checkpoint's policy wants and cannot see.

Differentiation runs the forward rule in place of the function. A policy sees the names in the rule,
but none in the function, nor what the rule does by calling such a function, itself or another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.checkpoints.policies import wanted_names
from jaxresid.inspector.checkpoints.sites import CheckpointSite, sites
from jaxresid.inspector.jaxpr.level import Level
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.nesting import eqns_in, nests
from jaxresid.inspector.jaxpr.rewrite import with_inner
from jaxresid.inspector.trace.retracing import retracing
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

_RULE = "custom_vjp_call"


@dataclass(frozen=True, slots=True, eq=False)
class HiddenNames:
    """The names that a policy wants and that are in functions with rules, out of its sight.

    Attributes:
      site: the checkpoint.
      names: the eqns that give these names, the first of each.
      calls: the eqns that call the functions.
      is_called_by_rule: whether a forward rule has the names by calling such a function.
    """

    site: CheckpointSite
    names: tuple[Eqn, ...]
    calls: tuple[Eqn, ...]
    is_called_by_rule: bool


def may_hide_names(jaxpr: Jaxpr) -> bool:
    """Return whether a name is given in a function with a derivative rule of an open jaxpr."""
    return any(_names(body) for eqn in _rules([jaxpr]) for body in _bodies(eqn))


def hidden_names(levels: Levels, jaxpr: Jaxpr) -> Iterator[HiddenNames]:
    """Yield the names that are hidden from policies, for each checkpoint that wants such.

    Args:
      levels: the descent into the jaxpr.
      jaxpr: an open jaxpr that is differentiated.

    Raises:
      RetraceError: a forward rule cannot be traced.
    """
    for site in sites(levels, Level(jaxpr)):
        wanted = wanted_names(site.policy)
        names, calls, is_called = dict[str, Eqn](), list[Eqn](), False
        for eqn in _rules(site.bodies) if wanted else ():
            held = {name: e for body in _bodies(eqn) for name, e in _names(body).items()}
            if not wanted & held.keys():
                continue
            with retracing("a forward rule"):
                rule = jax_compat.forward_rule(eqn)
            seen = {_name(e) for e in _outside_rules([rule]) if _is_name(e)}
            hidden = (wanted & held.keys()) - seen
            if hidden:
                names = {**{name: held[name] for name in sorted(hidden)}, **names}
                is_called = is_called or bool(hidden & _names(rule).keys())
                calls.append(eqn)
        if calls:
            yield HiddenNames(site, tuple(names.values()), tuple(calls), is_called)


def with_names_in_sight(call: Eqn) -> Eqn:
    """Return a call of a function with a forward rule that gives the function's names itself."""
    (body,) = _bodies(call)

    def change(rule: Jaxpr) -> Jaxpr:
        inlined = _without_rules(rule)
        seen = {_name(e) for e in eqns_in(inlined) if _is_name(e)}
        return _with_named_results(inlined, body, seen)

    return jax_compat.with_forward_rule(call, change)


def _without_rules(jaxpr: Jaxpr) -> Jaxpr:
    """Return an open jaxpr with plain calls in place of functions with rules."""
    eqns = []
    for eqn in jaxpr.eqns:
        if jax_compat.primitive_name(eqn) == _RULE:
            eqns.append(jax_compat.as_call(eqn, jax_compat.params(eqn)["call_jaxpr"]))
        else:
            eqns.append(with_inner(eqn, _without_rules))
    return jax_compat.with_other_eqns(jaxpr, eqns)


def _with_named_results(rule: Jaxpr, body: Jaxpr, seen: set[str]) -> Jaxpr:
    """Return a forward rule that names those of its results that the function names."""
    named = {v: _name(e) for e in body.eqns if _is_name(e) for v in e.outvars}
    results = rule.outvars[len(rule.outvars) - len(body.outvars) :]
    wanted = dict[Var, str]()
    for result, var in zip(results, body.outvars, strict=True):
        if not jax_compat.is_literal(result) and not jax_compat.is_literal(var):
            name = named.get(var)
            if name is not None and name not in seen:
                wanted[result] = name
    eqns = list[Eqn]()
    for eqn in rule.eqns:
        made = {v: jax_compat.new_var_like(v) for v in eqn.outvars if v in wanted}
        eqns.append(eqn.replace(outvars=[made.get(v, v) for v in eqn.outvars]) if made else eqn)
        for var, inner in made.items():
            given = jax_compat.as_name(var, wanted[var])
            eqns.append(given.replace(invars=[inner], outvars=[var]))
    return jax_compat.with_other_eqns(rule, eqns)


def _rules(jaxprs: Iterable[Jaxpr]) -> Iterator[Eqn]:
    return (e for e in _outside_rules(jaxprs) if jax_compat.primitive_name(e) == _RULE)


def _outside_rules(jaxprs: Iterable[Jaxpr]) -> Iterator[Eqn]:
    """Yield the eqns of some open jaxprs, at any depth, but for those in functions with rules."""
    seen, stack = set[int](), list(jaxprs)
    while stack:
        jaxpr = stack.pop()
        if id(jaxpr) in seen:
            continue
        seen.add(id(jaxpr))
        for eqn in jaxpr.eqns:
            yield eqn
            if jax_compat.primitive_name(eqn) != _RULE:
                stack += _bodies(eqn)


def _bodies(eqn: Eqn) -> list[Jaxpr]:
    return [nest.jaxpr for nest in nests(eqn)]


def _names(jaxpr: Jaxpr) -> dict[str, Eqn]:
    """Return the names in an open jaxpr, at any depth, each with an eqn that gives it."""
    return {_name(eqn): eqn for eqn in eqns_in(jaxpr) if _is_name(eqn)}


def _is_name(eqn: Eqn) -> bool:
    return jax_compat.primitive_name(eqn) == "name"


def _name(eqn: Eqn) -> str:
    return str(jax_compat.params(eqn)["name"])
