"""The linter's claims, checked by the thing it talks about."""

import importlib
import pkgutil

import claims
import jax
import pytest
from rule_examples import example

from jaxresid.linter.rules import all_rules

CODES = {r.code for r in all_rules()}
# Rules whose claim is not about what happens at run time, with the reason.
NOT_RUN = {
    "JXR001": "about comments",
}


def collected():
    found = {}
    for module in pkgutil.iter_modules(claims.__path__):
        loaded = importlib.import_module(f"claims.{module.name}")
        for code, entries in loaded.CLAIMS.items():
            found.setdefault(code, []).extend(entries)
        NOT_RUN.update(getattr(loaded, "NOT_RUN", {}))
    return found


CLAIMS = collected()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("code", "claim"),
    [
        pytest.param(code, claim, id=f"{code}-{i}")
        for code, entries in sorted(CLAIMS.items())
        for i, claim in enumerate(entries)
    ],
)
def test_claim(code, claim, jax_version):
    if jax_version < claim.since or (claim.before and jax_version >= claim.before):
        pytest.skip(f"jax {claim.since} to {claim.before}")
    for module in claim.needs:
        pytest.importorskip(module)
    if claim.remat3 is not None and claim.remat3 != bool(getattr(jax.config, "jax_remat3", False)):
        pytest.skip("the other remat implementation")
    source = claim.source if claim.source is not None else example(code, claim.example).source
    namespace = {"__name__": "example"}
    if claim.check is None:
        with pytest.raises(claim.raises, match=claim.match):
            exec(compile(source, "<example>", "exec"), namespace)
        return
    exec(compile(source, "<example>", "exec"), namespace)
    claim.check(namespace)


def test_every_rule_with_an_effect_has_a_claim():
    unclaimed = CODES - set(CLAIMS) - set(NOT_RUN)
    assert not unclaimed
    assert not set(CLAIMS) & set(NOT_RUN)
