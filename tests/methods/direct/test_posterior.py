"""Posteriors of discrete weights: laws of new rows, rows in blocks, draws as bytes."""

import pytest
import torch

from gpx.bases import RandomFourier
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means import Constant
from gpx.methods.direct import posterior as module
from gpx.models import Direct, DirectLogistic, DirectMixture, NoiseGrid, WeightGrid

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def made(cls=DirectMixture, *, num_basis=6, weights=None, **options):
    draws = torch.Generator().manual_seed(0)
    x = torch.rand(12, 1, generator=draws, dtype=torch.float64) * 4.0 - 2.0
    y = (2.0 * x[:, 0]).sin()
    model = cls(
        kernel=RBF(1, lengthscale=0.7, outputscale=1.3),
        mean=Constant(0.1),
        likelihood=Gaussian(0.05),
        basis=RandomFourier,
        num_basis=num_basis,
        weights=WeightGrid(5, 2.0) if weights is None else weights,
        **options,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        # in the place of the start, whose weights are all but certain
        model.logits.copy_(torch.randn(model.logits.shape, generator=draws, dtype=torch.float64))
    return model, model.condition(x, y), x, y


@pytest.mark.parametrize("noise", [None, NoiseGrid(values=[0.7]), NoiseGrid(values=[0.02, 0.3])])
def test_a_new_target_has_the_mixture_of_the_laws_of_the_components(noise):
    model, posterior, x, y = made(components=3, noise=noise)
    shares, q = model.mixture()
    variance = model.likelihood.noise_variance.detach()
    if noise is not None:
        variance = model.noise_logits.detach().softmax(0) @ noise.values
    density = 0.0
    with torch.no_grad():
        features = model.basis(x) * model.scale
        for share, component in zip(shares, q, strict=True):
            of_weights = component @ model.values()
            spread = component @ model.values() ** 2 - of_weights**2
            mean = model.mean(x) + features @ of_weights
            deviation = (features**2 @ spread + variance).sqrt()
            density += share * torch.distributions.Normal(mean, deviation).log_prob(y).exp()
    law = posterior.predictive(x, model.likelihood)
    torch.testing.assert_close(law.log_prob(y).exp(), density, **EXACT)
    assert posterior.has_own_noise == (noise is not None)


@pytest.mark.parametrize("noise", [None, NoiseGrid(values=[0.02, 0.3])])
@pytest.mark.parametrize("cls", [Direct, DirectMixture])
def test_rows_with_a_noise_of_their_own_have_it_in_every_component(cls, noise):
    model, posterior, x, y = made(cls, noise=noise)
    variance = posterior.noise_variance(model.likelihood)
    rows = RowNoise(torch.linspace(0.0, 2.0, 12).double(), torch.linspace(0.5, 3.0, 12).double())
    law = posterior.predictive_of_rows(x, model.likelihood, rows)
    density = 0.0
    mean, spread, _ = posterior.cumulants(x)
    for share, centre, own in zip(posterior.shares, mean, spread, strict=True):
        deviation = (own + rows.known + rows.relative * variance).sqrt()
        density += share * torch.distributions.Normal(centre, deviation).log_prob(y).exp()
    torch.testing.assert_close(law.log_prob(y).exp(), density, **EXACT)


@pytest.mark.parametrize("cls", [Direct, DirectMixture])
def test_rows_are_taken_as_many_at_a_time_as_memory_is_to_hold(cls, monkeypatch):
    _, posterior, x, _ = made(cls)
    paths = posterior.sample_paths(2, generator=torch.Generator().manual_seed(1))
    want = *posterior.predict(x), paths(x)
    taken, basis = [], posterior.basis
    features = type(basis).forward

    def watched(self, x, *more):
        taken.append(len(x))
        return features(self, x, *more)

    monkeypatch.setattr(type(basis), "forward", watched)
    monkeypatch.setattr(module, "DEFAULT_BUDGET", 6 * 4 * 8 * 6)
    for mine, theirs in zip((*posterior.predict(x), paths(x)), want, strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT)
    assert taken == [6, 6] * 2
    assert paths(x[:0]).shape == (2, 0)


def test_a_posterior_keeps_its_functions_from_training():
    _, posterior, _, _ = made()
    assert not any(parameter.requires_grad for parameter in posterior.parameters())


def test_a_byte_holds_the_places_of_256_values_of_any_number_of_weights():
    weights = WeightGrid(256, 2.0, sparse=False)
    _, posterior, _, _ = made(Direct, weights=weights)
    codes = posterior.sample_codes(200, generator=torch.Generator().manual_seed(0))
    assert codes.dtype == torch.uint8
    assert int(codes.max()) > 200
    _, posterior, _, _ = made(Direct, weights=WeightGrid(257, 2.0))
    with pytest.raises(ConfigError, match="a byte holds 256 values and the weights have 257"):
        posterior.sample_codes(1, generator=torch.Generator())
    _, posterior, _, _ = made(Direct, num_basis=300)
    assert posterior.sample_codes(1, generator=torch.Generator()).shape == (1, 300)


def of_any_columns(cls, labels):
    """A model whose basis takes inputs of any number of columns, trained on two."""
    x = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (x[:, 0] - x[:, 1]).sign() if labels else x.sum(1).sin()
    model = cls(
        kernel=RBF(),
        mean=Constant(0.1),
        likelihood=Bernoulli() if labels else Gaussian(0.05),
        basis=RandomFourier,
        num_basis=8,
    ).double()
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return model, x, y


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize(
    ("cls", "labels"), [(Direct, False), (DirectMixture, False), (DirectLogistic, True)]
)
def test_inputs_of_another_width_than_in_training_are_refused(cls, labels, columns):
    model, x, y = of_any_columns(cls, labels)
    posterior = model.condition(x, y)
    loaded = model.new_posterior()
    loaded.load_state_dict(posterior.state_dict())
    for each in (posterior, loaded):
        with pytest.raises(ShapeError, match=f"inputs have {columns} columns.*made for 2"):
            each.predict(x.new_zeros(4, columns))


@pytest.mark.parametrize("cls", [Direct, DirectMixture])
def test_rows_of_another_width_are_neither_added_nor_removed(cls):
    model, x, y = of_any_columns(cls, False)
    for change in (model.add_rows, model.remove_rows):
        with pytest.raises(ShapeError, match=r"inputs have 1 columns.*made for 2"):
            change(x[:3, :1], y[:3])
        with pytest.raises(ShapeError, match="targets have shape"):
            change(x[:3], y[:3, None])


def test_states_of_before_load_and_take_any_width():
    model, x, y = of_any_columns(Direct, False)
    posterior = model.condition(x, y)
    for made, into in ((posterior, model.new_posterior()), (model, model)):
        state = made.state_dict()
        del state["trained_columns_of"]
        into.load_state_dict(state)
        assert into.trained_columns is None
    assert model.condition(x, y).num_inputs is None
