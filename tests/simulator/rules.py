# SPDX-License-Identifier: Apache-2.0
"""Each rule of the simulated driver broken once. Run as a program it prints the status and the text of every case as JSON.

A case returns the status of the call that breaks the rule, with all before it in order.
"""

import ctypes
import inspect
import json
import os
import sys
import threading

CASES = {}  # name: (function, status, words of the text, environment)


def case(status, words="", **environment):
    def note(function):
        CASES[function.__name__] = (function, status, words, environment)
        return function

    return note


# The functions get the module driver.py as `d`: it loads the simulator, which pytest's own process must not.


@case(3, "before cuInit")
def call_before_init(d):
    return d.cuda.cuDeviceGetCount(ctypes.byref(d.number()))


@case(1, "flags")
def init_flags(d):
    return d.cuda.cuInit(1)


@case(100, CUDA_VISIBLE_DEVICES="")
def init_without_devices(d):
    return d.cuda.cuInit(0)


@case(3, "forked")
def forked_child(d):
    d.ok(d.cuda.cuInit(0))
    read, write = os.pipe()
    if os.fork() == 0:
        status = d.cuda.cuDeviceGetCount(ctypes.byref(d.number()))
        os.write(write, bytes([status]))
        os._exit(0)
    return os.read(read, 1)[0]


@case(101)
def device_beyond(d):
    return d.cuda.cuDeviceGet(ctypes.byref(d.number()), 8)


@case(1)
def attribute_beyond(d):
    return d.cuda.cuDeviceGetAttribute(ctypes.byref(d.number()), 9999, 0)


# ---- allocations


@case(1, "option 2")
def granularity_option(d):
    return d.cuda.cuMemGetAllocationGranularity(ctypes.byref(d.size_t()), ctypes.byref(d.properties()), 2)


@case(1, "granularity")
def create_unaligned(d):
    return d.create(size=d.STEP + 4096)[0]


@case(1, "granularity")
def create_nothing(d):
    return d.create(size=0)[0]


@case(1, "flags")
def create_flags(d):
    return d.create(flags=1)[0]


@case(1, "allocation type")
def create_type(d):
    return d.create(prop=d.properties(kind=0))[0]


@case(1, "location type")
def create_location(d):
    return d.create(prop=d.properties(location=2))[0]


@case(101, "device 8")
def create_device(d):
    return d.create(device=8)[0]


@case(801, "handle types")
def create_handle_type(d):
    return d.create(types=2)[0]


@case(800, "IMEX")
def create_fabric_without_channel(d):
    return d.create(types=d.FABRIC)[0]


@case(801, "fabric", NVSYM_SIM_ATTR="128=0")
def create_fabric_unsupported(d):
    return d.create(types=d.FABRIC)[0]


@case(801, "POSIX", NVSYM_SIM_ATTR="103=0")
def create_posix_unsupported(d):
    return d.create(types=d.POSIX)[0]


@case(2, NVSYM_SIM_MEMORY="4M")
def create_beyond_memory(d):
    d.have(d.create(3 * d.MIB))
    return d.create(2 * d.MIB)[0]


@case(400, "released")
def release_twice(d):
    handle = d.have(d.create())
    d.ok(d.release(handle))
    return d.release(handle)


@case(400, "handle 0x7")
def release_unknown(d):
    return d.release(d.u64(7))


# ---- addresses and mappings


@case(1, "flags")
def reserve_flags(d):
    return d.reserve(flags=1)[0]


@case(1, "page size")
def reserve_unaligned(d):
    return d.reserve(size=1000)[0]


@case(1, "power of two")
def reserve_alignment(d):
    return d.reserve(alignment=3 * d.MIB)[0]


@case(1, "nothing was reserved")
def free_unknown(d):
    return d.free_address(d.STEP)


@case(1, "were reserved")
def free_part(d):
    return d.free_address(d.have(d.reserve(2 * d.STEP)), d.STEP)


@case(1, "mapping in the reservation")
def free_while_mapped(d):
    return d.free_address(d.mapped(d.have(d.create())))


@case(1, "offset")
def map_offset(d):
    return d.map_(d.have(d.reserve()), d.have(d.create(2 * d.STEP)), offset=d.STEP)


@case(1, "flags")
def map_flags(d):
    return d.map_(d.have(d.reserve()), d.have(d.create()), flags=1)


@case(1, "allocation granularity")
def map_unaligned(d):
    return d.map_(d.have(d.reserve()) + 4096, d.have(d.create()))


@case(1, "beyond the object")
def map_beyond_the_object(d):
    return d.map_(d.have(d.reserve(2 * d.STEP)), d.have(d.create()), size=2 * d.STEP)


@case(1, "within one reservation")
def map_beyond_the_reservation(d):
    return d.map_(d.have(d.reserve()), d.have(d.create(2 * d.STEP)), size=2 * d.STEP)


@case(1, "mapped already")
def map_twice(d):
    at = d.mapped(d.have(d.create()))
    return d.map_(at, d.have(d.create()))


@case(400, "released")
def map_of_a_released_handle(d):
    handle = d.have(d.create())
    d.ok(d.release(handle))
    return d.map_(d.have(d.reserve()), handle)


@case(1, "nothing is mapped")
def access_to_nothing(d):
    return d.access(d.have(d.reserve()))


@case(1, "covered as a whole")
def access_to_a_part(d):
    at = d.have(d.reserve(2 * d.STEP))
    d.ok(d.map_(at, d.have(d.create(2 * d.STEP)), 2 * d.STEP))
    return d.access(at, d.STEP)


@case(1, "flags 2")
def access_flags(d):
    return d.access(d.mapped(d.have(d.create())), flags=2)


@case(101, "device 8")
def access_device(d):
    return d.access(d.mapped(d.have(d.create())), devices=(8,))


@case(1, "location type")
def access_location(d):
    return d.access(d.mapped(d.have(d.create())), location=2)


@case(101, "cannot access", NVSYM_SIM_PEERS="0")
def access_of_a_peer(d):
    at = d.have(d.reserve())
    d.ok(d.map_(at, d.have(d.create())))
    return d.access(at, devices=(1,))


@case(1, "as a whole")
def unmap_part(d):
    return d.unmap(d.mapped(d.have(d.create(2 * d.STEP)), 2 * d.STEP), d.STEP)


@case(1, "no mapping begins")
def unmap_nothing(d):
    return d.unmap(d.have(d.reserve()))


@case(1, "nothing is mapped")
def retain_nothing(d):
    return d.cuda.cuMemRetainAllocationHandle(ctypes.byref(d.u64()), d.pointer(d.have(d.reserve())))


# ---- shareable handles


@case(1, "not among the handle types")
def export_not_asked_for(d):
    return d.export(d.have(d.create()))[0]


@case(1, "one of 1 and 8")
def export_two_types(d):
    return d.export(d.have(d.create(types=d.POSIX)), 9)[0]


@case(1, "flags")
def export_flags(d):
    return d.export(d.have(d.create(types=d.POSIX)), flags=1)[0]


@case(1, "not open")
def import_closed(d):
    fd = d.have(d.export(d.have(d.create(types=d.POSIX))))
    os.close(fd)
    return d.import_(fd)[0]


@case(1, "not one that")
def import_another_file(d):
    return d.import_(os.open("/dev/null", os.O_RDWR))[0]


@case(1, "a pointer in place")
def import_a_pointer(d):
    fd = d.number(d.have(d.export(d.have(d.create(types=d.POSIX)))))
    return d.import_(ctypes.addressof(fd))[0]


@case(1, "node 0, this is node 1")
def import_from_another_node(d):
    fd = d.have(d.export(d.have(d.create(types=d.POSIX))))
    d.simulator.configure(node=1)
    return d.import_(fd)[0]


@case(1, "not a fabric handle", NVSYM_SIM_IMEX="0")
def import_nonsense(d):
    return d.import_(b"x" * 64, d.FABRIC)[0]


@case(800, "IMEX channel", NVSYM_SIM_IMEX="0")
def import_from_another_channel(d):
    blob = d.have(d.export(d.have(d.create(types=d.FABRIC)), d.FABRIC))
    d.simulator.configure(imex=1)
    return d.import_(blob, d.FABRIC)[0]


@case(801, "clique", NVSYM_SIM_IMEX="0")
def import_from_another_clique(d):
    blob = d.have(d.export(d.have(d.create(types=d.FABRIC)), d.FABRIC))
    d.simulator.configure(clique=3)
    return d.import_(blob, d.FABRIC)[0]


@case(1, "must keep it", NVSYM_SIM_IMEX="0")
def import_of_a_dead_object(d):
    team = d.have(d.multicast(types=d.FABRIC))
    blob = d.have(d.export(team, d.FABRIC))
    d.ok(d.release(team))
    return d.import_(blob, d.FABRIC)[0]


@case(909, "waits|would wait on", NVSYM_SIM_IMEX="0", NVSYM_SIM_LATE_IMPORT="empty", NVSYM_SIM_BLOCK_LIMIT="0.1")
def import_of_a_dead_object_as_empty(d):
    """As a driver was seen to do it: a new object, for which the next bind waits without end."""
    team = d.have(d.multicast(types=d.FABRIC))
    blob = d.have(d.export(team, d.FABRIC))
    d.ok(d.release(team))
    again = d.have(d.import_(blob, d.FABRIC))
    d.ok(d.add(again, 0))
    return d.bind(again, d.have(d.create(types=d.FABRIC)))


# ---- multicast


@case(1, "option 2")
def multicast_granularity_option(d):
    prop = d.MulticastProp(2, d.STEP, 0, 0)
    return d.cuda.cuMulticastGetGranularity(ctypes.byref(d.size_t()), ctypes.byref(prop), 2)


@case(1, "granularity")
def multicast_unaligned(d):
    return d.multicast(size=d.MIB)[0]


@case(1, "granularity")
def multicast_of_nothing(d):
    return d.multicast(size=0)[0]


@case(1, "0 devices")
def multicast_without_devices(d):
    return d.multicast(devices=0)[0]


@case(1, "flags")
def multicast_flags(d):
    return d.multicast(flags=1)[0]


@case(801, "no device", NVSYM_SIM_ATTR="132=0")
def multicast_unsupported(d):
    return d.multicast()[0]


@case(801, "device 1", NVSYM_SIM_ATTR="132=0@dev1")
def add_unsupported(d):
    return d.add(d.have(d.multicast()), 1)


@case(1, "in the team already")
def add_twice(d):
    team = d.have(d.multicast())
    d.ok(d.add(team, 0))
    return d.add(team, 0)


@case(1, "2 devices already")
def add_one_too_many(d):
    team = d.have(d.multicast())
    d.ok(d.add(team, 0))
    d.ok(d.add(team, 1))
    return d.add(team, 2)


@case(101, "device 8")
def add_beyond(d):
    return d.add(d.have(d.multicast()), 8)


@case(1, "of memory")
def add_to_memory(d):
    return d.add(d.have(d.create()), 0)


@case(401, "1 of 2 devices")
def bind_before_all_are_added(d):
    team = d.have(d.multicast())
    d.ok(d.add(team, 0))
    return d.bind(team, d.have(d.create()))


@case(401, "0 of 2 devices")
def map_before_all_are_added(d):
    return d.map_(d.have(d.reserve()), d.have(d.multicast()))


def complete(d, **options):
    team = d.have(d.multicast(**options))
    d.ok(d.add(team, 0))
    d.ok(d.add(team, 1))
    return team


@case(101, "not added")
def bind_of_another_device(d):
    return d.bind(complete(d), d.have(d.create(device=2)))


@case(1, "granularity")
def bind_unaligned(d):
    return d.bind(complete(d), d.have(d.create()), size=d.MIB)


@case(1, "granularity")
def bind_at_unaligned(d):
    return d.bind(complete(d, size=2 * d.STEP), d.have(d.create()), offset=d.MIB)


@case(1, "beyond the object")
def bind_beyond_the_object(d):
    return d.bind(complete(d), d.have(d.create(2 * d.STEP)), size=2 * d.STEP)


@case(1, "beyond the allocation")
def bind_beyond_the_memory(d):
    return d.bind(complete(d, size=2 * d.STEP), d.have(d.create()), size=2 * d.STEP)


@case(1, "flags")
def bind_flags(d):
    return d.bind(complete(d), d.have(d.create()), flags=1)


@case(1, "bound at 0 already")
def bind_twice(d):
    team = complete(d)
    d.ok(d.bind(team, d.have(d.create())))
    return d.bind(team, d.have(d.create()))


@case(1, "the memory is not")
def bind_unshareable_memory(d):
    return d.bind(complete(d, types=d.POSIX), d.have(d.create()))


@case(1, "not of memory|not of a multicast")
def bind_of_a_team(d):
    return d.bind(complete(d), complete(d))


@case(2, "no room", NVSYM_SIM_SLOTS="1")
def bind_beyond_the_slots(d):
    d.ok(d.bind(complete(d), d.have(d.create())))
    return d.bind(complete(d), d.have(d.create()))


@case(1, "not mapped memory")
def bind_of_an_address(d):
    team = complete(d)
    return d.cuda.cuMulticastBindAddr(team, d.size_t(0), d.u64(d.have(d.reserve())), d.size_t(d.STEP), d.u64(0))


@case(1, "not one earlier bind")
def unbind_a_part(d):
    team = complete(d, size=2 * d.STEP)
    d.ok(d.bind(team, d.have(d.create(2 * d.STEP)), size=2 * d.STEP))
    return d.unbind(team, 0)


@case(1, "nothing of device 1")
def unbind_nothing(d):
    team = complete(d)
    d.ok(d.bind(team, d.have(d.create())))
    return d.unbind(team, 1)


@case(101, "not in the team")
def unbind_of_another_device(d):
    return d.unbind(complete(d), 2)


@case(1, "given back before")
def unbind_after_the_memory(d):
    team, memory = complete(d), d.have(d.create())
    d.ok(d.bind(team, memory))
    d.ok(d.release(memory))
    return d.unbind(team, 0)


@case(0, "goes while memory is bound")
def release_of_a_bound_team(d):
    team, memory = complete(d), d.have(d.create())
    d.ok(d.bind(team, memory))
    return d.release(team)


@case(1, "multicast granularity")
def map_of_a_team_unaligned(d):
    return d.map_(d.have(d.reserve(2 * d.STEP)) + d.MIB, complete(d))


# ---- copies


@case(1, "multicast address")
def copy_to_a_multicast_address(d):
    d.use()
    team = d.Team(2)
    return d.cuda.cuMemcpy(d.u64(team.multicast), d.u64(team.unicast[0]), d.size_t(64))


@case(700, "no right")
def copy_without_access(d):
    d.use()
    at = d.have(d.reserve())
    d.ok(d.map_(at, d.have(d.create())))
    return d.cuda.cuMemcpy(d.u64(d.allocate()), d.u64(at), d.size_t(64))


@case(700, "device 0 has no right to write")
def copy_to_read_only_memory(d):
    d.use()
    at = d.mapped(d.have(d.create()))
    d.ok(d.access(at, flags=1))
    return d.cuda.cuMemcpy(d.u64(at), d.u64(d.allocate()), d.size_t(64))


@case(1, "nothing is mapped")
def copy_of_a_reservation(d):
    d.use()
    return d.cuda.cuMemcpy(d.u64(d.allocate()), d.u64(d.have(d.reserve())), d.size_t(64))


@case(1, "beyond the allocation")
def copy_beyond(d):
    d.use()
    return d.cuda.cuMemcpy(d.u64(d.allocate(64)), d.u64(d.allocate(128)), d.size_t(128))


@case(201, "no context")
def allocation_without_context(d):
    return d.cuda.cuMemAlloc_v2(ctypes.byref(d.u64()), d.size_t(64))


@case(1, "not what cuMemAlloc returned")
def free_inside(d):
    d.use()
    return d.cuda.cuMemFree_v2(d.u64(d.allocate() + 8))


@case(712)
def register_twice(d):
    d.use()
    at = ctypes.create_string_buffer(4096)
    d.ok(d.cuda.cuMemHostRegister_v2(at, d.size_t(4096), 0))
    return d.cuda.cuMemHostRegister_v2(at, d.size_t(4096), 0)


@case(713)
def unregister_unknown(d):
    return d.cuda.cuMemHostUnregister(ctypes.create_string_buffer(64))


# ---- streams, events, captures


@case(400, "no stream")
def use_of_a_destroyed_stream(d):
    d.use()
    stream = d.stream()
    d.ok(d.cuda.cuStreamDestroy_v2(stream))
    return d.cuda.cuStreamSynchronize(stream)


@case(400, "never recorded")
def elapsed_time_of_nothing(d):
    d.use()
    return d.cuda.cuEventElapsedTime(ctypes.byref(ctypes.c_float()), d.event(), d.event())


@case(400, "two contexts")
def record_of_an_event_of_another_context(d):
    d.use()
    event = d.event(2)
    d.use(1)
    return d.cuda.cuEventRecord(event, d.stream())


@case(1, "flags 8")
def event_flags(d):
    d.use()
    return d.cuda.cuEventCreate(ctypes.byref(d.pointer()), 8)


def captured(d, mode=0):
    d.use()
    stream = d.stream()
    d.ok(d.cuda.cuStreamBeginCapture_v2(stream, mode))
    return stream


@case(900, "captured")
def synchronize_in_a_capture(d):
    return d.cuda.cuStreamSynchronize(captured(d))


@case(901)
def end_of_a_broken_capture(d):
    stream = captured(d)
    d.cuda.cuStreamSynchronize(stream)
    return d.cuda.cuStreamEndCapture(stream, ctypes.byref(d.pointer()))


@case(900, "while a stream is captured")
def allocation_in_a_capture(d):
    captured(d)
    return d.cuda.cuMemAlloc_v2(ctypes.byref(d.u64()), d.size_t(64))


@case(900, "while a stream is captured")
def multicast_in_a_capture(d):
    captured(d)
    return d.multicast()[0]


@case(0)
def allocation_beside_a_relaxed_capture(d):
    captured(d, mode=2)
    return d.cuda.cuMemAlloc_v2(ctypes.byref(d.u64()), d.size_t(64))


@case(401, "not captured")
def end_of_no_capture(d):
    d.use()
    return d.cuda.cuStreamEndCapture(d.stream(), ctypes.byref(d.pointer()))


def joined(d, first):
    """Another stream, which an event takes into the capture of the first."""
    second, event = d.stream(), d.event(2)
    d.ok(d.cuda.cuEventRecord(event, first))
    d.ok(d.cuda.cuStreamWaitEvent(second, event, 0))
    return second


@case(903, "another stream")
def end_in_another_stream(d):
    return d.cuda.cuStreamEndCapture(joined(d, captured(d)), ctypes.byref(d.pointer()))


@case(904, "did not end in the first")
def end_with_a_branch_left(d):
    first = captured(d, mode=2)
    second = joined(d, first)
    d.ok(d.cuda.cuMemsetD8Async(d.u64(d.allocate()), 0, d.size_t(64), second))
    return d.cuda.cuStreamEndCapture(first, ctypes.byref(d.pointer()))


@case(905, "outside the capture")
def wait_for_the_outside(d):
    d.use()
    event = d.event(2)
    d.ok(d.cuda.cuEventRecord(event, d.stream()))
    return d.cuda.cuStreamWaitEvent(captured(d), event, 0)


@case(902, "two captures")
def merge_of_two_captures(d):
    d.use()
    event = d.event(2)
    d.ok(d.cuda.cuEventRecord(event, captured(d)))
    return d.cuda.cuStreamWaitEvent(captured(d), event, 0)


@case(906, "legacy default stream")
def legacy_stream_beside_a_capture(d):
    d.use()
    stream = d.stream(flags=0)
    at = d.allocate()
    d.ok(d.cuda.cuStreamBeginCapture_v2(stream, 0))
    return d.cuda.cuMemsetD8Async(d.u64(at), 0, d.size_t(64), None)


@case(907, "recorded in a capture")
def query_of_a_captured_event(d):
    stream = captured(d, mode=2)
    event = d.event(2)
    d.ok(d.cuda.cuEventRecord(event, stream))
    return d.cuda.cuEventQuery(event)


@case(907, "has ended")
def wait_for_an_ended_capture(d):
    stream = captured(d, mode=2)
    event = d.event(2)
    d.ok(d.cuda.cuEventRecord(event, stream))
    d.ok(d.cuda.cuStreamEndCapture(stream, ctypes.byref(d.pointer())))
    return d.cuda.cuStreamWaitEvent(d.stream(), event, 0)


@case(0)
def allocation_after_a_captured_stream_is_gone(d):
    d.ok(d.cuda.cuStreamDestroy_v2(captured(d)))
    return d.cuda.cuMemAlloc_v2(ctypes.byref(d.u64()), d.size_t(64))


@case(908, "another thread")
def end_in_another_thread(d):
    stream, found = captured(d), []
    end = threading.Thread(target=lambda: found.append(d.cuda.cuStreamEndCapture(stream, ctypes.byref(d.pointer()))))
    end.start()
    end.join()
    return found[0]


@case(900, "pageable")
def pageable_copy_in_a_capture(d):
    stream = captured(d, mode=2)
    return d.cuda.cuMemcpyHtoDAsync_v2(d.u64(d.allocate()), ctypes.create_string_buffer(64), d.size_t(64), stream)


# ---- kernels


@case(209, "machine code")
def load_machine_code(d):
    d.use()
    return d.cuda.cuModuleLoadData(ctypes.byref(d.pointer()), b"\x7fELF" + bytes(60))


@case(200)
def load_nonsense(d):
    d.use()
    return d.cuda.cuModuleLoadData(ctypes.byref(d.pointer()), b"nonsense\0")


@case(209, "instructions")
def load_unknown_instructions(d):
    d.use()
    text = b".visible .entry k(.param .u64 a) { .reg .u64 %a; ld.param.u64 %a, [a]; fma.rn.f32 %a, %a, %a, %a; ret; }\0"
    return d.cuda.cuModuleLoadData(ctypes.byref(d.pointer()), text)


# ---- multimem


def instruction(d, status, call):
    """The status that an instruction ends with, from the message of its exception."""
    try:
        call()
    except d.BackendError as error:
        return status if f"status {status}" in str(error) else str(error)
    return 0


@case(716, "not aligned to the 16 bytes")
def multimem_unaligned(d):
    team = d.Team(2)
    return instruction(d, 716, lambda: d.simulator.ld_reduce(0, team.multicast + 4, "f32", "add", 4, vector=4))


@case(700, "not a multicast address")
def multimem_of_memory(d):
    team = d.Team(2)
    return instruction(d, 700, lambda: d.simulator.ld_reduce(0, team.unicast[0], "f32", "add", 4))


@case(700, "for multimem instructions only")
def ordinary_load_of_a_multicast_address(d):
    team = d.Team(2)
    return instruction(d, 700, lambda: d.simulator.load(0, team.multicast, "u4"))


@case(700, "no right to read")
def multimem_without_access(d):
    team = d.Team(2)
    return instruction(d, 700, lambda: d.simulator.ld_reduce(2, team.multicast, "f32", "add", 4))


@case(700, "no right to write")
def multimem_store_to_read_only(d):
    team = d.Team(2)
    d.ok(d.access(team.multicast, flags=1, devices=(0, 1)))
    return instruction(d, 700, lambda: d.simulator.multimem_st(0, team.multicast, "f32", [1]))


@case(700, "nothing is bound")
def multimem_of_unbound_memory(d):
    team = d.Team(2)
    d.ok(d.unbind(team.handle, 1))
    return instruction(d, 700, lambda: d.simulator.ld_reduce(0, team.multicast, "f32", "add", 4))


@case(700, "given back")
def multimem_of_freed_memory(d):
    team = d.Team(2)
    d.ok(d.unmap(team.unicast[1]))
    d.ok(d.release(team.memory[1]))
    return instruction(d, 700, lambda: d.simulator.ld_reduce(0, team.multicast, "f32", "add", 4))


@case(700, "beyond the mapping")
def multimem_beyond(d):
    team = d.Team(2)
    return instruction(d, 700, lambda: d.simulator.ld_reduce(0, team.multicast + d.STEP - 16, "f32", "add", 8))


@case(801, "10.0")
def float8_on_sm_90(d):
    team = d.Team(2)
    return instruction(d, 801, lambda: d.simulator.ld_reduce(0, team.multicast, "e4m3", "add", 4, vector=4))


@case(1, "no .max")
def multimem_without_such_an_operator(d):
    team = d.Team(2)
    return instruction(d, 1, lambda: d.simulator.ld_reduce(0, team.multicast, "f32", "max", 4))


@case(1, "no .add")
def multimem_of_s64_has_no_add(d):
    team = d.Team(2)
    return instruction(d, 1, lambda: d.simulator.ld_reduce(0, team.multicast, "s64", "add", 4))


@case(1, "no form with 1")
def multimem_of_one_half(d):
    team = d.Team(2)
    return instruction(d, 1, lambda: d.simulator.ld_reduce(0, team.multicast, "f16", "add", 4))


@case(1, "no weak form")
def multimem_red_weak(d):
    team = d.Team(2)
    return instruction(d, 1, lambda: d.simulator.multimem_red(0, team.multicast, "u32", "add", [1], order="weak"))


@case(1, "no such memory order")
def multimem_load_that_releases(d):
    team = d.Team(2)
    return instruction(d, 1, lambda: d.simulator.ld_reduce(0, team.multicast, "u32", "add", 1, order="release"))


# ---- as a program

NOT_INITIALISED = {"call_before_init", "init_flags", "init_without_devices", "forked_child"}


def main(name):
    import driver as d

    from nvsym import simulator
    from nvsym.errors import BackendError

    d.simulator, d.BackendError = simulator, BackendError
    if name not in NOT_INITIALISED:
        d.ok(d.cuda.cuInit(0))
    status = CASES[name][0](d)
    print(json.dumps([status, "forked" if name == "forked_child" else simulator.last_violation()]), flush=True)


if __name__ == "__main__":
    # A process for each case, so that none sees what another left; the interpreter and its modules are loaded once.
    import driver  # noqa: F401

    import nvsym.simulator  # noqa: F401

    for wanted in sys.argv[1:]:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(writer, 1)
            os.environ.update(CASES[wanted][3])
            main(wanted)
            sys.stdout.flush()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            text = file.read()
        _, state = os.waitpid(child, 0)
        print(json.dumps([wanted, state, text]), flush=True)

assert all(len(inspect.signature(row[0]).parameters) == 1 for row in CASES.values())
