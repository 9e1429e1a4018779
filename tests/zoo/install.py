"""Makes the environments of the zoo: `python tests/zoo/install.py [NAME ...]`.

They go under `.zoo/` of the repository, or where JAXRESID_ZOO says. What does not install is
printed, and written to `installed.json` there; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from pathlib import Path

from running import HOME, ROOT, python_of
from targets import ENVIRONMENTS, Environment

# What jaxresid needs beside jax.
_OURS = ("click", "libcst", "packaging", "rich", "scipy", "psutil", "flatbuffers")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="environments; all of them where none is named")
    known = [environment.name for environment in ENVIRONMENTS]
    names = parser.parse_args().names or known
    if unknown := set(names) - set(known):
        parser.error(f"no environment {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    HOME.mkdir(parents=True, exist_ok=True)
    told = HOME / "installed.json"
    failed: dict[str, dict[str, str]] = json.loads(told.read_text()) if told.exists() else {}
    for environment in ENVIRONMENTS:
        if environment.name in names:
            failed[environment.name] = _made(environment)
            told.write_text(json.dumps(failed, indent=1))
    return 1 if any(failed[name] for name in names) else 0


def _made(environment: Environment) -> dict[str, str]:
    """Install an environment; return what did not install, and why."""
    folder = HOME / environment.name
    if not python_of(environment.name).exists():
        venv.create(folder, with_pip=True)
    pins = folder / "constraints.txt"
    pins.write_text(f"jax=={environment.jax}\njaxlib=={environment.jax}\n")
    failed = {}
    base = " ".join(("jax", "jaxlib", *_OURS))
    for requirement in (base, *environment.requirements):
        failed |= _installed(environment, requirement, ("-c", str(pins)))
    for requirement in environment.no_deps:
        failed |= _installed(environment, requirement, ("--no-deps",))
    return failed


def _installed(
    environment: Environment, requirement: str, options: tuple[str, ...]
) -> dict[str, str]:
    words = [str(python_of(environment.name)), "-m", "pip", "install", "-q", *options]
    done = subprocess.run(
        [*words, "--disable-pip-version-check", *requirement.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        print(f"{environment.name}: {requirement}", flush=True)
        return {}
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    why = (said or done.stderr.splitlines() or ["no reason given"])[-1]
    print(f"{environment.name}: {requirement} does not install: {why}", flush=True)
    return {requirement: why}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
