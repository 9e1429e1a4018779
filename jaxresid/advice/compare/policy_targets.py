"""Find the places where a policy goes, from the words of `--at`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxresid.base.errors import InputsError
from jaxresid.base.text.nearest import nearest
from jaxresid.inspector.variants.choices import (
    CheckpointPlace,
    Choice,
    Choices,
    Variants,
    everywhere,
)
from jaxresid.results import Residual

WORDS = ("all-sites", "scan-bodies", "calls", "whole")
# What stands for the loops that can be cut, which get no policy; see `cut_loops`.
SEGMENTS = "segments"
# Bodies of scans that stack less than this share of what is kept are no default: a scan over time
# for the advantages of PPO keeps next to nothing beside the networks.
STACKED = 0.1


@dataclass(frozen=True, slots=True)
class PolicyTarget:
    """Several places that get the same policy.

    Attributes:
      at: one of `WORDS`, or the one place.
      places: The places.
      removed: Checkpoints to remove first, since the policy is to take their place.
    """

    at: str
    places: tuple[CheckpointPlace, ...]
    removed: tuple[CheckpointPlace, ...] = ()

    def choices(self, choice: Choice | None) -> Choices:
        """Return the given choice for every call of these places."""
        made = {place: everywhere(place, None) for place in self.removed}
        for place in self.places:
            if choice is not None or place.kind == "checkpoint":
                made[place] = everywhere(place, choice)
        return made


def policy_target(
    places: Sequence[CheckpointPlace], at: str | None, residuals: Sequence[Residual]
) -> PolicyTarget:
    """Return the places that a user means.

    Args:
      places: All the places that there are.
      at: One of `WORDS`, or a place by its function, by its line (`model.py:42`), or both as it is
        printed. None means the checkpoints that the code has, else the bodies of its scans if
        loops keep a tenth of what is kept, else the calls of functions that were found, else
        everything.
      residuals: What is kept as it is written.

    Raises:
      InputsError: There is no such place; the message lists those that there are.
    """
    sites = tuple(p for p in places if p.kind == "checkpoint")
    scans = tuple(p for p in places if p.kind == "scan")
    calls = tuple(p for p in places if p.kind in ("call", "block"))
    wholes = tuple(p for p in places if p.kind == "whole")
    if at is None:
        matter = scans and (_stacked_share(residuals) >= STACKED or not (calls or wholes))
        at = "all-sites" if sites else "scan-bodies" if matter else "calls" if calls else "whole"
        if at == "whole" and not wholes:
            raise InputsError(
                "no place for a checkpoint was found in what this program differentiates: no"
                " checkpoint, scan, or function of yours is called there; compare the function that"
                " it differentiates, or checkpoint one by hand"
            )
    if at == "all-sites":
        return PolicyTarget(at, _nonempty(sites, "the function has no checkpoints", places))
    if at == "scan-bodies":
        return PolicyTarget(
            at, _nonempty(scans, "the function has no scan with more than one trip", places), sites
        )
    if at == "calls":
        return PolicyTarget(
            at, _nonempty(calls, "no calls of functions that would matter were found", places)
        )
    if at == "whole":
        if not wholes:
            raise InputsError(
                "the function that this program differentiates was not found; compare that"
                f" function itself, or choose {_listed(places)}"
            )
        return PolicyTarget(at, wholes, sites)
    found = [p for p in places if _is_meant(p, at)]
    if not found:
        named = [n for p in places for n in (str(p), p.function)]
        near = nearest(at, [*WORDS, SEGMENTS, *named])
        hint = f"; did you mean {near}?" if near else ""
        raise InputsError(f"no place {at!r}{hint}; choose one of {_listed(places)}")
    if len({(str(p), p.kind) for p in found}) > 1:
        which = ", ".join(dict.fromkeys(f"{p} [{p.kind}]" for p in found))
        raise InputsError(
            f"{at!r} matches several places: {which}; write one exactly as shown here"
        )
    inside = () if found[0].kind == "checkpoint" else sites
    return PolicyTarget(str(found[0]), tuple(found), inside if found[0].kind == "scan" else ())


def remarks(variants: Variants) -> tuple[str, ...]:
    """Return a warning for each checkpoint that is left as it is."""
    return tuple(
        f"the checkpoint at {site} stays as it is in every variant, even those with no checkpoint:"
        " it is inside a derivative, or a rule for one, where it cannot be changed"
        for site in variants.unchangeable()
    )


def _stacked_share(residuals: Sequence[Residual]) -> float:
    """Return the share of what is kept that loops stack."""
    kept = [r for r in residuals if r.origin.kind != "argument"]
    stacked = sum(r.nbytes for r in kept if r.trips > 1)
    return stacked / max(1, sum(r.nbytes for r in kept))


def _is_meant(place: CheckpointPlace, at: str) -> bool:
    if at in (str(place), f"{place} [{place.kind}]"):
        return True
    if at == place.function and place.kind != "whole":
        return True
    file, _, line = at.rpartition(":")
    where = place.location
    return (
        where is not None
        and line == str(where.line)
        and (where.file == file or where.file.endswith(f"/{file}"))
    )


def _nonempty(
    places_meant: tuple[CheckpointPlace, ...], otherwise: str, places: Sequence[CheckpointPlace]
) -> tuple[CheckpointPlace, ...]:
    if not places_meant:
        raise InputsError(f"{otherwise}; choose {_listed(places)}")
    return places_meant


def _listed(places: Sequence[CheckpointPlace]) -> str:
    words = {
        "checkpoint": "all-sites",
        "scan": "scan-bodies",
        "call": "calls",
        "block": "calls",
        "whole": "whole",
    }
    kinds = list(dict.fromkeys(words[k] for k in words if any(p.kind == k for p in places)))
    sites = [f"{p} [{p.kind}]" for p in places if p.kind != "whole"]
    return ", ".join([*kinds, *sites])
