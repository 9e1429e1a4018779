"""The names of a notebook's cells."""

from __future__ import annotations

import sys


def cell_name(file: str) -> str | None:
    """Return what IPython calls a cell, `In[3]`; None for a file that is none.

    Args:
      file: the name of the file, which IPython makes up for each cell.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)  # IPython 8
    name = None if named is None else named(file)
    return None if name is None else str(name[1])
