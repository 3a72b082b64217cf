"""What the lines of a record must be: a line that parses may still be damaged, and then its record is not used."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Line = dict[str, Any]  # of a record; "kind" says which


class Parts(NamedTuple):
    """The lines between start and end: their kind, the field that counts them, and others that they, stop and end have."""

    kind: str
    number: str
    others: tuple[str, ...] = ()


def _is_whole(x: Any) -> bool:
    return type(x) is int and x >= 0


def _is_number(x: Any) -> bool:
    return type(x) in (int, float)


def _is_number_or_none(x: Any) -> bool:
    return x is None or _is_number(x)


def _is_percent(x: Any) -> bool:
    return _is_number(x) and not (x < 0 or x > 100)  # NaN may be one


def _is_percent_or_none(x: Any) -> bool:
    return x is None or _is_percent(x)


def _is_text(x: Any) -> bool:
    return isinstance(x, str)


def _is_facts(x: Any) -> bool:
    """A dictionary of names to texts, numbers or nothing."""
    return isinstance(x, dict) and all(value is None or isinstance(value, str | int | float) for value in x.values())


def _is_measured(x: Any) -> bool:
    return x is None or isinstance(x, dict)


WHOLE = ("epoch", "step", "classes", "nonfinite", "solver_failures")
ERRORS = ("test_error", "top5_error", "best_error")
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {  # what a field is, where a line has it; others may be anything
    "trial": (lambda x: isinstance(x, dict | str), "a dictionary or its text"),
    "machine": (_is_facts, "a dictionary of facts"),
    "versions": (_is_facts, "a dictionary of facts"),
    "monitor": (_is_measured, "a dictionary"),
    "date": (_is_text, "a text"),
    "source": (lambda x: x is None or isinstance(x, str), "a text or null"),
    "status": (lambda x: x in ("finished", "failed"), "finished or failed"),
    "reason": (_is_text, "a text"),
    "graph": (lambda x: isinstance(x, bool), "true or false"),
    **dict.fromkeys(WHOLE, (_is_whole, "a whole number >= 0")),
    **dict.fromkeys(("seconds", "train_loss"), (_is_number, "a number")),
    "test_loss": (_is_number_or_none, "a number or null"),
    "train_error": (_is_percent, "a number from 0 to 100"),
    **dict.fromkeys(ERRORS, (_is_percent_or_none, "a number from 0 to 100, or null")),
}


def problem_of(line: Any, parts: Parts) -> str:
    """What is wrong with a line that parses; empty for nothing.

    >>> problem_of({"kind": "epoch", "epoch": 0, "seconds": 1.5}, Parts("epoch", "epoch"))
    ''
    >>> problem_of({"kind": "epoch", "epoch": "first"}, Parts("epoch", "epoch"))
    "epoch must be a whole number >= 0, got 'first'"
    """
    required = {
        "start": (),
        parts.kind: (parts.number, *parts.others),
        "stop": parts.others,
        "end": ("status", *parts.others),
    }
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str) or line["kind"] not in required:
        return "a line is neither start, stop, end nor " + parts.kind
    missing = [name for name in required[line["kind"]] if name not in line]
    if missing:
        return f"the line of kind {line['kind']} has no {missing[0]}"
    for name, value in line.items():
        check, words = FIELDS.get(name, (None, ""))
        if check is not None and not check(value):
            return f"{name} must be {words}, got {repr(value)[:60]}"
    return ""


def problem_of_all(starts: Sequence[Line], done: Sequence[Line], end: Sequence[Line], parts: Parts) -> str:
    """What is wrong with lines that are right one by one: no start, or an epoch that is missing in a finished training."""
    if not starts and (done or end):
        return "it has no start line"
    if end and parts.number == "epoch" and end[0]["status"] == "finished":
        came = [line["epoch"] for line in done]
        if came != list(range(len(came))):
            return "it has ended, and an epoch is missing"
    return ""
