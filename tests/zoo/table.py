"""Prints what the last `pytest -m zoo` found as a Markdown table, wrong rows included.

python tests/zoo/table.py > docs/zoo.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from running import HOME, ROOT, agrees
from targets import MISSING, TARGETS
from telling import told

_COMMANDS = ("report", "check", "split", "compare", "plan", "compile", "sweep")
_HEAD = """\
# The zoo

Programs around released libraries, as their users write them; `tests/zoo/programs/` holds them,
`tests/zoo/targets.py` the versions. Each row is one program on one JAX: how many commands ended as
they should (exit code 0, 1, or 2 with one line that says why), whether the residuals are the leaves
of the real `jax.vjp` under jit, whether the roles of a step have the bytes of its trees, and how
many verdicts agree with XLA:CPU's bytes when the checkpoint is really removed. A dash: there is
nothing to compare. In a step the leaves that count are those that the backward pass reads, without
literals; constants, of which JAX may give each pass its own, may be missing. A verdict agrees where
the bytes move as it says, by over 2 % (*undone by XLA*: by less than 5 %; at 2 % two on JAX 0.7.0
would not agree, with 3 and 4 %). `python tests/zoo/table.py` prints this table from the last run;
where few commands are counted, no others were run (`JAXRESID_ZOO_COMMANDS`). The last column is the
finding of `check` that takes most off the estimated peak, or else the severest; a dash: not asked.

| library | program | JAX | commands | kept | roles | verdicts | what it would tell its author |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    print(_HEAD)
    wrong, outcomes, verdicts, agreed, rows = [], [], 0, 0, 0
    for target in TARGETS:
        for environment in target.environments:
            found = _outcome(target.name, environment)
            if found is None:
                continue
            rows += 1
            outcomes.append(found)
            judged = _judged(found)
            verdicts, agreed = verdicts + len(judged), agreed + sum(v[-1] for v in judged)
            on = found["jax"] or environment
            print(f"| {target.library} | {target.name} | {on} | {_columns(found)} |")
            wrong += [(target.name, found["jax"], text) for text in found["wrong"]]
            wrong += [
                (target.name, found["jax"], f"verdict {v[2]} of {v[0]} ({v[1]}): {_bytes(v)}")
                for v in judged
                if not v[-1]
            ]
    every = sum(len(target.environments) for target in TARGETS)
    full = sum(len(found["facts"].get("codes", {})) == len(_COMMANDS) for found in outcomes)
    unrun = sum(map(_is_uncompared, outcomes))
    print(
        f"\n{rows} of {every} rows were run, {full} of them with every command."
        f" {agreed} of {verdicts} verdicts agree"
        + (f"; {unrun} rows with checkpoints were not compiled without them." if unrun else ".")
    )
    print("\n## What is wrong\n")
    for name, jax, text in wrong:
        print(f"- {name}, JAX {jax}: {_one_line(text)}")
    print("\n## What could not be compared\n")
    for found in outcomes:
        unknown = [*found["unknown"], *_unfound(found)]
        for text in unknown:
            print(f"- {found['target']}, JAX {found['jax']}: {_one_line(text)}")
    print("\n## What is in no environment\n")
    for requirement, why in MISSING.items():
        print(f"- {requirement}: {why}")
    failed = HOME / "installed.json"
    if failed.exists():
        for environment, which in json.loads(failed.read_text()).items():
            for requirement, why in which.items():
                print(f"- {requirement} does not install in `{environment}`: {_one_line(why)}")


def _outcome(name: str, environment: str) -> dict | None:
    path = HOME / "results" / environment / f"{name.replace(':', '-')}.json"
    return json.loads(path.read_text()) if path.exists() else None


def _columns(found: dict) -> str:
    codes = found["facts"].get("codes", {})
    bad = {w.split()[0] for w in found["wrong"] if w.split()[0] in codes}
    commands = f"{len(codes) - len(bad)} of {len(codes)}"
    judged = _judged(found)
    verdicts = "not run" if _is_uncompared(found) else "-"
    if judged:
        verdicts = f"{sum(v[-1] for v in judged)} of {len(judged)}"
    kept = "-" if "leaves" not in found["facts"] else _mark(found, "kept:")
    roles = _mark(found, "parameters:", "optimizer-state:", "batch:", "argument", "taken for")
    if not found["facts"]["is_step"] or "peak_nbytes" not in found["facts"] or not found["jax"]:
        roles = "-"
    findings = found["facts"].get("findings")
    says = "-" if findings is None else _one_line(told(findings))
    return f"{commands} | {kept} | {roles} | {verdicts} | {says}"


def _is_uncompared(found: dict) -> bool:
    """Whether a report has checkpoints that nothing was compiled without."""
    return bool(found["facts"].get("checkpoints")) and not found["verdicts"]


def _judged(found: dict) -> list[list]:
    """The verdicts that could be compared, with whether they agree."""
    rows = [[*v[:-1], agrees(v[2], v[3], v[4])] for v in found["verdicts"]]
    return [row for row in rows if row[-1] is not None]


def _unfound(found: dict) -> list[str]:
    return [
        f"verdict {v[2]} of {v[0]} ({v[1]}): its calls were not found, or it claims no bytes"
        for v in found["verdicts"]
        if v[-1] is None
    ]


def _mark(found: dict, *starts: str) -> str:
    return "**wrong**" if any(w.startswith(starts) for w in found["wrong"]) else "right"


def _bytes(verdict: list) -> str:
    return f"temporaries {verdict[3]} B with it, {verdict[4]} B without"


def _one_line(text: str) -> str:
    return " ".join(text.replace(f"{ROOT}/", "").split())[:300].replace("|", "\\|")


if __name__ == "__main__":
    main()
