"""Read the dump that `XLA_FLAGS=--xla_dump_to=FOLDER` makes of each program that is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxresid.results import OomParts
from jaxresid.xla import places
from jaxresid.xla.gpus import GPUS
from jaxresid.xla.hlo import module as hlo
from jaxresid.xla.hlo.assignment import Assignment, assignment_of_proto, assignment_of_text
from jaxresid.xla.hlo.buffers import LiveBuffers, device_allocations, live_buffers
from jaxresid.xla.hlo.text import module_of_text
from jaxresid.xla.hlo.wire import Message
from jaxresid.xla.logs.failure import Failure

_ASSIGNMENT = "-buffer-assignment.txt"
_LARGEST_FILE = 512 * 2**20
_MOST_TRIED = 20
_UNREADABLE = (ValueError, IndexError, KeyError, StopIteration, RecursionError)
# What libtpu 0.0.52 writes of a program's target for each generation.
_TPU = re.compile(r'version: TPU_VERSION_(\w+)\s+(?:variant: "(\w*)")?')
_GENERATIONS = {
    **{("JELLYFISH", ""): "v2", ("DRAGONFISH", ""): "v3", ("PUFFERFISH", ""): "v4"},
    **{("VIPERFISH", "lite"): "v5e", ("VIPERFISH", ""): "v5p", ("GHOSTLITE", ""): "v6e"},
    ("6acc60406", ""): "tpu7x",
}
_GPU = re.compile(r'device_description_str: "([^"]+)"')


@dataclass(frozen=True, slots=True)
class _Program:
    """One compiled program of a dump.

    Attributes:
      stem: the path of its files, without what tells them apart.
      module: the optimized module.
      assignment: its buffer assignment.
      platform: `cpu`, `cuda`, `tpu`.
    """

    stem: str
    module: hlo.HloModule
    assignment: Assignment
    platform: str


def read_dump(folder: Path) -> tuple[Failure | None, int]:
    """Return what a dump says of the program that needs most, and how many programs there are.

    The first is None where there is no program whose buffers can be read.

    Raises:
      OSError: The folder cannot be read.
    """
    best: Failure | None = None
    files = sorted(_files(folder), key=lambda file: -file.stat().st_size)
    for file in files[:_MOST_TRIED]:
        try:
            found = _failure(_program(file), folder)
        except _UNREADABLE:
            continue
        if best is None or (found.required_nbytes or 0) > (best.required_nbytes or 0):
            best = found
    return best, len(files)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the file of each program: its proto, or the text of its buffer assignment."""
    protos = {path.name.removesuffix(".hlo.pb"): path for path in folder.glob("*.hlo.pb")}
    for path in folder.glob(f"*after_optimizations{_ASSIGNMENT}"):
        stem = path.name.removesuffix(_ASSIGNMENT)
        if stem not in protos and _is_readable(path):
            yield path
    for stem, path in protos.items():
        if stem.endswith("after_optimizations") and _is_readable(path):
            yield path


def _is_readable(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _LARGEST_FILE


def _program(file: Path) -> _Program:
    """Read a program.

    Raises:
      ValueError: Its files are not what they are named.
    """
    if file.name.endswith(".hlo.pb"):
        stem = file.name.removesuffix(".hlo.pb")
        message = Message.read(file.read_bytes())
        module, assignment = hlo.module(message.data(1)), assignment_of_proto(message.data(3))
        return _Program(stem, module, assignment, _platform(file, stem))
    stem = file.name.removesuffix(_ASSIGNMENT)
    beside = file.with_name(f"{stem}.txt")
    if not _is_readable(beside):
        raise ValueError("no module")
    module = module_of_text(_text(beside))
    return _Program(stem, module, assignment_of_text(_text(file), module), _platform(file, stem))


def _platform(file: Path, stem: str) -> str:
    if "gpu_after" in stem:
        return "cuda"
    if "cpu_after" in stem:
        return "cpu"
    base = stem.removesuffix(".after_optimizations")
    return "tpu" if file.with_name(f"{base}.tpu_comp_env.txt").exists() else "cuda"


def _failure(program: _Program, folder: Path) -> Failure:
    """Return what a program needs, as a lack of memory."""
    live: LiveBuffers = live_buffers(program.module, program.assignment, program.platform)
    base = program.stem.removesuffix(".after_optimizations")
    ran_out = (folder / f"{base}.oom_intermediate_module.txt").exists()
    place = _place(program, folder, base)
    capacity = None if not place else places.parse_place(place).memory_nbytes
    name = re.sub(r"^module_\d+\.", "", base).partition(".")[0]
    return Failure(
        said="",
        platform={"cuda": "gpu", "tpu": "tpu"}.get(program.platform, "cpu"),  # type: ignore[arg-type]
        phase="compile" if ran_out else "",
        program=name,
        device=place,
        required_nbytes=live.allocated_nbytes,
        capacity_nbytes=capacity,
        parts=_parts(program),
        buffers=live.buffers,
    )


def _parts(program: _Program) -> OomParts:
    nbytes = dict.fromkeys(("argument", "output", "temporary", "constant"), 0)
    for each in device_allocations(program.assignment, program.platform):
        nbytes[each.kind] += each.nbytes
    return OomParts(
        argument_nbytes=nbytes["argument"],
        output_nbytes=nbytes["output"],
        temp_nbytes=nbytes["temporary"],
        constant_nbytes=nbytes["constant"],
    )


def _place(program: _Program, folder: Path, base: str) -> str:
    """Return the place that a program was compiled for; '' where the dump does not say."""
    if program.platform == "tpu":
        found = _TPU.search(_text(folder / f"{base}.target_arguments.txt"))
        key = (found[1], found[2] or "") if found else ("", "")
        generation = _GENERATIONS.get(key)
        return f"tpu:{generation}" if generation else ""
    if program.platform == "cuda":
        stem = base.rpartition(".sm_")[0]
        named = _GPU.search(_text(folder / f"{stem}.gpu_target_config.pbtxt"))
        names = (gpu.name for gpu in GPUS if named and f'"{named[1]}"' in gpu.target_config)
        return next((f"gpu:{name}" for name in names), "")
    return ""


def _text(file: Path) -> str:
    """Return the text of a file; '' where there is none."""
    return file.read_text(encoding="utf-8", errors="replace") if _is_readable(file) else ""
