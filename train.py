"""Train a model: python train.py approx=qsgp data=kin40k (python train.py --help)."""

from pathlib import Path

from gpx.training.command_line import main

if __name__ == "__main__":
    main(Path(__file__).resolve().parent / "configs")
