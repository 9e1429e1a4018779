"""Budgets: sizes with units, and places."""

import pytest

from jaxresid.base.errors import InputsError
from jaxresid.xla.budgets import budget_nbytes
from jaxresid.xla.places import memory_of, parse_place


@pytest.mark.parametrize(("text", "nbytes"), [("2GiB", 2**31), ("4096B", 4096), (" 1.5 kB", 1500)])
def test_sizes(text, nbytes):
    assert budget_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["gpu:h100", "tpu:v5e", "tpu:v5p:2x2x1", "gpu:a100-40:8"])
def test_a_place_is_what_a_program_can_have_there(text):
    assert budget_nbytes(text) == memory_of(parse_place(text)) > 2**33


def test_the_account_of_a_places_memory():
    place = parse_place("gpu:h100", memory_fraction=0.9, margin_nbytes=2**30)
    found = budget_nbytes("gpu:h100", memory_fraction=0.9, margin_nbytes=2**30)
    assert found == memory_of(place) != budget_nbytes("gpu:h100")
    assert budget_nbytes("1GiB", memory_fraction=0.9, margin_nbytes=2**30) == 2**30


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2", "'2' has no unit; write 2GiB or 2B"),
        ("0GiB", "leaves no room"),
        ("", "is not a size"),
        ("-1GiB", "is not a size"),
        ("lots", "not a size such as 12GiB, and 'lots' is not a place"),
        ("h100", "write gpu:h100"),
        ("gpu:h10", "did you mean `h100`"),
        ("cpu", "how much memory cpu has is not known"),
    ],
)
def test_what_is_neither(text, said):
    with pytest.raises(InputsError, match=said):
        budget_nbytes(text)
