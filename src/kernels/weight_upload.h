// Puts stored weights on a device in the layouts of its kernels. Stored bytes go through a ring of
// host buffers that the device copies from beside other work, filled by several threads, and are
// brought into their layout on the device where kernels/cuda/repack has a row for it; otherwise
// the host packs them (pack_weight). Owner: the loading thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/packed_weight.h"
#include "kernels/panel64.h"

namespace nibble::kernels {

struct UploadOptions {
  int32_t num_threads = 0;  // that read; 0: physical cores
  int32_t num_buffers = 4;
  int64_t buffer_bytes = int64_t{32} << 20;  // each, on the host and on the device
  bool packs_on_host = false;                // leave the device's own packing out
};

// What an uploader did so far.
struct UploadStatistics {
  int64_t stored_bytes = 0;       // read
  int64_t host_packed_bytes = 0;  // of them, packed by the host
  double read_seconds = 0;        // the loading thread was busy reading
  double wait_seconds = 0;        // it waited for the device
  double total_seconds = 0;       // since the uploader was made, of the last finish()
};
// "30.8 GB to the device in 1.42 s (21.7 GB/s): reading 1.20 s, waiting for it 0.02 s, 0 MB packed
// by the host"
std::string upload_report(const UploadStatistics& statistics);

class WeightUploader final {
 public:
  // `device` must outlive the uploader.
  static Result<WeightUploader> create(device::Device& device, const UploadOptions& options = {});

  // groups[e]: the rows stacked into weight e; all of one format and shape. The result's pointers
  // are device memory: the codes of all groups one by one, then their scales, then their global
  // scales; n is that of one group. kPanel64 and other layouts with an order are packed in `order`.
  // Stored bytes are not read again after the call; the device's part is complete for work that is
  // put on the device's stream afterwards, and correct if finish() says so.
  //   name: for messages
  // Errors of pack_weight(), which finish() reports where the device finds them.
  Result<PackedWeight> pack_groups(std::string_view name,
                                   std::span<const std::vector<WeightRows>> groups,
                                   PackedLayout layout,
                                   PanelOrder order = PanelOrder::kNatural);
  Result<PackedWeight> pack(std::string_view name,
                            std::span<const WeightRows> sources,
                            PackedLayout layout,
                            PanelOrder order = PanelOrder::kNatural);
  // Bytes as they are.
  Result<device::Buffer> upload(std::span<const std::byte> bytes);

  // Waits for the device. kUnsupported and kDataLoss as pack_weight() for weights that the device
  // packed.
  Result<void> finish();

  const UploadStatistics& statistics() const;

  WeightUploader(WeightUploader&&) noexcept;
  WeightUploader& operator=(WeightUploader&&) noexcept;
  ~WeightUploader();

 private:
  class Impl;
  explicit WeightUploader(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::kernels
