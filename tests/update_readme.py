"""Make what README and the pages of docs/ show again, by running it: outputs, notebooks, pictures.

    python tests/update_readme.py [PAGE...]

Commands that install stand under an `<!-- install -->` or `<!-- test -->` mark and have no output.
Those under `<!-- tpu -->` and `<!-- gpu -->` compile for a TPU or a GPU that is not there, and keep
theirs where what does so is not installed. Those whose fixture imports a model library keep theirs
where it is not installed. All that is kept is named at the end.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
# Pictures of README and the pages -> the commands that draw them.
PICTURES = {
    DOCS / "pictures" / "timeline.svg": "jaxresid report fixtures/inspect/gpt.py:loss -f svg",
    DOCS / "pictures" / "icicle.svg": (
        "jaxresid report fixtures/inspect/gpt.py:loss --view icicle -f svg"
    ),
    DOCS / "pictures" / "frontier.svg": (
        "jaxresid compare fixtures/inspect/gpt.py:loss_scan -f svg"
    ),
}
# What the build of docs/ generates.
_GENERATED = ("_build/", "reference/rules/", "reference/api.md", "reference/command-line.md")
_BLOCK = re.compile(r"(?:<!-- (\w+) -->\n)?```console\n\$ (.*)\n((?:.*\n)*?)```\n")
_LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?(?=\))")
_FIXTURE = re.compile(r"fixtures/\w+/\w+\.py")
_LIBRARY = re.compile(r"^(?:import|from) (flax|equinox|optax)\b", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A command that a page shows.

    Attributes:
      page: the page, relative to the project.
      mark: `install`, `test`, `tpu`, `gpu` or None.
      command: the command.
      output: what it printed.
      span: where the output is in the page.
    """

    page: str
    mark: str | None
    command: str
    output: str
    span: tuple[int, int]

    @property
    def missing(self) -> str | None:
        """The first package that the command needs and that is not installed, if any."""
        texts = [(ROOT / name).read_text() for name in _FIXTURE.findall(self.command)]
        needed = [library for text in texts for library in _LIBRARY.findall(text)]
        needed += {"tpu": ["libtpu"], "gpu": ["jax_cuda12_plugin"]}.get(self.mark or "", [])
        return next((name for name in needed if importlib.util.find_spec(name) is None), None)


def pages() -> list[Path]:
    """Return README and the pages of docs/ that are written by hand."""
    docs = sorted(DOCS.rglob("*.md"))
    return [
        README,
        *(page for page in docs if not page.relative_to(DOCS).as_posix().startswith(_GENERATED)),
    ]


def blocks(page: Path) -> list[Block]:
    """Return the commands that a page shows, from top to bottom."""
    name = page.relative_to(ROOT).as_posix()
    found = _BLOCK.finditer(page.read_text())
    return [Block(name, m[1], m[2], m[3], m.span(3)) for m in found]


def environment() -> dict[str, str]:
    """Return the environment of a terminal of 80 columns, with this jaxresid and no accelerator."""
    scripts = Path(sys.executable).parent
    drop = ("FORCE_COLOR", "NO_COLOR", "JAX_REMAT3", "XLA_CLIENT_MEM_FRACTION")
    drop += ("XLA_PYTHON_CLIENT_MEM_FRACTION",)
    kept = {k: v for k, v in os.environ.items() if k not in drop}
    path = f"{scripts}{os.pathsep}{kept.get('PATH', '')}"
    shown = {"COLUMNS": "80", "JAX_PLATFORMS": "cpu"}
    return {**kept, **shown, "PYTHONPATH": str(ROOT), "PATH": path}


def run(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a page at the root of the project."""
    if command.startswith("jaxresid "):
        command = f"{sys.executable} -m {command}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def output(command: str) -> str:
    """Return what a command of a page prints.

    Raises:
      RuntimeError: It fails.
    """
    done = run(command)
    answers = r"(cd \S+ && )?jaxresid (lint|check|compile|plan)\b"  # by their exit code
    found_something = re.match(answers, command) is not None and done.returncode == 1
    if done.returncode and not found_something:
        raise RuntimeError(f"{command}\n{done.stderr}")
    # print_saved_residuals prints absolute paths; a reader's differ.
    return done.stdout.replace(f"{ROOT}{os.sep}", "")


def timeless(text: str) -> str:
    """Return an output without what differs from one run to the next, or one model library."""
    took = re.compile(r" in \d+\.\d s by (.*?)(?:, from the cache)?$", re.MULTILINE)
    inside = re.compile(r"\bin ((?:flax|equinox|optax)/\S+):\d+")  # moves with each release
    return inside.sub(r"in \1", took.sub(r" by \1", text))


def outputs(shown: Iterable[Block]) -> tuple[dict[str, str], list[str]]:
    """Return command -> output, and why the others have none; two commands run at a time."""
    missing = {
        block.command: block.missing for block in shown if block.mark in (None, "tpu", "gpu")
    }
    made, failed = {}, [f"no {p} here, kept: {c}" for c, p in missing.items() if p]
    with ThreadPoolExecutor(2) as pool:
        started = {c: pool.submit(output, c) for c, package in missing.items() if not package}
        for number, (command, future) in enumerate(started.items(), 1):
            try:
                made[command] = future.result()
            except RuntimeError as e:
                failed.append(f"failed, kept: {e}")
            sys.stderr.write(f"{number} of {len(started)}  {command}\n")
    return made, failed


def updated(page: Path, made: dict[str, str]) -> str:
    """Return the text of a page with the outputs that were made."""
    text = page.read_text()
    for block in reversed(blocks(page)):
        if block.command in made and block.mark in (None, "tpu", "gpu"):
            start, end = block.span
            text = text[:start] + made[block.command] + text[end:]
    return text


def public(text: str) -> str:
    """Return README with links that work on a package index as well.

    Relative ones become absolute once `jaxresid/base/urls.py` names the places.
    """
    from jaxresid.base.urls import DOCUMENTATION, REPOSITORY

    if DOCUMENTATION is None or REPOSITORY is None:
        return text

    def absolute(link: re.Match[str]) -> str:
        target, anchor = link[2], link[3] or ""
        if target.startswith("docs/") and target.endswith(".md"):
            return f"{link[1]}{DOCUMENTATION}/{target[5:-3]}.html{anchor}"
        kind = "raw" if target.endswith(".svg") else "blob"
        return f"{link[1]}{REPOSITORY}/{kind}/main/{target}{anchor}"

    return _LINK.sub(absolute, text)


def main(chosen: list[str]) -> None:
    """Update the chosen pages and notebooks; without a choice all of them, and the pictures."""
    import notebooks

    shown = [(ROOT / page).resolve() for page in chosen] or [*pages(), *notebooks.NOTEBOOKS]
    written = [page for page in shown if page.suffix == ".md"]
    made, failed = outputs(block for page in written for block in blocks(page))
    for page in written:
        text = updated(page, made)
        page.write_text(public(text) if page == README else text)
    for notebook in set(shown) - set(written):
        notebook.write_text(notebooks.executed(notebook))
    for picture, command in PICTURES.items() if not chosen else ():
        picture.write_text(output(command))
    sys.stderr.write("".join(f"{line}\n" for line in failed))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
