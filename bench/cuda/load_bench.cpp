// Loading weights from the page cache: routed experts of one DeepSeek-V4-Flash layer in a file of
// its own, mapped anew for every round, through kernels::WeightUploader. Beside it what bounds it:
// copies from pinned memory, and the packing kernels on data that is on the device. Prints one
// JSON object per line.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "cuda/cuda_bench.h"
#include "device/cuda.h"
#include "device/graph.h"
#include "kernels/repack.h"
#include "kernels/weight_upload.h"

namespace nibble {
namespace {

using namespace kernels;  // NOLINT: a program of its own

constexpr int64_t kHidden = 4096, kIntermediate = 2048;
constexpr int64_t kNumExperts = 256;
constexpr int32_t kRounds = 3;

const SteadyClock kClock;  // has no state

double seconds_since(TimePoint start) { return to_seconds(kClock.now() - start); }

void print(const std::string& what, int64_t bytes, double seconds, const std::string& more = {}) {
  fmt::print("{{\"what\":\"{}\",\"bytes\":{},\"seconds\":{:.4f},\"gb_per_s\":{:.2f}{}}}\n",
             what,
             bytes,
             seconds,
             static_cast<double>(bytes) / seconds * 1e-9,
             more);
  std::fflush(stdout);
}

// One expert's three matrices in the file: codes, then scales with room for those of any format.
constexpr int64_t kCodesBytes = kHidden * kIntermediate / 2;
constexpr int64_t kScalesBytes = kHidden * kIntermediate / 16;
constexpr int64_t kMatrixBytes = kCodesBytes + kScalesBytes;

struct Stored {
  quant::Format format;
  DType scale_dtype;

  int64_t group() const { return quant::format_info(format).block_shape.k; }
  int64_t scales_bytes() const {
    return kHidden * kIntermediate / group() * dtype_size(scale_dtype);
  }
  int64_t layer_bytes() const { return kNumExperts * 3 * (kCodesBytes + scales_bytes()); }
};
constexpr Stored kFormats[] = {{quant::Format::kMxfp4, DType::kF8E8m0},
                               {quant::Format::kNvfp4, DType::kF8E4m3},
                               {quant::Format::kInt4Group32, DType::kBf16}};

Path file_path() {
  const char* const directory = std::getenv("TMPDIR");
  return Path(directory == nullptr ? "/tmp" : directory) / "nibble_load_bench.bin";
}

// Random codes, the same in every matrix but shifted; scales that a panel holds in every format.
Result<void> write_file(const Path& path) {
  std::mt19937_64 random(1);
  constexpr size_t kShift = 4096;
  std::vector<char> codes(static_cast<size_t>(kCodesBytes) + 3 * kNumExperts * kShift);
  for (size_t i = 0; i + 8 <= codes.size(); i += 8) {
    const uint64_t word = random();
    std::copy_n(reinterpret_cast<const char*>(&word), 8, codes.data() + i);
  }
  std::vector<char> scales(static_cast<size_t>(kScalesBytes));
  for (char& scale : scales) scale = static_cast<char>(112 + random() % 8);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  for (size_t matrix = 0; matrix < 3 * kNumExperts; ++matrix) {
    file.write(codes.data() + matrix * kShift, kCodesBytes);
    file.write(scales.data(), kScalesBytes);
  }
  file.flush();
  if (!file) return exhausted(path.string() + ": cannot be written");
  return {};
}

WeightRows matrix_at(
    std::span<const std::byte> file, const Stored& stored, int64_t index, int64_t n, int64_t k) {
  const std::byte* const at = file.data() + index * kMatrixBytes;
  quant::WeightView view{.format = stored.format, .n = n, .k = k};
  view.codes = TensorView::read_only(at, DType::kI8, {n, k / 2});
  view.scales =
      TensorView::read_only(at + kCodesBytes, stored.scale_dtype, {n, k / stored.group()});
  return {.weight = view, .row_begin = 0, .row_end = n};
}

struct Layer {
  std::vector<std::vector<WeightRows>> w13, w2;
};
Layer layer_of(std::span<const std::byte> file, const Stored& stored) {
  Layer layer;
  for (int64_t e = 0; e < kNumExperts; ++e) {
    layer.w13.push_back({matrix_at(file, stored, 3 * e, kIntermediate, kHidden),
                         matrix_at(file, stored, 3 * e + 1, kIntermediate, kHidden)});
    layer.w2.push_back({matrix_at(file, stored, 3 * e + 2, kHidden, kIntermediate)});
  }
  return layer;
}

Result<void> time_load(device::Device& device,
                       const Path& path,
                       const Stored& stored,
                       const std::string& what,
                       const UploadOptions& options) {
  const TimePoint created = kClock.now();
  TRY_ASSIGN(WeightUploader uploader, WeightUploader::create(device, options));
  const double create_seconds = seconds_since(created);
  for (int32_t round = 0; round < kRounds; ++round) {
    TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
    const Layer layer = layer_of(file.bytes(), stored);
    const UploadStatistics before = uploader.statistics();
    const TimePoint start = kClock.now();
    TRY_ASSIGN(const PackedWeight w13,
               uploader.pack_groups("w13", layer.w13, PackedLayout::kPanel64, PanelOrder::kGateUp));
    TRY_ASSIGN(const PackedWeight w2, uploader.pack_groups("w2", layer.w2, PackedLayout::kPanel64));
    TRY(uploader.finish());
    const double seconds = seconds_since(start);
    const UploadStatistics& after = uploader.statistics();
    print(what + ", " + std::string(quant::format_name(stored.format)),
          stored.layer_bytes(),
          seconds,
          fmt::format(",\"round\":{},\"read_s\":{:.3f},\"wait_s\":{:.3f},\"create_s\":{:.3f}",
                      round,
                      after.read_seconds - before.read_seconds,
                      after.wait_seconds - before.wait_seconds,
                      create_seconds));
  }
  return {};
}

// What the link gives: pinned memory to the device, nothing else.
Result<void> time_copies(device::Device& device) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  TRY_ASSIGN(const device::Buffer host, device.allocate_host(kBytes));
  TRY_ASSIGN(const device::Buffer memory, device.allocate(kBytes));
  for (int32_t round = 0; round < kRounds; ++round) {
    TRY_ASSIGN(const double us, device::elapsed_us(device.stream(), [&]() -> Result<void> {
                 for (int32_t i = 0; i < 4; ++i) {
                   TRY(device.copy_in(memory.data(), host.data(), kBytes));
                 }
                 return {};
               }));
    print("copy from pinned memory", 4 * kBytes, us * 1e-6);
  }
  return {};
}

// The packing kernel alone, on matrices that are on the device.
Result<void> time_repack(device::Device& device, const Stored& stored) {
  constexpr int32_t kMatrices = 64;
  TRY_ASSIGN(const device::Buffer weights, device.allocate(kMatrices * kMatrixBytes));
  const int64_t package = panel_bytes(stored.format, kIntermediate, kHidden);
  TRY_ASSIGN(const device::Buffer packed, device.allocate(kMatrices * package));
  TRY_ASSIGN(const device::Buffer multipliers, device.allocate(kIntermediate * 4));
  TRY_ASSIGN(const device::Buffer failure, device.allocate(8));
  TRY(device::fill_device(weights.data(), 115, weights.num_bytes(), device.stream()));
  const RepackInfo* const repack = find_repack(stored.format, PackedLayout::kPanel64);
  for (int32_t round = 0; round < kRounds; ++round) {
    TRY_ASSIGN(const double us, device::elapsed_us(device.stream(), [&]() -> Result<void> {
                 for (int32_t i = 0; i < kMatrices; ++i) {
                   const std::byte* const codes = weights.data() + i * kMatrixBytes;
                   TRY(repack->launch(
                       {.codes = codes,
                        .scales = codes + kCodesBytes,
                        .scale_dtype = stored.scale_dtype,
                        .block_shape = quant::format_info(stored.format).block_shape,
                        .num_rows = kIntermediate,
                        .k = kHidden,
                        .n = kIntermediate,
                        .packed_codes = packed.data() + i * package,
                        .packed_global_scales = reinterpret_cast<float*>(multipliers.data()),
                        .failure = reinterpret_cast<uint64_t*>(failure.data()),
                        .ticket = 1},
                       device.stream()));
                 }
                 return {};
               }));
    print("pack " + std::string(quant::format_name(stored.format)) + " on the device",
          kMatrices * (kCodesBytes + stored.scales_bytes()),
          us * 1e-6);
  }
  return {};
}

Result<void> run(const std::vector<std::string>& names) {
  const auto wants = [&](std::string_view what) {
    return names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
             return what.find(name) != std::string_view::npos;
           });
  };
  TRY_ASSIGN(const std::unique_ptr<device::Device> device, device::make_cuda_device(0));
  if (wants("copy")) TRY(time_copies(*device));
  for (const Stored& stored : kFormats) {
    if (wants("pack")) TRY(time_repack(*device, stored));
  }
  const Path path = file_path();
  const TimePoint start = kClock.now();
  TRY(write_file(path));
  print("write the file", kNumExperts * 3 * kMatrixBytes, seconds_since(start));
  struct Setting {
    std::string what;
    UploadOptions options;
  };
  const Setting settings[] = {
      {"load, buffers of 8 MiB", {.num_buffers = 8, .buffer_bytes = int64_t{8} << 20}},
      {"load, buffers of 64 MiB", {.num_buffers = 3, .buffer_bytes = int64_t{64} << 20}},
      {"load, 8 threads", {.num_threads = 8}},
      {"load, 16 threads", {.num_threads = 16}},
  };
  Result<void> done;
  for (const Stored& stored : kFormats) {
    if (done.ok() && wants("formats")) done = time_load(*device, path, stored, "load", {});
  }
  for (const Setting& setting : settings) {
    if (done.ok() && wants(setting.what)) {
      done = time_load(*device, path, kFormats[0], setting.what, setting.options);
    }
  }
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return done;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  return nibble::cuda_bench::exit_code(nibble::run({argv + 1, argv + argc}));
}
