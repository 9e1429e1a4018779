"""What plans promise of random programs against what their code gives: each way to treat a place is
chosen in the jaxpr, written into the source, and the source traced."""

import importlib
import os
import random
import sys

import pytest

from jaxresid.advice.plan.drafts import Drafts
from jaxresid.advice.plan.search import menus
from jaxresid.advice.plan.source.snippets import code
from jaxresid.advice.plan.source.writing import plan_edits
from jaxresid.advice.plan.verification import (
    PlanFigures,
    UnverifiedError,
    figures,
    figures_of,
    in_process_check,
    without_checkpoints,
)
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.checkpoints.policies import description
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.candidates import candidates, saving
from jaxresid.inspector.variants.choices import Choice
from jaxresid.inspector.variants.naming import nameable
from jaxresid.results import PlannedPart, PlannedSite, PlannedValue
from tests.plan_programs import source
from tests.plans import drafted, planned

# By a GPU's rules the peak may differ with the order of two operations, which code may have anew.
ON = "tpu:v5p"
# How many `-m programs` takes.
MANY = int(os.environ.get("JAXRESID_PROGRAMS", "114"))


class Program:
    """The program of a seed, imported anew."""

    def __init__(self, seed, directory):
        self.name = f"planned_{seed}_{directory.name.replace('-', '_')}"
        (directory / f"{self.name}.py").write_text(source(seed))
        module = importlib.import_module(self.name)
        self.question = Question(module.loss, on=ON).of(module.loss_inputs(), {})
        self.subject = subject(self.question)
        self.variants = self.subject.variants()
        self.plain = without_checkpoints(self.variants)
        self.places = menus._places(self.variants, has_source=True)
        self.drafts = Drafts(
            self.subject, self.variants, self.places, self.plain, None, lambda text: None
        )
        self.random = random.Random(f"choices {seed}")

    def treated(self, place):
        """Some way to treat a place: what is chosen in the jaxpr, and as a plan says it."""
        kind = self.random.choice(["none", "policy", "policy", "names", "names", "split"])
        values = list(nameable(self.variants.body(place), self.subject.frames))
        if kind == "none" and place.kind == "checkpoint":
            return (None,) * place.calls, (PlannedPart(place.calls, False),)
        if place.kind == "whole" and len(self.places) > 1:
            values = []  # then a plan names none
        if kind == "names" and values:
            count = self.random.randint(1, min(3, len(values)))
            names = {}
            for v in self.random.sample(values, count):
                names.setdefault(v.expression, v.name or f"new{len(names)}")
            policy = saving(list(names.values()))
            new = {
                e: n
                for e, n in names.items()
                if not any(v.expression == e and v.name == n for v in values)
            }
            choice = Choice(policy.policy, tuple(new.items()))
            shown = tuple(PlannedValue(n, "save", 0, new and e) for e, n in new.items())
            return (choice,) * place.calls, (PlannedPart(place.calls, True, policy.text, shown),)
        known = [c for c in candidates(["kept"]) if "offload" not in c.text]
        chosen = self.random.choice(known)
        bare = chosen.text == "nothing_saveable"
        choice = Choice(None if bare else chosen.policy)
        part = PlannedPart(place.calls, True, None if bare else chosen.text)
        if kind == "split" and place.can_split and place.calls > 1:
            first = self.random.randint(1, place.calls - 1)
            rest = place.calls - first
            return (choice,) * first + (None,) * rest, (
                PlannedPart(first, True, part.policy),
                PlannedPart(rest, False),
            )
        return (choice,) * place.calls, (part,)

    def choices(self):
        """Some ways to treat some places."""
        places = self.places
        overlaps = set(self.variants.overlaps())
        made, sites = {}, []
        for place in self.random.sample(places, len(places)):
            near = any((place, p) in overlaps or (p, place) in overlaps for p in made)
            if near or (made and self.random.random() < 0.5):
                continue
            if place.kind == "whole" and len(places) > 1 and self.random.random() < 0.6:
                continue
            made[place], parts = self.treated(place)
            sites.append(_site(place, parts, changed=True))
        for place in places:
            if place.kind == "checkpoint" and place not in made:
                written = PlannedPart(place.calls, True, description(place.policy))
                sites.append(_site(place, (written,), changed=False))
        return made, tuple(sites)

    def outcome(self):
        """What becomes of one choice: `kept` or why not."""
        made, sites = self.choices()
        try:
            promised = figures(self.variants.variant(made), self.plain)
        except JaxresidError as e:
            return f"no variant: {e}", sites, ()
        written = plan_edits(sites, self.subject, self.drafts._known(sites))
        if written.problems:
            return f"unwritten: {written.problems[0]}", sites, ()
        try:
            check = in_process_check(self.subject, self.question)
            found = check(written.edits, promised).figures
        except UnverifiedError as e:
            return f"untraced: {e}", sites, written.edits
        if found != promised:
            return f"wrong: promised {promised}, found {found}", sites, written.edits
        return "kept", sites, written.edits


def _site(place, parts, *, changed):
    return PlannedSite(
        place.kind,
        place.function,
        place.location,
        place.calls,
        place.trips,
        parts,
        changed,
        defined=place.defined,
    )


def outcomes(seed, count, directory):
    made = Program(seed, directory)
    return [made.outcome() for _ in range(count)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def broken(seed, count, folder):
    return [
        (seed, what, code(edits))
        for what, _, edits in outcomes(seed, count, folder)
        if what != "kept" and not what.startswith("unwritten")
    ]


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(6))
def test_what_is_written_gives_what_was_promised(seed, folder):
    assert broken(seed, 2, folder) == []


@pytest.mark.programs
@pytest.mark.parametrize("seed", range(6, 6 + MANY))
def test_of_many_programs_too(seed, folder):
    assert broken(seed, 3, folder) == []


@pytest.mark.programs
@pytest.mark.parametrize("seed", range(MANY // 2))
def test_plans_are_what_their_code_gives(seed, folder):
    """Whole plans: every code is traced, without the shortcut of the running process."""
    made = Program(seed, folder)
    low = planned(made.subject, 1).lowest_nbytes
    peak = made.plain.peak_nbytes
    for budget in sorted({low, (low + peak) // 2}):
        check = in_process_check(made.subject, made.question)
        plan, edits = drafted(made.subject, budget, check=check)
        assert plan.is_within
        assert plan.recompute_flops >= 0
        assert plan.verified, (seed, plan.doubt)
        name = f"{made.name}_{budget}"
        (new,) = [e.new for e in edits] or [source(seed).encode()]
        (folder / f"{name}.py").write_bytes(new)
        module = importlib.import_module(name)
        asked = Question(module.loss, on=ON).of(module.loss_inputs(), {})
        found = figures_of(subject(asked), plan.plain_flops)
        assert found == PlanFigures(
            plan.peak_nbytes,
            plan.kept_nbytes,
            plan.host_nbytes,
            plan.recompute_flops,
            plan.plain_flops,
        ), seed


if __name__ == "__main__":
    import pathlib
    import tempfile
    from collections import Counter

    folder = pathlib.Path(tempfile.mkdtemp())
    sys.path.insert(0, str(folder))
    totals = Counter()
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            found = outcomes(seed, int(sys.argv[3]), folder)
        except Exception as e:
            print(seed, "CRASH", type(e).__name__, str(e)[:300])
            totals["crash"] += 1
            continue
        for what, _, edits in found:
            totals[what.partition(":")[0]] += 1
            if not what.startswith("kept"):
                print(seed, what[:400])
                if edits:
                    print("    " + "\n    ".join(code(edits)))
        print(seed, [w.partition(":")[0] for w, _, _ in found], flush=True)
    print(totals)
