"""VS Code with the extension in it, in Chromium: `python -m tests.server.vscode FOLDER` gets one.

npm's package of code-server has VS Code compiled, as a server to which browsers are the window. Of
its parts that would be compiled for this machine none is needed: without them there are no
terminals, no search for files and no log files.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

from tests.where import ROOT

PACKAGE = "code-server@4.100.3"
EXTENSION = ROOT / "editors" / "vscode" / "dist" / "jaxresid.vsix"
_PLACE = Path("node_modules") / "code-server" / "lib" / "vscode"
_TRUSTED, _UNTRUSTED = "Yes, I trust the authors", "No, I don't trust the authors"
_SETTINGS = {
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": False,
    "editor.minimap.enabled": False,
    "editor.hover.above": False,
    "files.autoSave": "off",
}


def install(folder):
    """Install VS Code from npm into a folder; raises where there is no registry."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text("{}")
    npm = ["npm", "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run([*npm, "--no-save", PACKAGE], cwd=folder, check=True)
    subprocess.run([*npm, "--omit=dev"], cwd=folder / _PLACE, check=True)


def installed():
    """Return the folder that JAXRESID_VSCODE names; None where it has no VS Code."""
    folder = Path(os.environ.get("JAXRESID_VSCODE") or ROOT / ".ci" / "envs" / "vscode")
    return folder if (folder / _PLACE / "node_modules").is_dir() else None


@contextlib.contextmanager
def served(vscode, home, programs):
    """Serve a VS Code with the extension, and return its address.

    Args:
      vscode: where it is installed.
      home: an empty folder, for its settings.
      programs: a folder that has the program `jaxresid`.
    """
    environment = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAXRESID_CACHE_DIR": str(home / "cache"),
    }
    settings = home / "server" / "data" / "User" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(_SETTINGS))
    argv = [
        *("node", "out/server-main.js", "--accept-server-license-terms"),
        *("--telemetry-level", "off", "--force-disable-user-env"),
        *("--server-data-dir", str(home / "server"), "--extensions-dir", str(home / "extensions")),
    ]
    options = {"cwd": vscode / _PLACE, "env": environment}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([*argv, "--install-extension", str(EXTENSION)], **options, **quiet, check=True)
    argv += ["--host", "127.0.0.1", "--port", "0", "--without-connection-token"]
    log = home / "log"
    with log.open("w") as out:
        server = subprocess.Popen(argv, **options, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield _address(log)
    finally:
        server.terminate()
        server.wait()


def _address(log):
    for _ in range(300):
        found = re.search(r"listening on (\d+)", log.read_text())
        if found is not None:
            return f"http://127.0.0.1:{found[1]}"
        time.sleep(0.1)
    raise RuntimeError(log.read_text())


@contextlib.contextmanager
def browser():
    """Start Chromium, for windows of VS Code."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


class Window:
    """A window of VS Code.

    Args:
      page: a page of the browser.
      address: that of the server.
    """

    def __init__(self, page, address):
        self.page = page
        self._address = address
        page.set_default_timeout(30_000)

    def open(self, file, *, trusted):
        """Open the folder of a file, and the file; say whether its authors are trusted."""
        where = self._address.removeprefix("http://")
        payload = json.dumps([["openFile", f"vscode-remote://{where}{file}"]])
        self.page.goto(
            f"{self._address}/?folder={quote(str(file.parent))}&payload={quote(payload)}"
        )
        self.page.get_by_text(_TRUSTED if trusted else _UNTRUSTED).click()
        self.page.wait_for_selector(".codelens-decoration, .squiggly-error")

    def command(self, name, *answers):
        """Run a command by its title, and answer what it asks for."""
        self._press("F1")
        self._type(name)
        first = self.page.locator(".quick-input-list .monaco-list-row").first
        first.filter(has_text=name).wait_for()
        self._press("Enter")
        for answer in answers:
            self.page.locator(".quick-input-title", has_text=answer[0]).wait_for()
            self._type(answer[1])
            self._press("Enter")

    def go_to(self, row, column):
        """Put the cursor somewhere, from 1."""
        self._press("Control+g")
        self._type(f"{row}:{column}")
        self._press("Enter")

    def code(self):
        """Return the text of the editor in view, with what is shown in and between lines."""
        text = self.page.locator(".editor-instance .overflow-guard").inner_text()
        return text.replace("\N{NO-BREAK SPACE}", " ")

    def wait_for_code(self, *texts):
        """Wait until all of these are there, and return the text."""
        for _ in range(300):
            code = self.code()
            if all(text in code for text in texts):
                return code
            self.page.wait_for_timeout(100)
        raise AssertionError(f"not there: {[t for t in texts if t not in code]} in\n{code}")

    def lens(self, text):
        """Return a lens."""
        return self.page.locator(".codelens-decoration a", has_text=text)

    def message(self, text):
        """Wait for a message, and return it."""
        found = self.page.locator(".notifications-toasts .notification-list-item", has_text=text)
        found.first.wait_for()
        return found.first

    def _press(self, key):
        self.page.keyboard.press(key)
        self.page.wait_for_timeout(300)

    def _type(self, text):
        self.page.locator(".quick-input-widget input").last.wait_for()
        self.page.keyboard.type(text)
        self.page.wait_for_timeout(700)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
