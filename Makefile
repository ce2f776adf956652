# make help lists the targets. ARCH= builds for another CPU than this one (x86-64-v3: AVX2; x86-64: plain).
ARCH ?= native
B    := build/$(ARCH)

# No -ffast-math: NaN must stay visible. These two relaxations change no result.
CXXFLAGS ?= -O3
CXXFLAGS += -std=c++20 -I. -fopenmp -fno-math-errno -fno-trapping-math -MMD -MP \
            -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror
LDLIBS   := -lpcre2-8

IO       := $(patsubst %.cpp,$(B)/%.o,$(wildcard io/*.cpp))
TESTS    := $(patsubst dev/test/%.cpp,$(B)/test/%,$(wildcard dev/test/*_test.cpp))

$(B)/%.o: %.cpp
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -march=$(ARCH) -c $< -o $@

$(B)/test/%: $(B)/dev/test/%.o $(IO)
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) $^ -lgtest_main -lgtest $(LDLIBS) -o $@

-include $(shell find build -name '*.d' 2>/dev/null)
