"""The trained style-transfer networks of a scale, and the held-out pictures on which they are judged, for all artifacts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from spectralgrad.errors import OptionError
from spectralgrad_lab.data.artworks import CEZANNE, Artworks, embedded_artworks, known_domains, load_artworks
from spectralgrad_lab.data.device import torch_device
from spectralgrad_lab.deadline import OutOfTime
from spectralgrad_lab.drawing import encoded
from spectralgrad_lab.models.vgg import Encoder
from spectralgrad_lab.records.recording import Line
from spectralgrad_lab.records.results import GalleryPicture, Scale
from spectralgrad_lab.transfer.pretrained import WeightsError, load_encoder

from .train import StyleOutcome, TrainedStyle, load_trained, trained
from .trial import DOMAINS, StyleTrial, style_trial
from .workplace import Workplace

# As PAMI calls them, and the exact gradient, which is ours.
METHODS = {"GD-WCT": "gd", "Clip-WCT": "clip", "PI-WCT": "pi", "SVD-WCT": "taylor", "Exact-WCT": "exact"}
OURS = "Exact-WCT"
# In the order of the tables.
NAMES = {"cezanne": "Cezanne", "monet": "Monet", "photo": "Real Photo", "ukiyoe": "Ukiyoe", "vangogh": "Vangogh"}
STYLES = tuple(domain for domain in NAMES if domain in DOMAINS)
BATCH = {"cpu": 4, "cuda": 16}
SELDOM = 5  # lines of a training's log for one word about it
NO_CEZANNE = "The fifth column of the paper, Cezanne, is not in our data."


@dataclass
class Studio:
    """Networks, which are trained when they are first asked for, and pictures.

    Args:
        scale: smoke, short or paper.
        place: folders, device, and the listener.
        artworks: pictures by domain.
        device: where the networks compute.
    """

    scale: Scale
    place: Workplace
    artworks: Artworks
    device: torch.device
    _painted: dict[tuple[str, str], Tensor | None] = field(default_factory=dict, repr=False)

    @property
    def are_drawn(self) -> bool:
        """Whether the pictures are ours, drawn by a program, and not the user's data."""
        return style_trial("taylor", self.scale, **dict(self.place.changes)).data == "embedded"

    @property
    def styles(self) -> tuple[str, ...]:
        """The domains of art that there are pictures of, in the order of the tables."""
        return tuple(domain for domain in NAMES if domain in self.artworks.test and domain != "photo")

    def trial(self, method: str, domain: str) -> StyleTrial:
        """The training that serves a domain: at paper scale one for each, as in the text, else one for all.

        PI-WCT deflates as NIPS19 prints it.
        """
        domains = (domain,) if self.scale == "paper" else (*DOMAINS, *(x for x in self.styles if x not in DOMAINS))
        how = {"deflation": "printed"} if METHODS[method] == "pi" else {}
        return style_trial(METHODS[method], self.scale, domains, **(how | dict(self.place.changes)))

    def network(self, method: str, domain: str) -> TrainedStyle:
        """The trained network, from the folder where there is one."""
        trial, place = self.trial(method, domain), self.place
        found = _TRAINED.get((place, trial.key))
        if found is None:
            place.say(f"{method}, {', '.join(trial.domains)}: {trial.steps} steps")
            found = self._as_is(trial) if place.as_is else self._trained(trial)
            end = found.outcome
            place.say(f"{method}: {end.status} at step {end.step} {end.reason}".strip())
            _TRAINED[place, trial.key] = found
        return found

    def _trained(self, trial: StyleTrial) -> TrainedStyle:
        place = self.place

        def heard(line: Line) -> None:
            if line["kind"] == "log" and line["step"] % (SELDOM * trial.every) == 0:
                place.say(f"{trial.variant}: step {line['step']} of {trial.steps}, {line['seconds']:.0f} s")

        place.deadline.require_time()
        found = trained(
            trial, place.folder, data=place.data, device=place.device, progress=heard, encoder=place.encoder,
            seconds=place.deadline.seconds_left,
        )  # fmt: skip
        if found.outcome.status == "stopped":  # half a training is no result
            raise OutOfTime
        return found

    def _as_is(self, trial: StyleTrial) -> TrainedStyle:
        """What there is of a training; one that was never begun counts like one that failed: there is no network."""
        try:
            return load_trained(trial, self.place.folder, device=self.place.device)
        except OptionError:  # its message names a path, which no record does
            return TrainedStyle(None, StyleOutcome("missing", "it was not trained here.", 0, 0, 0.0), ())

    def contents(self) -> Tensor:
        """The held-out photographs (N, 3, H, W) in [0, 1]."""
        return self.artworks.test["photo"].float() / 255

    def exemplars(self, domain: str) -> Tensor:
        """A held-out painting for each photograph, in turn (N, 3, H, W)."""
        paintings = self.artworks.test[domain]
        return paintings[torch.arange(len(self.artworks.test["photo"])) % len(paintings)].float() / 255

    def painted(self, method: str, domain: str) -> Tensor | None:
        """Every held-out photograph in the style of its exemplar (N, 3, H, W); None if the training failed."""
        if (method, domain) not in self._painted:
            self._painted[method, domain] = self.paint(method, domain, self.contents(), self.exemplars(domain))
        return self._painted[method, domain]

    def paint(self, method: str, domain: str, contents: Tensor, exemplars: Tensor) -> Tensor | None:
        """Pictures (N, 3, H, W) by a method; None if its training failed."""
        net, size = self.network(method, domain).network, BATCH.get(self.device.type, 1)
        if net is None:
            return None
        parts = [
            net.stylise(content.to(self.device), exemplar.to(self.device), domain).float().clamp(0, 1).cpu()
            for content, exemplar in zip(contents.split(size), exemplars.split(size), strict=True)
        ]
        return torch.cat(parts)

    def encoder(self) -> Encoder | None:
        """VGG-19; None at smoke, which needs no file, and where the weights are not there."""
        if self.scale == "smoke":
            return None
        try:
            return load_encoder(self.place.encoder, device=self.device)
        except WeightsError as error:
            self.place.say(str(error))
            return None

    def remarks(self, *methods: str) -> tuple[str, ...]:
        """How the trainings ended, and on which pictures they are judged."""
        said, ends = [], []
        for method in methods:
            for found in {self.trial(method, domain).key: self.network(method, domain) for domain in self.styles}.values():
                end = found.outcome
                ends.append(f"{method} {end.status} at step {end.step} after {end.seconds:.0f} s")
                if end.reason or end.nonfinite:
                    said.append(f"{method}: {end.reason or f'{end.nonfinite} steps not finite.'}")
        said.insert(0, f"Trainings: {'; '.join(ends)}.")
        if OURS in methods:
            said.append(f"SVD-WCT is the paper's, with Taylor's gradient; {OURS}, with the exact one, is ours.")
        if self.place.changes:
            said.append(f"Not as the scale has it: {', '.join(f'{name} = {x}' for name, x in self.place.changes)}.")
        count, kind = len(self.artworks.test["photo"]), "drawn" if self.are_drawn else "held-out"
        pictures = f"{count} {kind} photographs, each in the style of one {kind} painting of every domain."
        return (*said, pictures, *([] if CEZANNE in self.styles else [NO_CEZANNE]))


_TRAINED: dict[tuple[Workplace, str], TrainedStyle] = {}  # by key: the artifacts of one process share them


def studio(scale: Scale, place: Workplace) -> Studio:
    """The studio of a scale; in one process it is opened once."""
    found = _opened(scale, place)
    found.place = place  # its listener may have changed
    return found


@lru_cache(2)
def _opened(scale: Scale, place: Workplace) -> Studio:
    trial = style_trial("taylor", scale, **dict(place.changes))
    drawn = trial.data == "embedded"
    artworks = embedded_artworks(trial.size) if drawn else load_artworks(place.data, trial.size, known_domains(place.data))
    return Studio(scale, place, artworks, torch_device("run", place.device))


def gallery_of(
    where: Studio, methods: Sequence[str], pictures: Artworks, rows: Sequence[tuple[str, int]], original: bool
) -> tuple[GalleryPicture, ...]:
    """Content, exemplar and every method's picture, row by row.

    Args:
        where: the networks.
        methods: columns, after content and exemplar.
        pictures: the held-out ones are taken.
        rows: domain, and number of the photograph.
        original: the pictures are the user's data.
    """
    made = []
    for domain, i in rows:
        content = pictures.test["photo"][i : i + 1].float() / 255
        paintings = pictures.test[domain]
        exemplar = paintings[i % len(paintings)][None].float() / 255
        name, row = NAMES[domain], f"photograph {i + 1} to {NAMES[domain]}"
        made.append(GalleryPicture(row, "content", encoded(content[0]), f"Photograph {i + 1}, the content", original))
        made.append(GalleryPicture(row, "exemplar", encoded(exemplar[0]), f"Exemplar from the domain {name}", original))
        for method in methods:
            painted = where.paint(method, domain, content, exemplar)
            if painted is not None:
                words = f"Photograph {i + 1} in the style of the exemplar from {name}, by {method}"
                made.append(GalleryPicture(row, method, encoded(painted[0]), words))
    return tuple(made)


def next_rows(where: Studio, first: int, each: int) -> list[tuple[str, int]]:
    """``each`` photographs for every style, those that come next, whatever they show: none is picked by hand."""
    count = len(where.artworks.test["photo"])
    return [(domain, (first + k * each + j) % count) for k, domain in enumerate(where.styles) for j in range(each)]
