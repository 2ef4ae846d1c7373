// Snapshots of a slot: a header with a checksum, then the rows that a sequence needs to continue,
// in the order of the state that wrote them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "models/deepseek_v4/slot_table.h"

namespace nibble::models::deepseek_v4 {

// Bytes before the rows.
int64_t snapshot_header_bytes();

// A snapshot of a slot in `status`, its rows filled by `fill`. kInvalidArgument unless the length
// is a multiple of the page size.
Result<std::vector<std::byte>> make_snapshot(
    SlotId slot,
    const SlotStatus& status,
    uint64_t fingerprint,
    int64_t payload_bytes,
    const std::function<Result<void>(std::span<std::byte> payload)>& fill);

// What a snapshot holds; `payload` points into it.
struct OpenSnapshot {
  SlotStatus status;
  std::span<const std::byte> payload;
};
// kDataLoss for a snapshot that is damaged or of another model, kInvalidArgument where it does not
// fit max_context. payload_bytes(length): what rows of that many tokens take.
Result<OpenSnapshot> open_snapshot(std::span<const std::byte> snapshot,
                                   uint64_t fingerprint,
                                   int32_t max_context,
                                   const std::function<int64_t(int32_t length)>& payload_bytes);

}  // namespace nibble::models::deepseek_v4
