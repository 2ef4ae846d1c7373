#include "engine/device_sheet.h"

#include <fmt/format.h>

#include <vector>

namespace nibble::engine {
namespace {

constexpr int64_t kGb = 1'000'000'000;
constexpr int64_t kKiB = 1024;
constexpr const char* kPlanned = "planning value, 90% of the data sheet";

std::vector<DeviceSheet> make_sheets() {
  using device::DeviceKind;
  std::vector<DeviceSheet> sheets;
  const auto gpu = [&](DeviceSheet sheet) { sheets.push_back(std::move(sheet)); };
  gpu({.name = "rtx-pro-6000",
       .title = "RTX PRO 6000 Blackwell",
       .sm = 120,
       .num_units = 188,
       .memory_bytes = 96 * kGb,
       .peak_bytes_per_s = 1.792e12,
       .read_bytes_per_s = 1.45e12,
       .shared_bytes = 99 * kKiB,
       .link = LinkKind::kPcie,
       .note = "public copy measurements, 1.38 to 1.49 TB/s"});
  gpu({.name = "rtx-5090",
       .title = "GeForce RTX 5090",
       .sm = 120,
       .num_units = 170,
       .memory_bytes = 32 * kGb,
       .peak_bytes_per_s = 1.792e12,
       .read_bytes_per_s = 1.45e12,
       .shared_bytes = 99 * kKiB,
       .link = LinkKind::kPcie,
       .note = "as rtx-pro-6000"});
  gpu({.name = "h100",
       .title = "H100 SXM",
       .sm = 90,
       .num_units = 132,
       .memory_bytes = 80 * kGb,
       .peak_bytes_per_s = 3.35e12,
       .read_bytes_per_s = 3.2e12,
       .shared_bytes = 227 * kKiB,
       .link = LinkKind::kNvlink,
       .note = "planning value, the share that H200 reaches"});
  gpu({.name = "h200",
       .title = "H200 SXM",
       .sm = 90,
       .num_units = 132,
       .memory_bytes = 141 * kGb,
       .peak_bytes_per_s = 4.8e12,
       .read_bytes_per_s = 4.6e12,
       .shared_bytes = 227 * kKiB,
       .link = LinkKind::kNvlink,
       .note = "measured, 4.25 to 4.67 TB/s"});
  gpu({.name = "b200",
       .title = "B200",
       .sm = 100,
       .num_units = 148,
       .memory_bytes = 180 * kGb,
       .peak_bytes_per_s = 8.0e12,
       .read_bytes_per_s = 7.2e12,
       .shared_bytes = 227 * kKiB,
       .link = LinkKind::kNvlink,
       .note = kPlanned});
  gpu({.name = "b300",
       .title = "B300",
       .sm = 103,
       .num_units = 148,
       .memory_bytes = 270 * kGb,
       .peak_bytes_per_s = 8.0e12,
       .read_bytes_per_s = 7.2e12,
       .shared_bytes = 227 * kKiB,
       .link = LinkKind::kNvlink,
       .note = kPlanned});
  gpu({.name = "a100",
       .title = "A100 SXM 80 GB",
       .sm = 80,
       .num_units = 108,
       .memory_bytes = 80 * kGb,
       .peak_bytes_per_s = 2.039e12,
       .read_bytes_per_s = 1.835e12,
       .shared_bytes = 163 * kKiB,
       .link = LinkKind::kNvlink,
       .note = kPlanned});
  gpu({.name = "l40s",
       .title = "L40S",
       .sm = 89,
       .num_units = 142,
       .memory_bytes = 48 * kGb,
       .peak_bytes_per_s = 0.864e12,
       .read_bytes_per_s = 0.778e12,
       .shared_bytes = 99 * kKiB,
       .link = LinkKind::kPcie,
       .note = kPlanned});
  gpu({.name = "gb10",
       .title = "GB10 (DGX Spark)",
       .sm = 121,
       .num_units = 48,
       .memory_bytes = 119 * kGb,
       .peak_bytes_per_s = 0.273e12,
       .read_bytes_per_s = 0.233e12,
       .shared_bytes = 99 * kKiB,
       .link = LinkKind::kPcie,
       .note = "planning value from a machine with the same memory"});
  gpu({.name = "cpu",
       .title = "server CPU with 12 memory channels and AVX-512 BF16",
       .kind = DeviceKind::kCpu,
       .isa =
           device::kIsaAvx2 | device::kIsaAvx512 | device::kIsaAvx512Bf16 | device::kIsaAvx512Vnni,
       .num_units = 64,
       .memory_bytes = 768 * kGb,
       .peak_bytes_per_s = 0.4608e12,
       .read_bytes_per_s = 0.4e12,
       .note = "planning value for DDR5-4800"});
  return sheets;
}

}  // namespace

device::DeviceInfo DeviceSheet::info() const {
  return {.kind = kind,
          .name = name,
          .isa = isa,
          .sm = sm,
          .num_units = num_units,
          .memory_bytes = memory_bytes,
          .shared_bytes = shared_bytes};
}

std::string read_rate_text(const DeviceSheet& sheet) {
  const double rate = sheet.read_bytes_per_s;
  return rate >= 0.5e12 ? fmt::format("{:.2f} TB/s", rate / 1e12)
                        : fmt::format("{:.1f} GB/s", rate / 1e9);
}

std::span<const DeviceSheet> device_sheets() {
  static const std::vector<DeviceSheet> sheets = make_sheets();
  return sheets;
}

Result<DeviceSheet> find_device_sheet(std::string_view name) {
  std::string known;
  for (const DeviceSheet& sheet : device_sheets()) {
    if (sheet.name == name) return sheet;
    known += sheet.name + ", ";
  }
  return invalid_argument(
      fmt::format("--gpu {}: expected one of {}local, with xN behind it for N of them.",
                  name.substr(0, 64),
                  known));
}

namespace {

// "NVIDIA H200" is the sheet "h200": how the driver names GPUs, in the spelling of sheets.
const DeviceSheet* find_gpu_sheet(const std::string& driver_name) {
  std::string spelled = driver_name;
  for (char& c : spelled) {
    if (c == ' ') c = '-';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  for (const DeviceSheet& sheet : device_sheets()) {
    if (sheet.kind == device::DeviceKind::kCuda && spelled.find(sheet.name) != std::string::npos) {
      return &sheet;
    }
  }
  return nullptr;
}

DeviceSheet gpu_sheet(const device::DeviceInfo& info) {
  DeviceSheet sheet;
  if (const DeviceSheet* const known = find_gpu_sheet(info.name)) sheet = *known;
  sheet.name = "local";
  sheet.title = info.name;
  sheet.sm = info.sm;
  sheet.num_units = info.num_units;
  sheet.memory_bytes = info.memory_bytes;
  sheet.shared_bytes = info.shared_bytes;
  return sheet;
}

}  // namespace

DeviceSheet local_sheet(const device::DeviceInfo& info, double read_bytes_per_s) {
  if (info.kind == device::DeviceKind::kCuda) return gpu_sheet(info);
  return {.name = "local",
          .title = info.name.empty() ? "this machine's CPU" : info.name,
          .kind = info.kind,
          .sm = info.sm,
          .isa = info.isa,
          .num_units = info.num_units,
          .memory_bytes = info.memory_bytes,
          .peak_bytes_per_s = read_bytes_per_s,
          .read_bytes_per_s = read_bytes_per_s,
          .note = "measured now"};
}

double all_reduce_seconds(LinkKind link, int32_t num_devices) {
  if (num_devices <= 1 || link == LinkKind::kNone) return 0;
  const bool is_nvlink = link == LinkKind::kNvlink;
  if (num_devices <= 2) return is_nvlink ? 4e-6 : 4.5e-6;
  if (num_devices <= 4) return is_nvlink ? 4e-6 : 6.5e-6;
  return is_nvlink ? 6e-6 : 11e-6;
}

}  // namespace nibble::engine
