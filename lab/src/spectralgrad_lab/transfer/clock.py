"""Where the time of a transfer goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["Clock"]


class Clock:
    """Seconds by part. On a GPU each part ends with a wait for the device, which costs a little: off unless asked for.

    >>> clock = Clock(enabled=True)
    >>> with clock("decode"):
    ...     pass
    >>> list(clock.seconds)
    ['decode']
    """

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        if not self.enabled:
            yield
            return
        start = self._now()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + self._now() - start

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()

    def share(self, part: str) -> float:
        """Of the sum of all parts."""
        return self.seconds.get(part, 0.0) / (sum(self.seconds.values()) or 1.0)
