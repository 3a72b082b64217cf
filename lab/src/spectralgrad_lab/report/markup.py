"""HTML whose text is escaped unless it is markup already: forgetting to escape is not possible."""

from html import escape


class Markup(str):
    """HTML that may stand in a page as it is."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | int | bool | None) -> Markup:
    """An element of HTML; children that are plain text, and all attributes, are escaped.

    Args:
        tag: its name; of img, link, meta and br there is no end tag.
        children: text, or `Markup`, which is taken as it is.
        attributes: a trailing underscore is dropped and the others become hyphens; True stands without a value, False and
            None are left out.

    Returns:
        The element, as `Markup`.

    >>> element("p", "1 < 2 ", element("b", "&"), class_="note")
    '<p class="note">1 &lt; 2 <b>&amp;</b></p>'
    """
    opened = [tag]
    for name, value in attributes.items():
        if value is True:
            opened.append(_hyphens(name))
        elif value is not False and value is not None:
            opened.append(f'{_hyphens(name)}="{escape(str(value))}"')
    start = f"<{' '.join(opened)}>"
    if tag in ("img", "link", "meta", "br"):
        return Markup(start)
    return Markup(f"{start}{join(*children)}</{tag}>")


def join(*children: str, between: str = "") -> Markup:
    """The children one after the other, with text escaped.

    >>> join("a<b", element("br"))
    'a&lt;b<br>'
    """
    safe = [child if isinstance(child, Markup) else escape(child) for child in children]
    return Markup(between.join(safe))


def _hyphens(name: str) -> str:
    return name.rstrip("_").replace("_", "-")
