# SPDX-License-Identifier: Apache-2.0
"""From the status of a C function to a Python exception: the one funnel of nvsym's own nogil code."""

from libc.string cimport strncpy

from . import errors

cdef dict _CLASSES = {
    STATUS_BACKEND: errors.BackendError,
    STATUS_COLLECTIVE: errors.CollectiveError,
    STATUS_TIMEOUT: errors.PeerTimeoutError,
    STATUS_EXITED: errors.PeerExitedError,
    STATUS_UNREACHABLE: errors.PeerUnreachableError,
    STATUS_MEMORY: MemoryError,
    STATUS_CLOSED: errors.NotInitializedError,
    STATUS_INTERRUPTED: KeyboardInterrupt,
    STATUS_ARGUMENT: ValueError,
}


cdef object _interrupt = None   # what a signal handler raised; Python runs them in one thread


cdef int raise_status(const Status *status) except -1:
    """Raise what `status` says; return 0 where it says nothing."""
    global _interrupt
    if status.code == STATUS_OK:
        return 0
    if status.code == STATUS_INTERRUPTED and _interrupt is not None:
        error, _interrupt = _interrupt, None
        raise error
    cdef str text = (<const char *> status.text).decode("utf-8", "replace")
    cls = _CLASSES[status.code]
    if issubclass(cls, errors.PeerError):
        raise cls(text, [status.pes[i] for i in range(status.npes)])
    raise cls(text)


cdef void status_text(Status *status, int code, const char *text) noexcept nogil:
    status.code = code
    strncpy(status.text, text, STATUS_TEXT - 1)
    status.text[STATUS_TEXT - 1] = 0


cdef void status_interrupted(Status *status, object error, const char *text) noexcept:
    """A signal handler raised `error`. `text` is that of a KeyboardInterrupt, which has none of its own."""
    global _interrupt
    _interrupt = None if type(error) is KeyboardInterrupt else error
    status_text(status, STATUS_INTERRUPTED, text)


cdef void status_pe(Status *status, int pe) noexcept nogil:
    """Add a PE to those that caused the failure; past the room of the list it is dropped."""
    if status.npes < STATUS_PES:
        status.pes[status.npes] = pe
        status.npes += 1


cdef str error_text(object error):
    """What an error says, of any class and with any words."""
    try:
        return str(error)
    except Exception as other:
        return f"(its words cannot be had: {type(other).__name__})"


cdef bytes text_bytes(str text):
    """The words in UTF-8, as many as a status has room for. What UTF-8 cannot say, such as file names of other bytes, is escaped."""
    return text.encode("utf-8", "backslashreplace")[:STATUS_TEXT - 1]


cdef void status_of(Status *status, object error) noexcept:
    cdef int code = STATUS_BACKEND
    status_text(status, code, b"it failed, and what it failed with cannot be said")    # if even that fails
    for known, cls in _CLASSES.items():
        if isinstance(error, cls) and known != STATUS_BACKEND:
            code = known
    if isinstance(error, TypeError):
        code = STATUS_ARGUMENT
    text = error_text(error)
    # An error of another class than the one that will be raised is named.
    if not isinstance(error, errors.NVSymError) and type(error) is not _CLASSES[code]:
        text = f"{type(error).__name__}: {text}"
    status_text(status, code, text_bytes(text))
    if isinstance(error, errors.PeerError):
        for pe in error.pes:
            status_pe(status, pe)
