"""One spelling of numbers that are not finite, in every kind of record; the older ones are still read."""

import json
import math
from pathlib import Path

import pytest

from spectralgrad_lab.bench.rows import Row
from spectralgrad_lab.records.machine import circumstances, write
from spectralgrad_lab.records.strict_json import from_json, to_json

WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
OLDER = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@pytest.mark.parametrize(("word", "value"), WORDS.items())
def test_a_number_is_written_as_its_word(word: str, value: float) -> None:
    assert json.loads(to_json({"a": [value, {"b": (value,)}]})) == {"a": [word, {"b": [word]}]}


@pytest.mark.parametrize(("word", "value"), [*WORDS.items(), *OLDER.items()])
def test_every_word_that_was_ever_written_is_read(word: str, value: float) -> None:
    found = from_json(json.dumps({"a": [word], "reason": word}), words=("reason",))
    assert repr(found) == repr({"a": [value], "reason": word})


def test_a_measurement_is_written_with_these_words_and_whole(tmp_path: Path) -> None:
    row = Row("eigh", "", 64, 16, "ratio", figure=math.inf, errors={"torch": math.nan})
    write(tmp_path, "a", circumstances("a command"), [row.for_record()], "text")
    [line] = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert (line["figure"], line["errors"]) == ("Infinity", {"torch": "NaN"})
    assert Row.from_record(line).figure == math.inf
    assert Row.from_record({**line, "figure": "inf"}).figure == math.inf  # of an older version
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.md"]
