"""All artifacts, by id."""

import difflib
from functools import cache
from importlib import import_module

from spectralgrad.errors import OptionError

from .spec import Spec

# In the order of the papers, then ours. The artifact pami-table4 is in pami/table4.py.
IDS = (
    *("nips19-table1", "nips19-fig1", "nips19-table2", "nips19-fig2", "nips19-table3"),
    *("nips19-table4a", "nips19-table4b", "nips19-table4c", "nips19-fig3"),
    *("nips19-table5", "nips19-fig4", "nips19-time"),
    *("draft-table2", "draft-table3"),
    *("pami-fig1a", "pami-fig1b", "pami-fig2", "pami-fig3", "pami-fig4", "pami-fig5", "pami-table3"),
    *("pami-table4", "pami-table5", "pami-table6", "pami-fig6", "pami-fig7", "pami-table7"),
    *("pami-table8", "pami-table9", "pami-table10", "pami-fig9", "pami-fig10", "pami-fig11", "pami-eq60"),
    *("eccv22-fig1", "eccv22-fig2", "eccv22-fig3", "eccv22-fig4", "eccv22-fig5"),
    *("eccv22-table1", "eccv22-table2", "eccv22-table3", "eccv22-table4", "eccv22-table5", "eccv22-table6"),
    *("ours-contrasts", "ours-survival", "ours-ratios", "ours-floor", "ours-kept", "ours-premise"),
)


@cache
def _spec(id: str) -> Spec:
    spec: Spec = import_module(f".{id.replace('-', '.')}", __package__).SPEC
    return spec


def specs() -> dict[str, Spec]:
    """Every artifact, in the order of the papers.

    >>> len(specs())
    51
    """
    return {id: _spec(id) for id in IDS}


def find(id: str, who: str = "run") -> Spec:
    """The artifact of this id.

    Args:
        id: as `specs` lists them.
        who: the command that asks, for the error.

    Raises:
        OptionError: there is none; the message names the nearest ones.

    >>> find("pami-table4").paper
    'PAMI'
    """
    if id in IDS:
        return _spec(id)
    near = difflib.get_close_matches(id.lower().replace("_", "-"), IDS, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise OptionError(f"`{who}`: there is no artifact {id!r}. {hint}`spectralgrad list` shows all {len(IDS)}.")
