"""Find where a jaxpr makes one score of many for each token, and what becomes of the scores.

That is a matmul to logits and a softmax's sum over them, a cross-entropy most often. What counts is
how values flow, not what functions are called: from the matmul on there are only operations on
single tokens until the axis of the scores is gone, and nothing else reads a value that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxresid import jax_compat
from jaxresid.inspector.program.avals import aval_of
from jaxresid.inspector.variants.rewrites.flat_calls import (
    Flat,
    flattened,
    holders,
    own_eqns,
    summed_widths,
)
from jaxresid.inspector.variants.rewrites.token_axes import (
    Axes,
    backwards,
    forwards,
    shape_of,
    size_of,
)
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr, Var

# Of the scores' bytes; what is left of them for each token is less.
_LITTLE = 0.1
# Of which a softmax, or a sigmoid, is made.
EXPONENTIALS = frozenset({"exp", "exp2", "logistic"})


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """Scores of tokens, and all that is made of them until a few numbers for each are left.

    Attributes:
      holder: the open jaxpr that they are in, as it was found.
      jaxpr: the same with calls inlined.
      matmul: the eqn that makes them.
      loss: the first eqn that sums over the scores of a token what is exponential in them.
      eqns: the eqns from the matmul on, in order.
      axes: the axes of what they make and of what they read a part of.
      inputs: what they read a part of: that of some tokens.
      whole: what they read as it is.
      outputs: what others read of what they make.
      count: how many tokens there are along the axis.
      copies: what they make that has all scores.
      mixing: the matmul of what is exponential in them with values, as in attention; None without.
      matmul_path, loss_path: the eqns that hold one another, from that of the searched jaxpr's to
        the matmul and to the loss.
    """

    holder: Jaxpr
    jaxpr: Jaxpr
    matmul: Eqn
    loss: Eqn
    eqns: tuple[Eqn, ...]
    axes: Mapping[Var, Axes]
    inputs: tuple[Var, ...]
    whole: tuple[Var, ...]
    outputs: tuple[Var, ...]
    count: int
    copies: tuple[Var, ...]
    mixing: Eqn | None
    matmul_path: tuple[Eqn, ...]
    loss_path: tuple[Eqn, ...]

    @property
    def value(self) -> Var:
        """The scores as the matmul makes them."""
        return self.matmul.outvars[0]

    @property
    def tokens(self) -> int:
        """How many tokens there are in all."""
        return size_of(self.value) // self.width_of(self.value)

    def width_of(self, var: Var) -> int:
        """Return how many scores of each token a value has."""
        scores = self.axes[var].scores
        assert scores is not None
        return shape_of(var)[scores]


def logits_in(jaxpr: Jaxpr, least: int) -> Iterator[Logits]:
    """Yield the scores of at least so many bytes that an open jaxpr and its scans make.

    What a checkpoint holds is left out.
    """
    for holder in holders(jaxpr):
        flats: dict[tuple[int, int], Flat] = {}
        tried: set[tuple[int, Axes]] = set()
        widths = summed_widths(holder.jaxpr)
        for eqn in own_eqns(holder.jaxpr):
            for axes in _axes_of(eqn) if _is_matmul(eqn, least) else ():
                shape = shape_of(eqn.outvars[0])
                assert axes.scores is not None
                key = size_of(eqn.outvars[0]), shape[axes.scores]
                # A padded vocabulary may be cropped in between.
                if not any(w <= key[1] <= 2 * w for w in widths) or (id(eqn), axes) in tried:
                    continue
                tried.add((id(eqn), axes))
                if key not in flats:
                    flats[key] = flattened(holder, *key)
                scores = [
                    s
                    for s in scores_made_by(holder.jaxpr, flats[key], eqn, axes, _LITTLE)
                    if s.mixing is None
                ]
                yield from scores
                if scores:
                    break


def scores_made_by(
    holder: Jaxpr, flat: Flat, matmul: Eqn, axes: Axes, most_left: float
) -> Iterator[Logits]:
    """Yield the scores that a matmul makes wherever it is called.

    Args:
      holder: the open jaxpr that calls it.
      flat: the same with calls inlined.
      matmul: the eqn.
      axes: the axes of its result.
      most_left: of the scores' bytes; what is left of them in the end has to be less.
    """
    for eqn in flat.jaxpr.eqns:
        if flat.paths[id(eqn)][-1] is matmul:
            scores = _ScoreSearch(flat, eqn, axes, most_left).scores(holder)
            if scores is not None:
                yield scores


def _is_matmul(eqn: Eqn, least: int) -> bool:
    if jax_compat.primitive_name(eqn) != "dot_general":
        return False
    _, batch = jax_compat.params(eqn)["dimension_numbers"]
    return not batch[0] and aval_of(eqn.outvars[0]).nbytes >= least


def _axes_of(matmul: Eqn) -> Iterator[Axes]:
    """Yield what may be the axes of a matmul's result, those of most tokens first."""
    contracting, _ = jax_compat.params(matmul)["dimension_numbers"]
    dims, at = list[list[int]](), 0
    for side in (0, 1):
        free = len(shape_of(matmul.invars[side])) - len(contracting[side])
        dims.append(list(range(at, at + free)))
        at += free
    shape = shape_of(matmul.outvars[0])
    for tokens, scores in (dims, reversed(dims)):
        if len(scores) == 1:
            for dim in sorted(tokens, key=lambda d: -shape[d]):
                if shape[dim] > 1:
                    yield Axes(dim, 1, scores[0])


class _ScoreSearch:
    """The search for what becomes of scores, given their axes."""

    def __init__(self, flat: Flat, matmul: Eqn, axes: Axes, most_left: float) -> None:
        assert axes.tokens is not None
        self._most_left = most_left
        self._flat, self._paths, self._matmul = flat.jaxpr, flat.paths, matmul
        self._count = shape_of(matmul.outvars[0])[axes.tokens]
        self._makers = {v: i for i, e in enumerate(self._flat.eqns) for v in e.outvars}
        self._start = self._makers[matmul.outvars[0]]
        self._axes: dict[Var, Axes] = {matmul.outvars[0]: axes}
        # The numbers of eqns that are no part of what the scores lead to, and are made again.
        self._pulled: set[int] = set()
        self._inputs: dict[Var, None] = {}
        self._summed: set[Var] = set()
        self._wanted: dict[int, Mapping[int, Axes]] = {}

    def scores(self, holder: Jaxpr) -> Logits | None:
        """Return the scores in a jaxpr, as it was; None where they cannot be made in parts."""
        behind, broken = self._followed()
        inside = self._inside(behind)
        if inside & broken:
            return None
        for i in [self._start, *sorted(inside)]:
            if not self._provided(i, inside):
                return None
        numbers = sorted({self._start, *inside, *self._pulled})
        eqns = [self._flat.eqns[i] for i in numbers]
        outputs = self._outputs({self._start, *inside})
        loss = self._loss(inside)
        if outputs is None or loss is None:
            return None
        results = {v for e in eqns for v in e.outvars}
        operands = [v for e in eqns for v in e.invars if not jax_compat.is_literal(v)]
        whole = dict.fromkeys(v for v in operands if v not in results and v not in self._inputs)
        return Logits(
            holder=holder,
            jaxpr=self._flat,
            matmul=self._matmul,
            loss=loss,
            eqns=tuple(eqns),
            axes=self._axes,
            inputs=tuple(self._inputs),
            whole=tuple(whole),
            outputs=outputs,
            count=self._count,
            copies=tuple(v for v in results if self._has_scores(v)),
            mixing=self._mixing(inside),
            matmul_path=self._paths[id(self._matmul)],
            loss_path=self._paths[id(loss)],
        )

    def _followed(self) -> tuple[list[int], set[int]]:
        """Return the numbers of the eqns that scores lead to, and of those without a rule."""
        behind, broken = [], set[int]()
        reached = set(self._matmul.outvars)
        for i in range(self._start + 1, len(self._flat.eqns)):
            eqn = self._flat.eqns[i]
            if not any(v in reached for v in eqn.invars if not jax_compat.is_literal(v)):
                continue
            behind.append(i)
            reached |= set(eqn.outvars)
            if not self._follow(i, eqn):
                broken.add(i)
        return behind, broken

    def _follow(self, number: int, eqn: Eqn) -> bool:
        operands = [(j, v) for j, v in enumerate(eqn.invars) if not jax_compat.is_literal(v)]
        if len(eqn.outvars) != 1 or any(v in self._summed for _, v in operands):
            return False
        followed = (
            forwards(eqn, j, self._axes[v], self._count) for j, v in operands if v in self._axes
        )
        applied = [a for a in followed if a is not None]
        if not applied:
            return False
        first = min(applied, key=lambda a: a.result.scores is None)
        result = first.result
        self._axes[eqn.outvars[0]] = result
        self._wanted[number] = first.operands
        if result.tokens is None:
            self._summed.add(eqn.outvars[0])
        return True

    def _has_scores(self, var: Var) -> bool:
        axes = self._axes.get(var)
        return axes is not None and axes.scores is not None

    def _inside(self, behind: Sequence[int]) -> set[int]:
        """Return which of the eqns read scores, or lead to an eqn that does."""
        inside: set[int] = set()
        needed: set[Var] = set()
        for i in reversed(behind):
            eqn = self._flat.eqns[i]
            operands = [v for v in eqn.invars if not jax_compat.is_literal(v)]
            if any(map(self._has_scores, operands)) or any(v in needed for v in eqn.outvars):
                inside.add(i)
                needed |= set(operands)
        return inside

    def _provided(self, number: int, inside: set[int]) -> bool:
        """Provide what an eqn reads; return False where that is of other axes."""
        eqn = self._flat.eqns[number]
        if number == self._start:
            applied = backwards(eqn, self._axes[self._matmul.outvars[0]], self._count)
            if applied is None:
                return False
            wanted = applied.operands
        else:
            wanted = self._wanted[number]
        for j, v in enumerate(eqn.invars):
            if jax_compat.is_literal(v):
                continue
            if j not in wanted:
                # What is read whole must not be what there is a part of only.
                if v in self._axes:
                    return False
            elif not self._demanded(v, wanted[j]):
                return False
        return True

    def _demanded(self, var: Var, axes: Axes) -> bool:
        """Provide a value with axes: it has them, is made again with them, or is read in parts."""
        own = self._axes.get(var)
        if own is not None:
            same = (own.tokens, own.inner) == (axes.tokens, axes.inner)
            return same and own.scores in (axes.scores, None)
        self._axes[var] = axes
        number = self._makers.get(var)
        if number is not None and axes.scores is not None:
            applied = backwards(self._flat.eqns[number], axes, self._count)
            if applied is not None:
                return self._pull(number, applied.operands)
        self._inputs[var] = None
        return True

    def _pull(self, number: int, wanted: Mapping[int, Axes]) -> bool:
        """Make a value again that has the scores' axis and no part in them, as a one-hot target."""
        eqn = self._flat.eqns[number]
        whole = [v for j, v in enumerate(eqn.invars) if j not in wanted]
        if any(v in self._axes for v in whole if not jax_compat.is_literal(v)):
            return False
        self._pulled.add(number)
        return all(self._demanded(eqn.invars[j], axes) for j, axes in wanted.items())

    def _outputs(self, inside: set[int]) -> tuple[Var, ...] | None:
        """Return what is read elsewhere of what is made; None where scores are, or much else."""
        results = {v for i in inside for v in self._flat.eqns[i].outvars}
        reads = [v for i, e in enumerate(self._flat.eqns) if i not in inside for v in e.invars]
        reads += self._flat.outvars
        outputs = dict.fromkeys(v for v in reads if not jax_compat.is_literal(v) and v in results)
        if any(map(self._has_scores, outputs)) or not outputs:
            return None
        nbytes = sum(aval_of(v).nbytes for v in outputs)
        most = self._most_left * aval_of(self._matmul.outvars[0]).nbytes
        return tuple(outputs) if nbytes < most else None

    def _mixing(self, inside: set[int]) -> Eqn | None:
        """Return the matmul that takes the scores as weights of values, each of many numbers."""
        for i in sorted(inside):
            eqn = self._flat.eqns[i]
            if jax_compat.primitive_name(eqn) != "dot_general":
                continue
            values = [v for v in eqn.invars if not self._has_scores(v)]
            if len(values) == 1 and not self._has_scores(eqn.outvars[0]):
                (contracting, _), (batch, _) = jax_compat.params(eqn)["dimension_numbers"]
                if len(shape_of(values[0])) > len(contracting) + len(batch):
                    return eqn
        return None

    def _loss(self, inside: set[int]) -> Eqn | None:
        """Return the first sum over the scores of what is exponential in them."""
        exponential: set[Var] = set()
        for i in sorted(inside):
            eqn = self._flat.eqns[i]
            operands = [v for v in eqn.invars if not jax_compat.is_literal(v)]
            is_in = any(v in exponential for v in operands)
            scored = any(map(self._has_scores, operands))
            if scored and (is_in or jax_compat.primitive_name(eqn) in EXPONENTIALS):
                if not any(map(self._has_scores, eqn.outvars)):
                    return eqn
                exponential |= set(eqn.outvars)
        return None
