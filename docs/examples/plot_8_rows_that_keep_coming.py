"""
Streams of rows
===============

Structured kernel interpolation uses the data only through sums over the cells of its grid. The sums
of new rows are added to those of old ones, after which the rows can be discarded: neither the
memory nor the cost of an update grows with the number of rows seen so far.
"""

import torch

from gpx.kernels import RBF
from gpx.likelihoods import Gaussian
from gpx.means import Zero
from gpx.models import SKI, SKIStream

generator = torch.Generator().manual_seed(0)


def rows(count):
    """What a sensor says next."""
    x = 20.0 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(count, generator=generator, dtype=torch.float64)
    return x, torch.sin(1.5 * x[:, 0]) + 0.1 * x[:, 0] + noise


# %%
# The grid is placed once and must cover all rows to come, here by the ends of their range.
# Hyperparameters are known, or those of a model fitted to the first rows:

model = SKI(
    kernel=RBF(1, 1.0, 1.0), mean=Zero(), likelihood=Gaussian(0.09), num_inputs=1, grid_size=200
).double()
ends = torch.tensor([[0.0], [20.0]], dtype=torch.float64)
model.initialise(ends, torch.zeros(2, dtype=torch.float64), generator=generator)

# %%
# Rows are added in pieces of any size. A posterior can be asked for at any time:

stream = SKIStream(model)
new = torch.linspace(0.5, 19.5, 200, dtype=torch.float64).unsqueeze(1)
truth = torch.sin(1.5 * new[:, 0]) + 0.1 * new[:, 0]
for pieces in (1, 9, 90):
    for _ in range(pieces):
        stream.add_rows(*rows(1000))
    found = stream.condition().predict(new)
    error = (found.mean - truth).square().mean().sqrt()
    kept = len(stream.sums.cells)
    print(
        f"{stream.sums.num_data:7,d} rows in {kept} cells: RMSE {error:.4f}, "
        f"standard deviation {found.variance.mean().sqrt():.4f}"
    )

# %%
# Up to rounding it equals the posterior given all rows at once, though no row is stored:

x, y = rows(5000)
again = SKIStream(model)
again.add_rows(x[:2000], y[:2000])
again.add_rows(x[2000:], y[2000:])
apart = again.condition().predict(new).mean - model.condition(x, y).predict(new).mean
print(f"largest difference from the posterior of all rows: {apart.abs().max():.1e}")
