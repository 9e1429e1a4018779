"""The public addresses of the project: the one place that says them.

They are None until there are some. Then formats link each finding to the page of its rule, the
documentation names the repository where it says `<this repository's URL>`, and
`python tests/update_readme.py` makes the links of README absolute.
"""

from __future__ import annotations

# Without a slash at the end: "https://github.com/OWNER/jaxresid".
REPOSITORY: str | None = None
# The root of what `sphinx-build docs` makes.
DOCUMENTATION: str | None = None


def rule_page(name: str) -> str | None:
    """Return the address of a rule's page; None where there is no public documentation.

    Args:
      name: the rule's name: `checkpointed-loss`.
    """
    return None if DOCUMENTATION is None else f"{DOCUMENTATION}/reference/rules/{name}.html"
