"""Every artifact of the style networks, one after the other; a fault in one does not cost the others."""

import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial

from spectralgrad.errors import OptionError, SpectralError
from spectralgrad_lab.data.device import torch_device
from spectralgrad_lab.records.results import Computed, Scale
from spectralgrad_lab.records.store import Store
from spectralgrad_lab.style_network.workplace import Workplace

from .drawn import by_networks
from .registry import find

IDS = ("pami-table10", "pami-fig10", "pami-table8", "pami-table9", "pami-fig9", "pami-fig2")  # the important ones first
DRAWN = "drawn"
Publish = Callable[[str, Computed], None]  # an id, or DRAWN, and what was found


def evaluate(ids: Sequence[str], scale: Scale, place: Workplace, publish: Publish, *, again: bool = False) -> list[str]:
    """Run the artifacts, and the networks on drawn pictures, and hand each result to ``publish``.

    What fails is told, and does not cost the others.

    Args:
        ids: of style artifacts.
        scale: smoke, short or paper.
        place: folders, device, options of the trainings.
        publish: takes a result.
        again: also where there is a record.

    Returns:
        What failed: ids, or "drawn".

    Raises:
        OptionError: an id that is none, or not of style transfer; nothing has begun then.
    """
    for id in ids:
        _made(id)
    store, failed = Store(place.folder), []
    parts: dict[str, Callable[[], Computed]] = {id: partial(result_of, id, scale, place, store, again=again) for id in ids}
    parts[DRAWN] = lambda: Computed(pictures=by_networks(scale, place))
    for name, part in parts.items():
        start = time.perf_counter()
        try:
            publish(name, part())
        except SpectralError as error:
            failed.append(name)
            place.say(f"{name}: {error}")
        except Exception:  # a fault in one must not cost a rented machine the others
            failed.append(name)
            place.say(f"{name}: {traceback.format_exc(limit=-2)}")
        place.say(f"{name}: {time.perf_counter() - start:.1f} s")
    return failed


def result_of(id: str, scale: Scale, place: Workplace, store: Store, *, again: bool = False) -> Computed:
    """The result of a style artifact, from its record where there is one."""
    make = _made(id)
    found = None if again else store.load_computed(id, scale)
    if found is None:
        found = make(scale, place)
        store.save_computed(id, scale, found, gpu=torch_device("evaluate", place.device).type == "cuda")
    return found


def _made(id: str) -> Callable[..., Computed]:
    """What makes a style artifact."""
    make = find(id, "evaluate").make
    if make is None:
        raise OptionError(f"`evaluate`: {id} is no artifact of style transfer. `spectralgrad run` runs it.")
    return make
