"""Released packages, downloaded and unpacked once: what people really write."""

import functools
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest


class DownloadError(Exception):
    """The error of a package that the registry does not give."""


@functools.cache
def unpacked(requirement):
    """The directory that a released package unpacks to; skips where there is no registry."""
    tree = Path(tempfile.gettempdir()) / "jaxresid-packages" / requirement
    try:
        if not tree.exists():
            download(requirement, tree)
    except DownloadError as e:
        pytest.skip(str(e))
    return tree


def download(requirement, tree):
    """Download a released package, whatever Python it asks for or was built for, and unpack it.

    Args:
      requirement: `name==version`.
      tree: the directory to make of it.
    """
    tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tree.parent) as work:
        options = ["-q", "--no-deps", "--ignore-requires-python", "-d", work]
        for python in ((), ("--only-binary=:all:", "--python-version=3.9")):
            done = subprocess.run(
                [sys.executable, "-m", "pip", "download", *options, *python, requirement],
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            if not done.returncode:
                break
        else:
            reason = done.stderr.strip().splitlines()[-1:]
            raise DownloadError(f"cannot download {requirement}: {reason}")
        (archive,) = Path(work).iterdir()
        partial = Path(work) / "partial"
        if archive.suffix in {".whl", ".zip"}:
            zipfile.ZipFile(archive).extractall(partial)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(partial, filter="data")
            (partial,) = partial.iterdir()
        partial.rename(tree)
