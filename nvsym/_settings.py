# SPDX-License-Identifier: Apache-2.0
"""Every environment variable of nvsym, in one place: name, type, default, meaning.

`load()` reads them all; a name that does not exist or a value that cannot be taken is a `SettingError`. `nvsym.init` votes
over the result, so that a bad setting on one PE is an error on every PE.
"""

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import SettingError

__all__ = ["SETTINGS", "Setting", "Settings", "format_size", "load", "load_one", "multicast_switch", "parse_size"]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LARGEST = 1 << 46
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)

# Names that belong to the test suite and the build, not to the runtime.
_OTHER_PREFIXES = ("NVSYM_TEST_", "NVSYM_BUILD_", "NVSYM_BENCH_", "NVSYM_SIM_")


def parse_size(text):
    """Bytes from a size such as ``4096``, ``"64M"``, ``"1.5 GiB"`` (units are powers of 1024).

    Raises
    ------
    ValueError
        If the text is no size, or is not a whole number of bytes above zero that an address space holds.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        nbytes = text
    else:
        match = _SIZE.fullmatch(str(text))
        if match is None:
            raise ValueError(f"{text!r} is not a size; write bytes or a number with K, M, G or T, such as 512M")
        exact = (
            float(match[1]) * _UNITS[match[2].lower()] if "." in match[1] else int(match[1]) * _UNITS[match[2].lower()]
        )
        nbytes = int(exact)
        if nbytes != exact:
            raise ValueError(f"{text!r} is not a whole number of bytes")
    if nbytes <= 0:
        raise ValueError(f"a size must be above zero, not {text!r}")
    if nbytes > _LARGEST:
        raise ValueError(f"{text!r} is more than an address space holds")
    return nbytes


def format_size(nbytes):
    """A short text for a number of bytes: ``"64 MiB"``, ``"1.5 GiB"``, ``"100 B"``."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"


_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _parse_bool(text):
    try:
        return _TRUTH[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither 1 nor 0") from None


def _parse_whole(least, most):
    def parse(text):
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return value

    return parse


def _parse_seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value != 0 and not 1e-9 <= value < 1e9:  # less would be no nanosecond, and so no limit
        raise ValueError(f"{text!r} is not a number of seconds, 0 or from 1e-9 to below 1e9")
    return value


def _parse_optional_size(text):
    return 0 if text.strip() == "0" else parse_size(text)


def _parse_stage_size(text):
    value = _parse_optional_size(text)
    if 0 < value < 1 << 20:
        raise ValueError(f"{text!r} is less than 1 MiB, and not 0")
    return value


def _parse_copy_limit(text):
    return None if text == "auto" else _parse_optional_size(text)


def _parse_choice(*choices):
    def parse(text):
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return parse


def _shown(value):
    return str(int(value) if isinstance(value, bool) else value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable: how its text becomes a value, its default, and what it means."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    meaning: str
    shown_as: Callable[[Any], str] = _shown


SETTINGS = {
    s.name: s
    for s in (
        Setting("NVSYM_BACKEND", _parse_choice("auto", "nvshmem", "host"), "auto", "backend of init(backend='auto')"),
        Setting(
            "NVSYM_HEAP_SIZE",
            parse_size,
            1 << 30,
            "symmetric heap of each PE; on GPUs its first size: it grows",
            format_size,
        ),
        Setting("NVSYM_SHM_DIR", str, "/dev/shm", "where the host backend puts the shared segment of a node"),
        Setting("NVSYM_TIMEOUT", _parse_seconds, 60.0, "seconds a wait for another PE may last; 0: no limit"),
        Setting("NVSYM_INIT_TIMEOUT", _parse_seconds, 60.0, "the same for init"),
        Setting("NVSYM_ABORT_ON_EXCEPTION", _parse_bool, True, "abort the job when one PE ends in an exception"),
        Setting(
            "NVSYM_MAX_TEAMS",
            _parse_whole(4, 4096),
            32,
            "teams that may exist at a time, with the predefined ones; 4 to 4096",
        ),
        Setting(
            "NVSYM_SPIN",
            _parse_whole(0, (1 << 31) - 1),
            None,
            "polls before a waiting PE yields; by default by cores and PEs",
        ),
        Setting(
            "NVSYM_ALLREDUCE_ALGORITHM",
            _parse_choice("auto", "one_shot", "two_shot", "multimem", "nvshmem", "mpi"),
            "auto",
            "algorithm of allreduce where the call leaves it at 'auto' (one_shot, two_shot, multimem, nvshmem, on the host mpi); the "
            "same on every PE",
        ),
        Setting("NVSYM_CACHE_DIR", str, None, "folder of the compiled kernels; by default that of the user's caches"),
        Setting(
            "NVSYM_COPY_KERNEL",
            _parse_copy_limit,
            None,
            "bytes up to which a kernel does put, get and put_signal on GPUs; 0: never, auto: by a table",
        ),
        Setting(
            "NVSYM_STAGE_SIZE",
            _parse_stage_size,
            64 << 20,
            "each of the two stages by which two PEs on a link reduce large operands, 1 MiB or more; 0: none",
            format_size,
        ),
        Setting("NVSYM_DISABLE_MULTICAST", _parse_bool, False, "never make a multicast call"),
        Setting(
            "NVSYM_DRIVER_WATCH",
            _parse_seconds,
            10.0,
            "seconds a driver call of a pool may last before it is reported; 0: never",
        ),
        Setting("NVSYM_LIBCUDA", str, None, "path of the CUDA driver library to open"),
        Setting("NVSYM_LIBNVSHMEM", str, None, "path of the NVSHMEM host library to open"),
    )
}


# The switches of nvsym and of others that keep a machine from multicast, and whether a value of theirs is the one that does.
_OFF = ("0", "false", "f", "no", "n", "off")
_MULTICAST_SWITCHES = {
    "NVSYM_DISABLE_MULTICAST": lambda text: _TRUTH.get(text, True),  # of others more mean no
    "NVSHMEM_DISABLE_NVLS": lambda text: text not in _OFF,
    "NCCL_NVLS_ENABLE": lambda text: text in _OFF,
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": lambda text: text not in _OFF,
}


def multicast_switch(environ=None):
    """The environment variable that forbids multicast to this process, as ``"NAME=value"``; None where none does.

    On many shared machines a multicast object can put the GPUs out of service. So a value that is not clearly the harmless one
    forbids it.
    """
    environ = os.environ if environ is None else environ
    for name, forbids in _MULTICAST_SWITCHES.items():
        text = environ.get(name, "").strip()
        if text and forbids(text.lower()):
            return f"{name}={text}"
    return None


class Settings:
    """The values of all settings, and where each came from (``"environment"`` or ``"default"``)."""

    __slots__ = ("source", "value")

    def __init__(self, value, source):
        self.value = value
        self.source = source

    def __getitem__(self, name):
        return self.value[name]

    def rows(self):
        """(name, value as text, source, meaning) of every setting, for reports."""
        for name, setting in SETTINGS.items():
            value = self.value[name]
            shown = "unset" if value is None else setting.shown_as(value)
            yield name, shown, self.source[name], setting.meaning


def load(environ=None):
    """Read all settings from the environment.

    Parameters
    ----------
    environ : mapping, optional
        Read instead of `os.environ`.

    Returns
    -------
    Settings

    Raises
    ------
    SettingError
        Naming the variable, its text, and what it takes; also for an unknown ``NVSYM_`` name (with the nearest known one).
    """
    environ = os.environ if environ is None else environ
    value = {name: setting.default for name, setting in SETTINGS.items()}
    source = dict.fromkeys(SETTINGS, "default")
    for name, text in environ.items():
        if not name.startswith("NVSYM_") or name.startswith(_OTHER_PREFIXES):
            continue
        setting = SETTINGS.get(name)
        if setting is None:
            # Without the prefix, which would make every name like every other.
            near = difflib.get_close_matches(name[len("NVSYM_") :], [known[len("NVSYM_") :] for known in SETTINGS], n=1)
            hint = f"; did you mean NVSYM_{near[0]}?" if near else f"; the known ones are {', '.join(SETTINGS)}"
            raise SettingError(f"unknown setting {name}={text!r}{hint}")
        if text == "":
            continue  # an empty variable is an unset one, as shells cannot easily unset for one command
        try:
            value[name] = setting.parse(text)
        except ValueError as error:
            raise SettingError(f"{name}={text!r}: {error} ({setting.meaning})") from None
        source[name] = "environment"
    return Settings(value, source)


def load_one(name):
    """The value of one setting, whatever the others are.

    Raises
    ------
    SettingError
        If it cannot be taken.
    """
    return load({name: os.environ[name]} if name in os.environ else {})[name]
