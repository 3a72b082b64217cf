from dataclasses import replace

from spectralgrad_lab.records.results import Scale

from ..protocols.denoising import by_energy, by_iterations, by_rank
from ..protocols.protocol import says
from ..spec import Entry, Spec

PANELS = {"(a) % of information": by_energy, "(b) eigenvectors": by_rank, "(c) power iterations": by_iterations}


def entries(scale: Scale) -> tuple[Entry, ...]:
    """Table 4's own trainings, one column for each panel."""
    return tuple(replace(entry, column=panel) for panel, part in PANELS.items() for entry in part(scale))


SPEC = Spec(
    id="nips19-fig3",
    paper="NIPS19",
    shows="Table 4 as curves: error of PCA denoising by energy, eigenvectors, power iterations",
    kind="training",
    entries=entries,
    says=says(paper="The trainings are those of Table 4."),
    claim="The error is flat around 99 % energy, 16 eigenvectors and from 2 power iterations on.",
)
