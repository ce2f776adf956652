// Compares the emulator's cuBLASLt with NVIDIA's documentation: column-major matrices, epilogues, and the calls that it
// refuses or reports.
#include "dev/emulator/cublaslt_on_cpu.h"

#include "dev/test/cuda/cuda_check.h"
#include "layers/gelu.h"

namespace {

// D (m,n) = op(A) (m,k) · op(B) (k,n) and more; each matrix has unused rows between its columns.
struct Call {
    cublasLtHandle_t handle = nullptr;
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr, d = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;

    Call(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, int64_t lda, int64_t ldb, int64_t ldc,
         int64_t ldd, cudaDataType_t in = CUDA_R_32F, cudaDataType_t out = CUDA_R_32F,
         cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
        const auto u = [](int64_t x) { return static_cast<uint64_t>(x); };
        cublasLtCreate(&handle);
        cublasLtMatmulDescCreate(&desc, compute, CUDA_R_32F);
        cublasLtMatrixLayoutCreate(&a, in, u(transpose_a ? k : m), u(transpose_a ? m : k), lda);
        cublasLtMatrixLayoutCreate(&b, in, u(transpose_b ? n : k), u(transpose_b ? k : n), ldb);
        cublasLtMatrixLayoutCreate(&c, out, u(m), u(n), ldc);
        cublasLtMatrixLayoutCreate(&d, out, u(m), u(n), ldd);
        set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        cublasLtMatmulPreferenceCreate(&preference);
        align(4);
    }
    Call(const Call&) = delete;
    ~Call() {
        cublasLtMatmulPreferenceDestroy(preference);
        for (cublasLtMatrixLayout_t layout : {a, b, c, d}) cublasLtMatrixLayoutDestroy(layout);
        cublasLtMatmulDescDestroy(desc);
        cublasLtDestroy(handle);
    }
    template <class T>
    cublasStatus_t set(cublasLtMatmulDescAttributes_t attribute, T value) {
        return cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value);
    }
    void align(uint32_t bytes) {
        for (const auto attribute :
             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            cublasLtMatmulPreferenceSetAttribute(preference, attribute, &bytes, sizeof bytes);
    }
    cublasStatus_t choose() {
        return cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, 1, &result, &found);
    }
    cublasStatus_t run(float alpha, const void* A, const void* B, float beta, const void* C, void* D) {
        return cublasLtMatmul(handle, desc, &alpha, A, a, B, b, &beta, C, c, D, d, &result.algo, nullptr, 0, nullptr);
    }
};

constexpr int64_t m = 19, n = 7, k = 5, lda = 23, ldb = 21, ldc = 25, ldd = 20, aux_ld = 24;

struct Matrices {
    Cuda dev{};
    CudaTensor<float> A{dev, uniform(lda * 19)}, B{dev, uniform(ldb * 7)}, C{dev, uniform(ldc*n)};
    CudaTensor<float> D{dev, uniform(ldd*n)}, bias{dev, uniform(m)}, aux{dev, uniform(aux_ld*n)};
    CudaTensor<float> sums{dev, nans(n)};
};

TEST(CublasLtOnCpu, ColumnMajorMatmulsWithEveryTransposeAndEpilogue) {
    for (const bool ta : {false, true})
        for (const bool tb : {false, true})
            for (const cublasLtEpilogue_t epilogue :
                 {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                  CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB})
                for (const float beta : {0.0f, -0.75f}) {
                    Matrices t;
                    Call call(m, n, k, ta, tb, lda, ldb, ldc, ldd);
                    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue));
                    const bool gradient = epilogue == CUBLASLT_EPILOGUE_BGRADB;
                    call.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (gradient ? t.sums : t.bias).on(t.dev));
                    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, t.aux.on(t.dev));
                    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{aux_ld});
                    ASSERT_EQ(call.choose(), CUBLAS_STATUS_SUCCESS);
                    ASSERT_EQ(call.run(1.5f, t.A.on(t.dev), t.B.on(t.dev), beta, t.C.on(t.dev), t.D.on(t.dev)),
                              CUBLAS_STATUS_SUCCESS);
                    // element (row, column) of a matrix at row + column * ld, as the documentation has it
                    for (int64_t j = 0; j < n; ++j) {
                        double column = 0;
                        for (int64_t i = 0; i < m; ++i) {
                            double x = 0;
                            for (int64_t p = 0; p < k; ++p)
                                x += t.A.exact[ta ? p + i * lda : i + p * lda] *
                                     t.B.exact[tb ? j + p * ldb : p + j * ldb];
                            x = 1.5 * x + static_cast<double>(beta) * t.C.exact[i + j * ldc];
                            if (epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
                                x += t.bias.exact[i];
                            if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
                                t.aux.exact[i + j * aux_ld] = x, x = gelu(x);
                            if (epilogue == CUBLASLT_EPILOGUE_DGELU) x *= gelu_derivative(t.aux.exact[i + j * aux_ld]);
                            t.D.exact[i + j * ldd] = x;
                        }
                        for (int64_t p = 0; p < k; ++p) column += t.B.exact[tb ? j + p * ldb : p + j * ldb];
                        t.sums.exact[j] = column;
                    }
                    // Nothing is written between the columns. The tolerance is for 8 terms of size 1.5, 16 roundings.
                    const auto allowed = [](int64_t) { return 16 * 8 * 1.5 * roundoff; };
                    t.D.expect_close("D", allowed), t.aux.expect_close("aux", allowed);
                    if (gradient) t.sums.expect_close("sums", allowed);
                }
}

// An algorithm belongs to a problem and to alignments; memory is checked when the matmul runs.
template <class Test>
void expect_error(const std::string& message, const Test& test) {
    try {
        test();
        ADD_FAILURE() << "no error: " << message;
    } catch (const emulator::Error& e) {
        EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
}

TEST(CublasLtOnCpu, ReportsWhatAGpuWouldNotNotice) {
    Matrices t;
    Call call(m, n, k, false, false, lda, ldb, ldc, ldd), other(m, n, k, false, false, lda, ldb, ldc, ldd + 1);
    ASSERT_EQ(call.choose(), CUBLAS_STATUS_SUCCESS);
    float *const A = t.A.on(t.dev), *const B = t.B.on(t.dev), *const C = t.C.on(t.dev), *const D = t.D.on(t.dev);
    std::vector<float> host(1000);
    expect_error("accesses A, which is no device memory", [&] { call.run(1, host.data(), B, 0, nullptr, D); });
    expect_error("accesses B, out of bounds", [&] { call.run(1, A, B + 8 * 7, 0, nullptr, D); });
    expect_error("accesses C, out of bounds", [&] { call.run(1, A, B, 1, C + 10, D); });
    expect_error("accesses D, out of bounds", [&] { call.run(1, A, B, 0, nullptr, D - 1); });
    expect_error("writes D where it reads or writes A", [&] { call.run(1, D, B, 0, nullptr, D); });
    const CudaBuffer<float> fresh = cuda_allocate<float>(lda * k);
    expect_error("reads element (0,0) of A, which nothing has written",
                 [&] { call.run(1, fresh.get(), B, 0, nullptr, D); });
    other.result = call.result;
    expect_error("chosen for another problem", [&] { other.run(1, A, B, 0, nullptr, D); });
    call.align(16), call.choose();
    expect_error("B less aligned than to 16 bytes", [&] { call.run(1, A, B + 1, 0, nullptr, D); });
    EXPECT_EQ(call.run(1, A, B, 1, C, D), CUBLAS_STATUS_SUCCESS);
}

TEST(CublasLtOnCpu, RefusesWhatCublasLtDoes) {
    Matrices t;
    Call call(m, n, k, false, false, lda, ldb, ldc, ldd);
    float *const A = t.A.on(t.dev), *const B = t.B.on(t.dev), *const D = t.D.on(t.dev);
    call.choose();
    EXPECT_EQ(call.run(1, nullptr, B, 0, nullptr, D), CUBLAS_STATUS_INVALID_VALUE);
    EXPECT_EQ(call.run(1, A, B, 1, nullptr, D), CUBLAS_STATUS_INVALID_VALUE);
    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_BIAS});
    EXPECT_EQ(call.run(1, A, B, 0, nullptr, D), CUBLAS_STATUS_INVALID_VALUE);  // no bias
    EXPECT_EQ(call.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int32_t{24}), CUBLAS_STATUS_INVALID_VALUE);
    call.set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_DGELU});
    for (const int64_t ld : {16, 20}) {  // less than m; no multiple of 8
        call.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld);
        EXPECT_EQ(call.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
        EXPECT_EQ(call.found, 0);
    }
    Call mixed(m, n, k, false, false, lda, ldb, ldc, ldd, CUDA_R_32F, CUDA_R_16BF);
    EXPECT_EQ(mixed.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
    Call narrow(m, n, k, false, false, m - 1, ldb, ldc, ldd);
    EXPECT_EQ(narrow.choose(), CUBLAS_STATUS_INVALID_VALUE);
    Call tf32(m, n, k, false, false, lda, ldb, ldc, ldd, CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F_FAST_TF32);
    EXPECT_EQ(tf32.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
}

}  // namespace
