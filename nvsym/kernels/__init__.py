# SPDX-License-Identifier: Apache-2.0
"""GPU code of nvsym."""
