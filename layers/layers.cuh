// Every layer on the Cuda device.
#pragma once

#include "layers/adamw.cuh"
#include "layers/attention.cuh"
#include "layers/cached_attention.cuh"
#include "layers/classifier.cuh"
#include "layers/dropout.cuh"
#include "layers/embedding.cuh"
#include "layers/gelu.cuh"
#include "layers/global_norm.cuh"
#include "layers/layernorm.cuh"
#include "layers/matmul.cuh"
#include "layers/muon.cuh"
#include "device/cuda/nccl.cuh"
#include "device/cuda/rounding.cuh"
#include "device/cuda/step.cuh"
#include "device/cuda/tree.cuh"
