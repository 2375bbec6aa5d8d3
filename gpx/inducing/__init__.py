"""Inducing points, their selectors, inducing variables of other kinds, and partitions of the rows.

Which selector, with its name on the command line (``selector=kmeans``; ``experiments/selectors``
measures them, before and after training):

- ``kmeans``, the default: best on most sets at the start, most of all where M is far below what
  the data call for, and best after training with 512 points. It passes over rare inputs: where
  few rows are far from all others and vary much (bike), take ``rpcholesky`` or ``greedy``.
- ``greedy``: best where M points nearly determine the function (a few hundred rows, few inputs,
  long lengthscales), and the way to grow a set until it is certified. Elsewhere its points lie at
  the edge of the data and it can be the worst of all.
- ``rpcholesky``: between the two; points of the data, with a guarantee on the trace error.
- ``dpp``: near ``rpcholesky`` and much dearer; ``rls``, ``rls_adaptive``: points of the data with a
  guarantee on the largest error; ``uniform``: the baseline, for nothing.
- ``greedy_rss``, ``greedy_evidence`` (``GreedyRegression``): by how well the points explain the
  targets at the hyperparameters of the start; for sparse regressions with Gaussian noise. With 128
  points ``greedy_rss`` lost least on average after training, though it starts below ``kmeans``;
  with 512 points on rough functions ``kmeans`` was better.
- ``novelty``: ``greedy`` that stops once no row's variance given the points is above a threshold.

In Python ``Given(points)`` takes points of one's own.

``ivm`` and ``information_gain`` (``InformativeVectors``) are made for a subset of data
(approx=sod); they choose by the noise and the targets as well.
"""

from gpx.inducing.base import Selection, Selector, require_selector
from gpx.inducing.combinations import Eigenvectors
from gpx.inducing.conditional_variance import GreedyConditionalVariance, SampledConditionalVariance
from gpx.inducing.determinantal import Determinantal
from gpx.inducing.eigenfunctions import Eigenfunctions
from gpx.inducing.features import InducingFeatures, Points
from gpx.inducing.given import Given
from gpx.inducing.greedy_regression import GreedyRegression
from gpx.inducing.informative import InformativeVectors
from gpx.inducing.kmeans import KMeans
from gpx.inducing.partition import (
    Blocks,
    ClusterBlocks,
    ColumnBlocks,
    Partition,
    RandomBlocks,
    require_partition,
)
from gpx.inducing.patches import Patches
from gpx.inducing.ridge_leverage import AdaptiveRidgeLeverage, RidgeLeverage
from gpx.inducing.uniform import Uniform

__all__ = [
    "AdaptiveRidgeLeverage",
    "Blocks",
    "ClusterBlocks",
    "ColumnBlocks",
    "Determinantal",
    "Eigenfunctions",
    "Eigenvectors",
    "Given",
    "GreedyConditionalVariance",
    "GreedyRegression",
    "InducingFeatures",
    "InformativeVectors",
    "KMeans",
    "Partition",
    "Patches",
    "Points",
    "RandomBlocks",
    "RidgeLeverage",
    "SampledConditionalVariance",
    "Selection",
    "Selector",
    "Uniform",
    "require_partition",
    "require_selector",
]
