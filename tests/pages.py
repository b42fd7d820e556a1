"""Pages that are one file, in a real browser: the fixture `open_page` of tests/browser is an `OpenPage`."""

import shutil
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")


def find_browser() -> str | None:
    """Chromium or Chrome, wherever the system has it."""
    return next(filter(None, map(shutil.which, NAMES)), str(MAC) if MAC.exists() else None)


class OpenPage:
    """Opens local files. `problems` are sentences; a test that expects some looks at them and clears them."""

    def __init__(self, browser: Browser) -> None:
        self._browser, self.problems = browser, list[str]()

    def __call__(
        self,
        file: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        still: bool = True,
        touch: bool = False,
    ) -> Page:
        """The loaded page. Sizes are CSS pixels. `still`: its reader has asked for reduced motion. There is no network."""
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if still else "no-preference",
            has_touch=touch,
            offline=True,
        )
        page, url = context.new_page(), file.resolve().as_uri()
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on(
            "console",
            lambda said: self.problems.append(f"console: {said.text}") if said.type == "error" else None,
        )
        page.on("request", lambda request: self._watch(request, url))
        page.goto(url)
        return page

    def _watch(self, request: Request, url: str) -> None:
        """A page that is one file asks for itself and nothing else."""
        asked = urlsplit(request.url)
        if asked.scheme not in ("data", "blob") and asked._replace(query="", fragment="").geturl() != url:
            self.problems.append(f"request: {request.url}")

    def close(self) -> None:
        for context in self._browser.contexts:
            for page in context.pages:
                page.evaluate("new Promise(done => setTimeout(done))")  # what goes wrong last arrives before this
            context.close()
