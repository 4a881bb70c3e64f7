# SPDX-License-Identifier: Apache-2.0
# cython: boundscheck=False, wraparound=False, cdivision=True
"""Jacobi's iteration for Laplace's equation, over symmetric memory and without the GIL."""

from libc.math cimport fabs
from libc.stdint cimport uint64_t

import numpy as np

import nvsym

from nvsym cimport (
    NVSYM_CMP_GE, NVSYM_FLOAT64, NVSYM_MAX, NVSYM_OK, NVSYM_SIGNAL_SET, SHMEMBuffer, import_nvsym, nvsym_allreduce,
    nvsym_check, nvsym_data, nvsym_put_signal, nvsym_signal_wait_until)

import_nvsym()

cdef enum:
    FROM_ABOVE = 0      # the signals of a PE: the number of rows that its neighbours have sent
    FROM_BELOW = 1
    CHECK_EVERY = 8     # steps between two looks at the residual


cdef double relax(double *out, const double *row, size_t columns) noexcept nogil:
    """One row of the next grid, of the one above `row`, itself, and the one below. Returns the largest change."""
    cdef const double *above = row - columns
    cdef const double *below = row + columns
    cdef double largest = 0, change
    cdef size_t j
    out[0] = row[0]
    out[columns - 1] = row[columns - 1]
    for j in range(1, columns - 1):
        out[j] = 0.25 * ((above[j] + below[j]) + (row[j - 1] + row[j + 1]))
        change = fabs(out[j] - row[j])
        if change > largest:
            largest = change
    return largest


cdef class Laplace:
    """A grid with fixed values at its border, whose inner rows are split over the PEs. Collective.

    Parameters
    ----------
    grid : array of float64, (rows, columns)
        The same on every PE: the border, and where the iteration begins.
    """
    cdef readonly object grid, residual, signals    # SHMEMBuffers: the rows of this PE with one more at each end, twice; ...
    cdef readonly size_t start, rows, columns       # the inner rows of this PE: the first one and their number
    cdef readonly long   steps                      # done so far
    cdef size_t          inner
    cdef size_t          size                       # elements of one of the two grids
    cdef int             me, n

    def __init__(self, grid):
        if nvsym.context().backend != "host":
            raise nvsym.NotAvailableError("the loops of this example run on the processor: init(backend='host')")
        grid = np.asarray(grid, np.float64)
        self.me, self.n = nvsym.my_pe(), nvsym.n_pes()
        if grid.ndim != 2 or grid.shape[0] - 2 < self.n or grid.shape[1] < 3:
            raise ValueError(f"grid: the shape {grid.shape} is too small for {self.n} PEs")
        self.inner, self.columns = grid.shape[0] - 2, grid.shape[1]
        self.start = self.first_row(self.me)
        self.rows = self.first_row(self.me + 1) - self.start
        # A buffer is as long on every PE.
        self.size = ((self.inner + self.n - 1) // self.n + 2) * self.columns
        part = np.zeros((2, self.size))
        part[:, :(self.rows + 2) * self.columns] = grid[self.start:self.start + self.rows + 2].ravel()
        self.grid = nvsym.SHMEMBuffer[np.float64].from_numpy(part.ravel())
        self.residual = nvsym.SHMEMBuffer[np.float64].zeros(1)
        self.signals = nvsym.SHMEMBuffer[np.uint64].zeros(2)

    cdef size_t first_row(self, int pe) noexcept nogil:
        return self.inner * <size_t> pe // <size_t> self.n

    def run(self, long max_steps, double tolerance=0):
        """Iterate until no value changes by more than `tolerance` in a step. Returns the largest change of the last check."""
        cdef SHMEMBuffer buffer = self.grid
        cdef double *grids = nvsym_data[double](self.grid)
        cdef double *residual = nvsym_data[double](self.residual)
        cdef uint64_t *signals = nvsym_data[uint64_t](self.signals)
        cdef double *old
        cdef double *new
        cdef double largest
        cdef size_t i, columns = self.columns, rows = self.rows, row_bytes = columns * sizeof(double)
        # Where the row below the last one of the PE above is.
        cdef size_t below_above = (self.start - self.first_row(self.me - 1) + 1) * columns if self.me > 0 else 0
        cdef long step
        cdef int status = NVSYM_OK
        if buffer.count != 2 * self.size:
            raise ValueError("the grid was replaced")
        with nogil:
            for step in range(1, max_steps + 1):
                old = grids + (self.steps & 1) * self.size
                new = grids + (~self.steps & 1) * self.size
                self.steps += 1
                # The outer rows first, so that they travel while the others are computed. Whoever gets the signal of a step may
                # overwrite the row beyond that edge in the grid of the step after, which only this edge has read.
                largest = relax(new + columns, old + columns, columns)
                if self.me > 0:
                    status = nvsym_put_signal(new + below_above, new + columns, row_bytes, &signals[FROM_BELOW],
                                              <uint64_t> self.steps, NVSYM_SIGNAL_SET, self.me - 1, NULL)
                if rows > 1:
                    largest = max(largest, relax(new + rows * columns, old + rows * columns, columns))
                if self.me < self.n - 1:
                    status |= nvsym_put_signal(new, new + rows * columns, row_bytes, &signals[FROM_ABOVE],
                                               <uint64_t> self.steps, NVSYM_SIGNAL_SET, self.me + 1, NULL)
                for i in range(2, rows):
                    largest = max(largest, relax(new + i * columns, old + i * columns, columns))
                if self.me > 0 and status == NVSYM_OK:
                    status = nvsym_signal_wait_until(&signals[FROM_ABOVE], NVSYM_CMP_GE, <uint64_t> self.steps, NULL)
                if self.me < self.n - 1 and status == NVSYM_OK:
                    status = nvsym_signal_wait_until(&signals[FROM_BELOW], NVSYM_CMP_GE, <uint64_t> self.steps, NULL)
                if status == NVSYM_OK and (step % CHECK_EVERY == 0 or step == max_steps):
                    residual[0] = largest
                    status = nvsym_allreduce(NULL, residual, residual, 1, NVSYM_FLOAT64, NVSYM_MAX, NULL)
                    if residual[0] <= tolerance:
                        break
                if status != NVSYM_OK:
                    break
        nvsym_check(status)
        return residual[0]

    def to_numpy(self):
        """The rows of this PE, without those of its neighbours."""
        grids = self.grid.to_numpy().reshape(2, self.size)
        rows = grids[self.steps & 1, self.columns:(self.rows + 1) * self.columns]
        return rows.reshape(self.rows, self.columns)

    def free(self):
        """Give the memory back; collective."""
        for buffer in (self.grid, self.residual, self.signals):
            buffer.free()
