"""
A kernel and a loop of your own
===============================

Models, objectives and likelihoods are ``nn.Module``s: a new kernel is one method, and any
optimiser of torch will do. (With a YAML file beside the class, ``train.py kernel=heavy_tail``
finds it: see ``CONTRIBUTING.md``.)
"""

import matplotlib.pyplot as plt
import torch

from gpx.kernels import Matern52, Stationary
from gpx.likelihoods import Gaussian
from gpx.means import Constant
from gpx.models import ExactGP
from gpx.objectives import ExactMLL


class HeavyTail(Stationary):
    """k = outputscale / (1 + r^2), r the scaled distance."""

    def of_squared_distance(self, r2):
        """Profile over the scaled squared distance."""
        return 1.0 / (1.0 + r2)


generator = torch.Generator().manual_seed(0)
x = torch.rand(80, 1, generator=generator, dtype=torch.float64) * 6
y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(80, generator=generator, dtype=torch.float64)

model = ExactGP(kernel=HeavyTail(), mean=Constant(), likelihood=Gaussian(0.1)).double()
objective = ExactMLL()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
evidences = []
for _ in range(100):
    optimizer.zero_grad()
    evidence = objective.evidence(model, x, y)
    (-evidence.value).backward()
    optimizer.step()
    evidences.append(evidence.value.item())
print(f"log evidence {evidences[0]:.1f} -> {evidences[-1]:.1f} nats ({evidence.kind})")
print(f"noise variance {model.likelihood.noise_variance.item():.4f}, true 0.01")

# %%
# A posterior is an immutable process. Kernels with a spectral density have whole sampled
# functions besides, callables that agree from batch to batch; one like ours would have to say how
# its frequencies are drawn.

grid = torch.linspace(-1, 7, 200, dtype=torch.float64)[:, None]
smooth = ExactGP(kernel=Matern52(), mean=Constant(), likelihood=Gaussian(0.01)).double()
with torch.no_grad():
    ours = model.condition(x, y).predict(grid)
    functions = smooth.condition(x, y).sample_paths(5, generator=generator)(grid)

plt.figure(figsize=(7, 3))
plt.plot(x[:, 0], y, ".", color="0.6")
plt.plot(grid[:, 0], functions.T, color="C1", linewidth=0.8)
plt.plot(grid[:, 0], ours.mean, color="C0")
band = 2 * ours.variance.sqrt()
plt.fill_between(grid[:, 0], ours.mean - band, ours.mean + band, alpha=0.25)
plt.tight_layout()
