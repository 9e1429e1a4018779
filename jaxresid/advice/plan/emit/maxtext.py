"""Write a plan as MaxText's configuration: `remat_policy`, and what becomes of each tensor."""

from __future__ import annotations

from dataclasses import dataclass

from jaxresid.advice.plan.emit.jax_policies import Policy, jax_policy, saved_and_offloaded
from jaxresid.advice.plan.emit.treatments import CUT, loop_text, place_text
from jaxresid.advice.plan.source.snippets import merged, treatment
from jaxresid.advice.plan.verification import PlanFigures, figures, without_checkpoints
from jaxresid.base.errors import InputsError
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.choices import Choice, everywhere
from jaxresid.results import Plan

# The tensors of `remat_policy: 'custom'` in MaxText's base.yml.
_TENSORS = frozenset(
    """
    decoder_layer_input indexer_cutoff_threshold context mlpwi mlpwi_0 mlpwi_1 mlpwo moe_mlpwi_0
    moe_mlpwi_1 moe_mlpwo moe_x_sorted moe_routing_maps query_proj key_proj value_proj kv_proj
    qkv_proj out_proj query_wa_proj kv_wa_proj mla_q mla_kv attention_out engram
    """.split()
)
_INPUT = "decoder_layer_input"  # which MaxText does not let anyone recompute
_NEAREST = "minimal_with_context"
_SAVED_BY_NEAREST = (
    *("query_proj", "value_proj", "key_proj", "kv_proj", "qkv_proj", "out_proj"),
    *("mlpwi_0", "mlpwi_1", "mlpwi", "mlpwo", "context"),
)


@dataclass(frozen=True, slots=True)
class MaxTextSettings:
    """A plan as MaxText's configuration.

    Attributes:
      text: The lines of YAML.
      policy: The policy that MaxText makes of them.
      unsaid: What of the plan they do not say, a line each.
    """

    text: str
    policy: Policy
    unsaid: tuple[str, ...] = ()


def maxtext_settings(plan: Plan) -> MaxTextSettings:
    """Return a plan as MaxText's configuration.

    Raises:
      InputsError: The plan has no checkpoint that it could be of.
    """
    sites = [site for site in plan.sites if site.kind not in CUT]
    if not sites:
        raise InputsError("the plan has no checkpoint of layers, and MaxText has no other")
    unsaid = [
        f"MaxText has no setting for this: the loop at {place_text(site)} {loop_text(part)}"
        for site in plan.sites
        if site.kind in CUT
        for part in site.parts
        if part.checkpointed
    ]
    wanted = dict.fromkeys(treatment(p) for site in sites for p in merged(site.parts))
    checkpointed, policy = min(wanted, key=lambda each: each != (True, None))
    if len(wanted) > 1:
        unsaid.append("MaxText treats all layers alike, between which the plan differs")
    found = saved_and_offloaded(policy) if checkpointed else None
    if found is None:
        done = policy or "no checkpoint"
        unsaid.append(f"MaxText saves tensors by name, not {done}: the nearest is {_NEAREST}")
        made = jax_policy(f"save_only_these_names({', '.join(map(repr, _SAVED_BY_NEAREST))})")
        return MaxTextSettings(f"remat_policy: '{_NEAREST}'\n", made, tuple(unsaid))
    saved, offloaded = found
    unsaid += [
        f"MaxText has no setting for {name!r}"
        for name in (*saved, *offloaded)
        if name not in _TENSORS
    ]
    settings = {n: "device" for n in saved if n in _TENSORS}
    settings |= {n: "offload" for n in offloaded if n in _TENSORS}
    if not settings:
        return MaxTextSettings("remat_policy: 'full'\n", jax_policy(None), tuple(unsaid))
    settings = {_INPUT: "device", **settings}
    lines = ["remat_policy: 'custom'", *(f"{name}: '{kept}'" for name, kept in settings.items())]
    return MaxTextSettings("\n".join(lines) + "\n", _custom(settings), tuple(unsaid))


def _custom(settings: dict[str, str]) -> Policy:
    """Return the policy that MaxText makes of what becomes of each tensor."""
    on_device = [name for name, kept in settings.items() if kept == "device"]
    moved = [name for name, kept in settings.items() if kept == "offload"]
    return jax_policy(
        f"save_and_offload_only_these_names(names_which_can_be_saved={on_device},"
        f" names_which_can_be_offloaded={moved}, offload_src='device', offload_dst='pinned_host')"
    )


def figures_with(policy: Policy, plan: Plan, subject: Subject) -> PlanFigures:
    """Return the figures of the target with a policy at each place of a plan that is no cut.

    Args:
      policy: The policy.
      plan: The plan.
      subject: The traced function that it was made for.
    """
    variants = subject.variants()
    wanted = {(s.kind, s.function, s.location) for s in plan.sites if s.kind not in CUT}
    chosen = {
        place: everywhere(place, Choice(policy))
        for place in variants.places()
        if (place.kind, place.function, place.location) in wanted
    }
    return figures(variants.variant(chosen), without_checkpoints(variants))
