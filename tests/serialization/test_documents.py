"""Results that are saved and loaded again are equal; what is no result is refused in one line."""

import dataclasses
import enum
import functools
import importlib
import json
import math
import types
import typing
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxresid
from jaxresid.results import IntervalBasis, Lifetimes, Peak, Residual, SweepRow, TimeBasis
from jaxresid.serialization.decoding import DecodeError, decoded
from jaxresid.serialization.encoding import encoded, json_document
from jaxresid.serialization.kinds import KINDS
from jaxresid.serialization.layouts import DOCUMENTS
from tests.render.made_by_hand import COMPARISON, PLAN
from tests.render.test_render import CHECKPOINTED, REPORT, SPLIT
from tests.schemas import validate

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LEAVES = {
    str: TEXT,
    int: st.integers(0, 2**60),
    float: st.floats(-1e28, 1e28),
    bool: st.booleans(),
    type(None): st.none(),
    object: st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT, lambda s: st.lists(s, max_size=2)
    ),
}


def together(value):
    """The value with its indices inside of what they are of, and with its compilers."""
    match value:
        case Peak(curve=curve):
            return dataclasses.replace(
                value,
                curve_at=value.curve_at % max(len(curve), 1),
                phases=tuple(inside(span, len(curve)) for span in value.phases),
            )
        case Lifetimes(points=points):
            return dataclasses.replace(
                value,
                at=value.at % max(len(points), 1),
                values=tuple(inside(each, len(points)) for each in value.values),
            )
        case IntervalBasis() | TimeBasis():
            more = dict.fromkeys(getattr(value, "others", ()), ())
            return dataclasses.replace(value, compilers={"xla": ("1",), **value.compilers, **more})
    return value


def inside(span, count):
    start, stop = sorted((span.start % (count + 1), span.stop % (count + 1)))
    return dataclasses.replace(span, start=start, stop=stop)


@functools.cache
def values(kind):
    """Any value of a type, built by its fields: no list of fields is kept here."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        layout = DOCUMENTS.layouts.get(kind)
        fields = {}
        for name, hint in hints.items():
            fields[name] = st.deferred(lambda hint=hint: values(hint))
            if layout and name in layout.objects:
                fields[name] = fields[name].map(lambda pairs: tuple(dict(pairs).items()))
        return st.builds(kind, **fields).map(together)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, sorted(arguments, key=lambda a: a is not type(None))))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1:] == (Ellipsis,):
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is Mapping:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=2)
    if issubclass(kind, enum.Enum):
        return st.sampled_from(list(kind))
    return LEAVES[kind]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_any_value_is_the_same_again(kind, data):
    value = data.draw(values(kind))
    text = json_document(value)
    assert decoded(kind, json.loads(text), DOCUMENTS) == value


def saved_and_loaded(value, path):
    """What is loaded of a value, which has to be valid under the schema and equal."""
    file = path / "result.json"
    value.save(file)
    data = json.loads(file.read_text())
    validate(data, data["kind"])
    found = jaxresid.load(file)
    assert found == value
    assert type(found) is type(value)
    assert jaxresid.load(str(file), type(value)) == value
    return found


@pytest.mark.parametrize("value", [REPORT, CHECKPOINTED, COMPARISON, PLAN], ids=lambda v: v.target)
def test_what_is_saved_is_loaded(value, tmp_path):
    found = saved_and_loaded(value, tmp_path)
    assert found.to_json() == value.to_json()


def test_a_split_is_the_same_again():
    data = json.loads(json_document(SPLIT))
    validate(data, "split")
    assert decoded(type(SPLIT), data, DOCUMENTS) == SPLIT


TARGETS = (
    *("block:checkpointed", "docs:loss", "docs:save_offload_recompute", "gpt:loss_scan"),
    *("stack8:scan_none", "train_step:train_step_checkpointed", "optimizer:host_state_step"),
)


@pytest.mark.integration
@pytest.mark.parametrize("target", TARGETS)
def test_reports_of_the_fixtures(target, tmp_path):
    name, _, function = target.partition(":")
    module = importlib.import_module(f"fixtures.inspect.{name}")
    inputs = getattr(module, f"{function}_inputs", None) or module.example_inputs
    report = jaxresid.inspect(getattr(module, function), on="tpu:v5e")(*inputs())
    found = saved_and_loaded(report, tmp_path)
    assert found.totals == report.totals
    assert found.cost.total == report.cost.total


class TestRefused:
    """One line that says what is wrong, and no half-made value."""

    def refused(self, tmp_path, content, *kind):
        file = tmp_path / "it.json"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(jaxresid.JaxresidError) as caught:
            jaxresid.load(file, *kind)
        message = str(caught.value)
        assert "\n" not in message
        assert message.startswith(str(file))
        return message.removeprefix(str(file)).strip()

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("", "is not JSON: Expecting value at line 1, column 1; -f json of a command"),
            ("import os", "is not JSON: Expecting value at line 1, column 1;"),
            (b"\x80\x04\x95pickle", "is not JSON: it is not text in UTF-8;"),
            ('{"schema": NaN}', "is not JSON: NaN is no number of JSON;"),
            ("[" * 100_000, "is not JSON:"),
            ("[]", "holds a list, as the findings of `check` and `lint` are, and no result;"),
            ("7", "is not a result of jaxresid;"),
            ("{}", "is not a result of jaxresid;"),
            ('{"schema": 2, "kind": "report"}', "was written by a later jaxresid: it has schema 2"),
            ('{"schema": true, "kind": "report"}', "has schema true, not 1"),
            ('{"schema": 1, "kind": "cake"}', "is not a result of jaxresid: its kind is none of"),
            ('{"schema": 1, "kind": ["report"]}', "is not a result of jaxresid: its kind is none"),
            ('{"schema": 1, "kind": "report"}', 'is no valid Report: it has no "target"'),
            ('{"schema": 1}\n{"schema": 1}', "is not JSON: Extra data at line 2, column 1;"),
        ],
    )
    def test_other_files(self, tmp_path, content, said):
        assert self.refused(tmp_path, content).startswith(said)

    def test_another_kind(self, tmp_path):
        said = self.refused(tmp_path, PLAN.to_json(), jaxresid.Report)
        assert said == "holds a Plan, not a Report"

    @pytest.mark.parametrize(
        ("path", "new", "said"),
        [
            (("residuals", 2, "trips"), "12", 'residuals[2].trips is "12", not an integer'),
            (("residuals", 2, "trips"), True, "residuals[2].trips is true, not an integer"),
            (("residuals", 2, "trips"), 1.5, "residuals[2].trips is 1.5, not an integer"),
            (("residuals", 0, "shape", 1), None, "residuals[0].shape[1] is null, not an integer"),
            (("residuals", 0, "marks"), ["best"], 'residuals[0].marks[0] is "best", not one of'),
            (("residuals", 0, "origin", "kind"), "x", 'residuals[0].origin.kind is "x", not one'),
            (("residuals", 0, "origin"), [], "residuals[0].origin is [], not an object"),
            (("checkpoints", 0, "ratio"), True, "checkpoints[0].ratio is true, not a number"),
            (("residuals",), {}, "residuals is {}, not a list"),
            (("peak", "location", "column"), 0, "peak.location.column is 0, not a number from 1"),
            (("peak", "breakdown"), [], "peak.breakdown is [], not an object"),
            (("peak", "breakdown", "output"), "", 'peak.breakdown.output is "", not an integer'),
            (("cost", "phases"), 1, "cost.phases is 1, not an object"),
            (("cost", "phases", "forward"), 1, "cost.phases.forward is 1, not an object"),
            (("checkpoints", 0, "verdict"), "good", 'checkpoints[0].verdict is "good", not one of'),
            (("target", "name"), None, "target.name is null, not text"),
            (("jax", "version"), "x" * 99, None),
        ],
    )
    def test_edited_files(self, tmp_path, path, new, said):
        data = json.loads(CHECKPOINTED.to_json())
        inner = functools.reduce(lambda value, key: value[key], path[:-1], data)
        inner[path[-1]] = new
        if said is None:
            (tmp_path / "it.json").write_text(json.dumps(data))
            jaxresid.load(tmp_path / "it.json")
        else:
            found = self.refused(tmp_path, json.dumps(data))
            assert found.startswith(f"is no valid Report: {said}")

    def test_every_field_is_checked(self):
        """Whatever value stands where another type belongs, the residual is refused."""
        data = encoded(REPORT.residuals[2])
        for key in set(data) - {"nbytes"}:
            with pytest.raises(DecodeError):
                decoded(Residual, {**data, key: {"a": 1}}, DOCUMENTS)

    @pytest.mark.parametrize(("name", "words"), [("no.json", "No such file"), (".", "Is a dir")])
    def test_what_cannot_be_read(self, tmp_path, name, words):
        with pytest.raises(jaxresid.JaxresidError, match=rf"^cannot read .*: {words}"):
            jaxresid.load(tmp_path / name)

    def test_what_cannot_be_written(self, tmp_path):
        with pytest.raises(jaxresid.JaxresidError, match=r"^cannot write .*no/r\.json: No such"):
            REPORT.save(tmp_path / "no" / "r.json")


def test_keys_of_later_versions_are_left_out(tmp_path):
    file = tmp_path / "r.json"
    data = json.loads(REPORT.to_json())
    data["new"] = data["residuals"][0]["new"] = 1
    file.write_text(json.dumps(data))
    assert jaxresid.load(file) == REPORT


def test_what_earlier_versions_did_not_write_has_its_default(tmp_path):
    file = tmp_path / "r.json"
    data = json.loads(REPORT.to_json())
    del data["findings"], data["cost"]["phases"]["update"]
    file.write_text(json.dumps(data))
    assert jaxresid.load(file) == REPORT


def test_a_mark_of_the_byte_order_is_no_error(tmp_path):
    file = tmp_path / "r.json"
    file.write_text(REPORT.to_json(), encoding="utf-8-sig")
    assert jaxresid.load(file) == REPORT


def test_nothing_is_half_written(tmp_path, monkeypatch):
    file = tmp_path / "r.json"
    REPORT.save(file)
    before = file.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(jaxresid.JaxresidError, match="cannot write"):
        CHECKPOINTED.save(file)
    assert file.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_what_is_not_finite_is_null():
    assert encoded({"a": math.nan, "b": [math.inf]}) == {"a": None, "b": [None]}


def test_what_is_no_result_has_no_document():
    with pytest.raises(TypeError, match="type Residual cannot be written as JSON"):
        json_document(REPORT.residuals[0])


def test_a_row_is_a_line():
    row = SweepRow("f", "none", None, "cpu", "whole", key="0" * 32, peak_nbytes=3)
    line = row.to_json()
    assert "\n" not in line
    validate(json.loads(line), "sweep-row")
    assert decoded(SweepRow, json.loads(line), DOCUMENTS) == row
