"""Traces for Perfetto: read by its schema, what is drawn adds up to the lifetimes."""

import dataclasses
import gzip
import itertools
from collections import Counter, defaultdict

import jax
import jax.numpy as jnp
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

import jaxresid
from jaxresid.render.traces.perfetto import trace_of
from jaxresid.results import Location, Source
from tests.inspector.memory.test_lifetimes import step, step_arguments
from tests.small import f32

EVENT = schema.TrackEvent


def unknown(message):
    """Return the numbers of fields that the schema does not know."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = [each.field_number for each in UnknownFieldSet(message)]
    for described, value in message.ListFields():
        if described.message_type is not None:
            each = value if described.is_repeated else [value]
            found += itertools.chain.from_iterable(map(unknown, each))
    return found


@dataclasses.dataclass
class Slice:
    track: str
    start: int
    stop: int
    name: str
    details: dict


def read(data):
    """Return a trace by its groups: their tracks, slices, marks and counted bytes.

    Slices of a track are over before others begin, and all times are whole ops.
    """
    trace = schema.Trace()
    trace.ParseFromString(gzip.decompress(data))
    assert unknown(trace) == []
    tracks = {}
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
    groups = {
        number: {"name": track.name, "slices": [], "marks": [], "counts": {}, "lanes": Counter()}
        for number, track in tracks.items()
        if not track.HasField("parent_uuid")
    }
    for track in tracks.values():
        if track.HasField("parent_uuid"):
            groups[track.parent_uuid]["lanes"][track.name] += 1
    opened, before = defaultdict(list), 0
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        assert packet.timestamp >= before
        before = packet.timestamp
        at, left = divmod(packet.timestamp, 1000)
        assert left == 0
        event = packet.track_event
        track = tracks[event.track_uuid]
        group = groups[track.parent_uuid]
        details = {
            each.name: each.string_value if each.HasField("string_value") else each.int_value
            for each in event.debug_annotations
        }
        if event.type == EVENT.TYPE_COUNTER:
            assert track.counter.unit == schema.CounterDescriptor.UNIT_SIZE_BYTES
            group["counts"][at] = event.counter_value
        elif event.type == EVENT.TYPE_INSTANT:
            group["marks"].append((at, event.name, details))
        elif event.type == EVENT.TYPE_SLICE_BEGIN:
            assert not opened[event.track_uuid]
            opened[event.track_uuid].append(Slice(track.name, at, -1, event.name, details))
        else:
            found = opened[event.track_uuid].pop()
            found.stop = at
            group["slices"].append(found)
    assert not any(opened.values())
    return list(groups.values())


def layer(x, w):
    return jnp.sin(jnp.tanh(x @ w))


def loss(ws, x):
    for w in ws:
        x = jax.checkpoint(layer)(x, w)
    return jnp.sum(x)


ARGUMENTS = [f32(128, 128)] * 3, f32(1024, 128)
REPORTS = {
    "function": lambda: jaxresid.inspect(loss, lifetimes=True)(*ARGUMENTS),
    "step": lambda: jaxresid.inspect(step, lifetimes=True)(*step_arguments()),
}


@pytest.mark.parametrize("name", REPORTS)
def test_what_is_drawn_adds_up(name):
    programs = REPORTS[name]().lifetimes
    groups = read(trace_of("a program", programs))
    assert len(groups) == len(programs)
    for group, program in zip(groups, programs, strict=True):
        values = [each for each in group["slices"] if each.track not in ("ops", "passes")]
        counted = 0
        for i, point in enumerate(program.points):
            live = [each for each in values if each.start <= i < each.stop]
            assert sum(each.details["bytes"] for each in live) == point.nbytes
            counted = group["counts"].get(i, counted)
            assert counted == point.nbytes
        for track in ("ops", "passes"):
            each = sorted((s.start, s.stop) for s in group["slices"] if s.track == track)
            assert each[0][0] == 0
            assert each[-1][1] == len(program.points)
            assert all(a[1] == b[0] for a, b in itertools.pairwise(each))


def test_each_value_has_what_is_known_of_it():
    program = REPORTS["function"]().lifetimes[0]
    (group, *_) = read(trace_of("a program", [program]))
    drawn = {
        (s.start, s.stop, s.details["bytes"], s.details.get("why"))
        for s in group["slices"]
        if "bytes" in s.details
    }
    for value in program.values:
        if value.reason not in ("argument", "output", "constant"):
            assert (value.start, value.stop, value.live.nbytes, value.reason) in drawn
    kept = [s for s in group["slices"] if s.track == "residuals: wait for the backward pass"]
    assert kept
    for each in kept:
        assert "in layer: return jnp.sin(jnp.tanh(x @ w))" in each.details["made at"]
        assert each.details["frames"].startswith("loss ")
        assert each.details["array"] == "float32[1024,128]"
        assert "last read at" in each.details
    (held,) = [s for s in group["slices"] if s.track == "arguments"]
    assert held.name == "argument ×4 704.00 KiB"
    assert held.details["x"] == 1024 * 128 * 4


def test_the_peak_is_marked():
    report = REPORTS["function"]()
    (group, *_) = read(trace_of("a program", report.lifetimes))
    ((at, name, details),) = group["marks"]
    assert at == report.lifetimes[0].at
    assert name.startswith("peak: ")
    assert details["op"] == report.peak.primitive
    for kind, nbytes in report.peak.breakdown:
        assert details[f"{kind} bytes"] == nbytes


def test_groups_are_named_and_say_what_the_axis_is():
    first, second, *_ = read(trace_of("a program", REPORTS["function"]().lifetimes))
    assert first["name"].startswith("a program: peak ")
    assert ", without checkpoint " in second["name"]
    assert first["name"].endswith("(1 µs = 1 op)")


def test_no_more_tracks_than_values_that_are_live_at_once():
    program = REPORTS["step"]().lifetimes[0]
    (group,) = read(trace_of("a program", [program]))
    most = max(
        sum(v.reason == "temporary" and v.start <= i < v.stop for v in program.values)
        for i in range(len(program.points))
    )
    assert group["lanes"]["temporaries"] == most


def test_text_of_code_does_nothing_on_a_terminal():
    program = REPORTS["function"]().lifetimes[0]
    place = Location("\x1b[31mx.py", 1, 0, "f\u202e", "\x07")
    values = tuple(
        dataclasses.replace(
            value,
            stack=(place,),
            live=dataclasses.replace(value.live, source=Source(place, scope="\x1b")),
        )
        for value in program.values
    )
    points = tuple(dataclasses.replace(p, source=Source(place)) for p in program.points)
    changed = dataclasses.replace(program, values=values, points=points, name="\x1b")
    (group,) = read(trace_of("\x1b", [changed]))
    texts = [group["name"], *group["lanes"]]
    for each in group["slices"]:
        texts += [each.name, *each.details, *map(str, each.details.values())]
    for _, name, details in group["marks"]:
        texts += [name, *details, *map(str, details.values())]
    assert any("x.py" in text for text in texts)
    assert not any(sign in text for text in texts for sign in ("\x1b", "\u202e", "\x07"))


@pytest.mark.integration
def test_results_give_it():
    report = REPORTS["function"]()
    title = f"{report.target.name} on {report.place.name}"
    assert report.to_perfetto() == trace_of(title, report.lifetimes)
    with pytest.raises(ValueError, match="ask for them with lifetimes=True"):
        dataclasses.replace(report, lifetimes=()).to_perfetto()
    plan = jaxresid.plan(loss, budget="1GiB", lifetimes=True)(*ARGUMENTS)
    table = jaxresid.compare(loss, lifetimes=True)(*ARGUMENTS)
    assert len(read(plan.to_perfetto())) == len(plan.lifetimes)
    names = [group["name"] for group in read(table.to_perfetto())]
    assert any(", dots_saveable: peak " in name for name in names)


def test_it_is_the_same_in_every_run():
    programs = REPORTS["function"]().lifetimes
    assert trace_of("a program", programs) == trace_of("a program", programs)
