"""What each checkpoint of a training step is worth.

As `checkpoints`, for a jaxpr that holds both passes already: the step without a checkpoint is the
program in which what it recomputes belongs to the forward pass, see `unwrapped`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxresid.inspector import _jax
from jaxresid.inspector.barriers import is_merged
from jaxresid.inspector.checkpoint_findings import findings
from jaxresid.inspector.checkpoints import Worth, around
from jaxresid.inspector.cost import flat_cost
from jaxresid.inspector.frames import Frames
from jaxresid.inspector.host_findings import offers
from jaxresid.inspector.levels import Level, Levels
from jaxresid.inspector.ops import Block, Op
from jaxresid.inspector.peak import Places, peak_nbytes
from jaxresid.inspector.phases import BACKWARD, FORWARD, RECOMPUTE
from jaxresid.inspector.policies import answers
from jaxresid.inspector.program import Program, all_ops, whole
from jaxresid.inspector.shapes import AROUND_LOOP, LAST_STAGE, NEARLY_ALL, NEARLY_NONE, WHOLE
from jaxresid.inspector.sites import Call, Site, sites
from jaxresid.inspector.step_cost import step_cost
from jaxresid.inspector.step_program import settled
from jaxresid.inspector.steps import StepTrace
from jaxresid.inspector.storage import Profile
from jaxresid.inspector.unwrapped import kept_nbytes, unwrapped
from jaxresid.inspector.verdicts import Facts, Figures, judge
from jaxresid.model import Cost, Peak, Phases, Residual, totals_of


def step_worth(
    step: StepTrace,
    frames: Frames,
    profile: Profile,
    residuals: tuple[Residual, ...],
    written: Program,
    estimate: Peak,
) -> Worth:
    """Judges every checkpoint of a training step.

    Args:
      written: its program.
      estimate: its peak.

    Raises:
      InputsError: a policy fails or gives no answer.
    """
    jaxpr = step.jaxpr
    # As it is written: what a compiler then merges is for the verdict.
    named = settled(
        whole(jaxpr, written.inputs, written.outputs, as_written=True, sharding=written.sharding)
    )
    kept, total, tagged = kept_nbytes(named.block), _cost(named.block), step_cost(step)
    found = sites(Levels(frames), Level(jaxpr), backward=True)
    if not found:
        return Worth((), tagged)
    forward = [op.eqn for op in all_ops(named.block.ops) if op.phase in (FORWARD, RECOMPUTE)]
    said = {site: answers(site.policy, forward, str(site)) for site in found}
    shown = totals_of(residuals).computed_nbytes
    figures = Figures(shown, estimate.nbytes, total)

    def removed(gone: Sequence[Site]) -> Program:
        eqns = {eqn for site in gone for eqn in site.eqns | _barriers(site)}
        return unwrapped(jaxpr, written, frozenset(eqns))

    places, judged = Places(frames), []
    for site in found:
        other = removed([site])
        facts = Facts(
            site=site,
            answers=said[site],
            shape=_shape(written, site),
            around=around(site, found),
            figures=figures,
            without=Figures(
                shown + kept_nbytes(other.block) - kept,
                peak_nbytes(other, profile),
                _cost(other.block),
            ),
            peak_location=estimate.location,
            remover=profile.removes_barriers,
            is_merged=bool(profile.removes_barriers) and is_merged(written.block, other.block),
        )
        judged.append(judge(facts, findings(facts, residuals, written, lambda: named, places)))
    # Of what is tagged as recomputed the forward pass would do a part without the checkpoints.
    plain = removed(found).block
    recompute = total - _cost(plain)
    ahead = tagged.forward + (tagged.recompute - recompute)
    return Worth(
        tuple(judged),
        Phases(ahead, tagged.backward, recompute, tagged.update),
        offers([s for s in found if said[s].offloads], jaxpr, is_step=True),
        shown + kept_nbytes(plain) - kept,
    )


def _barriers(site: Site) -> set[int]:
    """The ids of the optimization_barrier eqns in front of what jax_remat3 recomputes."""
    found = set()
    for call in site.calls:
        for var in call.eqn.invars:
            made = None if _jax.is_literal(var) else call.makers.get(var)
            if made is not None and _jax.primitive_name(made) == "optimization_barrier":
                found.add(id(made))
    return found


def _cost(block: Block, *phases: str) -> Cost:
    """What the ops of a block take, those of some phases or all."""
    total = Cost()
    for op in block.ops:
        inside = not phases or op.phase in phases
        total += _of(op, () if inside else phases) if inside or op.bodies else Cost()
    return total


def _of(op: Op, phases: tuple[str, ...]) -> Cost:
    if op.name == "barrier":
        return Cost()
    if not op.bodies:
        return flat_cost(op.eqn) or Cost(uncosted=(op.name,))
    each = [_cost(body, *phases) for body in op.bodies]
    if op.nest is None:
        return max(each, key=lambda cost: cost.flops)
    trips = op.nest.length
    total = sum(each, Cost()) * (trips or 1)
    return total if trips else total + Cost(notes=("while: trips unknown, counted once",))


def _shape(written: Program, site: Site) -> str | None:
    """How a checkpoint stands, as `shapes.shape`, read off the backward pass: one of the whole
    loss recomputes nearly all of the forward pass, one of the last stage does so before the
    backward pass has done any work."""
    if len(site.calls) != 1 or site.trips != 1 or site.is_nested:
        return None
    call = site.calls[0]
    forward = _work(_cost(written.block, FORWARD))
    before = 0
    for op in written.block.ops:
        if _is_in(op, call):
            break
        before += _work(_of(op, ())) if op.phase == BACKWARD else 0
    again = [op for op in written.block.ops if op.phase == RECOMPUTE and _is_in(op, call)]
    work = sum(_work(_of(op, ())) for op in again)
    if not forward or before > NEARLY_NONE * forward:
        return None
    backward = _work(_cost(written.block, BACKWARD))
    outside = sum(
        _work(_of(op, ()))
        for op in written.block.ops
        if op.phase == BACKWARD and not _is_in(op, call)
    )
    # With jax_remat3 the transposed eqns stand outside; the last matmul of a loss is not needed
    # again.
    if work < _MOST * forward and outside > (1 - NEARLY_ALL) * backward:
        return LAST_STAGE
    loops = sum(_work(_of(op, ())) for op in again if op.is_loop)
    return AROUND_LOOP if loops >= NEARLY_ALL * work else WHOLE


_MOST = 0.75


def _is_in(op: Op, call: Call) -> bool:
    return any(eqn is call.eqn for eqn in op.context.remats)


def _work(cost: Cost) -> int:
    return cost.flops + cost.transcendentals
