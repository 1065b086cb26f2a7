// NOTE: cuBLASLt thinks in columns. A row-major C (M, N) is a column-major (N, M): C^T = W A^T with
// W transposed, its "m" being N.
#include "cuda/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/check.h"
#include "halfbyte/error.h"

namespace halfbyte {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ErrorKind::kResource, "cuBLASLt",
                fmt::format("{}: status {}", what, static_cast<int>(status)));
}

struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithms = nullptr;

  Library() {
    constexpr std::array names = {"libcublasLt.so.13", "libcublasLt.so.12",
                                  "/usr/local/cuda/lib64/libcublasLt.so.13",
                                  "/usr/local/cuda/lib64/libcublasLt.so.12"};
    void* library = nullptr;
    for (const char* name : names)
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      throw Error(ErrorKind::kUnsupported, "cuBLASLt",
                  "found neither libcublasLt.so.13 nor libcublasLt.so.12: install CUDA's cuBLAS or "
                  "name its folder in LD_LIBRARY_PATH");
    const auto load = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr)
        throw Error(ErrorKind::kUnsupported, "cuBLASLt", fmt::format("has no {}", name));
    };
    load(create, "cublasLtCreate");
    load(matmul, "cublasLtMatmul");
    load(desc_create, "cublasLtMatmulDescCreate");
    load(desc_destroy, "cublasLtMatmulDescDestroy");
    load(desc_set, "cublasLtMatmulDescSetAttribute");
    load(layout_create, "cublasLtMatrixLayoutCreate");
    load(layout_destroy, "cublasLtMatrixLayoutDestroy");
    load(preference_create, "cublasLtMatmulPreferenceCreate");
    load(preference_destroy, "cublasLtMatmulPreferenceDestroy");
    load(preference_set, "cublasLtMatmulPreferenceSetAttribute");
    load(find_algorithms, "cublasLtMatmulAlgoGetHeuristic");
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

// A handle belongs to a GPU; each has one, for the life of the process.
cublasLtHandle_t handle_of_current_device() {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> handles;
  int device = 0;
  HB_CUDA(cudaGetDevice(&device));
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = handles[device];
  if (handle == nullptr) check(library().create(&handle), "create a handle");
  return handle;
}

}  // namespace

struct CublasProduct::State {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr, a = nullptr, c = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  size_t workspace_bytes = 0;
  cublasLtHandle_t handle = handle_of_current_device();

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    const Library& lt = library();
    for (cublasLtMatrixLayout_t layout : {w, a, c})
      if (layout != nullptr) lt.layout_destroy(layout);
    if (product != nullptr) lt.desc_destroy(product);
  }

  void describe(const ProductShape& shape) {
    const Library& lt = library();
    check(lt.desc_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(lt.desc_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
          "transpose");
    const auto layout = [&](cublasLtMatrixLayout_t& made, cudaDataType type, int64_t rows,
                            int64_t cols) {
      check(lt.layout_create(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols),
                             rows),
            "describe a matrix");
    };
    layout(w, CUDA_R_16BF, shape.k, shape.n);
    layout(a, CUDA_R_16BF, shape.k, shape.m);
    layout(c, shape.out == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF, shape.n, shape.m);
  }

  void find_algorithms(const ProductShape& shape) {
    const Library& lt = library();
    cublasLtMatmulPreference_t preference = nullptr;
    check(lt.preference_create(&preference), "describe a preference");
    const uint32_t no_split = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = 16;
    lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                      sizeof workspace_bytes);
    if (workspace_bytes == 0)
      lt.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_split,
                        sizeof no_split);
    for (auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      lt.preference_set(preference, operand, &alignment, sizeof alignment);
    std::array<cublasLtMatmulHeuristicResult_t, 8> found = {};
    int count = 0;
    const cublasStatus_t status =
        lt.find_algorithms(handle, product, w, a, c, c, preference, static_cast<int>(found.size()),
                           found.data(), &count);
    lt.preference_destroy(preference);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i)
      if (found[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
        algorithms.push_back(found[static_cast<size_t>(i)].algo);
    if (algorithms.empty())
      throw Error(ErrorKind::kUnsupported, "cuBLASLt",
                  fmt::format("no algorithm for a product of ({}, {}) and ({}, {}), status {}",
                              shape.m, shape.k, shape.n, shape.k, static_cast<int>(status)));
  }
};

CublasProduct::CublasProduct(const ProductShape& shape, size_t workspace_bytes) {
  library();  // throws before there is something to give back
  state_ = std::make_unique<State>();
  state_->workspace_bytes = workspace_bytes;
  state_->describe(shape);
  state_->find_algorithms(shape);
}
CublasProduct::CublasProduct(CublasProduct&&) noexcept = default;
CublasProduct::~CublasProduct() = default;

int CublasProduct::num_algorithms() const { return static_cast<int>(state_->algorithms.size()); }

void CublasProduct::run(const void* a, const void* w, void* c, void* workspace, cudaStream_t stream,
                        int algorithm) const {
  const Library& lt = library();
  const float one = 1, zero = 0;
  check(lt.matmul(state_->handle, state_->product, &one, w, state_->w, a, state_->a, &zero, c,
                  state_->c, c, state_->c, &state_->algorithms[static_cast<size_t>(algorithm)],
                  workspace, state_->workspace_bytes, stream),
        "multiply");
}

}  // namespace halfbyte
