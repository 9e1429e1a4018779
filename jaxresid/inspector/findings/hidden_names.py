"""Find names that custom_vjp rules hide from policies, and tell what the program takes if not."""

from __future__ import annotations

from collections.abc import Iterator

from jaxresid import jax_compat
from jaxresid.base.errors import RetraceError
from jaxresid.base.text.units import format_flops
from jaxresid.inspector.checkpoints.hidden_names import (
    HiddenNames,
    hidden_names,
    with_names_in_sight,
)
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.findings.proposals import (
    WORTH_SAYING,
    Proposal,
    kept_change,
    peak_change,
    proposal,
    rewrite_effect,
)
from jaxresid.inspector.jaxpr.levels import Levels
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.results import Finding, Report, Source


def names_hidden_by_rules(report: Report, levels: Levels, rewrites: Rewrites) -> Iterator[Proposal]:
    """Yield the findings of names that policies want and that forward rules do not give.

    Args:
      report: the report of the function or step; it has an estimated peak, and no mesh.
      levels: the descent into the jaxprs.
      rewrites: what is differentiated.
    """
    before = rewrites.cost().flops
    for number, jaxpr in enumerate(rewrites.jaxprs):
        try:
            found = list(hidden_names(levels, jaxpr))
        except RetraceError:
            continue
        for each in found:
            changed = rewritten(jaxpr, {id(call): with_names_in_sight for call in each.calls})
            figures = rewrites.figures(number, changed)
            if figures is None:
                continue
            if before - figures.cost.flops >= WORTH_SAYING * before:
                finding = _finding(report, levels, rewrites, each, figures)
                yield proposal(finding, rewrites, number, changed, gain="flops")


def _finding(
    report: Report, levels: Levels, rewrites: Rewrites, found: HiddenNames, figures: Figures
) -> Finding:
    assert report.peak is not None
    frames, before = levels.frames, rewrites.cost().flops
    names = [str(jax_compat.params(eqn)["name"]) for eqn in found.names]
    listed = " and ".join(map(repr, names))
    kept, peak = report.totals.computed_nbytes, report.peak.nbytes
    fewer = before - figures.cost.flops
    _, measured = rewrite_effect(report, rewrites, figures)
    does = "calls a custom_vjp function for" if found.is_called_by_rule else "does not give"
    policy = description(found.site.policy)
    where = Source(frames.innermost_user(frames.of(found.names[0]).frames))
    return Finding(
        "name-outside-custom-vjp-forward",
        f"the policy {policy} of the checkpoint of `{found.site.function}` cannot see {listed}:"
        f" differentiation runs the forward rule of the custom_vjp function, which {does}"
        f" {'it' if len(names) == 1 else 'them'}. With the names in the rule,"
        f" {format_flops(fewer)} less are computed ({fewer / before:.1%}),"
        f" {kept_change(kept, figures.kept_nbytes)}, and the"
        f" {peak_change(peak, figures.peak_nbytes)}",
        where,
        help="give the names in the forward rule, and let it call the plain implementation, not"
        " the custom_vjp function",
        measured={"names": names, "policy": policy, **measured},
    )
