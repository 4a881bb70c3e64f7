# SPDX-License-Identifier: Apache-2.0
"""What one process does for a pool, step by step, and how all of it is undone. Nothing here waits for another process.

Each device's memory is mapped at ``unicast + slot * size`` in every process, and the multicast object at ``multicast``; `slot`
is the device's number in the pool. One reservation and one cuMemSetAccess serve all the mappings of a kind.
"""

from .errors import BackendError, NotInitializedError, NVSymError

from ._driver cimport CHECK_CUDA, cuda
from .cuda_runtime cimport get_cuda_runtime
from .libcuda cimport CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUcontext
from .memory cimport MemoryOwner
from .multicast cimport (
    Handle, Mapping, Multicast, Reservation, Watch, device_of, memory_granularity, multicast_granularity)

KINDS = {"none": 0, "posix": CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "fabric": CU_MEM_HANDLE_TYPE_FABRIC}

# Mappings that arrays of other libraries still use, of pools that are gone.
cdef list _lingering = []


def sweep():
    """Unmap what was kept for arrays that are gone by now."""
    for memory in list(_lingering):
        (<PoolMemory> memory).finish()


cdef class PoolMemory(MemoryOwner):
    """The memory and the multicast object of a pool, as far as this process holds them.

    Parameters
    ----------
    watch : Watch
    byte_size : int
        Of each device, as asked for.
    places : list of str
        What messages call each device, by slot.
    local : list of (int, int)
        Slot and ordinal of the devices of this process.
    kind : {"none", "posix", "fabric"}
        How handles travel.
    """

    def __init__(self, Watch watch, size_t byte_size, list places, list local, str kind):
        self.watch = watch
        self.byte_size = byte_size
        self.n_devices = len(places)
        self.places = places
        self.types = KINDS[kind]
        self.local = [(slot, ordinal, device_of(ordinal)) for slot, ordinal in local]
        self.own = []
        self.imported = {}
        self.mappings = []

    # ---- before there is anything -----------------------------------------------------------------------------------

    def check_can_begin(self):
        """That no stream is being captured, which mapping memory would break, and that the GPUs have contexts."""
        cdef CUcontext before = NULL, now = NULL
        runtime = get_cuda_runtime()
        CHECK_CUDA(cuda.cuCtxGetCurrent(&before), b"cuCtxGetCurrent")
        self.context, self.changed = before, True
        for _, ordinal, _ in self.local:
            runtime.use(ordinal)
        CHECK_CUDA(cuda.cuCtxGetCurrent(&now), b"cuCtxGetCurrent")
        self.changed = now != before
        if runtime.any_capturing():
            raise BackendError("a stream is being captured into a CUDA graph, says cuStreamIsCapturing: make a pool before or after "
                               "the capture")

    def restore_context(self):
        """Leave the thread with the context that it came with."""
        if self.changed:
            self.changed = False
            CHECK_CUDA(cuda.cuCtxSetCurrent(self.context), b"cuCtxSetCurrent")

    def granularity(self):
        """What the reservation of each device has to be a multiple of, and starts at, as this process sees it."""
        cdef size_t result = 1, least, best
        for slot, ordinal, _ in self.local:
            result = max(result, memory_granularity(self.watch, ordinal, self.types, self.places[slot]))
        place = self.places[self.local[0][0]]
        least = multicast_granularity(self.watch, self.n_devices, self.byte_size, self.types, False, place)
        best = multicast_granularity(self.watch, self.n_devices, self.byte_size, self.types, True, place)
        # The recommended one may be half a gigabyte: it is for pools that are as large.
        return max(result, best if best <= self.byte_size else least)

    def check_size(self, size_t granularity):
        """Take the size that all agree on; raise where it does not fit."""
        cdef size_t room = 0, total = 0, size = (self.byte_size + granularity - 1) // granularity * granularity
        place = self.places[self.local[0][0]]
        if size != self.byte_size and size % multicast_granularity(self.watch, self.n_devices, size, self.types, False, place):
            raise BackendError(f"the driver's granularity of a multicast object of {size} bytes does not divide its size")
        for slot, ordinal, _ in self.local:
            get_cuda_runtime().use(ordinal)
            CHECK_CUDA(cuda.cuMemGetInfo(&room, &total), b"cuMemGetInfo")
            if size > room:
                raise NVSymError(f"{self.places[slot]}: {self.byte_size} bytes, {size} with the driver's granularity of {granularity}, "
                                 f"do not fit: {room} of {total} bytes are free")
        self.size, self.granule = size, granularity

    def probe_fabric(self):
        """Whether fabric handles work here: a GPU may have the attribute, and its process no IMEX channel."""
        cdef Handle memory, again
        for slot, ordinal, _ in self.local:
            memory, again = Handle(), Handle()
            try:
                memory.create(self.watch, ordinal, memory_granularity(self.watch, ordinal, self.types, self.places[slot]),
                              self.types, self.places[slot])
                again.import_from(self.watch, memory.export_fabric(self.watch), self.types, self.places[slot])
            finally:
                again.release(self.watch)
                memory.release(self.watch)

    # ---- memory -----------------------------------------------------------------------------------------------------

    def create(self):
        cdef Handle handle
        for slot, ordinal, _ in self.local:
            handle = Handle()
            handle.create(self.watch, ordinal, self.size, self.types, self.places[slot])
            self.own.append(handle)

    def export(self):
        """What other processes import the memory of this one's device from: a descriptor, or 64 bytes."""
        return self.export_of(<Handle> self.own[0])

    def import_memory(self, int slot, item):
        cdef Handle handle = Handle()
        handle.import_from(self.watch, item, self.types, self.places[slot])
        self.imported[slot] = handle

    # ---- the multicast object ---------------------------------------------------------------------------------------

    def create_multicast(self):
        """Make the object; in one process of all."""
        self.object = Multicast()
        self.object.size = self.size
        self.object.created = Handle()
        self.object.created.create_multicast(self.watch, self.n_devices, self.size, self.types, self.places[self.local[0][0]])
        self.object.handle = self.object.created

    def export_multicast(self):
        return self.export_of(self.object.created)

    def import_multicast(self, item):
        """Also in the process that made it: then all use it in the same way."""
        if self.object is None:
            self.object = Multicast()
            self.object.size = self.size
        cdef Handle handle = Handle()
        handle.import_from(self.watch, item, self.types, self.places[self.local[0][0]])
        self.object.handle = handle

    def add_devices(self):
        for slot, _, device in self.local:
            self.object.add(self.watch, device, self.places[slot])

    def bind(self):
        """After all processes have added their devices: the driver waits for that without limit."""
        for (slot, _, device), handle in zip(self.local, self.own):
            self.object.bind(self.watch, device, <Handle> handle, self.places[slot])

    def drop_multicast(self):
        """Give the object back, for another try."""
        if self.object is not None:
            self.object.release(self.watch)
            self.object = None

    # ---- addresses --------------------------------------------------------------------------------------------------

    def map_all(self):
        cdef Mapping mapping
        cdef Handle handle
        cdef int slot
        ordinals = [ordinal for _, ordinal, _ in self.local]
        place = self.places[self.local[0][0]]
        own = {entry[0]: handle for entry, handle in zip(self.local, self.own)}
        self.unicast = Reservation()
        self.unicast.reserve(self.watch, self.n_devices * self.size, self.granule, place)
        for slot in range(self.n_devices):
            handle = own[slot] if slot in own else self.imported[slot]
            mapping = Mapping()
            mapping.map(self.watch, self.unicast, slot * self.size, self.size, handle)
            self.mappings.append(mapping)
        self.unicast.allow(self.watch, ordinals, 0, self.n_devices * self.size)
        self.multicast = Reservation()
        self.multicast.reserve(self.watch, self.size, self.granule, place)
        self.overlay = Mapping()
        self.overlay.map(self.watch, self.multicast, 0, self.size, self.object.handle)
        self.multicast.allow(self.watch, ordinals, 0, self.size)

    def drop_handles(self):
        """Release what the mappings hold by now. Every process has imported what it needs."""
        cdef Handle handle
        for handle in self.imported.values():
            handle.release(self.watch)
        self.imported = {}
        for handle in self.own:
            handle.release(self.watch)
        self.own = []
        if self.object.created is not None and self.object.created is not self.object.handle:
            self.object.created.release(self.watch)
            self.object.created = None

    cdef void *unicast_ptr(self, int slot) noexcept:
        return <void *> (self.unicast.start + slot * self.size)

    cdef void *multicast_ptr(self) noexcept:
        return <void *> self.multicast.start

    # ---- the end ----------------------------------------------------------------------------------------------------

    cdef int check(self) except -1:
        if self.freed:
            raise self.ended_as(f"the memory of this SymmetricPool is gone: {self.ended}")
        return 0

    def release(self, str why, ended_as=NotInitializedError):
        """Give everything back, as far as it came, and go on whatever fails.

        The multicast object goes first: it must not outlive the memory that is bound to it. Memory that arrays of other libraries
        still use stays mapped until they are gone.

        Returns
        -------
        list of BackendError
            What failed.
        """
        cdef Handle handle
        if self.freed:
            return []
        self.freed = True
        self.ended, self.ended_as = why, ended_as
        self.watch.collect()
        if self.object is not None:
            self.object.unbind(self.watch)
        if self.overlay is not None:
            self.overlay.unmap(self.watch)
        if self.multicast is not None:
            self.multicast.free(self.watch)
        if self.object is not None:
            self.object.release(self.watch)
        for handle in self.imported.values():
            handle.release(self.watch)
        for handle in self.own:
            handle.release(self.watch)
        if self.exports:
            _lingering.append(self)
        else:
            self.unmap_unicast()
        self.watch.close()
        return self.watch.failures

    def forget(self, str why, ended_as):
        """End its use without a call of the driver: in a forked child, where the driver does not work."""
        cdef Handle handle
        cdef Mapping mapping
        self.freed = True
        self.ended, self.ended_as = why, ended_as
        for mapping in [*self.mappings, self.overlay]:
            if mapping is not None:
                mapping.live = False
        for handle in [*self.own, *self.imported.values()]:
            handle.live = False
        if self.object is not None:
            self.object.bound = []
            for handle in (self.object.handle, self.object.created):
                if handle is not None:
                    handle.live = False
        for reservation in (self.unicast, self.multicast):
            if reservation is not None:
                (<Reservation> reservation).size = 0

    def finish(self):
        if self.exports == 0 and self in _lingering:    # another thread may sweep, too
            _lingering.remove(self)
            self.unmap_unicast()
            self.watch.close()

    cdef int unmap_unicast(self) except -1:
        cdef Mapping mapping
        for mapping in self.mappings:
            mapping.unmap(self.watch)
        if self.unicast is not None:
            self.unicast.free(self.watch)
        return 0

    cdef object export_of(self, Handle handle):
        if self.types == CU_MEM_HANDLE_TYPE_FABRIC:
            return handle.export_fabric(self.watch)
        return handle.export(self.watch, self.types)
