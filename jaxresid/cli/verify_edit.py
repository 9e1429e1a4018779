"""Check that edited code that is not written yet gives what a plan promises.

The code is traced again in a process of its own, where every module is imported anew.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.base.text.units import format_bytes, format_flops

if TYPE_CHECKING:
    from jaxresid.advice.plan.source.file_edits import FileEdit
    from jaxresid.advice.plan.verification import Check, PlanFigures, WrittenCode
    from jaxresid.cli.options.inputs import TargetOptions
    from jaxresid.results import Plan

# Safe path (-P): a json.py in the working directory is not ours to import.
_PROGRAM = """
import json, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]
sys.argv[:] = given["argv"]
from jaxresid.cli.verify_edit import answer
answer(given)
"""
_FIGURES = ("kept_nbytes", "host_nbytes", "recompute_flops")


def with_second_process(check: Check, options: TargetOptions, microbatches: int = 1) -> Check:
    """Return a check that asks another process where this one fails or finds other figures."""

    def ask(edits: Sequence[FileEdit], promised: PlanFigures) -> WrittenCode:
        from jaxresid.advice.plan.verification import UnverifiedError, WrittenCode

        found = None
        with contextlib.suppress(UnverifiedError):
            found = check(edits, promised)
            if found.figures == promised:
                return found
        figures = figures_of_edited(edits, options, microbatches, promised.plain_flops)
        if isinstance(figures, str):
            raise UnverifiedError(figures)
        return found if found and found.figures == figures else WrittenCode(figures)

    return ask


def verify(plan: Plan, edits: Sequence[FileEdit], options: TargetOptions) -> None:
    """Trace the edited code and compare its figures with those of the plan.

    Raises:
      InputsError: It cannot be traced, or a figure differs.
    """
    count = plan.selection.configuration.microbatches
    found = figures_of_edited(edits, options, count, plan.plain_flops)
    if isinstance(found, str):
        raise InputsError(f"the edited code cannot be traced; nothing was written: {found}")
    promised = {name: getattr(plan, name) for name in _FIGURES}
    if plan.estimate_nbytes is not None:  # on a CPU the peak of a trace is no figure of the plan
        promised = {"peak_nbytes": plan.estimate_nbytes, **promised}
    wrong = [
        f"{name.rpartition('_')[0]}: planned {_shown(name, figure)},"
        f" found {_shown(name, getattr(found, name))}"
        for name, figure in promised.items()
        if figure != getattr(found, name)
    ]
    if wrong:
        raise InputsError(
            "\n  ".join(
                ["the edited code does not give the planned figures; nothing was written", *wrong]
            )
        )


def _shown(name: str, figure: int) -> str:
    text = format_bytes(figure) if name.endswith("nbytes") else format_flops(figure)
    return f"{text} ({figure})"


def figures_of_edited(
    edits: Sequence[FileEdit],
    options: TargetOptions,
    microbatches: int,
    plain_flops: int,
    layers: Sequence[str] = (),
) -> PlanFigures | str:
    """Return the figures of the target after the edits; text says what went wrong.

    Args:
      edits: The edits.
      options: The target and its inputs.
      microbatches: In how many microbatches the batch goes through.
      plain_flops: The FLOPs of the code without any checkpoint.
      layers: The names of the layers of Keras that are made to be computed again.
    """
    from jaxresid.advice.plan.verification import PlanFigures
    from jaxresid.targets.project_folders import without_project

    given = {
        "path": without_project(),
        "argv": sys.argv,
        "options": dataclasses.asdict(options),
        "microbatches": microbatches,
        "plain_flops": plain_flops,
        "layers": layers,
        "sources": {os.path.realpath(e.path): base64.b64encode(e.new).decode() for e in edits},
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM],
        input=json.dumps(given),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines()
        return said[-1] if said else f"Python exited with code {done.returncode}"
    return str(found["error"]) if "error" in found else PlanFigures(**found)


def answer(request: Mapping[str, Any]) -> None:
    """Trace as asked, in the other process, and write the figures to stdout as JSON."""
    # What the user's code prints is no part of the answer, from wherever it prints.
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        found: Mapping[str, Any] = _figures(request)
    except JaxresidError as e:
        found = {"error": str(e)}
    with open(stdout, "w", encoding="utf-8") as file:
        json.dump(found, file)


def _figures(request: Mapping[str, Any]) -> Mapping[str, int]:
    from jaxresid.advice.plan.verification import figures_of
    from jaxresid.cli.options.batches import Sizes
    from jaxresid.cli.options.inputs import TargetOptions, subject_of
    from jaxresid.targets.sources import serve

    serve({path: base64.b64decode(text) for path, text in request["sources"].items()})
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        for name, value in request["options"].items()
    }
    parts = tuple(map(tuple, options["batch"]["parts"]))
    options["batch"] = Sizes(parts, options["batch"]["name"])
    with _recomputing(request["layers"]):
        edited = subject_of(TargetOptions(**options))[0]
    if request["microbatches"] > 1:
        from jaxresid.advice.plan.joint.microbatches import in_microbatches

        edited = in_microbatches(edited, request["microbatches"])
    return dataclasses.asdict(figures_of(edited, request["plain_flops"]))


def _recomputing(layers: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Return the context in which Keras makes layers of these names to be computed again."""
    if not layers:
        return contextlib.nullcontext()
    from jaxresid.adapters.libraries import imported
    from jaxresid.adapters.registry import prepare

    prepare("keras")
    keras: Any = imported("keras", "plan --emit keras")
    return keras.RematScope(mode="list_of_layers", layer_names=list(layers))  # type: ignore[no-any-return]
