"""How long a deep transfer takes and where the time goes: `python benchmarks/style_time.py [--size 512] [--cpu]`.

Content and style are procedural, and the networks have random weights unless --weights: time depends on neither. Exits with
1 where a target is missed: 0.3 s on a GPU, 60 s on a CPU, the decompositions below 20 % of either.
"""

import argparse
import statistics
import sys
import time

import torch

from spectralgrad_lab.data.artworks import embedded_artworks
from spectralgrad_lab.models.decoders import Decoder
from spectralgrad_lab.models.vgg import LEVELS, Encoder
from spectralgrad_lab.transfer.clock import Clock
from spectralgrad_lab.transfer.deep import Networks, load_networks
from spectralgrad_lab.transfer.options import TransferOptions
from spectralgrad_lab.transfer.transfer import Stylist

TARGET = {"cuda": 0.3, "cpu": 60.0}
SHARE = 0.2
REPEATS = {"cuda": 10, "cpu": 1}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512, help="of content and style")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--weights", action="store_true", help="the trained ones")
    return parser.parse_args()


def networks_of(arguments: argparse.Namespace, device: torch.device) -> dict[str, Networks]:
    if arguments.weights:
        return load_networks(len(LEVELS), None, device)
    made = {level: Networks(Encoder(level), Decoder(level)) for level in LEVELS}
    for pair in made.values():
        for network in pair:
            network.to(device).eval()
        pair.arranged()
    return made


def main() -> int:
    arguments = parsed()
    options = TransferOptions(device="cpu" if arguments.cpu else "auto", half=arguments.half, groups=arguments.groups)
    device = options.on
    pictures = embedded_artworks(arguments.size, 2).train
    content, style = (pictures[name][0].to(device) / 255 for name in ("photo", "vangogh"))
    networks = networks_of(arguments, device)

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

    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    median, share = statistics.median(seconds), clock.share("decomposition")
    print(f"{arguments.size} x {arguments.size}, {name}, torch {torch.__version__}, half {arguments.half}")
    print(f"all           {median:9.4f} s (median of {len(seconds)}: {min(seconds):.4f} to {max(seconds):.4f})")
    for part, spent in clock.seconds.items():
        print(f"{part:<14}{spent:9.4f} s {clock.share(part):7.1%}")
    kept = median <= TARGET[device.type] and share < SHARE
    print(f"targets {'kept' if kept else 'MISSED'}: {TARGET[device.type]} s, decompositions below {SHARE:.0%}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
