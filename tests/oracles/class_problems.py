"""Small classification problems, and finite differences of an evidence."""

import torch

from gpx.kernels import RBF
from gpx.means import Constant


def points(n=40, classes=2, seed=0):
    """x (n, 2) and labels -1, 1 or 0 ... classes - 1 of a noisy function of it; float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=generator).double()
    f = (2.0 * x[:, 0]).sin() + x[:, 1] + 0.3 * torch.randn(n, generator=generator).double()
    if classes == 2:
        return x, torch.where(f > 0.0, 1.0, -1.0).double()
    edges = torch.quantile(f, torch.linspace(0.0, 1.0, classes + 1).double()[1:-1])
    return x, torch.searchsorted(edges, f).double()


def parts(likelihood, scale=2.0, mean=0.3):
    return {
        "kernel": RBF(2, lengthscale=[0.8, 1.2], outputscale=scale),
        "mean": Constant(mean),
        "likelihood": likelihood,
    }


def gradient_errors(model, objective, x, y, step=1e-5):
    """Largest difference between gradient and central differences, by parameter, relative."""
    model.zero_grad()
    objective.evidence(model, x, y).value.backward()
    found = {}
    for name, parameter in model.named_parameters():
        flat, slopes = parameter.data.view(-1), []
        for entry in range(flat.numel()):
            here, values = flat[entry].item(), []
            for sign in (1.0, -1.0):
                flat[entry] = here + sign * step
                with torch.no_grad():
                    values.append(objective.evidence(model, x, y).value.item())
            flat[entry] = here
            slopes.append((values[0] - values[1]) / (2.0 * step))
        want = torch.tensor(slopes, dtype=torch.float64)
        given = torch.zeros_like(want) if parameter.grad is None else parameter.grad.view(-1)
        found[name] = float((given - want).abs().max() / (1.0 + want.abs().max()))
    return found
