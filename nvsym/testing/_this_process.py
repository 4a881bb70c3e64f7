# SPDX-License-Identifier: Apache-2.0
"""The PE that this process is: what tells the processes of a job from the outer one, which is no part of any."""

from typing import Any

pe: Any = None  # the `PE` of this process, in a job of the plugin
