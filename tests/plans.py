"""Plans for one traced function, without a grid of batches, microbatches and meshes."""

from jaxresid.advice.plan.plan import Planning, terms
from jaxresid.inspector.subject.base import gc_paused


def planned(subject, budget_nbytes):
    """Return the plan for a traced function; the plan's code is not traced."""
    return drafted(subject, budget_nbytes)[0]


def drafted(
    subject,
    budget_nbytes,
    *,
    offload=False,
    progress=None,
    check=None,
    compiles=None,
    keeps_interrupted=False,
):
    """Return the plan for a traced function, and the edits that carry it out."""
    by = terms(subject.place, budget_nbytes, offload=offload, compiles=compiles, progress=progress)
    with gc_paused(), subject.tracing():
        planning = Planning(subject, by, progress or (lambda _: None))
        return planning.planned(check, keeps_interrupted=keeps_interrupted)
