// Token and position embedding.
#pragma once

#include "device/device.h"

// out (B,T,C) = wte[tokens[b,t]] + wpe[t]        wte (Vp,C), wpe (maxT,C), tokens (B,T)
template <class T>
void embedding_forward(Reference<T>&, T* out, const int32_t* tokens, const T* wte, const T* wpe, int64_t B, int64_t seq,
                       int64_t C) {
    for (int64_t row = 0; row < B * seq; ++row)
        for (int64_t c = 0; c < C; ++c) out[row * C + c] = wte[tokens[row] * C + c] + wpe[row % seq * C + c];
}

// dwte (Vp,C) += dout summed over the token's places        dwpe (maxT,C) += dout summed over the batch
template <class T>
void embedding_backward(Reference<T>&, T* dwte, T* dwpe, const T* dout, const int32_t* tokens, int64_t B, int64_t seq,
                        int64_t C) {
    for (int64_t row = 0; row < B * seq; ++row)
        for (int64_t c = 0; c < C; ++c) {
            dwte[tokens[row] * C + c] += dout[row * C + c];
            dwpe[row % seq * C + c] += dout[row * C + c];
        }
}
