# SPDX-License-Identifier: Apache-2.0
"""What the inner sessions of a job have in common with the outer one: their command line and their options."""

import json
import os

from . import _options


def use_hypothesis(items):
    return any(getattr(item.function, "is_hypothesis_test", False) for item in items)


def arguments(config, items, folder):
    """The command line of the inner sessions: what must be known before pytest is configured."""
    option = config.option
    args = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:pytest_cov", "-o", "addopts="]
    if not use_hypothesis(items):
        args += ["-p", "no:hypothesispytest"]  # importing it takes each PE longer than all the rest of its start
    for plugin in option.plugins:
        args += ["-p", plugin]
    for pair in option.override_ini or []:
        args += ["-o", pair]
    for rule in option.pythonwarnings or []:
        args += ["-W", rule]
    if config.inipath:
        args += ["-c", str(config.inipath)]
        if option.confcutdir:
            args.append(f"--confcutdir={option.confcutdir}")
    else:
        # Without this a file near the tests might be taken that the outer session did not take.
        args += ["-c", os.devnull, f"--confcutdir={option.confcutdir or config.rootpath}"]
    args += [f"--rootdir={config.rootpath}", f"--import-mode={option.importmode}", f"--assert={option.assertmode}"]
    if option.noconftest:
        args.append("--noconftest")
    args += ["--capture=fd", f"--basetemp={folder}/tmp-pe%PE%"]
    return args + list(dict.fromkeys(str(item.path) for item in items))


# Options of the outer session that the inner ones must not follow, and what they have instead.
_INNER_OPTIONS = {
    "color": "no",
    "collectonly": False,
    "continue_on_collection_errors": True,
    "deselect": None,
    "dist": "no",
    "durations": None,
    "keyword": "",
    "log_file": None,
    "markexpr": "",
    "maxfail": 0,
    "numprocesses": None,
    "pastebin": None,
    "reportchars": "",
    "stepwise": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "verbose": 1,
    "xmlpath": None,
}
# Options that are on the inner command line already, or that belong to the outer process.
_OUTER_OPTIONS = {
    "assertmode", "basetemp", "capture", "confcutdir", "debug", "file_or_dir", "help", "importmode", "inifilename",
    "noconftest", "override_ini", "plugins", "pythonwarnings", "rootdir", "version",
}  # fmt: skip


def options(config):
    """All other options, those of the user's own plugins included, as they are in the outer session."""
    values = {}
    for name, value in vars(config.option).items():
        if name not in _OUTER_OPTIONS:
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                continue  # an object of some plugin: only plain values travel
            values[name] = value
    values.update(_INNER_OPTIONS)
    values["nvsym_backend"] = ",".join(_options.backends(config) or ()) or None
    return values
