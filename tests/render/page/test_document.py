"""What a page says is what the result says, and nothing in it runs."""

import json
import re
from dataclasses import replace

import pytest

from jaxresid.render.page.document import page_document
from jaxresid.render.page.html import page
from jaxresid.render.page.programs import Most, program
from jaxresid.render.page.sources import code_around
from jaxresid.render.page.tables import Tables
from jaxresid.results import Location
from tests.render.page.programs import HOSTILE, comparison, lifetimes, plan, report


def data_of(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html)[1])


def live_at(found, at):
    values = found["values"]
    return sum(
        n
        for start, stop, n in zip(values["start"], values["stop"], values["nbytes"], strict=True)
        if start <= at < stop
    )


def test_a_report_has_all_that_its_values_have():
    document = page_document(report())
    found = document["programs"][0]
    assert found["nbytes"] == report().peak.nbytes == document["peak"]
    points = found["points"]["nbytes"]
    assert [live_at(found, i) for i in range(len(points))] == points
    assert points[found["at"]] == found["nbytes"]
    assert sum(document["residuals"]["nbytes"]) == report().totals.computed_nbytes
    texts = document["tables"]["texts"]
    kinds = {}
    for i, kind in enumerate(found["values"]["kind"]):
        if found["values"]["start"][i] <= found["at"] < found["values"]["stop"][i]:
            kinds[texts[kind]] = kinds.get(texts[kind], 0) + found["values"]["nbytes"][i]
    assert kinds == dict(report().peak.breakdown)


def test_each_checkpoint_has_the_program_without_it():
    document = page_document(report())
    assert len(document["programs"]) == 1 + len(document["checkpoints"])
    for each in document["checkpoints"]:
        assert document["programs"][each["program"]]["nbytes"] == each["peak_without"]


@pytest.mark.parametrize("result", [comparison, pytest.param(plan, marks=pytest.mark.integration)])
def test_rows_have_the_program_that_they_are_of(result):
    document = page_document(result())
    of_rows = [each for each in document["rows"] if each["program"] is not None]
    assert of_rows
    for each in of_rows:
        assert document["programs"][each["program"]]["nbytes"] == each["peak"]


def test_a_comparison_has_a_program_for_each_row():
    document = page_document(comparison())
    found = {row["name"]: row["program"] for row in document["rows"]}
    assert found["as-written"] == 0
    assert sorted(found.values()) == list(range(len(document["programs"])))


def test_values_that_are_left_out_are_what_is_missing():
    whole = lifetimes(400)
    found = program(whole, Tables(), Most(100, 50))
    assert len(found["points"]["nbytes"]) == 100
    assert len(found["values"]["nbytes"]) <= 50
    assert found["op"][found["at"]] == whole.at
    assert found["points"]["nbytes"] == [whole.points[i].nbytes for i in found["op"]]
    for i, op in enumerate(found["op"]):
        biggest = sorted(whole.values, key=lambda value: -value.live.nbytes)[:50]
        there = [v.live.nbytes for v in biggest if v.start <= op < v.stop]
        assert live_at(found, i) == sum(there) <= found["points"]["nbytes"][i]


def test_nothing_of_the_users_is_more_than_text():
    peak = report().peak
    place = Location(HOSTILE, 3, 0, HOSTILE, HOSTILE)
    named = replace(peak, live=(replace(peak.live[0], path=HOSTILE),))
    target = replace(report().target, name=HOSTILE)
    first = report().lifetimes[0]
    value = replace(first.values[0], live=replace(first.values[0].live, path=HOSTILE))
    points = (replace(first.points[0], source=replace(first.points[0].source, location=place)),)
    changed = replace(first, values=(value, *first.values[1:]), points=points + first.points[1:])
    html = page(replace(report(), target=target, peak=named, lifetimes=(changed,)))
    assert html.count("<script") == 2
    assert html.count("</script>") == 2
    assert "<img" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    texts = data_of(html)["tables"]["texts"]
    assert any(text.startswith("</script><img") and "\u241b" in text for text in texts)


def test_the_page_allows_nothing_but_its_own_script_and_style():
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page(report()))[1]
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "unsafe" not in policy


def test_there_are_pages_of_some_results_only(tmp_path):
    with pytest.raises(TypeError, match="no page"):
        page(3)
    assert report(lifetimes=False).to_page().startswith("<!doctype html>")


@pytest.mark.integration
def test_ten_thousand_values_are_less_than_three_megabytes():
    html = page(replace(report(), lifetimes=(lifetimes(10_000),)))
    assert len(html.encode()) < 3_000_000
    assert len(data_of(html)["programs"][0]["values"]["start"]) == 10_000


def test_code_is_shown_with_its_neighbours_where_the_file_is_still_the_same(tmp_path):
    path = tmp_path / "model.py"
    path.write_text("".join(f"line {i}\n" for i in range(1, 21)))
    found = code_around([[str(path), 10, "f", "line 10"]])[str(path)]
    assert list(found) == [str(i) for i in range(7, 14)]
    assert found["9"] == "line 9"
    changed = code_around([[str(path), 10, "f", "line 10"], [str(path), 3, "f", "other"]])
    assert changed[str(path)] == {"3": "other", "10": "line 10"}
    assert code_around([["/no/such/file.py", 1, "f", "x"], ["y.py", 1, "f", ""]]) == {
        "/no/such/file.py": {"1": "x"}
    }
