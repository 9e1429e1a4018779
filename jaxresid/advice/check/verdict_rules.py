"""Turn a checkpoint's verdict into a finding, where it calls for one."""

from __future__ import annotations

import re

from jaxresid.base.text.units import format_bytes, format_flops
from jaxresid.results import Checkpoint, Finding, Verdict

# Policies that save nothing leave a checkpoint as it is without one.
_NO_POLICY = (None, "nothing_saveable")
_QUOTED = re.compile(r"'[^']*'")

_SAYS = {
    Verdict.SAVES_NOTHING: "saves nothing",
    Verdict.COSTS_MEMORY: "costs memory",
    Verdict.UNDONE: "is undone by XLA",
    Verdict.OVERRIDDEN: "has a policy that has no effect",
    Verdict.MATCHED_NOTHING: "has a policy that matches nothing",
}
_SHAPES = {
    "whole": "checkpointed-loss",
    "last-stage": "checkpointed-last-stage",
    "around-loop": "checkpoint-around-loop",
    "trivial": "trivial-checkpoint",
}
_HELP = {
    "checkpointed-loss": "checkpoint the layers instead, or give this one a policy",
    "checkpointed-last-stage": "leave the last stage without a checkpoint",
    "checkpoint-around-loop": "checkpoint the body of the loop instead",
    "trivial-checkpoint": "checkpoint a whole block instead",
    "useless-checkpoint": "remove it, or checkpoint the code that computes the values live at the"
    " peak",
    "costly-checkpoint": "remove it, or move the code that computes its large inputs inside",
    "cse-allowed-outside-loop": "leave prevent_cse at its default, True",
    "cse-allowed-in-nested-checkpoint": "leave prevent_cse of the inner checkpoint at its default,"
    " True",
    "ineffective-policy": "give the policy to the outermost checkpoint, or remove it",
    "undefined-checkpoint-name": "name the value with checkpoint_name, or correct the policy",
    "unmatched-policy": "choose a policy that matches what the function computes, or leave it out",
}


def verdict_finding(checkpoint: Checkpoint) -> Finding | None:
    """Return the finding that a checkpoint's verdict calls for.

    None for a checkpoint that is worth what it costs, and for one that is not judged.
    """
    c, name = checkpoint, _rule(checkpoint)
    if name is None or c.kept_without_nbytes is None:
        return None
    message = (
        f"the checkpoint of `{c.function}` {_SAYS[c.verdict]}: {c.reason}. The program keeps"
        f" {_kept(c.kept_without_nbytes, c.kept_nbytes)}{_peak(c)}{_recompute(c)}{_estimated(c)}"
    )
    return Finding(name, message, c.source, _HELP[name], _measured(c))


def _rule(checkpoint: Checkpoint) -> str | None:
    shape, policy = checkpoint.shape, checkpoint.policy
    # What a rule of the linter says of a shape, it says of checkpoints without a policy.
    known = _SHAPES.get(shape or "") if policy in _NO_POLICY else None
    match checkpoint.verdict:
        case Verdict.SAVES_NOTHING:
            return known or "useless-checkpoint"
        case Verdict.COSTS_MEMORY:
            # Where it keeps more, what it is around is not the reason.
            drops = checkpoint.kept_nbytes < (checkpoint.kept_without_nbytes or 0)
            return known if known and drops else "costly-checkpoint"
        case Verdict.UNDONE if shape == "nested":
            return "cse-allowed-in-nested-checkpoint"
        case Verdict.UNDONE:
            return "cse-allowed-outside-loop"
        case Verdict.OVERRIDDEN:
            return "ineffective-policy"
        case Verdict.MATCHED_NOTHING:
            has_names = _QUOTED.search(policy or "") is not None
            return "undefined-checkpoint-name" if has_names else "unmatched-policy"
    return None


def _kept(without: int, nbytes: int) -> str:
    before, after = format_bytes(without), format_bytes(nbytes)
    if before != after:
        return f"{before} without it and {after} with it"
    return f"{after} with it and without it" if nbytes else "nothing with it and nothing without it"


def _peak(c: Checkpoint) -> str:
    if c.peak_nbytes is None or c.peak_without_nbytes is None:
        return ""
    which = "XLA's peak" if c.by == "xla" else "the peak"
    return f"; {which} {_change(c.peak_without_nbytes, c.peak_nbytes)}"


def _change(without: int, nbytes: int) -> str:
    before, after = format_bytes(without), format_bytes(nbytes)
    if before == after:
        return f"stays at {after}"
    verb = "falls" if nbytes < without else "rises"
    return f"{verb} from {before} to {after}"


def _estimated(c: Checkpoint) -> str:
    """Return what the estimate says, where XLA says something else."""
    if c.estimated is None or c.estimated.verdict == c.verdict:
        return ""
    says = _SAYS.get(c.estimated.verdict, "pays off")
    change = _change(c.estimated.peak_without_nbytes, c.estimated.peak_nbytes)
    return f"; by the estimate it {says}, and the peak {change}"


def _recompute(c: Checkpoint) -> str:
    if not c.recompute_flops or c.verdict == Verdict.UNDONE:
        return ""
    return f"; {format_flops(c.recompute_flops)} are recomputed ({c.recompute_fraction:.1%})"


def _measured(c: Checkpoint) -> dict[str, object]:
    return {
        "verdict": str(c.verdict),
        "function": c.function,
        "policy": c.policy,
        "prevent_cse": c.prevent_cse,
        "calls": c.calls,
        "trips": c.trips,
        "kept_nbytes": c.kept_nbytes,
        "kept_without_nbytes": c.kept_without_nbytes,
        "peak_nbytes": c.peak_nbytes,
        "peak_without_nbytes": c.peak_without_nbytes,
        "recompute_flops": c.recompute_flops,
        "recompute_fraction": c.recompute_fraction,
        "ratio": c.ratio,
        **_confirmation(c),
    }


def _confirmation(c: Checkpoint) -> dict[str, object]:
    """Return whose verdict it is, where XLA was to be asked."""
    if c.unconfirmed:
        return {"by": c.by, "unconfirmed": c.unconfirmed}
    if c.by == "estimate":
        return {}
    return {"by": c.by, "estimated_verdict": c.estimated and str(c.estimated.verdict)}
