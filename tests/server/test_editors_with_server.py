"""Editors that run: the set-ups of docs/how-to/editors.md, with findings, a fix and lenses."""

import glob
import os
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("pygls", reason="needs pygls, of the extra `server`")

from tests.where import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

PAGE = ROOT / "docs" / "how-to" / "editors.md"
SOURCE = """import jax


def loss(w, x):
    return (w @ x).sum()


text = "\N{GRINNING FACE}"; step = jax.grad(jax.checkpoint(loss))
f = jax.checkpoint(loss, policy=jax.checkpoint_policies.nothing_saveable())
"""
FIXED = "f = jax.checkpoint(loss, policy=jax.checkpoint_policies.nothing_saveable)"
PREFERRED = "Remove the empty parentheses"

NEOVIM = """
local function lines() return vim.api.nvim_buf_get_lines(0, 0, -1, false) end
local function wait(f) vim.wait(20000, f, 20) end
local function say(...) io.stdout:write(table.concat({...}, " ") .. "\\n") end
vim.cmd("edit " .. os.getenv("FILE"))
wait(function() return #vim.diagnostic.get(0) > 0 end)
for _, d in ipairs(vim.diagnostic.get(0)) do
  say(d.lnum + 1, vim.diagnostic.severity[d.severity], d.user_data.lsp.code)
end
vim.api.nvim_win_set_cursor(0, { 9, 40 })
vim.ui.select = function(items, _, choose)
  for _, item in ipairs(items) do
    if item[2].isPreferred then choose(item) end
  end
end
vim.lsp.buf.code_action()
wait(function() return not lines()[9]:find("()", 1, true) end)
say(lines()[9])
wait(function() return #vim.diagnostic.get(0) == 1 end)
say(#vim.diagnostic.get(0))
local lenses = function() return vim.lsp.codelens.get(0) end
vim.cmd("doautocmd InsertLeave")
wait(function() return #lenses() > 0 end)
for _, lens in ipairs(lenses()) do say(lens.range.start.line + 1, lens.command.title) end
vim.cmd("qa!")
"""
EMACS = """
(defun wait-until (true)
  (let ((n 0))
    (while (and (not (funcall true)) (< n 200))
      (accept-process-output nil 0.1)
      (setq n (1+ n)))))
(require 'eglot)
(find-file (getenv "FILE"))
(call-interactively #'eglot)
(flymake-mode 1)
(flymake-start)
(wait-until #'flymake-diagnostics)
(dolist (each (flymake-diagnostics))
  (princ (format "%s %s\\n" (line-number-at-pos (flymake-diagnostic-beg each))
                 (flymake-diagnostic-type each))))
(goto-char (point-min))
(search-forward "nothing")
(setq last-nonmenu-event ?x)
(defun completing-read (&rest _) (getenv "TITLE"))
(eglot-code-actions (point) (line-end-position) "quickfix" t)
(princ (buffer-substring (line-beginning-position) (line-end-position)))
(set-buffer-modified-p nil)
(eglot-shutdown (eglot-current-server))
"""
PACKAGES = "/usr/share/emacs/site-lisp/elpa-src/*"
HAS_EGLOT = shutil.which("emacs") is not None and bool(glob.glob(f"{PACKAGES[:-1]}eglot-*"))


def block(language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M)
    return found


def said(tmp_path, argv, files):
    """What an editor says that finds `jaxresid` on the path, and is at home in an empty folder."""
    work, programs = tmp_path / "work", tmp_path / "bin"
    work.mkdir()
    programs.mkdir()
    table = '[tool.jaxresid.targets.train]\ntarget = "both.py:loss"\n'
    (work / "pyproject.toml").write_text(table)
    (work / "both.py").write_text(SOURCE)
    program = programs / "jaxresid"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m jaxresid "$@"\n')
    program.chmod(0o755)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "FILE": str(work / "both.py"),
        "TITLE": PREFERRED,
    }
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("nvim") is None, reason="needs Neovim")
def test_neovim(tmp_path):
    files = {"init.lua": block("lua"), "try.lua": NEOVIM}
    argv = ["nvim", "--headless", "-u", "init.lua", "-c", "filetype on", "-c", "luafile try.lua"]
    lenses = ["4 Trace train", "4 Plan train"]
    found = said(tmp_path, argv, files)
    assert found == ["8 WARN JXR101", "9 ERROR JXR202", FIXED, "1", *lenses]


@pytest.mark.skipif(not HAS_EGLOT, reason="needs Emacs with eglot")
def test_emacs(tmp_path):
    argv = ["emacs", "--batch"]
    for place in glob.glob(PACKAGES):
        argv += ["-L", place]
    argv += ["-l", "init.el", "-l", "try.el"]
    found = said(tmp_path, argv, {"init.el": block("elisp"), "try.el": EMACS})
    assert found == ["8 eglot-warning", "9 eglot-error", FIXED]
