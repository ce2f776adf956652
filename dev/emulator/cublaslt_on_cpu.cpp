#include "dev/emulator/cublaslt_on_cpu.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "dev/emulator/access.h"
#include "dev/emulator/memory.h"
#include "device/bf16.h"
#include "layers/gelu.h"

struct cublasLtContext {};
struct EmulatedMatmul {
    cublasComputeType_t compute;
    int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
};
struct EmulatedLayout {
    cudaDataType_t type;
    int64_t rows, columns, ld;
};
struct EmulatedPreference {
    uint64_t workspace = 0;
    uint32_t reduction_schemes = 7;
    uint32_t alignment[4] = {256, 256, 256, 256};  // A, B, C, D
};

namespace {

size_t size_of(cudaDataType_t type) { return type == CUDA_R_16BF ? 2 : 4; }

// An algorithm, which may be used only for the problem, workspace and alignment that it was chosen for.
struct Algorithm {
    uint64_t problem;  // a hash
    uint64_t workspace;
    uint32_t alignment[6];  // A, B, C, D, bias, auxiliary matrix
};

struct Operand {
    const char* name;
    char* data;
    EmulatedLayout layout;
    float at(int64_t i, int64_t j) const {
        constexpr uint32_t poison = emulator::poison_pattern * 0x10001;
        const char* const p = data + (i + j * layout.ld) * static_cast<int64_t>(size_of(layout.type));
        uint32_t bits = *reinterpret_cast<const uint16_t*>(p) * 0x10001u;
        if (layout.type == CUDA_R_32F) std::memcpy(&bits, p, 4);
        if (bits == poison)
            throw emulator::Error("cublasLtMatmul reads element (" + std::to_string(i) + "," + std::to_string(j) +
                                  ") of " + name + ", which nothing has written");
        return layout.type == CUDA_R_32F ? std::bit_cast<float>(bits) : float_from_bf16(static_cast<uint16_t>(bits));
    }
    void set(int64_t i, int64_t j, float x) const {
        char* const p = data + (i + j * layout.ld) * static_cast<int64_t>(size_of(layout.type));
        if (layout.type == CUDA_R_32F)
            std::memcpy(p, &x, 4);
        else
            *reinterpret_cast<uint16_t*>(p) = bf16_from_float(x);
    }
    const char* end() const {
        return data + ((layout.columns - 1) * layout.ld + layout.rows) * static_cast<int64_t>(size_of(layout.type));
    }
};

// A complete copy of a call, as it may run later than it was made.
struct Problem {
    int64_t m, n, k;
    float alpha, beta;
    EmulatedMatmul desc;
    Operand a, b, c, d, bias, aux;
};

bool has_aux(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DGELU;
}
bool has_bias(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

// FNV-1a
void hash(uint64_t& h, int64_t x) { h = (h ^ static_cast<uint64_t>(x)) * 0x100000001b3; }
uint64_t problem_hash(const EmulatedMatmul& desc, const EmulatedLayout* const (&layouts)[4]) {
    uint64_t h = 0xcbf29ce484222325;
    for (const int64_t x : {int64_t{desc.compute}, int64_t{desc.transpose_a}, int64_t{desc.transpose_b},
                            int64_t{desc.epilogue}, desc.aux_ld})
        hash(h, x);
    for (const EmulatedLayout* l : layouts)
        for (const int64_t x : {int64_t{l->type}, l->rows, l->columns, l->ld}) hash(h, x);
    return h;
}

// Checks that types are in the documentation's table for CUBLAS_COMPUTE_32F, and that shapes fit each other.
cublasStatus_t check(const EmulatedMatmul& desc, const EmulatedLayout& a, const EmulatedLayout& b,
                     const EmulatedLayout& c, const EmulatedLayout& d) {
    for (const EmulatedLayout* l : {&a, &b, &c, &d})
        if (l->rows <= 0 || l->columns <= 0 || l->ld < l->rows) return CUBLAS_STATUS_INVALID_VALUE;
    const int64_t k = desc.transpose_a ? a.rows : a.columns;
    if ((desc.transpose_a ? a.columns : a.rows) != d.rows || (desc.transpose_b ? b.columns : b.rows) != k ||
        (desc.transpose_b ? b.rows : b.columns) != d.columns || c.rows != d.rows || c.columns != d.columns)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (a.type != b.type || c.type != d.type || (d.type != a.type && d.type != CUDA_R_32F) ||
        (desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    // the documentation: "must be divisible by 8 and be no less than the number of rows in the output matrix"
    if (has_aux(desc.epilogue) && (desc.aux_ld % 8 || desc.aux_ld < d.rows)) return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

// Rounds to the 10 bits of fraction that tensor cores use of a float.
float tf32(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return std::isfinite(x) ? std::bit_cast<float>((bits + 0x1000) & ~0x1fffu) : x;
}

using Vector = float __attribute__((vector_size(32)));
constexpr int64_t tile_rows = 16, tile_columns = 4;  // in registers

// The panel of W rows of op(X) that begins at `first`: element (p, i) is op(X) at row i, column p, for p = 0 … k-1.
template <int64_t W>
void pack(float* panel, const Operand& x, bool transpose, bool to_tf32, int64_t first, int64_t rows, int64_t k) {
    for (int64_t p = 0; p < k; ++p)
        for (int64_t i = 0; i < W; ++i) {
            float value = 0;
            if (first + i < rows) value = transpose ? x.at(p, first + i) : x.at(first + i, p);
            panel[p * W + i] = to_tf32 ? tf32(value) : value;
        }
}

void finish(const Problem& q, const float* sums, int64_t i0, int64_t j0) {
    const uint32_t e = q.desc.epilogue;
    for (int64_t j = j0; j < std::min(j0 + tile_columns, q.n); ++j)
        for (int64_t i = i0; i < std::min(i0 + tile_rows, q.m); ++i) {
            float x = q.alpha * sums[(j - j0) * tile_rows + i - i0];
            if (q.beta != 0) x += q.beta * q.c.at(i, j);
            if (e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) x += q.bias.at(i, 0);
            if (e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) q.aux.set(i, j, x), x = gelu(x);
            if (e == CUBLASLT_EPILOGUE_DGELU) x *= gelu_derivative(q.aux.at(i, j));
            q.d.set(i, j, x);
        }
}

void written(const Operand& x) {
    for (int64_t j = 0; j < x.layout.columns; ++j)
        emulator::host_has_written(x.data + j * x.layout.ld * static_cast<int64_t>(size_of(x.layout.type)),
                                   static_cast<size_t>(x.layout.rows) * size_of(x.layout.type));
}

void run(const Problem& q) {
    const bool to_tf32 = q.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const uint32_t e = q.desc.epilogue;
    for (const Operand* x : {&q.a, &q.b, &q.c, &q.d, &q.bias, &q.aux}) {
        if (!x->data || (x == &q.c && q.beta == 0)) continue;
        const std::string fault =
            emulator::allocation_fault(x->data, static_cast<size_t>(x->end() - static_cast<const char*>(x->data)));
        if (!fault.empty()) throw emulator::Error(std::string("cublasLtMatmul accesses ") + x->name + ", " + fault);
        if (x != &q.c && x != &q.d && x->data < q.d.end() && q.d.data < x->end())
            throw emulator::Error(std::string("cublasLtMatmul writes D where it reads or writes ") + x->name);
    }
    const int64_t row_tiles = (q.m + tile_rows - 1) / tile_rows, column_tiles = (q.n + tile_columns - 1) / tile_columns;
    std::vector<float> a(static_cast<size_t>(row_tiles * tile_rows * q.k)),
        b(static_cast<size_t>(column_tiles * tile_columns * q.k));
    const auto in_parallel = [&](int64_t tasks, const auto& task) {
        std::map<int64_t, std::string> errors;
#pragma omp parallel for schedule(static)
        for (int64_t t = 0; t < tasks; ++t) {
            const emulator::Internal scope;
            try {
                task(t);
            } catch (const emulator::Error& problem) {
#pragma omp critical(matmul_error)
                errors[t] = problem.what();
            }
        }
        if (!errors.empty()) throw emulator::Error(errors.begin()->second);
    };
    in_parallel(row_tiles, [&](int64_t t) {
        pack<tile_rows>(&a[static_cast<size_t>(t * tile_rows * q.k)], q.a, q.desc.transpose_a, to_tf32, t * tile_rows,
                        q.m, q.k);
    });
    in_parallel(column_tiles, [&](int64_t t) {
        pack<tile_columns>(&b[static_cast<size_t>(t * tile_columns * q.k)], q.b, !q.desc.transpose_b, to_tf32,
                           t * tile_columns, q.n, q.k);
    });
    if (e == CUBLASLT_EPILOGUE_BGRADB)
        in_parallel(q.n, [&](int64_t j) {
            float sum = 0;
            const float* const panel = &b[static_cast<size_t>(j / tile_columns * tile_columns * q.k)];
            for (int64_t p = 0; p < q.k; ++p) sum += panel[p * tile_columns + j % tile_columns];
            q.bias.set(j, 0, sum);
        });
    in_parallel(column_tiles * row_tiles, [&](int64_t tile) {
        const int64_t row_tile = tile % row_tiles, column_tile = tile / row_tiles;
        const float *x = &a[static_cast<size_t>(row_tile * tile_rows * q.k)],
                    *y = &b[static_cast<size_t>(column_tile * tile_columns * q.k)];
        Vector sums[tile_columns][2] = {};
        for (int64_t p = 0; p < q.k; ++p, x += tile_rows, y += tile_columns) {
            Vector low, high;
            std::memcpy(&low, x, sizeof low), std::memcpy(&high, x + 8, sizeof high);
#pragma GCC unroll 4
            for (int j = 0; j < tile_columns; ++j) sums[j][0] += low * y[j], sums[j][1] += high * y[j];
        }
        finish(q, reinterpret_cast<const float*>(sums), row_tile * tile_rows, column_tile * tile_columns);
    });
    written(q.d);
    if (e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) written(q.aux);
    if (e == CUBLASLT_EPILOGUE_BGRADB) written(q.bias);
}

template <class T>
cublasStatus_t set(T& to, const void* value, size_t size) {
    if (!value || size != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}
template <class T, class... Arguments>
cublasStatus_t make(T** p, Arguments... arguments) {
    if (!p) return CUBLAS_STATUS_INVALID_VALUE;
    *p = new T{arguments...};
    return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t destroy(T* p) {
    delete p;
    return p ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return make(handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }
const char* cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS:
            return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED:
            return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_INVALID_VALUE:
            return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED:
            return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "an unknown status";
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    return make(desc, compute);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
    if (!desc) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA:
            return set(desc->transpose_a, value, size);
        case CUBLASLT_MATMUL_DESC_TRANSB:
            return set(desc->transpose_b, value, size);
        case CUBLASLT_MATMUL_DESC_EPILOGUE:
            return set(desc->epilogue, value, size);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
            return set(desc->bias, value, size);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
            return set(desc->aux, value, size);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
            return set(desc->aux_ld, value, size);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
    return make(layout, type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return make(preference); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t size) {
    if (!preference) return CUBLAS_STATUS_INVALID_VALUE;
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            return set(preference->workspace, value, size);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            return set(preference->reduction_schemes, value, size);
        default:
            return set(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, size);
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!desc || !A || !B || !C || !D || !preference || requested < 1 || !results || !found)
        return CUBLAS_STATUS_INVALID_VALUE;
    ++emulator::heuristics_asked;
    *found = 0;
    const cublasStatus_t status = check(*desc, *A, *B, *C, *D);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const uint32_t e = desc->epilogue;
    const auto misaligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 != 0; };
    if ((e != CUBLASLT_EPILOGUE_DEFAULT && (e & emulator::unsupported_epilogues)) ||
        (has_aux(e) && misaligned(desc->aux)) || (has_bias(e) && misaligned(desc->bias)) ||
        emulator::matmul_workspace > preference->workspace)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    Algorithm algorithm{problem_hash(*desc, {A, B, C, D}), emulator::matmul_workspace, {}};
    std::copy_n(preference->alignment, 4, algorithm.alignment);
    for (const auto& [i, p] : {std::pair{4, desc->bias}, std::pair{5, desc->aux}})
        algorithm.alignment[i] = 1u << std::min(4, std::countr_zero(reinterpret_cast<uintptr_t>(p)));
    results[0] = {};
    std::memcpy(&results[0].algo, &algorithm, sizeof algorithm);
    static_assert(sizeof algorithm <= sizeof results[0].algo);
    results[0].workspaceSize = emulator::matmul_workspace;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t layout_a, const void* B, cublasLtMatrixLayout_t layout_b,
                              const void* beta, const void* C, cublasLtMatrixLayout_t layout_c, void* D,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_size, cudaStream_t stream) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!desc || !alpha || !A || !layout_a || !B || !layout_b || !beta || !layout_c || !D || !layout_d || !algo)
        return CUBLAS_STATUS_INVALID_VALUE;
    const float scale = *static_cast<const float*>(alpha), scale_c = *static_cast<const float*>(beta);
    if ((!C && scale_c != 0) || (has_bias(desc->epilogue) && !desc->bias) || (has_aux(desc->epilogue) && !desc->aux) ||
        (C == D && (layout_c->ld != layout_d->ld)))
        return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t status = check(*desc, *layout_a, *layout_b, *layout_c, *layout_d);
    if (status != CUBLAS_STATUS_SUCCESS) return status;

    const unsigned refused = emulator::refused_epilogues | (scale_c != 0 ? emulator::refused_with_beta : 0);
    if (desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT && (desc->epilogue & refused)) return CUBLAS_STATUS_NOT_SUPPORTED;

    Algorithm algorithm;
    std::memcpy(&algorithm, algo, sizeof algorithm);
    if (algorithm.problem != problem_hash(*desc, {layout_a, layout_b, layout_c, layout_d}))
        throw emulator::Error("cublasLtMatmul with an algorithm that was chosen for another problem");
    const void* const data[] = {
        A, B, C, D, has_bias(desc->epilogue) ? desc->bias : nullptr, has_aux(desc->epilogue) ? desc->aux : nullptr};
    const char* const names[] = {"A", "B", "C", "D", "the bias", "the auxiliary matrix"};
    for (int i = 0; i < 6; ++i)
        if (reinterpret_cast<uintptr_t>(data[i]) % algorithm.alignment[i])
            throw emulator::Error(std::string("cublasLtMatmul with ") + names[i] + " less aligned than to " +
                                  std::to_string(algorithm.alignment[i]) + " bytes, which its algorithm is for");
    if (algorithm.workspace) {
        const std::string fault = emulator::allocation_fault(workspace, workspace_size);
        if (workspace_size < algorithm.workspace || !fault.empty())
            throw emulator::Error("cublasLtMatmul with a workspace that does not do for its algorithm " + fault);
    }

    const auto operand = [](const char* name, const void* p, const EmulatedLayout& layout) {
        return Operand{name, static_cast<char*>(const_cast<void*>(p)), layout};
    };
    const EmulatedLayout& d = *layout_d;
    const bool gradient = desc->epilogue == CUBLASLT_EPILOGUE_BGRADB;
    const int64_t bias_size = gradient ? d.columns : d.rows;
    const Problem problem{
        d.rows,
        d.columns,
        desc->transpose_a ? layout_a->rows : layout_a->columns,
        scale,
        scale_c,
        *desc,
        operand("A", A, *layout_a),
        operand("B", B, *layout_b),
        operand("C", C, *layout_c),
        operand("D", D, d),
        operand("the bias", has_bias(desc->epilogue) ? desc->bias : nullptr, {d.type, bias_size, 1, bias_size}),
        operand("the auxiliary matrix", has_aux(desc->epilogue) ? desc->aux : nullptr,
                {d.type, d.rows, d.columns, desc->aux_ld})};
    emulator::enqueue(stream, [problem] { run(problem); });
    return CUBLAS_STATUS_SUCCESS;
}
