#include "dev/emulator/cuda_on_cpu.h"
