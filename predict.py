"""Predict with a trained model: python predict.py run=outputs/... input=new.csv output=out.csv."""

from gpx.training.predict_command import main

if __name__ == "__main__":
    main()
