"""Find policies that a vmap defeats, and tell what the program takes without that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jaxresid import jax_compat
from jaxresid.base.errors import InputsError, RetraceError
from jaxresid.base.text.units import format_flops
from jaxresid.inspector.checkpoints.batched import (
    BatchedMatmuls,
    batched_matmuls,
    saving_as_well,
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
from jaxresid.jax_compat.jaxpr_types import Eqn, Jaxpr
from jaxresid.results import Finding, Report


def defeated_policies(
    report: Report, levels: Levels, rewrites: Rewrites, run_again: Callable[[], object]
) -> Iterator[Proposal]:
    """Yield the findings of policies that save less than they would without a vmap.

    Args:
      report: the report of the function or step; it has an estimated peak, and no mesh.
      levels: the descent into the jaxprs.
      rewrites: what is differentiated.
      run_again: runs the function or step once more, while JAX traces it.
    """
    for number, jaxpr in enumerate(rewrites.jaxprs):
        try:
            found = list(batched_matmuls(levels, jaxpr, run_again))
        except (RetraceError, InputsError):
            continue
        for each in found:
            changed = _as_meant(jaxpr, each)
            figures = rewrites.figures(number, changed)
            if figures is None:
                continue
            if rewrites.cost().flops - figures.cost.flops >= WORTH_SAYING * rewrites.cost().flops:
                finding = _finding(report, rewrites, each, figures)
                yield proposal(finding, rewrites, number, changed, gain="flops")


def _as_meant(jaxpr: Jaxpr, found: BatchedMatmuls) -> Jaxpr:
    """Return the open jaxpr with a policy that saves the matmuls which a vmap hides from it."""
    policy = saving_as_well(found.site.policy, found.matmuls)

    def replace(eqn: Eqn) -> Eqn:
        return jax_compat.with_params(eqn, {"policy": policy})

    return rewritten(jaxpr, dict.fromkeys(found.site.eqns, replace))


def _finding(
    report: Report, rewrites: Rewrites, found: BatchedMatmuls, figures: Figures
) -> Finding:
    assert report.peak is not None
    site, before = found.site, rewrites.cost().flops
    where = found.vmap and f"{found.vmap.file}:{found.vmap.line}"
    hidden, fewer = len(found.matmuls), before - figures.cost.flops
    kept, peak = report.totals.computed_nbytes, report.peak.nbytes
    _, measured = rewrite_effect(report, rewrites, figures)
    return Finding(
        "defeated-policy",
        f"the policy {description(site.policy)} of the checkpoint of `{site.function}` does not"
        f" save {hidden} of {hidden + found.saved} matmuls with parameters, which it would save if"
        f" the vmap{f' at {where}' if where else ''} did not give them a batch dimension"
        f" (of {found.size}). Saved, {format_flops(fewer)} less are computed"
        f" ({fewer / before:.1%}), {kept_change(kept, figures.kept_nbytes)}, and the"
        f" {peak_change(peak, figures.peak_nbytes)}",
        site.source,
        help="name what is to be saved, `checkpoint_name(x @ w, 'up')`, with the policy"
        " save_only_these_names('up'): a name is saved whatever a vmap adds. If the memory matters"
        " more, leave the policy out",
        measured={
            "policy": description(site.policy),
            "hidden": hidden,
            "saved": found.saved,
            "vmap": where,
            "size": found.size,
            **measured,
        },
    )
