"""Methods of the literature that reconstruct gappy fields, for comparisons in experiments."""

from gpx.comparators.gappy_pod import GappyPOD, gappy_pod
from gpx.comparators.local_kriging import Independent, local_kriging

__all__ = ["GappyPOD", "Independent", "gappy_pod", "local_kriging"]
