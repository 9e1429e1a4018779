"""Run the command line of this package on another tree, by any interpreter.

It is run as a file, `python -P child.py JSON`, by interpreters that need not have this package nor
what it needs besides JAX. The JSON object has:

  package: the folder of this package.
  lent: names of packages -> the folder that has them, for those that are not installed there.
  first: folders whose modules come before all others.
  hidden: a folder whose modules are not to be found, unless they are installed there; or null.
  flags: flags of JAX that the environment sets, which this JAX must know.
  attended: whether to end, with all of the process group, as soon as nobody holds the other end of
    standard input.
  arguments: the arguments of the command.
"""

import importlib.machinery
import importlib.util
import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Lent:
    """A finder of packages that are not installed here.

    Args:
      folders: the folders that have them, by name.
    """

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a package is that is lent; None for all others."""
        folder = self._folders.get(name)
        if folder is None or path is not None:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [folder])


def main(given: Mapping[str, Any]) -> None:
    """Run the command line as it is told to, and exit with its code."""
    if given["attended"]:
        threading.Thread(target=end_when_alone, daemon=True).start()
    package = given["package"]
    spec = importlib.util.spec_from_file_location(
        "jaxresid",
        os.path.join(package, "__init__.py"),
        submodule_search_locations=[package],
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["jaxresid"] = module  # this one, whatever the tree holds
    spec.loader.exec_module(module)
    sys.meta_path.append(Lent(given["lent"]))
    hidden = given["hidden"]
    others = [path for path in sys.path if path not in given["first"]]
    if hidden is not None:
        others = [path for path in others if is_installed(path) or not is_below(path, hidden)]
    sys.path[:] = others
    from jaxresid.targets.project_folders import add_project_folder

    for folder in reversed(given["first"]):
        add_project_folder(folder)
    sys.argv = ["jaxresid", *given["arguments"]]
    try:
        runpy.run_module("jaxresid", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code in (0, None):
            check_flags(given["flags"])
        raise


def end_when_alone() -> None:
    """Wait until nobody holds the other end of standard input, then end the process group."""
    while os.read(0, 1024):
        pass
    if hasattr(os, "killpg"):
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def check_flags(names: Sequence[str]) -> None:
    """Exit with 2 where JAX does not know one of its flags; the environment is not checked."""
    if not names:
        return
    import jax

    for name in names:
        if not hasattr(jax.config, name):
            sys.stderr.write(f"jaxresid: error: JAX {jax.__version__} has no flag {name}\n")
            sys.exit(2)


def is_installed(path: str) -> bool:
    """Return whether a folder holds installed packages, which a tree may have inside."""
    return "site-packages" in path or "dist-packages" in path


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder or inside it."""
    path = os.path.realpath(path)
    return path == folder or path.startswith(folder + os.sep)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
