"""How big a page is, and how long Chromium takes until it can be used.

    python -m tests.benchmarks.page

For 100, 1,000 and 10,000 values: megabytes of the page, seconds to write it, and seconds from the
start of loading until it is drawn, the median of five, with the same of an empty page.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from jaxresid.render.page.html import page
from tests.render.page.programs import chromium, lifetimes, report

_ROUNDS = 5
_READY = "html[data-ready]"
_EMPTY = "<!doctype html><html data-ready='yes'><title>empty</title></html>"


def main() -> None:
    """Print a row for each number of values."""
    sync_api, executable = chromium()
    whole = report()
    with sync_api.sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        print("values    MB   write s   usable s   empty page s")
        for count in (100, 1000, 10_000):
            program = lifetimes(count)
            before = time.perf_counter()
            html = page(replace(whole, lifetimes=(program,)))
            writing = time.perf_counter() - before
            usable = _usable(browser, html, Path(folder))
            empty = _usable(browser, _EMPTY, Path(folder))
            size = len(html.encode()) / 1e6
            print(f"{count:>6}  {size:>4.2f}  {writing:>7.2f}  {usable:>9.2f}  {empty:>13.2f}")
        browser.close()


def _usable(browser: object, html: str, folder: Path) -> float:
    path = folder / "page.html"
    path.write_text(html)
    seconds = []
    for _ in range(_ROUNDS):
        shown = browser.new_page(viewport={"width": 1280, "height": 900})  # type: ignore[attr-defined]
        before = time.perf_counter()
        shown.goto(f"file://{path}")
        shown.wait_for_selector(_READY, state="attached")
        seconds.append(time.perf_counter() - before)
        shown.close()
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
