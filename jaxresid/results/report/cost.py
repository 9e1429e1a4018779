"""The cost of running something: FLOPs, transcendentals and bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxresid.base.text.short_repr import Shown


@dataclass(frozen=True, slots=True, repr=False)
class Cost(Shown):
    """The cost of running something, as counted on its jaxpr: an estimate of work, not of time.

    Costs add, subtract, and multiply by a number of trips.

    Attributes:
      matmul_flops: FLOPs of matmuls; a multiply-add is two.
      conv_flops: FLOPs of convolutions; a multiply-add is two.
      elementwise_flops: FLOPs of elementwise operations.
      transcendentals: evaluations of exp, tanh, sin and the like; not among the FLOPs.
      nbytes: bytes that each eqn by itself reads and writes; fusion saves most of them.
      uncosted: primitives that no rule covers, by name; they make every figure a lower bound.
      notes: what was assumed, such as a while loop's unknown trips.
      collectives: the collectives of `shard_map` bodies by primitive: the bytes of their results on
        one device.
    """

    matmul_flops: int = 0
    conv_flops: int = 0
    elementwise_flops: int = 0
    transcendentals: int = 0
    nbytes: int = 0
    uncosted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    collectives: tuple[tuple[str, int], ...] = ()

    @property
    def flops(self) -> int:
        """All FLOPs, without the transcendentals."""
        return self.matmul_flops + self.conv_flops + self.elementwise_flops

    def __add__(self, other: Cost) -> Cost:
        return self._with(other, 1)

    def __sub__(self, other: Cost) -> Cost:
        return self._with(other, -1)

    def __mul__(self, trips: int) -> Cost:
        return Cost(
            self.matmul_flops * trips,
            self.conv_flops * trips,
            self.elementwise_flops * trips,
            self.transcendentals * trips,
            self.nbytes * trips,
            self.uncosted,
            self.notes,
            tuple((name, nbytes * trips) for name, nbytes in self.collectives),
        )

    def least(self, other: Cost) -> Cost:
        """Return the lesser of each figure, with the notes and uncosted primitives of this one."""
        mine, theirs = dict(self.collectives), dict(other.collectives)
        least = ((name, min(mine.get(name, 0), theirs.get(name, 0))) for name in mine | theirs)
        return replace(
            self,
            matmul_flops=min(self.matmul_flops, other.matmul_flops),
            conv_flops=min(self.conv_flops, other.conv_flops),
            elementwise_flops=min(self.elementwise_flops, other.elementwise_flops),
            transcendentals=min(self.transcendentals, other.transcendentals),
            nbytes=min(self.nbytes, other.nbytes),
            collectives=tuple(sorted((name, n) for name, n in least if n)),
        )

    def _with(self, other: Cost, sign: int) -> Cost:
        return Cost(
            self.matmul_flops + sign * other.matmul_flops,
            self.conv_flops + sign * other.conv_flops,
            self.elementwise_flops + sign * other.elementwise_flops,
            self.transcendentals + sign * other.transcendentals,
            self.nbytes + sign * other.nbytes,
            tuple(sorted({*self.uncosted, *other.uncosted})),
            tuple(dict.fromkeys((*self.notes, *other.notes))),
            _summed(self.collectives, other.collectives, sign),
        )


def _summed(
    some: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...], sign: int
) -> tuple[tuple[str, int], ...]:
    found = dict(some)
    for name, nbytes in other:
        found[name] = found.get(name, 0) + sign * nbytes
    return tuple(sorted((name, nbytes) for name, nbytes in found.items() if nbytes))


@dataclass(frozen=True, slots=True, repr=False)
class Phases(Shown):
    """The cost of a value with its gradients, in parts that add up to all of it.

    Attributes:
      forward: the cost of the forward pass without any checkpoint.
      backward: the cost of the backward pass without any checkpoint.
      recompute: the cost that checkpoints add: with them minus without.
      update: the cost of what a training step does besides: its optimizer.
      program: the cost of a program that takes no gradient, and has none of these passes.
    """

    forward: Cost
    backward: Cost
    recompute: Cost
    update: Cost = Cost()
    program: Cost = Cost()

    @property
    def total(self) -> Cost:
        """The cost of all parts together."""
        return self.forward + self.backward + self.recompute + self.update + self.program

    def checkpointed(self, total: Cost) -> Phases:
        """Return these phases of a program without checkpoints with what checkpoints add to them.

        No figure of the recomputation is less than zero: where JAX writes the program without them
        a little larger (out of a loop of no trips it moves what does not change from trip to trip),
        the passes have what they cost with them.

        Args:
          total: the cost of the program with its checkpoints.
        """
        added = total - self.total
        excess = Cost() - added.least(Cost())
        phases = []
        for phase in (self.backward, self.forward, self.update):
            less = excess.least(phase)
            phases.append(phase - less)
            excess -= less
        backward, forward, update = phases
        return Phases(forward, backward, total - forward - backward - update, update)
