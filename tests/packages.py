"""Released packages, downloaded and unpacked once: what people really write."""

import functools
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest


@functools.cache
def unpacked(requirement):
    """The directory that a released package unpacks to; skips where there is no registry."""
    directory = Path(tempfile.gettempdir()) / "jaxresid-packages" / requirement.replace("==", "-")
    tree = directory / "tree"
    if tree.exists():
        return tree
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", directory, requirement],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(f"cannot download {requirement}: {done.stderr.strip().splitlines()[-1:]}")
    partial = directory / "partial"
    for archive in directory.iterdir():
        if archive.suffix in {".whl", ".zip"}:
            zipfile.ZipFile(archive).extractall(partial)
        elif archive.suffix == ".gz":
            with tarfile.open(archive) as tar:
                tar.extractall(partial, filter="data")
            (inner,) = partial.iterdir()
            partial = inner
    partial.rename(tree)
    return tree
