"""JSON becomes values of the declared types, or is rejected."""

from dataclasses import dataclass
from typing import Literal

import pytest

from jaxresid.serialization.decoding import DecodeError, Format, Layout, decoded


@dataclass(frozen=True)
class Left:
    kind: Literal["left"]


@dataclass(frozen=True)
class Right:
    kind: Literal["right"]
    size: int = 3


def test_a_tuple_has_its_length():
    assert decoded(tuple[int, str], [1, "a"]) == (1, "a")
    for wrong in ([1], [1, "a", "b"], []):
        with pytest.raises(DecodeError, match="not a list of 2"):
            decoded(tuple[int, str], wrong)


def test_dataclasses_are_told_apart_by_their_kind():
    assert decoded(Left | Right, {"kind": "left"}) == Left("left")
    assert decoded(Left | Right, {"kind": "right", "size": 4}) == Right("right", 4)


@pytest.mark.parametrize("kind", ["up", None, 1, ["left"], {}])
def test_of_no_kind(kind):
    with pytest.raises(DecodeError, match=r'kind is .*, not one of "left", "right"'):
        decoded(Left | Right, {"kind": kind})


def test_only_a_strict_format_has_every_key():
    with pytest.raises(DecodeError, match="other keys than a Right"):
        decoded(Right, {"kind": "right"})
    lenient = Format(is_strict=False)
    assert decoded(Right, {"kind": "right", "new": 1}, lenient) == Right("right")


def test_none_is_of_no_spread_field():
    @dataclass(frozen=True)
    class Both:
        left: Left | None
        name: str

    form = Format({Both: Layout(spread=("left",), blank=("name",))}, is_strict=False)
    Both.__annotations__.update(left=Left | None, name=str)
    assert decoded(Both, {"kind": None, "name": None}, form) == Both(None, "")
    assert decoded(Both, {"kind": "left", "name": "a"}, form) == Both(Left("left"), "a")
