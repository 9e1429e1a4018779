"""Import modules as they would be after an edit that has not been written yet."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import decode_source
from types import CodeType


def serve(sources: Mapping[str, bytes]) -> None:
    """Make all later imports in this process take the content of some files from `sources`.

    Modules that are already loaded stay as they are; bytecode that Python has cached is neither
    read nor written.

    Args:
      sources: content by absolute path, links followed.
    """
    load = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        raw = sources.get(os.path.realpath(path))
        if raw is None:
            return load(self, fullname)
        lines = decode_source(raw).splitlines(keepends=True)
        # Without a time of modification linecache does not look whether the file is another.
        linecache.cache[path] = len(raw), None, lines, path
        return self.source_to_code(raw, path)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign,assignment]
