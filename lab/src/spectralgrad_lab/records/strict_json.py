"""JSON as records have it: strict, with NaN and Inf as the words "NaN", "Infinity" and "-Infinity"."""

import json
import math
from collections.abc import Container
from typing import Any

# JSON has no numbers for them. The short words were written by older versions; they are read, and never written.
NOT_FINITE = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "-Infinity": -math.inf,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}


def to_json(x: Any, indent: int | None = None) -> str:
    """The text of a value; ASCII, and without ``indent`` in one line.

    >>> to_json({"loss": math.nan, "bounds": (-math.inf, 1.0)})
    '{"loss": "NaN", "bounds": ["-Infinity", 1.0]}'
    """
    return json.dumps(_worded(x), indent=indent, allow_nan=False)


def from_json(text: str, words: Container[str] = ()) -> Any:
    """The value of a text.

    Args:
        text: of `to_json`, of this version or of an older one.
        words: keys whose values are left as they are: there «NaN» is a word, and no number.

    Raises:
        ValueError: no JSON.
        RecursionError: nested too deeply.

    >>> from_json('{"loss": "inf", "reason": "NaN"}', words=("reason",))
    {'loss': inf, 'reason': 'NaN'}
    """
    return _numbered(json.loads(text), words)


def _worded(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _worded(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_worded(value) for value in x]
    if isinstance(x, float) and not math.isfinite(x):
        return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"
    return x


def _numbered(x: Any, words: Container[str]) -> Any:
    if isinstance(x, dict):
        return {key: value if key in words else _numbered(value, words) for key, value in x.items()}
    if isinstance(x, list):
        return [_numbered(value, words) for value in x]
    return NOT_FINITE.get(x, x) if isinstance(x, str) else x
