"""Effective priors by their definition: one dense joint covariance of training and test points."""

import torch


def dense_nystrom(model, a, b, relative_jitter=0.0):
    """Q_ab = K_az K_zz^{-1} K_zb."""
    z = model.inducing_points
    gram = model.kernel.evaluate(z, z)
    shift = relative_jitter * gram.diagonal().mean()
    gram = gram + shift * torch.eye(len(z), dtype=gram.dtype)
    return model.kernel.evaluate(a, z) @ torch.linalg.solve(gram, model.kernel.evaluate(z, b))


def same_block(model, a, b):
    """psi_ab: whether points share a block; as many as were trained on are the training points."""
    one, other = (
        model.labels if len(x) == len(model.labels) else model.regions.nearest(x) for x in (a, b)
    )
    return one[:, None] == other[None]


def training_covariance(model, x, prior, relative_jitter=0.0):
    """Of f(x) under the prior named, without noise."""
    q = dense_nystrom(model, x, x, relative_jitter)
    left = model.kernel.evaluate(x, x) - q
    kept = {
        "sor": torch.zeros_like(q),
        "dtc": torch.zeros_like(q),
        "fitc": torch.eye(len(x), dtype=q.dtype),
        "fic": torch.eye(len(x), dtype=q.dtype),
    }
    mask = kept[prior] if prior in kept else same_block(model, x, x).to(q.dtype)
    return q + mask * left


def dense_evidence(model, x, y, prior, relative_jitter=0.0):
    """log N(y; m(x), prior covariance + noise)."""
    matrix = training_covariance(model, x, prior, relative_jitter)
    matrix = matrix + model.likelihood.noise_variance * torch.eye(len(x), dtype=x.dtype)
    normal = torch.distributions.MultivariateNormal(model.mean(x), matrix, validate_args=False)
    return normal.log_prob(y)


def dense_posterior(model, x, y, new, prior):
    """Mean (t,) and covariance (t, t) of f(new) by conditioning the joint prior."""
    matrix = training_covariance(model, x, prior)
    matrix = matrix + model.likelihood.noise_variance * torch.eye(len(x), dtype=x.dtype)
    cross, q = dense_nystrom(model, new, x), dense_nystrom(model, new, new)
    k = model.kernel.evaluate(new, new)
    if prior == "pic":
        cross = cross + same_block(model, new, x) * (model.kernel.evaluate(new, x) - cross)
    test = {
        "sor": lambda: q,
        "dtc": lambda: k,
        "fitc": lambda: k,
        "fic": lambda: q + torch.eye(len(new), dtype=q.dtype) * (k - q),
        "pitc": lambda: k,
        "pic": lambda: q + same_block(model, new, new) * (k - q),
    }[prior]()
    mean = model.mean(new) + cross @ torch.linalg.solve(matrix, y - model.mean(x))
    return mean, test - cross @ torch.linalg.solve(matrix, cross.mT)
