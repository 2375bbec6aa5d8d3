"""Train a model: python train.py approx=qsgp data=kin40k (python train.py --help)."""

import sys

from gpx.commands import call

if __name__ == "__main__":
    call("train", sys.argv[1:])
