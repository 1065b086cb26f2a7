// Packs experts on the GPU (pack_device.h): a warp makes one slab of layout.h after the other along
// K, a block the four slabs of a tile. Every lane reads the 16 columns that it owns of rows g and
// g + 8 and writes their words: 32-byte sectors are read whole, 512 bytes written at once.
//
// Three instructions a code: a pair of codes is brought to the two halves of a register, and
// one rotation for the sign and one for the rest take it where decode.cuh looks for it.
#include "moe/cuda/layout.h"
#include "moe/cuda/pack_device.h"

namespace halfbyte::hopper {

namespace {

constexpr int kThreads = 256;
constexpr int kBlockLanes = kThreads / 32 / kTileSlabs;  // blocks of a tile that are made at once
constexpr int kUnitBlocks = 8;  // of a tile, for one thread block. NOTE: enough thread blocks for
                                // all SMs even if there is one expert
constexpr int kFactorThreads = 1024;

// Half of the rows of a slab: rows 8 s' + g of `matrix`, s' rising by `step` a slab.
struct HalfSlabs {
  StridedMatrices matrix;
  int rows = 0, first = 0, step = 0;
  int factor = 0;  // index of the matrix's factor: 0 gate, 1 up, 2 down
};

struct Side {  // gate and up, or down
  HalfSlabs upper, lower;
  int cols = 0, tiles = 0, blocks = 0;
  size_t offset = 0;  // in the packed expert

  __host__ __device__ int units_of_tile() const { return ceil_div(blocks, kUnitBlocks); }
  __host__ __device__ int units() const { return tiles * units_of_tile(); }
};

struct Params {
  Side up, down;
  uint8_t* packed = nullptr;
  size_t expert_bytes = 0, factor_offset = 0;
  BadScales* bad = nullptr;
  int first_expert = 0;
};

// Which part of a side a warp of pack_kernel makes.
struct Work {
  bool is_up;
  int tile, first_block, slab;

  __device__ __forceinline__ Work(const Params& params, int block) {
    const int up_units = params.up.units();
    is_up = block < up_units;
    const Side& side = is_up ? params.up : params.down;
    const int unit = block - (is_up ? 0 : up_units);
    tile = unit / side.units_of_tile();
    first_block = unit % side.units_of_tile() * kUnitBlocks;
    slab = tile * kTileSlabs + static_cast<int>(threadIdx.x) / 32 % kTileSlabs;
  }
};

__device__ void add_bad(const Params& params, int matrix, int row, uint32_t group, uint32_t byte) {
  if (params.bad == nullptr) return;
  const uint64_t place =
      BadScales::place(params.first_expert + blockIdx.y, matrix, row, group, byte);
  atomicAdd(&params.bad->count, 1);
  atomicMax(reinterpret_cast<unsigned long long*>(&params.bad->first), ~place);
}
// The lane's scale in the upper or lower half of its slab. NOTE: finds out where that is once more,
// from a number that the compiler takes for another, so that nothing is kept in registers for it.
__device__ __forceinline__ void count_bad(const Params& params, bool lower, uint32_t group,
                                          uint32_t byte) {
  int block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
  const Work work(params, block);
  const Side& side = work.is_up ? params.up : params.down;
  const HalfSlabs& half = lower ? side.lower : side.upper;
  const int row = half.first + work.slab * half.step + static_cast<int>(threadIdx.x) % 32 / 4;
  add_bad(params, half.factor, row, group, byte);
}

// ---- codes

__device__ __forceinline__ uint32_t rotate_left(uint32_t x, int n) {
  return __funnelshift_l(x, x, n);
}

// Pair i of eight codes, their even columns in the low nibbles of `even`, their odd ones in those
// of `odd`: bits 3:0 and 19:16; other bits are of no meaning.
template <int i>
__device__ __forceinline__ uint32_t pair_of(uint32_t even, uint32_t odd) {
  return __byte_perm(even, odd, i | (4 + i) << 8 | i << 4 | i << 12);
}

// encode_words of layout.h: place_code puts bits 2:0 at 8:6 and bit 3 at 15, and each pair is
// turned right by a number of its own.
template <int kTurn>
__device__ __forceinline__ uint32_t placed(uint32_t pair) {
  return (rotate_left(pair, (6 - kTurn) & 31) & rotate_right(0x01C001C0u, kTurn)) |
         (rotate_left(pair, (12 - kTurn) & 31) & rotate_right(0x80008000u, kTurn));
}

// Two words from columns 0..7 of rows g and g + 8.
__device__ __forceinline__ uint2 encode_columns(uint32_t upper, uint32_t lower) {
  constexpr uint32_t kNibbles = 0x0F0F0F0Fu;
  const uint32_t even = upper & kNibbles, odd = (upper >> 4) & kNibbles;
  const uint32_t even8 = lower & kNibbles, odd8 = (lower >> 4) & kNibbles;
  const uint32_t shared = placed<24>(pair_of<1>(even8, odd8)) | placed<30>(pair_of<3>(even8, odd8));
  return {placed<0>(pair_of<0>(even, odd)) | placed<4>(pair_of<0>(even8, odd8)) |
              placed<10>(pair_of<1>(even, odd)) | (shared & kFirstWordBits),
          placed<2>(pair_of<2>(even, odd)) | placed<6>(pair_of<2>(even8, odd8)) |
              placed<12>(pair_of<3>(even, odd)) | (shared & ~kFirstWordBits)};
}

__device__ __forceinline__ void store_codes(uint8_t* slab, int h, int lane, uint2 upper,
                                            uint2 lower) {
  const uint2 first = encode_columns(upper.x, lower.x), second = encode_columns(upper.y, lower.y);
  *reinterpret_cast<uint4*>(slab + h * 512 + lane * 16) =
      make_uint4(first.x, first.y, second.x, second.y);
}

// ---- one lane's row of a half slab

template <WeightFormat kFormat>
struct Row;

template <>
struct Row<WeightFormat::kNvfp4> {
  const uint8_t* codes;
  const uint8_t* scales;
  bool there;

  __device__ Row(const HalfSlabs& half, int slab, int expert, int lane, const Params&) {
    const int row = half.first + slab * half.step + lane / 4;
    there = row < half.rows;
    codes = half.matrix.codes.data + expert * half.matrix.codes.expert_stride +
            row * half.matrix.codes.row_stride;
    scales = half.matrix.scales.data + expert * half.matrix.scales.expert_stride +
             row * half.matrix.scales.row_stride;
  }

  // Eight bytes of codes, and the scale: of column `col`, a group's first.
  struct Group {
    uint2 codes = {0, 0};
    uint32_t scale = 0;
  };
  __device__ __forceinline__ Group load(int col, int cols) const {
    Group group;
    if (there && col < cols) {
      group.codes = __ldg(reinterpret_cast<const uint2*>(codes + col / 2));
      group.scale = __ldg(scales + col / 16);
    }
    return group;
  }
  // Gives the group zeros if its scale is zero; returns the byte that stands for the scale.
  __device__ __forceinline__ static uint32_t pack(Group& group) {
    if (group.scale == 0) group.codes = {0, 0};
    return encode_e4m3_scale(group.scale);
  }
};

template <>
struct Row<WeightFormat::kMxfp4> {
  const uint8_t* codes;
  const uint8_t* scales;
  bool there;
  int e_max;

  __device__ Row(const HalfSlabs& half, int slab, int expert, int lane, const Params& params) {
    const int row = half.first + slab * half.step + lane / 4;
    there = row < half.rows;
    codes = half.matrix.codes.data + expert * half.matrix.codes.expert_stride +
            row * half.matrix.codes.row_stride;
    scales = half.matrix.scales.data + expert * half.matrix.scales.expert_stride +
             row * half.matrix.scales.row_stride;
    // 2^(e_max - 127), by factor_kernel: its exponent bits.
    const auto* factors = reinterpret_cast<const uint32_t*>(
        params.packed + expert * params.expert_bytes + params.factor_offset);
    e_max = static_cast<int>(factors[half.factor] >> 23);
  }

  struct Group {
    uint4 codes = {0, 0, 0, 0};
    int scale = -1;
  };
  __device__ __forceinline__ Group load(int col, int cols) const {
    Group group;
    if (there && col < cols) {
      group.codes = __ldg(reinterpret_cast<const uint4*>(codes + col / 2));
      group.scale = __ldg(scales + col / 32);
    }
    return group;
  }
  __device__ __forceinline__ uint32_t pack(const Group& group) const {
    return group.scale < 0 ? 0 : encode_e8m0_scale(group.scale, e_max);
  }
};

// ---- one slab

__device__ __forceinline__ void pack_slab(const Row<WeightFormat::kNvfp4>& upper,
                                          const Row<WeightFormat::kNvfp4>& lower, int first_col,
                                          int cols, int lane, uint8_t* slab, const Params& params) {
  using Group = Row<WeightFormat::kNvfp4>::Group;
  Group groups[2][2];  // half, row
  for (int h = 0; h < 2; ++h) {
    const int col = first_col + column(WeightFormat::kNvfp4, h, lane % 4);
    groups[h][0] = upper.load(col, cols);
    groups[h][1] = lower.load(col, cols);
  }
  uint32_t bytes[2][2];
  for (int h = 0; h < 2; ++h) {
    for (int r = 0; r < 2; ++r) {
      if (groups[h][r].scale >= 0x7F) {  // NaN or negative
        const int col = first_col + column(WeightFormat::kNvfp4, h, lane % 4);
        count_bad(params, r == 1, col / 16, groups[h][r].scale);
      }
      bytes[h][r] = Row<WeightFormat::kNvfp4>::pack(groups[h][r]);
    }
    store_codes(slab, h, lane, groups[h][0].codes, groups[h][1].codes);
  }
  *reinterpret_cast<uint32_t*>(slab + kCodeBytes + lane * 4) =
      encode_scales(bytes[0][0], bytes[1][0], bytes[0][1], bytes[1][1]);
}

__device__ __forceinline__ void pack_slab(const Row<WeightFormat::kMxfp4>& upper,
                                          const Row<WeightFormat::kMxfp4>& lower, int first_col,
                                          int cols, int lane, uint8_t* slab, const Params& params) {
  const int col = first_col + column(WeightFormat::kMxfp4, 0, lane % 4);
  const auto above = upper.load(col, cols), below = lower.load(col, cols);
  if (above.scale == 0xFF) count_bad(params, false, col / 32, 0xFF);
  if (below.scale == 0xFF) count_bad(params, true, col / 32, 0xFF);
  store_codes(slab, 0, lane, {above.codes.x, above.codes.y}, {below.codes.x, below.codes.y});
  store_codes(slab, 1, lane, {above.codes.z, above.codes.w}, {below.codes.z, below.codes.w});
  *reinterpret_cast<uint16_t*>(slab + kCodeBytes + lane * 2) =
      static_cast<uint16_t>(upper.pack(above) | lower.pack(below) << 8);
}

// ---- kernels

// Grid: units of both sides, experts.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ Params params) {
  const Work work(params, static_cast<int>(blockIdx.x));
  const Side& side = work.is_up ? params.up : params.down;
  const int expert = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  const int s = warp % kTileSlabs;
  const Row<kFormat> upper(side.upper, work.slab, expert, lane, params);
  const Row<kFormat> lower(side.lower, work.slab, expert, lane, params);
  constexpr int kBlockBytes = kTileSlabs * slab_bytes(kFormat);
  uint8_t* const out =
      params.packed + expert * params.expert_bytes + side.offset +
      static_cast<size_t>(work.tile) * static_cast<size_t>(side.blocks) * kBlockBytes +
      s * slab_bytes(kFormat);

  const int end = min(work.first_block + kUnitBlocks, side.blocks);
  for (int b = work.first_block + warp / kTileSlabs; b < end; b += kBlockLanes)
    pack_slab(upper, lower, b * kBlockCols, side.cols, lane, out + size_t{kBlockBytes} * b, params);
}

// The largest exponent of the matrix's blocks that are not all zero, 127 if all are; the same for
// all threads of a block.
__device__ int find_e_max(const StridedMatrices& matrix, int expert, int rows, int cols) {
  __shared__ int largest;
  if (threadIdx.x == 0) largest = -1;
  __syncthreads();
  const uint8_t* const scales = matrix.scales.data + expert * matrix.scales.expert_stride;
  const uint8_t* const codes = matrix.codes.data + expert * matrix.codes.expert_stride;
  const int groups = cols / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int mine = -1;
  constexpr int kBatch = 4;  // loads at once
  for (int row = warp; row < rows; row += kFactorThreads / 32) {
    for (int group = lane; group < groups; group += 32 * kBatch) {
      int e[kBatch];
      for (int i = 0; i < kBatch; ++i)
        e[i] = group + 32 * i < groups
                   ? __ldg(scales + row * matrix.scales.row_stride + group + 32 * i)
                   : -1;
      for (int i = 0; i < kBatch; ++i) {
        if (e[i] <= mine) continue;
        const uint4 block = __ldg(reinterpret_cast<const uint4*>(
            codes + row * matrix.codes.row_stride + (group + 32 * i) * 16));
        if (((block.x | block.y | block.z | block.w) & 0x77777777u) != 0) mine = e[i];
      }
    }
  }
  mine = __reduce_max_sync(~0u, mine);
  if (lane == 0) atomicMax(&largest, mine);
  __syncthreads();
  return largest < 0 ? 127 : largest;
}

// The factor of a matrix, and the zeros behind all three. Grid: gate, up, down; experts.
template <WeightFormat kFormat>
__global__ void __launch_bounds__(kFactorThreads)
    factor_kernel(const __grid_constant__ Params params) {
  const int which = static_cast<int>(blockIdx.x), expert = static_cast<int>(blockIdx.y);
  const HalfSlabs& half = which == 0   ? params.up.upper
                          : which == 1 ? params.up.lower
                                       : params.down.upper;
  const int cols = which == 2 ? params.down.cols : params.up.cols;
  auto* const factors =
      reinterpret_cast<float*>(params.packed + expert * params.expert_bytes + params.factor_offset);
  const int thread = static_cast<int>(threadIdx.x);
  if (which == 2 && thread >= 3 && thread < kFactorBytes / 4) factors[thread] = 0;
  if (half.factor != which) {  // not gated: the upper rows are of `up` too
    if (thread == 0) factors[which] = 0;
    return;
  }
  float factor;
  if constexpr (kFormat == WeightFormat::kMxfp4) {
    const int e_max = find_e_max(half.matrix, expert, half.rows, cols);
    factor = __uint_as_float(e_max == 0 ? 0x00400000u : static_cast<uint32_t>(e_max) << 23);
  } else {
    factor = half.matrix.global_scale[expert * half.matrix.global_scale_stride];
    if (thread == 0 && !(factor > 0 && isfinite(factor)))
      add_bad(params, which, 0, BadScales::kGlobal, 0);
  }
  if (thread == 0) factors[which] = factor;
}

template <WeightFormat kFormat>
cudaError_t launch(const Params& params, int num_experts, cudaStream_t stream) {
  const auto experts = static_cast<unsigned>(num_experts);
  // NOTE: first, because pack_kernel reads the e_max of MXFP4 from the factors.
  factor_kernel<kFormat>
      <<<dim3(3, experts), kFormat == WeightFormat::kMxfp4 ? kFactorThreads : 32, 0, stream>>>(
          params);
  const auto units = static_cast<unsigned>(params.up.units() + params.down.units());
  pack_kernel<kFormat><<<dim3(units, experts), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

Side side_of(const MatrixLayout& layout, const HalfSlabs& upper, const HalfSlabs& lower, int cols,
             size_t offset) {
  return {upper, lower, cols, layout.tiles, layout.blocks, offset};
}

// All rows of one matrix, 16 a slab.
Side plain_side(const MatrixLayout& layout, const StridedMatrices& matrix, int rows, int cols,
                int factor, size_t offset) {
  return side_of(layout, {matrix, rows, 0, kSlabRows, factor},
                 {matrix, rows, kSlabRows / 2, kSlabRows, factor}, cols, offset);
}

}  // namespace

cudaError_t launch_pack(const MoeShape& shape, const StridedExperts& experts, void* packed,
                        BadScales* bad, cudaStream_t stream, int first_expert) {
  const ExpertLayout layout = expert_layout(shape);
  const bool gated = shape.activation.gated();
  Params params;
  const int hidden = shape.hidden, intermediate = shape.intermediate;
  params.up = gated ? side_of(layout.up, {experts.gate, intermediate, 0, kSlabRows / 2, 0},
                              {experts.up, intermediate, 0, kSlabRows / 2, 1}, hidden, 0)
                    : plain_side(layout.up, experts.up, intermediate, hidden, 1, 0);
  params.down = plain_side(layout.down, experts.down, hidden, intermediate, 2, layout.down_offset);
  params.packed = static_cast<uint8_t*>(packed);
  params.expert_bytes = layout.bytes;
  params.factor_offset = layout.factor_offset;
  params.bad = bad;
  params.first_expert = first_expert;
  return shape.weights == WeightFormat::kMxfp4
             ? launch<WeightFormat::kMxfp4>(params, shape.num_experts, stream)
             : launch<WeightFormat::kNvfp4>(params, shape.num_experts, stream);
}

}  // namespace halfbyte::hopper
