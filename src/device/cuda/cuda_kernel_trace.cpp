#include <cupti.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "device/cuda/run_time_library.h"
#include "device/kernel_trace.h"

namespace nibble::device {
namespace {

// Where the toolkit puts it; the plain names follow the loader's paths.
constexpr const char* kLibraries[] = {"libcupti.so.13",
                                      "libcupti.so",
                                      "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
                                      "/usr/local/cuda/lib64/libcupti.so.13"};

// The functions that are used, by name.
struct Cupti {
  decltype(&cuptiGetResultString) get_result_string = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) get_next_record = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) push_label = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) pop_label = nullptr;
};

Result<Cupti> load_cupti() {
  TRY_ASSIGN(const RunTimeLibrary library, RunTimeLibrary::open("libcupti", kLibraries));
  Cupti cupti;
  TRY(library.find("cuptiGetResultString", cupti.get_result_string));
  TRY(library.find("cuptiActivityRegisterCallbacks", cupti.register_callbacks));
  TRY(library.find("cuptiActivityEnable", cupti.enable));
  TRY(library.find("cuptiActivityDisable", cupti.disable));
  TRY(library.find("cuptiActivityFlushAll", cupti.flush_all));
  TRY(library.find("cuptiActivityGetNextRecord", cupti.get_next_record));
  TRY(library.find("cuptiActivityPushExternalCorrelationId", cupti.push_label));
  TRY(library.find("cuptiActivityPopExternalCorrelationId", cupti.pop_label));
  return cupti;
}

// Loaded once; the library stays.
const Result<Cupti>& cupti() {
  static const Result<Cupti> loaded = load_cupti();
  return loaded;
}

Result<void> check(CUptiResult status, const char* call) {
  if (status == CUPTI_SUCCESS) return {};
  const char* words = nullptr;
  cupti()->get_result_string(status, &words);
  return unavailable(std::string(call) + ": " + (words == nullptr ? "?" : words));
}

// What the library's callbacks fill: they carry no context of ours.
struct Records {
  std::mutex mutex;
  std::vector<KernelActivity> kernels;
  std::vector<uint32_t> correlations;  // of `kernels`
  std::unordered_map<uint32_t, uint64_t> labels;
};
Records& records() {
  static Records all;
  return all;
}

constexpr size_t kBufferBytes = 4 << 20, kBufferAlignment = 8;

void request_buffer(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void add_kernel(const CUpti_ActivityKernel10& kernel) {
  records().kernels.push_back(
      {.symbol = kernel.name == nullptr ? "" : kernel.name,
       .begin_ns = static_cast<int64_t>(kernel.start),
       .end_ns = static_cast<int64_t>(kernel.end),
       .blocks = int64_t{kernel.gridX} * kernel.gridY * kernel.gridZ,
       .threads = kernel.blockX * kernel.blockY * kernel.blockZ,
       .registers = kernel.registersPerThread,
       .shared_bytes = int64_t{kernel.staticSharedMemory} + kernel.dynamicSharedMemory});
  records().correlations.push_back(kernel.correlationId);
}

void take_record(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    add_kernel(*reinterpret_cast<const CUpti_ActivityKernel10*>(record));
  } else if (record->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
    const auto& label = *reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
    records().labels[label.correlationId] = label.externalId;
  }
}

void complete_buffer(
    CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer, size_t /*size*/, size_t valid) {
  const std::unique_ptr<uint8_t, decltype(&std::free)> owned(buffer, &std::free);
  const std::lock_guard lock(records().mutex);
  CUpti_Activity* record = nullptr;
  while (valid > 0 && cupti()->get_next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
    take_record(record);
  }
}

// The runtime's records connect labels with kernels.
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_RUNTIME,
                                         CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                         CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL};
constexpr CUpti_ExternalCorrelationKind kLabelKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

}  // namespace

Result<KernelTrace> KernelTrace::start() {
  if (!cupti().ok()) return cupti().error();
  TRY(check(cupti()->register_callbacks(&request_buffer, &complete_buffer),
            "cuptiActivityRegisterCallbacks"));
  // Buffers of a trace that nobody finished are still with the library.
  TRY(check(cupti()->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll"));
  {
    const std::lock_guard lock(records().mutex);
    records().kernels.clear();
    records().correlations.clear();
    records().labels.clear();
  }
  KernelTrace trace;
  for (const CUpti_ActivityKind kind : kKinds) {
    TRY(check(cupti()->enable(kind), "cuptiActivityEnable"));
  }
  return trace;
}

Result<void> KernelTrace::set_label(uint64_t label) {
  if (is_labelled_) {
    uint64_t last = 0;
    is_labelled_ = false;
    TRY(check(cupti()->pop_label(kLabelKind, &last), "cuptiActivityPopExternalCorrelationId"));
  }
  if (label == 0) return {};
  TRY(check(cupti()->push_label(kLabelKind, label), "cuptiActivityPushExternalCorrelationId"));
  is_labelled_ = true;
  return {};
}

Result<std::vector<KernelActivity>> KernelTrace::finish() {
  TRY(set_label(0));
  TRY(check(cupti()->flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll"));
  const std::lock_guard lock(records().mutex);
  std::vector<KernelActivity> kernels = std::move(records().kernels);
  for (size_t i = 0; i < kernels.size(); ++i) {
    const auto label = records().labels.find(records().correlations[i]);
    if (label != records().labels.end()) kernels[i].label = label->second;
  }
  std::stable_sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) {
    return a.begin_ns < b.begin_ns;
  });
  return kernels;
}

KernelTrace::~KernelTrace() {
  if (!is_running_) return;
  const Result<void> ignored = set_label(0);
  for (const CUpti_ActivityKind kind : kKinds) cupti()->disable(kind);
}

}  // namespace nibble::device
