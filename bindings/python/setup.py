"""Puts the shared library and its header into the wheel, and the sources of both into the sdist.

Cargo builds the library, unless PLEACH_LIBRARY names a built one. PLEACH_PLATFORM is the wheel's platform tag where it is
not this machine's: `wheels.sh` builds libraries that run on more systems than that."""

import json
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
SOURCES = HERE / "rust" if (HERE / "rust").is_dir() else HERE.parent.parent
#: The packages that the library is made of.
PACKAGES = ["core", "io", "beatree", "history", "journal", "engine", "ops", "bindings/c"]


def library() -> Path:
    if built := os.environ.get("PLEACH_LIBRARY"):
        return Path(built)
    # Cargo says where the library is: that depends on its variables and configuration, such as CARGO_BUILD_TARGET.
    build = ["cargo", "build", "--release", "-p", "pleach-c", "--message-format=json-render-diagnostics"]
    said = subprocess.run(build, cwd=SOURCES, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    made = [file for line in said for file in json.loads(line).get("filenames", [])]
    found = [Path(file) for file in made if file.endswith("libpleach_c.so")]
    if not found:
        raise SystemExit(f"cargo made no libpleach_c.so, only {made}: build for a target that has shared libraries")
    return found[-1]


class Build(build_py):
    def run(self) -> None:
        super().run()
        for to, beside in self.get_binaries().items():
            made = library() if to.endswith(".so") else SOURCES / "bindings" / "c" / "include" / "pleach.h"
            # An editable installation takes the package from its sources.
            shutil.copy(made, beside if self.editable_mode else to)

    def get_binaries(self) -> "dict[str, str]":
        """The places of library and header: in the build, and beside the sources."""
        names = ["libpleach_c.so", "pleach.h"]
        return {os.path.join(self.build_lib, "pleach", name): str(HERE / "src" / "pleach" / name) for name in names}

    def get_output_mapping(self) -> "dict[str, str]":
        return {**super().get_output_mapping(), **(self.get_binaries() if self.editable_mode else {})}


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
