"""Runs of sparse spectrum models: their report of over-fitting."""

import pytest
import torch

import gpx

FEW = ("trainer.max_steps=50", "trainer.figures=false", "trainer.tensorboard=false")


def test_the_gap_is_reported_and_uncertain_frequencies_close_it(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(220, 4, generator=generator).double()
    noise = torch.randn(220, generator=generator).double()
    y = (2.0 * x[:, 0]).sin() + (x[:, 1] * x[:, 2]).cos() + 0.1 * noise
    gaps = {}
    for approx in ("ssgp", "vssgp"):
        options = (f"approx={approx}", "approx.num_basis=80", *FEW)
        held = x[:100], y[:100]
        fitted = gpx.fit(x[100:], y[100:], *options, test=held, folder=tmp_path / approx)
        found = fitted.metrics
        gaps[approx] = found["test.mnlp_gap"]
        assert gaps[approx] == pytest.approx(found["test.mnlp"] - found["train.mnlp"])
        again = gpx.load(fitted.folder).predict(x[:5].numpy())
        torch.testing.assert_close(
            torch.as_tensor(again.mean), torch.as_tensor(fitted.predict(x[:5].numpy()).mean)
        )
    assert gaps["ssgp"] > max(0.2, 2.0 * gaps["vssgp"])
