import pytest

from jaxresid.xla.hlo.buffers import Live
from jaxresid.xla.hlo.out_of_memory import exhausted, refined
from jaxresid.xla.job import Buffer
from tests import where

DATA = where.DATA / "xla"
SAID = (DATA / "scan_exhausted.txt").read_text()
GIB, MIB = 2**30, 2**20

# The form that libtpu's messages had until 2025.
LISTED = """\
RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. \
Used 20.05G of 15.48G hbm. Exceeded hbm capacity by 4.57G.

Total hbm usage >= 20.57G:
    reserved        530.00M
    program           4.96G
    arguments        15.09G

Output size 0B; shares 0B with arguments.

Program hbm requirement 4.96G:
    HLO temp          4.96G (98.0% utilization: Unpadded (4.86G) Padded (4.96G))

  Largest program allocations in hbm:

  1. Size: 3.00G
     Operator: op_name="jit(f)/jvp()/while/body/exp" source_file="model.py" source_line=34
     Shape: bf16[12,8,64,4096,64]{3,4,2,1,0:T(8,128)(2,1)}
     Unpadded size: 1.50G
     Extra memory due to padding: 1.50G (2.0x expansion)
     XLA label: fusion.9.remat = fusion(get-tuple-element.43, iota.2), kind=kLoop
     Allocation type: HLO temp
     ==========================

  2. Size: 276.0K
     Operator: op_name="x"
     Shape: f32[69,1024]{1,0:T(8,128)}
     Unpadded size: 276.0K
     XLA label: %Arg_0.1 = f32[69,1024]{1,0:T(8,128)} parameter(0)
     Allocation type: Argument
     ==========================
"""

GPU = """\
RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    6.00MiB
              constant allocation:         0B
        maybe_live_out allocation:    6.00MiB
     preallocated temp allocation:         0B
                 total allocation:   12.00MiB
              total fragmentation:         0B (0.00%)
Peak buffers:
\tBuffer 1:
\t\tSize: 384.0KiB
\t\tEntry Parameter Subshape: f32[256,128,3]
\t\t==========================

\tBuffer 2:
\t\tSize: 6.00MiB
\t\tOperator: op_name="jit(f)/concatenate[dimension=0]" source_file="/m.py" source_line=689
\t\tXLA Label: concatenate
\t\tShape: f32[4096,128,3]
\t\t==========================
"""


def test_what_libtpu_says_today():
    found = exhausted(SAID)
    assert found.required_nbytes == round(23.88 * GIB)
    assert found.capacity_nbytes == round(15.75 * GIB)
    assert found.buffers == ()
    assert found.notes == ("XLA's message rounds the memory that the program needs, 23.88G",)


def test_what_libtpu_said_before():
    found = exhausted(LISTED)
    assert found.required_nbytes == round(20.05 * GIB)
    assert found.capacity_nbytes == round(15.48 * GIB)
    assert found.buffers == (
        Buffer(
            kind="temporary",
            nbytes=3 * GIB,
            shape="bf16[12,8,64,4096,64]",
            opcode="fusion",
            op_name="jit(f)/jvp()/while/body/exp",
            file="model.py",
            line=34,
        ),
        Buffer("argument", 276 * 1024, "f32[69,1024]", "parameter", "x"),
    )


def test_two_kinds_of_cores_add_up():
    found = exhausted(
        "RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.50G, SparseCore Hbm usage 64.25G, "
        "exceeding available bytes: 95.75G"
    )
    assert found.required_nbytes == round(98.75 * GIB)
    assert found.capacity_nbytes == round(95.75 * GIB)


def test_what_a_gpu_says():
    found = exhausted(GPU)
    assert found.required_nbytes == 12 * MIB
    assert found.capacity_nbytes is None
    first, second = found.buffers
    assert (first.nbytes, first.shape, first.line) == (6 * MIB, "f32[4096,128,3]", 689)
    assert (first.opcode, first.file) == ("concatenate", "/m.py")
    assert (second.kind, second.nbytes) == ("argument", 384 * 1024)


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: Out of memory allocating 4398046511104 bytes.",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4398046511104 bytes.",
    ],
)
def test_an_allocators_own_message_does_not_say_what_the_program_needs(message):
    assert exhausted(message).required_nbytes is None


@pytest.mark.parametrize(
    "message",
    [
        "",
        "INVALID_ARGUMENT: no such flag",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for "
        "%kernel.18 = bf16[2048,4096]{1,0:T(8,128)(2,1)} custom-call()",
    ],
)
def test_other_messages_are_about_something_else(message):
    assert exhausted(message) is None


def test_the_buffer_assignment_is_exact():
    live = Live((Buffer("temporary", 7),), 7, round(23.884 * GIB))
    found = refined(exhausted(SAID), live)
    assert (found.required_nbytes, found.buffers) == (live.allocated_nbytes, live.buffers)
    assert found.notes == ()


@pytest.mark.parametrize("live", [Live(), Live((), 7, 9 * GIB)])
def test_an_assignment_of_something_else_is_not_taken(live):
    assert refined(exhausted(SAID), live) == exhausted(SAID)
