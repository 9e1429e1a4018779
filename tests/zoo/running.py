"""Runs a target of the zoo in an environment, and judges what came out."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from targets import ENVIRONMENTS, Target
from telling import kept_of

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
HOME = Path(os.environ.get("JAXRESID_ZOO", ROOT / ".zoo")).resolve()
_ERROR = re.compile(r"\w[\w.]*(Error|Exception|Exit|Interrupt)\b")
LIMIT_S = float(os.environ.get("JAXRESID_ZOO_LIMIT_S", "1800"))
# Commands to run; all of them where it is empty.
COMMANDS = [word for word in os.environ.get("JAXRESID_ZOO_COMMANDS", "").split(",") if word]
# Bytes of XLA:CPU's temporaries that differ by less than this share are the same.
SAME = 0.02
ALIKE = 0.05
# Running means are `argument`: no gradient changes them.
ROLES = ("parameters", "optimizer-state", "batch", "argument")


@dataclass
class Outcome:
    """What was found of one target in one environment.

    Attributes:
      wrong: what jaxresid does or says that is not right.
      verdicts: (function, line, verdict, bytes of temporaries with, without, agrees or None).
      unknown: what could not be compared, and why.
      facts: figures for the table.
    """

    target: str
    library: str
    environment: str
    jax: str = ""
    wrong: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    verdicts: list[tuple[Any, ...]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def python_of(environment: str) -> Path:
    return HOME / environment / "bin" / "python"


def outcome(target: Target, environment: str) -> Outcome:
    """Run a target; the outcome is also kept in the zoo's folder, for the table."""
    found = Outcome(target.name, target.library, environment)
    found.facts["is_step"] = target.is_step
    said = _probed("commands", _given(target), environment, found)
    if said is not None:
        _judge_commands(said, target, found)
    is_whole = not COMMANDS or "report" in COMMANDS
    real = _known("facts", _given(target), environment, found) if is_whole else None
    report = said and said["report"]
    if real is not None:
        found.jax = real["jax"]
        if report:
            _judge_kept(report, real, target, found)
            _judge_roles(report, real, target, found)
    on_cpu = said and said["report_cpu"]
    if on_cpu and on_cpu["checkpoints"]:
        rows = [{k: row[k] for k in ("function", "location")} for row in on_cpu["checkpoints"]]
        gone = _known("removal", {**_given(target), "rows": rows}, environment, found)
        if gone is not None:
            _judge_verdicts(gone, on_cpu["checkpoints"], found)
    folder = HOME / "results" / environment
    folder.mkdir(parents=True, exist_ok=True)
    name = target.name.replace(":", "-")
    (folder / f"{name}.json").write_text(json.dumps(asdict(found), indent=1))
    return found


def _given(target: Target) -> dict[str, Any]:
    given = asdict(target)
    given["target"] = f"{HERE / 'programs' / target.program}.py:{target.function}"
    given["commands"] = COMMANDS
    given["inputs"] = f"{target.function}_inputs"
    return given


def _known(what: str, given: dict[str, Any], environment: str, found: Outcome) -> Any:
    """What the probe says of JAX and XLA alone: asked once for what decides it (the program, the
    probe, the environment's pins), then read from the zoo's folder."""
    pins = next(asdict(e) for e in ENVIRONMENTS if e.name == environment)
    given = {k: v for k, v in given.items() if k != "commands"}
    program = Path(given["target"].rpartition(":")[0]).read_text()
    oracle = (HERE / "probe.py").read_text().partition("# --- what JAX says")[2]
    deciding = [what, given, pins, program, oracle]
    key = hashlib.sha256(json.dumps(deciding).encode()).hexdigest()[:16]
    path = HOME / "oracles" / environment / f"{found.target.replace(':', '-')}-{what}-{key}.json"
    if path.exists():
        return json.loads(path.read_text())
    said = _probed(what, given, environment, found)
    if said is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(said))
    return said


def _probed(what: str, given: dict[str, Any], environment: str, found: Outcome) -> Any:
    """What the probe says in an environment; None where it fails, which is noted."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        asked, out = Path(folder) / "target.json", Path(folder) / "out.json"
        asked.write_text(json.dumps(given))
        variables["JAXRESID_CACHE_DIR"] = folder
        words = [python_of(environment), HERE / "probe.py", what, asked, out]
        try:
            done = subprocess.run(
                list(map(str, words)),
                cwd=folder,
                env=variables,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            message = f"{what}: not done after {LIMIT_S} s"
        else:
            if out.exists():
                return json.loads(out.read_text())
            lines = [line for line in done.stderr.splitlines() if _ERROR.match(line)]
            message = f"{what}: exit code {done.returncode}: {(lines or ['?'])[-1][:300]}"
    (found.wrong if what == "commands" else found.unknown).append(message)
    return None


def _judge_commands(said: dict[str, Any], target: Target, found: Outcome) -> None:
    for ran in said["ran"]:
        command = ran["command"].split()[0]
        if ran["problem"]:
            found.wrong.append(f"{ran['command']}: {ran['problem']}")
        found.facts.setdefault("codes", {})[command] = ran["code"]
        found.facts.setdefault("seconds", {})[command] = ran["seconds"]
        if ran["code"] == 2 and not ran["problem"]:
            found.facts.setdefault("refused", {})[command] = ran["err"].strip()[:300]
            if command in ("report", "check", "compile") or (
                command == "split" and not (target.is_step and "is a program" in ran["err"])
            ):
                found.wrong.append(f"{ran['command']}: {ran['err'].strip()[:300]}")
    if said["findings"] is not None:
        found.facts["findings"] = [kept_of(finding) for finding in said["findings"]]
    report = said["report"]
    if report:
        expected = "program" if target.is_step else "loss"
        if report["target"]["mode"] != expected:
            found.wrong.append(f"taken for a {report['target']['mode']}; it is a {expected}")
        if report["cost"]["backward_flops"] == 0:
            found.wrong.append("0 FLOP backward")
        found.facts["peak_nbytes"] = report["peak"]["nbytes"]
        found.facts["checkpoints"] = len(report["checkpoints"])
        found.facts["warnings"] = report["warnings"]


def _judge_kept(report: Any, real: Any, target: Target, found: Outcome) -> None:
    if "leaves" not in real:
        found.unknown.append("kept bytes: no objective")
        return
    ours = Counter((r["dtype"], tuple(r["shape"]), r["nbytes"]) for r in report["residuals"])
    is_step = report["target"]["mode"] == "program"
    leaves = Counter(
        {(d, tuple(s), n): inside if is_step else all_ for d, s, n, all_, inside in real["leaves"]}
    )
    kept, real_kept = (sum(n * c for (_, _, n), c in rows.items()) for rows in (ours, leaves))
    found.facts["kept"], found.facts["leaves"] = kept, real_kept
    constants = {(d, tuple(s), n): count for d, s, n, count in real["constants"] if is_step}
    missing = leaves - ours - Counter(constants)
    if ours - leaves or missing:
        found.wrong.append(
            f"kept: {kept} B, the leaves of jax.vjp are {real_kept} B;"
            f" {_some(ours - leaves)} too many, {_some(missing)} missing"
        )


def _some(rows: dict[Any, int]) -> str:
    listed = [f"{count} x {dtype}{list(shape)}" for (dtype, shape, _), count in rows.items()]
    return ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "") or "none"


def _judge_roles(report: Any, real: Any, target: Target, found: Outcome) -> None:
    if "trees" not in real:
        return
    at_peak = report["peak"]["breakdown"]
    for role, nbytes in real["trees"].items():
        if role in ROLES and at_peak.get(role, 0) != nbytes:
            found.wrong.append(f"{role}: {at_peak.get(role, 0)} B, its tree has {nbytes} B")
    total, claimed = sum(real["trees"].values()), report["peak"]["arguments_nbytes"]
    if at_peak.get("constant"):  # what is closed over is an argument to XLA, and of no tree
        found.unknown.append("arguments: constants are among them")
    elif total != claimed:
        found.wrong.append(f"arguments: {claimed} B, the trees have {total} B")


# What a verdict says of XLA:CPU's temporaries, (with, without) -> whether it is so.
_CLAIMS = {
    "earns-its-keep": lambda a, b: b > a * (1 + SAME),
    "saves-nothing": lambda a, b: b <= a * (1 + SAME),
    "costs-memory": lambda a, b: b < a,
    # A program without the checkpoint is laid out otherwise even where nothing is recomputed.
    "undone-by-xla": lambda a, b: abs(b - a) <= ALIKE * max(a, b),
    "overridden": lambda a, b: abs(b - a) <= ALIKE * max(a, b),
}


def agrees(verdict: str, temp: int, without: int | None) -> bool | None:
    """Whether XLA:CPU's bytes move as a verdict says; None where that cannot be told."""
    claim = _CLAIMS.get(verdict)
    return None if without is None or claim is None else claim(temp, without)


def _judge_verdicts(gone: Any, rows: Any, found: Outcome) -> None:
    for row, of in zip(gone["rows"], rows, strict=False):  # the first ones are removed
        place, without = row["location"] or {}, row["temp_without"]
        verdict = of["verdict"]
        agreed = agrees(verdict, gone["temp"], without)
        line = f"{Path(place.get('file', '?')).name}:{place.get('line', 0)}"
        found.verdicts.append((row["function"], line, verdict, gone["temp"], without, agreed))
