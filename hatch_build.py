"""The links of the package on an index, from `jaxresid/base/urls.py`."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Urls(MetadataHookInterface):
    """Fills `[project.urls]`, which stays empty until the addresses are known."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the links to the metadata."""
        stated = runpy.run_path(str(Path(self.root, "jaxresid", "base", "urls.py")))
        repository, documentation = stated["REPOSITORY"], stated["DOCUMENTATION"]
        metadata["urls"] = {}
        if repository is not None:
            metadata["urls"] |= {
                "Repository": repository,
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        if documentation is not None:
            metadata["urls"]["Documentation"] = documentation
