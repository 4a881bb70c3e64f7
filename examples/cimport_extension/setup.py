# SPDX-License-Identifier: Apache-2.0
"""Builds the extension. All that it needs of nvsym is the path of the headers; Cython finds the .pxd of the package itself."""

from Cython.Build import cythonize
from setuptools import Extension, setup

import nvsym

jacobi = Extension(
    "nvsym_jacobi._jacobi",
    ["nvsym_jacobi/_jacobi.pyx"],
    include_dirs=[nvsym.get_include()],
    extra_compile_args=[
        "-O3",
        "-ffp-contract=off",
    ],  # as NumPy computes, so that the results can be compared bit for bit
)

setup(ext_modules=cythonize([jacobi], language_level=3))
