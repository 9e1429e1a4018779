"""What a command says on stderr besides its stages."""

import re

_STAGE = re.compile(
    r"^jaxresid: (?:tracing|comparing|looking for a plan|compiling|measuring)\b.*\n", re.MULTILINE
)


def without_stages(err):
    """Return stderr without the lines of what begins."""
    return _STAGE.sub("", err)
