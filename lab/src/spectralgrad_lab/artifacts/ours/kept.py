from dataclasses import replace

from spectralgrad_lab.records.results import Printed, Scale

from ..protocols.denoising import by_energy
from ..protocols.protocol import says
from ..spec import Entry, Spec


def entries(scale: Scale) -> tuple[Entry, ...]:
    found = [each for each in by_energy(scale) if each.row in ("85", "99", "99.5")]
    return tuple(replace(each, column="eigenvectors", figure="kept_rank") for each in found)


SPEC = Spec(
    id="ours-kept",
    paper="OURS",
    shows="eigenvectors that PCA denoising keeps, by the energy",
    kind="training",
    printed=(
        Printed(
            ("eigenvectors",),
            {"85": ("< 7",), "99": ("< 15",), "99.5": ("< 31",)},
            "NIPS19 section 3.2: «most of the time», after the first convolution, of 64 channels.",
        ),
    ),
    entries=entries,
    says=says(short="The trainings of nips19-table4a; 99.5 % is at paper alone.", paper="The trainings of nips19-table4a."),
    claim="Far fewer eigenvectors than channels are kept: less than 7, 15 and 31 at 85, 99 and 99.5 % of the energy.",
)
