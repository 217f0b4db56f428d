"""Puts the shared library and its header into the wheel. Cargo builds the library, unless PLEACH_LIBRARY names a built one."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

REPOSITORY = Path(__file__).resolve().parents[1]


def library() -> Path:
    if built := os.environ.get("PLEACH_LIBRARY"):
        return Path(built)
    subprocess.run(["cargo", "build", "--release", "-p", "pleach-c"], cwd=REPOSITORY, check=True)
    target = REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target")
    return target / "release" / "libpleach_c.so"


class Build(build_py):
    def run(self) -> None:
        super().run()
        package = Path(self.build_lib) / "pleach"
        shutil.copy(library(), package / "libpleach_c.so")
        shutil.copy(REPOSITORY / "c" / "include" / "pleach.h", package)


class Wheel(bdist_wheel):
    """Any Python 3 on this platform: ctypes needs no other tag."""

    def get_tag(self) -> "tuple[str, str, str]":
        return ("py3", "none", super().get_tag()[2])


class Binary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Binary)
