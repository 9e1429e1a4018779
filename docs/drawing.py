"""Draw the pictures of the gallery: run the commands that its pages show."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DEVICES = 8  # as many as the largest mesh of a model has


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of each `jaxresid` command that a page shows."""
    for block in _BLOCK.findall(page.read_text()):
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            if program == "jaxresid":
                yield arguments


def draw(gallery: Path) -> None:
    """Write the pictures of a gallery beside its pages.

    Args:
      gallery: the folder of the pages and the models.

    Raises:
      RuntimeError: a command fails; stderr says why.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(_DEVICES))
    from jaxresid.cli.main import run

    with contextlib.chdir(gallery):
        for page in sorted(Path().glob("*.md")):
            for arguments in commands(page):
                if run([*arguments, "--quiet"]):
                    raise RuntimeError(f"{page}: jaxresid {shlex.join(arguments)} fails")
