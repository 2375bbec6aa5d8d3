"""The wheel carries configs as gpx/configs; clones and editable installations read the folder."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Copies the configs beside the modules; all else is in pyproject.toml."""

    def run(self) -> None:
        """Build the modules, then copy."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "gpx", "configs")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree("configs", target)


setup(cmdclass={"build_py": BuildWithConfigs})
