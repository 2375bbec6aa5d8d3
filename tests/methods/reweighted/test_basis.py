"""The functions of a re-weighted basis by name: those of their classes, at the options given."""

import pytest
import torch

from gpx.bases import GridEigenfunctions, ImportanceWeightedFourier, InducingPoints, Proposal
from gpx.bases.fourier.variants import FOURIER
from gpx.errors import ConfigError
from gpx.kernels import RBF, Matern32
from gpx.methods.reweighted.basis import BASES, reweighted_basis

OTHERS = {
    "grief": GridEigenfunctions,
    "dictionary": InducingPoints,
    "importance_weighted": ImportanceWeightedFourier,
}


@pytest.mark.parametrize("name", BASES)
def test_a_name_is_a_class_of_as_many_functions(name):
    basis = reweighted_basis(name, RBF(2), 2, 16, num_data=100)
    assert type(basis) is {**FOURIER, **OTHERS}[name]
    assert basis.num_basis == 16
    assert isinstance(basis.kernel, RBF)


@pytest.mark.parametrize("name", FOURIER)
def test_fourier_features_stand_for_the_kernel_and_follow_the_seed(name):
    kernel, x = RBF(1, 1.5, 1.7).double(), torch.linspace(-1.0, 1.0, 5).double()[:, None]
    with torch.no_grad():
        first, again, other = (
            reweighted_basis(name, kernel, 1, 64, seed=seed)(x) for seed in (0, 0, 1)
        )
        want = kernel.evaluate(x)
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name == "gauss_hermite")  # a rule, nothing is drawn
    assert float((first @ first.mT - want).abs().max()) < 0.4 * 1.7


def test_a_dictionary_has_a_centre_a_row_at_most():
    assert reweighted_basis("dictionary", RBF(3), 3, 16, num_data=9).centres.shape == (9, 3)
    with pytest.raises(ConfigError, match=r"dictionary needs approx\.num_data"):
        reweighted_basis("dictionary", RBF(3), 3, 16)


def test_a_proposal_is_what_frequencies_are_drawn_for():
    kernel = RBF(2, 0.8)
    basis = reweighted_basis(
        "importance_weighted", kernel, 2, 16, proposal=Proposal("matern32", lengthscale=0.5)
    )
    drawn_for = basis.features.kernel
    assert isinstance(drawn_for, Matern32)
    torch.testing.assert_close(drawn_for.lengthscale, 0.5 * kernel.lengthscale.detach())


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(ConfigError, match=rf"^approx\.basis=what: .*{', '.join(BASES)}$"):
        reweighted_basis("what", RBF(2), 2, 16)
