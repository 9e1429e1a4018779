"""The number of checkpoints of a solver's loop, written where the loop is called."""

import re

import pytest

from jaxresid.advice.plan.source.file_edits import FileRewrites, UnwritableError
from jaxresid.advice.plan.source.solver_checkpoints import write_checkpoints
from jaxresid.inspector.jaxpr.frames import Frames
from jaxresid.results import Location, PlannedPart, PlannedSite

EQUINOX = "import equinox.internal as eqxi\n"
DIFFRAX = "import diffrax\n"
FROM_DIFFRAX = "from diffrax import diffeqsolve, RecursiveCheckpointAdjoint as Adjoint\n"


def edited(tmp_path, text):
    """The text with checkpoints=9 for the loop of its last line."""
    (tmp_path / "model.py").write_text(text)
    files = FileRewrites(Frames(cwd=str(tmp_path)))
    where = Location("model.py", text.count("\n"), None, "solve")
    part = PlannedPart(1, checkpointed=True, checkpoints=9)
    write_checkpoints(files, PlannedSite("solver", "while_loop", where, 1, 1, (part,), True))
    (file,) = files.changed()
    return file.new().decode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            EQUINOX + "x = eqxi.while_loop(c, b, x, kind='checkpointed')\n",
            EQUINOX + "x = eqxi.while_loop(c, b, x, kind='checkpointed', checkpoints=9)\n",
        ),
        (
            EQUINOX + "x = eqxi.while_loop(c, b, x, checkpoints=44, kind=kind)\n",
            EQUINOX + "x = eqxi.while_loop(c, b, x, checkpoints=9, kind=kind)\n",
        ),
        (
            "import equinox as eqx\nx = eqx.internal.scan(b, x, checkpoints=None)\n",
            "import equinox as eqx\nx = eqx.internal.scan(b, x, checkpoints=9)\n",
        ),
        (
            DIFFRAX + "s = diffrax.diffeqsolve(diffrax.ODETerm(f), y0=y)\n",
            DIFFRAX + "s = diffrax.diffeqsolve(diffrax.ODETerm(f), y0=y,"
            " adjoint=diffrax.RecursiveCheckpointAdjoint(checkpoints=9))\n",
        ),
        (
            FROM_DIFFRAX + "s = diffeqsolve(term, adjoint=Adjoint(), y0=y)\n",
            FROM_DIFFRAX + "s = diffeqsolve(term, adjoint=Adjoint(checkpoints=9), y0=y)\n",
        ),
        (
            FROM_DIFFRAX + "s = diffeqsolve(term, adjoint=Adjoint(44))\n",
            FROM_DIFFRAX + "s = diffeqsolve(term, adjoint=Adjoint(9))\n",
        ),
        (
            FROM_DIFFRAX
            + "adjoint = Adjoint(checkpoints=44)\ns = diffeqsolve(t, adjoint=adjoint)\n",
            FROM_DIFFRAX
            + "adjoint = Adjoint(checkpoints=9)\ns = diffeqsolve(t, adjoint=adjoint)\n",
        ),
    ],
)
def test_what_is_written(tmp_path, before, after):
    assert edited(tmp_path, before) == after


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (EQUINOX + "x = eqxi.while_loop(c, b, x, checkpoints=cfg.kept)\n", "checkpoints=cfg.kept"),
        (EQUINOX + "x = eqxi.while_loop(c, b, x, **options)\n", "**options"),
        (DIFFRAX + "s = diffrax.diffeqsolve(t, adjoint=cfg.adjoint)\n", "adjoint=cfg.adjoint"),
        (
            DIFFRAX + "s = diffrax.diffeqsolve(t, adjoint=diffrax.DirectAdjoint())\n",
            "adjoint=diffrax.DirectAdjoint()",
        ),
        (
            FROM_DIFFRAX
            + "a = Adjoint(1) if small else Adjoint(2)\ns = diffeqsolve(t, adjoint=a)\n",
            "adjoint=a",
        ),
        (FROM_DIFFRAX + "s = diffeqsolve(t, adjoint=Adjoint(*given))\n", "Adjoint(*given)"),
    ],
)
def test_what_is_left_to_the_user(tmp_path, text, written):
    where = f"model.py:{text.count(chr(10))}: `{written}` is no number of checkpoints"
    with pytest.raises(UnwritableError, match=f"^{re.escape(where)}.*by hand: checkpoints=9$"):
        edited(tmp_path, text)


def test_a_line_without_such_a_call(tmp_path):
    with pytest.raises(UnwritableError, match="no call that is seen here runs a loop"):
        edited(tmp_path, EQUINOX + "x = solve(y)\n")
