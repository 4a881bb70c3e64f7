# SPDX-License-Identifier: Apache-2.0
"""Loops of calls of C functions, as a C++ program makes them: what calls from Python are compared with."""

from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from ..errors import BackendError

cdef enum:
    MOST_CALLS     = 4
    MOST_ARGUMENTS = 11     # of cuLaunchKernel

ctypedef size_t word
ctypedef word (*f0)() noexcept nogil
ctypedef word (*f1)(word) noexcept nogil
ctypedef word (*f2)(word, word) noexcept nogil
ctypedef word (*f3)(word, word, word) noexcept nogil
ctypedef word (*f4)(word, word, word, word) noexcept nogil
ctypedef word (*f5)(word, word, word, word, word) noexcept nogil
ctypedef word (*f6)(word, word, word, word, word, word) noexcept nogil
ctypedef word (*f7)(word, word, word, word, word, word, word) noexcept nogil
ctypedef word (*f8)(word, word, word, word, word, word, word, word) noexcept nogil
ctypedef word (*f11)(word, word, word, word, word, word, word, word, word, word, word) noexcept nogil

cdef struct Call:
    word function
    word a[MOST_ARGUMENTS]
    int  n
    int  step       # the argument that goes up by one after each call, or -1
    bint status     # whether it returns 0 where all is well


cdef word make(Call *c) noexcept nogil:
    # Integers and pointers only: each takes one register or slot, however wide the function declares it.
    cdef word *a = c.a
    cdef word result = 0
    if c.n == 0:
        result = (<f0> c.function)()
    elif c.n == 1:
        result = (<f1> c.function)(a[0])
    elif c.n == 2:
        result = (<f2> c.function)(a[0], a[1])
    elif c.n == 3:
        result = (<f3> c.function)(a[0], a[1], a[2])
    elif c.n == 4:
        result = (<f4> c.function)(a[0], a[1], a[2], a[3])
    elif c.n == 5:
        result = (<f5> c.function)(a[0], a[1], a[2], a[3], a[4])
    elif c.n == 6:
        result = (<f6> c.function)(a[0], a[1], a[2], a[3], a[4], a[5])
    elif c.n == 7:
        result = (<f7> c.function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6])
    elif c.n == 8:
        result = (<f8> c.function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7])
    else:
        result = (<f11> c.function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10])
    if c.step >= 0:
        a[c.step] += 1
    return result


cdef class NativeCalls:
    """Some C functions with their arguments, called one after the other: once, or in a loop without Python.

    Attributes
    ----------
    last : int
        What the last call that is no status returned.
    """
    cdef Call calls[MOST_CALLS]
    cdef int n
    cdef list names
    cdef list kept
    cdef readonly size_t last

    def __cinit__(self):
        self.names = []
        self.kept = []

    def add(self, str name, size_t address, *arguments, bint status=False, int step=-1, object keep=None):
        """Append a function; returns self.

        Parameters
        ----------
        name : str
            For messages.
        address : int
        *arguments : int
            Integers and addresses.
        status : bool
            Whether it returns an int that is 0 where all is well.
        step : int
            The number of the argument that goes up by one after each call; -1: none.
        keep : object
            Lives as long as this.
        """
        cdef Call *call
        cdef int i
        if self.n == MOST_CALLS:
            raise ValueError(f"{name}: there is room for {MOST_CALLS} calls")
        if len(arguments) > 8 and len(arguments) != MOST_ARGUMENTS:
            raise ValueError(f"{name}: {len(arguments)} arguments; at most 8, or {MOST_ARGUMENTS}")
        if address == 0:
            raise ValueError(f"{name}: no address")
        call = &self.calls[self.n]
        call.function, call.n, call.status, call.step = address, len(arguments), status, step
        for i in range(call.n):
            call.a[i] = <size_t> (<long long> arguments[i] if arguments[i] < 0 else <size_t> arguments[i])
        self.names.append(name)
        self.kept.append(keep)
        self.n += 1
        return self

    def __call__(self):
        self.loop(1)

    def loop(self, int calls):
        """Make them so many times; returns the nanoseconds of it.

        Raises
        ------
        BackendError
            If one returned a status that is not 0.
        """
        cdef timespec start, end
        cdef int _, j, failed = -1
        cdef word result = 0
        with nogil:
            clock_gettime(CLOCK_MONOTONIC, &start)
            for _ in range(calls):
                for j in range(self.n):
                    result = make(&self.calls[j])
                    if not self.calls[j].status:
                        self.last = result
                    elif <int> result != 0:
                        failed = j
                        break
                if failed >= 0:
                    break
            clock_gettime(CLOCK_MONOTONIC, &end)
        if failed >= 0:
            raise BackendError(f"{self.names[failed]} returned {<int> result}")
        return (end.tv_sec - start.tv_sec) * 1000000000 + (end.tv_nsec - start.tv_nsec)
