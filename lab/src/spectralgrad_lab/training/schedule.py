"""The learning rate of every step."""

import math
from bisect import bisect_right

from spectralgrad_lab.records.trial import Trial

SCHEDULES = ("steps", "onecycle")
WARM_UP = 0.3  # share of the steps in which onecycle rises


def rate(trial: Trial, step: int, steps: int) -> float:
    """The learning rate of a step.

    Args:
        trial: its lr, and schedule, milestones, gamma and epochs.
        step: from 0, over all epochs.
        steps: of an epoch.

    >>> plain = Trial(epochs=10, lr=1.0, milestones=(5,), gamma=0.1)
    >>> rate(plain, 4, 1), rate(plain, 5, 1)
    (1.0, 0.1)
    >>> [round(rate(Trial(epochs=10, lr=1.0, schedule="onecycle"), step, 1), 3) for step in range(10)]
    [0.333, 0.667, 1.0, 0.95, 0.812, 0.611, 0.389, 0.188, 0.05, 0.0]
    """
    if trial.schedule == "steps":
        return trial.lr * trial.gamma ** bisect_right(trial.milestones, step // steps)
    total = trial.epochs * steps
    rising = max(1, round(WARM_UP * total))
    done = step + 1
    if done <= rising:
        return trial.lr * done / rising
    return trial.lr * (1 + math.cos(math.pi * (done - rising) / (total - rising))) / 2
