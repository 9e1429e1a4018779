"""Estimate how long a program takes at a chip's published rates; mostly a lower bound.

A kernel takes as long as the unit that it keeps busy longest: the matrix unit, the vector unit, or
device memory, from which it reads each array that it needs once and to which it writes its result.
The profile decides, as for the peak, what is an array and what is computed inside a kernel (in
several kernels, if several read it). Kernels run one after another; a loop takes its trips times
its body, a while loop one trip, a cond its slower branch. An evaluation of exp and the like counts
as one operation of the vector unit. Transfers between device and host memory run beside the
kernels, as XLA's latency-hiding scheduler arranges them, both directions over the link one after
the other: those in a loop beside the kernels of the same iteration, which takes the longer of the
two, and so does the whole program. For a program that is split over a mesh it is the time of one
device, which does its share; what it exchanges with others, as the splits imply or a `shard_map`
says (each in a ring; what is handed on, once), runs beside the kernels likewise, over links of
their own. Where
dots are calls of their own, as on a GPU, a loop copies into its stacks what a call makes and what
else the trip reads.

The estimate leaves out launches, idle units, caches, and the share of its peak that a chip does not
reach; of communication also what waits for results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxresid import jax_compat
from jaxresid.advice.timing.chips import Chip
from jaxresid.inspector.cost import contractions
from jaxresid.inspector.cost.flops import RULES
from jaxresid.inspector.cost.jaxpr_cost import eqn_cost
from jaxresid.inspector.cost.traffic import ADDS, PUTS, TAKES
from jaxresid.inspector.jaxpr.nesting import nests
from jaxresid.inspector.jaxpr.primitives import COLLECTIVES
from jaxresid.inspector.jaxpr.while_loops.trips import TRIPS_UNKNOWN, WhileTrips
from jaxresid.inspector.memory.lowered import Lowered
from jaxresid.inspector.memory.profile import Profile
from jaxresid.inspector.memory.rules.fusion import LIBRARY, MULTIPLIED
from jaxresid.inspector.memory.rules.kernels import array_nbytes, kernels
from jaxresid.inspector.program.ops import UNWRITTEN, Block, Collective, Op, Value
from jaxresid.inspector.program.transfers import entering, moves
from jaxresid.jax_compat.jaxpr_types import Eqn
from jaxresid.results import Cost

_COND = "cond: the slower branch"

_CALLED = MULTIPLIED | LIBRARY
# Of their first operand they read or write a part.
_PARTS = TAKES | PUTS.keys() | ADDS.keys()
_PRECISIONS = {"HIGHEST": 2, "HIGH": 1, "F32_F32_F32": 2, "BF16_BF16_F32_X3": 1}


@dataclass(frozen=True, slots=True)
class Seconds:
    """The estimated time of a program and its parts, in seconds.

    Attributes:
      compute: The time of the matrix or the vector unit, whichever is busy longer in each kernel,
        summed over all kernels.
      memory: The time of device memory, summed over all kernels.
      transfers: The time of the link to host memory.
      total: The kernels, each as long as the longer of its two, with what the transfers or the
        collectives in a loop take longer than its kernels; or all transfers, or all collectives, if
        these take longer.
      uncosted: Primitives whose time is not known, with the type if it is the type that has no
        published rate; they make the estimate a lower bound.
      notes: What was assumed.
      collectives: The time of the links to other devices.
      sent_nbytes: The bytes that a device sends over them.
    """

    compute: float
    memory: float
    transfers: float
    total: float
    uncosted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    collectives: float = 0.0
    sent_nbytes: float = 0.0


def seconds(lowered: Lowered, chip: Chip) -> Seconds:
    """Return the estimated time of a program on a chip, in seconds."""
    walk = _TimeEstimator(chip, lowered.profile, lowered.program.trips)
    found = walk.block(lowered.program.block, lowered.block, lowered.ops)
    return Seconds(
        found.compute,
        found.memory,
        found.transfers,
        found.longest,
        tuple(sorted(walk.uncosted)),
        tuple(walk.notes),
        found.collectives,
        found.sent,
    )


def eqn_seconds(eqn: Eqn, chip: Chip) -> float:
    """Return the estimated time of an eqn by itself, in seconds.

    Its operands are read from device memory and its results written there. An eqn that holds jaxprs
    takes as long as the eqns in them one by one. Primitives without a rule take the time of their
    bytes.
    """
    inner = nests(eqn)
    if inner:
        each = [sum(eqn_seconds(e, chip) for e in nest.jaxpr.eqns) for nest in inner]
        return max(each) * (1 if inner[0].length is None else inner[0].length)
    cost = eqn_cost(eqn)
    matmul = 0.0
    if cost.matmul_flops or cost.conv_flops:
        factors = _factors(jax_compat.primitive_name(eqn), eqn.invars, eqn.outvars)
        wider = max((v.aval.dtype for v in factors), key=lambda dtype: dtype.itemsize)
        matmul = _matmul_seconds(eqn, cost, wider.name, chip) or 0.0
    return max(matmul, _vector_seconds(_vector_ops(cost), chip), cost.nbytes / chip.hbm_rate)


def transfer_seconds(nbytes: int, chip: Chip) -> float:
    """Return the seconds that bytes take between device and host memory, one way."""
    return nbytes / chip.host_rate


def exchange_seconds(exchange: Collective, chip: Chip) -> float | None:
    """Return the seconds that an exchange takes; None where a rate that it needs is not known.

    The slower of the links between devices and of the network between hosts decides.
    """
    if chip.link_rate is None:
        return None
    took = exchange.moved_nbytes / chip.link_rate
    near = exchange.devices if chip.per_host is None else exchange.on_host(chip.per_host)
    if near == exchange.devices:
        return took
    if chip.network_rate is None:
        return None
    return max(took, exchange.leaving_nbytes(near) / chip.network_rate)


def _matmul_seconds(eqn: Eqn, cost: Cost, dtype: str, chip: Chip) -> float | None:
    """Return the seconds of an eqn's dots and convolutions; None if the chip's rate is unknown."""
    rate = chip.matmul_rate(dtype, _precision(eqn))
    return None if rate is None else (cost.matmul_flops + cost.conv_flops) / rate


def _factors(name: str, operands: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    """Return the operands that are multiplied, or the first result of a kernel of the user's.

    A kernel of the user's says only how much it multiplies.
    """
    return operands[:2] if name in contractions.rule else results[:1]


def _precision(eqn: Eqn) -> int:
    """Return 0, 1 or 2 for DEFAULT, HIGH or HIGHEST of `jax.lax.Precision`.

    For an algorithm it is the nearest of them. JAX uses the more precise of the two operands'.
    """
    asked = jax_compat.params(eqn).get("precision")
    each = asked if isinstance(asked, tuple) else (asked,)
    return max(_PRECISIONS.get(getattr(p, "name", ""), 0) for p in each)


def _vector_ops(cost: Cost) -> int:
    return cost.elementwise_flops + cost.transcendentals


def _vector_seconds(ops: int, chip: Chip) -> float:
    return ops / chip.vector if chip.vector else 0.0


@dataclass(slots=True)
class _TimeSum:
    """The seconds summed so far.

    `kernels` sums the longest of each kernel, `exposed` what the transfers or the collectives of
    each iteration of a loop take longer than its kernels.
    """

    kernels: float = 0.0
    exposed: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    transfers: float = 0.0
    collectives: float = 0.0
    sent: float = 0.0

    def add(self, other: _TimeSum, times: float = 1) -> None:
        self.kernels += other.kernels * times
        self.exposed += other.exposed * times
        self.compute += other.compute * times
        self.memory += other.memory * times
        self.transfers += other.transfers * times
        self.collectives += other.collectives * times
        self.sent += other.sent * times

    @property
    def longest(self) -> float:
        return max(self.kernels + self.exposed, self.transfers, self.collectives)


@dataclass(slots=True)
class _TimeEstimator:
    """A walk through one program on one chip."""

    chip: Chip
    profile: Profile
    trips: WhileTrips
    uncosted: set[str] = field(default_factory=set)
    notes: dict[str, None] = field(default_factory=dict)
    _works: dict[Op, tuple[float, int]] = field(default_factory=dict)
    # By the id of a cond's branches: how often each of them runs in a trip of the loop around it.
    _shares: dict[int, tuple[float, ...]] = field(default_factory=dict)
    # Inputs of loops' bodies that are in host memory; until 0.11 their own avals forget it.
    _hosted: set[Value] = field(default_factory=set)

    def block(self, block: Block, lowered: Block, order: Sequence[Op]) -> _TimeSum:
        """Return the times of a block, given with its kernels, in the order in which they run.

        In that order a kernel may run more often than it stands in the block.
        """
        total = _TimeSum()
        runs = Counter(order)
        times = {v: runs[kernel] for kernel in lowered.ops for v in kernel.results}
        transferred = 0
        makers: dict[Value, Op] = {}
        same: dict[Value, Value] = {}
        for op in block.ops:
            if op.name == "barrier":
                for after, before in zip(op.results, op.operands, strict=True):
                    same[after] = same.get(before, before)
                continue
            for v in op.results:
                makers[v] = op
            if op.name == "device_put":
                moved = sum(move.nbytes for move in moves(op, self._hosted))
                transferred += moved * times.get(op.results[0], 1)
            for each in op.collectives:
                took = exchange_seconds(each, self.chip)
                if took is None:
                    self.uncosted.add(each.kind)
                else:
                    total.collectives += took
                    total.sent += each.moved_nbytes
        total.transfers = transfer_seconds(transferred, self.chip)
        arrays = {v: array_nbytes(v, lowered) for v in block.inputs}
        for kernel in lowered.ops:
            for v in kernel.results:
                # None of its own where it takes over another's.
                arrays[v] = array_nbytes(v, lowered) or v.nbytes
        known: dict[Op, tuple[_TimeSum, int]] = {}
        for kernel in order:
            if kernel.name == "barrier":
                continue
            if kernel not in known:
                maker = makers.get(kernel.results[0]) if kernel.results else None
                if kernel.bodies:
                    known[kernel] = self._bodies(kernel, maker or kernel)
                else:
                    known[kernel] = self._kernel(kernel, maker, makers, same, arrays), 1
            total.add(*known[kernel])
        return total

    def _bodies(self, kernel: Op, op: Op) -> tuple[_TimeSum, int]:
        """Return the times of a loop's body with its trips, or of a cond's slower branch."""
        self._hosted |= entering(op, self._hosted)
        trips = self._trips(op)
        each = []
        for i, (body, inner) in enumerate(zip(op.bodies, kernel.bodies, strict=True)):
            nest = kernel.nest if i == 0 else None
            made = kernels(inner, nest, self.profile)
            each.append(self.block(body, made, made.ops))
        if kernel.nest is None:
            shares = self._shares.get(id(op.params["branches"]))
            if shares is None:
                self.notes[_COND] = None
                return max(each, key=lambda s: s.longest), 1
            total = _TimeSum()
            for branch, share in zip(each, shares, strict=True):
                total.add(branch, share)
            return total, 1
        once = each[0]
        self._stacks(once, kernel)
        for condition in each[1:]:
            once.add(condition)
        longer = max(once.transfers, once.collectives) - once.kernels
        once.exposed = max(once.exposed, longer)
        return once, trips

    def _trips(self, op: Op) -> int:
        """Return the trips of a loop; 1 for what is none, or where they are not known."""
        if op.nest is None:
            return 1
        if op.nest.length is not None:
            return op.nest.length
        trips = self.trips.of(op.eqn)
        if trips is None or trips.note:
            self.notes[TRIPS_UNKNOWN if trips is None else trips.note] = None
        if trips is None:
            return 1
        for cond, runs in trips.branches.items():
            self._shares[cond] = tuple(n / max(trips.count, 1) for n in runs)
        return trips.count

    def _stacks(self, total: _TimeSum, loop: Op) -> None:
        """Add the time of what a trip of a loop copies into the loop's stacks.

        XLA for a GPU writes a result straight into the stack where nothing else in the trip reads
        it and no call makes it (the modules of `zoo.py` for an H100, jaxlib 0.11.2).
        """
        nest, body = loop.nest, loop.bodies[0]
        if nest is None or self.profile.computes_factors:
            return
        makers = {v: op for op in body.ops for v in op.results}
        read = {v for op in body.ops for v in op.operands}
        for i, out in enumerate(body.outputs):
            if i not in nest.stacked or out.memory != "device" or out.literal is not None:
                continue
            maker = makers.get(out)
            is_alone = out not in read and body.outputs.count(out) == 1
            if maker is None or not is_alone or maker.name in _CALLED:
                copied = 2 * array_nbytes(out, body) / self.chip.hbm_rate
                total.memory += copied
                total.kernels += copied

    def _kernel(
        self,
        kernel: Op,
        maker: Op | None,
        makers: Mapping[Value, Op],
        same: Mapping[Value, Value],
        arrays: Mapping[Value, int],
    ) -> _TimeSum:
        """Return the times of a kernel: of all that leads from arrays to its result."""
        matmul, ops, taken = 0.0, 0, 0
        read: set[Value] = set()
        if maker is None:  # a copy; of a literal nothing is read, as a cond's branch may return one
            sources = (same.get(v, v) for v in kernel.operands)
            read.update(v for v in sources if v in arrays)
        else:
            stack, seen = [maker], {maker}
            while stack:
                op = stack.pop()
                work = self._works.get(op) or self._work(op)
                matmul += work[0]
                ops += work[1]
                skipped = -1
                if op.name in _PARTS:
                    skipped = 0
                    taken += _taken_nbytes(op)
                for i, operand in enumerate(op.operands):
                    v = same.get(operand, operand)
                    if v.literal is not None:
                        continue
                    if v in arrays:
                        if i != skipped:
                            read.add(v)
                    elif v in makers and makers[v] not in seen:
                        seen.add(makers[v])
                        stack.append(makers[v])
        moved = taken + sum(arrays[v] for v in read)
        if maker is None or maker.name in TAKES or maker.name not in _PARTS:
            for v in kernel.results:
                if v.memory == "device":
                    moved += arrays[v]
        compute = max(matmul, _vector_seconds(ops, self.chip))
        memory = moved / self.chip.hbm_rate
        return _TimeSum(max(compute, memory), compute=compute, memory=memory)

    def _work(self, op: Op) -> tuple[float, int]:
        """Return the seconds of the matrix unit and the operations of the vector unit of an op."""
        if op.name in UNWRITTEN:
            return 0.0, 0
        rule = RULES.get(op.name)
        cost = eqn_cost(op.eqn) if rule is None else rule(op.eqn)
        if cost.uncosted or cost.notes:
            self.uncosted.update(cost.uncosted)
            self.notes.update(dict.fromkeys(cost.notes))
        if op.name in COLLECTIVES and not op.collectives:
            self.uncosted.add(op.name)
        matmul: float | None = 0.0
        if cost.matmul_flops or cost.conv_flops:
            factors = _factors(op.name, op.operands, op.results)
            wider = max(factors, key=lambda v: v.itemsize)
            matmul = _matmul_seconds(op.eqn, cost, wider.dtype, self.chip)
            if matmul is None:
                self.uncosted.add(f"{op.name} {wider.dtype}")
        work = self._works[op] = (matmul or 0.0) / op.devices, _vector_ops(cost) // op.devices
        return work


def _taken_nbytes(op: Op) -> int:
    """Return the bytes of the part of its first operand that an op reads or writes."""
    if op.name in TAKES:
        return op.results[0].nbytes
    if op.name in PUTS:
        return op.operands[PUTS[op.name]].nbytes
    return 2 * op.operands[ADDS[op.name]].nbytes
