# SPDX-License-Identifier: Apache-2.0
# What nvsym uses of the CUDA driver, in the order of cuda.h. Handles are plain pointers. A member is called as the
# function is called in C; which symbol of the library stands behind it (cuMemAlloc_v2 for cuMemAlloc) says _driver.pyx.
from libc.stdint cimport uint32_t, uint64_t

#  Types  ------------------------------------------------------------------------------------------------------------

ctypedef uint32_t      cuuint32_t
ctypedef uint64_t      cuuint64_t
ctypedef uint64_t      CUdeviceptr
ctypedef int           CUdevice
ctypedef void         *CUcontext
ctypedef void         *CUmodule
ctypedef void         *CUfunction
ctypedef void         *CUlibrary
ctypedef void         *CUkernel
ctypedef void         *CUevent
ctypedef void         *CUstream
ctypedef void         *CUgraph
ctypedef void         *CUgraphNode
ctypedef void         *CUgraphExec
ctypedef uint64_t      CUmemGenericAllocationHandle

ctypedef int           CUdevice_attribute
ctypedef int           CUdevice_P2PAttribute
ctypedef int           CUfunction_attribute
ctypedef int           CUpointer_attribute
ctypedef int           CUstreamCaptureStatus
ctypedef int           CUstreamCaptureMode
ctypedef int           CUdriverProcAddressQueryResult
ctypedef int           CUresult
ctypedef int           CUmemAllocationHandleType
ctypedef int           CUmemAccess_flags
ctypedef int           CUmemLocationType
ctypedef int           CUmemAllocationType
ctypedef int           CUmemAllocationGranularity_flags
ctypedef int           CUmulticastGranularity_flags
ctypedef int           CUlaunchAttributeID

ctypedef void        (*CUhostFn)(void *userData) noexcept nogil

ctypedef struct CUuuid:
    char                       bytes[16]

ctypedef union CUlaunchAttributeValue:
    char                       pad[64]
    int                        programmaticStreamSerializationAllowed

ctypedef struct CUlaunchAttribute:
    CUlaunchAttributeID        id
    char                       pad[4]
    CUlaunchAttributeValue     value

ctypedef struct CUlaunchConfig:
    unsigned int               gridDimX
    unsigned int               gridDimY
    unsigned int               gridDimZ
    unsigned int               blockDimX
    unsigned int               blockDimY
    unsigned int               blockDimZ
    unsigned int               sharedMemBytes
    CUstream                   hStream
    CUlaunchAttribute         *attrs
    unsigned int               numAttrs

ctypedef struct CUmemFabricHandle:
    unsigned char              data[64]

ctypedef struct CUmemLocation:
    CUmemLocationType          type
    int                        id

# A structure without a name in cuda.h: the member allocFlags of the next one.
ctypedef struct CUmemAllocationProp_allocFlags:
    unsigned char              compressionType
    unsigned char              gpuDirectRDMACapable
    unsigned short             usage
    unsigned char              reserved[4]

ctypedef struct CUmemAllocationProp:
    CUmemAllocationType        type
    CUmemAllocationHandleType  requestedHandleTypes
    CUmemLocation              location
    void                      *win32HandleMetaData
    CUmemAllocationProp_allocFlags allocFlags

ctypedef struct CUmulticastObjectProp:
    unsigned int               numDevices
    size_t                     size
    unsigned long long         handleTypes
    unsigned long long         flags

ctypedef struct CUmemAccessDesc:
    CUmemLocation              location
    CUmemAccess_flags          flags

#  Constants  --------------------------------------------------------------------------------------------------------

# Pointers in C: write <CUstream> <size_t> CU_STREAM_LEGACY.
cdef enum:
    CU_STREAM_LEGACY     = 0x1
    CU_STREAM_PER_THREAD = 0x2

cdef enum:
    CU_CTX_SCHED_AUTO          = 0x00
    CU_CTX_SCHED_BLOCKING_SYNC = 0x04
    CU_CTX_SYNC_MEMOPS         = 0x80

cdef enum:
    CU_STREAM_DEFAULT      = 0x0
    CU_STREAM_NON_BLOCKING = 0x1

cdef enum:
    CU_EVENT_DEFAULT        = 0x0
    CU_EVENT_BLOCKING_SYNC  = 0x1
    CU_EVENT_DISABLE_TIMING = 0x2
    CU_EVENT_INTERPROCESS   = 0x4

cdef enum:
    CU_EVENT_RECORD_DEFAULT  = 0x0
    CU_EVENT_RECORD_EXTERNAL = 0x1

cdef enum:
    CU_EVENT_WAIT_DEFAULT  = 0x0
    CU_EVENT_WAIT_EXTERNAL = 0x1

cdef enum:
    CU_STREAM_WAIT_VALUE_GEQ   = 0x0
    CU_STREAM_WAIT_VALUE_EQ    = 0x1
    CU_STREAM_WAIT_VALUE_AND   = 0x2
    CU_STREAM_WAIT_VALUE_NOR   = 0x3
    CU_STREAM_WAIT_VALUE_FLUSH = 0x40000000

cdef enum:
    CU_STREAM_WRITE_VALUE_DEFAULT = 0x0

cdef enum:
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK                       = 1
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT                        = 16
    CU_DEVICE_ATTRIBUTE_COMPUTE_MODE                                = 20
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID                                  = 33
    CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID                               = 34
    CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT                          = 40
    CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING                          = 41
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID                               = 50
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR                    = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR                    = 76
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS                      = 88
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH                          = 95
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN           = 97
    CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES                     = 98
    CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED                     = 99
    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED         = 102
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED     = 110
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS               = 122
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR               = 123
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED                = 128
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED                         = 132
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED                                 = 133

cdef enum:
    CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 0x03

cdef enum:
    CU_POINTER_ATTRIBUTE_CONTEXT          = 1
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE      = 2
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER   = 3
    CU_POINTER_ATTRIBUTE_HOST_POINTER     = 4
    CU_POINTER_ATTRIBUTE_IS_MANAGED       = 8
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL   = 9
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11
    CU_POINTER_ATTRIBUTE_RANGE_SIZE       = 12

cdef enum:
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK         = 0
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES             = 1
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES              = 3
    CU_FUNC_ATTRIBUTE_NUM_REGS                      = 4
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

cdef enum:
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6

cdef enum:
    CU_MEMORYTYPE_HOST    = 0x01
    CU_MEMORYTYPE_DEVICE  = 0x02
    CU_MEMORYTYPE_UNIFIED = 0x04

cdef enum:
    CU_COMPUTEMODE_DEFAULT           = 0
    CU_COMPUTEMODE_PROHIBITED        = 2
    CU_COMPUTEMODE_EXCLUSIVE_PROCESS = 3

cdef enum:
    CU_STREAM_CAPTURE_STATUS_NONE        = 0
    CU_STREAM_CAPTURE_STATUS_ACTIVE      = 1
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2

cdef enum:
    CU_STREAM_CAPTURE_MODE_GLOBAL       = 0
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
    CU_STREAM_CAPTURE_MODE_RELAXED      = 2

cdef enum:
    CU_GET_PROC_ADDRESS_DEFAULT = 0

cdef enum:
    CUDA_SUCCESS                              = 0
    CUDA_ERROR_INVALID_VALUE                  = 1
    CUDA_ERROR_OUT_OF_MEMORY                  = 2
    CUDA_ERROR_NOT_INITIALIZED                = 3
    CUDA_ERROR_DEINITIALIZED                  = 4
    CUDA_ERROR_STUB_LIBRARY                   = 34
    CUDA_ERROR_DEVICE_UNAVAILABLE             = 46
    CUDA_ERROR_NO_DEVICE                      = 100
    CUDA_ERROR_INVALID_DEVICE                 = 101
    CUDA_ERROR_INVALID_IMAGE                  = 200
    CUDA_ERROR_INVALID_CONTEXT                = 201
    CUDA_ERROR_NO_BINARY_FOR_GPU              = 209
    CUDA_ERROR_ECC_UNCORRECTABLE              = 214
    CUDA_ERROR_NVLINK_UNCORRECTABLE           = 220
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION        = 222
    CUDA_ERROR_INVALID_HANDLE                 = 400
    CUDA_ERROR_ILLEGAL_STATE                  = 401
    CUDA_ERROR_NOT_READY                      = 600
    CUDA_ERROR_ILLEGAL_ADDRESS                = 700
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES        = 701
    CUDA_ERROR_CONTEXT_IS_DESTROYED           = 709
    CUDA_ERROR_ASSERT                         = 710
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712
    CUDA_ERROR_MISALIGNED_ADDRESS             = 716
    CUDA_ERROR_LAUNCH_FAILED                  = 719
    CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE   = 720
    CUDA_ERROR_NOT_PERMITTED                  = 800
    CUDA_ERROR_NOT_SUPPORTED                  = 801
    CUDA_ERROR_SYSTEM_NOT_READY               = 802
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH         = 803
    CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804
    CUDA_ERROR_MPS_CONNECTION_FAILED          = 805
    CUDA_ERROR_MPS_RPC_FAILURE                = 806
    CUDA_ERROR_MPS_SERVER_NOT_READY           = 807
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED        = 808
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED     = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED     = 901
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT        = 906
    CUDA_ERROR_CAPTURED_EVENT                 = 907
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD    = 908
    CUDA_ERROR_UNKNOWN                        = 999

cdef enum:
    CU_MEMHOSTALLOC_PORTABLE      = 0x01
    CU_MEMHOSTALLOC_DEVICEMAP     = 0x02
    CU_MEMHOSTALLOC_WRITECOMBINED = 0x04

cdef enum:
    CU_MEMHOSTREGISTER_PORTABLE  = 0x01
    CU_MEMHOSTREGISTER_DEVICEMAP = 0x02

cdef enum:
    CU_MEM_HANDLE_TYPE_NONE                  = 0x0
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 0x1
    CU_MEM_HANDLE_TYPE_FABRIC                = 0x8

cdef enum:
    CU_MEM_ACCESS_FLAGS_PROT_NONE      = 0x0
    CU_MEM_ACCESS_FLAGS_PROT_READ      = 0x1
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 0x3

cdef enum:
    CU_MEM_LOCATION_TYPE_DEVICE = 0x1

cdef enum:
    CU_MEM_ALLOCATION_TYPE_PINNED = 0x1

cdef enum:
    CU_MEM_ALLOC_GRANULARITY_MINIMUM     = 0x0
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 0x1

cdef enum:
    CU_MULTICAST_GRANULARITY_MINIMUM     = 0x0
    CU_MULTICAST_GRANULARITY_RECOMMENDED = 0x1

#  Functions  --------------------------------------------------------------------------------------------------------

cdef struct CUDADriver:
    # Errors, initialisation, version
    CUresult (*cuGetErrorString)(CUresult error, const char **pStr) noexcept nogil
    CUresult (*cuGetErrorName)(CUresult error, const char **pStr) noexcept nogil
    CUresult (*cuInit)(unsigned int Flags) noexcept nogil
    CUresult (*cuDriverGetVersion)(int *driverVersion) noexcept nogil

    # Devices
    CUresult (*cuDeviceGet)(CUdevice *device, int ordinal) noexcept nogil
    CUresult (*cuDeviceGetCount)(int *count) noexcept nogil
    CUresult (*cuDeviceGetName)(char *name, int len, CUdevice dev) noexcept nogil
    CUresult (*cuDeviceGetUuid)(CUuuid *uuid, CUdevice dev) noexcept nogil
    CUresult (*cuDeviceGetAttribute)(int *pi, CUdevice_attribute attrib, CUdevice dev) noexcept nogil

    # Contexts
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *pctx, CUdevice dev) noexcept nogil
    CUresult (*cuDevicePrimaryCtxRelease)(CUdevice dev) noexcept nogil
    CUresult (*cuDevicePrimaryCtxGetState)(CUdevice dev, unsigned int *flags, int *active) noexcept nogil
    CUresult (*cuCtxPushCurrent)(CUcontext ctx) noexcept nogil
    CUresult (*cuCtxPopCurrent)(CUcontext *pctx) noexcept nogil
    CUresult (*cuCtxSetCurrent)(CUcontext ctx) noexcept nogil
    CUresult (*cuCtxGetCurrent)(CUcontext *pctx) noexcept nogil
    CUresult (*cuCtxGetDevice)(CUdevice *device) noexcept nogil
    CUresult (*cuCtxSynchronize)() noexcept nogil

    # Modules and libraries
    CUresult (*cuModuleLoadData)(CUmodule *module, const void *image) noexcept nogil
    CUresult (*cuModuleUnload)(CUmodule hmod) noexcept nogil
    CUresult (*cuModuleGetFunction)(CUfunction *hfunc, CUmodule hmod, const char *name) noexcept nogil
    CUresult (*cuModuleGetGlobal)(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name) noexcept nogil
    CUresult (*cuLibraryLoadData)(CUlibrary *library, const void *code, void *jitOptions, void **jitOptionsValues,
                                  unsigned int numJitOptions, void *libraryOptions, void **libraryOptionValues,
                                  unsigned int numLibraryOptions) noexcept nogil
    CUresult (*cuLibraryUnload)(CUlibrary library) noexcept nogil
    CUresult (*cuLibraryGetModule)(CUmodule *pMod, CUlibrary library) noexcept nogil
    CUresult (*cuKernelGetFunction)(CUfunction *pFunc, CUkernel kernel) noexcept nogil

    # Memory
    CUresult (*cuMemGetInfo)(size_t *free, size_t *total) noexcept nogil
    CUresult (*cuMemAlloc)(CUdeviceptr *dptr, size_t bytesize) noexcept nogil
    CUresult (*cuMemFree)(CUdeviceptr dptr) noexcept nogil
    CUresult (*cuMemFreeHost)(void *p) noexcept nogil
    CUresult (*cuMemHostAlloc)(void **pp, size_t bytesize, unsigned int Flags) noexcept nogil
    CUresult (*cuMemHostGetDevicePointer)(CUdeviceptr *pdptr, void *p, unsigned int Flags) noexcept nogil
    CUresult (*cuMemHostRegister)(void *p, size_t bytesize, unsigned int Flags) noexcept nogil
    CUresult (*cuMemHostUnregister)(void *p) noexcept nogil
    CUresult (*cuMemcpyAsync)(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) noexcept nogil
    CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                  CUstream hStream) noexcept nogil
    CUresult (*cuMemcpyDtoHAsync)(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                  CUstream hStream) noexcept nogil
    CUresult (*cuMemcpyDtoDAsync)(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                  CUstream hStream) noexcept nogil
    CUresult (*cuMemsetD8Async)(CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream) noexcept nogil
    CUresult (*cuMemsetD16Async)(CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream) noexcept nogil
    CUresult (*cuMemsetD32Async)(CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream) noexcept nogil

    # Virtual memory
    CUresult (*cuMemAddressReserve)(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                    unsigned long long flags) noexcept nogil
    CUresult (*cuMemAddressFree)(CUdeviceptr ptr, size_t size) noexcept nogil
    CUresult (*cuMemCreate)(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags) noexcept nogil
    CUresult (*cuMemRelease)(CUmemGenericAllocationHandle handle) noexcept nogil
    CUresult (*cuMemMap)(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) noexcept nogil
    CUresult (*cuMemUnmap)(CUdeviceptr ptr, size_t size) noexcept nogil
    CUresult (*cuMemSetAccess)(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) noexcept nogil
    CUresult (*cuMemExportToShareableHandle)(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType handleType,
                                             unsigned long long flags) noexcept nogil
    CUresult (*cuMemImportFromShareableHandle)(CUmemGenericAllocationHandle *handle, void *osHandle,
                                               CUmemAllocationHandleType shHandleType) noexcept nogil
    CUresult (*cuMemGetAllocationGranularity)(size_t *granularity, const CUmemAllocationProp *prop,
                                              CUmemAllocationGranularity_flags option) noexcept nogil
    CUresult (*cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle, void *addr) noexcept nogil

    # Multicast
    CUresult (*cuMulticastCreate)(CUmemGenericAllocationHandle *mcHandle,
                                  const CUmulticastObjectProp *prop) noexcept nogil
    CUresult (*cuMulticastAddDevice)(CUmemGenericAllocationHandle mcHandle, CUdevice dev) noexcept nogil
    CUresult (*cuMulticastBindMem)(CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                                   CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                                   unsigned long long flags) noexcept nogil
    CUresult (*cuMulticastUnbind)(CUmemGenericAllocationHandle mcHandle, CUdevice dev, size_t mcOffset,
                                  size_t size) noexcept nogil
    CUresult (*cuMulticastGetGranularity)(size_t *granularity, const CUmulticastObjectProp *prop,
                                          CUmulticastGranularity_flags option) noexcept nogil

    # Addresses
    CUresult (*cuPointerGetAttribute)(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) noexcept nogil

    # Streams
    CUresult (*cuStreamCreate)(CUstream *phStream, unsigned int Flags) noexcept nogil
    CUresult (*cuStreamCreateWithPriority)(CUstream *phStream, unsigned int flags, int priority) noexcept nogil
    CUresult (*cuStreamGetCtx)(CUstream hStream, CUcontext *pctx) noexcept nogil
    CUresult (*cuStreamWaitEvent)(CUstream hStream, CUevent hEvent, unsigned int Flags) noexcept nogil
    CUresult (*cuStreamBeginCapture)(CUstream hStream, CUstreamCaptureMode mode) noexcept nogil
    CUresult (*cuStreamEndCapture)(CUstream hStream, CUgraph *phGraph) noexcept nogil
    CUresult (*cuStreamIsCapturing)(CUstream hStream, CUstreamCaptureStatus *captureStatus) noexcept nogil
    CUresult (*cuStreamGetCaptureInfo)(CUstream hStream, CUstreamCaptureStatus *captureStatus_out, cuuint64_t *id_out,
                                       CUgraph *graph_out, const CUgraphNode **dependencies_out,
                                       size_t *numDependencies_out) noexcept nogil
    CUresult (*cuStreamQuery)(CUstream hStream) noexcept nogil
    CUresult (*cuStreamSynchronize)(CUstream hStream) noexcept nogil
    CUresult (*cuStreamDestroy)(CUstream hStream) noexcept nogil

    # Events
    CUresult (*cuEventCreate)(CUevent *phEvent, unsigned int Flags) noexcept nogil
    CUresult (*cuEventRecord)(CUevent hEvent, CUstream hStream) noexcept nogil
    CUresult (*cuEventRecordWithFlags)(CUevent hEvent, CUstream hStream, unsigned int flags) noexcept nogil
    CUresult (*cuEventQuery)(CUevent hEvent) noexcept nogil
    CUresult (*cuEventSynchronize)(CUevent hEvent) noexcept nogil
    CUresult (*cuEventDestroy)(CUevent hEvent) noexcept nogil
    CUresult (*cuEventElapsedTime)(float *pMilliseconds, CUevent hStart, CUevent hEnd) noexcept nogil

    # Memory operations of a stream
    CUresult (*cuStreamWaitValue64)(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                    unsigned int flags) noexcept nogil
    CUresult (*cuStreamWriteValue32)(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                     unsigned int flags) noexcept nogil
    CUresult (*cuStreamWriteValue64)(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                     unsigned int flags) noexcept nogil

    # Kernels
    CUresult (*cuFuncGetAttribute)(int *pi, CUfunction_attribute attrib, CUfunction hfunc) noexcept nogil
    CUresult (*cuFuncSetAttribute)(CUfunction hfunc, CUfunction_attribute attrib, int value) noexcept nogil
    CUresult (*cuFuncGetParamInfo)(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize) noexcept nogil
    CUresult (*cuLaunchKernel)(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                               unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                               unsigned int sharedMemBytes, CUstream hStream, void **kernelParams,
                               void **extra) noexcept nogil
    CUresult (*cuLaunchKernelEx)(const CUlaunchConfig *config, CUfunction f, void **kernelParams,
                                 void **extra) noexcept nogil
    CUresult (*cuLaunchCooperativeKernel)(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                          unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                          unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                          void **kernelParams) noexcept nogil
    CUresult (*cuLaunchHostFunc)(CUstream hStream, CUhostFn fn, void *userData) noexcept nogil

    # Graphs
    CUresult (*cuGraphInstantiateWithFlags)(CUgraphExec *phGraphExec, CUgraph hGraph,
                                            unsigned long long flags) noexcept nogil
    CUresult (*cuGraphLaunch)(CUgraphExec hGraphExec, CUstream hStream) noexcept nogil
    CUresult (*cuGraphExecDestroy)(CUgraphExec hGraphExec) noexcept nogil
    CUresult (*cuGraphDestroy)(CUgraph hGraph) noexcept nogil

    # Occupancy, peers, entry points
    CUresult (*cuOccupancyMaxActiveBlocksPerMultiprocessor)(int *numBlocks, CUfunction func, int blockSize,
                                                            size_t dynamicSMemSize) noexcept nogil
    CUresult (*cuDeviceCanAccessPeer)(int *canAccessPeer, CUdevice dev, CUdevice peerDev) noexcept nogil
    CUresult (*cuDeviceGetP2PAttribute)(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                        CUdevice dstDevice) noexcept nogil
    CUresult (*cuGetProcAddress)(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *symbolStatus) noexcept nogil
