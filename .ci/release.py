"""Check that this tree can be released under a tag: `python .ci/release.py v1.2.3`."""

import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def problems(root: Path, tag: str) -> list[str]:
    """Return what keeps a tree from being released under a tag."""
    version = runpy.run_path(str(root / "jaxresid" / "_version.py"))["__version__"]
    addresses = runpy.run_path(str(root / "jaxresid" / "base" / "urls.py"))
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, jaxresid/_version.py says {version}")
    found += [
        f"jaxresid/base/urls.py does not say {name} yet"
        for name in ("REPOSITORY", "DOCUMENTATION")
        if addresses[name] is None
    ]
    quoted = f'repository-code: "{addresses["REPOSITORY"]}"'
    if quoted not in (root / "CITATION.cff").read_text("utf-8").splitlines():
        found.append(f"CITATION.cff has no line `{quoted}`")
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):
        found.append(f"CHANGELOG.md has no section `## {version} (YYYY-MM-DD)`")
    return found


if __name__ == "__main__":
    found = problems(ROOT, sys.argv[1])
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(bool(found))
