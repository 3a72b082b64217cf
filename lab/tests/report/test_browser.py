"""The page in a real browser: it renders, is quiet, asks for nothing, and fits at 1280 and at 400 pixels, light and dark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from lab_support.browser import CHROMIUM, Browser, Tab
from lab_support.written import Written

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# What lies outside of the window and in no box that scrolls.
OUTSIDE = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll'))
    .filter(e => { const r = e.getBoundingClientRect(); return r.width && (r.right > innerWidth + 1 || r.left < -1) })
    .map(e => e.tagName + ' ' + e.textContent.slice(0, 40))"""
IMAGES = "[...document.querySelectorAll('img')].map(i => [i.complete, i.naturalWidth, i.getBoundingClientRect().width])"
SCROLLING = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
SMALL = """[...document.querySelectorAll('body *')]
    .filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()))
    .filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.tagName)"""
# The least contrast of text against the nearest background that is not transparent, and whose it is (WCAG 2, 1.4.3).
CONTRAST = """(() => {
    const rgba = s => s.match(/[\\d.]+/g).map(Number);
    const light = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
    const back = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
        if (c.length < 4 || c[3] == 1) return c } return [255, 255, 255] };
    let least = [99, ''];
    for (const e of document.querySelectorAll('body *')) {
        if (![...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())) continue;
        const [a, b] = [light(rgba(getComputedStyle(e).color)), light(back(e))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < least[0]) least = [ratio, e.outerHTML.slice(0, 80)];
    }
    return least })()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module", params=[(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")], ids=str)
def tab(request: Any, browser: Browser, written: Written) -> Tab:
    width, scheme = request.param
    tab = Tab(browser, written.page, width, scheme)
    tab.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")  # what is folded away must fit too
    assert tab.evaluate("innerWidth") == width  # else the width was not emulated
    assert tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
    return tab


def test_it_renders(tab: Tab) -> None:
    assert tab.evaluate("document.title") == "spectralgrad: the papers' results and ours"
    images = tab.evaluate(IMAGES.replace("'img'", "'.figures img'"))
    assert len(images) >= 12
    assert all(complete and natural > 300 and shown > 250 for complete, natural, shown in images)
    assert tab.evaluate("document.querySelectorAll('section').length") == 14
    assert tab.evaluate("document.body.innerText").count("<script>") >= 4  # hostile reasons are text


def test_the_gallery_stands_side_by_side(tab: Tab) -> None:
    pictures = tab.evaluate(IMAGES.replace("'img'", "'.gallery img'"))
    assert len(pictures) == 14
    assert all(complete and natural == 224 and 100 < shown <= 225 for complete, natural, shown in pictures)
    tops = tab.evaluate("[...document.querySelectorAll('.gallery img')].map(i => Math.round(i.getBoundingClientRect().top))")
    assert len(set(tops)) == 2  # two rows of seven, at every width
    filters = tab.evaluate("[...document.querySelectorAll('.gallery img')].map(i => getComputedStyle(i).filter)")
    assert set(filters) == {"none"}  # figures are turned to dark, pictures never
    assert tab.evaluate("document.querySelectorAll('.figures img').length > 0")
    clear = "[...document.querySelectorAll('.gallery img')].every(i => i.alt.includes('in one colour'))"
    assert tab.evaluate(clear)


def test_it_is_quiet_and_asks_for_nothing(tab: Tab) -> None:
    assert tab.complaints() == []
    assert {url.partition(":")[0] for url in tab.requests()} <= {"file", "data"}
    assert sum(url.startswith("file:") for url in tab.requests()) == 1


def test_the_page_never_scrolls_sideways(tab: Tab) -> None:
    assert tab.evaluate(OVERFLOW) == 0
    assert tab.evaluate(OUTSIDE) == []
    if tab.evaluate("innerWidth") == 400:
        assert tab.evaluate(SCROLLING) > 0  # wide tables do, in their own boxes


def test_tables_in_pairs_fit_at_1280(tab: Tab) -> None:
    if tab.evaluate("innerWidth") == 1280:
        assert tab.evaluate(SCROLLING) == 0


def test_text_can_be_read(tab: Tab) -> None:
    ratio, where = tab.evaluate(CONTRAST)
    assert ratio >= 4.5, where
    assert tab.evaluate(SMALL) == []


def test_dark_is_dark(browser: Browser, written: Written) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = (Tab(browser, written.page, 1280, scheme).evaluate(colour) for scheme in ("light", "dark"))
    assert light == "rgb(255, 255, 255)"
    assert sum(int(part) for part in dark.removeprefix("rgb(").removesuffix(")").split(",")) < 100


BAD = """<!doctype html><meta charset="utf-8"><title>bad</title><body style="background:#fff">
<div style="width:2000px;color:#ddd;font-size:9px">wide, pale and small</div>
<script>console.error("said"); setTimeout(() => { throw new Error("thrown") }, 0)</script><img src="missing.png">"""


def test_the_checks_see_a_bad_page(browser: Browser, tmp_path: Path) -> None:
    """The negative control of all of the above."""
    page = tmp_path / "bad.html"
    page.write_text(BAD, encoding="utf-8")
    tab = Tab(browser, page, 400)
    assert tab.evaluate("document.documentElement.scrollWidth") >= 2000
    assert tab.evaluate(OUTSIDE) != []
    assert tab.evaluate(SMALL) == ["DIV"]
    assert tab.evaluate(CONTRAST)[0] < 2
    assert [image[1] for image in tab.evaluate(IMAGES)] == [0]
    said = " ".join(tab.complaints())
    assert "said" in said
    assert "thrown" in said
    assert "ERR_FILE_NOT_FOUND" in said
    assert any("missing.png" in url for url in tab.requests())
