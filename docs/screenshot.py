"""Make the picture of a page in docs/pictures: `python docs/screenshot.py`, with Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

_ROOT = Path(__file__).parent.parent
# A training step of a Flax model; flax and optax have to be installed.
_TARGET = ("fixtures/tutorials/linen_step.py:train_step", "--on", "gpu:h100")


def main() -> None:
    """Write the page of a report, and its picture."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        command = [sys.executable, "-m", "jaxresid", "report", *_TARGET, "-o", str(page), "-q"]
        subprocess.run(command, cwd=_ROOT, check=True)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        shown = browser.new_page(viewport={"width": 1180, "height": 820})
        shown.goto(f"file://{page}")
        shown.wait_for_selector("html[data-ready]", state="attached")
        shown.screenshot(path=str(_ROOT / "docs/pictures/page.png"))
        browser.close()


if __name__ == "__main__":
    main()
