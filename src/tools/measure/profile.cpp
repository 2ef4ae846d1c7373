#include "tools/measure/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace nibble::tools {
namespace {

// Rows below it are explained one by one.
constexpr double kGoodShare = 0.5;

std::string shape_of(const ProfileRow& row) {
  return row.n == 0 ? "" : fmt::format("{} x {}", row.n, row.k);
}

std::string_view kernel_name(const ProfileRow& row) {
  return row.kernel == nullptr ? "unknown" : row.kernel->name;
}

double share_of(const Profile& profile, const ProfileRow& row) {
  return share_of_roof(profile.roofs, row.bytes, row.flops, row.us * 1e-6);
}

// "132/132": blocks on multiprocessors.
std::string grid_of(const Profile& profile, const ProfileRow& row) {
  return row.blocks == 0 ? "-" : fmt::format("{}/{}", row.blocks, profile.device.num_units);
}

std::string rate_text(double bytes_per_s) {
  return bytes_per_s >= 0.5e12 ? fmt::format("{:.2f} TB/s", bytes_per_s * 1e-12)
                               : fmt::format("{:.1f} GB/s", bytes_per_s * 1e-9);
}

std::string peak_text(const Roofs& roofs) {
  if (roofs.bf16_flops_per_s <= 0) return fmt::format("not measured: {}", roofs.bf16_note);
  return fmt::format("{:.3g} TFLOP/s ({})", roofs.bf16_flops_per_s * 1e-12, roofs.bf16_note);
}

void append_rows(std::string& out, const Profile& profile) {
  size_t width = 6;
  for (const ProfileRow& row : profile.rows) width = std::max(width, kernel_name(row).size());
  out += fmt::format("\n{:<{}}  {:<13} {:>8} {:>10} {:>9} {:>6} {:>9} {:>9} {:>6}  {}\n",
                     "kernel",
                     width,
                     "n x k",
                     "launches",
                     profile.device.kind == device::DeviceKind::kCuda ? "blocks/SMs" : "",
                     "us",
                     "time",
                     "MB",
                     "GFLOP",
                     "roof",
                     "unit");
  const double all = profile.launches_us();
  for (const ProfileRow& row : profile.rows) {
    out += fmt::format(
        "{:<{}}  {:<13} {:>8} {:>10} {:>9.1f} {:>5.1f}% {:>9.2f} {:>9.3f} {:>5.0f}%  {}\n",
        kernel_name(row),
        width,
        shape_of(row),
        row.count,
        profile.device.kind == device::DeviceKind::kCuda ? grid_of(profile, row) : "",
        row.us,
        all > 0 ? 100 * row.us / all : 0,
        row.bytes * 1e-6,
        row.flops * 1e-9,
        100 * share_of(profile, row),
        row.kernel == nullptr ? "?" : kernels::unit_name(row.kernel->unit));
  }
}

// Why a row is slow, as far as its own numbers say.
std::string reason_of(const Profile& profile, const ProfileRow& row) {
  const double count = static_cast<double>(std::max<int64_t>(row.count, 1));
  const double us = row.us / count;
  const double memory_us = profile.roofs.read_bytes_per_s > 0
                               ? row.bytes / count / profile.roofs.read_bytes_per_s * 1e6
                               : 0;
  const double compute_us = profile.roofs.bf16_flops_per_s > 0
                                ? row.flops / count / profile.roofs.bf16_flops_per_s * 1e6
                                : 0;
  std::string text =
      fmt::format("{:.2f} us a launch, of which memory needs {:.2f} and products {:.2f}",
                  us,
                  memory_us,
                  compute_us);
  const bool is_gpu = profile.device.kind == device::DeviceKind::kCuda;
  if (is_gpu && row.blocks > 0 && row.blocks < profile.device.num_units) {
    text += fmt::format(
        "; {} of {} multiprocessors have a block", row.blocks, profile.device.num_units);
  }
  if (is_gpu && row.n > 0 && row.kernel != nullptr &&
      row.kernel->unit != kernels::ComputeUnit::kTensorCore) {
    text += "; no tensor cores";
  }
  return text;
}

void append_slow(std::string& out, const Profile& profile) {
  bool is_first = true;
  for (const ProfileRow& row : profile.rows) {
    const double share = share_of(profile, row);
    if (share >= kGoodShare) continue;
    if (is_first) out += "\nBelow half of the roof\n";
    is_first = false;
    const std::string shape = row.n == 0 ? "" : fmt::format(" [{}, {}]", row.n, row.k);
    out += fmt::format(
        "  {}{}: {:.0f}%: {}\n", kernel_name(row), shape, 100 * share, reason_of(profile, row));
  }
}

json::Value row_json(const Profile& profile, const ProfileRow& row) {
  return json::make_object(
      {{"kernel", kernel_name(row)},
       {"op", row.kernel == nullptr ? "?" : kernels::op_name(row.kernel->op)},
       {"unit", row.kernel == nullptr ? "?" : kernels::unit_name(row.kernel->unit)},
       {"n", row.n},
       {"k", row.k},
       {"launches", row.count},
       {"kernels", row.num_kernels},
       {"blocks", row.blocks},
       {"us", row.us},
       {"bytes", row.bytes},
       {"flops", row.flops},
       {"share_of_roof", share_of(profile, row)},
       {"is_below_half", share_of(profile, row) < kGoodShare}});
}

}  // namespace

double Profile::launches_us() const {
  double sum = 0;
  for (const ProfileRow& row : rows) sum += row.us;
  return sum;
}

Profile make_profile(std::string what,
                     const device::DeviceInfo& device,
                     const Roofs& roofs,
                     const PassLaunches& pass,
                     double pass_us) {
  Profile profile{.what = std::move(what),
                  .device = device,
                  .roofs = roofs,
                  .timing = pass.timing,
                  .note = pass.note,
                  .pass_us = pass_us};
  using Key = std::tuple<const kernels::KernelInfo*, int64_t, int64_t>;
  std::map<Key, ProfileRow> rows;
  for (const TimedLaunch& launch : pass.launches) {
    ProfileRow& row = rows[{launch.kernel, launch.work.n, launch.work.k}];
    row.kernel = launch.kernel;
    row.n = launch.work.n;
    row.k = launch.work.k;
    ++row.count;
    row.num_kernels += launch.num_kernels;
    row.blocks = std::max(row.blocks, launch.blocks);
    row.us += launch.us;
    row.bytes += launch.work.bytes;
    row.flops += launch.work.flops;
  }
  for (auto& [key, row] : rows) profile.rows.push_back(row);
  std::stable_sort(profile.rows.begin(), profile.rows.end(), [](const auto& a, const auto& b) {
    return a.us > b.us;
  });
  return profile;
}

std::string profile_text(const Profile& profile) {
  const double launches = profile.launches_us();
  int64_t count = 0;
  for (const ProfileRow& row : profile.rows) count += row.count;
  std::string out = fmt::format("{} on {}\n", profile.what, profile.device.name);
  out += fmt::format("  {:.3f} ms a pass; {} launches take {:.3f} ms together ({})\n",
                     profile.pass_us * 1e-3,
                     count,
                     launches * 1e-3,
                     timing_name(profile.timing));
  if (!profile.note.empty()) out += fmt::format("  timing: {}\n", profile.note);
  out += fmt::format("  roofs of this run: reading {}, BF16 products {}\n",
                     rate_text(profile.roofs.read_bytes_per_s),
                     peak_text(profile.roofs));
  append_rows(out, profile);
  const bool has_cached = std::any_of(profile.rows.begin(), profile.rows.end(), [&](auto& row) {
    return share_of(profile, row) > 1;
  });
  if (has_cached) out += "\nAbove 100%: bytes came from a cache, not from memory\n";
  append_slow(out, profile);
  return out;
}

json::Value profile_json(const Profile& profile) {
  json::Array rows;
  for (const ProfileRow& row : profile.rows) rows.push_back(row_json(profile, row));
  return json::make_object({{"what", profile.what},
                            {"device", profile.device.name},
                            {"num_units", profile.device.num_units},
                            {"timing", timing_name(profile.timing)},
                            {"note", profile.note},
                            {"pass_us", profile.pass_us},
                            {"launches_us", profile.launches_us()},
                            {"read_bytes_per_s", profile.roofs.read_bytes_per_s},
                            {"bf16_flops_per_s", profile.roofs.bf16_flops_per_s},
                            {"bf16_note", profile.roofs.bf16_note},
                            {"rows", std::move(rows)}});
}

}  // namespace nibble::tools
