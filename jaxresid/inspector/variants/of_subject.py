"""Make the variants of what was traced, a function or a training step."""

from __future__ import annotations

from jaxresid.inspector.subject import Subject
from jaxresid.inspector.trace.step import StepTrace
from jaxresid.inspector.variants.choices import Variants
from jaxresid.inspector.variants.function import FunctionVariants
from jaxresid.inspector.variants.step import StepVariants


def variants_of(subject: Subject) -> Variants:
    """Return the variants of a subject, made by changing its checkpoints.

    Raises:
      InputsError: it is a training step that does nothing with its gradients.
    """
    subject.judged()
    if isinstance(subject.trace, StepTrace):
        return StepVariants(subject.fun, subject.trace, subject.frames, subject.profile)
    return FunctionVariants(subject.trace, subject.frames, subject.profile, subject.name)
