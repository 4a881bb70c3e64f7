# SPDX-License-Identifier: Apache-2.0
"""`python -m nvsym info` of a job on GPUs."""

import json

import pytest
from simulated import here


@here
def test_the_links_of_a_job(mpirun, n):
    """What NVML says of the way from each PE's GPU to those of the others."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    program = "import sys; from nvsym.__main__ import main; sys.exit(main(['info', '--json']))\n"
    report = json.loads(mpirun(n, program, env={"NVSYM_BACKEND": "nvshmem"}).pe_stdout[0])
    assert report["job"]["backend"] == "nvshmem"
    uuids = [row["device"]["uuid"] for row in report["pes"]]
    for pe, row in enumerate(report["pes"]):
        links = row["links"]
        assert links["reason"] is None, links
        assert links["nvlinks"] >= 0
        assert [way["pe"] for way in links["to"]] == [other for other in range(n) if other != pe]
        for way in links["to"]:
            if uuids[way["pe"]] == uuids[pe]:
                assert way["by"] == "the same GPU"
            else:
                assert way["by"] == "NVLink" or way["by"].startswith("PCIe"), links
