"""Damage, drawn: bytes that are cut, flipped, doubled; values that are dropped, retyped, nested."""

import json
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1.7e308,
    -1.7e308,
    "NaN",
    "",
    "=1+1",
    [],
    {},
    [[[]]],
    {"a": {"b": None}},
    "\0",
    "x" * 300,
)
DEEP = 200_000  # brackets


def damaged_bytes(content: bytes, draw: Random) -> bytes:
    """The content with one to three faults."""
    out = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        if not out:
            break
        at = draw.randrange(len(out))
        kind = draw.randrange(6)
        if kind == 0:
            del out[at:]
        elif kind == 1:
            out[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            out[at] = draw.randrange(256)
        elif kind == 3:
            del out[at : at + draw.randint(1, 16)]
        elif kind == 4:
            out[at:at] = draw.randbytes(draw.randint(1, 16))
        else:
            out[at:at] = out[at : at + draw.randint(1, 64)]
    return bytes(out)


def damaged_value(value: Any, draw: Random) -> Any:
    """A JSON value with one place dropped, retyped, nested or doubled; the places are those of the value itself."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        name = draw.choice(list(value))
        fault = draw.randrange(4)
        if fault == 0:
            return {key: each for key, each in value.items() if key != name}
        if fault == 1:
            return {**value, draw.choice(["kind", "epoch", "file", "x", name + "'"]): draw.choice(ODD)}
        return {**value, name: damaged_value(value[name], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], *([] if draw.random() < 0.3 else [damaged_value(value[at], draw)]), *value[at + 1 :]]
    return draw.choice([*ODD, [value], {"value": value}])


def damaged_text(text: str, draw: Random) -> bytes:
    """JSON lines, or one JSON value, with damage of any kind."""
    kind = draw.random()
    if kind < 0.4:
        return damaged_bytes(text.encode(), draw)
    lines = text.splitlines() if "\n{" in text else [text]
    at = draw.randrange(len(lines))
    if kind < 0.405:
        lines[at] = DEEP * "[" + DEEP * "]"
    elif kind < 0.5:
        lines = [line for i, line in enumerate(lines) if i != at] if draw.random() < 0.5 else [*lines, lines[at]]
    else:
        lines[at] = json.dumps(damaged_value(json.loads(lines[at]), draw))
    return ("\n".join(lines) + "\n").encode()
