// Shared by the tests of attention for generation: a sequence in two parts, on any device.
#pragma once

#include <type_traits>

#include "layers/cached_attention.h"

struct CachedShape {
    int64_t B, past, T, NH, hs;
    int64_t C() const { return NH * hs; }
    int64_t capacity() const { return past + T + 2; }
};

// Appends the first `past` positions (t.before) and then the T others (t.qkv), whose output is computed (t.out).
template <class Tensors, class Device>
void forward_after_past(Tensors& t, Device& dev) {
    const auto& s = t.s;
    KeysValues<std::remove_pointer_t<decltype(t.keys.on(dev))>> kept{t.keys.on(dev), t.values.on(dev), s.capacity(), 0};
    append_keys_values(dev, kept, t.before.on(dev), s.B, s.past, s.C(), s.NH);
    kept.past = s.past;
    append_keys_values(dev, kept, t.qkv.on(dev), s.B, s.T, s.C(), s.NH);
    cached_attention_forward(dev, t.out.on(dev), kept, t.qkv.on(dev), s.B, s.T, s.C(), s.NH);
}
