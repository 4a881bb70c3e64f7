# SPDX-License-Identifier: Apache-2.0
"""Builds the simulated driver and NVSHMEM; functions that the source lacks answer with an error."""

import re
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("driver.c")


def build(folder):
    """The library, in `folder`; a name for each of its two parts."""
    from nvsym import _driver, _nvshmem

    source = SOURCE.read_text()
    present = set(re.findall(r"^API [\w ]+[ *](\w+)\(", source, re.MULTILINE))
    names = {symbol for _, symbol, _ in _driver.functions()} | {name for name, _, _ in _nvshmem.functions()}
    # CUDA_ERROR_NOT_SUPPORTED, and a status of NVSHMEM that it does not have.
    missing = sorted(name for name in names - present if "_reduce" not in name)
    stubs = "".join(f"API int {name}(void) {{ return {801 if name.startswith('cu') else 99}; }}\n" for name in missing)
    whole = Path(folder) / "driver.c"
    whole.write_text(source + stubs)
    libraries = [Path(folder) / name for name in ("libcuda.so.1", "libnvshmem_host.so.3")]
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", libraries[0], whole, "-lpthread"], check=True)
    libraries[1].symlink_to(libraries[0])
    return {"NVSYM_LIBCUDA": str(libraries[0]), "NVSYM_LIBNVSHMEM": str(libraries[1])}
