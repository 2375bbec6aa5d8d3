"""
Inputs that are not known
=========================

A Gaussian process latent variable model (GPLVM) draws a map of rows without inputs: each gets a
place in few dimensions, such that its numbers are smooth functions of the place. Evidences are
differentiable in their inputs, so that places are parameters like all others. Here every row has a
normal q(place) beside the prior N(0, I): the Bayesian GPLVM of Titsias and Lawrence (2010), in the
stochastic form of Lalchand, Ravuri and Lawrence (2022).
"""

import matplotlib.pyplot as plt
import torch

from gpx.data import Digits
from gpx.kernels import RBF
from gpx.likelihoods import GaussianOutputs
from gpx.means import Zero
from gpx.models import SVGP
from gpx.objectives import SVGPELBO

generator = torch.Generator().manual_seed(0)

table = Digits().images()
kept = table.y <= 4  # five of the ten digits, 901 images of 64 pixels
digit = torch.as_tensor(table.y[kept])
pixels = torch.as_tensor(table.x[kept], dtype=torch.float64)
y = (pixels - pixels.mean(0)) / pixels.std()
n, p = y.shape

# %%
# A tenth of all pixels is hidden. Targets that are missing are NaN:

hidden = torch.rand(n, p, generator=generator) < 0.1
seen = torch.where(hidden, torch.nan, y)

# %%
# The places start at the first two principal components, of which the larger has deviation one.


class Places(torch.nn.Module):
    """q(place) = N(mean, deviation^2) of every row, beside the prior N(0, I)."""

    def __init__(self, start):
        super().__init__()
        self.mean = torch.nn.Parameter(start)
        self.log_deviation = torch.nn.Parameter(torch.full_like(start, -2.0))

    def draw(self, rows):
        """A draw of the places of some rows."""
        noise = torch.randn(len(rows), 2, generator=generator, dtype=torch.float64)
        return self.mean[rows] + self.log_deviation[rows].exp() * noise

    def kl(self):
        """KL(q || prior), summed over all rows, in nats."""
        variance = (2.0 * self.log_deviation).exp()
        return 0.5 * (self.mean.square() + variance - 2.0 * self.log_deviation - 1.0).sum()


filled = torch.where(hidden, 0.0, y)
left, values, _ = torch.linalg.svd(filled, full_matrices=False)
places = Places(left[:, :2] * n**0.5 * values[:2] / values[0])

# %%
# A sparse process maps places to pixels, with a function for each. Its evidence of a mini-batch
# is an estimate of that of all rows, to which the places add their divergence.

model = SVGP(
    kernel=RBF(2, lengthscale=1.0),
    mean=Zero(),
    likelihood=GaussianOutputs(p, 0.5),
    num_inputs=2,
    num_inducing=40,
    refit=False,  # q(u) as trained, with places that are not certain
).double()
model.initialise(places.mean.detach(), seen, generator=generator)
objective = SVGPELBO(num_data=n)
optimizer = torch.optim.Adam([*model.parameters(), *places.parameters()], lr=0.04)
for step in range(300):
    rows = torch.randperm(n, generator=generator)[:200]
    optimizer.zero_grad()
    evidence = objective.evidence(model, places.draw(rows), seen[rows]).value - places.kl()
    (-evidence / n).backward()
    optimizer.step()
    if step % 50 == 49:
        print(f"step {step + 1}: about {evidence.item() / n:.2f} nats a row")

# %%
# Pixels that were hidden are predicted from the place that the others gave:

with torch.no_grad():
    at = places.mean.detach()
    found = model.condition(at, seen).predict(at).mean
error = (found - y)[hidden].square().mean().sqrt()
spread = y[hidden].square().mean().sqrt()
print(f"hidden pixels: RMSE {error:.2f}, by their mean {spread:.2f}")

# %%
# And the map, of which nobody told the digits:

plt.figure(figsize=(5, 4))
plt.scatter(*at.T, c=digit, cmap="tab10", vmin=0, vmax=9, s=9)
plt.colorbar(label="digit", ticks=range(5), boundaries=torch.arange(6) - 0.5)
plt.tight_layout()
