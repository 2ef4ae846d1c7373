// What a step uploads: its tokens, sequences and row lists, in one copy. Layout and addresses
// follow from the numbers of rows and sequences alone, so that a recorded graph finds them again.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/buffer.h"
#include "device/device.h"
#include "kernels/device_args.h"
#include "models/deepseek_v4/gpu/state.h"
#include "models/deepseek_v4/pass_rows.h"

namespace nibble::models::deepseek_v4::gpu {

// Rows and sequences that a step has room for; those beyond the real ones are padding.
struct StepSize {
  int32_t rows = 0;
  int32_t sequences = 0;
  int32_t mtp_rows = 0;
};

// The rows of the main model or of the MTP layer. Device memory.
struct RowLists {
  kernels::DeviceTokens tokens;
  kernels::DeviceSequences sequences;
  const int32_t* ring_rows = nullptr;  // [m] where a key in scratch goes after attention; -1: stays
};

struct StepLists {
  RowLists main;
  RowLists mtp;
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
  Result<void> upload(device::Device& device) const;

  // The addresses of a step of that size.
  StepLists lists(const StepSize& size) const;
  int32_t max_pages() const { return max_pages_; }

 private:
  struct Layout;
  Layout layout(const StepSize& size) const;
  int32_t* host() const { return reinterpret_cast<int32_t*>(staging_.data()); }
  const int32_t* device() const { return reinterpret_cast<const int32_t*>(storage_.data()); }

  device::Buffer staging_;
  device::Buffer storage_;
  int32_t max_pages_ = 0;
  int64_t used_bytes_ = 0;
};

}  // namespace nibble::models::deepseek_v4::gpu
