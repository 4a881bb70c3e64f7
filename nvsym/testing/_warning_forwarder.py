# SPDX-License-Identifier: Apache-2.0
"""`WarningForwarder`: shows the warnings of the inner sessions in the summary of the outer one."""

import sys
import warnings


class WarningForwarder:
    """Passes warnings that PEs have recorded on to the outer session, once for all PEs and jobs."""

    def __init__(self, config):
        self.config = config
        self.seen = set()

    def forward(self, record):
        """Show the warning of a record of the kind ``warning``, unless it was shown before."""
        key = (*record["category"], record["message"], record["filename"], record["lineno"], record["nodeid"])
        if key in self.seen:
            return
        self.seen.add(key)
        module, name = record["category"]
        category = getattr(sys.modules.get(module), name, None) or type(name, (Warning,), {})
        try:
            message = category(record["message"])
        except TypeError:  # a category of the user's whose constructor wants more than a text
            category = type(name, (Warning,), {})
            message = category(record["message"])
        self.config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(message, category, record["filename"], record["lineno"]),
                "when": record["when"],
                "nodeid": record["nodeid"],
                "location": None,
            }
        )
