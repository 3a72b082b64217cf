"""Dataclasses that are written into records, and named by what they hold."""

import hashlib
import json
from abc import abstractmethod
from dataclasses import asdict, field, fields
from typing import Any, ClassVar

from typing_extensions import Self

from spectralgrad.errors import OptionError

from .recording import Files, Parts


def later(default: Any) -> Any:
    """A field that records written before it do not have: there, and in the key, it is left out at its default."""
    return field(default=default, metadata={"later": True})


class Described:
    """A frozen dataclass of numbers, texts and tuples of texts or numbers that completely describes a training."""

    PREFIX: ClassVar[str]  # of what the key is the hash of: the kind of training, and the format of its records
    PARTS: ClassVar[Parts]  # of its record

    @property
    @abstractmethod
    def files(self) -> Files:
        """Where it is recorded, under the folder of the records."""

    def as_json(self) -> str:
        """One line, with sorted keys: the same for equal trials, in every version of Python."""
        added = {each.name: each.default for each in fields(self) if each.metadata.get("later")}  # type: ignore[arg-type]
        values = asdict(self)  # type: ignore[call-overload]
        return json.dumps({k: v for k, v in values.items() if k not in added or v != added[k]}, sort_keys=True)

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.PREFIX}:{self.as_json()}".encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The trial that `as_json` wrote.

        Raises:
            OptionError: fields that this version does not know, or misses.
        """
        try:
            values: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"`{cls.__name__}`: no record of a trial: {str(error)[:60]}.") from error
        if not isinstance(values, dict):
            raise OptionError(f"`{cls.__name__}`: a trial is a dictionary, got {type(values).__name__}.")
        known = {each.name: each for each in fields(cls)}  # type: ignore[arg-type]
        wrong = [name for name in known.keys() ^ values.keys() if name not in known or not known[name].metadata.get("later")]
        if wrong:
            raise OptionError(
                f"`{cls.__name__}`: a record of another version: {sorted(wrong)} are missing or unknown. "
                "Read it with the version that wrote it, or start a new record directory."
            )
        return cls(**{name: tuple(x) if isinstance(x, list) else x for name, x in values.items()})
