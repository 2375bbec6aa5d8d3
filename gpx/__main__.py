"""``python -m gpx``: the console command ``gpx``."""

from gpx.commands import main

if __name__ == "__main__":
    main()
