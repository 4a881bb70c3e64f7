# SPDX-License-Identifier: Apache-2.0
class Heap:
    size: int
    used: int
    free: int
    largest_free: int
    high_water: int
    live: int
    deferred: int
