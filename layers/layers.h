// Every layer on the devices of the host.
#pragma once

#include "layers/adamw_cpu.h"
#include "layers/attention_cpu.h"
#include "layers/cached_attention_cpu.h"
#include "layers/classifier_cpu.h"
#include "layers/dropout_cpu.h"
#include "layers/embedding_cpu.h"
#include "layers/gelu_cpu.h"
#include "layers/global_norm_cpu.h"
#include "layers/index_rows.h"
#include "layers/layernorm_cpu.h"
#include "layers/matmul_cpu.h"
#include "layers/muon_cpu.h"
#include "layers/rmsnorm_cpu.h"
