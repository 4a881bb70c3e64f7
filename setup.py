# SPDX-License-Identifier: Apache-2.0
"""Builds nvsym's extension modules. What the package is, is said in pyproject.toml.

Every ``nvsym/**/*.pyx`` becomes the extension of the same dotted name. ``python setup.py build_ext --inplace`` builds
what changed since the last time: Cython follows the ``.pxd`` files, and beside each object the compiler lists the
headers that it read. No GPU library and no MPI is linked: what a backend needs is opened when it is first used.

Settings, from the environment:

NVSYM_BUILD_JOBS
    How many files are compiled at a time (default: the cores of this process, at most 8).
NVSYM_BUILD_DEBUG
    1: no optimisation, full debugging information.
NVSYM_BUILD_EXTENSIONS
    0: leave the extensions alone, where they are built in place already and only the package is to be registered.
"""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
HEADERS = sorted((ROOT / "include" / "nvsym").glob("*.h")) + sorted((ROOT / "include" / "nvsym").glob("*.cuh"))

DEBUG = os.environ.get("NVSYM_BUILD_DEBUG") == "1"

DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "embedsignature": False,
    "boundscheck": False,
    "wraparound": False,
    "freethreading_compatible": False,
}

# What an extension needs beyond its .pyx, by dotted name: any argument of `Extension`. Lists are added to the common
# ones; "language": "c++" makes a C++ module.
EXTRAS = {
    "nvsym.backends.host": {
        "sources": ["nvsym/backends/host_reduce.c"],
        # The same bits on every machine: processors with and without fused multiply-add take part in one job.
        "extra_compile_args": ["-ffp-contract=off", *([] if DEBUG else ["-O3"])],
    },
}

# -O3 takes a quarter longer over the code around the calls; what computes asks for it above.
OPTIMISE = ["-O0", "-g3"] if DEBUG else ["-O2", "-g0"]
COMPILE = [
    *OPTIMISE,
    # Symmetric memory holds one type after another.
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-pthread",
    # The compiler's own list of the headers an object comes from, for the next build.
    "-MMD",
    # Cython leaves helpers unused and compares C integers of both kinds.
    "-Wno-unused-function",
    "-Wno-sign-compare",
]
LANGUAGE = {
    # A forgotten declaration is an error, not a guess.
    "c": ["-std=gnu11", "-Werror=implicit-function-declaration", "-Werror=incompatible-pointer-types"],
    "c++": ["-std=c++17", "-fvisibility-inlines-hidden"],
}

# The simulated CUDA driver and NVSHMEM: plain shared libraries, which nvsym opens as it opens the real ones.
SIMULATOR = ROOT / "nvsym" / "simulator"
SIMULATED = {
    "libcuda.so.1": ["core.c", "device.c", "memory.c", "multicast.c", "stream.c", "module.c", "multimem.c"],
    "libnvshmem_host.so.3": ["nvshmem.c"],
    # In a folder of its own: nvidia-ml-py finds it by the loader's search path, where nothing else should be found.
    "nvml/libnvidia-ml.so.1": ["nvml.c"],
}


def say(text):
    """A line, in one piece: several threads build."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def jobs():
    return int(os.environ.get("NVSYM_BUILD_JOBS") or min(8, len(os.sched_getaffinity(0))))


def simulator_options(name):
    """How the compiler makes a library of the simulator."""
    warn = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
    library = ["-shared", "-fPIC", "-fvisibility=hidden", "-pthread", f"-Wl,-soname,{Path(name).name}"]
    return [*OPTIMISE, *LANGUAGE["c"], *warn, *library]


def extensions():
    """One `Extension` for each .pyx of the package."""
    if os.environ.get("NVSYM_BUILD_EXTENSIONS") == "0":
        return []
    found = []
    for file in sorted((ROOT / "nvsym").rglob("*.pyx")):
        path = file.relative_to(ROOT)
        name = ".".join(path.with_suffix("").parts)
        extra = dict(EXTRAS.get(name, {}))
        language = extra.pop("language", "c")
        found.append(
            Extension(
                name,
                [str(path), *extra.pop("sources", [])],
                language=language,
                include_dirs=["include", str(path.parent), *extra.pop("include_dirs", [])],
                extra_compile_args=[*COMPILE, *LANGUAGE[language], *extra.pop("extra_compile_args", [])],
                extra_link_args=["-pthread", *extra.pop("extra_link_args", [])],
                **extra,
            )
        )
    unknown = EXTRAS.keys() - {extension.name for extension in found}
    if unknown:
        raise SystemExit(f"setup.py: EXTRAS names {', '.join(sorted(unknown))}, but there is no such .pyx file")
    return found


class BuildExt(build_ext):
    """Runs Cython, compiles in parallel, and says which file it is at."""

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            self.parallel = jobs()

    def run(self):
        if self.extensions:
            self.cythonize()
        super().run()
        self.build_simulator()

    def simulated(self):
        """The files of the simulator, by name; none where only the package is to be registered."""
        if not self.extensions or not SIMULATOR.is_dir():
            return {}
        package = ROOT / "nvsym" if self.inplace else Path(self.build_lib) / "nvsym"
        return {name: package / "simulator" / "lib" / name for name in SIMULATED}

    def build_simulator(self):
        headers = sorted(SIMULATOR.glob("*.h"))
        for name, target in self.simulated().items():
            sources = [SIMULATOR / source for source in SIMULATED[name]]
            newest = max(file.stat().st_mtime for file in (*sources, *headers, Path(__file__)))
            if target.exists() and target.stat().st_mtime >= newest and not self.force:
                continue
            start = time.monotonic()
            target.parent.mkdir(parents=True, exist_ok=True)
            compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
            added = shlex.split(os.environ.get("CFLAGS", "") + " " + os.environ.get("LDFLAGS", ""))
            options = [*simulator_options(name), *added, *map(str, sources)]
            subprocess.run([*compiler, *options, "-o", str(target), "-lm"], check=True)
            say(f"built {name} ({time.monotonic() - start:.1f} s)")

    def get_outputs(self):
        return super().get_outputs() + [str(file) for file in self.simulated().values()]

    def cythonize(self):
        # Not when this file is read: an sdist has the .pyx, and takes no Cython.
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError

        sources = {extension.name: list(extension.sources) for extension in self.extensions}
        generated = [
            Path(source).with_suffix(".cpp" if extension.language == "c++" else ".c")
            for extension in self.extensions
            for source in extension.sources
            if source.endswith(".pyx")
        ]
        script = Path(__file__).stat().st_mtime
        # Cython does not see that the directives above changed.
        force = self.force or any(file.exists() and file.stat().st_mtime < script for file in generated)
        try:
            compiled = cythonize(
                self.extensions,
                nthreads=jobs(),
                include_path=["."],
                compiler_directives=DIRECTIVES,
                force=force,
            )
        except CompileError as error:
            raise SystemExit(f"setup.py: Cython found the errors above, the first of them in {error}") from None
        by_name = {extension.name: extension for extension in compiled}
        for extension in self.extensions:
            extension.sources = by_name[extension.name].sources
            pyx = [source for source in sources[extension.name] if source.endswith(".pyx")]
            extension.depends = sorted({"setup.py", *pyx, *self.headers_read(extension)})

    def headers_read(self, extension):
        """The headers of an extension's objects as of their last compilation."""
        for source in extension.sources:
            listing = Path(self.build_temp, source).with_suffix(".d")
            if listing.is_file():
                names = re.split(r"(?<!\\)\s+", listing.read_text().replace("\\\n", " ").partition(":")[2])
                yield from (name.replace("\\ ", " ") for name in names if name.endswith((".h", ".hpp", ".cuh")))

    def build_extension(self, extension):
        target = Path(self.get_ext_fullpath(extension.name))
        before = target.stat().st_mtime_ns if target.exists() else None
        start = time.monotonic()
        super().build_extension(extension)
        if target.stat().st_mtime_ns != before:
            say(f"built {extension.name} ({time.monotonic() - start:.1f} s)")


class BuildPy(build_py):
    """Puts include/ into the package, as nvsym/include, where nvsym.get_include() finds it."""

    def run(self):
        super().run()
        if not self.editable_mode:
            for source, target in self.headers():
                self.mkpath(os.path.dirname(target))
                self.copy_file(str(source), target)

    def headers(self):
        folder = os.path.join(self.build_lib, "nvsym", "include", "nvsym")
        return [(header.relative_to(ROOT), os.path.join(folder, header.name)) for header in HEADERS]

    def get_outputs(self, include_bytecode=True):
        return super().get_outputs(include_bytecode) + [target for _, target in self.headers()]

    def get_source_files(self):
        return super().get_source_files() + [str(source) for source, _ in self.headers()]


if __name__ == "__main__":
    setup(license="Apache-2.0", ext_modules=extensions(), cmdclass={"build_ext": BuildExt, "build_py": BuildPy})
