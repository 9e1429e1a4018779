"""Tell which inputs of a jaxpr each output depends on, where what is zero for every input cuts it.

The gradient of weights behind a `stop_gradient`, or of weights that nothing reads, is written into
a jaxpr as zeros; what an optimizer makes of them depends on no input of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from jaxresid import jax_compat
from jaxresid.inspector.jaxpr.nesting import Nest, nests
from jaxresid.inspector.jaxpr.phases import BACKWARD, Passes
from jaxresid.inspector.jaxpr.primitives import SIDE_BY_SIDE
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# The inputs that a value depends on, a bit each; ZERO: none, as it is zero whatever they are.
Dependence = int | None
ZERO: Final = None

# What is zero if any of its operands is; if the first is; if all of them are.
_PRODUCTS = frozenset({"mul", "dot_general", "conv_general_dilated"})
_OF_THE_FIRST = frozenset({"div", "gather", "dynamic_slice"})
_LINEAR = frozenset(
    """
    add add_any sub neg convert_element_type reduce_precision broadcast_in_dim reshape transpose
    squeeze expand_dims slice concatenate pad rev copy copy_p abs sign sqrt square integer_pow real
    imag conj max min reduce_sum reduce_max reduce_min cumsum scatter-add scatter_add
    dynamic_update_slice name sharding_constraint device_put optimization_barrier psum
    psum_invariant pvary pcast reduce_window_sum select_and_scatter_add
    """.split()
)
# Operands of these that are indices or a choice, and no part of what is zero.
_CHOOSING = {
    "select_n": slice(1, None),
    "scatter-add": slice(0, 3, 2),
    "scatter_add": slice(0, 3, 2),
    "dynamic_update_slice": slice(0, 2),
}


def dependences(jaxpr: Jaxpr, passes: Passes) -> list[Dependence]:
    """Return what each outvar of an open jaxpr depends on.

    A bit more than there are inputs is that of a gradient.

    Args:
      jaxpr: the jaxpr.
      passes: tells which of its eqns are those of a backward pass.
    """
    given: list[Dependence] = [1 << i for i in range(len(jaxpr.invars))]
    return _Dependences(passes, 1 << len(given)).of(jaxpr, given)


@dataclass(frozen=True, slots=True)
class _Dependences:
    passes: Passes
    gradient: int

    def of(self, jaxpr: Jaxpr, given: Sequence[Dependence]) -> list[Dependence]:
        env: dict[Var, Dependence] = dict.fromkeys(jaxpr.constvars, 0)
        env.update(zip(jaxpr.invars, given, strict=True))

        def read(v: Var) -> Dependence:
            if not jax_compat.is_literal(v):
                return env[v]
            return ZERO if jax_compat.literal_text(v) in ("0", "0.0", "False") else 0

        for eqn in jaxpr.eqns:
            results = self.results(eqn, [read(v) for v in eqn.invars])
            if self.passes.of(eqn) == BACKWARD:
                results = [v if v is None else v | self.gradient for v in results]
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def results(self, eqn: Eqn, operands: list[Dependence]) -> list[Dependence]:
        name = jax_compat.primitive_name(eqn)
        if name in SIDE_BY_SIDE:
            return operands
        inside = nests(eqn)
        if inside:
            return self.nested(eqn, inside, operands)
        if name in _PRODUCTS and None in operands:
            is_zero = True
        elif name in _OF_THE_FIRST:
            is_zero = operands[0] is None
        else:
            deciding = operands[_CHOOSING[name]] if name in _CHOOSING else operands
            is_known = name in _LINEAR or name in _CHOOSING
            is_zero = is_known and bool(operands) and all(value is None for value in deciding)
        result = ZERO if is_zero else _joined(operands) or 0
        return [result] * len(eqn.outvars)

    def nested(
        self, eqn: Eqn, inside: Sequence[Nest], operands: list[Dependence]
    ) -> list[Dependence]:
        # What no body is given decides which of them runs, or how often.
        given = {i for nest in inside for i in nest.operands}
        deciding = _joined([value for i, value in enumerate(operands) if i not in given]) or 0
        found: list[list[Dependence]] = [[] for _ in eqn.outvars]
        for nest in inside:
            for i, value in zip(nest.results, self.body(nest, operands), strict=True):
                if i is not None:
                    found[i].append(value)
        results = [_joined(values) for values in found]
        return [ZERO if value is None else value | deciding for value in results]

    def body(self, nest: Nest, operands: Sequence[Dependence]) -> list[Dependence]:
        """Return what a body's outvars depend on; for a loop, after any number of trips."""
        given = [operands[i] for i in nest.operands]
        while True:
            made = self.of(nest.jaxpr, given)
            entering = list(given)
            for into, out in nest.carries.items():
                entering[into] = _joined([given[into], made[out]])
                made[out] = entering[into]
            if entering == given:
                return made
            given = entering


def _joined(values: Sequence[Dependence]) -> Dependence:
    """Return what several values together depend on; ZERO if all of them are zero."""
    found: Dependence = ZERO
    for value in values:
        if value is not None:
            found = value if found is None else found | value
    return found
