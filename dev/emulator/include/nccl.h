#include "dev/emulator/nccl_on_cpu.h"
