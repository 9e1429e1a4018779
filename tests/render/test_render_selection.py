"""The table of plans of a joint search."""

import pytest

from jaxresid.render.tables.selection import _columns
from jaxresid.results import Configuration, FrontRow


@pytest.mark.parametrize(
    ("items", "text"), [(2571234.0, "2,571,000"), (1675.4, "1,675"), (63.927, "63.93"), (72, "72")]
)
def test_items_per_second_have_no_exponent(items, text):
    row = FrontRow(Configuration(8), "no checkpoint", 1, "fits", 0, 0.0, 1.0, items)
    assert dict(_columns([row]))["items/s"](row) == text
