"""
Latent inputs (GPLVM)
=====================

A Gaussian process latent variable model (GPLVM) embeds rows without inputs: each gets a latent
position in few dimensions, such that its targets are smooth functions of the position. Evidences
are differentiable with respect to inputs, so that positions can be parameters like all others. Here
every row has a normal q(position), with prior N(0, I): the Bayesian GPLVM of Titsias and Lawrence
(2010), in the stochastic form of Lalchand, Ravuri and Lawrence (2022).
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
# The positions start at the first two principal components, scaled so that the larger has standard
# deviation one.


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
# A sparse GP maps positions to pixels, with one function for each pixel. Its evidence on a
# mini-batch estimates that of all rows; the KL divergence of the positions is subtracted.

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
# Hidden pixels are predicted from the position inferred from the others:

with torch.no_grad():
    at = places.mean.detach()
    found = model.condition(at, seen).predict(at).mean
error = (found - y)[hidden].square().mean().sqrt()
spread = y[hidden].square().mean().sqrt()
print(f"hidden pixels: RMSE {error:.2f}, by their mean {spread:.2f}")

# %%
# The embedding, learned without the labels of the digits:

plt.figure(figsize=(5, 4))
plt.scatter(*at.T, c=digit, cmap="tab10", vmin=0, vmax=9, s=9)
plt.colorbar(label="digit", ticks=range(5), boundaries=torch.arange(6) - 0.5)
plt.tight_layout()
