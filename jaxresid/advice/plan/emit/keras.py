"""Write a plan as Keras' `RematScope`: the layers that are computed again, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from jaxresid.advice.plan.emit.treatments import place_text
from jaxresid.advice.plan.verification import retrace
from jaxresid.base.errors import InputsError
from jaxresid.inspector.subject.base import Subject
from jaxresid.inspector.variants.choices import CheckpointPlace
from jaxresid.results import Plan, PlannedSite

_METHOD = "call"  # which runs when a layer is called
_CHANGE = "assign"  # which gives a variable a new value


@dataclass(frozen=True, slots=True, eq=False)
class KerasSettings:
    """A plan as the names of the layers under a `RematScope`.

    Attributes:
      names: The names, in the order of their calls.
      unsaid: What of the plan they do not say, a line each.
    """

    names: tuple[str, ...]
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
      InputsError: The plan changes nothing, or no layer of Keras is called that could be under a
        `RematScope`.
    """
    if not any(site.changed for site in plan.sites):
        raise InputsError("the plan changes nothing")
    seen = watched_layers(lambda: retrace(subject))
    named = {
        (p.function, p.location): names
        for p in subject.variants().places()
        if p.kind == "call" and (names := _names(p, seen)) and not seen.changed & set(names)
    }
    if not named:
        why = (f": Keras takes no state out of one, as {n} has" for n in sorted(seen.changed))
        raise InputsError(
            "the target calls no layer of Keras that could be under a RematScope" + next(why, "")
        )
    ours = [s for s in plan.sites if s.kind == "call" and (s.function, s.location) in named]
    unsaid = [
        f"Keras has no setting for {place_text(s)}"
        for s in plan.sites
        if s.changed and s not in ours
    ]
    unsaid += [
        f"Keras saves nothing inside of a layer, not {part.policy}"
        for site in ours
        for part in site.parts
        if part.policy is not None
    ]
    again = [
        name
        for site in ours
        for name, chosen in zip(named[site.function, site.location], _chosen(site), strict=True)
        if chosen
    ]
    if not ours:
        again = [name for names in named.values() for name in names]
    return KerasSettings(tuple(dict.fromkeys(again)), tuple(unsaid))


def _chosen(site: PlannedSite) -> list[bool]:
    return [part.checkpointed for part in site.parts for _ in range(part.calls)]


def _names(place: CheckpointPlace, seen: LayersSeen) -> tuple[str, ...]:
    """Return the name of the layer of each call of a place; none where it calls no layer."""
    known = seen.names.get(place.function, ())
    names = tuple(name for name in place.layers if name in known)
    if len(names) == place.calls:
        return names
    return known if len(known) == place.calls else ()  # in a Keras that names no scopes


@dataclass(frozen=True, slots=True)
class LayersSeen:
    """The layers of Keras that were called.

    Attributes:
      names: For the `call` of each class, by its qualified name without the functions around it,
        the layers' names in the order of their first calls.
      changed: The names of those that change variables while they are called, as running means.
    """

    names: Mapping[str, tuple[str, ...]]
    changed: frozenset[str]


def watched_layers(run: Callable[[], Any]) -> LayersSeen:
    """Call a function and return the layers of Keras that are called meanwhile.

    Args:
      run: The function.
    """
    found: dict[str, dict[str, None]] = {}
    changed: set[str] = set()

    def called(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_name
        if event != "call" or name not in (_METHOD, _CHANGE) or not _is_of_keras(frame):
            return
        if name == _METHOD:
            function = frame.f_code.co_qualname.rpartition("<locals>.")[2]
            found.setdefault(function, {})[_layer_name(frame)] = None
            return
        caller = frame.f_back
        while caller is not None:
            if caller.f_code.co_name == _METHOD and _is_of_keras(caller):
                changed.add(_layer_name(caller))
            caller = caller.f_back

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        run()
    finally:
        sys.setprofile(before)
    names = {function: tuple(each) for function, each in found.items()}
    return LayersSeen(names, frozenset(changed))


def _is_of_keras(frame: FrameType) -> bool:
    """Return whether a frame is that of a method of an object of Keras."""
    owner = type(frame.f_locals.get("self"))
    return any(base.__module__.startswith("keras.") for base in owner.__mro__)


def _layer_name(frame: FrameType) -> str:
    return str(getattr(frame.f_locals["self"], "name", ""))
