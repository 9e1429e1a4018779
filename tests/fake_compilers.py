"""What may become of a compiler: stand-ins for `xla.compiler.compilation`, which children import.

A job's label is a file in which some of them leave their process's id.
"""

import os
import resource
import signal
import sys
import tempfile
import time
from types import MappingProxyType

from jaxresid.xla import autotuning
from jaxresid.xla.job import Compilation, Job, LoweredModule
from jaxresid.xla.places import parse_place

CHECK = "tpu_compiler.cc:12] Check failed: shape.rank() == 2 (3 vs. 2)"
UNTILED = "INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.54"
ABORTED = f"""WARNING: Logging before InitGoogle() is written to STDERR
E0000 00:00:1795295044.645853   27973 common_lib.cc:906] INVALID_ARGUMENT: no such host
F0000 00:00:1795295044.745853   27973 {CHECK}
*** Check failure stack trace: ***
    @     0x7f7c73358493       1888  FailureSignalHandler()
E1121 21:04:04.739994   27973 process_state.cc:796] RAW: Raising signal 6
"""


def job(code=b"", label="", **limits):
    return Job(LoweredModule(code, "cpu"), parse_place("cpu"), label=str(label), **limits)


def measures(job):
    """Works: the size of the module, and what it found around it."""
    print("heard by nobody")
    os.write(1, b"nor this\n")
    seen = ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "TPU_SKIP_MDS_QUERY")
    notes = tuple(f"{name}={os.environ.get(name)}" for name in seen)
    return Compilation(stats={"temp_nbytes": len(job.module.code)}, seconds=0.5, notes=notes)


def looks_around(job):
    """Works; notes how the kernel sees it."""
    with open("/proc/self/oom_score_adj") as file:
        return Compilation(
            notes=(file.read().strip(), str(resource.getrlimit(resource.RLIMIT_CORE)[0]))
        )


def warns_and_dies(job):
    """Writes its module to the log, and aborts."""
    os.write(2, job.module.code + b"\n")
    os.abort()


def counts(job):
    """Works, and adds a line to its file."""
    with open(job.label, "a") as file:
        file.write(f"{len(job.module.code)}\n")
    return measures(job)


def chooses(job):
    """A GPU's compiler: 10 bytes with Triton's matmuls, 12 with cuBLAS's.

    One module has no matmul, one cannot be compiled with cuBLAS's, and one takes long so; one
    cannot be compiled with Triton's, and one with neither.
    """
    counts(job)
    is_cublas = (autotuning.FLAG, "false") in job.flags
    if job.module.code == b"neither" or (job.module.code == b"untiled" and not is_cublas):
        return Compilation(error=UNTILED, seconds=1.5)
    if is_cublas and job.module.code == b"slow":
        time.sleep(600)
    if is_cublas and job.module.code == b"fails":
        return Compilation(error="it crashed")
    return Compilation(
        stats={"peak_nbytes": 12 if is_cublas else 10},
        seconds=1.5,
        has_triton_matmul=not is_cublas and job.module.code != b"none",
    )


def naps(job):
    time.sleep(1.2)
    return measures(job)


def hangs(job):
    _register(job)
    time.sleep(600)


def dumps_and_hangs(job):
    folder = tempfile.mkdtemp()
    with open(os.path.join(folder, "dump.pb"), "wb") as file:
        file.write(b"x" * 1000)
    with open(job.label, "w") as file:
        file.write(folder)
    time.sleep(600)


def hangs_with_a_child(job):
    if os.fork() == 0:
        _register(job)
    time.sleep(600)


def hangs_once(job):
    """The first who comes hangs; the next ones work."""
    if not os.path.exists(job.label):
        hangs(job)
    return measures(job)


def hangs_if_big(job):
    return hangs(job) if len(job.module.code) > 1000 else measures(job)


def grows(job):
    _register(job)
    taken = []
    while len(taken) < 40:
        taken.append(b"x" * (16 << 20))
        time.sleep(0.02)
    time.sleep(600)


def aborts(job):
    sys.stderr.write(ABORTED)
    sys.stderr.flush()
    os.abort()


def crashes(job):
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves(job):
    sys.stderr.write("ERROR: Unknown command line flag 'foo'.\n")
    sys.stderr.flush()
    os._exit(3)


def exits(job):
    sys.exit("no licence")


def raises(job):
    raise ValueError("no such layout\nas {1,0}\n\nlong explanations")


def lacks_a_package(job):
    import no_such_package  # noqa: F401


def gives_what_cannot_be_sent(job):
    return Compilation(stats=MappingProxyType({}))


def gives_a_number(job):
    return 7


def _register(job):
    # Whole or not at all: whoever waits for the file reads it at once; and two may come together.
    name = f"{job.label}.{os.getpid()}"
    with open(name, "w") as file:
        file.write(str(os.getpid()))
    os.replace(name, job.label)
