// Compares LayerNorm and RMSNorm with PyTorch, tensor by tensor:
//   layernorm_check [--quiet] dev/layernorm/state.safetensors
#include "dev/layernorm/check.h"

int main(int argc, char** argv) { return layernorm_check::main({argv + 1, argv + argc}); }
