// The small ops of a step on the GPU against the reference rows of the emulated GPU: the same
// arguments are built once in the host's memory and once in the device's, and every array is
// compared afterwards, what nobody should write included.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "cuda/cuda_testing.h"
#include "device/emulated_gpu.h"
#include "kernels/kernel.h"
#include "quant/fp8_key.h"
#include "quant/numeric.h"

namespace nibble::kernels {
namespace {

using cuda_testing::CudaTest;
using cuda_testing::DeviceArray;
using cuda_testing::gpu;

// The arrays of one launch, in the order in which they are asked for. With the same calls two
// memories hold the same values.
class Memory final {
 public:
  enum class Kind { kF32, kBf16, kExact, kBytes, kScratch };

  Memory(bool is_device, uint32_t seed) : is_device_(is_device), random_(seed) {}

  template <class T>
  T* in(const std::vector<T>& values) {
    return static_cast<T*>(add(values.data(), values.size() * sizeof(T), kind_of<T>()));
  }
  // Every byte is 0xFF.
  template <class T>
  T* out(int64_t count) {
    return in(std::vector<T>(static_cast<size_t>(count), std::bit_cast<T>(poison<sizeof(T)>())));
  }
  float* normal(int64_t count, float deviation = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = distribution(random_);
    return in(values);
  }
  uint16_t* normal_bf16(int64_t count) {
    std::normal_distribution<float> distribution;
    std::vector<uint16_t> values(static_cast<size_t>(count));
    for (uint16_t& value : values) value = quant::f32_to_bf16(distribution(random_));
    return in(values);
  }
  int32_t* below(int64_t count, int32_t limit, int32_t first = 0) {
    std::uniform_int_distribution<int32_t> distribution(first, limit - 1);
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int32_t& value : values) value = distribution(random_);
    return in(values);
  }
  // Zeros, of which nobody asks what becomes of them.
  std::byte* scratch(int64_t num_bytes) {
    const std::vector<std::byte> zeros(static_cast<size_t>(num_bytes));
    return static_cast<std::byte*>(add(zeros.data(), zeros.size(), Kind::kScratch));
  }
  // Every form that [m, k] can have, without terms: their low bits are nobody's but the value's.
  ActivationForms forms(int64_t m, int64_t k) {
    ActivationForms forms{.f32 = out<float>(m * k), .bf16 = out<uint16_t>(m * k)};
    if (k % 128 != 0) return forms;
    forms.fp8 = out<std::byte>(m * k);
    forms.fp8_scales = out<float>(m * k / 128);
    // Padding behind the scales is nobody's.
    forms.fp8_blocks = out<std::byte>(fp8_blocks_bytes(m, k) + 4096);
    return forms;
  }

  size_t num_arrays() const { return arrays_.size(); }
  Kind kind(size_t i) const { return arrays_[i].kind; }
  std::vector<std::byte> bytes(size_t i) const {
    const Array& array = arrays_[i];
    return is_device_ ? array.device->to_host() : array.host;
  }

 private:
  struct Array {
    Kind kind = Kind::kExact;
    std::vector<std::byte> host;
    std::unique_ptr<DeviceArray<std::byte>> device;
  };

  template <size_t kSize>
  static constexpr std::array<uint8_t, kSize> poison() {
    std::array<uint8_t, kSize> bytes{};
    bytes.fill(0xFF);
    return bytes;
  }
  template <class T>
  static Kind kind_of() {
    if (std::is_same_v<T, float>) return Kind::kF32;
    if (std::is_same_v<T, uint16_t>) return Kind::kBf16;
    return std::is_same_v<T, std::byte> ? Kind::kBytes : Kind::kExact;
  }
  void* add(const void* values, size_t num_bytes, Kind kind) {
    Array& array = arrays_.emplace_back();
    array.kind = kind;
    array.host.resize(num_bytes);
    if (num_bytes > 0) std::memcpy(array.host.data(), values, num_bytes);
    if (!is_device_) return array.host.data();
    array.device = std::make_unique<DeviceArray<std::byte>>(array.host);
    return array.device->data();
  }

  bool is_device_;
  std::mt19937 random_;
  std::vector<Array> arrays_;
};

template <class T>
std::vector<T> values_of(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

// Sums of a few thousand f32 terms, elementary functions and one rounding to bf16 (8 bits).
void compare_floats(const std::vector<float>& reference,
                    const std::vector<float>& actual,
                    float relative) {
  float largest = 0;
  for (const float value : reference) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (size_t i = 0; i < reference.size(); ++i) {
    if (std::isnan(reference[i])) {
      ASSERT_TRUE(std::isnan(actual[i])) << "element " << i << " of " << reference.size();
      continue;
    }
    if (actual[i] == reference[i]) continue;  // infinities, too
    ASSERT_NEAR(actual[i], reference[i], largest * 2e-5f + std::abs(reference[i]) * relative)
        << "element " << i << " of " << reference.size();
  }
}

void compare_array(Memory::Kind kind,
                   const std::vector<std::byte>& reference,
                   const std::vector<std::byte>& actual) {
  const auto widened = [](const std::vector<uint16_t>& bits) {
    std::vector<float> values;
    for (const uint16_t value : bits) values.push_back(quant::bf16_to_f32(value));
    return values;
  };
  switch (kind) {
    case Memory::Kind::kF32:
      return compare_floats(values_of<float>(reference), values_of<float>(actual), 0);
    case Memory::Kind::kBf16:
      return compare_floats(
          widened(values_of<uint16_t>(reference)), widened(values_of<uint16_t>(actual)), 0x1p-7f);
    case Memory::Kind::kExact:
      for (size_t i = 0; i < reference.size(); i += 4) {
        ASSERT_EQ(std::memcmp(&actual[i], &reference[i], 4), 0) << "word " << i / 4;
      }
      return;
    case Memory::Kind::kScratch:
      return;
    case Memory::Kind::kBytes: {
      // Codes flip where a value lies between two of them.
      int64_t num_different = 0;
      for (size_t i = 0; i < reference.size(); ++i) num_different += actual[i] != reference[i];
      EXPECT_LE(num_different * 200, static_cast<int64_t>(reference.size()) + 200);
      return;
    }
  }
}

// Every row of the GPU that takes Args on what `build` makes.
template <class Args>
void compare(Op op, const std::function<Args(Memory&)>& build) {
  Memory expected(false, 1);
  const auto emulated = device::make_emulated_gpu(1).value();
  route({.op = op, .m_max = 1}, emulated->info(), {.allow_reference = true})
      .value()
      .launch(build(expected), emulated->stream())
      .value();
  int32_t num_rows = 0;
  for (const KernelInfo* row : all_kernels()) {
    if (row->op != op || is_reference(*row) ||
        !std::holds_alternative<Launcher<Args>>(row->launch)) {
      continue;
    }
    SCOPED_TRACE(row->name);
    Memory actual(true, 1);
    Args args = build(actual);
    args.is_dependent = num_rows % 2 == 1;
    std::get<Launcher<Args>>(row->launch)(args, gpu()->stream()).value();
    for (size_t i = 0; i < expected.num_arrays(); ++i) {
      SCOPED_TRACE("array " + std::to_string(i));
      compare_array(expected.kind(i), expected.bytes(i), actual.bytes(i));
    }
    ++num_rows;
  }
  EXPECT_GT(num_rows, 0);
}

// A step: per sequence how many tokens from which position; the last rows are padding.
struct Step {
  struct Sequence {
    int32_t num_tokens = 0;
    int32_t position = 0;
  };
  std::vector<Sequence> sequences;
  int32_t num_padding = 2;
  int32_t max_pages = 8;

  int32_t m() const {
    int32_t count = num_padding;
    for (const Sequence& sequence : sequences) count += sequence.num_tokens;
    return count;
  }
  int32_t num_slots() const { return static_cast<int32_t>(sequences.size()) + 1; }

  // Slots count downwards, pages are all different.
  void fill(Memory& memory, DeviceTokens* tokens, DeviceSequences* device) const {
    std::vector<int32_t> positions, of_row, slots, row_begin, num_tokens, position_begin, window,
        pages;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const Sequence& sequence = sequences[s];
      slots.push_back(num_slots() - 1 - static_cast<int32_t>(s));
      row_begin.push_back(static_cast<int32_t>(of_row.size()));
      num_tokens.push_back(sequence.num_tokens);
      position_begin.push_back(sequence.position);
      window.push_back(s % 2 == 0 ? 0 : sequence.position / 2);
      for (int32_t i = 0; i < sequence.num_tokens; ++i) {
        positions.push_back(sequence.position + i);
        of_row.push_back(static_cast<int32_t>(s));
      }
      for (int32_t i = 0; i < max_pages; ++i) {
        pages.push_back(i * static_cast<int32_t>(sequences.size()) + static_cast<int32_t>(s));
      }
    }
    for (int32_t i = 0; i < num_padding; ++i) {
      positions.push_back(0);
      of_row.push_back(-1);
    }
    *tokens = {.ids = memory.below(m(), 16),
               .positions = memory.in(positions),
               .sequences = memory.in(of_row),
               .m = m()};
    *device = {.slots = memory.in(slots),
               .row_begin = memory.in(row_begin),
               .num_tokens = memory.in(num_tokens),
               .position_begin = memory.in(position_begin),
               .window_begin = memory.in(window),
               .pages = memory.in(pages),
               .max_pages = max_pages};
  }
};

Step mixed_step() {
  return {.sequences = {{.num_tokens = 3, .position = 5},
                        {.num_tokens = 1, .position = 1023},
                        {.num_tokens = 9, .position = 122},
                        {.num_tokens = 4, .position = 0}}};
}

// Tokens of prompts, so many that kernels take them in strips.
Step prompt_step() {
  return {.sequences = {{.num_tokens = 131, .position = 5},
                        {.num_tokens = 1, .position = 1023},
                        {.num_tokens = 40, .position = 122},
                        {.num_tokens = 9, .position = 0}}};
}

using CudaOps = CudaTest;

TEST_F(CudaOps, Plan) {
  for (const int32_t direct_tokens : {4, 100}) {
    compare<DevicePlanArgs>(Op::kPlan, [&](Memory& memory) {
      const Step step = mixed_step();
      const int32_t m = step.m();
      DevicePlanArgs args{.num_slots = step.num_slots(),
                          .window = 128,
                          .ring_capacity = 256,
                          .direct_tokens = direct_tokens,
                          .page_tokens = 256,
                          .top_k = 20,
                          .key_rows = memory.out<int32_t>(m),
                          .window_rows = memory.out<int32_t>(m * 128),
                          .window_counts = memory.out<int32_t>(m),
                          .window_ready = memory.out<int32_t>(m),
                          .token_pages = memory.out<int32_t>(m * step.max_pages),
                          .counts_4 = memory.out<int32_t>(m),
                          .selected_counts = memory.out<int32_t>(m),
                          .selected = memory.out<int32_t>(m * 20),
                          .ready_4 = memory.out<int32_t>(m),
                          .counts_128 = memory.out<int32_t>(m),
                          .ready_128 = memory.out<int32_t>(m),
                          .rows_128 = memory.out<int32_t>(m * 12),
                          .max_rows_128 = 12};
      step.fill(memory, &args.tokens, &args.sequences);
      return args;
    });
  }
}

TEST_F(CudaOps, CopyRows) {
  for (const int64_t row_bytes : {12, 1168, 65536}) {
    compare<DeviceCopyRowsArgs>(Op::kCopyRows, [&](Memory& memory) {
      return DeviceCopyRowsArgs{
          .in = reinterpret_cast<std::byte*>(memory.below(6 * row_bytes / 4, 1 << 30)),
          .out = reinterpret_cast<std::byte*>(memory.out<int32_t>(6 * row_bytes / 4)),
          .from = memory.in<int32_t>({5, 0, -1, 2}),
          .to = memory.in<int32_t>({1, 4, 2, -1}),
          .count = 4,
          .row_bytes = row_bytes};
    });
  }
}

TEST_F(CudaOps, MakeSlots) {
  struct Case {
    int32_t pairs, experts, rows;
  };
  for (const Case& c : {Case{6, 256, 1}, Case{96, 256, 8}, Case{7001, 256, 16}, Case{50, 5, 8}}) {
    compare<DeviceMakeSlotsArgs>(Op::kMakeSlots, [&](Memory& memory) {
      const int32_t slots = max_slots(c.pairs, c.experts, c.rows) + 1;
      return DeviceMakeSlotsArgs{.ids = memory.below(c.pairs, c.experts + 1, -1),
                                 .num_pairs = c.pairs,
                                 .num_experts = c.experts,
                                 .rows = c.rows,
                                 .count = memory.out<int32_t>(1),
                                 .experts = memory.out<int32_t>(slots),
                                 .pairs = memory.out<int32_t>(slots * c.rows)};
    });
  }
}

TEST_F(CudaOps, Embed) {
  for (const int64_t hidden : {30, 4096}) {
    for (const bool is_bf16 : {false, true}) {
      compare<DeviceEmbedArgs>(Op::kEmbed, [&](Memory& memory) {
        const Step step = mixed_step();
        DeviceEmbedArgs args{.table_dtype = is_bf16 ? DType::kBf16 : DType::kF32,
                             .hidden = hidden,
                             .copies = 4,
                             .out = memory.out<float>(step.m() * 4 * hidden)};
        DeviceSequences sequences;
        step.fill(memory, &args.tokens, &sequences);
        args.table = is_bf16 ? static_cast<const void*>(memory.normal_bf16(16 * hidden))
                             : memory.normal(16 * hidden);
        return args;
      });
    }
  }
}

struct UpdateCase {
  int64_t hidden;
  int32_t mult, m, parts, choices, splits;
  bool is_head = false;
};

DeviceStreamUpdateArgs update_args(Memory& memory, const UpdateCase& c) {
  const int32_t mix = c.is_head ? c.mult : (2 + c.mult) * c.mult;
  return {.y = {.data = memory.normal(c.splits * c.m * c.hidden), .splits = c.splits},
          .pairs = c.choices == 0 ? nullptr : memory.normal(c.m * c.choices * c.hidden),
          .choices = c.choices,
          .post = memory.normal(c.m * c.mult),
          .comb = memory.normal(c.m * c.mult * c.mult),
          .streams = memory.normal(c.m * c.mult * c.hidden),
          .hidden = c.hidden,
          .hc_mult = c.mult,
          .m = c.m,
          .fn = memory.normal(mix * c.mult * c.hidden),
          .num_mix = mix,
          .parts = c.parts,
          .partials = memory.out<float>(c.m * c.parts * (mix + 1) + 8)};
}

TEST_F(CudaOps, StreamUpdate) {
  for (const UpdateCase& c : {UpdateCase{256, 4, 5, 4, 0, 1},
                              UpdateCase{256, 4, 2, 4, 3, 2, true},
                              UpdateCase{4096, 4, 1, 64, 6, 2},
                              UpdateCase{4096, 4, 17, 64, 6, 1},
                              UpdateCase{7168, 4, 2, 64, 6, 3},
                              UpdateCase{20, 2, 9, 3, 2, 1},
                              UpdateCase{64, 3, 40, 1, 9, 1},
                              UpdateCase{44, 3, 300, 1, 9, 1},
                              UpdateCase{2048, 4, 131, 32, 0, 2, true},
                              UpdateCase{7168, 4, 130, 64, 6, 1}}) {
    SCOPED_TRACE(c.hidden);
    compare<DeviceStreamUpdateArgs>(Op::kStreamUpdate,
                                    [&](Memory& memory) { return update_args(memory, c); });
  }
}

TEST_F(CudaOps, StreamUpdateOfOnePartOnly) {
  for (const bool updates : {false, true}) {
    compare<DeviceStreamUpdateArgs>(Op::kStreamUpdate, [&](Memory& memory) {
      DeviceStreamUpdateArgs args = update_args(memory, {512, 4, 11, 8, 2, 1});
      if (updates) {
        args.fn = nullptr;
      } else {
        args.post = nullptr;
      }
      return args;
    });
  }
}

// Rows of a batch of many tokens against each of them alone and in a batch of few.
TEST_F(CudaOps, StreamUpdateOfATokenIsTheSameInEveryBatch) {
  constexpr int32_t kTokens = 200, kFew = 19;
  constexpr UpdateCase kCase{1024, 4, kTokens, 16, 6, 1};
  const int64_t width = kCase.mult * kCase.hidden;
  const int64_t partials = kCase.parts * 25;
  const auto launch = [&](int32_t first, int32_t count) {
    Memory memory(true, 1);
    DeviceStreamUpdateArgs args = update_args(memory, kCase);
    args.y.data += first * kCase.hidden;
    args.pairs += first * kCase.choices * kCase.hidden;
    args.post += first * kCase.mult;
    args.comb += first * kCase.mult * kCase.mult;
    args.streams += first * width;
    args.partials += first * partials;
    args.m = count;
    route({.op = Op::kStreamUpdate}, gpu()->info(), {})
        .value()
        .launch(args, gpu()->stream())
        .value();
    std::vector<float> streams(static_cast<size_t>(count * width)),
        sums(static_cast<size_t>(count * partials));
    const auto copy = [&](std::vector<float>& to, const float* from) {
      device::copy_to_host(
          to.data(), from, static_cast<int64_t>(to.size() * sizeof(float)), gpu()->stream())
          .value();
    };
    copy(streams, args.streams);
    copy(sums, args.partials);
    device::synchronize(gpu()->stream()).value();
    return std::pair(streams, sums);
  };
  const auto part_of = [](const std::vector<float>& all, int64_t first, int64_t count) {
    return std::vector<float>(all.begin() + first, all.begin() + first + count);
  };
  const auto [streams, sums] = launch(0, kTokens);
  for (const auto& [first, count] : {std::pair{0, kFew}, {5, 1}, {77, 1}, {180, kFew}}) {
    SCOPED_TRACE(first);
    const auto [few_streams, few_sums] = launch(first, count);
    EXPECT_TRUE(few_streams == part_of(streams, first * width, count * width));
    EXPECT_TRUE(few_sums == part_of(sums, first * partials, count * partials));
  }
}

struct MixCase {
  int64_t hidden;
  int32_t mult, m, parts;
  bool is_head = false;
};

// A read of `streams` by way of `partials`; the head's rows are turned round, the last is padding.
DeviceStreamMixArgs mix_args(Memory& memory,
                             const MixCase& c,
                             const float* streams,
                             const float* partials) {
  const int32_t mix = c.is_head ? c.mult : (2 + c.mult) * c.mult;
  std::vector<int32_t> rows(static_cast<size_t>(c.m));
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = i + 1 == rows.size() ? -1 : c.m - 1 - static_cast<int32_t>(i);
  }
  return {.streams = streams,
          .partials = partials,
          .parts = c.parts,
          .num_mix = mix,
          .base = memory.normal(mix),
          .scale = memory.normal(c.is_head ? 1 : 3),
          .hidden = c.hidden,
          .hc_mult = c.mult,
          .sinkhorn_iters = 20,
          .hc_eps = 1e-6f,
          .norm_eps = 1e-6f,
          .gamma = memory.normal(c.hidden),
          .rows = c.is_head ? memory.in(rows) : nullptr,
          .m = c.m,
          .x = memory.forms(c.m, c.hidden),
          .post = c.is_head ? nullptr : memory.out<float>(c.m * c.mult),
          .comb = c.is_head ? nullptr : memory.out<float>(c.m * c.mult * c.mult)};
}

// `count` partials of `mix` dots and a sum of squares each.
std::vector<float> normal_partials(int64_t count, int32_t mix, float dot, float squares) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> partials(static_cast<size_t>(count * (mix + 1)));
  for (size_t i = 0; i < partials.size(); ++i) {
    const bool is_dot = i % static_cast<size_t>(mix + 1) < static_cast<size_t>(mix);
    partials[i] = is_dot ? normal(random) * dot : std::abs(normal(random)) * squares;
  }
  return partials;
}

TEST_F(CudaOps, StreamMix) {
  for (const MixCase& c : {MixCase{256, 4, 3, 4},
                           MixCase{4096, 4, 2, 64},
                           MixCase{4096, 4, 40, 64},
                           MixCase{7168, 4, 2, 64},
                           MixCase{7168, 4, 33, 64, true},
                           MixCase{4096, 4, 200, 64},
                           MixCase{7168, 4, 140, 64},
                           MixCase{512, 4, 161, 8, true},
                           MixCase{20, 2, 3, 3},
                           MixCase{256, 4, 5, 4, true}}) {
    SCOPED_TRACE(c.hidden);
    compare<DeviceStreamMixArgs>(Op::kStreamMix, [&](Memory& memory) {
      const int32_t mix = c.is_head ? c.mult : (2 + c.mult) * c.mult;
      const std::vector<float> partials =
          normal_partials(int64_t{c.m} * c.parts, mix, 10, static_cast<float>(c.hidden) / 5);
      const float* const streams = memory.normal(c.m * c.mult * c.hidden);
      return mix_args(memory, c, streams, memory.in(partials));
    });
  }
}

// One launch of many rows against one of each of some rows. Logits are of the order of 1, so that
// the last bit of a sum shows in what becomes of it.
TEST_F(CudaOps, StreamMixOfARowIsTheSameInEveryBatch) {
  constexpr int32_t kRows = 150, kMult = 4, kParts = 64, kMix = 24;
  constexpr int64_t kHidden = 4096;
  const Route mix = route({.op = Op::kStreamMix}, gpu()->info(), {}).value();
  const auto launch = [&](int32_t first, int32_t count) {
    Memory memory(true, 1);
    const float* const streams = memory.normal(int64_t{kRows} * kMult * kHidden);
    const std::vector<float> partials =
        normal_partials(kRows * kParts, kMix, 0.125f, static_cast<float>(kMult * kHidden / kParts));
    DeviceStreamMixArgs args = mix_args(memory,
                                        {kHidden, kMult, kRows, kParts},
                                        streams + first * kMult * kHidden,
                                        memory.in(partials) + first * kParts * (kMix + 1));
    args.m = count;
    args.x = {.f32 = memory.out<float>(count * kHidden)};
    mix.launch(args, gpu()->stream()).value();
    std::vector<std::vector<float>> results;
    const auto take = [&](const float* from, int64_t size) {
      std::vector<float>& to = results.emplace_back(static_cast<size_t>(size));
      device::copy_to_host(to.data(), from, size * 4, gpu()->stream()).value();
    };
    take(args.x.f32, count * kHidden);
    take(args.post, count * kMult);
    take(args.comb, count * kMult * kMult);
    device::synchronize(gpu()->stream()).value();
    return results;
  };
  const auto all = launch(0, kRows);
  for (const float post : all[1]) {
    EXPECT_GT(post, 0.0f);
    EXPECT_LT(post, 2.0f);
  }
  for (const float share : all[2]) {
    EXPECT_GT(share, 0.0f);
    EXPECT_LT(share, 1.0f);
  }
  for (const int32_t row : {0, 31, 64, 149}) {
    SCOPED_TRACE(row);
    const auto alone = launch(row, 1);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto size = static_cast<std::ptrdiff_t>(alone[i].size());
      EXPECT_TRUE(std::equal(alone[i].begin(), alone[i].end(), all[i].begin() + row * size));
    }
  }
}

struct TurnCase {
  int64_t hidden;
  int32_t m, choices, splits;
  bool is_head = false, updates = true;
};

// Deviations as of a model: the streams' shares follow from dots of the order of 1.
DeviceStreamTurnArgs turn_args(Memory& memory, const TurnCase& c) {
  constexpr int32_t kMult = 4;
  DeviceStreamTurnArgs args;
  args.update = update_args(memory, {c.hidden, kMult, c.m, 1, c.choices, c.splits, c.is_head});
  args.update.fn = memory.normal(args.update.num_mix * kMult * c.hidden, 0.02f);
  args.update.parts = 4;
  args.update.partials = reinterpret_cast<float*>(
      memory.scratch(int64_t{c.m} * args.update.parts * (args.update.num_mix + 1) * 4));
  if (!c.updates) args.update.post = nullptr;
  args.mix = mix_args(memory,
                      {c.hidden, kMult, c.m, args.update.parts, c.is_head},
                      args.update.streams,
                      args.update.partials);
  return args;
}

TEST_F(CudaOps, StreamTurn) {
  for (const TurnCase& c : {TurnCase{4096, 1, 6, 2},
                            TurnCase{4096, 16, 0, 8},
                            TurnCase{4096, 3, 0, 1, true},
                            TurnCase{4096, 2, 9, 11},
                            TurnCase{4096, 2, 0, 1, false, false},
                            TurnCase{7168, 2, 6, 3},
                            TurnCase{6272, 5, 6, 1, true},
                            TurnCase{256, 1, 6, 1},
                            TurnCase{384, 32, 3, 2},
                            TurnCase{1152, 41, 6, 1, true},
                            TurnCase{128, 4, 0, 2, true}}) {
    SCOPED_TRACE(c.hidden);
    compare<DeviceStreamTurnArgs>(Op::kStreamTurn,
                                  [&](Memory& memory) { return turn_args(memory, c); });
  }
}

// Two pairs of streams of which one is nearly the other's negative, and shares of about a half.
TEST_F(CudaOps, StreamTurnOfStreamsThatCancelEachOther) {
  constexpr int64_t kHidden = 4096, kMult = 4;
  constexpr int32_t kTokens = 2;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> streams(static_cast<size_t>(kTokens * kMult * kHidden));
  for (size_t i = 0; i < streams.size(); ++i) {
    const bool is_second = i / kHidden % 2 == 1;
    streams[i] = is_second ? -0.8f * streams[i - kHidden] : normal(random);
  }
  compare<DeviceStreamTurnArgs>(Op::kStreamTurn, [&](Memory& memory) {
    DeviceStreamTurnArgs args = turn_args(memory, {kHidden, kTokens, 0, 1, false, false});
    args.update.streams = memory.in(streams);
    args.update.fn = memory.normal(args.update.num_mix * kMult * kHidden, 0.0005f);
    args.mix.streams = args.update.streams;
    args.mix.base = memory.in(std::vector<float>(static_cast<size_t>(args.mix.num_mix)));
    return args;
  });
}

// Rows of a batch against each of them alone.
TEST_F(CudaOps, StreamTurnOfATokenIsTheSameInEveryBatch) {
  constexpr int32_t kTokens = 16, kMult = 4;
  constexpr int64_t kHidden = 1024, kWidth = kMult * kHidden;
  const Route turn = route({.op = Op::kStreamTurn, .m_max = 1}, gpu()->info(), {}).value();
  const auto launch = [&](int32_t first, int32_t count) {
    Memory memory(true, 1);
    DeviceStreamTurnArgs args = turn_args(memory, {kHidden, kTokens, 6, 1});
    DeviceStreamUpdateArgs& update = args.update;
    update.y.data += first * kHidden;
    update.pairs += first * update.choices * kHidden;
    update.post += first * kMult;
    update.comb += first * kMult * kMult;
    update.streams += first * kWidth;
    update.m = args.mix.m = count;
    auto* const x = memory.out<float>(count * kHidden);
    args.mix.x = {.f32 = x};
    turn.launch(args, gpu()->stream()).value();
    std::vector<std::vector<float>> results;
    const auto take = [&](const float* from, int64_t size) {
      std::vector<float>& to = results.emplace_back(static_cast<size_t>(size));
      device::copy_to_host(to.data(), from, size * 4, gpu()->stream()).value();
    };
    take(update.streams, count * kWidth);
    take(x, count * kHidden);
    take(args.mix.post, count * kMult);
    take(args.mix.comb, count * kMult * kMult);
    device::synchronize(gpu()->stream()).value();
    return results;
  };
  const auto all = launch(0, kTokens);
  for (const int32_t token : {0, 7, 15}) {
    SCOPED_TRACE(token);
    const auto alone = launch(token, 1);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto size = static_cast<std::ptrdiff_t>(alone[i].size());
      EXPECT_TRUE(std::equal(alone[i].begin(), alone[i].end(), all[i].begin() + token * size));
    }
  }
}

TEST_F(CudaOps, RmsNorm) {
  for (const int64_t k : {50, 256, 4096, 7168}) {
    compare<DeviceRmsNormArgs>(Op::kRmsNorm, [&](Memory& memory) {
      return DeviceRmsNormArgs{.x = memory.normal(5 * k),
                               .m = 5,
                               .k = k,
                               .gamma = k == 256 ? nullptr : memory.normal(k),
                               .eps = 1e-6f,
                               .y = memory.forms(5, k)};
    });
  }
}

TEST_F(CudaOps, JoinMtp) {
  for (const int64_t hidden : {30, 4096}) {
    compare<DeviceJoinMtpArgs>(Op::kJoinMtp, [&](Memory& memory) {
      return DeviceJoinMtpArgs{.embedded = {.data = memory.normal(2 * 3 * hidden), .splits = 2},
                               .projected = {.data = memory.normal(12 * hidden)},
                               .m = 3,
                               .hidden = hidden,
                               .hc_mult = 4,
                               .streams = memory.out<float>(12 * hidden)};
    });
  }
}

// --- attention ---

DeviceRotation rotation_of(Memory& memory, int32_t num_rotary) {
  std::vector<float> freqs;
  for (int32_t i = 0; i < num_rotary / 2; ++i) {
    freqs.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / num_rotary)));
  }
  return {.freqs = memory.in(freqs), .num_rotary = num_rotary};
}

int64_t key_bytes(DType dtype, int64_t width, int64_t num_rotary) {
  if (dtype != DType::kF8E4m3) return width * dtype_size(dtype);
  if (num_rotary == 0) return quant::fp8_index_key_bytes(width);
  return quant::Fp8KeyLayout{.num_codes = width - num_rotary, .num_rotary = num_rotary}.row_bytes();
}

// A poisoned pool of keys.
std::byte* key_pool(Memory& memory, DType dtype, int64_t rows, int64_t width, int64_t num_rotary) {
  const int64_t bytes = rows * key_bytes(dtype, width, num_rotary);
  if (dtype == DType::kF32) return reinterpret_cast<std::byte*>(memory.out<float>(bytes / 4));
  if (dtype == DType::kBf16) return reinterpret_cast<std::byte*>(memory.out<uint16_t>(bytes / 2));
  return memory.out<std::byte>(bytes);
}

constexpr DType kKeyDtypes[] = {DType::kF32, DType::kBf16, DType::kF8E4m3};

TEST_F(CudaOps, Latents) {
  struct Case {
    int32_t rank, dim, rotary, splits;
    bool is_prompt = false;
  };
  for (const Case& c : {Case{1024, 512, 64, 2},
                        Case{1024, 512, 64, 1, true},
                        Case{1536, 512, 64, 1},
                        Case{1664, 512, 64, 1},
                        Case{30, 74, 10, 3}}) {
    for (const DType dtype : kKeyDtypes) {
      SCOPED_TRACE(c.rank);
      compare<DeviceLatentsArgs>(Op::kLatents, [&](Memory& memory) {
        const Step step = c.is_prompt ? prompt_step() : mixed_step();
        const int32_t m = step.m();
        std::vector<int32_t> key_rows(static_cast<size_t>(m), -1);
        for (int32_t t = 0; t < m - 2; ++t) key_rows[static_cast<size_t>(t)] = 2 * (m - t);
        DeviceLatentsArgs args{
            .qr_kv = {.data = memory.normal(c.splits * m * (c.rank + c.dim)), .splits = c.splits},
            .q_rank = c.rank,
            .head_dim = c.dim,
            .q_gamma = memory.normal(c.rank),
            .kv_gamma = memory.normal(c.dim),
            .eps = 1e-6f,
            .rotation = rotation_of(memory, c.rotary),
            .q = memory.forms(m, c.rank),
            .key_rows = memory.in(key_rows),
            .window_pool = key_pool(memory, dtype, 2 * m + 2, c.dim, c.rotary),
            .key_dtype = dtype};
        DeviceSequences sequences;
        step.fill(memory, &args.tokens, &sequences);
        return args;
      });
    }
  }
}

struct CompressCase {
  int32_t ratio, width, index_width, rotary, splits;
  bool forms = true, stores = true;
  bool is_prompt = false;
};

TEST_F(CudaOps, Compress) {
  for (const CompressCase& c : {CompressCase{4, 512, 128, 64, 1},
                                CompressCase{4, 512, 128, 64, 2, true, false},
                                CompressCase{4, 512, 128, 64, 1, true, false, true},
                                CompressCase{4, 512, 128, 64, 1, false, true, true},
                                CompressCase{128, 512, 0, 64, 1, true, false, true},
                                CompressCase{128, 512, 0, 64, 2},
                                CompressCase{128, 74, 0, 10, 1, false, true},
                                CompressCase{4, 74, 36, 10, 3}}) {
    for (const DType dtype : kKeyDtypes) {
      SCOPED_TRACE(c.width);
      compare<DeviceLatentsArgs>(Op::kLatents, [&](Memory& memory) {
        const Step step = c.is_prompt ? prompt_step() : mixed_step();
        const int32_t pages = step.max_pages * static_cast<int32_t>(step.sequences.size());
        const int32_t halves = c.ratio == 4 ? 2 : 1;
        const int32_t channels = halves * c.width, index_channels = halves * c.index_width;
        const int32_t ring_width = 2 * channels + 2 * index_channels;
        const int32_t row_width = ring_width + (c.index_width > 0 ? 8 : 0);
        const int32_t ring_capacity = c.ratio == 4 ? 16 : 256;
        DeviceLatentsArgs args{.eps = 1e-6f};
        DeviceCompression& compression = args.compression;
        compression = {.projections = {.data = memory.normal(c.splits * step.m() * row_width),
                                       .splits = c.splits},
                       .row_width = row_width,
                       .ratio = c.ratio,
                       .page_tokens = 256,
                       .num_parts = c.index_width > 0 ? 2 : 1,
                       .ring = memory.normal(step.num_slots() * ring_capacity * ring_width),
                       .ring_capacity = ring_capacity,
                       .ring_width = ring_width,
                       .forms_entries = c.forms,
                       .stores_rows = c.stores};
        args.rotation = rotation_of(memory, c.rotary);
        const int64_t rows = pages * (256 / c.ratio);
        compression.parts[0] = {.value_column = 0,
                                .gate_column = channels,
                                .width = c.width,
                                .ape = memory.normal(c.ratio * channels),
                                .gamma = memory.normal(c.width),
                                .entries = key_pool(memory, dtype, rows, c.width, c.rotary),
                                .entry_dtype = dtype};
        if (c.index_width > 0) {
          compression.parts[1] = {.value_column = 2 * channels,
                                  .gate_column = 2 * channels + index_channels,
                                  .width = c.index_width,
                                  .ape = memory.normal(c.ratio * index_channels),
                                  .gamma = memory.normal(c.index_width),
                                  .entries = key_pool(memory, dtype, rows, c.index_width, 0),
                                  .entry_dtype = dtype,
                                  .is_index = true};
        }
        step.fill(memory, &args.tokens, &compression.sequences);
        return args;
      });
    }
  }
}

TEST_F(CudaOps, Queries) {
  struct Case {
    int32_t heads, dim, rotary, index_heads, index_width, splits;
  };
  for (const Case& c :
       {Case{64, 512, 64, 64, 128, 1}, Case{5, 512, 64, 0, 0, 2}, Case{3, 74, 10, 4, 36, 2}}) {
    SCOPED_TRACE(c.heads);
    compare<DeviceQueriesArgs>(Op::kQueries, [&](Memory& memory) {
      const Step step = mixed_step();
      const int32_t m = step.m();
      const int32_t q_width = c.heads * c.dim, index_width = c.index_heads * c.index_width;
      DeviceQueriesArgs args{
          .q_sums = {.data = memory.normal(c.splits * m * q_width), .splits = c.splits},
          .heads = c.heads,
          .head_dim = c.dim,
          .eps = 1e-6f,
          .rotation = rotation_of(memory, c.rotary),
          .q = memory.out<uint16_t>(m * q_width)};
      if (c.index_heads > 0) {
        args.index_sums = {.data = memory.normal(c.splits * m * index_width), .splits = c.splits};
        args.index_heads = c.index_heads;
        args.index_width = c.index_width;
        args.weights = {.projections = {.data = memory.normal(2 * m * 150), .splits = 2},
                        .row_width = 150,
                        .column = 150 - c.index_heads,
                        .scale = 0.25f};
        args.index_q = memory.out<uint16_t>(m * index_width);
        args.head_weights = memory.out<float>(m * c.index_heads);
      }
      DeviceSequences sequences;
      step.fill(memory, &args.tokens, &sequences);
      return args;
    });
  }
}

TEST_F(CudaOps, RotatesByLargeAngles) {
  compare<DeviceQueriesArgs>(Op::kQueries, [&](Memory& memory) {
    const Step step{.sequences = {{.num_tokens = 3, .position = 1048573}}};
    DeviceQueriesArgs args{.q_sums = {.data = memory.normal(step.m() * 128)},
                           .heads = 1,
                           .head_dim = 128,
                           .eps = 1e-6f,
                           .rotation = rotation_of(memory, 64),
                           .q = memory.out<uint16_t>(step.m() * 128)};
    DeviceSequences sequences;
    step.fill(memory, &args.tokens, &sequences);
    return args;
  });
}

TEST_F(CudaOps, Attended) {
  struct Case {
    int32_t heads, dim, rotary;
  };
  for (const Case& c : {Case{64, 512, 64}, Case{6, 20, 8}}) {
    SCOPED_TRACE(c.heads);
    compare<DeviceAttendedArgs>(Op::kAttended, [&](Memory& memory) {
      const Step step = mixed_step();
      const int32_t k = c.heads * c.dim;
      DeviceAttendedArgs args{.x = memory.normal_bf16(step.m() * k),
                              .heads = c.heads,
                              .head_dim = c.dim,
                              .rotation = rotation_of(memory, c.rotary),
                              .y = memory.forms(step.m(), k)};
      DeviceSequences sequences;
      step.fill(memory, &args.tokens, &sequences);
      return args;
    });
  }
}

// --- experts ---

TEST_F(CudaOps, SelectExperts) {
  struct Case {
    int32_t experts, choices, splits;
    bool is_hash = false, reuses = false;
  };
  const Step one_token{.sequences = {{.num_tokens = 1, .position = 1023}}, .num_padding = 0};
  const Step most_with_slots{.sequences = {{.num_tokens = 5, .position = 5},
                                           {.num_tokens = kMaxSlotTokens - 7, .position = 122}}};
  for (const Case& c : {Case{256, 6, 2},
                        Case{256, 6, 16},
                        Case{256, 6, 37},
                        Case{384, 6, 1},
                        Case{5, 3, 1},
                        Case{256, 6, 1, true},
                        Case{256, 6, 1, false, true}}) {
    for (const Step& step : {one_token, most_with_slots, mixed_step()}) {
      const int32_t m = step.m();
      SCOPED_TRACE("experts " + std::to_string(c.experts) + ", tokens " + std::to_string(m));
      compare<DeviceSelectExpertsArgs>(Op::kSelectExperts, [&](Memory& memory) {
        DeviceSelectExpertsArgs args{
            .logits = {.data = memory.normal(c.splits * m * c.experts, 3), .splits = c.splits},
            .num_experts = c.experts,
            .choices = c.choices,
            .bias = c.is_hash ? nullptr : memory.normal(c.experts),
            .token_to_experts = c.is_hash ? memory.below(16 * c.choices, c.experts) : nullptr,
            .reuse_ids = c.reuses,
            .routed_scaling_factor = 1.5f,
            .ids = memory.below(m * c.choices, c.experts),
            .weights = memory.out<float>(m * c.choices),
            .shared = {.x = {.data = memory.normal(2 * m * 2 * 256), .splits = 2},
                       .m = m,
                       .n = 256,
                       .limit = 1.5f,
                       .y = memory.forms(m, 256)}};
        DeviceSequences sequences;
        step.fill(memory, &args.tokens, &sequences);
        if (m > kMaxSlotTokens) return args;
        const int32_t slots = max_slots(m * c.choices, c.experts, 8);
        args.slots = {.ids = args.ids,
                      .num_pairs = m * c.choices,
                      .num_experts = c.experts,
                      .rows = 8,
                      .count = memory.out<int32_t>(1),
                      .experts = memory.out<int32_t>(slots),
                      .pairs = memory.out<int32_t>(slots * 8)};
        args.arrivals = memory.in<int32_t>({0});
        return args;
      });
    }
  }
}

TEST_F(CudaOps, SelectExpertsActivatesTheSharedExpert) {
  for (const int64_t n : {50, 256, 2048}) {
    for (const float limit : {0.0f, 1.5f}) {
      compare<DeviceSelectExpertsArgs>(Op::kSelectExperts, [&](Memory& memory) {
        return DeviceSelectExpertsArgs{
            .shared = {.x = {.data = memory.normal(2 * 131 * 2 * n), .splits = 2},
                       .m = 131,
                       .n = n,
                       .limit = limit,
                       .y = memory.forms(131, n)}};
      });
    }
  }
}

TEST_F(CudaOps, Quantize) {
  for (const int64_t k : {50, 256, 2048}) {
    for (const bool is_bf16 : {false, true}) {
      compare<DeviceQuantizeArgs>(Op::kQuantize, [&](Memory& memory) {
        DeviceQuantizeArgs args{.m = 131, .k = k, .y = memory.forms(131, k)};
        if (k % 64 == 0) {
          const auto blocks = [&](int64_t terms) {
            return reinterpret_cast<std::byte*>(
                memory.out<int32_t>(bf16_blocks_bytes(131, k, terms) / 4));
          };
          args.y.bf16_blocks = blocks(1);
          args.y.bf16_terms = blocks(kBf16Terms);
        }
        if (is_bf16) {
          args.x_bf16 = memory.normal_bf16(131 * k);
        } else {
          args.x_sums = {.data = memory.normal(3 * 131 * k), .splits = 3};
        }
        return args;
      });
    }
  }
}

// --- sampling ---

TEST_F(CudaOps, SampleTakesTheLargest) {
  for (const int64_t vocab : {7, 129280}) {
    compare<DeviceSampleArgs>(Op::kSample, [&](Memory& memory) {
      return DeviceSampleArgs{.logits = {.data = memory.normal(2 * 5 * vocab), .splits = 2},
                              .m = 5,
                              .vocab = vocab,
                              .ids = memory.out<int32_t>(5),
                              .outcomes = memory.out<int32_t>(5),
                              .workspace = memory.scratch(sample_workspace_bytes(5, vocab))};
    });
  }
}

// Rows of equal logits, with one NaN or infinity in every part of a row, and sound ones.
TEST_F(CudaOps, SampleTellsLogitsThatNoSoundModelHas) {
  constexpr int32_t kRows = 34;
  constexpr int64_t kVocab = 1000;
  compare<DeviceSampleArgs>(Op::kSample, [&](Memory& memory) {
    std::vector<float> logits(kRows * kVocab);
    for (int64_t row = 0; row < kRows; ++row) {
      float* const values = logits.data() + row * kVocab;
      for (int64_t i = 0; i < kVocab; ++i) values[i] = row < 2 ? -3.0f : static_cast<float>(i % 7);
      const float fault = row % 2 == 0 ? NAN : -INFINITY;
      if (row > 2) values[(row - 2) * 31] = row == 3 ? INFINITY : fault;
    }
    logits[1] = -2.5f;
    return DeviceSampleArgs{.logits = {.data = memory.in(logits)},
                            .m = kRows,
                            .vocab = kVocab,
                            .ids = memory.out<int32_t>(kRows),
                            .outcomes = memory.out<int32_t>(kRows),
                            .workspace = memory.scratch(sample_workspace_bytes(kRows, kVocab))};
  });
}

// Small vocabularies, and such where more tokens are equal than can be compared with each other.
TEST_F(CudaOps, SampleDraws) {
  constexpr int32_t kRows = 48;
  for (const int64_t vocab : {3000, 129280}) {
    SCOPED_TRACE(vocab);
    compare<DeviceSampleArgs>(Op::kSample, [&](Memory& memory) {
      std::vector<float> temperatures, top_p, min_p;
      std::vector<int32_t> top_k;
      std::vector<uint64_t> seeds, draws;
      for (uint64_t i = 0; i < kRows; ++i) {
        temperatures.push_back(i % 6 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(i % 7));
        top_k.push_back(i % 3 == 0 ? 40 : i % 3 == 1 ? 0 : 1);
        top_p.push_back(i % 4 < 2 ? 1.0f : 0.3f * static_cast<float>(i % 4));
        min_p.push_back(i % 5 == 0 ? 0.05f : 0.0f);
        seeds.push_back(i * 977);
        draws.push_back(i);
      }
      std::mt19937 random(3);
      std::normal_distribution<float> normal(0.0f, 2.0f);
      std::vector<float> logits(static_cast<size_t>(kRows * vocab));
      // A grid of sixteenths gives many ties.
      for (float& logit : logits) logit = std::round(normal(random) * 16) / 16;
      // All but one token are far from the largest logit, and still likely.
      temperatures.back() = 100;
      top_k.back() = 0;
      top_p.back() = 0.9f;
      logits[static_cast<size_t>((kRows - 1) * vocab)] = 60;
      return DeviceSampleArgs{.logits = {.data = memory.in(logits)},
                              .m = kRows,
                              .vocab = vocab,
                              .temperatures = memory.in(temperatures),
                              .top_k = memory.in(top_k),
                              .top_p = memory.in(top_p),
                              .min_p = memory.in(min_p),
                              .seeds = memory.in(seeds),
                              .draws = memory.in(draws),
                              .ids = memory.out<int32_t>(kRows),
                              .outcomes = memory.out<int32_t>(kRows),
                              .workspace = memory.scratch(sample_workspace_bytes(kRows, vocab))};
    });
  }
}

}  // namespace
}  // namespace nibble::kernels
