"""What pyproject.toml cannot say: a wheel brings the launchers of stubs, compiled.

A wheel that is built where there is no C++ compiler brings none; they are compiled by the first
start then, as they are for a checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup  # brings distutils, which Python 3.12 has not
from setuptools.command.bdist_wheel import bdist_wheel

# isort: split
from distutils.command.install_data import install_data

ROOT = Path(__file__).resolve().parent
SHARED = Path("share", "brisk")


class InstallDataAndLaunchers(install_data):
    def run(self) -> None:
        super().run()
        command = [
            sys.executable,
            "-m",
            "brisk.fork_server.build",
            str(Path(self.install_dir) / SHARED),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "triton_backend")}
        if subprocess.run(command, env=environment, check=False).returncode:
            print("brisk: no launchers in this wheel", file=sys.stderr)


class WheelOfThisPlatform(bdist_wheel):
    """For any Python, since what is compiled knows nothing of it."""

    def get_tag(self) -> tuple[str, str, str]:
        is_pure, self.root_is_pure = self.root_is_pure, False
        platform = super().get_tag()[2]
        self.root_is_pure = is_pure
        return "py3", "none", platform


setup(cmdclass={"install_data": InstallDataAndLaunchers, "bdist_wheel": WheelOfThisPlatform})
