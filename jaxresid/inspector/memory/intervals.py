"""The interval that a compiler's figure is in, given the estimate.

For programs of one device it is that of nine in ten; its factors are in `intervals.json`, by
profile and by kind of program, and `python -m tests.benchmarks.accuracy.conformal` makes them, and
says how. For programs over a mesh, of which fewer were compiled, it has all that were;
`python tests/benchmarks/sharded.py --large --write` makes `mesh_intervals.json`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.phases import BACKWARD, RECOMPUTE
from jaxresid.inspector.memory.peak import uncounted
from jaxresid.inspector.program.build import Program, all_ops
from jaxresid.inspector.program.ops import Op
from jaxresid.results import Interval, IntervalBasis

# None; gradients of losses; derivatives of derivatives, or of each example.
Gradients = Literal["none", "one", "many"]


@dataclass(frozen=True, slots=True)
class ProgramKind:
    """The kind of a program; estimates of different kinds are off by different factors.

    Attributes:
      has_loop: whether it has a scan or a while loop.
      is_checkpointed: whether it computes something again.
      is_split: whether it is split over several devices.
      gradients: how many it takes.
    """

    has_loop: bool
    is_checkpointed: bool
    is_split: bool = False
    gradients: Gradients = "one"


@dataclass(frozen=True, slots=True)
class KindFactors:
    """The factors between the estimate and the ends of the interval, for one kind of program.

    Attributes:
      has_loop: the kind; None: with loops and without.
      is_checkpointed: the kind; None: with checkpoints and without.
      low: the factor of the lower end, at most 1.
      high: the factor of the upper end, at least 1.
      gradients: the kind; None: those without factors of their own.
    """

    has_loop: bool | None
    is_checkpointed: bool | None
    low: float
    high: float
    gradients: Gradients | None = None

    def is_of(self, kind: ProgramKind) -> bool:
        """Return whether they are for a kind."""
        return (
            self.has_loop in (None, kind.has_loop)
            and self.is_checkpointed in (None, kind.is_checkpointed)
            and self.gradients in (None, kind.gradients)
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """The intervals of one profile.

    Attributes:
      basis: what they were measured with.
      kinds: the factors; there are some for each kind.
      other_versions: the factor that both ends are moved by for a compiler of another version.
      own_bases: by what they take of gradients what those of kinds with factors of their own were
        measured with.
    """

    basis: IntervalBasis
    kinds: tuple[KindFactors, ...]
    other_versions: float
    own_bases: Mapping[str, IntervalBasis] = field(default_factory=dict)

    def basis_of(self, gradients: Gradients) -> IntervalBasis:
        """Return what the intervals of a program were measured with."""
        return self.own_bases.get(gradients, self.basis)


def kind_of(program: Program) -> ProgramKind:
    """Return the kind of a program."""
    ops = all_ops(program.block.ops)
    phases = {op.phase for op in ops}
    return ProgramKind(
        any(op.is_loop for op in ops),
        RECOMPUTE in phases,
        is_split=program.sharding is not None and math.prod(program.sharding.sizes.values()) > 1,
        gradients=_gradients(ops, phases),
    )


def _gradients(ops: Sequence[Op], phases: Set[str]) -> Gradients:
    """Return how many gradients ops are of."""
    places = {(id(op.context), id(op.eqn.source_info.name_stack)): op for op in ops}
    for op in places.values():
        count, is_batched = jax_compat.nested_derivatives((*op.context.eqns, op.eqn))
        # The two passes of a loss that is differentiated here have no mark.
        if is_batched or count + op.context.is_of_pass > 1:
            return "many"
    return "none" if phases.isdisjoint((BACKWARD, RECOMPUTE)) else "one"


def interval_of_program(
    nbytes: int, program: Program, profile_name: str, versions: Mapping[str, str]
) -> Interval | None:
    """Return the interval around the estimated peak of a program, as `interval_of`.

    There is none for a program with parts whose memory is not known.
    """
    if uncounted(program):
        return None
    return interval_of(nbytes, kind_of(program), profile_name, versions)


def interval_of(
    nbytes: int, kind: ProgramKind, profile_name: str, versions: Mapping[str, str]
) -> Interval | None:
    """Return the interval around an estimated peak; None where too few programs were measured.

    Args:
      nbytes: the estimate.
      kind: the kind of the program.
      profile_name: the profile that made the estimate.
      versions: the installed packages that compile, and their versions.
    """
    found = calibrations(is_split=kind.is_split).get(profile_name)
    if found is None:
        return None
    factors = next(each for each in found.kinds if each.is_of(kind))
    basis = found.basis_of(kind.gradients)
    wider = found.other_versions if _others(basis, versions) else 1.0
    return Interval(
        math.floor(nbytes * factors.low / wider), math.ceil(nbytes * factors.high * wider)
    )


def basis_of(
    profile_name: str,
    versions: Mapping[str, str],
    *,
    is_split: bool = False,
    gradients: Gradients = "one",
) -> IntervalBasis | None:
    """Return what the intervals of a profile were measured with; None where there are none.

    Args:
      profile_name: the profile that makes the estimates.
      versions: the installed packages that compile, and their versions.
      is_split: whether the programs are split over several devices.
      gradients: how many they take.
    """
    found = calibrations(is_split=is_split).get(profile_name)
    if found is None:
        return None
    basis = found.basis_of(gradients)
    others = _others(basis, versions)
    return replace(basis, others=others, widened=found.other_versions if others else 1.0)


@functools.cache
def calibrations(*, is_split: bool = False) -> Mapping[str, Calibration]:
    """Return the calibrations by profile, for programs of one device or over a mesh."""
    file = resources.files(__package__) / ("mesh_intervals.json" if is_split else "intervals.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    return {name: _calibration(each, found["coverage"]) for name, each in found["profiles"].items()}


def _basis(found: Mapping[str, Any], coverage: float) -> IntervalBasis:
    return IntervalBasis(
        programs=found["programs"],
        places=tuple(found["places"]),
        compilers={name: tuple(each) for name, each in found["compilers"].items()},
        smallest_nbytes=found["smallest_nbytes"],
        largest_nbytes=found["largest_nbytes"],
        coverage=coverage,
    )


def _calibration(found: Mapping[str, Any], coverage: float) -> Calibration:
    kinds = tuple(
        KindFactors(
            each["has_loop"],
            each["is_checkpointed"],
            each["low"],
            each["high"],
            each.get("gradients"),
        )
        for each in found["kinds"]
    )
    own = {name: _basis(each, coverage) for name, each in found.get("own", {}).items()}
    return Calibration(_basis(found, coverage), kinds, found["other_versions"], own)


def _others(basis: IntervalBasis, versions: Mapping[str, str]) -> dict[str, str]:
    """Return the installed packages of another version than those that were measured.

    A jaxlib of an unknown version is another one; a TPU's compiler need not be installed.
    """
    installed = {"jaxlib": "of an unknown version", **versions}
    return {
        name: installed[name]
        for name, measured in basis.compilers.items()
        if name in installed and installed[name] not in measured
    }
