// Matmuls by cuBLASLt with fused epilogues. Matrices here are row-major, but cuBLAS' are column-major. So cuBLAS sees
// the transposes of these matrices, and computes outᵀ = bᵀ · aᵀ.
#pragma once

#include "device/cuda/common.cuh"

#include <cublasLt.h>

#include <array>
#include <bit>
#include <map>

inline void cublas_check(cublasStatus_t s, const char* what,
                         std::source_location at = std::source_location::current()) {
    if (s != CUBLAS_STATUS_SUCCESS)
        throw std::runtime_error(std::string(what) + ": " + cublasLtGetStatusString(s) + ", " + at.file_name() + ":" +
                                 std::to_string(at.line()));
}

// out (M,N) = epilogue(alpha * a (M,K) · b (K,N) + beta * c (M,N)); out and c are of type Out, and c may be out.
template <class T, class Out>
struct Matmul {
    Out* out;
    const T *a, *b;
    int64_t M, N, K;
    bool a_transposed = false;  // memory holds aᵀ (K,M)
    bool b_transposed = false;  // memory holds bᵀ (N,K)
    float alpha = 1, beta = 0;
    const Out* c = nullptr;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const Out* bias = nullptr;  // (N) BIAS, GELU_AUX_BIAS
    Out* a_sums = nullptr;      // (M) = sums over k of a: BGRADB, the gradient of a bias
    const Out* aux = nullptr;   // (M,N) GELU's input: GELU_AUX_BIAS writes it, DGELU reads it
};

// The library's handle and workspace, and the algorithm of each kind of matmul that has been used.
struct CublasLt {
    struct Plan {
        cublasLtMatmulDesc_t matmul = nullptr;
        cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
        cublasLtMatmulAlgo_t algorithm;
        bool found = false;
        Plan() = default;
        Plan(const Plan&) = delete;
        ~Plan() {
            for (const cublasLtMatrixLayout_t layout : {a, b, c})
                if (layout) cublasLtMatrixLayoutDestroy(layout);
            if (matmul) cublasLtMatmulDescDestroy(matmul);
        }
    };
    // Everything that decides whether cuBLASLt supports a matmul, including what its heuristics are not given: alpha,
    // beta, and whether C is D. So the algorithm does not depend on which matmuls came before.
    using Key = std::array<int64_t, 18>;

    cublasLtHandle_t handle = nullptr;
    std::map<Key, Plan> plans;
    size_t workspace_size;
    CudaBuffer<char> workspace;

    // NVIDIA recommends 32 MiB on Hopper and after it, 4 MiB before it (cuBLAS, cublasSetWorkspace).
    CublasLt() {
        cublas_check(cublasLtCreate(&handle), "cublasLtCreate");
        workspace_size = size_t{device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 ? 32u : 4u} << 20;
    }
    CublasLt(const CublasLt&) = delete;
    ~CublasLt() {
        plans.clear();
        cublasLtDestroy(handle);
    }
};

template <class T>
constexpr cudaDataType_t cuda_type = std::is_same_v<T, bf16> ? CUDA_R_16BF : CUDA_R_32F;

// At most 16, the bytes of the widest access.
inline uint32_t alignment_of(const void* p) {
    return 1u << std::min(4, std::countr_zero(reinterpret_cast<uintptr_t>(p)));
}

// Makes the plan of a matmul from cuBLASLt's heuristics. Split-K is allowed only if a separate kernel adds the parts in
// fp32: no atomics, and no sums rounded to bf16. One algorithm, one stream and one workspace give the same bits in
// every run.
template <class T, class Out>
void choose_algorithm(Cuda& dev, CublasLt::Plan& plan, const Matmul<T, Out>& p, const uint32_t (&alignment)[4]) {
    CublasLt& lt = *dev.cublas;
    const auto layout = [](cublasLtMatrixLayout_t& l, cudaDataType_t type, int64_t rows, int64_t columns, int64_t ld) {
        cublas_check(
            cublasLtMatrixLayoutCreate(&l, type, static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), ld),
            "cublasLtMatrixLayoutCreate");
    };
    const auto attribute = [&](cublasLtMatmulDescAttributes_t name, auto value) {
        cublas_check(cublasLtMatmulDescSetAttribute(plan.matmul, name, &value, sizeof value),
                     "cublasLtMatmulDescSetAttribute");
    };
    const bool tf32 = dev.tf32 && std::is_same_v<T, float>;
    cublas_check(
        cublasLtMatmulDescCreate(&plan.matmul, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
    // cuBLAS' A is b
    attribute(CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    attribute(CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    attribute(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(p.epilogue));
    if (p.bias) attribute(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (p.a_sums) attribute(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.a_sums);
    if (p.aux) {
        attribute(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
        attribute(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.N);
    }
    if (p.b_transposed)
        layout(plan.a, cuda_type<T>, p.N, p.K, p.K);
    else
        layout(plan.a, cuda_type<T>, p.K, p.N, p.N);
    if (p.a_transposed)
        layout(plan.b, cuda_type<T>, p.K, p.M, p.M);
    else
        layout(plan.b, cuda_type<T>, p.M, p.K, p.K);
    layout(plan.c, cuda_type<Out>, p.M, p.N, p.N);

    cublasLtMatmulPreference_t preference;
    cublas_check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
        cublas_check(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value),
                     "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{lt.workspace_size});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment[0]);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment[1]);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment[2]);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment[3]);
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt.handle, plan.matmul, plan.a, plan.b, plan.c, plan.c,
                                                                 preference, 1, &result, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    plan.found = status == CUBLAS_STATUS_SUCCESS && count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    plan.algorithm = result.algo;
    // The first algorithm that needs a workspace allocates it, in a first pass that no graph records.
    if (plan.found && result.workspaceSize > 0 && !lt.workspace)
        lt.workspace = cuda_allocate<char>(static_cast<int64_t>(lt.workspace_size));
}

// Computes the matmul if cuBLASLt supports it. Returns whether it does.
template <class T, class Out>
bool try_matmul(Cuda& dev, const Matmul<T, Out>& p) {
    if (!dev.cublas) dev.cublas = std::make_shared<CublasLt>();
    CublasLt& lt = *dev.cublas;
    const Out* const c = p.c ? p.c : p.out;
    const void* const vector = p.a_sums ? p.a_sums : p.bias;
    const uint32_t alignment[4] = {alignment_of(p.b), alignment_of(p.a), alignment_of(c), alignment_of(p.out)};
    const CublasLt::Key key{p.M,
                            p.N,
                            p.K,
                            p.a_transposed,
                            p.b_transposed,
                            p.epilogue,
                            sizeof(T),
                            sizeof(Out),
                            dev.tf32,
                            alignment[0],
                            alignment[1],
                            alignment[2],
                            alignment[3],
                            alignment_of(vector),
                            alignment_of(p.aux),
                            std::bit_cast<int32_t>(p.alpha),
                            std::bit_cast<int32_t>(p.beta),
                            c == p.out};
    const auto [entry, is_new] = lt.plans.try_emplace(key);
    CublasLt::Plan& plan = entry->second;
    if (is_new) choose_algorithm(dev, plan, p, alignment);
    if (!plan.found) return false;
    if (vector)
        cublas_check(
            cublasLtMatmulDescSetAttribute(plan.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector),
            "cublasLtMatmulDescSetAttribute");
    if (p.aux)
        cublas_check(cublasLtMatmulDescSetAttribute(plan.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p.aux,
                                                    sizeof p.aux),
                     "cublasLtMatmulDescSetAttribute");
    const cublasStatus_t status =
        cublasLtMatmul(lt.handle, plan.matmul, &p.alpha, p.b, plan.a, p.a, plan.b, &p.beta, c, plan.c, p.out, plan.c,
                       &plan.algorithm, lt.workspace.get(), lt.workspace ? lt.workspace_size : 0, dev.stream);
    // A matmul may still be refused because of what the heuristics are not given.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED && p.epilogue != CUBLASLT_EPILOGUE_DEFAULT) return plan.found = false;
    cublas_check(status, "cublasLtMatmul");
    return true;
}

// Computes a matmul that cuBLASLt always supports: one without an epilogue.
template <class T, class Out>
void matmul(Cuda& dev, const Matmul<T, Out>& p) {
    if (!try_matmul(dev, p))
        throw std::runtime_error("cuBLASLt has no algorithm for the matmul of " + std::to_string(p.M) + " x " +
                                 std::to_string(p.K) + " and " + std::to_string(p.K) + " x " + std::to_string(p.N));
}
