"""MathML as a printer would set it: what latex2mathml leaves to the browser, which knows less than TeX.

Bars close to what they hold, no space around a slash nor after the minus of a sign, one beside the name of a function, a hat
that is an accent, a prime that is raised once, the sign of a root on the line of what is under it.
"""

from xml.etree.ElementTree import Element

ROWS = ("math", "mrow", "mtd", "mstyle")  # elements in a line; those of the others have their places
TALL = ("mfrac", "munder", "munderover", "mtable", "msqrt")
HIGH = (*TALL, "msup", "msubsup", "mover")  # what a root of usual height does not cover
OPENING = set("([{=<>≤≥≈,")
HAT = {"^": "ˆ"}
THIN = "0.167em"
ROOTED = {"height": "0.75em", "depth": "0.2em"}  # the smallest sign of a root fits this, whatever letters it holds


def tidied(formula: Element) -> Element:
    """The same formula; it is changed in place."""
    flat = not any(part.tag in TALL for part in formula.iter())
    for part in formula.iter():
        if part.tag == "mover" and part[1].text in HAT:
            part[1].text = HAT[part[1].text]
        if part.tag == "msup" and part[0].tag == "mi" and part[1].text in ("′", "″"):
            part.tag, part[1].tag = "mrow", "mo"
            part[1].attrib.update(lspace="0", rspace="0")
        if part.tag == "mo" and len(part.text or "") > 1:
            part.tag = "mi"  # max, min: names as log is one
        if flat and part.get("fence") and part.text in ("|", "‖"):
            part.set("stretchy", "false")  # a browser makes it higher for an index, by pieces that show
    for row in list(formula.iter()):
        if row.tag in ROWS:
            set_in_line(row)
    for root in formula.iter("msqrt"):
        if not any(part.tag in HIGH for part in root.iter() if part is not root):
            cover(root)
    return formula


def cover(root: Element) -> None:
    """Give what stands under a root one height. A browser hangs the sign from the bar, below the line where that is low, and
    takes the next larger sign for an index."""
    held = Element("mpadded", ROOTED)
    held.extend(root)
    for part in list(root):
        root.remove(part)
    root.append(held)


def set_in_line(row: Element) -> None:
    before = None
    for part in list(row):
        if part.tag == "mo" and part.text == "/":
            part.attrib.update(lspace="0", rspace="0")
        if part.tag == "mo" and part.text == "−" and before is not None and before.tag == "mo" and before.text in OPENING:
            part.set("form", "prefix")
        if before is not None and is_apart(before, part):
            row.insert(list(row).index(part), Element("mspace", width=THIN))
        before = part


def is_apart(left: Element, right: Element) -> bool:
    """Whether a thin space stands between these neighbours: one is the name of a function, the other no sign."""
    if is_name(left):
        return right.tag not in ("mo", "mspace") and not is_fenced(right)
    return is_name(right) and (left.tag not in ("mo", "mspace") or left.text == ")")


def is_name(part: Element) -> bool:
    """log, diag, log1p: upright letters, maybe with digits, with an index or a power."""
    if part.tag in ("msub", "msup"):
        return is_name(part[0])
    if part.tag == "mrow":
        return len(part) > 1 and all(sign.get("mathvariant") == "normal" or sign.tag == "mn" for sign in part)
    return part.tag == "mi" and len(part.text or "") > 1


def is_fenced(part: Element) -> bool:
    return part.tag in ("mrow", "msub", "msup") and len(part) > 0 and (part[0].get("fence") == "true" or is_fenced(part[0]))
