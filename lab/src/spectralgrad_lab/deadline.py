"""Until when a command may work: `--seconds N`."""

import math
import time
from dataclasses import dataclass

from typing_extensions import Self


class OutOfTime(Exception):
    """The time is over. What was done is recorded, and the same call goes on with the rest."""


@dataclass(frozen=True)
class Deadline:
    """A moment of the wall clock, which workers on this and on other machines share; the default never comes.

    >>> Deadline().is_over, Deadline.after(0).is_over, Deadline.after(None) == Deadline()
    (False, True, True)
    """

    at: float = math.inf

    @property
    def is_set(self) -> bool:
        return self.at < math.inf

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        """So many seconds from now; never for None."""
        return cls() if seconds is None else cls(time.time() + seconds)

    @property
    def is_over(self) -> bool:
        return time.time() >= self.at

    def is_nearer_than(self, seconds: float) -> bool:
        """Whether work of so many seconds would end too late.

        >>> Deadline.after(10).is_nearer_than(20), Deadline.after(10).is_nearer_than(1), NEVER.is_nearer_than(1e9)
        (True, False, False)
        """
        return time.time() + seconds >= self.at

    @property
    def seconds_left(self) -> float | None:
        """None for ever."""
        return max(0.0, self.at - time.time()) if self.is_set else None

    def require_time(self, seconds: float = 0.0) -> None:
        """Raise `OutOfTime` if it is over, or work of so many seconds would end too late."""
        if self.is_nearer_than(seconds):
            raise OutOfTime


NEVER = Deadline()
