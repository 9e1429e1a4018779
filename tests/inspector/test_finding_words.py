"""What findings say a change does."""

import pytest

from jaxresid.inspector.findings.proposals import peak_change

GIB = 1 << 30


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (2 * GIB, GIB, "estimated peak falls from 2.00 GiB to 1.00 GiB"),
        (GIB, 2 * GIB, "estimated peak rises from 1.00 GiB to 2.00 GiB"),
        (GIB, GIB, "estimated peak stays at 1.00 GiB"),
        (GIB, GIB + 1024, "estimated peak stays at 1.00 GiB"),
    ],
)
def test_a_change_of_the_peak(before, after, said):
    assert peak_change(before, after) == said
