"""XLA's figures for a terminal: does it fit, by how much, and what is live at its peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxresid.base.text.safe_text import safe_value
from jaxresid.base.text.units import format_bytes
from jaxresid.render.report.estimates import about_text, interval_remarks
from jaxresid.render.report.heading import about, target_line
from jaxresid.render.style.words import computed_text, percent
from jaxresid.render.style.wrapping import FlowingParts, SourceLines
from jaxresid.results import (
    Collective,
    Compiled,
    CompiledBuffer,
    CompiledReport,
    CompilerWarning,
    Target,
    interval_between,
)

_TOP = 8
MAY_FIT_TEXT = "fits if the GPU takes Triton's matmuls, but not surely with cuBLAS's"
# Peaks with other matmuls that differ by no more than this share are the same to a reader.
_SAME = 0.01
_FIGURES = (
    ("temp_nbytes", "temp"),
    ("argument_nbytes", "argument"),
    ("output_nbytes", "output"),
    ("alias_nbytes", "alias"),
    ("generated_code_nbytes", "generated code"),
)
_HOST_FIGURES = (
    ("host_temp_nbytes", "temp"),
    ("host_argument_nbytes", "argument"),
    ("host_output_nbytes", "output"),
    ("host_alias_nbytes", "alias"),
)
# What each kind of warning means for a user, and what to do about it.
_ADVICE = {
    "resharding": "XLA has no direct way between these two splits, so each device gathers the whole"
    " array for a moment. Give it one split from where it is made to where it is read"
    " (jax.lax.with_sharding_constraint), or change the split one mesh axis at a time.",
    "replicated": "XLA cannot split this operation as its operand is split, so each device does all"
    " of it. Split the operand along another dimension before it.",
    "memory-limit": "XLA looked for values to compute again and found no more. Checkpoint more,"
    " take a smaller batch, or split the program over more devices.",
    "recomputed": "Otherwise the program would be above XLA's own limit. No estimate here has the"
    " time that this takes; with jax.checkpoint you choose what is computed again.",
    "host-compute": "The operands are in host memory, so the host computes this, slowly. Move them"
    " with jax.device_put before they are used.",
}
# Of a program that takes no gradient, in which a checkpoint changes nothing.
_ADVICE_WITHOUT_GRADIENT = _ADVICE | {
    "memory-limit": "XLA looked for values to compute again and found no more. Take a smaller"
    " batch, donate what is returned updated, or split the program over more devices.",
    "recomputed": "Otherwise the program would be above XLA's own limit. No estimate here has the"
    " time that this takes.",
}
_SHORT = {
    "resharding": "gathers whole arrays to split them another way",
    "replicated": "does whole operations on each device",
    "memory-limit": "stays above its own memory limit",
    "recomputed": "computes values twice to save memory",
    "host-compute": "computes on the host",
}


def verdict_text(compiled: Compiled) -> str:
    """Return whether a compiled program fits.

    An example is `fits: 12.66 GiB of 15.75 GiB, 3.09 GiB to spare`.
    """
    peak, capacity = compiled.peak_nbytes, compiled.capacity_nbytes
    if compiled.error is not None:
        return "could not be compiled"
    if peak is None:
        return "does not fit" if compiled.fits is False else "XLA reports no peak"
    if capacity is None:
        known = "the available memory is not known"
        return f"{'does not fit: ' * (compiled.fits is False)}needs {format_bytes(peak)}; {known}"
    of = f"{format_bytes(peak)} of {format_bytes(capacity)}"
    needed = compiled.needed_for(capacity)
    if compiled.may_fit and needed is None:
        return f"may fit: {of}, but cuBLAS's matmuls were not tried: {compiled.cublas_error}"
    needed = peak if needed is None else needed
    if compiled.may_fit:
        over = format_bytes(needed - capacity)
        return f"may not fit: {of}, but {over} too much{_with_cublas(needed)}"
    if compiled.fits:
        other = _with_cublas(needed) if differs(peak, needed) else ""
        return f"fits: {of}, {format_bytes(capacity - needed)} to spare{other}"
    if compiled.fits is None:
        return f"takes {of} without the backward pass, so whether it fits is not known"
    # XLA can refuse a program by a figure that it rounds to what the device has.
    return f"does not fit: needs {of}, {format_bytes(max(peak - capacity, 0))} too much"


def differs(peak: int, other: int) -> bool:
    """Return whether a peak with other matmuls is worth a word."""
    return abs(other - peak) > _SAME * peak


def _with_cublas(nbytes: int) -> str:
    return f" if the GPU takes cuBLAS's matmuls ({format_bytes(nbytes)})"


def compiled_lines(compiled: Compiled, target: Target) -> Iterator[RenderableType]:
    """Yield the lines on what XLA says of a target for one place."""
    style = {True: "bold green", False: "bold red", None: "bold"}[compiled.fits]
    if compiled.error is not None or compiled.may_fit:
        style = "bold yellow"
    yield Text.assemble((compiled.on, "bold"), "  ", (verdict_text(compiled), style))
    lines: list[RenderableType] = []
    if compiled.error is not None:
        lines.append(Text(compiled.error, style="yellow"))
    else:
        lines += [*_figures(compiled, target)]
    lines += [*_warned(compiled.warnings, target)]
    lines += [Text(f"note: {note}", style="dim") for note in compiled.notes]
    if compiled.compiler or compiled.seconds is not None:
        lines.append(Text(_how(compiled), style="dim"))
    yield Padding(Group(*lines), (0, 0, 0, 2))


def render_compiled(report: CompiledReport) -> RenderableType:
    """Return the whole text of `jaxresid compile`."""
    report = safe_value(report)
    parts: list[RenderableType] = [target_line(report.target, report.places, report.mesh)]
    for i, compiled in enumerate(report.compiled):
        parts += [Text()] * bool(i) + [*compiled_lines(compiled, report.target)]
    parts.append(Text())
    parts += [Text(f"warning: {warning}", style="yellow") for warning in report.warnings]
    parts += about(report.target, report.jax, report.places, report.mesh)
    told = remarks(report.compiled)
    told += interval_remarks(report.places) if told else ()
    parts += [Text(remark, style="dim") for remark in told]
    return Group(*parts)


def print_compiled(report: CompiledReport) -> None:
    """Print the text of `jaxresid compile` to stdout, or into the notebook's cell."""
    Console(highlight=False).print(render_compiled(report))


def remarks(compiled: Sequence[Compiled]) -> tuple[str, ...]:
    """Return remarks on what the figures are, given what XLA says for each place."""
    told = [c for c in compiled if c.error is None]
    if not told:
        return ()
    each = "each device" if any(c.devices > 1 for c in told) else "one device"
    is_estimated = any(c.estimate_nbytes is not None for c in told)
    estimate = "; the estimate is from the trace" if is_estimated else ""
    return (
        f"Compiled, not run: figures are XLA's, for {each}{estimate}.",
        "The peak is argument + output + temp - alias.",
    )


def warned_texts(programs: Sequence[tuple[str, Compiled]]) -> tuple[str, ...]:
    """Return a short text for each kind of warning, with the programs that have it.

    An example is `XLA stays above its own memory limit (none, dots)`.

    Args:
      programs: the programs, each with what a reader calls it.
    """
    named: dict[str, list[str]] = {}
    for name, compiled in programs:
        for kind in dict.fromkeys(warning.kind for warning in compiled.warnings):
            named.setdefault(kind, []).append(name)
    return tuple(
        f"XLA {words} ({', '.join(dict.fromkeys(named[kind]))})"
        for kind, words in _SHORT.items()
        if kind in named
    )


def place_lines(rows: Sequence[tuple[str, int, int]]) -> Iterator[str]:
    """Yield a line for each place: its name, its devices, and the memory of each device.

    Args:
      rows: for each place its name, the number of devices, and the bytes that a program can have of
        each.
    """
    width = max((len(text) for text, _, _ in rows), default=0)
    for text, devices, nbytes in rows:
        plural = "device" if devices == 1 else "devices"
        each = f"{format_bytes(nbytes)} each" if devices > 1 else format_bytes(nbytes)
        yield f"{text:<{width}}  {devices:>5} {plural:<7}  {each}"


def buffers_title(compiled: Compiled, target: Target) -> str:
    """Return the title of the buffers, with the share of the live bytes that was matched, if known.

    An example is `largest live at XLA's peak; 64.1% of 12.66 GiB matched to residuals, arguments
    and outputs`.
    """
    title = "largest buffers at XLA's peak"
    if compiled.live_nbytes and compiled.matched_nbytes is not None:
        share = percent(compiled.matched_nbytes, compiled.live_nbytes)
        title += f"; {share} of {format_bytes(compiled.live_nbytes)} matched to"
        title += " residuals," * target.has_gradient + " arguments and outputs"
    return title


def buffer_text(buffer: CompiledBuffer) -> str:
    """Return a buffer as text, without the count.

    An example is `bf16[32,2048]  temporary, fusion: residual exp`.
    """
    host = "host " * (buffer.memory == "host")
    made = f", {buffer.opcode}" if buffer.opcode not in ("", "parameter", buffer.kind) else ""
    what = f"{host}{buffer.kind}{made}"
    if buffer.residual is not None:
        what += f": {_matched_text(buffer)}"
    return f"{buffer.shape}  {what}" if buffer.shape else what


def _matched_text(buffer: CompiledBuffer) -> str:
    """Return what a buffer was matched to.

    It is the path of an argument, or a residual in the words of its own row.
    """
    if buffer.kind == "argument" or buffer.residual is None:
        return buffer.residual or ""
    origin = buffer.origin
    named = buffer.residual if origin is None else computed_text(origin, origin.path or "")
    return f"residual {named}"


def collective_text(collective: Collective) -> str:
    """Return a kind of collective as text: `all-gather ×64 3.20 GiB`."""
    bound = "" if collective.exact else "at least "
    times = f" ×{collective.count}" if collective.count > 1 else ""
    return f"{collective.opcode}{times} {bound}{format_bytes(collective.nbytes)}"


def _figures(compiled: Compiled, target: Target) -> Iterator[RenderableType]:
    peak = []
    if compiled.peak_nbytes is not None:
        each = f" on each of {compiled.devices} devices" if compiled.devices > 1 else ""
        peak.append(Text(f"peak {format_bytes(compiled.peak_nbytes)}{each}", style="cyan"))
        other = compiled.cublas_peak_nbytes
        if other is not None and differs(compiled.peak_nbytes, other):
            peak.append(Text(f"{format_bytes(other)} with cuBLAS's matmuls"))
    if compiled.estimate_nbytes is not None:
        around = interval_between(compiled.estimate_low_nbytes, compiled.estimate_high_nbytes)
        peak.append(Text(f"estimate {about_text(compiled.estimate_nbytes, around)}"))
    if peak:
        yield FlowingParts(peak, indent=2)
    figures = _parts(compiled, _FIGURES)
    if figures:
        yield FlowingParts(figures, indent=2)
    elif compiled.fits is False:
        yield Text("XLA reports no other figures for a program that does not fit", style="dim")
    host = _parts(compiled, _HOST_FIGURES)
    if host:
        yield FlowingParts([f"host {host[0]}", *host[1:]], indent=2)
    if compiled.collectives:
        parts = [collective_text(c) for c in compiled.collectives]
        yield FlowingParts([f"collectives {parts[0]}", *parts[1:]], indent=2)
    if compiled.buffers:
        yield Text(buffers_title(compiled, target))
        yield Padding(_buffers(compiled), (0, 0, 0, 2))
        hidden = len(compiled.buffers) - _TOP
        if hidden > 0:
            nbytes = sum(b.nbytes for b in compiled.buffers[_TOP:])
            plural = "row" if hidden == 1 else "rows"
            yield Text(f"{hidden} smaller {plural}, {format_bytes(nbytes)}", style="dim")


def _parts(compiled: Compiled, figures: Sequence[tuple[str, str]]) -> list[str]:
    found = ((word, getattr(compiled, name)) for name, word in figures)
    return [f"{word} {format_bytes(n)}" for word, n in found if n]


def _buffers(compiled: Compiled) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for buffer in compiled.buffers[:_TOP]:
        line = Text()
        if buffer.count > 1:
            line.append(f"×{buffer.count} ", style="bold magenta")
        line.append(buffer_text(buffer))
        table.add_row(
            Text(format_bytes(buffer.nbytes), style="cyan"),
            Text("" if buffer.memory == "host" else _share(buffer, compiled), style="dim"),
            Group(line, SourceLines(buffer.source)),
        )
    return table


def _warned(warnings: Sequence[CompilerWarning], target: Target) -> Iterator[RenderableType]:
    """Yield what XLA says of a program's memory, each kind with its advice."""
    advice = _ADVICE if target.has_gradient else _ADVICE_WITHOUT_GRADIENT
    for kind in dict.fromkeys(warning.kind for warning in warnings):
        found = [warning for warning in warnings if warning.kind == kind]
        yield Text(f"XLA {_SHORT[kind]}", style="yellow")
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for warning in found[:_TOP]:
            where: RenderableType = SourceLines(warning.source)
            if warning.source.location is None:
                where = Text(warning.op_name or "XLA names no line", style="dim")
            nbytes = "" if warning.nbytes is None else format_bytes(warning.nbytes)
            line = Text()
            if warning.count > 1:
                line.append(f"×{warning.count} ", style="bold magenta")
            line.append(_warning_text(warning))
            lines = [line] if warning.kind == "memory-limit" else [line, where]
            table.add_row(Text(nbytes, style="cyan"), Group(*lines))
        yield Padding(table, (0, 0, 0, 2))
        if len(found) > _TOP:
            yield Text(f"{len(found) - _TOP} smaller of these", style="dim")
        yield Text(advice[kind], style="dim")


def _warning_text(warning: CompilerWarning) -> str:
    """Return what XLA says, after the bytes: `f32[8,64,32]  cannot go from sharding ... to ...`."""
    if warning.kind == "memory-limit" and warning.limit_nbytes is not None:
        return f"is what it got down to; its limit is {format_bytes(warning.limit_nbytes)}"
    return f"{warning.shape}  {warning.said}" if warning.shape else warning.said


def _share(buffer: CompiledBuffer, compiled: Compiled) -> str:
    return percent(buffer.nbytes, compiled.live_nbytes or 0)


def _how(compiled: Compiled) -> str:
    """Return how a program was compiled.

    An example is `compiled in 1.2 s by jaxlib 0.10.2, libtpu 0.0.52, from the cache`.
    """
    verb = "tried" if compiled.error is not None else "compiled"
    text = verb
    if compiled.seconds is not None:
        text += f" in {compiled.seconds:.1f} s"
    if compiled.compiler:
        text += f" by {compiled.compiler}"
    return text + ", from the cache" * compiled.cached
