"""Bounds of mixtures: their gradients by finite differences, and the baseline of sampled ones."""

import pytest
import torch
from discrete_hypotheses import require_slopes, sine

from gpx.bases import RandomFourier
from gpx.errors import ConfigError
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.methods.direct.mean_field import draw_codes, total
from gpx.methods.direct.mixture_elbo import log_density
from gpx.models import Direct, DirectMixture, NoiseGrid, WeightGrid
from gpx.objectives import DirectMixtureELBO, DirectSampledELBO

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def made(x, y, *, cls=DirectMixture, num_basis=4, **options):
    found = cls(
        kernel=RBF(1, lengthscale=0.7, outputscale=1.3),
        mean=Constant(0.1),
        likelihood=Gaussian(0.05),
        basis=RandomFourier,
        num_basis=num_basis,
        **{"weights": WeightGrid(3, 1.5, widths=[0.5, 2.0], shares=[1.0, 2.0]), **options},
    ).double()
    found.initialise(x, y, generator=torch.Generator().manual_seed(0))
    return found


def mixture(x, y):
    model = made(x, y, components=3, noise=NoiseGrid(values=[0.05, 0.4]))
    parameters = [model.share_logits, model.logits, model.tangent, model.noise_logits]
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in parameters:
            # in the place of the start, whose weights are all but certain
            part.copy_(torch.randn(part.shape, generator=draws, dtype=torch.float64))
    return model, parameters


@pytest.mark.parametrize("objective", [DirectMixtureELBO(), DirectSampledELBO(9, draws=3)])
def test_misfit_is_the_expected_squared_error_in_noise_variances(objective):
    x, y = sine()
    model = made(x, y, components=3)
    with torch.no_grad():
        model.logits.normal_(generator=torch.Generator().manual_seed(1))
    shares, q = model.mixture()
    features, values = (model.basis(x) * model.scale).detach(), model.values()
    mean = q @ values  # (r, m)
    variance = q @ values.square() - mean.square()
    residual = (y - 0.1).unsqueeze(1) - features @ mean.T
    error = (residual.square() + features.square() @ variance.T).mean(0) @ shares
    draws = torch.Generator().manual_seed(2)
    facts = objective.full_evidence(model, x, y, batch_size=9, generator=draws).facts
    assert facts["misfit"] == pytest.approx(error.item() / 0.05, rel=1e-9)


def test_gradients_of_the_bound_pass_finite_differences():
    x, y = sine()
    model, parameters = mixture(x, y)
    assert {id(p) for p in model.parameter_groups()["variational"]} == {id(p) for p in parameters}
    require_slopes(lambda: DirectMixtureELBO().evidence(model, x, y).value, parameters)


def test_the_sampled_gradient_is_that_of_draws_against_the_mean_of_the_others():
    x, y = sine()
    model, parameters = mixture(x, y)
    parameters = [p for p in parameters if p is not model.tangent]
    objective = DirectSampledELBO(len(x), draws=7)
    found = objective.evidence(model, x, y, generator=torch.Generator().manual_seed(5))
    got = torch.autograd.grad(found.value, parameters)

    exact = sum(model.exact_terms().values())
    shares, q = model.mixture()
    generator = torch.Generator().manual_seed(5)
    logs = log_density(
        model.log_shares(), model.log_q(), draw_codes(shares.detach(), q.detach(), 7, generator)
    )
    fixed = logs.detach()
    torch.testing.assert_close(found.value.detach(), exact.detach() - fixed.mean(), **EXACT)
    others = torch.stack([torch.cat([fixed[:i], fixed[i + 1 :]]).mean() for i in range(7)])
    # the gradient of the entropy is -E (log q - c) grad log q
    want = torch.autograd.grad(exact - ((fixed - others) * logs).mean(), parameters)
    for mine, oracle in zip(got, want, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-10, atol=1e-10)

    whole = objective.full_evidence(
        model, x, y, batch_size=2, generator=torch.Generator().manual_seed(5)
    )
    torch.testing.assert_close(whole.value, found.value.detach(), **EXACT)
    assert objective.num_data(x[:2]) == len(x)


def test_rows_are_counted_and_models_without_components_refused():
    x, y = sine()
    for objective in (DirectMixtureELBO(), DirectSampledELBO(len(x))):
        with pytest.raises(ConfigError, match="DirectMixture"):
            objective.evidence(made(x, y, cls=Direct), x, y, generator=torch.Generator())
    assert DirectMixtureELBO().num_data(x) == len(x)
    assert DirectMixtureELBO().num_data(x[:0]) == 1


def test_components_start_around_a_mean_field_with_equal_shares():
    x, y = sine()
    model = made(x, y, components=3, perturbation=0.3)
    model.share_logits.data += torch.tensor([1.0, 2.0, 3.0]).double()
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(2)).double()
    model.start_around(logits, generator=torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    draws = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(model.logits.detach(), logits + 0.3 * draws, **EXACT)
    torch.testing.assert_close(model.tangent.detach(), logits.log_softmax(-1), **EXACT)
    assert not bool(model.share_logits.any())


@pytest.mark.parametrize("noise", [None, NoiseGrid(num_values=5)])
@pytest.mark.parametrize("sweeps", [0, 3, 400])
def test_the_mean_field_of_the_start_is_swept_until_a_sweep_gains_little(
    noise, sweeps, monkeypatch
):
    x, y = sine(40)
    options = {"num_basis": 60, "weights": WeightGrid(5, 2.0), "noise": noise, "anneal": 1}
    taken, swept = [], DirectMixture.logits_after_sweep

    def counted(self, logits, share=1.0):
        taken.append(share)
        return swept(self, logits, share)

    monkeypatch.setattr(DirectMixture, "logits_after_sweep", counted)
    model = made(x, y, components=2, perturbation=0.0, sweeps=sweeps, **options)
    assert model.note.endswith("; 2 components")
    own = taken[2:]  # behind two of annealing
    logits = model.logits.detach()[0]
    assert bool((own == [1.0] * len(own)) and (model.logits[1] == logits).all())
    if sweeps < 400:
        assert len(own) == sweeps
    else:
        assert 3 < len(own) < 400
        after, before = (
            float(total(model.mean_field_terms(each)).detach())
            for each in (model.logits_after_sweep(logits), logits)
        )
        assert after - before < 1e-3
    if noise is not None and sweeps:
        want = model.best_noise_logits(model.mean_field_terms(logits)["fit"])
        torch.testing.assert_close(model.noise_logits.detach(), want, **EXACT)
    # the same sweeps, one by one
    alone = made(x, y, cls=Direct, **options)
    logits = alone.annealed_logits(1)
    for _ in own:
        logits = alone.logits_after_sweep(logits)
        if noise is not None:
            alone.noise_logits.data = alone.best_noise_logits(alone.mean_field_terms(logits)["fit"])
    torch.testing.assert_close(model.logits.detach()[0], logits, rtol=1e-9, atol=1e-9)


def test_zero_sweeps_and_anneal_steps_are_allowed_and_negative_ones_refused():
    x, y = sine()
    model = made(x, y, sweeps=0, anneal=0, perturbation=0.0)
    prior = model.log_prior().expand(4, -1)
    torch.testing.assert_close(model.logits.detach()[0], prior, **EXACT)
    for option in ("sweeps", "anneal"):
        with pytest.raises(ConfigError, match=f"{option}=-1"):
            made(x, y, **{option: -1})
