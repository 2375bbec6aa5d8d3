"""Draws of a step that are made before it, as recorded steps need them."""

import copy
import pickle

import pytest
import torch
from torch import nn

from gpx.kernels import RBF, ArcCosine
from gpx.likelihoods import Gaussian, Softmax
from gpx.means import Zero
from gpx.methods.base.batch import Batch
from gpx.methods.deep import GPLayer, Network, NetworkModel
from gpx.models import SVGP, DeepGP, DeepSVGP
from gpx.objectives import SampledELBO

X = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
Y = X[:, 0].sin()


def deep(**options):
    return DeepGP(kernel=RBF(2), likelihood=Gaussian(0.1), num_inputs=2, num_features=6, **options)


def with_points():
    options = {"num_inputs": 2, "num_inducing": 4}
    model = DeepSVGP(kernel=RBF(2), mean=Zero(), likelihood=Gaussian(0.1), **options)
    model.initialise(X, Y, generator=torch.Generator().manual_seed(1))
    return model


def classes():
    options = {"num_inputs": 2, "num_features": 6}
    return DeepGP(kernel=ArcCosine(), likelihood=Softmax(3), **options)


MODELS = {
    "fixed frequencies": deep,
    "learned frequencies": lambda: deep(frequencies="learned"),
    "masks": lambda: deep(frequencies="dropout", covariance="dropout"),
    "full covariance": lambda: deep(covariance="full"),
    "inducing points": with_points,
    "classes": classes,
}


@pytest.mark.parametrize("expected", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_draws_made_before_a_step_are_those_of_the_step(name, expected):
    model, objective = MODELS[name](), SampledELBO(30, 2, expected=expected)
    y = (torch.arange(12) % 3).float() if name == "classes" else Y
    assert objective.recordable(model)
    sources = [torch.Generator().manual_seed(5) for _ in range(2)]
    for rows in (slice(0, 8), slice(4, 12), slice(0, 5)):  # of two sizes
        batch = Batch(X[rows], y[rows])
        drawn = objective.step_draws(model, batch.x, generator=sources[0])
        found = objective.evidence_given(model, batch, drawn)
        known = objective.evidence_of(model, batch, generator=sources[1])
        assert found.value.item() == known.value.item()
    assert torch.equal(sources[0].get_state(), sources[1].get_state())


def test_draws_are_those_of_the_model_and_the_options_at_hand():
    def checked():
        drawn = objective.step_draws(model, X, generator=torch.Generator().manual_seed(5))
        found = objective.evidence_given(model, Batch(X, Y), drawn)
        known = objective.evidence(model, X, Y, generator=torch.Generator().manual_seed(5))
        assert found.value.item() == known.value.item()
        return drawn

    objective = SampledELBO(12)
    for keep in (0.9, 0.2):  # of the same shapes
        model = deep(covariance="dropout", keep=keep)
        checked()
    objective.num_samples = 3
    before = checked()
    assert all(len(part) == 3 * len(X) for part in before)
    for layer in model.modules():
        if hasattr(layer, "keep"):
            layer.keep = 0.7
    objective.prepare(model, X, Y)  # of the next run
    assert not all(map(torch.equal, checked(), before))
    assert len(pickle.loads(pickle.dumps(objective)).step_draws(model, X, generator=None)) > 0


class Counting(nn.Module):
    """Another function at every call, by a number that no tensor holds."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x / self.calls


def test_networks_that_may_change_from_call_to_call_are_not_recorded():
    def made(body):
        network = Network(body, GPLayer(RBF(), 2, num_features=6))
        return NetworkModel(network, Gaussian(0.1), num_inputs=2)

    objective = SampledELBO(30)
    plain = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    assert objective.recordable(made(plain))
    assert not objective.recordable(made(nn.Sequential(nn.Linear(2, 2), Counting())))
    for change in (
        lambda layer: layer.register_forward_hook(lambda *_: None),
        lambda layer: layer.register_full_backward_hook(lambda *_: None),
        lambda layer: setattr(layer, "forward", Counting()),
    ):
        changed = copy.deepcopy(plain)
        change(changed[0])
        assert not objective.recordable(made(changed))


def test_models_that_draw_by_themselves_are_not_recorded():
    parts = {"kernel": RBF(2), "mean": Zero(), "likelihood": Gaussian(0.1)}
    model, objective = SVGP(**parts, num_inputs=2, num_inducing=4), SampledELBO(12)
    model.place(X[:4].clone())
    assert model.fixed_shapes
    assert not objective.recordable(model)
    assert objective.step_draws(model, X, generator=torch.Generator()) == ()
