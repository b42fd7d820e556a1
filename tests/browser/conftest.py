"""A real browser: Chromium, headless, driven by playwright.

def test_the_title_is_the_runs(open_page: OpenPage, tmp_path: Path):
    page = open_page(tmp_path / "report.html", width=390, dark=True)  # a phone at night
    assert page.title() == "..."

Whatever goes wrong in a page fails the test that opened it, at its end: an error in the console, an exception, a request for
anything that is not in the file.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from pages import OpenPage, find_browser

HERE = Path(__file__).parent
WANTED = "no Chromium or Chrome was found; on Debian and Ubuntu: sudo apt-get install --no-install-recommends chromium"


@pytest.hookimpl(tryfirst=True)  # before -m takes its choice
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


# Not for the whole session: while it is open, an event loop runs in this thread, and other tests could not have their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = find_browser()
    if found is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(WANTED)
    with sync_playwright() as playwright:
        # Chromium does not put root into its sandbox.
        browser = playwright.chromium.launch(executable_path=found, chromium_sandbox=os.geteuid() != 0)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    opener = OpenPage(browser)
    yield opener
    opener.close()
    assert opener.problems == []
