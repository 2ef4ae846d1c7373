// Random inputs of sparse attention on a GPU and what the reference row makes of them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/cuda_testing.h"
#include "kernels/device_args.h"

namespace nibble::cuda_testing {

inline constexpr int64_t kKeyWidth = 512;

// How many keys a token sees in the two pools.
struct KeyCounts {
  int32_t window = 0;
  int32_t entries = 0;
};

// A pool of key rows in BF16 or FP8 as the device stores them, and what they mean.
struct HostKeys {
  DType dtype = DType::kBf16;
  std::vector<uint8_t> bytes;
  std::vector<float> values;  // [rows, kKeyWidth]
};
HostKeys random_keys(DType dtype, int64_t rows, uint32_t seed);

// One launch's inputs, on the host and on the device. Lists name random rows, duplicates included.
class AttentionCase {
 public:
  AttentionCase(DType dtype, int32_t heads, std::vector<KeyCounts> counts, uint32_t seed);

  // Copies what the tests below changed on the host to the device.
  void upload();
  // Arguments over all tokens, or over `count` tokens from `first` on; out must have their size.
  kernels::DeviceSparseAttentionArgs args(uint16_t* out, int32_t first = 0, int32_t count = -1);
  // The scalar reference for one head of each token: [m, kKeyWidth].
  std::vector<float> reference(int32_t head) const;

  int32_t num_tokens() const { return static_cast<int32_t>(counts.size()); }
  size_t out_size() const { return counts.size() * static_cast<size_t>(heads * kKeyWidth); }

  int32_t heads;
  std::vector<KeyCounts> counts;
  std::vector<float> q;  // [m, heads, kKeyWidth], exact in BF16
  std::vector<float> sink;
  HostKeys window, entries;
  int32_t max_window = 1, max_entries = 1;
  std::vector<int32_t> window_rows, entry_rows;  // [m, max]; -1 beyond the counts

 private:
  struct OnDevice {
    DeviceArray<uint16_t> q;
    DeviceArray<float> sink;
    DeviceArray<uint8_t> window, entries;
    DeviceArray<int32_t> window_rows, entry_rows, window_counts, entry_counts;
  };
  std::unique_ptr<OnDevice> on_device_;
};

}  // namespace nibble::cuda_testing
