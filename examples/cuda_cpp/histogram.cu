/* SPDX-License-Identifier: Apache-2.0
 *
 * A histogram whose bins are spread over the GPUs: a Python extension that nvcc compiles. Each PE counts its own samples, and adds
 * them to the bins of their owner by atomics on the peers' memory. histogram.py builds, calls and checks it.
 *
 * The host part uses the C interface (nvsym/nvsym.h): it takes SHMEMBuffers, finds the addresses of the peers, and launches on the
 * stream of the context. */
#include <nvsym/nvsym.h>

#include <cuda_runtime.h>
#include <nvsym/nvsym.cuh>

typedef unsigned long long Count;

constexpr int MAX_BINS = 4096; /* that a block counts in its shared memory first */

struct Owners {
    Count *bins[nvsym::MAX_PES];
};

/* Bin b belongs to PE b / per_pe, as its bin b % per_pe. */
__global__ void histogram(Owners owners, int bins, int per_pe, const unsigned *samples, size_t count)
{
    __shared__ unsigned counted[MAX_BINS];
    for (int b = threadIdx.x; b < bins; b += blockDim.x)
        counted[b] = 0;
    __syncthreads();
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        atomicAdd(&counted[samples[i] % bins], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < bins; b += blockDim.x)
        if (counted[b])
            atomicAdd_system(owners.bins[b / per_pe] + b % per_pe, (Count)counted[b]);
}

/* count(bins, samples, total_bins, stream): add this PE's samples to the bins of all. The caller meets the others behind it. */
static PyObject *count_samples(PyObject *, PyObject *args)
{
    PyObject *bins, *samples, *stream_object;
    int total;
    if (!PyArg_ParseTuple(args, "OOiO", &bins, &samples, &total, &stream_object))
        return NULL;
    size_t per_pe = 0, count = 0;
    Count *mine = (Count *)nvsym_buffer_data(bins, NVSYM_UINT64, &per_pe);
    if (!mine)
        return NULL;
    const unsigned *data = (const unsigned *)nvsym_buffer_data(samples, NVSYM_UINT32, &count);
    if (!data)
        return NULL;
    nvsym_stream_t stream = NULL;
    if (nvsym_stream_of(stream_object, &stream))
        return NULL;
    const int n = nvsym_n_pes();
    Owners owners = {};
    if (n > nvsym::MAX_PES || total < 1 || total > MAX_BINS || (size_t)total > per_pe * (size_t)n) {
        PyErr_Format(PyExc_ValueError, "%d bins do not fit %d PEs of %zu", total, n, per_pe);
        return NULL;
    }
    if (nvsym::peer_table(mine, owners.bins) != n) {
        PyErr_SetString(PyExc_ValueError, "not every PE can be addressed from here");
        return NULL;
    }
    cudaError_t status = cudaSuccess;
    Py_BEGIN_ALLOW_THREADS
    if (count)
        histogram<<<64, 256, 0, (cudaStream_t)stream>>>(owners, total, (int)per_pe, data, count);
    status = cudaGetLastError();
    Py_END_ALLOW_THREADS
    if (status != cudaSuccess) {
        PyErr_Format(PyExc_RuntimeError, "the kernel was not launched: %s", cudaGetErrorString(status));
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"count", count_samples, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "histogram_cuda", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_histogram_cuda(void)
{
    if (nvsym_import())
        return NULL;
    return PyModule_Create(&module);
}
