#pragma once

#include "device/cuda/common.cuh"

#include "dev/emulator/ptx_on_cpu.h"
