"""How far a trained model can be trusted: python diagnose.py run=outputs/... (see --help)."""

from gpx.training.diagnose_command import main

if __name__ == "__main__":
    main()
