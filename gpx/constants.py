"""Normalising constants of densities."""

import math

LOG_TWO_PI = math.log(2.0 * math.pi)
