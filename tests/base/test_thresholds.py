"""The shares of a figure from which something is said of it stand in one table."""

import re
from pathlib import Path

import jaxresid
from jaxresid.base import thresholds

PACKAGE = Path(jaxresid.__file__).parent
NAMES = [name for name in vars(thresholds) if name.isupper()]


def test_no_other_module_defines_one():
    definition = re.compile(rf"^_?(?:{'|'.join(NAMES)}) = ", re.MULTILINE)
    table = Path(thresholds.__file__)
    others = [path for path in PACKAGE.rglob("*.py") if path != table]
    assert definition.search(table.read_text())
    assert not [path.name for path in others if definition.search(path.read_text())]
