"""The sampled gradient that discrete weights are compared with is unbiased."""

import importlib.util
import itertools
import sys
from pathlib import Path

import torch

from gpx.methods.direct.mean_field import total

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "direct" / "reinforce.py"


def script():
    spec = importlib.util.spec_from_file_location("direct_reinforce", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_the_expected_score_gradient_is_that_of_the_bound():
    module = script()
    model, x, y = module.problem(7, 2)
    model.initialise(x, y, generator=torch.Generator().manual_seed(0))
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (model.logits, model.noise_logits):
            parameter += torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
    features = model.basis(x).detach()
    log_q = model.logits.detach().log_softmax(-1)
    log_noise = model.noise_logits.detach().log_softmax(-1)
    one = [torch.tensor(each) for each in itertools.product(range(3), repeat=3)]

    def mass(each):
        return (log_q[0, each[0]] + log_q[1, each[1]] + log_noise[each[2]]).exp()

    for count in (1, 2):  # alone, and with the other's reward taken off
        expected = [torch.zeros_like(log_q), torch.zeros_like(log_noise)]
        for chosen in itertools.product(one, repeat=count):
            places = torch.stack(chosen)
            share = torch.stack([mass(each) for each in chosen]).prod()
            found = module.score_gradient(
                model, features, y, module.Draws(places[:, :2], places[:, 2])
            )
            for whole, part in zip(expected, found, strict=True):
                whole += share * part
        exact = torch.autograd.grad(
            total(model.mean_field_terms()), [model.logits, model.noise_logits]
        )
        torch.testing.assert_close(expected, list(exact), rtol=1e-10, atol=1e-10)
