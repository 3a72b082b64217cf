"""One thing to measure."""

from dataclasses import dataclass

AS_FAST = "as fast"  # kind of a case in which another's routine is called: what may be lost around it


@dataclass(frozen=True)
class Case:
    """Matrices d x d, ``batch`` of them, or groups of d channels of an input of ``shape``."""

    section: str
    d: int
    batch: int
    target: float | None = None
    shape: tuple[int, ...] = ()
    width: int = 64  # of the network
    batches: tuple[int, ...] = ()  # accuracy and gradients: these sizes, one after the other
    patience: float = 1.0  # times the usual seconds: a ratio near 1 needs more rounds
    function: str = ""  # what is called, where the section does not say it
    dtype: str = "float32"
    kind: str = ""  # which matrices, which kernel, which rule: the section's own word
    numbers: tuple[float, ...] = ()  # gradients: those that the kind names
    eps: tuple[float, ...] = ()  # digits: one training each
    steps: int = 0  # digits: of a training
    seeds: int = 0  # digits: trainings of each kind

    @property
    def label(self) -> str:
        return "x".join(map(str, self.shape))
