// What most tests of CUDA's layers include, for a precompiled header, as dev/test/common.h.
#include "dev/test/cuda/cuda_check.h"
