// Empty, because the layers use bf16 of device/bf16.h.
