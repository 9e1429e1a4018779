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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxresid.base.errors import InputsError, JaxresidError
from jaxresid.base.text.units import format_bytes, format_flops

if TYPE_CHECKING:
    from jaxresid.advice.plan.source.file_edits import FileEdit
    from jaxresid.advice.plan.verification import Check, PlanFigures, WrittenCode
    from jaxresid.cli.options.request import Request
    from jaxresid.results import Plan

# Safe path (-P): a json.py in the working directory is not ours to import.
_PROGRAM = """
import json, sys
task = json.load(sys.stdin)
sys.path[:] = task["path"]
sys.argv[:] = task["argv"]
from jaxresid.cli.verify_edit import answer
answer(task)
"""
_FIGURES: Mapping[str, Callable[[int], str]] = {
    "peak_nbytes": format_bytes,
    "kept_nbytes": format_bytes,
    "host_nbytes": format_bytes,
    "recompute_flops": format_flops,
}


def with_second_process(check: Check, request: Request, microbatches: int = 1) -> Check:
    """Return a check that asks another process where this one fails or finds other figures."""

    def ask(edits: Sequence[FileEdit], promised: PlanFigures) -> WrittenCode:
        from jaxresid.advice.plan.verification import UnverifiedError, WrittenCode

        written = None
        with contextlib.suppress(UnverifiedError):
            written = check(edits, promised)
            if written.figures == promised:
                return written
        figures = figures_of_edited(edits, request, microbatches, promised.plain_flops)
        if isinstance(figures, str):
            raise UnverifiedError(figures)
        return written if written and written.figures == figures else WrittenCode(figures)

    return ask


def verify(plan: Plan, edits: Sequence[FileEdit], request: Request) -> None:
    """Trace the edited code; raise InputsError where that fails or a figure is not the plan's."""
    count = plan.selection.configuration.microbatches
    figures = figures_of_edited(edits, request, count, plan.plain_flops)
    if isinstance(figures, str):
        raise InputsError(f"the edited code cannot be traced; nothing was written: {figures}")
    promised = promised_figures(plan, figures)
    lines = ["the edited code does not give the planned figures; nothing was written"]
    for name, show in _FIGURES.items():
        planned, traced = getattr(promised, name), getattr(figures, name)
        if planned != traced:
            lines.append(
                f"{name.rpartition('_')[0]}: planned {show(planned)} ({planned}),"
                f" found {show(traced)} ({traced})"
            )
    if len(lines) > 1:
        raise InputsError("\n  ".join(lines))


def promised_figures(plan: Plan, traced: PlanFigures) -> PlanFigures:
    """Return the figures of a plan; the peak of a trace is none of a plan for a CPU."""
    return dataclasses.replace(
        traced,
        peak_nbytes=traced.peak_nbytes if plan.estimate_nbytes is None else plan.estimate_nbytes,
        kept_nbytes=plan.kept_nbytes,
        host_nbytes=plan.host_nbytes,
        recompute_flops=plan.recompute_flops,
    )


def figures_of_edited(
    edits: Sequence[FileEdit],
    request: Request,
    microbatches: int,
    plain_flops: int,
    layers: Sequence[str] = (),
) -> PlanFigures | str:
    """Return the figures of the target after the edits, or what went wrong.

    `layers` are the layers of Keras that are made to be computed again.
    """
    from jaxresid.advice.plan.verification import PlanFigures
    from jaxresid.targets.project_folders import without_project

    task = {
        "path": without_project(),
        "argv": sys.argv,
        "request": dataclasses.asdict(request),
        "microbatches": microbatches,
        "plain_flops": plain_flops,
        "layers": layers,
        "sources": {os.path.realpath(e.path): base64.b64encode(e.new).decode() for e in edits},
    }
    process = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM],
        input=json.dumps(task),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    try:
        result = json.loads(process.stdout)
    except ValueError:
        messages = process.stderr.strip().splitlines()
        return messages[-1] if messages else f"Python exited with code {process.returncode}"
    return str(result["error"]) if "error" in result else PlanFigures(**result)


def answer(task: Mapping[str, Any]) -> None:
    """Trace as asked, in the other process, and write the figures to stdout as JSON."""
    # What the user's code prints is no part of the answer, from wherever it prints.
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        result: Mapping[str, Any] = _figures(task)
    except JaxresidError as e:
        result = {"error": str(e)}
    with open(stdout, "w", encoding="utf-8") as file:
        json.dump(result, file)


def _figures(task: Mapping[str, Any]) -> Mapping[str, int]:
    from jaxresid.advice.plan.verification import figures_of
    from jaxresid.cli.options.batches import Sizes
    from jaxresid.cli.options.request import Request
    from jaxresid.cli.resolve import subject_of
    from jaxresid.targets.sources import serve

    serve({path: base64.b64decode(text) for path, text in task["sources"].items()})
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        for name, value in task["request"].items()
    }
    parts = tuple(map(tuple, fields["batch"]["parts"]))
    fields["batch"] = Sizes(parts, fields["batch"]["name"])
    with _recomputing(task["layers"]):
        edited = subject_of(Request(**fields))
    if task["microbatches"] > 1:
        from jaxresid.advice.plan.joint.microbatches import in_microbatches

        edited = in_microbatches(edited, task["microbatches"])
    return dataclasses.asdict(figures_of(edited, task["plain_flops"]))


def _recomputing(layers: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Return the context in which Keras makes layers of these names to be computed again."""
    if not layers:
        return contextlib.nullcontext()
    from jaxresid.adapters.libraries import imported
    from jaxresid.adapters.registry import prepare

    prepare("keras")
    keras: Any = imported("keras", "plan --emit keras")
    return keras.RematScope(mode="list_of_layers", layer_names=list(layers))  # type: ignore[no-any-return]
