"""Dead links of a built site: files and anchors that are not there, and what a browser would fetch from elsewhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"img": "src", "script": "src", "link": "href", "source": "srcset"}  # what a browser loads by itself
NOT_LOADED = ("canonical", "next", "prev", "search", "index")  # of <link rel=...>


class Page(HTMLParser):
    """The ids, the links and the loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if given.get(FETCHED.get(tag, "")) and given.get("rel") not in NOT_LOADED:
            self.loaded.append(given[FETCHED[tag]])


def dead(site: Path) -> list[str]:
    """What is wrong, a line each: links of the site into itself that lead nowhere, and files loaded from elsewhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    found.append(f"{path.relative_to(site)}: loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file() or (
                target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].ids
            ):
                found.append(f"{path.relative_to(site)}: {link}")
    return found
