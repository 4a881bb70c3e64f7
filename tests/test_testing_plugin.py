# SPDX-License-Identifier: Apache-2.0
"""Tests of the pytest plugin `nvsym.testing`: each runs a pytest session of its own, which runs MPI jobs.

They need mpi4py and a launcher, not the runtime: for the fixture `ctx` the inner tests bring a fake one.
"""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import types
import xml.etree.ElementTree

import pytest

from nvsym import _launch  # here, so that the sessions in this process share what it found
from nvsym.testing import _job, _runner
from nvsym.testing._launcher import simulates_nodes
from nvsym.testing._merge import merge

# At the head of every inner test file. `MPI` is only imported where a test runs, as in any test file of this kind.
PREAMBLE = """
import os, pathlib, signal, sys, time
import pytest
HERE = pathlib.Path(__file__).parent
def world():
    from mpi4py import MPI
    return MPI.COMM_WORLD
def note(name):
    "A file that tells the outside that this PE came here; it is there with its contents or not at all."
    unfinished = HERE / f".{name}.{world().rank}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(HERE / f"{name}.{world().rank}")
"""


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """The inner sessions run with the plugin's defaults, on the MPI that the outer one uses."""
    monkeypatch.delenv("NVSYM_TEST_BACKENDS", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


@pytest.fixture
def run(pytester):
    """Run a test file in a session of its own, in this process."""

    def run(code, *args, hypothesis=False, **files):
        pytester.makepyfile(test_it=PREAMBLE + textwrap.dedent(code))
        for name, text in files.items():
            pytester.makepyfile(**{name: PREAMBLE + textwrap.dedent(text)})
        # Each session in this process would import hypothesis anew.
        args = ["-v", *args] if hypothesis else ["-v", "-p", "no:hypothesispytest", *args]
        return pytester.runpytest_inprocess(*args)

    return run


def jobs(result):
    """The lines that announce a job."""
    return [line for line in result.outlines if line.startswith("nvsym:") and " in one job" in line]


def pids(folder, name):
    """The processes that left the note `name`, by PE."""
    return {file.suffix: int(file.read_text()) for file in sorted(pathlib.Path(folder).glob(f"{name}.*"))}


def wait_for(condition, what, seconds=20.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"waited {seconds} s in vain for {what}"
        time.sleep(0.02)


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def needs_nodes():
    if reason := simulates_nodes():
        pytest.skip(reason)


# ---------------------------------------------------------------------------------------------------------------------
# Tests that end
# ---------------------------------------------------------------------------------------------------------------------


def test_each_configuration_runs_once_in_one_job(run, pytester):
    result = run(
        """
        @pytest.mark.pes(1, 3)
        def test_first():
            note(f"first-{world().size}")
        def test_ordinary():
            assert "mpi4py.MPI" not in sys.modules
        @pytest.mark.pes(3)
        @pytest.mark.parametrize("word", ["a", "b"])
        def test_second(word):
            note(f"second-{word}")
        @pytest.mark.pes(3, own_job=True)
        def test_alone():
            from mpi4py import MPI
            note("alone")
            MPI.Finalize()
        """
    )
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(
        [
            "*::test_ordinary PASSED*",
            "nvsym: *: host-n1, 1 test in one job",
            "*::test_first?host-n1? PASSED*",
            "nvsym: *: host-n3, 3 tests in one job",
            "*::test_first?host-n3? PASSED*",
            "*::test_second?a-host-n3? PASSED*",
            "*::test_second?b-host-n3? PASSED*",
            "nvsym: *: host-n3, 1 test in one job",
            "*::test_alone?host-n3? PASSED*",
        ]
    )
    assert len(jobs(result)) == 3
    three = pids(pytester.path, "first-3")
    assert list(three) == [".0", ".1", ".2"]
    assert len(pids(pytester.path, "first-1")) == 1
    assert pids(pytester.path, "second-a") == pids(pytester.path, "second-b") == three
    assert not set(pids(pytester.path, "alone").values()) & set(three.values())


def test_failures_name_their_pes(run, pytester):
    result = run(
        """
        @pytest.mark.pes(3)
        def test_one():
            print("I am number", world().rank)
            values = {"mine": world().rank}
            assert values["mine"] != 1
        @pytest.mark.pes(3)
        def test_all():
            note("all")
            raise ValueError("the same everywhere")
        @pytest.fixture
        def broken():
            if world().rank == 2:
                raise RuntimeError("no fixture on 2")
        @pytest.mark.pes(3)
        def test_setup(broken):
            pass
        @pytest.mark.pes(3)
        def test_after():
            note("after")
        """,
        "--junitxml=report.xml",
    )
    result.assert_outcomes(passed=1, failed=2, errors=1)
    assert len(jobs(result)) == 1
    assert pids(pytester.path, "all") == pids(pytester.path, "after")
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_setup*",
            "*- PE 2 of 3, in setup -*",
            "E * RuntimeError: no fixture on 2",
            "*___ test_one*",
            "*- PE 1 of 3 -*",
            "E       assert 1 != 1",
            "*Captured stdout call, PE 1*",
            "I am number 1",
            "*___ test_all*",
            "*- PEs 0, 1, 2 of 3 -*",
            "E * ValueError: the same everywhere",
            "FAILED test_it.py::test_one?host-n3? - PE 1: assert 1 != 1",
        ]
    )
    # Only what failed has its output shown, and a traceback that several PEs share is printed once.
    result.stdout.no_fnmatch_line("I am number 0")
    assert sum("ValueError: the same everywhere" in line for line in result.outlines if line.startswith("E")) == 1
    cases = xml.etree.ElementTree.parse(pytester.path / "report.xml").findall(".//testcase")
    assert [len(case.findall("failure")) + len(case.findall("error")) for case in cases] == [1, 1, 1, 0]
    assert "PE 1" in cases[0].find("failure").text


def test_skips_and_expected_failures(run):
    result = run(
        """
        @pytest.mark.pes(2)
        def test_all_skip():
            pytest.skip("there is no moon")
        @pytest.mark.pes(2)
        def test_one_skips():
            if world().rank:
                pytest.skip("not mine")
        @pytest.mark.pes(2)
        @pytest.mark.skipif(True, reason="by its mark")
        def test_marked():
            pass
        @pytest.mark.pes(2)
        @pytest.mark.xfail(strict=True, reason="on one PE")
        def test_expected():
            assert world().rank == 0
        @pytest.mark.pes(2)
        @pytest.mark.xfail(strict=True)
        def test_unexpected():
            pass
        """,
        "-rsx",
    )
    result.assert_outcomes(passed=1, skipped=2, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*::test_one_skips?host-n2? PASSED*",
            "*::test_unexpected?host-n2? FAILED*",
            "*XPASS(strict)*",
            "SKIPPED*there is no moon",
            "SKIPPED*by its mark",
        ]
    )


def test_options_reach_the_pes_and_warnings_come_back(run, pytester):
    pytester.makeini("[pytest]\naddopts = --word=ini\nfilterwarnings = error::FutureWarning\n")
    result = run(
        """
        import warnings
        @pytest.mark.pes(2)
        def test_options(pytestconfig, tmp_path):
            assert pytestconfig.option.word == "given"
            (tmp_path / "mine").touch()
            folders = world().allgather(str(tmp_path))
            assert len(set(folders)) == 2
        @pytest.mark.pes(2)
        def test_warnings():
            print("said", world().rank)
            warnings.warn("watch out")
            with pytest.raises(FutureWarning):
                warnings.warn("later", FutureWarning)
        """,
        "--word=given",
        "-s",
        conftest="""
        def pytest_addoption(parser):
            parser.addoption("--word")
        """,
    )
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["?stdout call, PE 0? said 0", "?stdout call, PE 1? said 1", "*UserWarning: watch out"])


def test_hypothesis_draws_the_same_on_all_pes(run):
    run(
        """
        import hypothesis, hypothesis.strategies as st
        @pytest.mark.pes(2)
        @hypothesis.given(st.integers(), st.lists(st.floats(0, 1)))
        @hypothesis.settings(max_examples=20)
        def test_same(number, numbers):
            assert len({repr(each) for each in world().allgather((number, numbers))}) == 1
        """,
        hypothesis=True,
    ).assert_outcomes(passed=1)


# ---------------------------------------------------------------------------------------------------------------------
# Tests that do not end
# ---------------------------------------------------------------------------------------------------------------------


def test_a_hang_costs_one_test(run, pytester):
    result = run(
        """
        @pytest.mark.pes(2)
        def test_before():
            note("before")
        @pytest.mark.pes(2, timeout=1.5)
        def test_hang():
            print("I am number", world().rank)
            if world().rank == 1:
                maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
                (HERE / "segments").write_text("\\n".join(line.split()[-1] for line in maps if "/dev/shm/" in line))
                time.sleep(100)
            world().Barrier()  # here it hangs
        @pytest.mark.pes(2)
        def test_between():
            pass
        @pytest.mark.pes(2)
        def test_left_alone():
            if world().rank == 1:
                raise ValueError("one goes")
            world().Barrier()  # here it waits
        @pytest.mark.pes(2)
        def test_after():
            note("after")
        """,
        "-o",
        "nvsym_grace=1",
    )
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*___ test_hang*",
            "the test did not end within its limit of 1.5 s",
            "PE 0 was in the test",
            "PE 1 was in the test",
            "*- stacks of PE 0 of 2 -*",
            "  File *test_it.py* in test_hang",
            "*- stacks of PE 1 of 2 -*",
            "  File *test_it.py* in test_hang",
            "*Captured stdout, PE 0*",
            "I am number 0",
            "*Captured stdout, PE 1*",
            "I am number 1",
            "*___ test_left_alone*",
            "PE 1 failed, and 1 s later PE 0 had not ended the test",
            "PE 0 was in the test",
            "PE 1 failed in call",
            "*- PE 1 of 2 -*",
            "E * ValueError: one goes",
            "*- stacks of PE 0 of 2 -*",
            "  File *test_it.py* in test_left_alone",
        ]
    )
    assert [line.split()[-5] for line in jobs(result)] == ["5", "3", "1"]
    segments = (pytester.path / "segments").read_text().split()
    assert not any(map(os.path.exists, segments))
    before = pids(pytester.path, "before")
    assert not set(before.values()) & set(pids(pytester.path, "after").values())
    assert not any(map(is_alive, before.values()))


def test_a_death_costs_one_test(run, pytester):
    result = run(
        """
        @pytest.mark.pes(2)
        def test_signal():
            print("last words of", world().rank)
            if world().rank == 1:
                os.kill(os.getpid(), signal.SIGSEGV)
            world().Barrier()
        @pytest.mark.pes(2)
        def test_leaves():
            if world().rank == 0:
                os._exit(0)
            world().Barrier()
        @pytest.mark.pes(2)
        def test_aborts():
            if world().rank == 0:
                world().Abort(5)
            time.sleep(60)  # MPICH returns from Abort, and kills a moment later
        @pytest.mark.pes(2)
        def test_after():
            pass
        """
    )
    result.assert_outcomes(passed=1, failed=3)
    assert len(jobs(result)) == 4
    result.stdout.fnmatch_lines(
        [
            "*___ test_signal*",
            "the job ended: * returned *",
            "*- log of PE 1 -*",
            "*Segmentation fault*",
            "  File *test_it.py* in test_signal",
            "*- output of the job -*",
            "*Captured stdout, PE 1*",
            "last words of 1",
            "*___ test_leaves*",
            "the job ended: *",
            "*___ test_aborts*",
            "the job ended: *",
        ]
    )


@pytest.mark.parametrize(
    ("at_exit", "limit", "message"),
    [
        ("os._exit, 9", 20.0, "the job ended badly after its last test: *"),
        ("time.sleep, 100", 1.0, "the job did not end within 1 s after its last test"),
    ],
    ids=["dies", "hangs"],
)
def test_a_bad_end_of_the_job_is_an_error_of_its_last_test(run, monkeypatch, at_exit, limit, message):
    monkeypatch.setattr(_job, "EXIT_LIMIT", limit)
    result = run(
        f"""
        import atexit
        @pytest.mark.pes(2)
        def test_last():
            if world().rank == 1:
                atexit.register({at_exit})
        """
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([message])


def test_pytest_timeout_is_replaced(run):
    pytest.importorskip("pytest_timeout")
    result = run(
        """
        @pytest.mark.pes(2)
        def test_longer_than_the_option():
            time.sleep(0.6)
        @pytest.mark.pes(2)
        @pytest.mark.timeout(0.5)
        def test_longer_than_the_mark():
            time.sleep(100)
        """,
        "--timeout=0.5",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["the test did not end within its limit of 0.5 s"])


def test_tests_that_some_pes_lack_fail_alone(run):
    result = run(
        """
        @pytest.mark.pes(2)
        def test_fine():
            pass
        """,
        test_other="""
        if "mpi4py.MPI" in sys.modules and world().rank == 1:
            raise ImportError("not on PE 1")
        @pytest.mark.pes(2)
        def test_lacking():
            pass
        """,
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["the inner session of PE 1 does not have this test", "*ImportError: not on PE 1*"])


def test_a_job_that_does_not_start_is_tried_once(run):
    result = run(
        """
        if "mpi4py.MPI" in sys.modules:
            os._exit(3)
        @pytest.mark.pes(2)
        def test_one():
            pass
        @pytest.mark.pes(2)
        def test_two():
            pass
        """
    )
    result.assert_outcomes(failed=1, errors=1)
    assert len(jobs(result)) == 1
    result.stdout.fnmatch_lines(["*; the first test of it, test_it.py::test_one?host-n2?, has the details"])


# ---------------------------------------------------------------------------------------------------------------------
# Sessions: order, selection, progress, interruption
# ---------------------------------------------------------------------------------------------------------------------


def test_exitfirst_and_last_failed(run, pytester):
    code = """
        @pytest.fixture(scope="module")
        def wide():
            yield
            (HERE / "torn").touch()
        def test_ordinary(wide):
            pass
        @pytest.mark.pes(2)
        def test_good():
            pass
        @pytest.mark.pes(2)
        def test_bad():
            note("bad")
            assert 0
        @pytest.mark.pes(2)
        def test_slow():
            time.sleep(0.1)
        @pytest.mark.pes(2)
        def test_never():
            pass
        """
    result = run(code, "-x")
    result.assert_outcomes(passed=2, failed=1)
    bad = pids(pytester.path, "bad")
    assert len(bad) == 2
    assert not any(map(is_alive, bad.values()))
    assert (pytester.path / "torn").exists()
    run(code, "--lf", "-k", "n2").assert_outcomes(failed=1)
    run(code, "-k", "ordinary or good").assert_outcomes(passed=2, deselected=3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_progress_is_visible_and_no_job_outlives_its_session(pytester, number):
    pytester.makepyfile(
        PREAMBLE
        + textwrap.dedent(
            """
            @pytest.mark.pes(2)
            def test_quick():
                note("quick")
            @pytest.mark.pes(2)
            def test_endless():
                note("endless")
                time.sleep(100)
            """
        )
    )
    log = pytester.path / "log"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    with open(log, "wb") as file:
        session = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-v", "-p", "no:hypothesispytest"],
            cwd=pytester.path,
            env=env,
            stdout=file,
            stderr=file,
            start_new_session=True,
            # What a shell runs in the background ignores the signal, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread of ours runs
        )
    try:
        wait_for(lambda: len(pids(pytester.path, "endless")) == 2, "the endless test")
        wait_for(lambda: "test_quick[host-n2] PASSED" in log.read_text(), "the result of the quick test")
        wait_for(lambda: "test_endless[host-n2]" in log.read_text(), "the name of the endless test")
        session.send_signal(number)
        session.wait(20)
        wait_for(lambda: not any(map(is_alive, pids(pytester.path, "quick").values())), "the end of the job")
    finally:
        session.kill()
        session.wait()


def test_marks_and_options_are_checked(run, pytester):
    for mark, message in (
        ("pes()", "numbers of PEs are missing"),
        ("pes(0)", "0 PEs on 1 nodes"),
        ("pes(2, nodes=4)", "2 PEs on 4 nodes"),
        ("pes(2, node=4)", "unknown option node"),
        ("pes(2, timeout=-1)", "timeout=-1"),
    ):
        result = run(f"@pytest.mark.{mark}\ndef test_x(): pass\n")
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"*{message}*"])
    result = run("def test_x(ctx): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*needs a test marked @pytest.mark.pes*"])
    assert (
        pytester.runpytest_inprocess("-p", "no:hypothesispytest", "--nvsym-backend=hosts").ret
        == pytest.ExitCode.USAGE_ERROR
    )
    assert (
        pytester.runpytest_inprocess("-p", "no:hypothesispytest", "-o", "nvsym_timeout=soon").ret
        == pytest.ExitCode.USAGE_ERROR
    )


def test_backends_and_nearest_marks_make_the_parameters(run):
    result = run(
        """
        pytestmark = pytest.mark.pes(8)
        def test_module(): pass
        @pytest.mark.pes(2, 1)
        @pytest.mark.pes(4, nodes=2)
        class TestClass:
            def test_class(self): pass
            @pytest.mark.pes(3)
            def test_own(self): pass
        """,
        "--nvsym-backend=host,nvshmem",
        "--collect-only",
        "-qq",
    )
    nodes = [line.rpartition("::")[2] for line in result.outlines if line.startswith("test_it.py")]
    assert nodes == [
        f"{name}-{size}]"
        for name, size in (
            ("test_class[host", "n1"),
            ("test_class[host", "n2"),
            ("test_own[host", "n3"),
            ("test_module[host", "n8"),
            ("test_class[host", "n4-2nodes"),
            ("test_class[nvshmem", "n1"),
            ("test_class[nvshmem", "n2"),
            ("test_own[nvshmem", "n3"),
            ("test_module[nvshmem", "n8"),
            ("test_class[nvshmem", "n4-2nodes"),
        )
    ]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [([], ["test_some[simulator-n2]", "test_any[host-n2]"]),
     (["--nvsym-backend=host"], ["test_some[no-backend]", "test_any[host-n2]"]),
     (["--nvsym-backend=nvshmem,simulator"],
      ["test_some[nvshmem-n2]", "test_any[nvshmem-n2]", "test_some[simulator-n2]", "test_any[simulator-n2]"])],
)  # fmt: skip
def test_a_test_may_name_the_backends_that_it_can_run_on(run, arguments, found):
    result = run(
        """
        @pytest.mark.pes(2, backends=("simulator", "nvshmem"))
        def test_some(): pass
        @pytest.mark.pes(2)
        def test_any(): pass
        """,
        *arguments,
        "--collect-only",
        "-qq",
    )
    nodes = [line.rpartition("::")[2] for line in result.outlines if line.startswith("test_it.py")]
    assert sorted(nodes) == sorted(found)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_a_test_whose_backends_were_not_chosen_is_skipped(run):
    result = run(
        """
        @pytest.mark.pes(2, backends=("nvshmem", "simulator"))
        def test_some(ctx): raise AssertionError
        @pytest.mark.pes(2, backends=("nvshmem",))
        class TestClass:
            @pytest.mark.parametrize("word", ["a", "b"])
            def test_words(self, word): raise AssertionError
        @pytest.mark.pes(2)
        def test_any(): assert world().size == 2
        def test_ordinary(): pass
        """,
        "--nvsym-backend=host",
        "-rs",
    )
    result.assert_outcomes(passed=2, skipped=3)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["SKIPPED*it runs on nvshmem, simulator only, and that was not chosen"])
    result.stdout.fnmatch_lines(["SKIPPED*it runs on nvshmem only, and that was not chosen"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_simulated_gpus(run):
    run(
        """
        @pytest.mark.pes(2, backends=["simulator"])
        def test_gpus(ctx):
            import nvsym, numpy as np
            assert ctx.backend == "nvshmem" and ctx.number_of_devices() == 2
            b = nvsym.SHMEMBuffer[np.int64].full(3, ctx.my_pe())
            nvsym.put(b, b, 1 - ctx.my_pe(), stream=nvsym.Stream())
            nvsym.barrier_all()
            ctx.device.synchronize()
        """
    ).assert_outcomes(passed=1)
    result = run("@pytest.mark.pes(2, backends='host')\ndef test_refused(): pass")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a sequence of some of host, nvshmem, simulator*"])


def test_simulated_nodes(run):
    needs_nodes()
    run(
        """
        @pytest.mark.pes(4, nodes=2)
        @pytest.mark.pes(4)
        def test_nodes(request):
            from mpi4py import MPI
            group = world().Split_type(MPI.COMM_TYPE_SHARED)
            assert group.size == (2 if "2nodes" in request.node.name else 4)
        """
    ).assert_outcomes(passed=2)


def test_simulated_nodes_are_skipped_where_there_are_none(run, monkeypatch):
    monkeypatch.setattr(_runner, "simulates_nodes", lambda: "simulated nodes: this MPI has none")
    result = run("@pytest.mark.pes(4, nodes=2)\ndef test_x(): pass\n", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*simulated nodes: this MPI has none"])


@pytest.fixture
def launcher(monkeypatch):
    """Give the plugin a launcher, or the exception that looking for one raises."""

    def give(command):
        def find_launcher(prefer=None):
            if isinstance(command, Exception):
                raise command
            return types.SimpleNamespace(kind="fake", command=command, environ=dict, version="0")

        monkeypatch.setattr(_launch, "find_launcher", find_launcher)

    return give


def test_the_launcher_of_another_mpi_is_named(run, launcher):
    launcher(["/bin/sh", "-c", 'shift 2; exec "$@"', "fake"])  # as such a launcher's: the process believes to be alone
    result = run("@pytest.mark.pes(2)\ndef test_x(): pass\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*a job of 2 PEs was started, but mpi4py sees 1*"])


def test_a_missing_launcher_fails_the_test(run, launcher):
    launcher(RuntimeError("no launcher anywhere"))
    result = run("@pytest.mark.pes(2)\ndef test_x(): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["RuntimeError: no launcher anywhere"])


def test_pytest_under_mpirun_is_refused(run, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    result = run("@pytest.mark.pes(2)\ndef test_x(): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*pytest runs under mpirun*"])


# ---------------------------------------------------------------------------------------------------------------------
# The fixture ctx, over a fake runtime
# ---------------------------------------------------------------------------------------------------------------------

FAKE_RUNTIME = """
import nvsym

class Buffer:
    live = 0
    dropped = 0
    def __init__(self):
        Buffer.live += 1
        self.itself = self  # only the cyclic collector finds it
    def __del__(self):
        Buffer.dropped += 1

class Context:
    @property
    def heap(self):
        return self
    @property
    def live(self):
        return Buffer.live
    @property
    def device(self):
        return self
    def synchronize(self):
        pass

def init(*, backend):
    assert backend == "host"
    note("init")
    world().Barrier()
    return Context()

def collect():
    world().Barrier()  # collective, as the real one
    Buffer.live -= Buffer.dropped
    Buffer.dropped = 0

def finalize():
    note("finalize")
    world().Barrier()

nvsym.init, nvsym.collect, nvsym.finalize = init, collect, finalize
"""


def test_ctx(run, pytester):
    result = run(
        """
        from conftest import Buffer
        kept = []
        @pytest.mark.pes(3, timeout=20)
        class TestCtx:
            def test_drops(self, ctx):
                buffer = Buffer()
            def test_fails_with_a_buffer(self, ctx):
                buffer = Buffer()
                assert world().rank != 1
            def test_after_failure(self, ctx):
                assert ctx.heap.live == 0
            def test_leaks_on_one(self, ctx):
                if world().rank == 2:
                    kept.append(Buffer())
            def test_after_leak(self, ctx):
                assert ctx.heap.live == (world().rank == 2)
            def test_one_skips_inside(self, ctx):
                if world().rank == 0:
                    pytest.skip("not mine")
            @pytest.fixture
            def early(self):
                if world().rank == 0:
                    pytest.skip("not mine")
            def test_one_skips_before(self, early, ctx):
                pass
            @pytest.fixture
            def late(self, ctx):
                if world().rank == 0:
                    raise RuntimeError("late")
            def test_one_fails_after(self, ctx, late):
                pass
            def test_last(self, ctx):
                note("last")
        """,
        conftest=FAKE_RUNTIME,
    )
    result.assert_outcomes(passed=6, failed=1, errors=3)
    assert len(jobs(result)) == 1
    last = pids(pytester.path, "last")
    assert len(last) == 3
    assert pids(pytester.path, "init") == pids(pytester.path, "finalize") == last
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of *test_leaks_on_one*",
            "*- PE 2 of 3, in teardown -*",
            "1 buffers are live on the symmetric heap after the test, 0 were before",
            "*ERROR at setup of *test_one_skips_before*",
            "*- PEs 1, 2 of 3, in setup -*",
            "PE 0 did not get as far as the fixture `ctx`",
            "*ERROR at setup of *test_one_fails_after*",
            "*- PE 0 of 3, in setup -*",
        ]
    )


# ---------------------------------------------------------------------------------------------------------------------
# mpirun
# ---------------------------------------------------------------------------------------------------------------------


def test_mpirun_returns_the_output_of_each_pe(mpirun, tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import sys\nfrom mpi4py import MPI\nprint(MPI.COMM_WORLD.rank, *sys.argv[1:])\n")
    done = mpirun(3, script, "a", 7)
    assert done.returncode == 0
    assert done.stdout == "0 a 7\n1 a 7\n2 a 7\n"
    assert done.pe_stdout == ["0 a 7\n", "1 a 7\n", "2 a 7\n"]
    assert 0 < done.elapsed < 30
    with pytest.raises(FileNotFoundError):
        mpirun(1, "nowhere.py")


def test_mpirun_sets_and_removes_variables(mpirun, monkeypatch):
    monkeypatch.setenv("NVSYM_TEST_REMOVED", "1")
    code = """
        import os, sys
        print(os.environ.get("NVSYM_TEST_REMOVED"), os.environ["NVSYM_TEST_ADDED"], file=sys.stderr)
    """
    done = mpirun(1, code, env={"NVSYM_TEST_REMOVED": None, "NVSYM_TEST_ADDED": 5})
    assert done.pe_stderr == ["None 5\n"]


def test_mpirun_fails_with_the_output(mpirun):
    code = """
        import sys
        from mpi4py import MPI
        print("before the end", MPI.COMM_WORLD.rank)
        MPI.COMM_WORLD.Barrier()
        if MPI.COMM_WORLD.rank == 1:
            MPI.COMM_WORLD.Abort(4)
        MPI.COMM_WORLD.Barrier()
    """
    with pytest.raises(pytest.fail.Exception, match=r"(?s)the job failed.*before the end 0\nbefore the end 1"):
        mpirun(2, code)
    assert mpirun(2, code, check=False).returncode != 0


def test_mpirun_kills_at_the_limit(mpirun, tmp_path):
    code = """
        import os, pathlib, sys, time
        from mpi4py import MPI
        pathlib.Path(f"pid.{MPI.COMM_WORLD.rank}").write_text(str(os.getpid()))
        def sleeps():
            time.sleep(100)
        MPI.COMM_WORLD.Barrier()
        if MPI.COMM_WORLD.rank == 1:
            sleeps()
        MPI.COMM_WORLD.Barrier()
    """
    with pytest.raises(pytest.fail.Exception, match=r"(?s)did not end within 1.5 s.*in sleeps"):
        mpirun(2, code, timeout=1.5)
    found = pids(tmp_path, "pid")
    assert len(found) == 2
    assert not any(map(is_alive, found.values()))


def test_mpirun_simulates_nodes(mpirun):
    needs_nodes()
    code = """
        from mpi4py import MPI
        print(MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED).size)
    """
    assert mpirun(4, code, nodes=2).pe_stdout == ["2\n"] * 4


# ---------------------------------------------------------------------------------------------------------------------
# Merging reports
# ---------------------------------------------------------------------------------------------------------------------


def report(when, outcome="passed", longrepr=None, **extra):
    return pytest.TestReport("f.py::t", ("f.py", 1, "t"), {}, outcome, longrepr, when, **extra)


@pytest.mark.parametrize(
    ("calls", "outcome", "xfail"),
    [
        (["passed", "passed"], "passed", False),
        (["passed", "failed"], "failed", False),
        (["skipped", "failed"], "failed", False),
        (["skipped", "passed"], "passed", False),
        (["skipped", "skipped"], "skipped", False),
        (["xfailed", "xpassed"], "skipped", True),
        (["xfailed", "strict"], "skipped", True),
        (["strict", "strict"], "failed", False),
        (["xfailed", "failed"], "failed", False),
        (["xpassed", "xpassed"], "passed", True),
    ],
)
def test_merge(calls, outcome, xfail):
    kinds = {
        "passed": {},
        "failed": {"outcome": "failed", "longrepr": "text"},
        "skipped": {"outcome": "skipped", "longrepr": ("f.py", 1, "Skipped: why")},
        "xfailed": {"outcome": "skipped", "longrepr": "text", "wasxfail": "why"},
        "xpassed": {"wasxfail": "why"},
        "strict": {"outcome": "failed", "longrepr": "[XPASS(strict)] why"},
    }
    item = types.SimpleNamespace(nodeid="f.py::t", location=("f.py", 1, "t"), keywords={})
    per_pe = [[report("setup"), report("call", **kinds[call]), report("teardown")] for call in calls]
    for reports in (per_pe, per_pe[::-1]):
        setup, call, teardown = merge(item, 2, reports)
        assert (setup.outcome, call.outcome, teardown.outcome) == ("passed", outcome, "passed")
        assert hasattr(call, "wasxfail") == xfail
