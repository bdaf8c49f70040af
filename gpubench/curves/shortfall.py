"""Which of several things that should be alike falls short of the others: by more than a tolerance, and by more than
their own spread makes likely."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from gpubench.curves.stats import MAD_SIGMA, mad, median

TOLERANCE = 0.05
FEWEST_PEERS = 4
_LEAST_K = 3.5
_CHANCE = 0.05  # of one false suspect among all looks at a fleet of Gaussian GPUs
_MOST_SUSPECTS, _MOST_SHARE = 4, 0.01


def growing_k(looks: int) -> float:
    """How many robust standard deviations a suspect has to fall short by: among so many looks, chance alone finds one
    in fewer than one fleet of twenty."""
    return max(_LEAST_K, NormalDist().inv_cdf(1 - _CHANCE / max(looks, 1)))


def spread(rates: Sequence[float]) -> float:
    """Return the robust standard deviation over the median."""
    return MAD_SIGMA * mad(rates) / median(rates)


def is_uniform(suspects: int, peers: int) -> bool:
    """Tell whether the group is alike: with more suspects none of it is named."""
    return suspects <= max(_MOST_SUSPECTS, _MOST_SHARE * peers)
