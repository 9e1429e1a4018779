"""The measured accuracy of the estimated peak, and the compiler versions it was measured with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxresid.model import PlaceInfo


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One measurement of the accuracy.

    Attributes:
      compilers: the packages that it was measured with, and their versions.
      text: a sentence without its verb and its versions, cut where the versions go.
    """

    compilers: Mapping[str, str]
    text: tuple[str, str]


# The compilers whose rules estimates follow, in words.
RULES = {"tpu": "a TPU's rules", "cpu": "XLA:CPU's rules"}

MEASURED: dict[str, tuple[Accuracy, ...]] = {  # by the kind of place, the newest last
    "tpu": (
        Accuracy(
            {"jaxlib": "0.12.0.1", "libtpu": "0.0.52"},
            (
                "against a TPU v5p",
                "median error 2 %, worst 24 % on the benchmark's programs, 7 % and 52 % on unseen"
                " ones",
            ),
        ),
    ),
    "gpu": (
        Accuracy(
            {"jaxlib": "0.12.0.1"},
            (
                "against the compiler of an H100",
                "median error 21 %, worst 55 % on 27 unseen programs, as its rules are those of a"
                " TPU's compiler",
            ),
        ),
    ),
    "cpu": (
        Accuracy(
            {"jaxlib": "0.12.0.1"},
            (
                "against XLA:CPU",
                "median error 1 %, worst 13 % on the benchmark's programs, 4 % and 51 % on unseen"
                " ones",
            ),
        ),
    ),
}


def accuracy_text(place: PlaceInfo, compilers: Mapping[str, str]) -> str:
    """Return a sentence on how accurate the estimated peak is.

    An example is `Measured against XLA:CPU (jaxlib 0.12.0.1): median error ...`. The figures are
    given only for the versions that they were measured with; for others the sentence says which
    these were.

    Args:
      place: the place that the estimate is for.
      compilers: the packages that are installed, and their versions.
    """
    rows = MEASURED[place.kind]
    for row in reversed(rows):
        if not _others(row, compilers):
            about, figures = row.text
            return f"Measured {about} ({_versions(row.compilers)}): {figures}."
    last = rows[-1]
    which = " or ".join(_versions(row.compilers) for row in rows)
    others = _versions({name: compilers.get(name, "") for name in _others(last, compilers)})
    runs = f" with {others}, which is installed here" if "jaxlib" in compilers else " with this one"
    return f"The accuracy of the peak was measured {last.text[0]} ({which}), not{runs}."


def _others(row: Accuracy, compilers: Mapping[str, str]) -> Sequence[str]:
    """Return the names of the packages that are not installed in the version of a measurement.

    A jaxlib that is not installed is one of them; a TPU's compiler need not be installed.
    """
    return [
        name
        for name, version in row.compilers.items()
        if compilers.get(name, version if name != "jaxlib" else None) != version
    ]


def _versions(compilers: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in compilers.items())
