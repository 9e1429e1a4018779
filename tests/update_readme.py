"""Makes the outputs in README and its picture again, by running what README shows.

    python tests/update_readme.py

Commands that install stand under an `<!-- install -->` or `<!-- test -->` mark and have no output;
those under `<!-- tpu -->` compile for a TPU, and keep theirs where libtpu is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PICTURE = ROOT / "fixtures" / "readme" / "report.svg"
_RULES = re.compile(r"(<!-- rules -->\n)(.*?)(<!-- /rules -->)", re.DOTALL)
_BLOCK = re.compile(r"(?:<!-- (\w+) -->\n)?```console\n\$ (.*)\n((?:.*\n)*?)```\n")


@dataclass(frozen=True)
class Block:
    """A command of README; `mark` is `install`, `test`, `tpu` or None, `output` what it printed."""

    mark: str | None
    command: str
    output: str
    span: tuple[int, int]


def blocks(text: str) -> list[Block]:
    return [Block(m[1], m[2], m[3], m.span(3)) for m in _BLOCK.finditer(text)]


def environment() -> dict[str, str]:
    """As a reader's terminal of 80 columns, with this interpreter's jaxresid."""
    scripts = Path(sys.executable).parent
    drop = ("FORCE_COLOR", "NO_COLOR", "JAX_REMAT3")
    kept = {k: v for k, v in os.environ.items() if k not in drop}
    path = f"{scripts}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "COLUMNS": "80", "PYTHONPATH": str(ROOT), "PATH": path}


def run(command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of README at the root of the project."""
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
    done = run(command)
    answers = ("jaxresid lint", "jaxresid check", "jaxresid compile")  # by their exit code
    found_something = command.startswith(answers) and done.returncode == 1
    if done.returncode and not found_something:
        raise SystemExit(f"{command}\n{done.stderr}")
    # print_saved_residuals prints absolute paths; a reader's differ.
    return done.stdout.replace(f"{ROOT}{os.sep}", "")


def timeless(text: str) -> str:
    """An output without what differs from one run to the next."""
    took = re.compile(r" in \d+\.\d s by (.*?)(?:, from the cache)?$", re.MULTILINE)
    return took.sub(r" by \1", text)


def updated(text: str) -> str:
    shown = {None, "tpu"} if importlib.util.find_spec("libtpu") else {None}
    for block in reversed(blocks(text)):
        if block.mark in shown:
            start, end = block.span
            text = text[:start] + output(block.command) + text[end:]
    return _RULES.sub(lambda m: m[1] + rule_table() + m[3], text)


def rule_table() -> str:
    """The rules as a table, from their own documentation."""
    sys.path.insert(0, str(ROOT))
    from jaxresid.advice.check.rules import traced_rules
    from jaxresid.linter.rules import all_rules

    rows = ["| code | name | severity | fix | |", "|---|---|---|---|---|"]
    for rule in (*all_rules(), *traced_rules()):
        info = rule.info()
        fix = info.fix or ""
        rows.append(f"| {info.code} | `{info.name}` | {info.severity} | {fix} | {info.summary} |")
    return "\n".join(rows) + "\n"


def picture() -> str:
    """The report of the first block's target, as a terminal shows it."""
    from rich.console import Console

    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    from fixtures.inspect.gpt import loss_scan, loss_scan_inputs
    from jaxresid.inspector.report import inspection
    from jaxresid.inspector.trace.question import Question
    from jaxresid.render.report.rows import View
    from jaxresid.render.report.text import render_report

    name = "fixtures/inspect/gpt.py:loss_scan"
    report = inspection(Question(loss_scan, loss_scan_inputs(), name=name)).report
    console = Console(record=True, width=88, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(render_report(report, View(top=6)))
    return console.export_svg(title=f"jaxresid report {name} --top 6", unique_id="jaxresid")


def main() -> None:
    README.write_text(updated(README.read_text()))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture())


if __name__ == "__main__":
    main()
