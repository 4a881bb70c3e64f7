# SPDX-License-Identifier: Apache-2.0
"""Environment settings: what they take, what they refuse, and that one bad PE is an error of all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nvsym
from nvsym import SettingError, _settings
from nvsym._settings import SETTINGS, format_size, load, parse_size

# ---- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        ("4096", 4096),
        (4096, 4096),
        ("64M", 64 << 20),
        ("64 MiB", 64 << 20),
        ("64mb", 64 << 20),
        ("1.5 GiB", 3 << 29),
        (" 2k ", 2048),
        ("1T", 1 << 40),
        ("0.5K", 512),
        ("512B", 512),
        (np.int64(77), 77),
        ("64T", 64 << 40),
        ("9007199254740", 9007199254740),
    ],
)
def test_sizes(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "M",
        "-1",
        "-5M",
        "0",
        0,
        -3,
        "0M",
        "1e3",
        "0x10",
        "12X",
        "1.5",
        "0.3K",
        "1..5G",
        "1 2",
        "ten",
        True,
        False,
        None,
        1.5,
        "nan",
        "inf",
        "1,000",
        "65T",
        "99999999999999999999",
        1 << 62,
        1 << 64,
        "4M4",
    ],
)
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.integers(1, 1 << 46))
def test_sizes_come_back(nbytes):
    assert parse_size(str(nbytes)) == parse_size(f"{nbytes}B") == nbytes
    assert parse_size(nbytes) == nbytes
    shown = format_size(nbytes)
    number, unit = shown.split()
    assert (
        abs(float(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit] / nbytes - 1)
        < 0.06
    )


def test_sizes_are_shown():
    assert [format_size(n) for n in (0, 100, 1024, 1536, 64 << 20, 1 << 40, 1 << 50)] == [
        "0 B",
        "100 B",
        "1 KiB",
        "1.5 KiB",
        "64 MiB",
        "1 TiB",
        "1024 TiB",
    ]


# ---- all of them ----------------------------------------------------------------------------------------------------


def test_defaults():
    settings = load({"PATH": "/bin", "NVSYMX": "no setting of ours"})
    for name, setting in SETTINGS.items():
        assert settings[name] == setting.default
        assert settings.source[name] == "default"
        assert name.startswith("NVSYM_")
        assert setting.meaning
    rows = list(settings.rows())
    assert [row[0] for row in rows] == list(SETTINGS)
    assert ("NVSYM_HEAP_SIZE", "1 GiB", "default", SETTINGS["NVSYM_HEAP_SIZE"].meaning) in rows
    assert all(row[1] == "unset" for row in rows if SETTINGS[row[0]].default is None)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("NVSYM_BACKEND", "host", "host"),
        ("NVSYM_HEAP_SIZE", "64M", 64 << 20),
        ("NVSYM_SHM_DIR", "/tmp", "/tmp"),
        ("NVSYM_TIMEOUT", "2.5", 2.5),
        ("NVSYM_TIMEOUT", "0", 0.0),
        ("NVSYM_INIT_TIMEOUT", "1e2", 100.0),
        ("NVSYM_ABORT_ON_EXCEPTION", "0", False),
        ("NVSYM_ABORT_ON_EXCEPTION", "Yes", True),
        ("NVSYM_ABORT_ON_EXCEPTION", " off ", False),
        ("NVSYM_MAX_TEAMS", "4", 4),
        ("NVSYM_SPIN", "0", 0),
        ("NVSYM_ALLREDUCE_ALGORITHM", "two_shot", "two_shot"),
        ("NVSYM_CACHE_DIR", "/some/where", "/some/where"),
        ("NVSYM_STAGE_SIZE", "0", 0),
        ("NVSYM_STAGE_SIZE", "8M", 8 << 20),
        ("NVSYM_COPY_KERNEL", "auto", None),
        ("NVSYM_COPY_KERNEL", "0", 0),
        ("NVSYM_COPY_KERNEL", "64K", 64 << 10),
        ("NVSYM_DISABLE_MULTICAST", "true", True),
        ("NVSYM_LIBCUDA", "/lib/libcuda.so.1", "/lib/libcuda.so.1"),
    ],
)
def test_values(name, text, value):
    settings = load({name: text})
    assert settings[name] == value
    assert type(settings[name]) is type(value)
    assert settings.source[name] == "environment"
    assert load({name: ""})[name] == SETTINGS[name].default  # empty is unset
    assert load({name: ""}).source[name] == "default"


BAD = [
    ("NVSYM_BACKEND", "cuda"),
    ("NVSYM_BACKEND", "HOST"),
    ("NVSYM_HEAP_SIZE", "lots"),
    ("NVSYM_HEAP_SIZE", "-1"),
    ("NVSYM_HEAP_SIZE", "0"),
    ("NVSYM_HEAP_SIZE", "9999999T"),
    ("NVSYM_TIMEOUT", "soon"),
    ("NVSYM_TIMEOUT", "-1"),
    ("NVSYM_TIMEOUT", "nan"),
    ("NVSYM_TIMEOUT", "inf"),
    ("NVSYM_TIMEOUT", "1e-12"),
    ("NVSYM_INIT_TIMEOUT", "1 s"),
    ("NVSYM_ABORT_ON_EXCEPTION", "2"),
    ("NVSYM_MAX_TEAMS", "3"),
    ("NVSYM_STAGE_SIZE", "64K"),
    ("NVSYM_MAX_TEAMS", "4097"),
    ("NVSYM_MAX_TEAMS", "4.0"),
    ("NVSYM_SPIN", "-1"),
    ("NVSYM_SPIN", "many"),
    ("NVSYM_SPIN", "99999999999"),
    ("NVSYM_ALLREDUCE_ALGORITHM", "ring"),
    ("NVSYM_DISABLE_MULTICAST", "maybe"),
]


@pytest.mark.parametrize(("name", "text"), BAD)
def test_bad_values(name, text):
    with pytest.raises(SettingError) as caught:
        load({name: text})
    for word in (name, repr(text), SETTINGS[name].meaning):
        assert word in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("NVSYM_TIMEOUT", "soon", "a number of seconds, 0 or from 1e-9 to below 1e9"),
        ("NVSYM_DRIVER_WATCH", "-1", "a number of seconds, 0 or from 1e-9 to below 1e9"),
        ("NVSYM_SPIN", "many", "a whole number from 0 to 2147483647"),
        ("NVSYM_MAX_TEAMS", "4.0", "a whole number from 4 to 4096"),
    ],
)
def test_a_number_that_is_none_is_told_what_is_wanted(name, text, wanted):
    with pytest.raises(SettingError) as caught:
        load({name: text})
    assert str(caught.value) == f"{name}={text!r}: {text!r} is not {wanted} ({SETTINGS[name].meaning})"


@pytest.mark.parametrize(
    "text", ["1", "true", "yes", "on", " TRUE ", "maybe", "f", "n", "2", "0", "false", "No", "off"]
)
def test_what_nvsym_does_not_take_for_false_forbids_multicast(text):
    name = "NVSYM_DISABLE_MULTICAST"
    try:
        allowed = not load({name: text})[name]
    except SettingError:
        allowed = False
    assert (_settings.multicast_switch({name: text}) is None) == allowed


def test_names_that_do_not_exist():
    with pytest.raises(SettingError, match=r"NVSYM_HEAPSIZE.*did you mean NVSYM_HEAP_SIZE"):
        load({"NVSYM_HEAPSIZE": "1G"})
    with pytest.raises(SettingError, match=r"NVSYM_ZEBRACROSSING.*the known ones are .*NVSYM_TIMEOUT"):
        load({"NVSYM_ZEBRACROSSING": "1"})
    with pytest.raises(SettingError, match="NVSYM_QQQQ"):
        load({"NVSYM_QQQQ": ""})
    for prefix in _settings._OTHER_PREFIXES:  # the test suite's and the build's own
        load({f"{prefix}ANYTHING": "x"})


def test_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("NVSYM_TIMEOUT", "7")
    assert load()["NVSYM_TIMEOUT"] == 7
    monkeypatch.setenv("NVSYM_TIMOUT", "7")
    with pytest.raises(SettingError, match="did you mean NVSYM_TIMEOUT"):
        load()


# ---- in a job -------------------------------------------------------------------------------------------------------


def test_bad_settings_on_one_pe_are_errors_of_all(mpirun):
    """Each in turn; then init works, since nothing of the failures is left."""
    bad = [*BAD[::4], ("NVSYM_HEAPSIZE", "1G"), ("NVSYM_SHM_DIR", "/no/such/folder")]
    result = mpirun(
        2,
        f"""
        import os, sys, time
        from mpi4py import MPI
        import nvsym
        pe = MPI.COMM_WORLD.Get_rank()
        for name, text in {bad!r}:
            odd = 0 if name == "NVSYM_SHM_DIR" else 1   # the first PE of a node makes its segment
            if pe == odd:
                os.environ[name] = text
            began = time.monotonic()
            try:
                nvsym.init()
            except nvsym.NVSymError as error:
                assert name in str(error) and f"PE {{odd}}" in str(error), error
                assert isinstance(error, nvsym.BackendError if name == "NVSYM_SHM_DIR" else nvsym.SettingError), error
                assert time.monotonic() - began < 10
            else:
                raise AssertionError(f"{{name}}={{text}} was taken")
            assert not nvsym.is_initialized()
            os.environ.pop(name, None)
        for options in ({{"heap_size": 0}}, {{"heap_size": "x"}}, {{"heap_size": 1.5}}, {{"heap_size": True}},
                        {{"heap_size": 1 << 62}},
                        {{"heap_size": -4}}):
            try:
                nvsym.init(**(options if pe == 1 else {{"heap_size": "8M"}}))
            except nvsym.SettingError as error:
                assert "heap_size" in str(error) and "PE 1" in str(error), error
            else:
                raise AssertionError(f"{{options}} was taken")
        for one, other in (({{"heap_size": "8M"}}, {{"heap_size": "16M"}}),
                           ({{"backend": "host"}}, {{"backend": "nvshmem"}})):
            try:
                nvsym.init(**(one if pe else other))
            except nvsym.CollectiveError as error:
                assert "PE 0" in str(error) and "PE 1" in str(error), error
            else:
                raise AssertionError("different arguments were taken")
        with nvsym.SHMEMContext(heap_size="8M") as ctx:
            assert ctx.heap.size == 8 << 20
            with nvsym.SHMEMBuffer["i4"].full(3, pe) as b:
                nvsym.allreduce(b, b, "max")
                assert b.to_numpy().tolist() == [1] * 3
        print("fine")
    """,
        env=dict.fromkeys(SETTINGS) | {"NVSYM_HEAP_SIZE": "16M"},
    )
    assert result.stdout.count("fine") == 2


def test_settings_have_an_effect(mpirun, tmp_path):
    result = mpirun(
        1,
        """
        import os, nvsym
        ctx = nvsym.init()
        assert ctx.heap.size == 3 << 20, ctx.heap
        assert not os.listdir(os.environ["NVSYM_SHM_DIR"])  # the segment has no name any more
        b = nvsym.SHMEMBuffer["i4"].full(3, 5)
        with open("/proc/self/maps") as file:
            mapped = [line for line in file if os.environ["NVSYM_SHM_DIR"] in line]
        assert mapped
        signal = nvsym.SHMEMBuffer["u8"].zeros(1)
        try:
            nvsym.signal_wait_until(signal, "eq", 1)
        except (nvsym.PeerTimeoutError, nvsym.PeerExitedError) as error:
            print("fine", type(error).__name__)
    """,
        env={"NVSYM_HEAP_SIZE": "3M", "NVSYM_SHM_DIR": str(tmp_path), "NVSYM_TIMEOUT": "0.5", "NVSYM_BACKEND": "host"},
    )
    assert "fine" in result.stdout


def test_the_settings_are_exported():
    assert issubclass(nvsym.SettingError, nvsym.NVSymError)
