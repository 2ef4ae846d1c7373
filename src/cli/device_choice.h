// Which device a model runs on: what --device says, and opening it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "device/device.h"

namespace nibble::cli {

struct DeviceChoice {
  enum class Kind : uint8_t {
    kAuto,  // the first GPU where this build and this machine have one, else the CPU
    kCpu,
    kCuda,
    kEmulated,  // a GPU's step on scalar rows in the host's memory (device/emulated_gpu.h)
  };
  Kind kind = Kind::kAuto;
  int32_t ordinal = 0;  // of the GPU
};

// "auto", "cpu", "cuda", "cuda:N" or "emulated".
std::optional<DeviceChoice> parse_device_choice(std::string_view text);

// Whether that is a GPU, be it emulated. For auto, asks the driver.
bool is_gpu(const DeviceChoice& choice);

// kUnsupported in a build without the CUDA backend, kUnavailable where no driver or no GPU answers,
// kInvalidArgument for a GPU that is not there; each says what to do. `host` is for the CPU.
Result<std::unique_ptr<device::Device>> open_device(const DeviceChoice& choice,
                                                    const device::HostOptions& host);

// The GPUs in one line each: "cuda:0 NVIDIA H200, sm_90, 132 multiprocessors, 140.4 GiB"; or why
// there are none.
std::string describe_gpus();

}  // namespace nibble::cli
