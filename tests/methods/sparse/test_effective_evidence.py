"""Evidence of effective priors: dense definitions, gradients, limits, streaming."""

import effective_priors
import pytest
import torch
from model_gradients import KERNELS, gradients, same_gradients

from gpx.errors import ConfigError, NotPositiveDefinite
from gpx.inference import nystrom
from gpx.kernels import RBF
from gpx.likelihoods import Gaussian, StudentT
from gpx.linalg import with_gradient
from gpx.means import Linear
from gpx.methods.sparse.effective_evidence import effective_evidence
from gpx.methods.sparse.residual_noise import RESIDUAL_NOISE
from gpx.models import EffectivePrior, ExactGP
from gpx.objectives import CollapsedELBO, EffectiveEvidence, ExactMLL

PRIORS = ["sor", "dtc", "fitc", "fic", "pitc", "pic"]


def problem(prior, kernel=None, n=70, m=12, dtype=torch.float64, seed=0, blocks=5, **options):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = draw(n, 3)
    y = x.sum(1).sin() + 0.1 * draw(n)
    if prior in ("pitc", "pic") and blocks is not None:
        options["block_centres"] = x[:blocks]
    model = EffectivePrior(
        kernel=kernel or KERNELS["matern32"](),
        mean=Linear(3, bias=0.3),
        likelihood=Gaussian(0.07),
        num_inputs=3,
        num_inducing=m,
        prior=prior,
        learn_inducing=True,
        **options,
    ).to(dtype)
    model.place(draw(m, 3).to(dtype))
    return model, x.to(dtype), y.to(dtype)


def evidence(model, x, y, **options):
    return EffectiveEvidence(**options).evidence(model, x, y)


@pytest.mark.parametrize("budget", [2**12, 2**30])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("prior", PRIORS)
def test_value_and_gradient_equal_the_dense_definition(prior, name, budget, monkeypatch):
    monkeypatch.setitem(nystrom.BLOCK_BYTES, "cpu", 13 * 12 * 8)  # 13 points a block
    if prior in ("pitc", "pic") and budget == 2**12:
        budget = 2**15  # its largest block has to fit
    model, x, y = problem(prior, KERNELS[name]())
    found = evidence(model, x, y, memory_budget=budget)
    want = effective_priors.dense_evidence(model, x, y, prior)
    torch.testing.assert_close(found.value, want, rtol=1e-11, atol=0)
    same_gradients(gradients(found.value, model), gradients(want, model), 1e-8)
    assert found.kind == "estimate"
    assert found.report.jitter == 0.0
    torch.testing.assert_close(sum(found.parts.values()), found.value.detach())


@pytest.mark.parametrize("structure", ["none", "diagonal", "blocks"])
def test_gradcheck_of_the_plain_function(structure):
    model, x, y = problem("fitc", n=12, m=4)

    def plain(z, noise, residual, inputs):
        terms, gradient, _ = effective_evidence(
            model.kernel,
            inputs,
            z,
            residual,
            noise,
            structure,
            gradient=True,
            bounds=[0, 5, 5, 12],
        )
        known = [gradient.residual, gradient.noise, *gradient.kernel.gradients()]
        return with_gradient(sum(terms), [residual, noise, *gradient.kernel.inputs()], known)

    z = model.inducing_points.detach().clone().requires_grad_()
    noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    residual = y.clone().requires_grad_()
    inputs = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(plain, (z, noise, residual, inputs))


@pytest.mark.parametrize("prior", ["sor", "fitc", "pitc"])
def test_the_gradient_follows_the_jitter(prior):
    model, x, y = problem(prior, jitter=1e-2)
    found = evidence(model, x, y)
    assert found.report.relative == 1e-2
    want = effective_priors.dense_evidence(model, x, y, prior, relative_jitter=1e-2)
    torch.testing.assert_close(found.value, want, rtol=1e-11, atol=0)
    same_gradients(gradients(found.value, model), gradients(want, model), 1e-8)


@pytest.mark.parametrize("prior", PRIORS)
def test_inducing_points_at_all_the_data_are_exact(prior):
    model, x, y = problem(prior, m=70)
    model.place(x)
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    want = ExactMLL().evidence(exact, x, y).value
    torch.testing.assert_close(evidence(model, x, y).value, want, rtol=1e-9, atol=0)


def test_clamped_points_drop_out_of_the_gradient():
    class Understated(RBF):
        """Says that its variance is smaller than k(x, x), so that half of the gaps are negative."""

        def variance(self, x):
            return super().variance(x) * (0.5 + 0.4 * (x[:, 0] > 0))

    model, x, y = problem("fitc", Understated(lengthscale=1.0), m=20)
    found = evidence(model, x, y).value
    z, kernel = model.inducing_points, model.kernel
    q = effective_priors.dense_nystrom(model, x, x)
    gap = (kernel.diagonal(x) - q.diagonal()).clamp(min=0.0)
    assert 10 < int((gap == 0.0).sum()) < 60
    matrix = q + (gap + model.likelihood.noise_variance).diag()
    want = torch.distributions.MultivariateNormal(
        model.mean(x), matrix, validate_args=False
    ).log_prob(y)
    torch.testing.assert_close(found, want, rtol=1e-11, atol=0)
    same_gradients(gradients(found, model), gradients(want, model), 1e-8)
    assert z.requires_grad


def test_blocks_of_one_point_are_fitc():
    model, x, y = problem("pitc", n=30, blocks=30)
    other, _, _ = problem("fitc", n=30)
    a, b = evidence(model, x, y).value, evidence(other, x, y).value
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    same_gradients(gradients(a, model), gradients(b, other), 1e-9)


@pytest.mark.parametrize("prior", ["pitc", "pic"])
def test_one_block_is_the_exact_evidence(prior):
    model, x, y = problem(prior, blocks=1)
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    want = ExactMLL().evidence(exact, x, y).value
    torch.testing.assert_close(evidence(model, x, y).value, want, rtol=1e-10, atol=0)


def test_dtc_is_the_collapsed_bound_without_its_trace():
    model, x, y = problem("dtc")
    model.escalate = True
    bound = CollapsedELBO().evidence(model, x, y)
    want = bound.value - bound.parts["trace"]
    torch.testing.assert_close(evidence(model, x, y).value, want, rtol=1e-12, atol=0)


def test_fitc_may_exceed_the_evidence_and_says_that_it_is_no_bound():
    # with inducing points at will, and noise at its optimum, FITC overestimates
    model, x, y = problem("fitc", n=40, m=10, seed=3)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = -evidence(model, x, y).value
        loss.backward()
        return loss

    optimiser.step(closure)
    exact = ExactGP(kernel=model.kernel, mean=model.mean, likelihood=model.likelihood)
    found = evidence(model, x, y)
    assert found.value > ExactMLL().evidence(exact, x, y).value
    assert found.kind == EffectiveEvidence.kind == "estimate"


@pytest.mark.parametrize("prior", ["dtc", "fitc", "pitc"])
def test_float32_is_near_float64(prior):
    model, x, y = problem(prior)
    want = evidence(model, x, y).value
    wanted = gradients(want, model)
    model, x, y = problem(prior, dtype=torch.float32, jitter=0.0)
    found = evidence(model, x, y).value
    torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=0)
    same_gradients(gradients(found, model), wanted, 1e-2)


def test_the_order_of_the_data_does_not_matter():
    model, x, y = problem("pic")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    one, other = evidence(model, x, y).value, evidence(model, x[order], y[order]).value
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_gradients_flow_into_the_inputs_through_the_order_of_blocks():
    model, x, y = problem("pitc")
    x = x.requires_grad_()
    (found,) = torch.autograd.grad(evidence(model, x, y).value, x)
    (want,) = torch.autograd.grad(effective_priors.dense_evidence(model, x, y, "pitc"), x)
    torch.testing.assert_close(found, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("structure", "needed"), [("diagonal", 3 * 60 * 8), ("blocks", 1.5 * (40**2 + 20**2) * 8)]
)
def test_the_noise_of_blocks_is_kept_for_the_gradient_where_it_fits(structure, needed, monkeypatch):
    """Beside A (60 x 12): what does not fit is made a second time."""
    model, x, y = problem("fitc", n=60)
    kind, made = RESIDUAL_NOISE[structure], []

    class Counted(kind):
        def __init__(self, store, rows, *rest):
            made.append(rows)
            super().__init__(store, rows, *rest)

    monkeypatch.setitem(RESIDUAL_NOISE, structure, Counted)
    bounds = [0, 40, 60] if structure == "blocks" else None
    residual, noise = (y - model.mean(x)).detach(), torch.tensor(0.07).double()
    for budget, gradient, passes in [
        (60 * 12 * 8 + needed, True, 1),
        (60 * 12 * 8 + needed - 1, True, 2),
        (60 * 12 * 8 + needed, False, 1),
    ]:
        made.clear()
        effective_evidence(
            *(model.kernel, x, model.inducing_points, residual, noise, structure),
            gradient=gradient,
            bounds=bounds,
            memory_budget=int(budget),
        )
        assert len(made) == passes * len(set(map(str, made)))


@pytest.mark.parametrize("structure", ["none", "diagonal"])
def test_noise_of_rows_has_one_gradient_whether_its_parts_are_kept_or_made_again(
    structure, monkeypatch
):
    monkeypatch.setitem(nystrom.BLOCK_BYTES, "cpu", 13 * 12 * 8)
    model, x, y = problem("fitc", n=60)
    noise, found = torch.linspace(0.05, 0.4, 60).double(), []
    for budget in (0, 2**30):
        _, gradient, _ = effective_evidence(
            *(model.kernel, x, model.inducing_points, (y - model.mean(x)).detach()),
            *(noise, structure),
            gradient=True,
            memory_budget=budget,
        )
        found.append([gradient.residual, gradient.noise, *gradient.kernel.gradients()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_block_beyond_the_memory_budget_is_reported():
    model, x, y = problem("pitc", blocks=1)
    with pytest.raises(ConfigError, match=r"largest block has 70 of 70 .*ask for more blocks"):
        evidence(model, x, y, memory_budget=2**10)


def test_another_likelihood_is_refused():
    model, x, y = problem("fitc")
    model.likelihood = StudentT().double()
    with pytest.raises(ConfigError, match="needs the Gaussian likelihood, got StudentT"):
        evidence(model, x, y)


def test_a_block_without_a_factor_is_an_error_not_a_jitter():
    model, x, y = problem("pitc", RBF(lengthscale=50.0), blocks=1)
    with torch.no_grad():
        noise = torch.tensor(-1.0, dtype=torch.float64)
    with pytest.raises(NotPositiveDefinite, match="of a block of 70 points"):
        effective_evidence(
            model.kernel,
            x,
            model.inducing_points,
            y,
            noise,
            "blocks",
            gradient=False,
            bounds=[0, 70],
        )
