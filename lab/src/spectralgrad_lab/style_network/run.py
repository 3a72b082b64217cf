"""One style trial in memory: networks, discriminators, pictures on a device, and what one step of training does."""

import copy
import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss
from torch.nn.utils import get_total_norm

from spectralgrad_lab.data.artworks import Artworks
from spectralgrad_lab.models.discriminator import PatchDiscriminator
from spectralgrad_lab.models.vgg import Encoder
from spectralgrad_lab.models.wct import PHOTO, StyleNetwork, StylePair
from spectralgrad_lab.training.checkpoint import State
from spectralgrad_lab.training.watch import Diverged

from .losses import content_loss, fooling_loss, judged_loss, style_loss, through_networks, through_vgg
from .trial import StyleTrial, Weights

LOSSES = (*Weights._fields, "discriminator")
BETAS = (0.5, 0.999)  # of Adam, as is usual beside a discriminator
_NEVER = 2**62


class TrainingPictures:
    """The training pictures of a trial on a device, and its random crops.

    What a step sees depends on the seed and the step alone, so that a resumed training draws what an unbroken one does.
    """

    def __init__(self, trial: StyleTrial, train: dict[str, Tensor], device: torch.device) -> None:
        self.trial, self.device = trial, device
        # (M, size, size, 3): crops of it are channels_last pictures
        self.photo = train[PHOTO].permute(0, 2, 3, 1).contiguous().to(device)
        self.art = torch.cat([train[name] for name in trial.domains]).permute(0, 2, 3, 1).contiguous().to(device)
        self.counts = torch.tensor([len(train[name]) for name in trial.domains])
        self.offsets = self.counts.cumsum(0) - self.counts

    def draws(self, start: int, stop: int) -> Tensor:
        """What to show in the steps from ``start`` to ``stop``: (steps, 2, 5, batch) of domain, picture, top, left, flip."""
        found = [self._draw(step) for step in range(start, stop)]
        return torch.stack(found).to(self.device)

    def _draw(self, step: int) -> Tensor:
        batch, room = self.trial.batch, self.trial.size - self.trial.crop + 1
        generator = torch.Generator().manual_seed(_seed(self.trial.seed, step))
        first = torch.randint(len(self.counts), (1,), generator=generator)
        domain = (first + torch.arange(batch)) % len(self.counts)  # every domain as often as the others
        chance = torch.rand(2, batch, dtype=torch.float64, generator=generator)
        picture = torch.stack([chance[0] * len(self.photo), chance[1] * self.counts[domain]]).long()
        picture[1] += self.offsets[domain]
        corner = torch.randint(room, (2, 2, batch), generator=generator)
        flip = torch.randint(2, (2, 1, batch), generator=generator)
        return torch.cat([torch.stack([torch.zeros_like(domain), domain])[:, None], picture[:, None], corner, flip], 1)

    def crops(self, draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Photographs and art (batch, 3, crop, crop) in [0, 1], and the domains (batch,) of the art."""
        photo, art = (self._crop(pictures, part) for pictures, part in zip((self.photo, self.art), draw, strict=True))
        return photo, art, draw[1, 0]

    def _crop(self, pictures: Tensor, draw: Tensor) -> Tensor:
        _, picture, top, left, flip = draw[..., None, None]  # (batch, 1, 1) each
        along = torch.arange(self.trial.crop, device=self.device)
        across = torch.where(flip == 1, self.trial.crop - 1 - along, along)  # (batch, 1, crop)
        return pictures[picture, top + along[:, None], left + across].permute(0, 3, 1, 2).float() / 255


def _seed(seed: int, step: int) -> int:
    """32 bits, which is all that torch's generator on the CPU takes, unlike for every trial and step."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step}".encode()).digest()[:4], "little")


class StyleRun:
    """A style trial that is being trained.

    Args:
        trial: what to train.
        artworks: its pictures.
        device: where.
        encoder: VGG for the losses, where the trial asks for it.
    """

    def __init__(self, trial: StyleTrial, artworks: Artworks, device: torch.device, encoder: Encoder | None) -> None:
        self.trial, self.device = trial, device
        self.pictures = TrainingPictures(trial, artworks.train, device)
        self.pair = new_pair(trial).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.judges = nn.ModuleDict(
            {
                "art": PatchDiscriminator(len(trial.domains), trial.width, trial.scales),
                "photo": PatchDiscriminator(1, trial.width, trial.scales),
            }
        ).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = copy.deepcopy(self.pair).requires_grad_(False)
        if encoder is not None:
            encoder = encoder.to(device, memory_format=torch.channels_last).requires_grad_(False)  # type: ignore[call-overload]
        self.looks = {
            name: through_vgg(encoder) if encoder is not None else through_networks(self.pair, name == "art")
            for name in ("art", "photo")
        }
        adam: dict[str, Any] = {"lr": trial.lr, "betas": BETAS, "fused": device.type == "cuda"}
        self.painter = torch.optim.Adam(self.pair.parameters(), **adam)
        self.critic = torch.optim.Adam(self.judges.parameters(), **adam)
        self.step = 0  # steps done
        self.first_bad = torch.full((), _NEVER, dtype=torch.int64, device=device)  # 2 step + cause, of the first one
        self.bad = torch.zeros((), dtype=torch.int64, device=device)  # how many steps were not finite
        self.totals = torch.zeros(len(LOSSES), dtype=torch.float64, device=device)

    def advance(self, steps: int) -> dict[str, float]:
        """Train ``steps`` steps: the mean of each loss, and how many steps so far were not finite.

        Raises:
            Diverged: a loss or a gradient was not finite. On a GPU that is noticed at the end, and its first step is told.
        """
        self.totals.zero_()
        self.pair.train()
        for draw in self.pictures.draws(self.step, self.step + steps):
            self._step(*self.pictures.crops(draw))
            if self.device.type == "cpu":
                self.require_finite()
        self.require_finite()
        return dict(zip(LOSSES, (self.totals / steps).tolist(), strict=True)) | {"nonfinite": int(self.bad)}

    def _step(self, photo: Tensor, art: Tensor, domain: Tensor) -> None:
        for optimizer in (self.painter, self.critic):
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = self.trial.lr * self._rate()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.trial.precision == "bf16-mixed"):
            painted = self._paint(photo, art)
            judged = self._judge(painted["photo"].detach(), photo, domain.new_zeros(len(domain)), "photo")
            judged = judged + self._judge(painted["art"].detach(), art, domain, "art")
        judged.backward()
        self.critic.step()
        with (
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.trial.precision == "bf16-mixed"),
            self._judges_held(),
        ):
            losses = self._losses(painted, photo, art, domain)
        factors = self.trial.weights
        total = sum((getattr(factors, name) * loss for name, loss in losses.items()), start=judged.new_zeros(()))
        total.backward()
        self._note(torch.stack([*(losses[name].detach() for name in Weights._fields), judged.detach()]))
        self.painter.step()
        self._average()
        self.step += 1

    def _paint(self, photo: Tensor, art: Tensor) -> dict[str, Tensor]:
        """Both directions, each picture in its own style too, and the penalties of whitening and colouring.

        The way to a domain has two contents, its own picture and the other's, and one style: one pass of 2 N pictures.
        """
        to_art, to_photo = self.pair.to_art, self.pair.to_photo
        assert to_photo is not None
        of_photo, of_art = to_art.encode(photo), to_photo.encode(art)
        photo_colours, art_colours = to_photo.colours(photo), to_art.colours(art)
        photos, photo_penalty = to_photo.paint(torch.cat([of_photo, of_art]), photo_colours.repeated(2))
        arts, art_penalty = to_art.paint(torch.cat([of_art, of_photo]), art_colours.repeated(2))
        same_photo, new_photo = photos.chunk(2)
        same_art, new_art = arts.chunk(2)
        # Back again: the painted picture's content in the style it came from.
        photo_again, _ = to_photo.paint(to_photo.encode(new_art), photo_colours)
        art_again, _ = to_art.paint(to_art.encode(new_photo), art_colours)
        return {
            "photo": new_photo,
            "art": new_art,
            "identity": (l1_loss(same_photo, photo) + l1_loss(same_art, art)) / 2,
            "cycle": (l1_loss(photo_again, photo) + l1_loss(art_again, art)) / 2,
            "whitening": (photo_penalty + art_penalty) / 2,
            "orthogonality": (photo_colours.penalty + art_colours.penalty) / 2,
        }

    def _judge(self, painted: Tensor, real: Tensor, domain: Tensor, side: str) -> Tensor:
        maps = self.judges[side](torch.cat([painted, real]))
        is_painted = torch.arange(2 * len(real), device=self.device) < len(painted)
        return judged_loss(maps, is_painted, domain.repeat(2))

    def _losses(self, painted: dict[str, Tensor], photo: Tensor, art: Tensor, domain: Tensor) -> dict[str, Tensor]:
        losses = {name: painted[name] for name in ("identity", "cycle", "whitening", "orthogonality")}
        fooled = fooling_loss(self.judges["art"](painted["art"]), domain)
        losses["adversarial"] = fooled + fooling_loss(self.judges["photo"](painted["photo"]), domain.new_zeros(len(domain)))
        new = {"art": painted["art"], "photo": painted["photo"]}
        real = {"art": art, "photo": photo}
        with torch.no_grad():
            known = {name: self.looks[name](pictures) for name, pictures in real.items()}
        seen = {name: self.looks[name](pictures) for name, pictures in new.items()}
        losses["style"] = (style_loss(seen["art"], known["art"]) + style_loss(seen["photo"], known["photo"])) / 2
        losses["content"] = (content_loss(seen["art"], known["photo"]) + content_loss(seen["photo"], known["art"])) / 2
        return losses

    @contextmanager
    def _judges_held(self) -> Iterator[None]:
        """The generators' losses pass through the discriminators, but leave no gradient there."""
        self.judges.requires_grad_(False)
        try:
            yield
        finally:
            self.judges.requires_grad_(True)

    def _rate(self) -> float:
        """Constant, then linear to zero over the last part of the steps."""
        left = (self.trial.steps - self.step) / max(self.trial.steps, 1)
        return min(1.0, left / self.trial.decay) if self.trial.decay else 1.0

    def _average(self) -> None:
        decay = min(self.trial.ema, (1 + self.step) / (10 + self.step))  # the first weights are soon forgotten
        torch._foreach_lerp_(list(self.average.parameters()), list(self.pair.parameters()), 1 - decay)

    @torch.no_grad()
    def _note(self, losses: Tensor) -> None:
        """Add to the log; keep on the device whether all was finite."""
        self.totals += losses
        gradients = [p.grad for p in (*self.pair.parameters(), *self.judges.parameters()) if p.grad is not None]
        bad_loss = ~torch.isfinite(losses).all()
        bad = bad_loss | ~torch.isfinite(get_total_norm(gradients, math.inf))
        code = torch.where(bad, 2 * (self.step + 1) + (~bad_loss).long(), _NEVER)
        self.first_bad = torch.minimum(self.first_bad, code)
        self.bad += bad

    def require_finite(self) -> None:
        """Raise `Diverged` if a step was not finite; here the host waits."""
        code = int(self.first_bad)
        if code != _NEVER:
            raise Diverged(("a loss is not finite", "a gradient is not finite")[code % 2], code // 2)

    def state(self) -> State:
        """All that the next step depends on."""
        return {
            "key": self.trial.key,
            "step": self.step,
            "pair": self.pair.state_dict(),
            "average": self.average.state_dict(),
            "judges": self.judges.state_dict(),
            "painter": self.painter.state_dict(),
            "critic": self.critic.state_dict(),
        }

    def restore(self, state: State) -> None:
        """Take up a state."""
        for name in ("pair", "average", "judges", "painter", "critic"):
            getattr(self, name).load_state_dict(state[name])
        self.step = int(state["step"])


def new_pair(trial: StyleTrial) -> StylePair:
    """The networks of a trial, with random weights."""
    options: dict[str, Any] = {
        "width": trial.width,
        "group_size": trial.group_size,
        "eps": trial.eps,
        "iterations": trial.iterations,
        "deflation": trial.deflation,
        "hops": trial.hops,
        "blocks": trial.blocks,
    }
    return StylePair(StyleNetwork(trial.variant, **options), StyleNetwork(trial.variant, **options), trial.domains)
