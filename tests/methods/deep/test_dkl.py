"""Deep kernel learning: SVGP on features, which are trained, pretrained, masked or the inputs."""

import pytest
import torch
from claimed_cuda import claimed_cuda
from draws import draws
from recordings import Capture

from gpx.errors import ConfigError, DidNotConverge
from gpx.inducing import GreedyConditionalVariance
from gpx.kernels import RBF
from gpx.likelihoods import Bernoulli, Gaussian, Softmax
from gpx.linalg.replayed import EAGER_STEPS, solves_recorded
from gpx.means import Constant
from gpx.methods.deep.feature_body import Standardised
from gpx.models import DKL, SVDKL, SVGP
from gpx.objectives import SVGPELBO, SampledELBO

pytestmark = pytest.mark.usefixtures("float64_by_default")

NUM = 40


def data(d=2):
    x = torch.randn(NUM, d, generator=draws())
    return x, x.sin().sum(1) + 0.2 * torch.randn(NUM, generator=draws(1))


def parts(likelihood=None):
    return {
        "kernel": RBF(2, [0.9, 1.3], 1.2),
        "mean": Constant(0.1),
        "likelihood": Gaussian(0.1) if likelihood is None else likelihood,
        "num_inputs": 2,
        "num_inducing": 9,
    }


def small(likelihood=None, **options):
    given = {"hidden": [8], "num_features": 3, "pretrain_steps": 20, "predict_samples": 4}
    return DKL(**{**parts(likelihood), **given, **options})


LIKELIHOODS = {
    "gaussian": (lambda: Gaussian(0.1), lambda y: y),
    "bernoulli": (Bernoulli, lambda y: y.sign()),
    "softmax": (lambda: Softmax(3), lambda y: (y > 0.5).double() + (y > -0.5)),
}


@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_on_the_inputs_themselves_it_is_svgp(name, refit):
    make, code = LIKELIHOODS[name]
    x, y = data()
    y = code(y)
    found = DKL(**parts(make()), backbone="identity", refit=refit)
    # with other noise, q of a layer starts at the prior
    want = SVGP(**parts(make()), refit=refit, warm_start=name == "gaussian")
    for model in (found, want):
        model.initialise(x, y, generator=draws(3))
    if not isinstance(want.likelihood, Gaussian):
        with torch.no_grad():
            found.layer.q.mean.normal_(generator=draws(4))
            want.q.mean.normal_(generator=draws(4))
    a = SampledELBO(NUM, expected=True).evidence(found, x[:10], y[:10])
    b = SVGPELBO(NUM).evidence(want, x[:10], y[:10])
    torch.testing.assert_close(a.value, b.value, rtol=1e-12, atol=0.0)
    for key in ("fit", "complexity"):
        torch.testing.assert_close(a.parts[key], b.parts[key], rtol=1e-12, atol=1e-12)
    new = torch.randn(5, 2, generator=draws(5))
    predicted = found.condition(x, y).predict(new)
    for one, other in zip(predicted, want.condition(x, y).predict(new), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_on_frozen_features_it_is_svgp_on_them():
    x, y = data()
    found = small(pretrain_steps=5)
    found.initialise(x, y, generator=draws(3))
    features = found.body(x).detach()
    want = SVGP(**{**parts(), "kernel": found.layer.kernel, "num_inputs": 3})
    want.likelihood, want.mean = found.likelihood, found.layer.mean
    want.place(found.layer.inducing.detach())
    want.fit_variational(features, y)
    a = SampledELBO(NUM, expected=True).evidence(found, x, y).value
    b = SVGPELBO(NUM).evidence(want, features, y).value
    torch.testing.assert_close(a, b, rtol=1e-9, atol=0.0)
    torch.testing.assert_close(features.mean(0), torch.zeros(3))
    torch.testing.assert_close(features.std(0, correction=0), torch.full((3,), 3.0**-0.5))


def test_it_has_as_many_points_as_a_selector_chose_and_loads_its_state():
    x, y = data()
    few = GreedyConditionalVariance(threshold=0.5)
    model = small(selector=few, backbone="identity", pretrain_steps=0)
    asked = len(model.layer.inducing)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    model.initialise(x, y, generator=draws())
    assert len(model.layer.inducing) == model.layer.q.mean.shape[1] < asked
    SampledELBO(len(x), expected=True)(model, x, y, generator=draws()).backward()
    optimiser.step()
    posterior = model.condition(x, y)
    again = small(selector=few, backbone="identity", pretrain_steps=0)
    again.load_state_dict(model.state_dict())
    empty = small(selector=few, backbone="identity", pretrain_steps=0).new_posterior()
    empty.load_state_dict(posterior.state_dict())
    for other in (again.condition(x, y), empty):
        for one, two in zip(other.predict(x), posterior.predict(x), strict=True):
            torch.testing.assert_close(one, two, rtol=0.0, atol=0.0)


def own_network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def test_a_network_of_ones_own_is_trained_and_used_as_it_is():
    x, y = data()
    model = DKL(**parts(), backbone=own_network(), pretrain_steps=5)
    before = model.body.network[0].weight.clone()
    model.initialise(x, y, generator=draws(3))
    assert not torch.equal(before, model.body.network[0].weight)
    raw = model.body.network(x).detach()
    want = (raw - raw.mean(0)) / raw.std(0, correction=0) / 3.0**0.5
    torch.testing.assert_close(model.body(x).detach(), want)
    evidence = SampledELBO(NUM, expected=True).evidence(model, x, y)
    evidence.value.backward()
    assert float(model.body.network[0].weight.grad.abs().max()) > 0.0
    posterior = model.condition(x, y)
    again = model.new_posterior()
    again.load_state_dict(posterior.state_dict())
    torch.testing.assert_close(again.predict(x[:3]).mean, posterior.predict(x[:3]).mean)


def test_finding_the_features_of_a_network_leaves_its_modes_and_statistics_alone():
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5).eval()
    )
    DKL(**parts(), backbone=network)
    assert [part.training for part in network] == [True, True, False]
    assert int(network[1].num_batches_tracked) == 0


def test_networks_that_do_not_fit_the_inputs_are_refused():
    with pytest.raises(ConfigError, match=r"backbone=Linear: does not take inputs \(n, 2\)"):
        DKL(**parts(), backbone=torch.nn.Linear(5, 2))
    with pytest.raises(
        ConfigError, match=r"makes \(2, 1, 2\) of inputs \(2, 2\), expected \(2, h\)"
    ):
        DKL(**parts(), backbone=torch.nn.Unflatten(1, (1, 2)))
    with pytest.raises(ConfigError, match=r"keep=0.5: .* a network of your own"):
        DKL(**parts(), backbone=own_network(), keep=0.5)


@pytest.mark.parametrize("layer", [torch.nn.LazyLinear(2), torch.nn.BatchNorm2d(2)])
def test_networks_that_raise_other_errors_are_refused_by_their_name(layer):
    words = rf"backbone={type(layer).__name__}: does not take inputs \(n, 2\): \w+"
    with pytest.raises(ConfigError, match=words):
        DKL(**parts(), backbone=layer)


@pytest.mark.parametrize("make", [DKL, SVDKL])
def test_without_gradients_networks_of_ones_own_mask_and_measure_nothing(make):
    x, y = data()
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 2)
    )
    given = {name: value for name, value in parts().items() if name not in ("mean", "num_inducing")}
    options = {"mean": Constant(0.1), "num_inducing": 9} if make is DKL else {"grid_size": 8}
    model = make(**given, **options, backbone=network, pretrain_steps=5)
    model.initialise(x, y, generator=draws(3))
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def found():
        with torch.no_grad():
            evidence = SampledELBO(NUM, expected=True).evidence(model, x, y, generator=draws(4))
        return torch.cat([model.condition(x, y).predict(x).mean, evidence.value[None]])

    assert torch.equal(found(), found())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(part.training for part in network)
    assert not torch.equal(model.body(x), model.body(x))  # in training there are masks


def test_the_sampled_bound_is_that_of_svgp_on_average():
    """2,000 draws within 4.5 standard errors: false alarm 1e-5. SVGP itself can be sampled."""
    x, y = data()
    model = SVGP(**parts())
    model.initialise(x, y, generator=draws(3))
    want = SVGPELBO(NUM).evidence(model, x, y).value
    closed = SampledELBO(NUM, expected=True).evidence(model, x, y)
    torch.testing.assert_close(closed.value, want, rtol=1e-12, atol=0.0)
    assert closed.kind == "unbiased"
    with torch.no_grad():
        f = model.sample_latents(x, 2000, generator=draws(4))
        each = model.likelihood.log_prob(y, f).sum(1) - model.kl()
        found = SampledELBO(NUM, 2000).evidence(model, x, y, generator=draws(4)).value
    torch.testing.assert_close(found, each.mean())
    assert abs(float(found - want.detach())) < 4.5 * float(each.std()) / 2000**0.5


def test_pretraining_explains_the_targets():
    x, y = data()
    fits = []
    for steps in (0, 400):
        made = small(pretrain_steps=steps, warm_start=True)
        made.initialise(x, y, generator=draws(3))
        assert all(p.grad is None for p in made.parameters())
        with torch.no_grad():
            fits.append(float(SampledELBO(NUM, expected=True).evidence(made, x, y).value))
    assert fits[1] > fits[0] + 5.0


@pytest.mark.parametrize("keep", [1.0, 0.7])
def test_pretraining_of_recorded_steps_is_that_of_steps_as_they_are(keep):
    def trained(record):
        x, y = (t.cuda() for t in data())
        made = small(pretrain_steps=9, keep=keep).cuda()
        with solves_recorded(record):
            made.initialise(x, y, generator=torch.Generator("cuda").manual_seed(3))
        return [p.detach().cpu() for p in made.parameters()]

    with claimed_cuda() as waits:
        recorder = Capture(waits)
        found, expected = trained(recorder), trained(None)
    assert (recorder.recordings, recorder.replays) == (1, 9 - EAGER_STEPS)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_pretraining_that_ends_in_nan_is_an_error():
    x, y = data()
    y[3] = 1e300  # whose square is infinite
    with pytest.raises(DidNotConverge, match="pretraining of the backbone for 20 steps ended"):
        small().initialise(x, y, generator=draws(3))


def test_masks_of_filters():
    """GPDNN with Monte Carlo dropout: priors of filters, draws in predictions; none at keep=1."""
    x, y = torch.rand(12, 64, generator=draws()), torch.arange(12.0).double() % 3
    plain, masked = (
        DKL(
            **{**parts(Softmax(3)), "num_inputs": 64, "kernel": RBF(None, 8.0)},
            backbone="lenet_small",
            pretrain_steps=3,
            keep=keep,
            predict_samples=4,
        )
        for keep in (1.0, 0.5)
    )
    for made in (plain, masked):
        made.initialise(x, y, generator=draws(3))
        SampledELBO(12, 2).evidence(made, x, y, generator=draws()).value.backward()
        assert all(p.grad.isfinite().all() for p in made.parameters() if p.grad is not None)
        found = made.condition(x, y).predictive(x, made.likelihood).probs
        torch.testing.assert_close(found.sum(1), torch.ones(12))
    assert plain.condition(x, y).facts()["draws"] == 1
    assert masked.condition(x, y).facts()["draws"] == 4
    torch.testing.assert_close(plain.kl(), plain.layer.kl())
    assert float((masked.kl() - masked.layer.kl()).detach()) > 1.0
    assert plain.kl_known
    assert not masked.kl_known


def test_latent_functions_with_tied_parameters_are_tied():
    x, y = data()
    made = small(Softmax(3))
    made.initialise(x, (y > 0).double(), generator=draws())
    with torch.no_grad():
        made.layer.q.mean.copy_(made.layer.q.mean[:1].normal_(generator=draws(1)).expand(3, -1))
    for part in made.network.marginals(x):
        torch.testing.assert_close(part, part[:, :1].expand(-1, 3))


def test_features_that_are_constant_up_to_rounding_stay_as_they_are():
    """The mean of a thousand equal numbers in float32 may differ from them."""
    equal = torch.full((1000, 1), 0.1, dtype=torch.float32)
    assert float(equal.std(0, correction=0)) > 0.0
    varied = 1e-3 * torch.randn(1000, 1, generator=draws()).float()
    for features, deviation in ((equal, 1.0), (varied, float(varied.std(correction=0)))):
        found = Standardised(1, by_number=False)
        found.measure(features)
        assert float(found.deviation) == pytest.approx(deviation)


def test_groups_of_parameters():
    made = small()
    groups = made.parameter_groups()
    assert {name: len(group) for name, group in groups.items()} == {
        "variational": 2,
        "inducing": 1,
        "network": 4,
        "hyperparameters": 4,
    }
    assert sum(map(len, groups.values())) == len(list(made.parameters()))
    assert "network" not in DKL(**parts(), backbone="identity").parameter_groups()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backbone": "vgg"}, "backbone=vgg: expected one of identity, dense, lenet_small"),
        ({"hidden": [0]}, r"hidden=\[0\]: expected a list of whole numbers of at least 1"),
        ({"hidden": 8}, "hidden=8: expected a list"),
        ({"pretrain_steps": -1}, "pretrain_steps=-1 must be at least 0"),
        ({"num_inducing": 0}, "num_inducing=0 must be at least 1"),
        ({"keep": 0.0}, "dropout rate of 1 leaves nothing"),
    ],
)
def test_invalid_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        small(**options)
