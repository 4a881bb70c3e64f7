# SPDX-License-Identifier: Apache-2.0
# Used from Cython only.
