// What all tests of layers include, for a precompiled header, as dev/test/common.h.
#include "dev/test/layers/layer_check.h"
