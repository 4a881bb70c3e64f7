# SPDX-License-Identifier: Apache-2.0
"""What nvdisasm says of a compiled kernel."""

import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import pytest


def nvdisasm():
    """The disassembler: of the wheel nvidia-cuda-nvdisasm, or of a toolkit."""
    for tool in Path(sysconfig.get_path("purelib"), "nvidia").glob("*/bin/nvdisasm"):
        return str(tool)
    return shutil.which("nvdisasm")


def disassemble(cubin, *options):
    """A cubin's text; the test is skipped where there is no disassembler."""
    tool = nvdisasm()
    if tool is None:
        pytest.skip("a disassembler: nvidia-cuda-nvdisasm is not installed")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, *options, file.name], capture_output=True, text=True, check=True).stdout
