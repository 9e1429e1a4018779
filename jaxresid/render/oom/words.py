"""What filled the memory, and what to try, in words."""

from __future__ import annotations

from collections.abc import Iterator

from jaxresid.base.text.units import format_bytes
from jaxresid.render.style.words import computed_text, percent
from jaxresid.results import OomBuffer, OomReport, OomTrace, WayOut

_ROLES = {
    "forward": "of the forward pass",
    "backward": "of the backward pass",
    "recompute": "computed again for the backward pass",
    "": "",
}
_PHASES = {
    "compile": "as it was compiled",
    "load": "as it was loaded onto the device",
    "run": "as it ran",
    "transfer": "as an array was put onto the device",
    "start": "as JAX began",
    "": "",
}
_PLATFORMS = {"tpu": "a TPU", "gpu": "a GPU", "cpu": "a CPU", "": ""}
_PARTS = (
    ("argument_nbytes", "arguments"),
    ("output_nbytes", "outputs"),
    ("temp_nbytes", "temporaries"),
    ("constant_nbytes", "constants"),
    ("padding_nbytes", "padding"),
    ("fragmentation_nbytes", "gaps"),
    ("reserved_nbytes", "reserved"),
)
_LEAST_SHARE = 0.01
_FAR = 2  # times the upper end of an estimate
_WAYS = {
    "shapes": "give the padded arrays longer last axes: a TPU pads the last two to multiples of 8"
    " and 128, so transpose, merge or flatten short ones",
    "plan": "the checkpoints that make it fit for the least recompute",
    "batch": "a smaller batch, or the same one in microbatches",
    "shard": "split it over more devices",
    "state": "what else lowers it: donation, narrower types, the optimizer's state on the host",
    "donate": "donate arguments whose new values are returned (jax.jit(donate_argnums=...)), and"
    " see what it saves",
    "list-buffers": "which buffers are the largest, on which line: the log does not list them",
    "dump": "have XLA write down its buffers, if you cannot name a function",
    "other-program": "who has the GPU: other processes, also TensorFlow or PyTorch in this one",
    "other-device": "another GPU, if that one is in use",
    "live-arrays": "in the program, before the call that fails: the bytes that its own arrays hold;"
    " delete what is not needed, and earlier models and results",
    "fraction": "give JAX more of the GPU than 75 %",
    "less-fraction": "leave more to CUDA's libraries",
    "allocator": "an allocator that does not need one piece",
    "kernel": "let kernels have more of the on-chip memory, or give the kernel smaller blocks",
    "host-profile": "which Python code takes the host's memory",
    "host-limit": "let JAX pin more of the host's memory, or offload less",
    "finding": "what lowers the estimated peak most by other code: the line, and what to write",
}


def verdict_text(report: OomReport) -> str:
    """Return what happened in a sentence: `too large: jit_step needs 63.80 GiB of 30.75 GiB`."""
    maybe = "" if report.is_certain or report.cause == "unknown" else "probably "
    return f"{maybe}{_verdict(report)}"


def _verdict(report: OomReport) -> str:
    cause = report.cause
    if cause == "unknown":
        return "unknown: no lack of memory of XLA's that jaxresid knows"
    if cause == "host":
        return "the host's memory ran out, not the device's"
    if cause == "pinned-host":
        asked = report.requested_nbytes
        more = "" if asked is None else f": {format_bytes(asked)} was asked for"
        return f"the host memory that JAX pins for the GPU ran out, not the GPU's{more}"
    if cause == "on-chip":
        return "a kernel needs more than the memory on the chip, not more than the device's"
    if cause == "other-program":
        return "another program has the GPU: it was full before JAX had anything on it"
    if cause == "preallocation":
        return "JAX took so much of the GPU as it began that CUDA's libraries found no room"
    if cause == "fragmentation":
        return f"fragmentation: {_free(report)}"
    if cause == "held":
        return f"the memory was already taken: {_taken(report)}"
    made_of = "" if cause == "too-large" else f", mostly {cause}"
    return f"too large{made_of}: {_needs(report)}"


def _needs(report: OomReport) -> str:
    name = report.program or "the program"
    need, capacity = report.required_nbytes, report.capacity_nbytes or report.pool.limit_nbytes
    if need is None and report.requested_nbytes is not None:
        of = f" of {format_bytes(capacity)}" if capacity is not None else ""
        return f"{name} asks for {format_bytes(report.requested_nbytes)}{of} in one piece"
    if need is None:
        return f"{name}, by the buffers that the log lists"
    if capacity is None:
        return f"{name} needs {format_bytes(need)}"
    excess = f", {format_bytes(need - capacity)} too much" if need > capacity else ""
    return f"{name} needs {format_bytes(need)} of {format_bytes(capacity)}{excess}"


def _free(report: OomReport) -> str:
    pool = report.pool
    free = "enough" if pool.free_nbytes is None else format_bytes(pool.free_nbytes)
    asked = "what was asked for"
    if report.requested_nbytes is not None:
        asked = f"the {format_bytes(report.requested_nbytes)} asked for"
    return f"{free} was free, but not {asked} in one piece"


def _taken(report: OomReport) -> str:
    pool = report.pool
    asked = report.requested_nbytes
    need = report.required_nbytes
    small = (
        f"the program needs only {format_bytes(need)}"
        + (f" of {format_bytes(report.capacity_nbytes)}" if report.capacity_nbytes else "")
        if need is not None
        else f"{format_bytes(asked)} was asked for"
        if asked is not None
        else "there was no room"
    )
    if pool.free_nbytes is not None:
        return f"{small}, {format_bytes(pool.free_nbytes)} was free"
    if pool.used_fraction is not None:
        used = "all" if pool.used_fraction == 1 else f"{pool.used_fraction:.0%}"
        return f"{small}, and {used} of JAX's pool was in use"
    return small


def facts(report: OomReport) -> tuple[str, ...]:
    """Return what else is known of the lack of memory, in short phrases."""
    found = []
    if _PHASES[report.phase]:
        where = f" on {report.on or _PLATFORMS[report.platform]}" if report.platform else ""
        found.append(f"{_PHASES[report.phase]}{where}")
    pool = report.pool
    if pool.in_use_nbytes is not None:
        of = f" of {format_bytes(pool.limit_nbytes)}" if pool.limit_nbytes is not None else ""
        found.append(f"{format_bytes(pool.in_use_nbytes)}{of} in use")
    elif pool.limit_nbytes is not None:
        found.append(f"JAX's pool {format_bytes(pool.limit_nbytes)}")
    if pool.device_nbytes is not None:
        found.append(f"device {format_bytes(pool.device_nbytes)}")
    if pool.device_free_nbytes is not None:
        found.append(f"{format_bytes(pool.device_free_nbytes)} of it free")
    if pool.largest_free_nbytes is not None:
        found.append(f"largest free piece {format_bytes(pool.largest_free_nbytes)}")
    if report.rematerialized_nbytes is not None:
        nbytes, limit = report.rematerialized_nbytes, report.rematerialization_limit_nbytes or 0
        found.append(
            f"by computing values twice XLA brought it down to {format_bytes(nbytes)} only, and"
            f" aimed at {format_bytes(limit)}"
        )
    if report.processes > 1:
        found.append(f"{report.processes} processes say the same")
    return tuple(found)


def part_texts(report: OomReport) -> tuple[str, ...]:
    """Return what the program's memory is made of, but for what is next to nothing."""
    whole = report.required_nbytes
    found = []
    for name, word in _PARTS:
        nbytes = getattr(report.parts, name)
        if nbytes and nbytes >= _LEAST_SHARE * (whole or 0):
            share = percent(nbytes, whole) if whole else ""
            found.append(f"{word} {format_bytes(nbytes)}" + f" ({share})" * bool(share))
    return tuple(found)


def trace_texts(report: OomReport, trace: OomTrace) -> Iterator[str]:
    """Yield the estimated peak beside the figure of the log that is nearest to what it counts."""
    if trace.peak_nbytes is None:
        yield f"{format_bytes(trace.kept_nbytes)} kept for the backward pass; no peak is estimated"
        return
    between = ""
    if trace.low_nbytes is not None and trace.high_nbytes is not None:
        between = f" ({format_bytes(trace.low_nbytes)} to {format_bytes(trace.high_nbytes)})"
    yield f"peak about {format_bytes(trace.peak_nbytes)}{between}"
    beside = trace.arguments_nbytes or 0
    yield f"{format_bytes(trace.peak_nbytes - beside)} of it beside arguments"
    if report.required_nbytes is not None:
        yield f"the {report.source} says that it needs {format_bytes(report.required_nbytes)}"
    elif report.requested_nbytes is not None:
        yield f"the log says that {format_bytes(report.requested_nbytes)} was asked for at once"
    most = max(report.required_nbytes or 0, report.requested_nbytes or 0)
    if most > _FAR * (trace.high_nbytes or trace.peak_nbytes):
        yield "far more than the estimate: it was another function, or had other inputs"


def buffer_text(buffer: OomBuffer) -> str:
    """Return a buffer as text: `f32[32,4096,4096]  temporary of the forward pass`."""
    what: str = buffer.kind
    if buffer.residual is not None:
        origin = buffer.origin
        named = buffer.residual if origin is None else computed_text(origin, origin.path or "")
        what += f": {named}" if buffer.kind == "argument" else f": residual {named}"
    elif buffer.stacked:
        what += " stacked by a loop of the forward pass: a residual"
    elif buffer.role:
        what += f" {_ROLES[buffer.role]}"
    if buffer.padding_nbytes:
        plain = buffer.nbytes - buffer.padding_nbytes
        times = f", {buffer.nbytes / plain:.0f}×" if plain else ""
        what += f", {format_bytes(buffer.padding_nbytes)} of it padding{times}"
    return f"{buffer.shape}  {what}" if buffer.shape else what


def way_text(way: WayOut) -> str:
    """Return what a way out is, in words."""
    return _WAYS[way.kind]
