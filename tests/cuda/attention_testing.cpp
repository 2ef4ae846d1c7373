#include "cuda/attention_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/kernel.h"
#include "quant/numeric.h"

namespace nibble::cuda_testing {
namespace {

constexpr int64_t kNumCodes = 448, kFp8RowBytes = 584;

void append_bf16_row(std::mt19937& random, int64_t width, HostKeys& keys) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < width; ++i) {
    const uint16_t value = quant::f32_to_bf16(normal(random));
    keys.bytes.push_back(static_cast<uint8_t>(value & 0xFF));
    keys.bytes.push_back(static_cast<uint8_t>(value >> 8));
    keys.values.push_back(quant::bf16_to_f32(value));
  }
}

// Codes of every finite value; scales that keep rows near 1.
void append_fp8_row(std::mt19937& random, HostKeys& keys) {
  const size_t begin = keys.bytes.size();
  std::vector<uint8_t> scales;
  for (int64_t i = 0; i < kNumCodes; ++i) {
    if (i % 64 == 0) scales.push_back(static_cast<uint8_t>(117 + random() % 4));
    auto code = static_cast<uint8_t>(random());
    if ((code & 0x7F) == 0x7F) code ^= 1;  // NaN
    if ((code & 0x7F) > 0x50) code ^= 0x40;
    keys.bytes.push_back(code);
    keys.values.push_back(quant::e4m3_to_f32(code) * quant::exp2_int(scales.back() - 127));
  }
  append_bf16_row(random, kKeyWidth - kNumCodes, keys);
  keys.bytes.insert(keys.bytes.end(), scales.begin(), scales.end());
  keys.bytes.resize(begin + kFp8RowBytes);
}

std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> rounded;
  for (const float value : values) rounded.push_back(quant::f32_to_bf16(value));
  return rounded;
}

template <class T>
std::vector<T> first_rows(const std::vector<T>& list, int32_t count) {
  return {list.begin(), list.begin() + count};
}

kernels::Launcher<kernels::SparseAttentionArgs> reference_launcher() {
  for (const kernels::KernelInfo* kernel : kernels::all_kernels()) {
    if (kernel->op == kernels::Op::kSparseAttention && kernels::is_reference(*kernel)) {
      return std::get<kernels::Launcher<kernels::SparseAttentionArgs>>(kernel->launch);
    }
  }
  return nullptr;
}

}  // namespace

HostKeys random_keys(DType dtype, int64_t rows, uint32_t seed) {
  std::mt19937 random(seed);
  HostKeys keys{.dtype = dtype, .bytes = {}, .values = {}};
  for (int64_t row = 0; row < rows; ++row) {
    if (dtype == DType::kBf16) {
      append_bf16_row(random, kKeyWidth, keys);
    } else {
      append_fp8_row(random, keys);
    }
  }
  return keys;
}

AttentionCase::AttentionCase(DType dtype,
                             int32_t num_heads,
                             std::vector<KeyCounts> key_counts,
                             uint32_t seed)
    : heads(num_heads), counts(std::move(key_counts)) {
  constexpr int32_t kWindowPool = 300, kEntryPool = 900;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  window = random_keys(dtype, kWindowPool, seed + 1);
  entries = random_keys(dtype, kEntryPool, seed + 2);
  for (size_t i = 0; i < out_size(); ++i) {
    q.push_back(quant::bf16_to_f32(quant::f32_to_bf16(normal(random))));
  }
  for (int32_t h = 0; h < heads; ++h) sink.push_back(normal(random));
  for (const KeyCounts& count : counts) {
    max_window = std::max(max_window, count.window);
    max_entries = std::max(max_entries, count.entries);
  }
  for (const KeyCounts& count : counts) {
    for (int32_t i = 0; i < max_window; ++i) {
      window_rows.push_back(i < count.window ? static_cast<int32_t>(random() % kWindowPool) : -1);
    }
    for (int32_t i = 0; i < max_entries; ++i) {
      entry_rows.push_back(i < count.entries ? static_cast<int32_t>(random() % kEntryPool) : -1);
    }
  }
}

void AttentionCase::upload() {
  std::vector<int32_t> window_counts, entry_counts;
  for (const KeyCounts& count : counts) {
    window_counts.push_back(count.window);
    entry_counts.push_back(count.entries);
  }
  on_device_.reset(new OnDevice{.q = DeviceArray<uint16_t>(to_bf16(q)),
                                .sink = DeviceArray<float>(sink),
                                .window = DeviceArray<uint8_t>(window.bytes),
                                .entries = DeviceArray<uint8_t>(entries.bytes),
                                .window_rows = DeviceArray<int32_t>(window_rows),
                                .entry_rows = DeviceArray<int32_t>(entry_rows),
                                .window_counts = DeviceArray<int32_t>(window_counts),
                                .entry_counts = DeviceArray<int32_t>(entry_counts)});
}

kernels::DeviceSparseAttentionArgs AttentionCase::args(uint16_t* out,
                                                       int32_t first,
                                                       int32_t count) {
  if (on_device_ == nullptr) upload();
  const OnDevice& device = *on_device_;
  return {.q = device.q.data() + int64_t{first} * heads * kKeyWidth,
          .window = {.pool = device.window.data(),
                     .rows = device.window_rows.data() + int64_t{first} * max_window,
                     .counts = device.window_counts.data() + first,
                     .max_rows = max_window},
          .entries = {.pool = device.entries.data(),
                      .rows = device.entry_rows.data() + int64_t{first} * max_entries,
                      .counts = device.entry_counts.data() + first,
                      .max_rows = max_entries},
          .kv_dtype = window.dtype,
          .sink = device.sink.data(),
          .scale = 1.0f / std::sqrt(static_cast<float>(kKeyWidth)),
          .out = {.bf16 = out},
          .m = count < 0 ? num_tokens() : count,
          .heads = heads,
          .num_units = gpu()->info().num_units};
}

std::vector<float> AttentionCase::reference(int32_t head) const {
  std::vector<float> head_q, out(counts.size() * kKeyWidth);
  std::vector<std::vector<int32_t>> windows, selected;
  std::vector<kernels::KeySet> keys;
  const auto present = [](const std::vector<int32_t>& rows, size_t begin, int32_t count) {
    std::vector<int32_t> list(rows.begin() + static_cast<ptrdiff_t>(begin),
                              rows.begin() + static_cast<ptrdiff_t>(begin) + count);
    std::erase(list, -1);
    return list;
  };
  for (size_t t = 0; t < counts.size(); ++t) {
    const auto begin =
        q.begin() + static_cast<ptrdiff_t>(
                        (t * static_cast<size_t>(heads) + static_cast<size_t>(head)) * kKeyWidth);
    head_q.insert(head_q.end(), begin, begin + kKeyWidth);
    windows.push_back(present(window_rows, t * static_cast<size_t>(max_window), counts[t].window));
    selected.push_back(
        present(entry_rows, t * static_cast<size_t>(max_entries), counts[t].entries));
  }
  for (size_t t = 0; t < counts.size(); ++t) {
    keys.push_back({.window = window.values.data(),
                    .window_rows = windows[t],
                    .entries = entries.values.data(),
                    .entry_rows = selected[t]});
  }
  const Shape shape{num_tokens(), 1, kKeyWidth};
  const kernels::SparseAttentionArgs args{
      .q = TensorView::contiguous(head_q.data(), DType::kF32, shape),
      .keys = keys,
      .kv_dtype = DType::kF32,
      .sink = &sink[static_cast<size_t>(head)],
      .scale = 1.0f / std::sqrt(static_cast<float>(kKeyWidth)),
      .out = TensorView::contiguous(out.data(), DType::kF32, shape)};
  device::Stream stream;
  reference_launcher()(args, stream).value();
  return out;
}

}  // namespace nibble::cuda_testing
