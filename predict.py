"""Predict with a trained model: python predict.py run=outputs/... input=new.csv output=out.csv."""

import sys

from gpx.commands import call

if __name__ == "__main__":
    call("predict", sys.argv[1:])
