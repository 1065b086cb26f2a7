// All loops of dense.h for one level, in the order in which they build on each other. Included
// inside the level's namespace and target region, behind its words (simd/avx512.inl.h or a
// sibling).
// clang-format off
#include "ops/vector_activation.inl.h"
#include "ops/cpu/rows.inl.h"
#include "ops/cpu/dense.inl.h"
#include "ops/cpu/gemm.inl.h"
#include "ops/cpu/attention.inl.h"
#include "ops/cpu/kda.inl.h"
// clang-format on
