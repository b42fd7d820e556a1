"""The documentation site in a real browser, served on loopback: on a phone, in the dark, search; nothing from elsewhere."""

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

pytest.importorskip("mkdocs", reason="the site needs Python 3.11 and the extra docs")
ROOT = Path(__file__).parents[2]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Site:
    """Pages of the built site. `problems` are errors in the console, and requests that left the machine or found nothing."""

    def __init__(self, folder: Path, address: str, browser: Browser) -> None:
        self.folder, self.address, self.browser, self.problems = folder, address, browser, list[str]()
        self.names = sorted(path.name for path in folder.glob("*.html") if path.name != "404.html")

    def window(self, *, width: int = 1280, dark: bool = False) -> Page:
        scheme = "dark" if dark else "light"
        page = self.browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme).new_page()
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: self._watch(asked.url))
        return page

    def _watch(self, url: str) -> None:
        if urlsplit(url).scheme not in ("data", "blob") and not url.startswith(self.address):
            self.problems.append(f"request: {url}")

    def open(self, name: str, **window: object) -> Page:
        page = self.window(**window)  # type: ignore[arg-type]
        page.goto(f"{self.address}{name}")
        return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Site(folder, f"http://127.0.0.1:{server.server_port}/", browser)
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _nothing_goes_wrong(site: Site) -> Iterator[None]:
    yield
    for context in site.browser.contexts:
        context.close()
    found, site.problems = site.problems, []
    assert found == []


def test_no_page_scrolls_sideways_on_a_phone(site: Site):
    page, wide = site.window(width=390), []
    for name in site.names:
        page.goto(f"{site.address}{name}")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
    assert len(site.names) > 50
    assert wide == []


def test_a_wide_table_scrolls_by_itself_on_a_phone(site: Site):
    page = site.open("fidelity-masks.html", width=390)
    page.wait_for_selector(".md-typeset__scrollwrap")
    table = page.locator(".md-typeset__scrollwrap").first
    assert table.evaluate("one => one.scrollWidth > one.clientWidth")
    assert "gradient" in table.evaluate("one => getComputedStyle(one).backgroundImage")  # the hint that there is more


def test_code_in_a_table_is_not_broken_every_few_letters_on_a_phone(site: Site):
    page = site.open("own-environment.html", width=390)
    widths = page.locator("article td:nth-child(3):has(code)").evaluate_all("all => all.map(one => one.clientWidth)")
    assert widths
    assert min(widths) >= 200


BROKEN = """() => [...document.querySelectorAll('article td:first-child code')].flatMap(code => {
  const found = [], texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (texts.nextNode())
    for (const word of texts.currentNode.textContent.matchAll(/\\S+/g)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) found.push(word[0]);
    }
  return found;
})"""  # words that begin on one line and end on another


def test_no_word_of_code_in_the_first_column_of_a_table_is_broken_on_a_phone(site: Site):
    page, broken = site.browser.new_context(viewport={"width": 390, "height": 844}).new_page(), {}
    names = [name for name in site.names if "<td><code>" in (site.folder / name).read_text()]
    for name in names:
        page.goto((site.folder / name).as_uri())  # as a file: without the search, many times as fast
        if found := page.evaluate(BROKEN):
            broken[name] = found
    assert len(names) > 10
    assert broken == {}


def test_a_phone_shows_the_beginning_of_what_to_do_about_an_error(site: Site):
    """Messages wrap between words: on one line they would push the answers out of sight."""
    page = site.open("errors.html", width=390)
    starts = page.locator("article td:nth-child(2)").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().x)"
    )
    assert starts
    assert max(starts) < 0.6 * 390


def brightness(page: Page, what: str) -> float:
    """0 to 255, of the colour that a property of the body has."""
    colour = page.evaluate(f"getComputedStyle(document.body).{what}")
    return sum(float(number) for number in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3


def test_it_is_dark_for_readers_who_ask_for_that(site: Site):
    light, dark = site.open("index.html"), site.open("index.html", dark=True)
    assert brightness(light, "backgroundColor") > 200
    assert brightness(dark, "backgroundColor") < 60
    assert brightness(dark, "color") > brightness(dark, "backgroundColor") + 60


def test_search_finds_a_page_by_a_word_in_it(site: Site):
    page = site.open("index.html")
    page.locator("[data-md-component=search-query]").click()
    page.keyboard.type("prefetch")
    expect(page.locator(".md-search-result__item").first).to_be_visible(timeout=30_000)  # the index is read first
    found = page.locator(".md-search-result__link").all()
    assert {"performance-gpu.html", "reference-fields.html"} & {
        urlsplit(link.get_attribute("href") or "").path.rpartition("/")[2] for link in found
    }


def test_pictures_are_there(site: Site):
    for name in ("mlr.html", "pictures.html"):
        page = site.open(name)
        images = page.locator("article img")
        assert images.count() >= 1
        assert images.evaluate_all("all => all.every(one => one.complete && one.naturalWidth > 0)")


def test_a_newcomer_gets_from_the_start_to_the_own_environment_in_one_click(site: Site):
    page = site.open("index.html")
    page.locator("article").get_by_role("link", name="Train on your own environment").click()
    expect(page.locator("h1")).to_contain_text("Train on your own environment")
