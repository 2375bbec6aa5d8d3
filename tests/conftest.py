"""One thread per process, stated: the suite runs side by side processes (pytest-xdist)."""

import torch

torch.set_num_threads(1)
