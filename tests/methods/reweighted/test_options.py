"""Compatible and incompatible options of a re-weighted basis."""

import pytest

from gpx.bases import ImportanceWeightedFourier, RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.methods.reweighted.options import check_options
from gpx.models import WeightPriors

FOLLOWS = ImportanceWeightedFourier(RBF(1), 4, 1)
"""A basis that learns the kernel."""


def check(**options):
    defaults = {
        "basis": RandomFourier(RBF(1), 4),
        "structure": "diagonal",
        "inference": "type2",
        "priors": None,
        "likelihood": Gaussian(0.05),
    }
    check_options(**{**defaults, **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inference": "type1", "priors": WeightPriors(), "structure": "householder"},
        {"inference": "relevance_vectors"},
        {"basis": FOLLOWS},
        {"priors": WeightPriors(noise_mode=1e-5)},
    ],
)
def test_compatible_options(options):
    check(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "what"}, r"^structure=what: expected one of diagonal, orthogonal"),
        ({"inference": "what"}, r"^inference=what: expected one of type1, type2, rel"),
        ({"inference": "type1"}, "type-I inference needs hyper-priors"),
        ({"structure": "householder"}, "householder needs hyper-priors"),
        ({"priors": WeightPriors(noise_mode=1e-9)}, "above noise_floor=1e-06"),
        (
            {"basis": FOLLOWS, "inference": "type1", "priors": WeightPriors()},
            r"needs inference=type2 priors=None$",
        ),
        (
            {"basis": FOLLOWS, "structure": "orthogonal"},
            r"needs structure=diagonal$",
        ),
        (
            {"basis": FOLLOWS, "inference": "relevance_vectors"},
            "learns the kernel, .* needs inference=type2$",
        ),
        (  # priors, which householder lacks, would be refused next
            {"inference": "relevance_vectors", "structure": "householder"},
            r"selects functions .* needs structure=diagonal$",
        ),
        (
            {
                "inference": "relevance_vectors",
                "structure": "orthogonal",
                "priors": WeightPriors(),
            },
            r"needs structure=diagonal priors=None$",
        ),
    ],
)
def test_incompatible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check(**options)
