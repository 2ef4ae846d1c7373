#include "cli/device_choice.h"

#include <fmt/core.h>

#include <charconv>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/cuda.h"
#include "device/emulated_gpu.h"

namespace nibble::cli {
namespace {

constexpr std::string_view kGpuPrefix = "cuda:";

std::string choice_name(const DeviceChoice& choice) {
  return choice.ordinal == 0 ? "--device cuda" : fmt::format("--device cuda:{}", choice.ordinal);
}

// What to do about a GPU that does not answer.
Error explain(const DeviceChoice& choice, Error error) {
  error.message = fmt::format("{}: {}.", choice_name(choice), error.message);
  if (error.code == Errc::kUnavailable) {
    error.message += " `nvidia-smi` shows whether the driver works.";
  }
  error.message += " --device cpu runs without a GPU.";
  return error;
}

Result<std::unique_ptr<device::Device>> open_gpu(const DeviceChoice& choice) {
  Result<std::unique_ptr<device::Device>> gpu = device::make_cuda_device(choice.ordinal);
  if (!gpu.ok()) return explain(choice, std::move(gpu).error());
  return gpu;
}

bool has_gpu() {
  if (!device::has_cuda_backend()) return false;
  const Result<std::vector<device::DeviceInfo>> gpus = device::list_cuda_devices();
  if (!gpus.ok()) log_info("no GPU is used: {}", gpus.error().message);
  return gpus.ok() && !gpus->empty();
}

}  // namespace

std::optional<DeviceChoice> parse_device_choice(std::string_view text) {
  using Kind = DeviceChoice::Kind;
  if (text == "auto") return DeviceChoice{.kind = Kind::kAuto};
  if (text == "cpu") return DeviceChoice{.kind = Kind::kCpu};
  if (text == "emulated") return DeviceChoice{.kind = Kind::kEmulated};
  if (text == "cuda") return DeviceChoice{.kind = Kind::kCuda};
  if (text.substr(0, kGpuPrefix.size()) != kGpuPrefix) return std::nullopt;
  text.remove_prefix(kGpuPrefix.size());
  DeviceChoice choice{.kind = Kind::kCuda};
  const char* const end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, choice.ordinal);
  if (fault != std::errc() || stop != end || choice.ordinal < 0) return std::nullopt;
  return choice;
}

bool is_gpu(const DeviceChoice& choice) {
  if (choice.kind == DeviceChoice::Kind::kAuto) return has_gpu();
  return choice.kind != DeviceChoice::Kind::kCpu;
}

Result<std::unique_ptr<device::Device>> open_device(const DeviceChoice& choice,
                                                    const device::HostOptions& host) {
  if (choice.kind == DeviceChoice::Kind::kEmulated) {
    return device::make_emulated_gpu(host.num_threads);
  }
  return is_gpu(choice) ? open_gpu(choice) : device::make_host_device(host);
}

std::string describe_gpus() {
  const Result<std::vector<device::DeviceInfo>> gpus = device::list_cuda_devices();
  if (!gpus.ok()) return gpus.error().message;
  std::string text;
  for (size_t i = 0; i < gpus->size(); ++i) {
    const device::DeviceInfo& info = (*gpus)[i];
    if (i > 0) text += '\n';
    text += fmt::format("cuda:{} {}, sm_{}, {} multiprocessors, {:.1f} GiB",
                        i,
                        info.name,
                        info.sm,
                        info.num_units,
                        static_cast<double>(info.memory_bytes) / (1 << 30));
  }
  return text;
}

}  // namespace nibble::cli
