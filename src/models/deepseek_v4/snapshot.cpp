#include "models/deepseek_v4/snapshot.h"

#include <fmt/format.h>

#include <cstring>

#include "base/hash.h"

namespace nibble::models::deepseek_v4 {
namespace {

constexpr uint32_t kSnapshotMagic = 0x534C424E;  // "NBLS"
constexpr uint32_t kSnapshotVersion = 1;

// First bytes of a snapshot, little-endian. The checksum covers the header with checksum 0 and the
// payload.
struct SnapshotHeader {
  uint32_t magic = kSnapshotMagic;
  uint32_t version = kSnapshotVersion;
  uint64_t fingerprint = 0;
  int32_t length = 0;
  int32_t mtp_begin = 0;
  int32_t mtp_end = 0;
  int32_t reserved = 0;
  int64_t payload_bytes = 0;
  uint64_t checksum = 0;
};

uint64_t checksum_of(SnapshotHeader header, std::span<const std::byte> payload) {
  header.checksum = 0;
  return hash_bytes(payload, hash_bytes(std::as_bytes(std::span(&header, 1))));
}

}  // namespace

int64_t snapshot_header_bytes() { return static_cast<int64_t>(sizeof(SnapshotHeader)); }

Result<std::vector<std::byte>> make_snapshot(
    SlotId slot,
    const SlotStatus& status,
    uint64_t fingerprint,
    int64_t payload_bytes,
    const std::function<Result<void>(std::span<std::byte> payload)>& fill) {
  if (status.length % kPageSize != 0) {
    return invalid_argument(fmt::format("slot {}: save at length {}, expected a multiple of {}",
                                        slot.value,
                                        status.length,
                                        kPageSize));
  }
  SnapshotHeader header{.fingerprint = fingerprint,
                        .length = status.length,
                        .mtp_begin = status.mtp_begin,
                        .mtp_end = status.mtp_end,
                        .payload_bytes = payload_bytes};
  std::vector<std::byte> snapshot(sizeof(header) + static_cast<size_t>(payload_bytes));
  const auto payload = std::span(snapshot).subspan(sizeof(header));
  TRY(fill(payload));
  header.checksum = checksum_of(header, payload);
  std::memcpy(snapshot.data(), &header, sizeof(header));
  return snapshot;
}

Result<OpenSnapshot> open_snapshot(std::span<const std::byte> snapshot,
                                   uint64_t fingerprint,
                                   int32_t max_context,
                                   const std::function<int64_t(int32_t length)>& payload_bytes) {
  SnapshotHeader header;
  if (snapshot.size() < sizeof(header)) {
    return data_loss(
        fmt::format("snapshot: {} bytes, expected at least {}", snapshot.size(), sizeof(header)));
  }
  std::memcpy(&header, snapshot.data(), sizeof(header));
  const auto payload = snapshot.subspan(sizeof(header));
  if (header.magic != kSnapshotMagic || header.version != kSnapshotVersion) {
    return data_loss(fmt::format("snapshot: magic {:08x} version {}, expected {:08x} version {}",
                                 header.magic,
                                 header.version,
                                 kSnapshotMagic,
                                 kSnapshotVersion));
  }
  if (header.fingerprint != fingerprint) {
    return data_loss(
        fmt::format("snapshot: made by model {:016x}, this is model {:016x} (weights, config, "
                    "precision, KV form)",
                    header.fingerprint,
                    fingerprint));
  }
  if (header.payload_bytes != static_cast<int64_t>(payload.size()) ||
      header.checksum != checksum_of(header, payload) || header.length < 0 ||
      header.length % kPageSize != 0) {
    return data_loss("snapshot: checksum or size does not match; the snapshot is damaged");
  }
  if (header.length > max_context) {
    return invalid_argument(
        fmt::format("snapshot: length {}, larger than max_context {}", header.length, max_context));
  }
  if (header.payload_bytes != payload_bytes(header.length)) {
    return data_loss(fmt::format("snapshot: {} bytes of rows, expected {} for {} tokens",
                                 header.payload_bytes,
                                 payload_bytes(header.length),
                                 header.length));
  }
  return OpenSnapshot{.status = {.length = header.length,
                                 .high_water = header.length,
                                 .restored = header.length,
                                 .mtp_begin = header.mtp_begin,
                                 .mtp_end = header.mtp_end},
                      .payload = payload};
}

}  // namespace nibble::models::deepseek_v4
