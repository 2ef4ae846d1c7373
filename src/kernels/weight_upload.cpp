#include "kernels/weight_upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/clock.h"
#include "base/file.h"
#include "device/event.h"
#include "device/thread_pool.h"
#include "kernels/fp8_panel64.h"
#include "kernels/repack.h"
#include "kernels/slab16.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kPartAlignment = 256;  // of the parts of a packed weight
constexpr int64_t kPieceAlignment = 16;  // of stored rows in a buffer

const SteadyClock kClock;  // has no state

double seconds_since(TimePoint start) { return to_seconds(kClock.now() - start); }

// Stored rows of one format and k, as bytes.
struct StoredRows {
  const quant::WeightView* weight = nullptr;

  int64_t code_row_bytes() const {
    return weight->codes.row_stride * dtype_size(weight->codes.dtype);
  }
  bool has_scales() const { return quant::format_info(weight->format).has_scales(); }
  int64_t block_rows() const { return quant::format_info(weight->format).block_shape.n; }
  int64_t scale_row_bytes() const {
    return has_scales() ? weight->scales.row_stride * dtype_size(weight->scales.dtype) : 0;
  }
  // Of rows [begin, end).
  std::span<const std::byte> codes(int64_t begin, int64_t end) const {
    const auto* const first = static_cast<const std::byte*>(weight->codes.data);
    return {first + begin * code_row_bytes(),
            static_cast<size_t>((end - begin) * code_row_bytes())};
  }
  std::span<const std::byte> scales(int64_t begin, int64_t end) const {
    if (!has_scales()) return {};
    const auto* const first = static_cast<const std::byte*>(weight->scales.data);
    const int64_t first_block = begin / block_rows();
    const int64_t num_blocks = ceil_div(end, block_rows()) - first_block;
    return {first + first_block * scale_row_bytes(),
            static_cast<size_t>(num_blocks * scale_row_bytes())};
  }
};

// What a group of rows becomes.
struct Shape2 {
  int64_t n = 0;
  int64_t k = 0;
};

int64_t num_rows(std::span<const WeightRows> sources) {
  int64_t rows = 0;
  for (const WeightRows& source : sources) rows += source.row_end - source.row_begin;
  return rows;
}

Result<Shape2> check_groups(std::span<const std::vector<WeightRows>> groups) {
  if (groups.empty()) return invalid_argument("pack: no weight");
  for (const std::vector<WeightRows>& group : groups) TRY(check_stack(group));
  const quant::WeightView& first = groups.front().front().weight;
  const Shape2 shape{.n = num_rows(groups.front()), .k = first.k};
  for (const std::vector<WeightRows>& group : groups) {
    const quant::WeightView& weight = group.front().weight;
    if (weight.format == first.format && weight.k == first.k && num_rows(group) == shape.n &&
        weight.scales.dtype == first.scales.dtype) {
      continue;
    }
    return data_loss("pack: weights of " + std::string(quant::format_name(weight.format)) + " " +
                     Shape{num_rows(group), weight.k}.to_string() + " beside " +
                     std::string(quant::format_name(first.format)) + " " +
                     Shape{shape.n, shape.k}.to_string() + ", expected equal ones");
  }
  return shape;
}

Result<void> check_layout(std::span<const WeightRows> sources,
                          PackedLayout layout,
                          PanelOrder order) {
  if (layout == PackedLayout::kPanel64) return check_panel64(sources, order);
  if (layout == PackedLayout::kFp8Panel64) TRY(check_fp8_panel64(sources));
  return {};
}

// A part of memory that the packed weight shows as constant; null where it has none.
std::byte* writable(const PackedWeight& packed, const void* part) {
  if (part == nullptr) return nullptr;
  return packed.storage.data() + (static_cast<const std::byte*>(part) - packed.storage.data());
}

Result<PackedWeight> pack_on_host(std::span<const WeightRows> sources,
                                  PackedLayout layout,
                                  PanelOrder order) {
  if (layout == PackedLayout::kPanel64) return pack_panel64(sources, order);
  if (layout == PackedLayout::kSlab16) return pack_slab16(sources, order);
  return pack_weight(sources, layout);
}

//   wrong: see RepackArgs::failure
std::string what_does_not_fit(uint32_t wrong) {
  if (wrong == kScaleIsNan) return "a group scale is NaN or infinite";
  if (wrong == kScaleIsNoBf16) return "a group scale is no bf16 value";
  return "group exponents of a row differ by " + std::to_string(wrong) + ", at most " +
         std::to_string(kPanelScaleMax) + " fit";
}

}  // namespace

class WeightUploader::Impl {
 public:
  Impl(device::Device& device, const UploadOptions& options)
      : device_(device),
        options_(options),
        pool_({.num_threads = options.num_threads}),
        // The device's own packing needs kernels that run on it.
        packs_on_device_(!options.packs_on_host && device.stream().native != nullptr) {}

  Result<void> allocate();
  Result<PackedWeight> pack(std::string_view name,
                            std::span<const std::vector<WeightRows>> groups,
                            PackedLayout layout,
                            PanelOrder order);
  Result<void> append(std::span<const std::byte> bytes, std::byte* to);
  Result<void> flush();
  Result<void> finish();

  device::Device& device() { return device_; }
  const UploadStatistics& statistics() const { return statistics_; }

 private:
  struct Slot {
    device::Buffer host;
    device::Buffer staging;  // device memory
    device::Event done;
  };
  struct Read {
    std::span<const std::byte> from;
    std::byte* to = nullptr;
  };
  struct Transfer {
    const std::byte* host = nullptr;
    std::byte* device = nullptr;
    int64_t num_bytes = 0;
  };
  struct Launch {
    const RepackInfo* repack = nullptr;
    RepackArgs args;
  };

  Slot& slot() { return slots_[current_]; }
  int64_t room() const { return options_.buffer_bytes - used_; }
  Result<void> make_room(int64_t num_bytes);
  // Plans to read `bytes` into the slot and to bring them to `to`; the slot's own staging memory
  // when that is null. Returns where they arrive.
  std::byte* place(std::span<const std::byte> bytes, std::byte* to);
  void read_all();

  Result<PackedWeight> allocate_packed(const quant::WeightView& like,
                                       const Shape2& shape,
                                       int64_t num_groups,
                                       PackedLayout layout,
                                       const PackedParts& parts);
  Result<void> repack_group(const RepackInfo& repack,
                            std::span<const WeightRows> sources,
                            RepackArgs args);
  Result<void> repack_source(const RepackInfo& repack, const WeightRows& source, RepackArgs args);
  void repack_rows(const RepackInfo& repack,
                   const StoredRows& rows,
                   int64_t begin,
                   int64_t end,
                   RepackArgs args);
  Result<void> pack_groups_on_host(std::span<const std::vector<WeightRows>> groups,
                                   PackedLayout layout,
                                   PanelOrder order,
                                   const PackedParts& parts,
                                   PackedWeight& packed);

  device::Device& device_;
  const UploadOptions options_;
  device::ThreadPool pool_;
  const bool packs_on_device_;
  std::vector<Slot> slots_;
  size_t current_ = 0;
  int64_t used_ = 0;  // of the current slot
  std::vector<Read> reads_;
  std::vector<Transfer> transfers_;
  std::vector<Launch> launches_;
  device::Buffer failure_;            // one uint64_t on the device; empty when the host packs
  std::vector<std::string> tickets_;  // names of what the device packs
  UploadStatistics statistics_;
  const TimePoint created_ = kClock.now();
};

Result<void> WeightUploader::Impl::allocate() {
  CHECK(options_.num_buffers > 0 && options_.buffer_bytes > 0);
  for (int32_t i = 0; i < options_.num_buffers; ++i) {
    Slot slot;
    TRY_ASSIGN(slot.host, device_.allocate_host(options_.buffer_bytes));
    if (packs_on_device_) {
      TRY_ASSIGN(slot.staging, device_.allocate(options_.buffer_bytes));
    }
    slots_.push_back(std::move(slot));
  }
  if (packs_on_device_) {
    TRY_ASSIGN(failure_, device_.allocate(sizeof(uint64_t)));
  }
  return {};
}

Result<void> WeightUploader::Impl::make_room(int64_t num_bytes) {
  if (room() < num_bytes) TRY(flush());
  CHECK(room() >= num_bytes) << num_bytes << " of " << options_.buffer_bytes;
  if (used_ > 0) return {};
  const TimePoint start = kClock.now();
  TRY(slot().done.wait());
  statistics_.wait_seconds += seconds_since(start);
  return {};
}

std::byte* WeightUploader::Impl::place(std::span<const std::byte> bytes, std::byte* to) {
  if (bytes.empty()) return nullptr;
  const auto num_bytes = static_cast<int64_t>(bytes.size());
  std::byte* const host = slot().host.data() + used_;
  if (to == nullptr) to = slot().staging.data() + used_;
  reads_.push_back({.from = bytes, .to = host});
  transfers_.push_back({.host = host, .device = to, .num_bytes = num_bytes});
  used_ = std::min(round_up(used_ + num_bytes, kPieceAlignment), options_.buffer_bytes);
  return to;
}

// All threads copy what was placed. Mapped files are fetched a task at a time.
void WeightUploader::Impl::read_all() {
  constexpr size_t kTaskBytes = 256 << 10;
  const TimePoint start = kClock.now();
  std::vector<Read> tasks;
  for (const Read& read : reads_) {
    for (size_t begin = 0; begin < read.from.size(); begin += kTaskBytes) {
      const size_t count = std::min(kTaskBytes, read.from.size() - begin);
      tasks.push_back({.from = read.from.subspan(begin, count), .to = read.to + begin});
    }
    statistics_.stored_bytes += static_cast<int64_t>(read.from.size());
  }
  pool_.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    const Read& task = tasks[static_cast<size_t>(i)];
    fetch_mapped(task.from);
    std::memcpy(task.to, task.from.data(), task.from.size());
  });
  reads_.clear();
  statistics_.read_seconds += seconds_since(start);
}

Result<void> WeightUploader::Impl::flush() {
  if (used_ == 0) return {};
  read_all();
  for (const Transfer& transfer : transfers_) {
    TRY(device_.copy_in(transfer.device, transfer.host, transfer.num_bytes));
  }
  for (const Launch& launch : launches_) {
    TRY(launch.repack->launch(launch.args, device_.stream()));
  }
  TRY(slot().done.record(device_.stream()));
  transfers_.clear();
  launches_.clear();
  used_ = 0;
  current_ = (current_ + 1) % slots_.size();
  return {};
}

Result<void> WeightUploader::Impl::append(std::span<const std::byte> bytes, std::byte* to) {
  while (!bytes.empty()) {
    TRY(make_room(1));
    const size_t count = std::min(bytes.size(), static_cast<size_t>(room()));
    place(bytes.first(count), to);
    bytes = bytes.subspan(count);
    to += count;
  }
  return {};
}

Result<PackedWeight> WeightUploader::Impl::allocate_packed(const quant::WeightView& like,
                                                           const Shape2& shape,
                                                           int64_t num_groups,
                                                           PackedLayout layout,
                                                           const PackedParts& parts) {
  const int64_t scales_at = round_up(num_groups * parts.codes, kPartAlignment);
  const int64_t globals_at = scales_at + round_up(num_groups * parts.scales, kPartAlignment);
  PackedWeight packed;
  TRY_ASSIGN(packed.storage, device_.allocate(globals_at + num_groups * parts.global_scales));
  packed.format = like.format;
  packed.layout = layout;
  packed.n = shape.n;
  packed.k = shape.k;
  packed.codes = packed.storage.data();
  if (parts.scales > 0) packed.scales = packed.storage.data() + scales_at;
  if (layout == PackedLayout::kInterleaved16 && parts.scales > 0) {
    packed.scale_dtype = like.scales.dtype;
  }
  if (parts.global_scales > 0) {
    packed.global_scales = reinterpret_cast<const float*>(packed.storage.data() + globals_at);
  }
  return packed;
}

void WeightUploader::Impl::repack_rows(
    const RepackInfo& repack, const StoredRows& rows, int64_t begin, int64_t end, RepackArgs args) {
  std::byte* const copied =
      repack.copies_codes ? args.packed_codes + args.stack_row * rows.code_row_bytes() : nullptr;
  args.codes = place(rows.codes(begin, end), copied);
  args.scales = place(rows.scales(begin, end), nullptr);
  args.first_row = begin;
  args.num_rows = end - begin;
  if (repack.launch != nullptr) launches_.push_back({.repack = &repack, .args = args});
}

// A source in pieces that fit the slots.
Result<void> WeightUploader::Impl::repack_source(const RepackInfo& repack,
                                                 const WeightRows& source,
                                                 RepackArgs args) {
  const StoredRows rows{.weight = &source.weight};
  const auto bytes_of = [&](int64_t begin, int64_t end) {
    return round_up(static_cast<int64_t>(rows.codes(begin, end).size()), kPieceAlignment) +
           round_up(static_cast<int64_t>(rows.scales(begin, end).size()), kPieceAlignment);
  };
  args.scale_dtype = source.weight.scales.dtype;
  args.global_scale = source.weight.global_scale;
  for (int64_t begin = source.row_begin; begin < source.row_end;) {
    // No slivers: what is left of a slot takes an eighth of one or all that is left.
    TRY(make_room(std::min(bytes_of(begin, source.row_end),
                           std::max(bytes_of(begin, begin + 1), options_.buffer_bytes / 8))));
    int64_t end = source.row_end;
    while (bytes_of(begin, end) > room()) end = begin + (end - begin) * 15 / 16;
    CHECK(end > begin) << "a row of " << bytes_of(begin, begin + 1) << " bytes";
    repack_rows(repack, rows, begin, end, args);
    args.stack_row += end - begin;
    begin = end;
  }
  return {};
}

Result<void> WeightUploader::Impl::repack_group(const RepackInfo& repack,
                                                std::span<const WeightRows> sources,
                                                RepackArgs args) {
  for (const WeightRows& source : sources) {
    TRY(repack_source(repack, source, args));
    args.stack_row += source.row_end - source.row_begin;
  }
  return {};
}

Result<void> WeightUploader::Impl::pack_groups_on_host(
    std::span<const std::vector<WeightRows>> groups,
    PackedLayout layout,
    PanelOrder order,
    const PackedParts& parts,
    PackedWeight& packed) {
  const auto batch_size = static_cast<size_t>(pool_.num_threads());
  std::byte* codes = packed.storage.data();
  std::byte* scales = writable(packed, packed.scales);
  std::byte* globals = writable(packed, packed.global_scales);
  const auto bytes = [](const void* data, int64_t count) {
    return std::span(static_cast<const std::byte*>(data), static_cast<size_t>(count));
  };
  while (!groups.empty()) {
    const auto batch = groups.first(std::min(batch_size, groups.size()));
    groups = groups.subspan(batch.size());
    std::vector<Result<PackedWeight>> results;
    for (size_t i = 0; i < batch.size(); ++i) results.emplace_back(PackedWeight{});
    pool_.parallel_for(static_cast<int64_t>(batch.size()), [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      results[at] = pack_on_host(batch[at], layout, order);
    });
    for (const Result<PackedWeight>& result : results) {
      if (!result.ok()) return result.error();
      const PackedWeight& one = *result;
      statistics_.host_packed_bytes += one.num_bytes();
      TRY(append(bytes(one.codes, parts.codes), codes));
      TRY(append(bytes(one.scales, parts.scales), scales));
      TRY(append(bytes(one.global_scales, parts.global_scales), globals));
      codes += parts.codes;
      if (parts.scales > 0) scales += parts.scales;
      if (parts.global_scales > 0) globals += parts.global_scales;
    }
    TRY(flush());
  }
  return {};
}

Result<PackedWeight> WeightUploader::Impl::pack(std::string_view name,
                                                std::span<const std::vector<WeightRows>> groups,
                                                PackedLayout layout,
                                                PanelOrder order) {
  TRY_ASSIGN(const Shape2 shape, check_groups(groups));
  for (const std::vector<WeightRows>& group : groups) TRY(check_layout(group, layout, order));
  const quant::WeightView& like = groups.front().front().weight;
  const PackedParts parts =
      packed_weight_parts(like.format, shape.n, shape.k, like.scales.dtype, layout);
  if (parts.codes == 0) {
    return invalid_argument("pack: layout " + std::string(layout_name(layout)) +
                            " holds no weight");
  }
  TRY_ASSIGN(PackedWeight packed,
             allocate_packed(like, shape, static_cast<int64_t>(groups.size()), layout, parts));
  const RepackInfo* const repack = packs_on_device_ ? find_repack(like.format, layout) : nullptr;
  if (repack == nullptr) {
    TRY(pack_groups_on_host(groups, layout, order, parts, packed));
    return packed;
  }
  std::byte* const base = packed.storage.data();
  RepackArgs args{.block_shape = quant::format_info(like.format).block_shape,
                  .k = shape.k,
                  .n = shape.n,
                  .order = order,
                  .packed_codes = base,
                  .failure = reinterpret_cast<uint64_t*>(failure_.data())};
  tickets_.emplace_back(name);
  args.ticket = static_cast<uint32_t>(tickets_.size());
  args.packed_scales = writable(packed, packed.scales);
  args.packed_global_scales = reinterpret_cast<float*>(writable(packed, packed.global_scales));
  for (const std::vector<WeightRows>& group : groups) {
    TRY(repack_group(*repack, group, args));
    args.packed_codes += parts.codes;
    if (parts.scales > 0) args.packed_scales += parts.scales;
    if (parts.global_scales > 0) args.packed_global_scales += parts.global_scales / 4;
  }
  TRY(flush());
  return packed;
}

Result<void> WeightUploader::Impl::finish() {
  TRY(flush());
  const TimePoint start = kClock.now();
  uint64_t failure = 0;
  if (failure_.num_bytes() > 0) TRY(device_.copy_out(&failure, failure_.data(), sizeof(failure)));
  TRY(device_.synchronize());
  statistics_.wait_seconds += seconds_since(start);
  statistics_.total_seconds = seconds_since(created_);
  if (failure == 0) return {};
  const auto ticket = static_cast<size_t>(failure >> 32);
  CHECK(ticket > 0 && ticket <= tickets_.size()) << ticket;
  return unsupported(tickets_[ticket - 1] +
                     ": panel64: " + what_does_not_fit(static_cast<uint32_t>(failure)) +
                     "; force a kernel with another layout (--kernel)");
}

std::string upload_report(const UploadStatistics& statistics) {
  const auto gb = static_cast<double>(statistics.stored_bytes) * 1e-9;
  return fmt::format(
      "{:.1f} GB to the device in {:.2f} s ({:.1f} GB/s): reading {:.2f} s, waiting for it {:.2f} "
      "s, {:.0f} MB packed by the host",
      gb,
      statistics.total_seconds,
      gb / std::max(statistics.total_seconds, 1e-9),
      statistics.read_seconds,
      statistics.wait_seconds,
      static_cast<double>(statistics.host_packed_bytes) * 1e-6);
}

Result<WeightUploader> WeightUploader::create(device::Device& device,
                                              const UploadOptions& options) {
  auto impl = std::make_unique<Impl>(device, options);
  TRY(impl->allocate());
  return WeightUploader(std::move(impl));
}

Result<PackedWeight> WeightUploader::pack_groups(std::string_view name,
                                                 std::span<const std::vector<WeightRows>> groups,
                                                 PackedLayout layout,
                                                 PanelOrder order) {
  return impl_->pack(name, groups, layout, order);
}

Result<PackedWeight> WeightUploader::pack(std::string_view name,
                                          std::span<const WeightRows> sources,
                                          PackedLayout layout,
                                          PanelOrder order) {
  const std::vector<WeightRows> group(sources.begin(), sources.end());
  return impl_->pack(name, std::span(&group, 1), layout, order);
}

Result<device::Buffer> WeightUploader::upload(std::span<const std::byte> bytes) {
  TRY_ASSIGN(device::Buffer buffer, impl_->device().allocate(static_cast<int64_t>(bytes.size())));
  TRY(impl_->append(bytes, buffer.data()));
  TRY(impl_->flush());
  return buffer;
}

Result<void> WeightUploader::finish() { return impl_->finish(); }

const UploadStatistics& WeightUploader::statistics() const { return impl_->statistics(); }

WeightUploader::WeightUploader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WeightUploader::WeightUploader(WeightUploader&&) noexcept = default;
WeightUploader& WeightUploader::operator=(WeightUploader&&) noexcept = default;
WeightUploader::~WeightUploader() = default;

}  // namespace nibble::kernels
