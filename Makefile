# `make help` lists the targets.
ARCH ?= native
CLANG := $(findstring clang,$(CXX) $(shell $(CXX) --version 2>/dev/null))
KIND  := $(if $(CLANG),-clang)$(if $(PORTABLE),-portable)
B     := build/$(ARCH)$(KIND)$(if $(SANITIZE),-sanitize)
ifeq ($(MAKELEVEL),0)  # all cores, unless -j is given
MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
endif

# make PORTABLE=1 uses device/platform.h's fallbacks for other systems than Linux; it is for tests.
OPENMP   := -fopenmp
ifeq ($(shell uname -s),Darwin)  # Apple's clang, with Homebrew's libomp and libraries. Not tried on a Mac.
BREW     := $(shell brew --prefix)
OPENMP   := -Xpreprocessor -fopenmp -I$(BREW)/opt/libomp/include -L$(BREW)/opt/libomp/lib -lomp -Wno-unused-command-line-argument
export CPATH := $(BREW)/include
export LIBRARY_PATH := $(BREW)/lib
endif
# Apple's ARM compilers call it -mcpu.
MARCH     = $(if $(filter arm64-native,$(shell uname -m)-$(ARCH)),-mcpu=native,-march=$(ARCH))
# No -ffast-math, because NaN must stay visible. Leaving out errno and traps changes no result. Without contraction there is
# an FMA only where the code has fma(), so that bits do not depend on inlining: 0.02 % more instructions per step.
# Null pointers and objects that are too small, which AddressSanitizer finds too, are not checked a second time: a quarter
# of the compiling. GCC's warnings of uninitialized values are false with instrumented code, as its manual says.
# WERROR=1, which .ci/run sets, makes warnings errors. By default a newer compiler's warnings do not stop the build.
CXXFLAGS ?= -O3
FLAGS    := $(CXXFLAGS) -std=c++20 -I. $(OPENMP) $(if $(PORTABLE),-DPORTABLE) -fno-math-errno -fno-trapping-math -ffp-contract=off -MMD -MP \
            -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-restrict -Wno-unknown-warning-option -Wno-pass-failed \
            $(if $(WERROR),-Werror) \
            $(if $(SANITIZE),-g1 -Og -fno-omit-frame-pointer -fsanitize=$(SANITIZE) -fno-sanitize-recover=all \
            -fno-sanitize=null -fno-sanitize=object-size -Wno-maybe-uninitialized)
LDLIBS   := -lpcre2-8 -lz -lzstd
# The line editor of generate --interactive.
OF_PROGRAM := -ledit
# The program and bench are linked with a static libgomp, so that they can set how long its threads spin
# (device/cpu/openmp_spin.h). They use the shared one if there is no libgomp.a, with clang, and under ThreadSanitizer,
# which needs another OpenMP in its place.
COMMA    := ,
LIBGOMP  := $(if $(findstring thread,$(SANITIZE))$(CLANG),,\
            $(wildcard $(shell $(CXX) -print-file-name=libgomp.a)))
OWN_OPENMP := $(LIBGOMP) $(if $(LIBGOMP),-Wl$(COMMA)--as-needed)
# Training by several processes (device/parallel/), if there is an MPI; MPI=0 leaves it out. It is a library beside the
# program, because a program linked with Open MPI takes 6 ms longer to start, and this one takes 4. NCCL, by which GPUs
# exchange their parts, is loaded by train_gpt2cu itself; only its header is needed here.
MPICXX   := $(if $(filter-out 0,$(or $(MPI),1)),$(shell command -v mpicxx))
OF_MPI   := $(if $(MPICXX),$(B)/train_gpt2_mpi.so)
Q        := $(if $(V),,@)

objects_of = $(patsubst %.cpp,$(B)/%.o,$(wildcard $(1:%=%/*.cpp)))
IO       := $(call objects_of,io/file io/text io/data io/model)
LAYERS   := $(call objects_of,layers device/cpu device/cpu/gemm)
COMMAND_LINE := $(B)/program/command_line.o
PROGRAM  := $(filter-out $(COMMAND_LINE),$(call objects_of,program))
OF_CUDA  := $(filter-out %/device_cpu.o,$(PROGRAM))
# The files of the program that tests use. The rest needs a device.
RUN      := $(patsubst %,$(B)/program/%.o,choices comparison convert info log options pair_embedding report report_chart run_directory tensorboard)
EMULATOR := $(patsubst %.cpp,$(B)/%.o,$(wildcard dev/emulator/*.cpp))
# First, so that all cores end together.
LONGEST  := $(patsubst %,$(B)/test/%_test,cuda/model program/ranks program/time_plan cuda/layernorm program/kill cuda/attention \
            program/cuda program/memory program/train program/refusals)
TESTS    := $(LONGEST) $(filter-out $(LONGEST),$(patsubst dev/test/%.cpp,$(B)/test/%,$(wildcard dev/test/*/*_test.cpp)))
# clang before 16 has no std::source_location, which the emulator needs. Later versions were not tried.
NO_CUDA  := $(if $(CLANG),$(filter $(B)/test/cuda/% %/program/cuda_test %/ladder_test,$(TESTS)))
# Tests of CUDA kernels are left out under the sanitizers, for the time that they take to compile: in the plain build the
# emulator checks every access of a kernel, which the sanitized one does not, and program/cuda_test runs the program's kernels
# under the sanitizers. Those of the emulator, of cuBLASLt in it, and of memory on the host are left in.
KERNEL_TESTS := $(filter-out %/emulator_test %/cublaslt_test %/graph_test,$(filter $(B)/test/cuda/%,$(TESTS)))
# So are tests that compare numbers of layers which other tests run with the sanitizers too: LayerNorm's properties
# (layernorm_test), broken layers and Muon's reference numbers (model_test, muon_test); and the bad options of dev/'s tools.
NUMBER_TESTS := $(patsubst %,$(B)/test/%_test,layers/layernorm_properties model/mutation model/muon_reference dev/tools)
TESTS    := $(filter-out $(NO_CUDA) $(if $(SANITIZE),$(KERNEL_TESTS) $(NUMBER_TESTS)),$(TESTS))
# These start the program, which is what the sanitizers check: the plain tests are run with the sanitized program. What else
# of the project they call (the reference model, checkpoints) other tests call under the sanitizers.
STARTERS := $(patsubst %,program/%_test,ranks kill faults cuda data evaluation memory refusals signals start tools train vocabulary)
PLAIN    := $(if $(SANITIZE),$(patsubst %,build/$(ARCH)$(KIND)/test/%,$(filter-out $(if $(CLANG),%/cuda_test),$(STARTERS))))
TESTS    := $(if $(SANITIZE),$(filter-out $(STARTERS:%=$(B)/test/%),$(TESTS)),$(TESTS))
FUZZ     := $(B)/fuzz$(if $(FAST),-fast)
FUZZ_TARGETS := $(filter-out dev/fuzz/libfuzzer.cpp,$(wildcard dev/fuzz/*.cpp))
LADDERS  := $(patsubst dev/%/ladder.cpp,$(B)/ladder/%,$(wildcard dev/*/ladder.cpp))
LADDERS  := $(filter-out $(if $(SANITIZE),%_cuda),$(LADDERS))  # CUDA's: as the tests of kernels above
# The layers' tests are also built and run with vectors narrower than this CPU's: AVX2's for one with AVX-512, SSE's.
WIDE     := $(shell $(CXX) $(MARCH) -dM -E -x c++ /dev/null 2>/dev/null | grep -o __AVX512F__)
WIDTHS   ?= $(if $(filter x86_64%,$(shell $(CXX) -dumpmachine)),$(if $(WIDE),x86-64-v3) x86-64)
LAYER_TESTS := $(filter $(B)/test/layers/% %/simd_test %/device/bf16_test,$(TESTS))
NARROW   := $(foreach arch,$(WIDTHS),$(LAYER_TESTS:$(B)/%=build/$(arch)$(KIND)/%))
# PyTorch is timed too if it is installed; make bench PYTORCH= leaves it out.
PYTORCH  ?= $(wildcard .venv/bin/python)
DATA     := scripts/get_data.sh tinyshakespeare vocab.bpe
SOURCES   = $(shell git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')

.DEFAULT_GOAL := train_gpt2
.PHONY: run test run_tests bench bench-pytorch train_gpt2 train_gpt2cu test_gpt2 test-long tests objects layer_tests ladders fuzz mutants format check-format check-cuda check-threads check-portable portable_tests check-gpu clean help
.SECONDARY:

run: ## train a small model on Tiny Shakespeare in three minutes: installs what is missing, builds, trains into out/tiny (then -2, -3, …)
	@scripts/setup.sh run
	@$(DATA)
	@$(MAKE) --no-print-directory train_gpt2
	@out=out/tiny; n=2; while [ -e $$out ]; do out=out/tiny-$$n; n=$$((n + 1)); done; ./train_gpt2 --minutes 3 --out $$out

test: ## run every test, CUDA's also on a GPU if there is one; SANITIZE=address,undefined: with the sanitizers
	@scripts/setup.sh test
	@$(DATA)
	@$(MAKE) --no-print-directory tests
	@$(MAKE) --no-print-directory run_tests

# A make of its own, for which the compiler that setup.sh may have installed is there.
run_tests:
	@$(foreach arch,$(WIDTHS),$(MAKE) --no-print-directory ARCH=$(arch) SANITIZE= layer_tests &&) true
	@$(if $(PLAIN),$(MAKE) --no-print-directory SANITIZE= $(PLAIN))
	@$(if $(NVCC),TEST_TIMEOUT=3600) SKIPPED="$(NO_CUDA)" TRAIN_GPT2=$(B)/train_gpt2 scripts/run_tests.sh $(PLAIN) $(TESTS) $(NARROW) $(B)/test_gpt2 \
	    $(if $(NVCC),scripts/check_cuda.sh)

test-long: $(patsubst %,$(B)/test/program/%_test,kill faults ranks) $(B)/train_gpt2 $(OF_MPI) ## run the long tests: 2000 kills, 200 of a rank, every fault of a disk, an hour of training
	@KILLS=2000 FAULTS=all TEST_TIMEOUT=7200 TRAIN_GPT2=$(B)/train_gpt2 scripts/run_tests.sh $(filter %_test,$^)
	@TRAIN_GPT2=$(B)/train_gpt2 scripts/soak.sh

bench: $(B)/bench ## time every layer and whole steps, compared with the machine's peak and PyTorch; ONLY=matmul for some rows
	@$< $(if $(PYTORCH),--pytorch) $(if $(ONLY),--only '$(ONLY)',--results dev/results)
	@$(if $(ONLY),,[ ! -e .venv/bin/python ] || .venv/bin/python scripts/plot_bench.py dev/results)

bench-pytorch: ## install PyTorch into .venv and run make bench with it
	@scripts/setup.sh pytorch
	@$(MAKE) --no-print-directory bench

train_gpt2: $(B)/train_gpt2 $(OF_MPI) ## build the program (the default); ARCH=x86-64-v3 (AVX2) or x86-64 builds for other CPUs; MPI=0 leaves MPI out
	@ln -f $^ .
	@$(if $(OF_MPI),,rm -f train_gpt2_mpi.so $(B)/train_gpt2_mpi.so)

test_gpt2: $(B)/test_gpt2 ## build the test of the model against PyTorch's numbers
	@ln -f $< $@

train_gpt2cu: $(B)/train_gpt2cu $(OF_MPI) ## build the program for NVIDIA GPUs (needs CUDA 12 or 13); GPU_ARCH="sm_80 sm_90" chooses which; NCCL=0 leaves NCCL out
	@ln -f $^ .

tests: $(if $(CLANG),,$(B)/train_gpt2cu_emulated) $(B)/train_gpt2 $(OF_MPI) $(B)/test_gpt2 $(TESTS)
ladders: $(LADDERS)
objects: $(IO) $(LAYERS)
layer_tests: $(LAYER_TESTS)

format: ## bring the sources into the project's format
	clang-format -i $(SOURCES)

# Each version of clang-format breaks some lines differently.
check-format:
	@if clang-format --version | grep -q 'version 14\.'; then clang-format --dry-run -Werror $(SOURCES); else \
	    clang-format --version; echo 'format: skipped, since the sources have the format of clang-format 14'; \
	    echo '0 passed, 0 failed, 1 skipped'; fi

check-cuda: ## compile the CUDA kernels for NVIDIA GPUs (needs nvcc), and test them on one if there is one
	@scripts/check_cuda.sh

fuzz: $(FUZZ)/readers ## fuzz the readers of files with libFuzzer (needs clang++): FUZZ_RUNS=1000000, TARGET=safetensors, FAST=1 (dev/fuzz/README.md)
	@FAST=$(FAST) FUZZER=$< scripts/fuzz.sh

mutants: tests ## put faults into the sources, one at a time, and list those that no test notices: MUTANTS="--each 2 layers/gelu_cpu.h" for a few
	@scripts/mutate.py $(MUTANTS)

check-threads: ## run the program under ThreadSanitizer (needs LLVM's OpenMP, libomp-dev)
	@$(MAKE) --no-print-directory SANITIZE=thread B=build/$(ARCH)-thread build/$(ARCH)-thread/train_gpt2
	@TRAIN_GPT2=build/$(ARCH)-thread/train_gpt2 scripts/check_threads.sh

PORTABLE_TESTS := $(patsubst %,$(B)/test/%_test,io/checkpoint io/text_cache program/refusals)
check-portable: ## build device/platform.h's fallbacks for other systems than Linux, and run the tests that use them
	@$(MAKE) --no-print-directory $(B)/train_gpt2 $(PORTABLE_TESTS)
	@$(MAKE) --no-print-directory PORTABLE=1 CXXFLAGS=-O1 portable_tests

# The tests that use the fallbacks: memory, checkpoints, file times, mapped files, options.
portable_tests: $(B)/train_gpt2 $(PORTABLE_TESTS)
	@TRAIN_GPT2=$< scripts/run_tests.sh $(filter %_test,$^)

check-gpu: ## all checks on a machine with an NVIDIA GPU: build, test, sanitize, measure into dev/results
	@scripts/gpu_check.sh

clean: ## remove what was built; data/ and out/ stay
	rm -rf build dev/build train_gpt2 train_gpt2_mpi.so train_gpt2cu test_gpt2

help: ## this list
	@awk -F': [^#]*## |:.*## ' '/^[a-z_0-9-]*:[^#]*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

# Files that take little time at run time are optimized less: GCC's -Og compiles a third faster than -O1, as fast as -O0.
COLD := $(filter-out %/pair_embedding.o,$(RUN)) $(COMMAND_LINE) $(B)/train_gpt2.o $(patsubst %,$(B)/io/%.o,model/checkpoint model/checkpoint_reading model/gguf model/hugging_face \
    file/json file/line_file data/data_files text/tokenizer_hugging_face) \
    $(patsubst %,$(B)/program/%.o,commands exit_status interactive time_plan training_run)
OPT  :=
$(COLD): OPT := -Og
$(B)/dev/test/%.o $(B)/dev/fuzz/%.o: OPT := -O0
# These compute so much that -O0 would cost more time than it saves.
OPTIMIZED := $(B)/test_gpt2.o \
    $(patsubst %,$(B)/dev/test/%_test.o,io/hostile_files dev/layernorm_file device/matmul_bf16 model/model model/mutation io/text_cache io/tokenizer)
$(OPTIMIZED): OPT := $(if $(SANITIZE),,-O1)
# Tests share precompiled headers, with GCC: a common.h has what most files of its folder include, which takes up to half of
# the time that one takes to compile. ccache would not keep what is compiled with them. The arguments: a folder, objects, and
# the options of both.
CCACHE := $(findstring ccache,$(CXX) $(realpath $(shell command -v $(firstword $(CXX)))))
PRECOMPILED := $(if $(CLANG)$(CCACHE)$(PORTABLE),,yes)
define with_common
$2: OPT := $3 $(if $(PRECOMPILED),-include $(B)/$1/common.h)
$2: | $(if $(PRECOMPILED),$(B)/$1/common.h.gch)
$(B)/$1/common.h.gch: OPT := $3
endef
OF_LAYERS := $(LAYER_TESTS:$(B)/%=$(B)/dev/%.o)
FIXTURE := $(B)/dev/test/program/program.o
$(eval $(call with_common,dev/test,$(FIXTURE) $(filter-out $(OPTIMIZED) $(OF_LAYERS) $(B)/dev/test/cuda/%,$(TESTS:$(B)/%=$(B)/dev/%.o)),-O0))
# For narrower vectors, whose code is otherwise the same, -Og saves more than the tests then take longer.
$(eval $(call with_common,dev/test/layers,$(OF_LAYERS),$(if $(filter native,$(ARCH)),,-Og)))
# The emulator replaces NVIDIA's headers, and the project's header of PTX instructions.
SHADOW := -iquote dev/emulator/include -Idev/emulator/include
$(EMULATOR): OPT := -O2 $(SHADOW)
# The emulator's hooks, which are called before each access, take most of the time; -g1 gives the lines for reports.
# Section anchors, GCC's way on ARM, would move shared variables away from the red zones declared before them.
EMULATED := $(SHADOW) $(if $(CLANG),,-fno-section-anchors) $(if $(SANITIZE),,-g1 -fsanitize=thread)
OF_KERNELS := $(if $(SANITIZE),-O0,-O1) $(EMULATED)
$(B)/dev/test/cuda/%.o $(B)/dev/%_cuda/ladder.o: OPT := $(OF_KERNELS)
# broken_layernorm_test changes what the headers of CUDA say.
$(eval $(call with_common,dev/test/cuda,$(patsubst $(B)/%,$(B)/dev/%.o,$(filter-out %/broken_layernorm_test %/model_test,$(filter \
    $(B)/test/cuda/%,$(TESTS)))),$(OF_KERNELS)))
# These are large, and run little.
$(B)/dev/test/cuda/model_test.o $(B)/train_gpt2.cu.o: OPT := $(if $(SANITIZE),-O0,-Og) $(EMULATED)

# V=1 shows the commands in full.
$(B)/%.o: %.cpp
	@mkdir -p $(@D)
	@$(if $(V),,echo "compiling $< ($(ARCH)$(if $(SANITIZE), $(SANITIZE)))")
	$(Q)$(CXX) $(FLAGS) $(OPT) $(MARCH) -c $< -o $@

$(B)/%.h.gch: %.h
	@mkdir -p $(@D)
	@$(if $(V),,echo "compiling $< ($(ARCH)$(if $(SANITIZE), $(SANITIZE)))")
	$(Q)$(CXX) $(FLAGS) $(OPT) $(MARCH) -x c++-header $< -o $@

# The version that --version prints is compiled anew after each commit.
$(B)/program/version.o: $(wildcard .git/logs/HEAD)
$(B)/program/version.o: OPT := -O1 -D'VERSION="$(shell git describe --always --tags --dirty 2>/dev/null)"'

# The fallbacks of PORTABLE=1 are in one header. Objects without it are those of the other build, which check-portable makes.
ifdef PORTABLE
OTHER := $(B:%-portable=%)
SAME  := $(shell grep -rL --include='*.d' device/platform.h $(patsubst %,$(OTHER)/%,io layers device program dev/test) 2>/dev/null)
SAME  := $(SAME:$(OTHER)/%.d=$(B)/%.o)
$(SAME): $(B)/%.o: $(OTHER)/%.o
	@mkdir -p $(@D)
	$(Q)cp -p $< $@
endif

# CLI11 reads nothing but the words of the command line. It is compiled once, without sanitizers, which would take another
# 15 CPU s for each. The object is linked last: of the standard library's templates that are in others too, theirs are used.
UNSANITIZED := $(if $(SANITIZE),build/$(ARCH)$(KIND),$(B))/program/command_line.o
ifdef SANITIZE
$(UNSANITIZED): program/command_line.cpp program/command_line.h
	@$(MAKE) --no-print-directory SANITIZE= B=build/$(ARCH)$(KIND) $@
endif
$(filter-out $(UNSANITIZED),$(COMMAND_LINE)) $(FUZZ)/program/command_line.o: $(UNSANITIZED)
	@mkdir -p $(@D)
	$(Q)cp -p $< $@

# So are the other tests of io/ and program/, and the fuzzers' targets, for 250 CPU s: what they test has its own objects,
# which are linked before them. Tests of layers and models are compiled with the sanitizers, as the kernels are in headers.
ifdef SANITIZE
OF_TESTS := $(patsubst $(B)/test/%,dev/test/%.o,$(filter $(B)/test/io/% $(B)/test/program/%,$(TESTS))) $(FIXTURE:$(B)/%=%) \
    $(FUZZ_TARGETS:%.cpp=%.o)
.PHONY: unsanitized_tests
unsanitized_tests:
	@$(MAKE) -s --no-print-directory SANITIZE= B=build/$(ARCH)$(KIND) $(OF_TESTS:%=build/$(ARCH)$(KIND)/%)
$(OF_TESTS:%=build/$(ARCH)$(KIND)/%): unsanitized_tests ;
$(OF_TESTS:%=$(B)/%): $(B)/%: build/$(ARCH)$(KIND)/%
	@mkdir -p $(@D)
	$(Q)cp -p $< $@
endif

# The start-up check must itself run on any CPU.
ifneq ($(filter x86_64%,$(shell $(CXX) -dumpmachine)),)
$(B)/device/cpu/check.o: override ARCH := x86-64
endif

$(B)/train_gpt2: $(PROGRAM) $(COMMAND_LINE)
$(B)/train_gpt2: LDLIBS := $(OWN_OPENMP) $(LDLIBS) $(OF_PROGRAM)
$(B)/train_gpt2 $(B)/test_gpt2: $(B)/%: $(B)/%.o $(IO) $(LAYERS)
	$(Q)$(CXX) $(FLAGS) $^ $(LDLIBS) -o $@

# Both names of the compiler are those of Open MPI's and of MPICH's wrapper for it. Its headers' warnings are not ours.
$(B)/train_gpt2_mpi.so: device/parallel/mpi.cpp
	@mkdir -p $(@D)
	@$(if $(V),,echo "compiling $< ($(ARCH))")
	$(Q)OMPI_CXX="$(CXX)" MPICH_CXX="$(CXX)" $(MPICXX) $(FLAGS) -fPIC -shared $(MARCH) \
	    -MF $@.d -Wno-cast-function-type $< -o $@

$(B)/callgrind_step: $(B)/dev/callgrind_step.o $(LAYERS)
	$(Q)$(CXX) $(FLAGS) $^ -o $@

$(B)/bench: $(patsubst %.cpp,$(B)/%.o,$(wildcard dev/bench*.cpp)) $(LAYERS)
	$(Q)$(CXX) $(FLAGS) $^ $(OWN_OPENMP) -Wl,--wrap=GOMP_parallel -o $@

# Trains the same small GPT with its norm before, after or nowhere.
$(B)/norm_experiment: $(B)/dev/norm_experiment/experiment.o $(LAYERS)
	$(Q)$(CXX) $(FLAGS) $^ -o $@

# LayerNorm and RMSNorm (dev/layernorm/README.md). The example and an exercise need a compiler only.
$(addprefix $(B)/layernorm_,example faulty): $(B)/layernorm_%: $(B)/dev/layernorm/%.o
	$(Q)$(CXX) $(FLAGS) $^ -o $@
# Measurements, and a comparison with PyTorch's numbers, which are in a file.
$(B)/layernorm_measure: $(B)/dev/layernorm/measure.o $(LAYERS)
	$(Q)$(CXX) $(FLAGS) $^ -o $@
$(B)/layernorm_check: $(B)/dev/layernorm/check.o $(IO) $(LAYERS)
	$(Q)$(CXX) $(FLAGS) $^ $(LDLIBS) -o $@

# The same program with the model on a GPU: for this machine's GPU, otherwise for any from sm_80 on (later ones by PTX);
# and in the emulator, for its tests.
TOOLKIT  := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
GPU_ARCH ?= $(if $(wildcard /dev/nvidiactl),native,sm_80 sm_90)
GENCODE   = $(if $(filter native,$(GPU_ARCH)),-arch=native,$(foreach a,$(GPU_ARCH:sm_%=%),-gencode arch=compute_$a,code=sm_$a) \
            -gencode arch=$(LAST_PTX),code=$(LAST_PTX))
LAST_PTX  = $(lastword $(GPU_ARCH:sm_%=compute_%))
# USE_CUDNN=1 adds a rung of cuDNN 9 to the attention_cuda ladder, for comparison.
CUDNN_PATH          ?= /usr
CUDNN_FRONTEND_PATH ?= $(CUDNN_PATH)
ifdef USE_CUDNN
CUDNN_HEADERS := $(CUDNN_PATH)/include/cudnn.h $(CUDNN_FRONTEND_PATH)/include/cudnn_frontend.h
$(foreach header,$(CUDNN_HEADERS),$(if $(wildcard $(header)),,$(error USE_CUDNN=1: found no $(header): \
    CUDNN_PATH and CUDNN_FRONTEND_PATH name the folders that hold include/ of cuDNN 9 and of cudnn-frontend)))
CUDNN := $(addprefix -isystem ,$(filter-out /usr/include,$(patsubst %/,%,$(dir $(CUDNN_HEADERS)))))
CUDNN_LIBRARY := -L$(CUDNN_PATH)/lib -Xlinker -rpath=$(CUDNN_PATH)/lib -l:libcudnn.so.9 -lnvrtc
endif
ifneq ($(filter train_gpt2cu,$(MAKECMDGOALS)),)
$(if $(TOOLKIT),,$(error make train_gpt2cu: found no nvcc, expected NVIDIA's CUDA Toolkit 12 or 13 \
    (developer.nvidia.com/cuda-downloads); make train_gpt2 is for the CPU))
endif
$(B)/train_gpt2cu: train_gpt2.cu $(B)/train_gpt2.o $(OF_CUDA) $(IO) $(LAYERS) $(COMMAND_LINE)
	@echo "compiling $< ($(GPU_ARCH))"
	$(Q)$(TOOLKIT) -std=c++20 -O3 $(GENCODE) -t 2 -I. -MMD -MP -MF $@.d $(if $(WERROR),-Werror all-warnings) -diag-suppress 1675 \
	    $(if $(filter 0,$(NCCL)),-DNO_NCCL) -Xcompiler -fopenmp,-Wall,-Wextra,-march=$(ARCH) $< $(filter %.o,$^) $(LIBGOMP) $(LDLIBS) $(OF_PROGRAM) -lcublasLt -o $@

$(B)/train_gpt2.cu.o: train_gpt2.cu
	@mkdir -p $(@D)
	@echo "compiling $< for the emulator"
	$(Q)$(CXX) $(FLAGS) $(OPT) -march=$(ARCH) -x c++ -c $< -o $@
$(B)/train_gpt2cu_emulated: $(B)/train_gpt2.cu.o $(B)/train_gpt2.o $(OF_CUDA) $(EMULATOR) $(IO) $(LAYERS) $(COMMAND_LINE)
	$(Q)$(CXX) $(FLAGS) $^ $(OWN_OPENMP) $(LDLIBS) $(OF_PROGRAM) -o $@

# CUDA rungs: compiled by nvcc if there are nvcc and a GPU, otherwise for the emulator, as the tests below.
NVCC := $(if $(SANITIZE),,$(and $(wildcard /dev/nvidiactl),$(shell command -v nvcc)))
ifneq ($(NVCC),)
$(B)/dev/%_cuda/ladder.o: dev/%_cuda/ladder.cpp
	@mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++20 -O3 -arch=native -I. -MMD -MP -diag-suppress 1675 $(if $(USE_CUDNN),-DCUDNN_RUNG $(CUDNN)) \
	    -Xcompiler -fopenmp -x cu -c $< -o $@

$(B)/ladder/%_cuda: $(B)/dev/%_cuda/ladder.o $(B)/dev/ladder.o $(LAYERS)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -Xcompiler -fopenmp $^ -lcublasLt $(CUDNN_LIBRARY) -o $@
else
$(B)/ladder/%_cuda: $(B)/dev/%_cuda/ladder.o $(B)/dev/ladder.o $(EMULATOR) $(LAYERS)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(FLAGS) $^ -o $@
endif

$(B)/ladder/%: $(B)/dev/%/ladder.o $(B)/dev/ladder.o $(LAYERS)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(FLAGS) $^ -o $@

$(B)/test/dev/ladder_test: | $(LADDERS)
$(B)/test/dev/tools_test: | $(addprefix $(B)/,layernorm_example layernorm_faulty layernorm_measure norm_experiment test_gpt2)
$(B)/test/dev/backward_checks_test: | $(B)/layernorm_faulty

$(B)/test/program/faults_test $(B)/test/program/ranks_test: | $(B)/test/program/fault_shim.so
$(B)/test/program/fault_shim.so: dev/test/program/fault_shim.cpp
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++20 -O1 -Wall -Wextra $(if $(WERROR),-Werror) -fPIC -shared $< -ldl -o $@

$(LAYER_TESTS): $(B)/test/%: $(B)/dev/test/%.o $(LAYERS)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(FLAGS) $^ -lgtest_main -lgtest -o $@

# The fuzzed readers, with files in memory (dev/fuzz/memory_files.h replaces io/file/file.cpp): for libFuzzer, and as a test.
READERS  := $(patsubst $(B)/%.o,%.cpp,$(filter-out %/io/file/file.o,$(IO)) $(RUN)) $(FUZZ_TARGETS)
ifdef FAST  # several times the executions: functions are counted, not branches, and only what costs little is checked
FUZZED   := -O2 -DGUARD_PAGES -fsanitize=undefined -fsanitize-trap=undefined -fno-sanitize=alignment,null,object-size,vptr
COVERED  := -fsanitize-coverage=func,inline-8bit-counters,pc-table
else
FUZZ_OPT ?= -O1
FUZZED   := $(FUZZ_OPT) -fsanitize=address,undefined
COVERED  := -fsanitize=fuzzer-no-link
endif
FUZZING   = clang++ -std=c++20 -g1 -w -I. -MMD -MP -march=$(ARCH) -fno-omit-frame-pointer $(FUZZED) $(COVERED) \
            -fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS -idirafter $(shell $(CXX) -print-file-name=include) \
            -D'__malloc__(...)=__malloc__'  # GCC's omp.h gives this attribute arguments, which clang does not know
$(FUZZ)/%.o: %.cpp $(FUZZ)/common.pch
	@mkdir -p $(@D)
	@echo "compiling $< (clang++$(if $(FAST), FAST))"
	$(Q)$(FUZZING) -include-pch $(FUZZ)/common.pch -c $< -o $@

$(FUZZ)/common.pch: dev/fuzz/common.h
	@mkdir -p $(@D)
	@echo "compiling $< (clang++$(if $(FAST), FAST))"
	$(Q)$(FUZZING) -fpch-instantiate-templates -x c++-header $< -o $@

$(FUZZ)/readers: $(READERS:%.cpp=$(FUZZ)/%.o) $(FUZZ)/dev/fuzz/libfuzzer.o $(FUZZ)/program/command_line.o
	$(Q)clang++ -fsanitize=fuzzer $(FUZZED) $^ $(LDLIBS) -lgomp -o $@

$(B)/test/io/fuzz_replay_test: $(READERS:%.cpp=$(B)/%.o) $(COMMAND_LINE) $(B)/dev/test/io/fuzz_replay_test.o
	@mkdir -p $(@D)
	$(Q)$(CXX) $(FLAGS) $^ -lgtest_main -lgtest $(LDLIBS) -o $@

# CUDA kernels in the emulator, whose hooks replace ThreadSanitizer's (dev/emulator/access.cpp).
$(B)/test/cuda/%: $(B)/dev/test/cuda/%.o $(EMULATOR) $(LAYERS)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(FLAGS) $^ -lgtest_main -lgtest $(LDLIBS) -o $@
$(B)/test/cuda/model_test: $(IO)

# The fixture, which starts the program for its tests.
$(filter $(B)/test/program/%,$(TESTS)): $(FIXTURE)

# The other tests. This rule is last, because make 3.81 takes the first pattern that fits.
$(B)/test/%: $(RUN) $(IO) $(LAYERS) $(COMMAND_LINE) $(B)/dev/test/%.o
	@mkdir -p $(@D)
	$(Q)$(CXX) $(FLAGS) $^ -lgtest_main -lgtest $(LDLIBS) -o $@

-include $(shell find $(B) -name '*.d' 2>/dev/null)
