// What a step uploads: its tokens, sequences and row lists, in one copy. Layout and addresses
// follow from the numbers of rows and sequences alone, so that a recorded graph finds them again.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>

#include "base/result.h"
#include "device/buffer.h"
#include "device/device.h"
#include "kernels/device_args.h"
#include "models/deepseek_v4/gpu/state.h"
#include "models/deepseek_v4/pass_rows.h"

namespace nibble::models::deepseek_v4::gpu {

// Decode steps that may be queued: one runs, the next waits.
inline constexpr int32_t kMaxQueuedSteps = 2;

// Rows of the decode steps that are recorded as graphs; a step takes the next larger one.
inline constexpr int32_t kBuckets[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
inline constexpr int32_t kMaxDecodeRows = kBuckets[std::size(kBuckets) - 1];
// The smallest bucket that holds `rows`; 0 when none does.
int32_t bucket_of(int32_t rows);

// Rows and sequences that a step has room for; those beyond the real ones are padding.
struct StepSize {
  int32_t rows = 0;
  int32_t sequences = 0;
  int32_t mtp_rows = 0;
  int32_t sampled_rows = 0;

  // A decode step of that many rows.
  static StepSize decode(int32_t rows) {
    return {.rows = rows, .sequences = rows, .mtp_rows = 0, .sampled_rows = rows};
  }
};

// The rows of the main model or of the MTP layer. Device memory.
struct RowLists {
  kernels::DeviceTokens tokens;
  kernels::DeviceSequences sequences;
  const int32_t* ring_rows = nullptr;  // [m] where a key in scratch goes after attention; -1: stays
};

// How the rows' next tokens are chosen. Device memory, [sampled_rows].
struct SampleLists {
  const float* temperatures = nullptr;
  const int32_t* top_k = nullptr;
  const float* top_p = nullptr;
  const float* min_p = nullptr;
  const uint64_t* seeds = nullptr;
  const uint64_t* draws = nullptr;
  const int32_t* from_rows = nullptr;  // row of the step before whose choice is this row's token
  int32_t* ids = nullptr;              // of the rows, to be overwritten by those
};

struct StepLists {
  RowLists main;
  RowLists mtp;
  SampleLists sample;
  const int32_t* logits_rows = nullptr;    // [rows] rows whose logits are wanted, then -1
  const int32_t* stream_rows = nullptr;    // [rows] row of the stream ring; -1: not kept
  const int32_t* mtp_from_rows = nullptr;  // [mtp_rows] row of this step's streams, or -1:
  const int32_t* mtp_from_ring = nullptr;  // [mtp_rows] row of the stream ring
};

// Whether the sequences write their rings at once (kernels::DevicePlanArgs::direct_tokens).
bool is_direct(const PassRows& rows);

class StepPlan final {
 public:
  static Result<StepPlan> make(const StateOptions& options, device::Device& device);
  // What make() allocates on the device, for plans.
  static int64_t num_bytes(const StateOptions& options);

  // Waits in host memory until upload(). `mtp` may be null.
  void fill(const StepSize& size,
            const PassRows& rows,
            const PassRows* mtp,
            std::span<const int32_t> logits_rows,
            const State& state);
  // With `from_rows` [rows]: how the rows' next tokens are chosen, and where the rows' own tokens
  // come from where that is not -1.
  void fill_sampling(const StepSize& size,
                     std::span<const DeviceSampling> sampling,
                     std::span<const int32_t> from_rows);
  // The next fill() uses other host memory, so that this one's may still be read.
  Result<void> upload(device::Device& device);

  // The addresses of a step of that size.
  StepLists lists(const StepSize& size) const;

 private:
  struct Layout;
  Layout layout(const StepSize& size) const;
  int32_t* host() const { return reinterpret_cast<int32_t*>(staging_[turn_].data()); }
  int32_t* device() const { return reinterpret_cast<int32_t*>(storage_.data()); }

  // The queued steps' and that of a pass beside them, which is waited for.
  device::Buffer staging_[kMaxQueuedSteps + 1];
  size_t turn_ = 0;
  device::Buffer storage_;
  int32_t max_pages_ = 0;
  int64_t used_bytes_ = 0;
};

}  // namespace nibble::models::deepseek_v4::gpu
