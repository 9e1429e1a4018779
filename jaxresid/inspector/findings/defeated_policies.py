"""Find policies that a vmap defeats, and tell what the program takes without that."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, RetraceError
from jaxresid.inspector.checkpoints.batched import (
    BatchedMatmuls,
    batched_matmuls,
    may_be_batched,
    saving_as_well,
)
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.findings.proposals import Proposal, fewer_flops, flops_effect, proposal
from jaxresid.inspector.findings.search import FindingContext, FindingSearch, holds_checkpoint
from jaxresid.inspector.jaxpr.rewrite import rewritten
from jaxresid.inspector.variants.rewrites.effects import Figures, Rewrites
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import Finding, Report


def defeated_policies(context: FindingContext) -> Iterator[Proposal]:
    """Yield the findings of policies that save less than they would without a vmap."""
    subject, rewrites = context.subject, context.subject.rewrites
    if rewrites is None:
        return
    run_again = functools.partial(subject.trace.run_again, subject.fun)
    for number, jaxpr in enumerate(rewrites.jaxprs):
        try:
            groups = list(batched_matmuls(context.levels, jaxpr, run_again))
        except (RetraceError, InputsError):
            continue
        for batched in groups:
            changed = _as_meant(jaxpr, batched)
            figures = fewer_flops(rewrites, number, changed)
            if figures is not None:
                finding = _finding(context.report, rewrites, batched, figures)
                yield proposal(finding, rewrites, number, changed, gain="flops")


def _as_meant(jaxpr: Jaxpr, batched: BatchedMatmuls) -> Jaxpr:
    """Return the open jaxpr with a policy that saves the matmuls which a vmap hides from it."""
    policy = saving_as_well(batched.site.policy, batched.matmuls)

    def replace(eqn: Eqn) -> Eqn:
        return jax_compat.with_params(eqn, {"policy": policy})

    return rewritten(jaxpr, dict.fromkeys(batched.site.eqns, replace))


def _finding(
    report: Report, rewrites: Rewrites, batched: BatchedMatmuls, figures: Figures
) -> Finding:
    site, hidden = batched.site, len(batched.matmuls)
    where = batched.vmap and f"{batched.vmap.file}:{batched.vmap.line}"
    effect, measured = flops_effect(report, rewrites, figures)
    return Finding(
        "defeated-policy",
        f"the policy {description(site.policy)} of the checkpoint of `{site.function}` does not"
        f" save {hidden} of {hidden + batched.saved} matmuls with parameters, which it would save"
        f" if the vmap{f' at {where}' if where else ''} did not give them a batch dimension"
        f" (of {batched.size}). Saved, {effect}",
        site.source,
        help="name what is to be saved, `checkpoint_name(x @ w, 'up')`, with the policy"
        " save_only_these_names('up'): a name is saved whatever a vmap adds. If the memory matters"
        " more, leave the policy out",
        measured={
            "policy": description(site.policy),
            "hidden": hidden,
            "saved": batched.saved,
            "vmap": where,
            "size": batched.size,
            **measured,
        },
    )


SEARCH = FindingSearch(
    ["defeated-policy"],
    "proposal",
    80,
    defeated_policies,
    lambda context: holds_checkpoint(context) and may_be_batched(context.jaxprs),
)
