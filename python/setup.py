"""Puts the shared library and its header into the wheel, and the sources of both into the sdist.

Cargo builds the library, unless PLEACH_LIBRARY names a built one. PLEACH_PLATFORM is the wheel's platform tag where it is
not this machine's: `wheels.sh` builds libraries that run on more systems than that."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
#: Of an sdist, the sources that came with it.
SOURCES = HERE / "rust" if (HERE / "rust").is_dir() else HERE.parent
#: The packages that the library is made of.
PACKAGES = ["core", "io", "beatree", "history", "journal", "engine", "ops", "c"]


def library() -> Path:
    if built := os.environ.get("PLEACH_LIBRARY"):
        return Path(built)
    subprocess.run(["cargo", "build", "--release", "-p", "pleach-c"], cwd=SOURCES, check=True)
    target = SOURCES / os.environ.get("CARGO_TARGET_DIR", "target")
    return target / "release" / "libpleach_c.so"


class Build(build_py):
    def run(self) -> None:
        super().run()
        package = Path(self.build_lib) / "pleach"
        shutil.copy(library(), package / "libpleach_c.so")
        shutil.copy(SOURCES / "c" / "include" / "pleach.h", package)


class Wheel(bdist_wheel):
    """Any Python 3 on this platform: ctypes needs no other tag."""

    def get_tag(self) -> "tuple[str, str, str]":
        return ("py3", "none", os.environ.get("PLEACH_PLATFORM") or super().get_tag()[2])


class Source(sdist):
    def make_release_tree(self, base_dir: str, files: "list[str]") -> None:
        super().make_release_tree(base_dir, files)
        rust = Path(base_dir, "rust")
        for package in PACKAGES:
            shutil.copytree(
                SOURCES / package, rust / package, ignore=shutil.ignore_patterns("tests", "target", "golden")
            )
        members = ", ".join(f'"{package}"' for package in PACKAGES)
        workspace = (SOURCES / "Cargo.toml").read_text("utf-8")
        workspace = re.sub(r"(?m)^members = .*$", f"members = [{members}]", workspace, count=1)
        workspace = re.sub(r"(?m)^default-members = .*\n", "", workspace, count=1)
        (rust / "Cargo.toml").write_text(workspace, "utf-8")
        shutil.copy(SOURCES / "Cargo.lock", rust)


class Binary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": Build, "bdist_wheel": Wheel, "sdist": Source},
    distclass=Binary,
)
