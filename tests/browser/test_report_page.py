"""The report in a browser. That a page asks for nothing, and that nothing is said in the console, is tested by opening it."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Page, expect

from maskrl.recipes import resolve
from maskrl.report import report
from maskrl.report.page import render
from pages import OpenPage
from written import write_run

EVIL = "</script><img src=x onerror=\"document.title='harmed'\">'{{7*7}}"
TASKS = ("walker-walk", "cheetah-run", "finger-spin")


@pytest.fixture(scope="module")
def runs_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods on three tasks, three seeds each; one run that failed; one method from a CSV, by an evil name."""
    here = tmp_path_factory.mktemp("report")
    for place, task in enumerate(TASKS):
        for method, gain in (("mlr", 100), ("baseline", 0)):
            for seed in (1, 2, 3):
                recipe = resolve(f"dmcontrol/{task}", [f"seed={seed}"], profile="paper", method=method)  # type: ignore[arg-type]
                end = 300 + 100 * place + gain + 10 * seed
                parts = {"kind": "timing", "frames": 50_000, "parts": {"act": 3.0, "learn": 7.0}}
                failed = (task, method, seed) == ("cheetah-run", "mlr", 3)
                curve = {0: 10, 50_000: end / 2} | ({} if failed else {100_000: end})
                status = "failed" if failed else "done"
                write_run(here / "runs" / task / method / str(seed), recipe, curve, status=status, events=[parts])
    quoted = EVIL.replace('"', '""')
    (here / "evil.csv").write_text(
        "method,task,seed,frames,score\n"
        + "".join(
            f'"{quoted}",walker-walk,{seed},{at},{at / 200 + seed}\n' for seed in (1, 2) for at in (50_000, 100_000)
        )
    )
    file = here / "report.html"
    file.write_text(render(report([here / "runs", here / "evil.csv"])), encoding="utf-8")
    return file


def fits(page: Page) -> bool:
    """Nothing sticks out at the side: only tables scroll, within themselves."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_page_of_runs_opens_everywhere(open_page: OpenPage, runs_page: Path, width: int, dark: bool) -> None:
    page = open_page(runs_page, width=width, dark=dark)
    drawn = page.locator("[data-chart]")
    for index in range(drawn.count()):
        expect(drawn.nth(index).locator("svg").first).to_be_visible()
    assert fits(page)
    red, green, blue = map(
        int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]
    )
    assert (max(red, green, blue) < 60) is dark


def names(page: Page, table: str) -> list[str]:
    """The first column of the table whose key ends so."""
    return page.locator(f"figure[id$={table}] tbody th").all_inner_texts()


def test_a_heading_sorts_its_table_by_click_and_by_key(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    heading = page.locator("figure[id$=-mlr-baseline] thead th").filter(has_text="runs")
    by_runs = ["cheetah-run", "finger-spin", "walker-walk"]  # of cheetah-run there are two, of the others three
    expect(heading).to_have_attribute("aria-sort", "none")
    heading.get_by_role("button").click()
    assert names(page, "-mlr-baseline")[-1] == by_runs[0]  # of numbers the largest first
    expect(heading).to_have_attribute("aria-sort", "descending")
    heading.get_by_role("button").press("Enter")
    assert names(page, "-mlr-baseline")[0] == by_runs[0]
    expect(heading).to_have_attribute("aria-sort", "ascending")
    page.locator("figure[id$=-mlr-baseline] thead th button").first.click()
    assert names(page, "-mlr-baseline") == sorted(by_runs)
    expect(heading).to_have_attribute("aria-sort", "none")
    last = page.locator("figure[id$=-mlr-baseline] tfoot th").first
    assert last.inner_text() == "dmcontrol: mean of 3 tasks"  # stays last


def test_numbers_are_sorted_as_numbers_and_not_by_their_digits(open_page: OpenPage, tmp_path: Path) -> None:
    scores = {"a": 5, "b": 400, "c": 30}
    rows = [f"mlr,toy/{task},1,3000,{score}" for task, score in scores.items()]
    (tmp_path / "scores.csv").write_text("\n".join(["method,task,seed,frames,score", *rows]))
    (tmp_path / "report.html").write_text(render(report([tmp_path / "scores.csv"])), encoding="utf-8")
    page = open_page(tmp_path / "report.html")
    page.locator("figure[id$=-scores] thead th").filter(has_text="mlr").get_by_role("button").click()
    assert names(page, "-scores") == ["b", "c", "a"]


def test_what_is_missing_stays_last(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    button = page.locator("figure[id$=-scores] thead th").filter(has_text=EVIL).get_by_role("button")
    for _ in range(2):
        button.click()
        assert names(page, "-scores")[0] == "walker-walk"  # the only task that this method has


def test_a_chart_is_saved_as_a_drawing_that_needs_no_page(open_page: OpenPage, runs_page: Path) -> None:
    drawings = []
    for dark in (False, True):
        page = open_page(runs_page, dark=dark)
        figure = page.locator("figure:has(.kind-curves)").first
        figure.get_by_role("button", name="baseline", exact=True).click()
        with page.expect_download() as download:
            figure.get_by_role("button", name="Save as SVG: Learning curves").click()
        assert download.value.suggested_filename.endswith("-curves-chart.svg")
        drawings.append(download.value.path().read_text(encoding="utf-8"))
    light, dark_scheme = drawings
    assert light == dark_scheme  # the colours are for white paper
    assert "class=" not in light
    assert "var(" not in light
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(light)
    assert len(root.findall(f"{svg}svg")) == len(TASKS)  # a panel for each
    texts = {text.text for text in root.iter(f"{svg}text")}
    assert {*TASKS, "mlr", EVIL, "paper: MLR"} <= texts
    assert not {"baseline", "paper: Baseline"} & texts  # which was switched off


def test_every_chart_can_be_saved(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    buttons = page.get_by_role("button", name="Save as SVG")
    assert buttons.count() == page.locator("[data-chart]").count()
    for index in range(buttons.count()):
        with page.expect_download() as download:
            buttons.nth(index).click()
        ElementTree.parse(download.value.path())


def test_a_method_can_be_switched_off_and_on(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    chart = page.locator("figure:has(.kind-curves)").first
    switch, lines = chart.get_by_role("button", name="baseline", exact=True), chart.locator('g[data-name="baseline"]')
    assert lines.count() == len(TASKS)
    assert lines.first.locator(".seed").count() == 3  # every seed
    assert lines.first.locator(".mean").count() == 1
    expect(lines.first).to_be_visible()
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    for index in range(len(TASKS)):
        expect(lines.nth(index)).to_be_hidden()
    expect(chart.locator('g[data-name="paper: Baseline"]').first).to_be_hidden()
    expect(chart.locator('g[data-name="mlr"]').first).to_be_visible()
    profile = page.locator("figure:has(.kind-profile)").first
    expect(profile.get_by_role("button", name="baseline", exact=True)).to_have_attribute("aria-pressed", "false")
    switch.click()
    expect(lines.first).to_be_visible()


def test_pointing_at_a_curve_shows_its_values(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    panel = page.locator(".kind-curves .panel").filter(has_text="walker-walk").locator("svg")
    panel.scroll_into_view_if_needed()
    box, tip = panel.bounding_box(), page.locator("#tip")
    assert box is not None
    expect(tip).to_be_hidden()
    page.mouse.move(box["x"] + box["width"] - 14, box["y"] + box["height"] / 2)
    expect(tip).to_contain_text("100,000 frames")
    expect(tip).to_contain_text("mlr 420 of 410, 420, 430")  # 300 + 100 + 10 · seed
    expect(tip).to_contain_text("paper: MLR: 643 ± 114")
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()
    panel.focus()
    page.keyboard.press("ArrowLeft")
    expect(tip).to_contain_text("50,000 frames")


def test_a_mean_tells_its_seeds_where_their_points_are_not_drawn(open_page: OpenPage, tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    rows = [f"mlr,toy/reach,{seed},{at},{seed}" for seed in (1, 2) for at in (1500, 3000)]
    file.write_text("\n".join(["method,task,seed,frames,score", *rows]))
    found = report([file])
    (chart,) = [chart for chart in found.charts if chart.kind == "curves"]
    seeds = chart.data["panels"][0]["methods"][0]["seeds"]
    seeds[1]["points"].pop()  # as in a long curve
    (tmp_path / "report.html").write_text(render(found), encoding="utf-8")
    page = open_page(tmp_path / "report.html")
    panel = page.locator(".kind-curves .panel svg")
    panel.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tip")).to_contain_text("mlr 1.500 of 2 seeds")


def test_a_mean_of_fewer_seeds_is_dashed(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    for task, parts in (("cheetah-run", 1), ("walker-walk", 0)):
        panel = page.locator(".kind-curves .panel").filter(has_text=task)
        assert panel.locator('g[data-name="mlr"] .mean.part').count() == parts


def test_a_table_is_copied_in_three_formats(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    figure = page.locator("figure.table").filter(has=page.locator("table:has-text('walker-walk')")).first
    for name, beginning in (("Markdown", "**Scores, "), ("LaTeX", r"\begin{table}"), ("CSV", "task,mlr mean,mlr std")):
        figure.locator(".copy summary").click()
        figure.get_by_role("button", name=f"as {name}").click()
        expect(figure.locator(".copy summary")).to_have_text("copied")
        expect(figure.locator(".copy summary")).to_be_focused()
        expect(page.locator("#spoken")).to_have_text(f"Copied as {name}.")
        assert page.evaluate("navigator.clipboard.readText()").startswith(beginning)


def test_an_evil_name_stays_text(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    assert page.title() != "harmed"
    assert page.locator("img").count() == 0
    expect(page.locator(".legend button").filter(has_text=EVIL).first).to_be_visible()
    expect(page.locator("#table-what-was-run tbody th").filter(has_text=EVIL)).to_be_visible()


def test_the_scheme_can_be_changed(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Change between light and dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.get_by_role("button", name="Change between light and dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == before


def test_links_of_the_contents_lead_somewhere(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    missing = page.evaluate(
        "[...document.querySelectorAll('.toc a')].filter(a => !document.getElementById(a.hash.slice(1))).length"
    )
    assert missing == 0
    assert page.evaluate(
        "new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size === document.querySelectorAll('[id]').length"
    )


def test_a_failed_run_is_in_the_list_of_gaps(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    gap = page.locator("#gaps li").filter(has_text="failed").first
    expect(gap).to_contain_text("mlr on dmcontrol/cheetah-run, seed 3")
    expect(gap).to_contain_text("at 50,000 of 100,000 frames")


# ── Phones, headings and paper ────────────────────────────────────────────────────────────────────────────────────────


def test_a_wide_table_on_a_phone_says_that_it_scrolls_until_its_end(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page, width=390, touch=True)
    figure = page.locator("figure[id$=-scores]").first
    frame, hint = figure.locator(".frame"), figure.locator(".hint")
    expect(hint).to_be_visible()
    expect(hint).to_have_text("Scroll sideways for more columns →")
    assert "more" in (frame.get_attribute("class") or "")
    figure.locator(".scroll").evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    expect(frame).not_to_have_class(re.compile("more"))
    name = figure.locator("tbody th").first.bounding_box()
    assert name is not None
    assert 0 <= name["x"] < 30  # the task stays in sight
    assert name["width"] < 0.45 * 390


def test_a_table_that_fits_has_no_hint(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page)
    expect(page.locator("#table-versions .hint")).to_be_hidden()
    assert "more" not in (page.locator("#table-versions .frame").get_attribute("class") or "")


def test_no_heading_is_repeated(open_page: OpenPage, runs_page: Path) -> None:
    """A caption neither repeats the heading above it nor the runs that the group's heading names; outlines have no gap."""
    page = open_page(runs_page)
    headings = page.locator("h2:not(.group), h3:not(.panel h3)")
    for section in page.locator("main > section").all():
        title = section.locator("h2, h3").first.inner_text()
        shown = section.locator("figcaption span:not(.quiet-title)").all_inner_texts()
        assert title not in shown
        assert len(shown) == len({*shown})
        assert not [caption for caption in shown if "·" in caption]
    groups = page.locator("h2.group").all_inner_texts()
    assert groups
    assert len(groups) == len({*groups})
    assert headings.first.inner_text() == "Summary"


def test_the_summary_comes_first_and_leads_with_the_findings(open_page: OpenPage, runs_page: Path) -> None:
    page = open_page(runs_page, width=390)
    assert page.locator("main > section").first.get_attribute("id") == "summary"
    assert re.match(r"(Of \d+ comparisons?, |Nothing is compared)", page.inner_text("#summary .short"))
    for claim in page.locator("#summary .claims li:has(strong)").all():
        assert claim.inner_text().startswith(claim.locator("strong").inner_text())


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_readable_on_paper(open_page: OpenPage, runs_page: Path, dark: bool) -> None:
    page = open_page(runs_page, width=1280, dark=dark)
    if dark:
        page.click("#scheme")
        page.click("#scheme")  # dark by choice, too
    expect(page.locator("[data-chart] svg").first).to_be_visible()
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 688, "height": 1000})  # A4 between its margins
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    ink, text = page.evaluate(
        "[document.body, document.querySelector('svg text')].map(e => getComputedStyle(e))"
        ".map((style, index) => index ? style.fill : style.color)"
    )
    for colour in (ink, text):
        assert max(map(int, re.findall(r"\d+", colour)[:3])) < 140  # dark on white
    assert page.locator("main details:not(.copy):not([open])").count() == 0
    for hidden in (".toc", ".save", ".copy", ".hint", ".scheme"):
        assert page.locator(f"{hidden}:visible").count() == 0
    wide = page.evaluate(
        "[...document.querySelectorAll('main table, main svg')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.closest('figure').id)"
    )
    assert wide == []
    sizes = page.evaluate(
        "[...document.querySelectorAll('main svg')].map(e => [e, e.getBoundingClientRect().width / e.viewBox.baseVal.width])"
        ".flatMap(([e, scale]) => [...e.querySelectorAll('text')].map(t => scale * parseFloat(getComputedStyle(t).fontSize)))"
    )
    assert min(sizes) > 8  # CSS pixels: 6 points
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.pdf(format="A4")[:5] == b"%PDF-"
