"""Chains of too few samples say so in words, and have no R-hat that is no number."""

import math

import numpy as np
import pytest

import gpx


@pytest.mark.parametrize("iterations", [1, 3, 5])
@pytest.mark.parametrize("approx", ["elliptical_slice", "fully_bayesian"])
def test_r_hat_of_fewer_than_four_samples_is_a_sentence(approx, iterations):
    draws = np.random.default_rng(0)
    x = draws.uniform(-3.0, 3.0, (20, 1))
    y = np.sin(x[:, 0]) + 0.1 * draws.normal(size=20)
    y = y if approx == "fully_bayesian" else np.sign(y)
    options = (f"approx={approx}", "kernel=rbf", "trainer.baselines=false")
    steps = (f"optimizer.iterations={iterations}", "optimizer.burn_in=2", "optimizer.thin=1")
    with pytest.warns(UserWarning, match="converged") as warned:
        fitted = gpx.fit(x, y, *options, *steps, keep=False, quiet=True)
    facts = {
        name: value
        for name, value in fitted.metrics.items()
        if any(part in name for part in ("rhat_", "train.effective_samples", "convergence"))
    }
    if iterations < 4:
        (sentence,) = facts.values()
        assert "too few to say whether they have converged: R-hat needs 4" in sentence
        assert any(sentence in str(each.message) for each in warned)
    else:
        assert len(facts) >= 4
        assert not any(math.isnan(value) for value in facts.values())
