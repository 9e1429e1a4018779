"""Find names that custom_vjp rules hide from policies, and tell what the program takes if not."""

from __future__ import annotations

from collections.abc import Iterator

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError
from jaxresid.inspector.checkpoints.hidden_names import (
    HiddenNames,
    hidden_names,
    may_hide_names,
    with_names_in_sight,
)
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.findings.proposals import Proposal, fewer_flops, flops_effect, proposal
from jaxresid.inspector.findings.search import FindingContext, FindingSearch, holds_checkpoint
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.results import Finding, Source


def names_hidden_by_rules(context: FindingContext) -> Iterator[Proposal]:
    """Yield the findings of names that policies want and that forward rules do not give."""
    rewrites = context.subject.rewrites
    if rewrites is None:
        return
    for number, jaxpr in enumerate(rewrites.jaxprs):
        try:
            groups = list(hidden_names(context.levels, jaxpr))
        except RetraceError:
            continue
        for hidden in groups:
            changed = rewritten(jaxpr, {id(call): with_names_in_sight for call in hidden.calls})
            figures = fewer_flops(rewrites, number, changed)
            if figures is not None:
                finding = _finding(context, rewrites, hidden, figures)
                yield proposal(finding, rewrites, number, changed, gain="flops")


def _finding(
    context: FindingContext, rewrites: Rewrites, hidden: HiddenNames, figures: Figures
) -> Finding:
    frames = context.levels.frames
    names = [str(jax_compat.params(eqn)["name"]) for eqn in hidden.names]
    listed = " and ".join(map(repr, names))
    does = "calls a custom_vjp function for" if hidden.is_called_by_rule else "does not give"
    policy = description(hidden.site.policy)
    where = Source(frames.innermost_user(frames.of(hidden.names[0]).frames))
    effect, measured = flops_effect(context.report, rewrites, figures)
    return Finding(
        "name-outside-custom-vjp-forward",
        f"the policy {policy} of the checkpoint of `{hidden.site.function}` cannot see {listed}:"
        f" differentiation runs the forward rule of the custom_vjp function, which {does}"
        f" {'it' if len(names) == 1 else 'them'}. With the names in the rule, {effect}",
        where,
        help="give the names in the forward rule, and let it call the plain implementation, not"
        " the custom_vjp function",
        measured={"names": names, "policy": policy, **measured},
    )


SEARCH = FindingSearch(
    ["name-outside-custom-vjp-forward"],
    "proposal",
    90,
    names_hidden_by_rules,
    lambda context: holds_checkpoint(context) and may_hide_names(context.subject.trace.written),
)
