// NCCL for the emulator: the names of <nccl.h> that device/cuda/nccl.cuh uses. Ranks are processes of one machine, and
// send each other bytes through sockets. The work of a group is done by ncclGroupEnd, after all earlier work of its
// stream; what it has received is copied to device memory by the stream.
// EMULATED_NCCL_FAULT=3 makes the third group of this process never end, as if its peer were lost on the way, and the
// communicator reports an error some time later; with 0 there is no connection at all. The other ranks do not notice,
// as GPUs of one machine do not: they wait.
#pragma once

#include <cstddef>

#include "dev/emulator/cuda_on_cpu.h"

enum ncclResult_t {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
};
enum ncclDataType_t { ncclInt8 = 0 };
struct ncclUniqueId {
    char internal[128];
};
using ncclComm_t = struct ncclComm*;

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t communicator);
ncclResult_t ncclCommAbort(ncclComm_t communicator);
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int to, ncclComm_t communicator,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int from, ncclComm_t communicator,
                      cudaStream_t stream);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t communicator);
