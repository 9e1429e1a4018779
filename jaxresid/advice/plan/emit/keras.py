"""Write a plan as Keras' `RematScope`: the layers that are computed again, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from jaxresid.advice.plan.emit.treatments import place_text
from jaxresid.advice.plan.verification import PlanFigures, figures, retrace, without_checkpoints
from jaxresid.errors import InputsError
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.choices import CheckpointPlace, Choice
from jaxresid.model import Plan, PlannedSite

_METHOD = "call"  # which runs when a layer is called


@dataclass(frozen=True, slots=True, eq=False)
class KerasSettings:
    """A plan as the names of the layers under a `RematScope`.

    Attributes:
      names: The names, in the order of their calls.
      choices: For each place of such layers which of its calls are computed again.
      unsaid: What of the plan they do not say, a line each.
    """

    names: tuple[str, ...]
    choices: Mapping[CheckpointPlace, tuple[Choice | None, ...]]
    unsaid: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The scope to make the layers in."""
        listed = ", ".join(f'"{name}"' for name in self.names)
        return (
            f'with keras.RematScope(mode="list_of_layers", layer_names=[{listed}]):\n'
            "    ...  # make the layers in here\n"
        )


def keras_settings(plan: Plan, subject: Subject) -> KerasSettings:
    """Return a plan as the layers of Keras that are computed again.

    Where the plan treats no layer of Keras, all that it could treat are computed again.

    Args:
      plan: The plan.
      subject: The traced function that it was made for.

    Raises:
      InputsError: No layer of Keras is called that could be under a `RematScope`.
    """
    names = layer_names(lambda: retrace(subject))
    places = {
        (p.function, p.location): p
        for p in subject.variants().places()
        if p.kind == "call" and len(names.get(p.function, ())) == p.calls
    }
    if not places:
        raise InputsError(
            "the target calls no layer of Keras of its own that could be under a RematScope"
        )
    ours = [s for s in plan.sites if s.kind == "call" and (s.function, s.location) in places]
    unsaid = [
        f"Keras has no setting for {place_text(s)}"
        for s in plan.sites
        if s.changed and s not in ours
    ]
    chosen: dict[CheckpointPlace, tuple[Choice | None, ...]] = {}
    for site in ours:
        chosen[places[site.function, site.location]] = _choices(site)
        unsaid += [
            f"Keras saves nothing inside of a layer, not {part.policy}"
            for part in site.parts
            if part.policy is not None
        ]
    if not ours:
        chosen = {place: (Choice(),) * place.calls for place in places.values()}
    again = (
        name
        for place, choices in chosen.items()
        for name, choice in zip(names[place.function], choices, strict=True)
        if choice is not None
    )
    return KerasSettings(tuple(again), chosen, tuple(unsaid))


def _choices(site: PlannedSite) -> tuple[Choice | None, ...]:
    return tuple(
        Choice() if part.checkpointed else None for part in site.parts for _ in range(part.calls)
    )


def figures_with_layers(settings: KerasSettings, subject: Subject) -> PlanFigures:
    """Return the figures of the target with these layers computed again."""
    variants = subject.variants()
    return figures(variants.variant(settings.choices), without_checkpoints(variants))


def layer_names(run: Callable[[], Any]) -> Mapping[str, tuple[str, ...]]:
    """Call a function and return the names of the layers of Keras that are called meanwhile.

    Args:
      run: The function.

    Returns:
      For the `call` of each class, by its qualified name without the functions around it, the
      names in the order of their first calls.
    """
    found: dict[str, dict[str, None]] = {}

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame.f_code.co_name != _METHOD:
            return
        layer = frame.f_locals.get("self")
        if any(base.__module__.startswith("keras.") for base in type(layer).__mro__):
            function = frame.f_code.co_qualname.rpartition("<locals>.")[2]
            found.setdefault(function, {})[str(getattr(layer, "name", ""))] = None

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(before)
    return {function: tuple(names) for function, names in found.items()}
