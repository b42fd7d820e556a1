"""The fixture itself: a page that does wrong must not pass."""

from pathlib import Path

import pytest

from pages import OpenPage

PAGE = "<!doctype html><meta charset=utf-8><title>Page</title><link rel=icon href=data:,><p id=said>quiet</p>"


def written(path: Path, body: str = "") -> Path:
    file = path / "page.html"
    file.write_text(PAGE + body)
    return file


def test_a_quiet_page_is_opened_in_the_window_that_was_asked_for(tmp_path: Path, open_page: OpenPage):
    page = open_page(written(tmp_path), width=390, height=700, dark=True, still=True)
    assert page.title() == "Page"
    assert page.evaluate("[innerWidth, innerHeight]") == [390, 700]
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is True
    assert page.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches") is True


def test_by_day_and_with_motion(tmp_path: Path, open_page: OpenPage):
    page = open_page(written(tmp_path), still=False)
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is False
    assert page.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches") is False


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<script>console.error('broken')</script>", "console: broken"),
        ("<script>throw new Error('thrown')</script>", "exception: thrown"),
        ("<script>Promise.reject(new Error('forgotten'))</script>", "exception: forgotten"),
        ("<img src='http://127.0.0.1:9/a.png'>", "request: http://127.0.0.1:9/a.png"),
        ("<img src=other.png>", "other.png"),  # a file beside it is not in it
    ],
)
def test_what_goes_wrong_in_a_page_is_noticed(tmp_path: Path, open_page: OpenPage, body: str, problem: str):
    open_page(written(tmp_path, body))
    open_page.close()
    found, open_page.problems = open_page.problems, []
    assert any(problem in sentence for sentence in found)


def test_what_a_page_makes_itself_is_no_request(tmp_path: Path, open_page: OpenPage):
    picture = "<img src='data:image/svg+xml,<svg xmlns=%22http://www.w3.org/2000/svg%22/>'>"
    body = f"{picture}<script>fetch(URL.createObjectURL(new Blob(['a'])))</script>"
    open_page(written(tmp_path, body))
