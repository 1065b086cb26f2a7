// Checks the wgmma path against a double reference decoded from the same packed bytes, and times
// it.
//
//   wgmma_check tiny|small|time|all [N]   those cases, of them from the N-th on. A case that hangs
//                                         for 3 s or kills the device costs only itself; the third
//                                         ends it
//
// Packed experts are random bytes within what the packer writes; routing lists are made on the host
// as `route` makes them. Of each case, h and slots are compared at sampled places:
//   |h - ref|     <= 2^-8 |ref| + 4 |d act| + 1e-6       d act: of gate and up off by 1e-6 sum |w
//   x| |slot - ref|  <= 2^-8 |ref| + 4e-6 sum |w h|
// Times are of launches back to back, each reading all its weights from memory again.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "moe/cuda/wgmma.h"

namespace halfbyte::hopper {
namespace {

#define CHECK_CUDA(call)                                           \
  do {                                                             \
    const cudaError_t error = (call);                              \
    if (error != cudaSuccess) {                                    \
      std::printf("  %s: %s\n", #call, cudaGetErrorString(error)); \
      std::fflush(stdout);                                         \
      std::_Exit(2);                                               \
    }                                                              \
  } while (0)

struct Case {
  const char* name;
  WeightFormat format;
  ActivationKind kind;
  int experts, top_k, hidden, intermediate, tokens;
  int fixed_rows;  // of every expert; 0: random routing
  double skew;     // Zipf exponent
  double seconds;  // of timing; 0: none
};

constexpr auto kNv = WeightFormat::kNvfp4;
constexpr auto kMx = WeightFormat::kMxfp4;
constexpr auto kSitu = ActivationKind::kSitu;

constexpr size_t kTiny = 2, kSmall = 11;  // the first so many cases; the others are timed

std::vector<Case> cases() {
  std::vector<Case> all = {
      // Small: tails of K, of row tiles, of chunks; every activation.
      {"small", kNv, kSitu, 4, 2, 256, 128, 32, 0, 0, 0},
      {"small mx", kMx, kSitu, 4, 2, 256, 128, 32, 0, 0, 0},
      {"tails", kNv, ActivationKind::kSwiglu, 5, 3, 400, 208, 100, 0, 0, 0},
      {"tails mx", kMx, ActivationKind::kSwiglu, 5, 3, 416, 224, 100, 0, 0, 0},
      {"clamped", kNv, ActivationKind::kSwigluClamped, 5, 3, 512, 384, 200, 0, 0, 0},
      {"geglu", kMx, ActivationKind::kGegluTanh, 5, 3, 512, 384, 200, 0, 0, 0},
      {"relu2", kNv, ActivationKind::kRelu2, 5, 3, 512, 336, 200, 0, 0, 0},
      {"relu2 mx", kMx, ActivationKind::kRelu2, 5, 3, 512, 352, 200, 0, 0, 0},
      {"one expert", kNv, kSitu, 3, 1, 512, 256, 700, 700, 0, 0},
      {"many tiles", kNv, kSitu, 64, 4, 768, 512, 640, 0, 1, 0},
      {"gpt-oss mx", kMx, ActivationKind::kSwigluClamped, 32, 4, 2880, 2880, 512, 0, 0, 0},
  };
  // N by N, K3 at TP4; then random routing.
  for (int rows : {8, 16, 24, 32, 40, 48, 64, 80, 96, 160})
    all.push_back({"N", kNv, kSitu, 896, 16, 3584, 768, 56 * rows, rows, 0, 0.1});
  for (int tokens : {256, 512, 1024, 2048})
    all.push_back({"TP4", kNv, kSitu, 896, 16, 3584, 768, tokens, 0, 0, 0.1});
  all.push_back({"TP4 zipf", kNv, kSitu, 896, 16, 3584, 768, 2048, 0, 1, 0.1});
  all.push_back({"TP4", kNv, kSitu, 896, 16, 3584, 768, 4096, 0, 0, 0.1});
  all.push_back({"TP8", kNv, kSitu, 896, 16, 3584, 384, 8192, 0, 0, 0.1});
  all.push_back({"TP1", kNv, kSitu, 896, 16, 3584, 3072, 8192, 0, 0, 0.2});
  return all;
}

// ---- data

__host__ __device__ uint32_t mix(uint64_t v) {
  v ^= v >> 33;
  v *= 0xff51afd7ed558ccdull;
  v ^= v >> 33;
  v *= 0xc4ceb9fe1a85ec53ull;
  v ^= v >> 33;
  return static_cast<uint32_t>(v);
}

// 4 bytes a thread of the slabs of all experts; scales around 1.
// The up matrix has `slab_hidden` hidden values a slab; what is beyond F is zero in both matrices,
// as packed.
__global__ void fill_packed(uint8_t* packed, size_t words, WeightFormat format, Sizes sizes,
                            int slab_hidden) {
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += step) {
    const size_t expert = i * 4 / sizes.expert_bytes;
    const uint32_t byte = static_cast<uint32_t>(i * 4 - expert * sizes.expert_bytes);
    uint32_t* to = reinterpret_cast<uint32_t*>(packed) + i;
    const uint32_t r = mix(i);
    if (byte >= sizes.factor_offset) {
      const float factors[4] = {0.01f, 0.015f, 0.02f, 0};
      const uint32_t k = (byte - sizes.factor_offset) / 4;
      float f = k < 4 ? factors[k] * (format == kMx ? 1.5f : 1.0f) : 0;
      f *= 1 + 0.01f * static_cast<float>(expert % 7);
      *to = *reinterpret_cast<uint32_t*>(&f);
      continue;
    }
    const uint32_t in_matrix = byte >= sizes.down_offset ? byte - sizes.down_offset : byte;
    const uint32_t in_slab = in_matrix % slab_bytes(format);
    const uint32_t slab = in_matrix / slab_bytes(format);
    const uint32_t slab_row =
        slab / (kTileSlabs * sizes.up_blocks) * kTileSlabs + slab % kTileSlabs;
    if (byte < sizes.down_offset &&
        static_cast<int>(slab_row) * slab_hidden >= sizes.intermediate) {
      *to = 0;
      continue;
    }
    if (byte >= sizes.down_offset && in_slab < kCodeBytes) {
      const int block = static_cast<int>(slab) / kTileSlabs % sizes.down_blocks;
      const int half = static_cast<int>(in_slab) / 512, t = static_cast<int>(in_slab) / 16 % 4;
      if (block * kBlockCols + column(format, half, t) >= sizes.intermediate) {
        *to = 0;
        continue;
      }
    }
    if (in_slab < kCodeBytes) {
      *to = r;
    } else if (format == kMx) {
      const uint32_t e = 250;
      *to = (e + (r & 3)) | (e + ((r >> 2) & 3)) << 8 | (e + ((r >> 4) & 3)) << 16 |
            (e + ((r >> 6) & 3)) << 24;
    } else {
      const uint32_t s = 176;  // 2^(-120 + 127 + ...): about 1/4 .. 1
      *to = encode_scales(s + (r & 15), s + ((r >> 4) & 15), s + ((r >> 8) & 15),
                          s + ((r >> 12) & 15));
    }
  }
}

float bf16_value(uint32_t bits) {
  const uint32_t word = bits << 16;
  float f;
  std::memcpy(&f, &word, 4);
  return f;
}
uint16_t bf16_bits(float f) {
  uint32_t word;
  std::memcpy(&word, &f, 4);
  return static_cast<uint16_t>((word + 0x7FFF + ((word >> 16) & 1)) >> 16);
}

// Row `row` (of 64) of a packed tile of `blocks` blocks, decoded: layout.h read backwards.
std::vector<double> decode_row(const uint8_t* tile, int blocks, int row, WeightFormat format) {
  std::vector<double> values(static_cast<size_t>(blocks) * kBlockCols);
  const int g = row % 8, upper = row % 16 / 8;
  const int slab_size = slab_bytes(format);
  for (int block = 0; block < blocks; ++block) {
    const uint8_t* slab = tile + (static_cast<size_t>(block) * kTileSlabs + row / 16) * slab_size;
    for (int h = 0; h < 2; ++h) {
      for (int t = 0; t < 4; ++t) {
        const int lane = 4 * g + t;
        double scale;
        if (format == kMx) {
          const int e = slab[kCodeBytes + lane * 2 + upper];
          scale = std::ldexp(1.0, e - 127 + 0);  // BF16 pattern e << 7
        } else {
          uint32_t word;
          std::memcpy(&word, slab + kCodeBytes + lane * 4, 4);
          const uint32_t half = (word >> (16 * upper)) & 0xFFFF;
          const uint32_t b = h == 0 ? (half >> 4) & 0xFF : ((half & 15) << 4) | (half >> 12);
          scale = bf16_value(0x7000u | b << 4);
        }
        for (int i = 0; i < 4; ++i) {
          uint32_t words[2];
          std::memcpy(words, slab + h * 512 + lane * 16 + i / 2 * 8, 8);
          const uint32_t shared = (words[0] & 0x06030603u) | (words[1] & 0xF9FCF9FCu);
          const auto left = [](uint32_t v, int n) {
            return ((v << n) | (v >> ((32 - n) & 31))) & 0x81C081C0u;
          };
          const uint32_t r[4] = {
              left(words[i % 2], i % 2 == 0 ? 0 : 2), left(words[i % 2], i % 2 == 0 ? 4 : 6),
              left(words[i % 2], i % 2 == 0 ? 10 : 12), left(shared, i % 2 == 0 ? 24 : 30)};
          for (int j = 0; j < 4; ++j) {
            const uint32_t pair = r[2 * (j / 2) + upper];
            const uint32_t code = j % 2 == 0 ? pair & 0xFFFF : pair >> 16;
            values[static_cast<size_t>(block * kBlockCols + column(format, h, t) + 4 * i + j)] =
                bf16_value(code) * scale;
          }
        }
      }
    }
  }
  return values;
}

double activate(ActivationKind kind, double g, double u, const Activation& a) {
  const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  switch (kind) {
    case ActivationKind::kSitu:
      return a.beta * std::tanh(g / a.beta) * sigmoid(g) * *a.linear_beta *
             std::tanh(u / *a.linear_beta);
    case ActivationKind::kSwiglu:
      return g * sigmoid(g) * u;
    case ActivationKind::kSwigluClamped: {
      const double c = std::min<double>(g, a.limit);
      const double v = std::max<double>(-a.limit, std::min<double>(u, a.limit));
      return c * sigmoid(a.alpha * c) * (v + a.up_bias);
    }
    case ActivationKind::kGegluTanh:
      return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
    default:
      return u < 0 ? 0 : u * u;
  }
}

template <class T>
struct Buffer {
  T* data = nullptr;
  size_t size = 0;
  explicit Buffer(size_t n) : size(n) { CHECK_CUDA(cudaMalloc(&data, n * sizeof(T))); }
  ~Buffer() { cudaFree(data); }
  void put(const std::vector<T>& v) {
    CHECK_CUDA(cudaMemcpy(data, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get(size_t from, size_t n) const {
    std::vector<T> v(n);
    CHECK_CUDA(cudaMemcpy(v.data(), data + from, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }
};

struct Lists {
  std::vector<Chunk> chunks;
  std::vector<int> slots;
  std::vector<float> weights;
};

Lists make_lists(const Case& c, int chunk_rows) {
  std::mt19937 random(7);
  std::vector<std::vector<int>> of(static_cast<size_t>(c.experts));
  const int num_slots = c.tokens * c.top_k;
  if (c.fixed_rows > 0) {
    for (int s = 0; s < num_slots; ++s) {
      const int e = c.fixed_rows * c.experts == num_slots ? s % c.experts : 0;
      of[static_cast<size_t>(e)].push_back(s);
    }
  } else {
    std::vector<double> share;
    for (int e = 0; e < c.experts; ++e) share.push_back(std::pow(e + 1.0, -c.skew));
    std::shuffle(share.begin(), share.end(), random);
    std::discrete_distribution<int> pick(share.begin(), share.end());
    for (int t = 0; t < c.tokens; ++t) {
      std::set<int> mine;
      for (int k = 0; k < c.top_k; ++k) {
        int e = pick(random);
        while (!mine.insert(e).second) e = pick(random);
        of[static_cast<size_t>(e)].push_back(t * c.top_k + k);
      }
    }
  }
  Lists lists;
  for (int e = 0; e < c.experts; ++e) {
    const auto& rows = of[static_cast<size_t>(e)];
    const int n = static_cast<int>(rows.size()), cuts = ceil_div(n, chunk_rows);
    int at = static_cast<int>(lists.slots.size());
    for (int i = 0; i < cuts; ++i) {
      const int m = n / cuts + (i < n % cuts);
      lists.chunks.push_back({e, at, m, cuts == 1});
      at += m;
    }
    for (int s : rows) {
      lists.slots.push_back(s);
      lists.weights.push_back(0.03f +
                              0.001f * static_cast<float>(mix(static_cast<uint64_t>(s)) % 64));
    }
  }
  return lists;
}

struct Error {
  double worst = 0, square = 0, square_ref = 0;  // worst: in units of the tolerance
  int bad = 0;
  void add(double got, double want, double tolerance) {
    const double error = std::abs(got - want);
    if (!(error <= tolerance)) ++bad;
    worst = std::isnan(error) ? 1e30 : std::max(worst, error / tolerance);
    square += error * error;
    square_ref += want * want;
  }
};

bool run(const Case& c) {
  MoeShape shape;
  shape.num_experts = c.experts;
  shape.top_k = c.top_k;
  shape.hidden = c.hidden;
  shape.intermediate = c.intermediate;
  shape.activation.kind = c.kind;
  shape.weights = c.format;
  const ExpertLayout layout = expert_layout(shape);
  const bool gated = shape.activation.gated();

  Call call;
  Sizes& sizes = call.sizes;
  sizes = {c.hidden,
           c.intermediate,
           c.experts,
           c.top_k,
           layout.up.tiles,
           layout.up.blocks,
           layout.down.tiles,
           layout.down.blocks,
           static_cast<uint32_t>(layout.bytes),
           static_cast<uint32_t>(layout.down_offset),
           static_cast<uint32_t>(layout.factor_offset)};
  call.activation = activation_constants(shape.activation);
  call.num_tokens = c.tokens;
  call.chunk_rows = wgmma_chunk_rows(static_cast<double>(c.tokens) * c.top_k / c.experts);
  if (c.fixed_rows > 0) call.chunk_rows = std::min(c.fixed_rows, kWgmmaRows);
  const Lists lists = make_lists(c, call.chunk_rows);

  // Operands.
  Buffer<uint8_t> packed(layout.bytes * static_cast<size_t>(c.experts));
  fill_packed<<<1024, 256>>>(packed.data, packed.size / 4, c.format, sizes, gated ? 8 : 16);
  call.packed = packed.data;
  std::vector<uint16_t> x(static_cast<size_t>(c.tokens) * static_cast<size_t>(c.hidden));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = bf16_bits(static_cast<float>(mix(i) % 2001) / 1000.0f - 1.0f);
  Buffer<uint16_t> device_x(x.size());
  device_x.put(x);
  call.x = device_x.data;
  call.x_stride = c.hidden;

  Buffer<int> num_chunks(1), slots_of(lists.slots.size());
  Buffer<Chunk> chunks(lists.chunks.size());
  Buffer<float> weights(lists.weights.size());
  num_chunks.put({static_cast<int>(lists.chunks.size())});
  chunks.put(lists.chunks);
  slots_of.put(lists.slots);
  weights.put(lists.weights);
  call.lists = {num_chunks.data, chunks.data, slots_of.data, weights.data};

  Buffer<uint8_t> permuted(wgmma_permuted_bytes(sizes, c.tokens));
  Buffer<uint8_t> hidden(wgmma_hidden_bytes(sizes, lists.slots.size(), lists.chunks.size()));
  Buffer<uint8_t> slots(static_cast<size_t>(c.tokens) * c.top_k * c.hidden * 2);
  CHECK_CUDA(cudaMemset(permuted.data, 0xFF, permuted.size));  // NaN
  CHECK_CUDA(cudaMemset(hidden.data, 0xFF, hidden.size));
  CHECK_CUDA(cudaMemset(slots.data, 0xFF, slots.size));
  call.permuted_x = permuted.data;
  call.hidden_rows = hidden.data;
  call.slots = slots.data;
  Buffer<uint32_t> counters(kNumCounters);
  CHECK_CUDA(cudaMemset(counters.data, 0, counters.size * sizeof(uint32_t)));
  call.counters = counters.data;

  cudaDeviceProp properties;
  CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
  LaunchOptions options;
  options.num_sms = properties.multiProcessorCount;
  CHECK_CUDA(cudaStreamCreate(&options.stream));
  CHECK_CUDA(cudaDeviceSynchronize());
  const auto step = [&](const char* name, cudaError_t launched) {
    std::printf("%s ", name);
    std::fflush(stdout);
    CHECK_CUDA(launched);
    CHECK_CUDA(cudaDeviceSynchronize());
  };
  step("permute", launch_permute(call, c.format, options));
  step("up", launch_product(Product::kUp, call, c.kind, c.format, options));
  step("down", launch_product(Product::kDown, call, c.kind, c.format, options));

  // Compare, chunks and rows of them at random and the edges.
  Error h_error, slot_error;
  std::mt19937 random(11);
  const int picks = c.hidden <= 512 ? 12 : 4;
  const double gain = decode_gain(c.format);
  const size_t h_row_bytes = static_cast<size_t>(layout.down.blocks) * kBlockCols * 2;
  for (int pick = 0; pick < picks; ++pick) {
    const int index = pick == 0   ? 0
                      : pick == 1 ? static_cast<int>(lists.chunks.size()) - 1
                                  : static_cast<int>(random() % lists.chunks.size());
    const Chunk& chunk = lists.chunks[static_cast<size_t>(index)];
    const int rows = round_up_8(chunk.num_rows);
    const auto h = hidden.get(static_cast<size_t>(hidden_row(index, chunk.first_row)) * h_row_bytes,
                              static_cast<size_t>(rows) * h_row_bytes);
    const auto h_at = [&](int row, int f) {
      const int block = f / kBlockCols;
      const size_t byte = static_cast<size_t>(
          block * rows * 256 + panel_byte(rows, row, stored_position(c.format, f % kBlockCols)));
      return bf16_value(static_cast<uint32_t>(h[byte] | h[byte + 1] << 8));
    };
    const size_t expert = static_cast<size_t>(chunk.expert) * layout.bytes;
    const auto factor_bytes = packed.get(expert + layout.factor_offset, 12);
    float factors[3];
    std::memcpy(factors, factor_bytes.data(), 12);
    const int row_step = chunk.num_rows > 16 ? chunk.num_rows / 16 : 1;

    for (int tile_pick = 0; tile_pick < 4; ++tile_pick) {
      const int tile_index =
          tile_pick == 0 ? layout.up.tiles - 1 : static_cast<int>(random() % layout.up.tiles);
      const size_t tile_bytes = static_cast<size_t>(layout.up.blocks) * layout.up.block_bytes;
      const auto tile =
          packed.get(expert + static_cast<size_t>(tile_index) * tile_bytes, tile_bytes);
      for (int k = 0; k < 4; ++k) {
        const int slab = k, g = static_cast<int>(random() % (gated ? 8 : 16));
        const int f = (tile_index * 4 + slab) * (gated ? 8 : 16) + g;
        if (f >= c.intermediate) continue;
        const auto w0 = decode_row(tile.data(), layout.up.blocks, slab * 16 + g, c.format);
        const auto w1 =
            gated ? decode_row(tile.data(), layout.up.blocks, slab * 16 + 8 + g, c.format) : w0;
        for (int row = 0; row < chunk.num_rows; row += row_step) {
          const size_t token = static_cast<size_t>(
              lists.slots[static_cast<size_t>(chunk.first_row + row)] / c.top_k);
          double a = 0, b = 0, size_a = 0, size_b = 0;
          for (int l = 0; l < c.hidden; ++l) {
            const double v =
                bf16_value(x[token * static_cast<size_t>(c.hidden) + static_cast<size_t>(l)]);
            a += w0[static_cast<size_t>(l)] * v, b += w1[static_cast<size_t>(l)] * v;
            size_a += std::abs(w0[static_cast<size_t>(l)] * v),
                size_b += std::abs(w1[static_cast<size_t>(l)] * v);
          }
          const double gate = gain * factors[0] * a, up = gain * factors[1] * b;
          const double dg = gain * factors[0] * size_a * 1e-6,
                       du = gain * factors[1] * size_b * 1e-6;
          const double want = activate(c.kind, gate, up, shape.activation);
          const double slope = std::abs(activate(c.kind, gate + dg, up, shape.activation) - want) +
                               std::abs(activate(c.kind, gate, up + du, shape.activation) - want) +
                               std::abs(activate(c.kind, gate - dg, up, shape.activation) - want);
          h_error.add(h_at(row, f), want, std::abs(want) / 256 + 4 * slope + 1e-6);
        }
      }
    }
    // Padding columns of h are finite: `down` has zero weights for them.
    for (int f = c.intermediate; f < layout.down.blocks * kBlockCols; ++f)
      for (int row = 0; row < chunk.num_rows; row += row_step)
        h_error.add(std::isfinite(h_at(row, f)) ? 0 : NAN, 0, 1e-30);

    for (int tile_pick = 0; tile_pick < 3; ++tile_pick) {
      const int tile_index =
          tile_pick == 0 ? layout.down.tiles - 1 : static_cast<int>(random() % layout.down.tiles);
      const size_t tile_bytes = static_cast<size_t>(layout.down.blocks) * layout.down.block_bytes;
      const auto tile = packed.get(
          expert + layout.down_offset + static_cast<size_t>(tile_index) * tile_bytes, tile_bytes);
      for (int k = 0; k < 4; ++k) {
        const int r = k * 16 + static_cast<int>(random() % 16), l = tile_index * 64 + r;
        if (l >= c.hidden) continue;
        const auto w = decode_row(tile.data(), layout.down.blocks, r, c.format);
        for (int row = 0; row < chunk.num_rows; row += row_step) {
          double sum = 0, size = 0;
          for (int f = 0; f < c.intermediate; ++f) {
            sum += w[static_cast<size_t>(f)] * h_at(row, f);
            size += std::abs(w[static_cast<size_t>(f)] * h_at(row, f));
          }
          const size_t at = static_cast<size_t>(chunk.first_row + row);
          const double scale = gain * factors[2] * lists.weights[at];
          const size_t place = static_cast<size_t>(lists.slots[at]) * c.hidden + l;
          const auto bytes = slots.get(place * 2, 2);
          const double got = bf16_value(static_cast<uint32_t>(bytes[0] | bytes[1] << 8));
          slot_error.add(got, scale * sum,
                         std::abs(scale * sum) / 256 + 4e-6 * scale * size + 1e-12);
        }
      }
    }
  }
  const bool good = h_error.bad == 0 && slot_error.bad == 0;
  const Ring ring = ring_for(c.format, wgmma_kernel_for(call.chunk_rows).warpgroups,
                             call.chunk_rows, kWgmmaRingBytes);
  std::printf(
      "%-10s E %3d L %4d F %4d T %5d chunks %4zu of %3d, %d stages  %s  h %.2f (%d bad, l2 %.4f) "
      "slots %.2f (%d bad, l2 %.4f)\n",
      c.name, c.experts, c.hidden, c.intermediate, c.tokens, lists.chunks.size(), call.chunk_rows,
      ring.num_stages, good ? "ok " : "BAD", h_error.worst, h_error.bad,
      std::sqrt(h_error.square / (h_error.square_ref + 1e-30)), slot_error.worst, slot_error.bad,
      std::sqrt(slot_error.square / (slot_error.square_ref + 1e-30)));

  std::fflush(stdout);
  if (c.seconds > 0) {
    cudaEvent_t begin, end;
    CHECK_CUDA(cudaEventCreate(&begin));
    CHECK_CUDA(cudaEventCreate(&end));
    const auto time = [&](auto&& launch) {
      float ms = 0;
      int repeats = 2;
      for (;;) {
        CHECK_CUDA(cudaEventRecord(begin, options.stream));
        for (int i = 0; i < repeats; ++i) CHECK_CUDA(launch());
        CHECK_CUDA(cudaEventRecord(end, options.stream));
        CHECK_CUDA(cudaEventSynchronize(end));
        CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
        if (ms > c.seconds * 500) return ms * 1e3 / repeats;
        repeats = std::max(repeats + 1, static_cast<int>(repeats * c.seconds * 1000 / (ms + 0.01)));
      }
    };
    const double permute = time([&] { return launch_permute(call, c.format, options); });
    const double up =
        time([&] { return launch_product(Product::kUp, call, c.kind, c.format, options); });
    const double down =
        time([&] { return launch_product(Product::kDown, call, c.kind, c.format, options); });
    const double all = time([&] { return launch_wgmma(call, c.kind, c.format, options); });
    double used = 0, last = -1;
    for (const Chunk& chunk : lists.chunks) {
      if (chunk.expert != last) ++used;
      last = chunk.expert;
    }
    const double up_bytes = used * static_cast<double>(layout.up.bytes());
    const double down_bytes = used * static_cast<double>(layout.down.bytes());
    const double rows = static_cast<double>(lists.slots.size());
    const double down_flops = 2.0 * rows * c.hidden * c.intermediate,
                 up_flops = down_flops * (gated ? 2 : 1);
    const double roof = std::max((up_bytes + down_bytes) / 4.59e6, (up_flops + down_flops) / 788e6);
    std::printf(
        "           permute %.0f  up %.0f us %.0f TFLOP/s %.2f TB/s  down %.0f us %.0f TFLOP/s "
        "%.2f TB/s  all %.0f us: %.1f %% of roof\n",
        permute, up, up_flops / up / 1e6, up_bytes / up / 1e6, down, down_flops / down / 1e6,
        down_bytes / down / 1e6, all, 100 * roof / all);
  }
  std::fflush(stdout);
  return good;
}

}  // namespace
}  // namespace halfbyte::hopper

int main(int argc, char** argv) {
  namespace hopper = halfbyte::hopper;
  const std::string which = argc > 1 ? argv[1] : "all";
  const bool child = argc == 4 && std::string(argv[3]) == "--child";
  const auto all = hopper::cases();
  size_t first = which == "time" ? hopper::kSmall : 0;
  const size_t end = which == "tiny"    ? hopper::kTiny
                     : which == "small" ? hopper::kSmall
                                        : all.size();
  if (argc > 2) first = std::max(first, static_cast<size_t>(std::atoi(argv[2])));
  if (child) {
    int bad = 0;
    for (size_t i = first; i < end; ++i) {
      std::printf("%2zu ", i);
      std::fflush(stdout);
      if (std::FILE* at = std::fopen("/tmp/wgmma_check.at", "w")) {
        std::fprintf(at, "%zu", i);
        std::fclose(at);
      }
      // A hang ends this process, and the parent goes on. The first case starts the device, too.
      alarm(static_cast<unsigned>(3 + (i == first ? 5 : 0) + 8 * all[i].seconds));
      if (!hopper::run(all[i])) ++bad;
    }
    return bad == 0 ? 0 : 1;
  }
  // A child a stretch of cases: after a trap the device wants a new process.
  bool good = true;
  for (int deaths = 0; first < end && deaths < 3;) {
    const pid_t pid = fork();
    if (pid == 0) {
      const std::string number = std::to_string(first);
      execl("/proc/self/exe", argv[0], which.c_str(), number.c_str(), "--child", nullptr);
      std::_Exit(3);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 4;
    if (code != 0) good = false;
    if (code <= 1) break;
    size_t at = first;
    if (std::FILE* file = std::fopen("/tmp/wgmma_check.at", "r")) {
      if (std::fscanf(file, "%zu", &at) != 1) at = first;
      std::fclose(file);
    }
    std::printf("   case %zu %s (%d)\n", at, code == 4 ? "hung or was killed" : "died", code);
    std::fflush(stdout);
    first = at + 1;
    ++deaths;
  }
  std::printf("%s\n", good ? "all good" : "NOT ALL GOOD");
  return good ? 0 : 1;
}
