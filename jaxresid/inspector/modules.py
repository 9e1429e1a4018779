"""Add up the memory of a program by the modules of its model.

A parameter is of the module that holds it, by its path; the optimizer's state for it has the same
path behind one of the optimizer's own. What a module's methods compute has the module's path from
the name stack, or from the parameters that they read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jaxresid.inspector.jaxpr.module_paths import tokens
from jaxresid.inspector.program.build import Program
from jaxresid.inspector.program.step_roles import OPTIMIZER_STATE, PARAMETERS
from jaxresid.inspector.program.updated_arguments import STATE
from jaxresid.results import Computed, LiveValue, ModuleMemory, Report

Names = tuple[str, ...]

_NUMBER = re.compile(r"\d+\.\.\d+|\d+")
# What Flax puts around the parameters of modules.
_COLLECTIONS = frozenset({"params"})


@dataclass(slots=True)
class _Bytes:
    """The bytes of a module and what is in it, as `ModuleMemory` has them."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    residuals: int = 0
    peak: int = 0


@dataclass(slots=True)
class _Modules:
    """The modules so far.

    Attributes:
      scopes: the first names of the paths that methods have.
      parameters: the names behind the argument of each parameter -> its module.
      found: the bytes of each module.
    """

    scopes: frozenset[str]
    parameters: dict[Names, Names] = field(default_factory=dict)
    found: dict[Names, _Bytes] = field(default_factory=dict)

    def holder(self, path: str) -> Names:
        """Return the module that holds a parameter."""
        names = _names_of(path)
        first = 0 if names[0].endswith("]") else 1
        inner = names[first:-1]
        for i, name in enumerate(inner):
            if name in self.scopes:
                return inner[i:]
        return tuple(n for n in inner if n not in _COLLECTIONS) or names[:1]

    def of(self, path: str) -> Names:
        """Return the module of an argument or output by the parameter that its path ends with."""
        names = _names_of(path)
        for i in range(len(names)):
            if names[i:] in self.parameters:
                return self.parameters[names[i:]]
        return ()

    def method(self, scope: Names) -> Names:
        """Return the module of a method by its path from the name stack.

        Flax linen begins it with the class of the model, which no parameter's path has.
        """
        tops = {holder[0] for holder in self.parameters.values()}
        return next((scope[i:] for i, name in enumerate(scope) if name in tops), scope)

    def add(self, module: Names, what: str, nbytes: int) -> None:
        """Add bytes to a module and to those that it is in."""
        for end in range(min(1, len(module)), len(module) + 1):
            if end or not module:
                each = self.found.setdefault(module[:end], _Bytes())
                setattr(each, what, getattr(each, what) + nbytes)


def modules(
    report: Report, program: Program, live: Sequence[LiveValue]
) -> tuple[ModuleMemory, ...]:
    """Return the bytes of each module, each before those in it, what is in none last.

    Args:
      report: what was found of the program.
      program: the program.
      live: what is live at its peak, one by one; empty where that is not estimated.
    """
    kept = [
        (_scope(r.origin.source.scope), r.nbytes)
        for r in report.residuals
        if isinstance(r.origin, Computed) and r.aval.memory == "device"
    ]
    scopes = [scope for scope, _ in kept] + [_scope(v.source.scope) for v in live]
    found = _Modules(frozenset(scope[0] for scope in scopes if scope))
    is_step = report.target.mode == "program" and report.target.has_gradient
    differentiated = set(report.target.differentiated)
    inputs = list(zip(program.block.inputs, program.inputs, strict=True))
    for v, role in inputs:
        if role.path is None or role.kind not in (PARAMETERS, STATE, "argument"):
            continue
        if is_step and role.kind != PARAMETERS:
            continue
        holder = found.holder(role.path)
        names = _names_of(role.path)
        found.parameters[names] = holder
        if len(names) > 1:
            found.parameters[names[1:]] = holder
        nbytes = v.nbytes if v.memory == "device" else 0
        found.add(holder, "parameters", nbytes)
        if role.path in differentiated:
            found.add(holder, "gradients", nbytes)
    for v, role in inputs:
        if role.kind == OPTIMIZER_STATE and role.path is not None and v.memory == "device":
            found.add(found.of(role.path), "optimizer", v.nbytes)
    for scope, nbytes in kept:
        found.add(found.method(scope), "residuals", nbytes)
    for value in live:
        module = found.of(value.path) if value.path else ()
        found.add(module or found.method(_scope(value.source.scope)), "peak", value.nbytes)
    has_peak = report.peak is not None
    return tuple(_memory(path, found.found[path], has_peak) for path in _preorder(found.found))


def _memory(path: Names, each: _Bytes, has_peak: bool) -> ModuleMemory:
    peak = each.peak if has_peak else None
    return ModuleMemory(path, each.parameters, each.gradients, each.optimizer, each.residuals, peak)


def _preorder(found: dict[Names, _Bytes]) -> Iterable[Names]:
    """Yield modules, each before those in it, the biggest of its neighbours first."""

    def size(path: Names) -> tuple[int, int, int]:
        each = found[path]
        return -each.peak, -each.residuals, -each.parameters

    def key(path: Names) -> tuple[bool, list[tuple[tuple[int, int, int], str]]]:
        # Of each name the size of the module down to there.
        return not path, [(size(path[: i + 1]), name) for i, name in enumerate(path)]

    return sorted(found, key=key)


def _scope(scope: str) -> Names:
    """Return the names of a module path, or what several have in common."""
    each = [_names(one.split("/")) for one in scope.split(", ") if one]
    common = []
    for names in zip(*each, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return tuple(common)


def _names(parts: Iterable[str]) -> Names:
    """Return the names in parts of a path, with stars for numbers and indices behind their list."""
    names: list[str] = []
    for token in (token for part in parts for token in tokens(part)):
        name = _NUMBER.sub("*", token)
        if name.startswith("[") and names:
            names[-1] += name
        else:
            names.append(name)
    return tuple(names)


def _names_of(path: str) -> Names:
    """Return the names in a parameter's path, without what some of Flax's end with."""
    return _names([path.removesuffix(".raw_value").removesuffix(".value")])
