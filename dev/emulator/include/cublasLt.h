#include "dev/emulator/cublaslt_on_cpu.h"
