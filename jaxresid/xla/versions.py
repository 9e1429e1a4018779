"""The versions of installed packages, which are not loaded for it."""

from __future__ import annotations

import importlib.metadata


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
