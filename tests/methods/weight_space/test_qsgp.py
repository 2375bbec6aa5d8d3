"""The QSGP model and its posterior process."""

from functools import partial

import pytest
import torch

from gpx.bases import ImportanceWeightedFourier, KernelDictionary, RandomFourier
from gpx.errors import ConfigError, ShapeError
from gpx.kernels import RBF, Matern32
from gpx.likelihoods import Gaussian, Softmax, StudentT
from gpx.means import Constant, Zero
from gpx.methods.weight_space import posterior as weight_space_posterior
from gpx.methods.weight_space.qsgp import QSGP

pytestmark = pytest.mark.usefixtures("float64_by_default")


def problem(num_dense=0, n=60, m=40, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 2, generator=generator)
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(n, generator=generator)
    settings = {
        "kernel": RBF(ard_num_dims=2, lengthscale=(0.8, 1.2), outputscale=1.4),
        "mean": Zero(),
        "likelihood": Gaussian(0.05),
        "num_basis": m,
        "covariance": "chevron" if num_dense else "mean_field",
        "num_dense": num_dense,
        "basis": partial(RandomFourier, block_frequencies=5),
        "warm_start_size": 20,
        "diagonal_rows": 0,
    }
    model = QSGP(**{**settings, **options})
    model.initialise(x, y, generator=generator)
    return model, x, y


def randomise(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.family.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))


def dense_weights(model):
    blocks = torch.arange(model.basis.num_blocks)
    scale = model.log_scales(blocks).exp() * model.family.is_diagonal_column(blocks)
    dense = model.family.dense_of(blocks).reshape(model.basis.num_basis, -1)
    return model.family.mean.detach().reshape(-1), torch.diag(scale.reshape(-1)), dense.detach()


@pytest.mark.parametrize("num_dense", [0, 7])
@pytest.mark.parametrize("diagonal", ["free", "closed_form"])
def test_prediction_is_dense_algebra_whatever_the_chunks(num_dense, diagonal, monkeypatch):
    model, x, y = problem(num_dense, diagonal=diagonal)
    randomise(model)
    mean, diagonal_part, dense = (t.detach() for t in dense_weights(model))
    phi = model.basis(x).detach()
    sigma = diagonal_part @ diagonal_part + dense @ dense.T
    posterior = model.condition(x, y)
    for budget, rows in ((32 * 2**20, 2048), (1, 7)):
        monkeypatch.setattr(weight_space_posterior, "FEATURE_BUDGET", budget)
        monkeypatch.setattr(weight_space_posterior, "ROW_CHUNK", rows)
        found = posterior.predict(x)
        torch.testing.assert_close(found.mean, phi @ mean)
        torch.testing.assert_close(found.variance, (phi @ sigma @ phi.T).diagonal())
    assert not found.mean.requires_grad


def test_exact_warm_start_with_one_group_is_the_exact_gaussian_process_mean():
    model, x, y = problem(warm_start_size=40)
    phi = model.basis(x).detach()
    covariance = phi @ phi.T
    want = covariance @ torch.linalg.solve(covariance + 0.05 * torch.eye(60), y)
    torch.testing.assert_close(model.condition(x, y).predict(x).mean, want)
    assert model.anchor_blocks == model.basis.num_blocks


def test_posterior_survives_a_checkpoint_and_is_independent_of_the_model(tmp_path):
    model, x, y = problem(3)
    posterior = model.condition(x, y)
    want = posterior.predict(x)
    torch.save(posterior.state_dict(), tmp_path / "posterior.pt")
    randomise(model)
    with torch.no_grad():
        model.kernel.lengthscale = torch.tensor([3.0, 3.0])
    found = posterior.predict(x)
    assert torch.equal(found.mean, want.mean)
    empty = model.new_posterior()
    empty.load_state_dict(torch.load(tmp_path / "posterior.pt", weights_only=True))
    restored = empty.predict(x)
    assert torch.equal(restored.mean, want.mean)
    assert torch.equal(restored.variance, want.variance)


def test_sampled_paths_agree_between_calls_and_have_the_posterior_moments():
    model, x, y = problem(2)
    randomise(model)
    posterior = model.condition(x, y)
    paths = posterior.sample_paths(4000, generator=torch.Generator().manual_seed(0))
    values = paths(x[:5])
    torch.testing.assert_close(paths(x)[:, :5], values)
    assert paths(x[:0]).shape == (4000, 0)
    assert posterior.predict(x[:0]).variance.shape == (0,)
    marginals = posterior.predict(x[:5])
    # 5 standard errors of a mean and of a variance over 4,000 draws
    spread = marginals.variance.sqrt()
    assert ((values.mean(0) - marginals.mean).abs() < 5 * spread / 4000**0.5).all()
    assert ((values.var(0) / marginals.variance - 1).abs() < 5 * (2 / 4000) ** 0.5).all()


def test_parameter_groups_cover_every_parameter_once():
    for num_dense in (0, 4):
        model, _, _ = problem(num_dense, diagonal="free")
        groups = model.parameter_groups()
        listed = [id(p) for group in groups.values() for p in group]
        assert sorted(listed) == sorted(id(p) for p in model.parameters())
        assert set(groups) == {"variational", "hyperparameters"}
        assert len(groups["hyperparameters"]) == 3


def test_parameters_of_the_basis_beside_the_kernel_are_trained():
    kernel, centres = RBF(2), torch.randn(10, 2)
    basis = KernelDictionary(kernel, centres, block_size=5)
    model = QSGP(
        kernel=kernel, mean=Zero(), likelihood=Gaussian(0.1), basis=basis, warm_start=False
    )
    listed = [id(p) for group in model.parameter_groups().values() for p in group]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())
    assert any(p is basis.log_precision for p in model.parameter_groups()["hyperparameters"])
    basis.log_precision.requires_grad_(False)
    assert not any(p is basis.log_precision for p in model.parameter_groups()["hyperparameters"])


def test_frozen_parameters_of_a_proposal_are_in_no_group():
    basis = partial(ImportanceWeightedFourier, num_inputs=2)
    model = QSGP(
        kernel=RBF(2),
        mean=Zero(),
        likelihood=Gaussian(0.1),
        num_basis=20,
        basis=basis,
        warm_start=False,
    )
    listed = [p for group in model.parameter_groups().values() for p in group]
    assert all(p.requires_grad for p in listed)
    assert len(model.parameter_groups()["hyperparameters"]) == 3


@pytest.mark.parametrize(
    "basis",
    [partial(RandomFourier, block_frequencies=5), partial(ImportanceWeightedFourier, num_inputs=2)],
    ids=["fourier", "importance_weighted"],
)
def test_float32_model_predicts_close_to_float64(basis):
    """Whatever the dtype of the prior's variances, which importance weights give in float64."""
    model, x, y = problem(2, basis=basis)
    double = model.condition(x, y).predict(x)
    single_model, _, _ = problem(2, basis=basis)
    single_model.load_state_dict(model.state_dict())
    single = single_model.float().condition(x.float(), y.float()).predict(x.float())
    assert single.mean.dtype == torch.float32
    assert (single.mean - double.mean).norm() < 1e-5 * double.mean.norm()


def test_scales_from_a_subset_of_rows_are_close():
    model, _, _ = problem(n=4000, diagonal_rows=500)
    whole, _, _ = problem(n=4000, diagonal_rows=0)
    error = (model.family.column_ratio / whole.family.column_ratio - 1).abs().max()
    assert 0 < error < 0.25
    assert float(model.num_data) == 4000


def test_scales_from_all_rows_hold_a_chunk_of_features_at_once():
    n, m = 40_000, 200
    with torch.profiler.profile(profile_memory=True) as profile:
        problem(n=n, m=m, warm_start_size=20)
    current = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    assert peak < 8 * n * m / 4


def test_matern_and_no_warm_start():
    model, x, y = problem(kernel=Matern32(ard_num_dims=2), warm_start=False)
    assert model.anchor_blocks == 0
    assert not model.family.mean.any()
    assert torch.equal(model.condition(x, y).predict(x).mean, torch.zeros(60))


def test_invalid_setups_are_refused():
    class Other(Gaussian):
        pass

    with pytest.raises(ConfigError, match="mean=Zero"):
        problem(mean=Constant())
    with pytest.raises(ConfigError, match="concave in f, and StudentT is not"):
        problem(likelihood=StudentT())
    with pytest.raises(ConfigError, match="one latent function, got Softmax with 3"):
        problem(likelihood=Softmax(3))
    with pytest.raises(ConfigError, match="chevron needs num_dense"):
        problem(covariance="chevron")
    with pytest.raises(ConfigError, match="covariance=dense"):
        problem(covariance="dense")
    with pytest.raises(ConfigError, match="must be even"):
        problem(m=41)
    with pytest.raises(ConfigError, match="warm_start_size"):
        problem(warm_start_size=0)
    assert problem(likelihood=Other(0.1))[0].likelihood.noise_variance > 0


@pytest.mark.parametrize(
    ("num_data", "expected"),
    [(None, 100_000), (50, 5_000), (500, 5_000), (927, 9_300), (9_999, 100_000), (10**6, 100_000)],
)
def test_the_number_of_functions_follows_the_rows(num_data, expected):
    model = QSGP(
        kernel=RBF(2), mean=Zero(), likelihood=Gaussian(), num_basis=None, num_data=num_data
    )
    assert model.basis.num_basis == expected
    settled = model.settle(torch.zeros(num_data or 3, 2))
    assert settled["num_basis"][0] == expected
    asked = QSGP(
        kernel=RBF(2), mean=Zero(), likelihood=Gaussian(), num_basis=400, num_data=num_data
    )
    assert asked.basis.num_basis == 400
    assert asked.settle(torch.zeros(3, 2)) == {}


@pytest.mark.parametrize("columns", [1, 3])
def test_inputs_of_another_width_than_in_training_are_refused(columns):
    """Features of an isotropic kernel would be those of other functions."""
    model, x, y = problem(kernel=RBF())
    posterior = model.condition(x, y)
    loaded = model.new_posterior()
    loaded.load_state_dict(posterior.state_dict())
    for found in (posterior, loaded):
        with pytest.raises(ShapeError, match=f"inputs have {columns} columns.*made for 2"):
            found.predict(x.new_zeros(4, columns))
    without = {k: v for k, v in posterior.state_dict().items() if "columns" not in k}
    loaded.load_state_dict(without)  # as earlier versions stored it
    assert loaded.num_inputs is None
    assert torch.equal(loaded.predict(x).mean, posterior.predict(x).mean)
