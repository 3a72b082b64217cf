"""How long a deep style transfer takes, and where the time goes.

Content and style are procedural, and the networks have random weights: time depends on neither.
"""

import statistics
import time

import torch

from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import LEVELS, Encoder
from spectralgrad_lab.transfer.clock import Clock
from spectralgrad_lab.transfer.deep import Networks
from spectralgrad_lab.transfer.options import TransferOptions
from spectralgrad_lab.transfer.transfer import Stylist

from .case import Case
from .measure import Effort
from .peers import OURS
from .rows import Row, quartiles

SHARE = 0.2  # of the decompositions, at most
REPEATS = {"cuda": 10, "cpu": 1}
DECOMPOSITION = "decomposition"


def random_networks(device: torch.device) -> dict[str, Networks]:
    """Encoder and decoder of every level, untrained."""
    made = {level: Networks(Encoder(level), Decoder(level)) for level in LEVELS}
    for pair in made.values():
        for network in pair:
            network.to(device).eval()
        pair.arranged()
    return made


def time_style(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """Milliseconds of a transfer of d x d pixels, of its parts, and the share of the decompositions."""
    options = TransferOptions(device=device.type, half=case.dtype == "float16")
    pictures = embedded_artworks(case.d, 2).train
    content, style = (pictures[name][0].to(device) / 255 for name in ("photo", "vangogh"))
    networks = random_networks(device)

    def once(clock: Clock) -> float:
        """Style, content and all: what a person with two pictures waits for, without files and weights."""
        start = time.perf_counter()
        result = Stylist(style, options, networks=networks, clock=clock)(content)
        float(result.colors[0, 0, 0])  # waits for the device
        return time.perf_counter() - start

    if device.type == "cuda":
        once(Clock())
    seconds = [once(Clock()) for _ in range(REPEATS[device.type])]
    clock = Clock(enabled=True)
    once(clock)
    median, spread = statistics.median(seconds), quartiles(seconds)

    def row(name: str, kind: str, figure: float, **more: object) -> Row:
        return Row(case.section, name, case.d, 1, kind, figure, at_least=False, dtype=case.dtype, **more)  # type: ignore[arg-type]

    whole = {"target": case.target, "rounds": len(seconds), "seconds": {OURS: spread}}
    rows = [row("all", "milliseconds", 1e3 * median, spread=(1e3 * spread[0], 1e3 * spread[2]), **whole)]
    rows.append(row("share of the decompositions", "share", clock.share(DECOMPOSITION), target=case.target and SHARE))
    return rows + [
        row(part, "milliseconds", 1e3 * spent, note=f"{clock.share(part):.1%}") for part, spent in clock.seconds.items()
    ]
