"""How far a trained model can be trusted: python diagnose.py run=outputs/... (see --help)."""

import sys

from gpx.commands import call

if __name__ == "__main__":
    call("diagnose", sys.argv[1:])
