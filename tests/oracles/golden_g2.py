"""Fixture G2 of certified bounds: the times of the monthly means of CO2 at Mauna Loa.

March 1958 to December 2001 without the five months that were not measured, in years; the trend and
seasonal kernel at fixed hyperparameters (variance 66^2 and lengthscale 67; variance 2.4^2, decay
20 and 0.4225 of the season), noise variance 0.1. The targets here are a parabola and a sine wave.
"""

import math

import torch

NOISE = 0.1
FIRST_PIVOTS = [0, 520, 252, 514, 5, 307, 148, 13]
TRACE_ERRORS = {
    10: 269.3,
    20: 16.68,
    30: 2.851,
    40: 0.2693,
    50: 0.05474,
    60: 0.007876,
    70: 5.863e-4,
    75: 1.488e-4,
    80: 4.314e-5,
    90: 2.77e-6,
    100: 1.73e-7,
}
GAPS = {(1958, 6), (1958, 10), (1964, 2), (1964, 3), (1964, 4)}

x = torch.tensor(
    [
        year + (month - 0.5) / 12
        for year in range(1958, 2002)
        for month in range(1, 13)
        if (year, month) >= (1958, 3) and (year, month) not in GAPS
    ],
    dtype=torch.float64,
)
y = 0.0125 * (x - 1958).square() + 0.8 * (x - 1958) + 3 * torch.sin(2 * math.pi * x)
y = y - y.mean()


def covariance(a, b):
    gap = a[:, None] - b[None, :]
    trend = 66.0**2 * torch.exp(-0.5 * gap.square() / 67.0**2)
    season = -0.5 * gap.square() / 20.0**2 - 0.5 * torch.sin(math.pi * gap).square() / 0.4225
    return trend + 2.4**2 * torch.exp(season)
