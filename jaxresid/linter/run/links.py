"""Find the links by which a path leaves the tree that it is named in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxresid.linter.run.discover import marked_root


def way_out(path: Path, trees: Sequence[Path] = ()) -> Path | None:
    """Return the link by which a path leaves its tree; None where it stays inside.

    The tree of a link in one of `trees` is all of them, of any other its project. A link to a file
    that is in neither stays in its directory. One to a directory, such as that of a home to a disk,
    may lead anywhere: nobody but the user can have put it there.

    Args:
      trees: the directories that the user asked to lint as a whole.
    """
    roots = [os.path.realpath(tree) for tree in trees]
    absolute = Path(os.path.abspath(path))
    for link in filter(os.path.islink, (absolute, *absolute.parents)):
        folder, target = Path(os.path.realpath(link.parent)), Path(os.path.realpath(link))
        allowed: Iterable[str | Path] = roots
        if not any(map(folder.is_relative_to, roots)):
            project = marked_root(folder)
            if project is None and target.is_dir():
                continue
            allowed = [project or folder]
        if not any(map(target.is_relative_to, allowed)):
            return link
    return None
