"""Dataclasses that are written into records, and named by what they hold."""

import hashlib
import json
from abc import abstractmethod
from dataclasses import asdict, fields
from typing import Any, ClassVar

from typing_extensions import Self

from spectralgrad.errors import OptionError

from .recording import Files, Parts


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
        return json.dumps(asdict(self), sort_keys=True)  # type: ignore[call-overload]

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.PREFIX}:{self.as_json()}".encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The trial that `as_json` wrote.

        Raises:
            OptionError: fields that this version does not know, or misses.
        """
        values: dict[str, Any] = json.loads(text)
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        if set(values) != known:
            raise OptionError(
                f"`{cls.__name__}`: a record of another version: {sorted(set(values) ^ known)} are missing or unknown. "
                "Read it with the version that wrote it, or start a new record directory."
            )
        return cls(**{name: tuple(x) if isinstance(x, list) else x for name, x in values.items()})
