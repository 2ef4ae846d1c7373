// Loading models and stored vectors, and running sequences through a model in pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "models/model.h"

namespace nibble::golden {

Path golden_dir(const std::string& name);  // unpacked vectors: flash_like, pro_like, tiny_v4
Path tiny_v4_dir();                        // the bundled model

struct Loaded {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<models::Model> model;
};
enum class On { kCpu, kEmulatedGpu, kGpu };
struct LoadRequest {
  On device = On::kCpu;
  models::Precision precision = models::Precision::kReference;
  models::KvDtype kv_dtype = models::KvDtype::kAuto;
  models::StateOptions state = {};
  device::IsaLevel isa = device::IsaLevel::kNative;
  int32_t num_threads = 1;
  bool is_deterministic = false;
};
// Loads and reserves state; stops the test on failure.
Loaded load(const Path& dir, const LoadRequest& request = {});
Loaded load(const checkpoint::Checkpoint& checkpoint, const LoadRequest& request = {});

// What the tests of decoding_state_test.cpp load, one list per program: a model's name, "_fp8" for
// FP8 keys, then "_emulated" or "_gpu" for another device than the CPU.
std::vector<std::string> models_under_test();
// The GPU of joined_experts_test.cpp.
On gpu_under_test();

// A matrix of f32 rows.
struct Rows {
  int64_t width = 0;
  std::vector<float> values;

  int64_t size() const { return width == 0 ? 0 : static_cast<int64_t>(values.size()) / width; }
  std::span<const float> operator[](int64_t row) const {
    return std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
  }
  std::span<const float> back() const { return (*this)[size() - 1]; }
};

void append(Rows& rows, const Rows& more);

struct RunResult {
  Rows logits;      // one row per token of the call
  Rows mtp_logits;  // when asked for
};
struct RunOptions {
  int32_t chunk = 0;  // tokens per pass; 0: max_tokens_per_pass
  bool mtp = false;
  models::Decisions* record = nullptr;
  const models::Decisions* replay = nullptr;
};

// One slot of a model with pages of its own; continues where it stands.
class Sequence final {
 public:
  explicit Sequence(models::Model& model,
                    int32_t slot = 0,
                    int32_t first_page = 0,
                    int32_t max_pages = 64);

  RunResult run(std::span<const int32_t> ids, const RunOptions& options = {});
  void truncate(int32_t length);

  SlotId slot() const { return slot_; }
  int32_t length() const { return model_.length(slot_); }
  std::span<const PageId> pages() const { return pages_; }

 private:
  models::Model& model_;
  SlotId slot_;
  std::vector<PageId> pages_;
};

// One pass over tokens of several sequences; logits of every row, in the order of the parts.
struct Part {
  const Sequence* sequence = nullptr;
  std::span<const int32_t> ids;
};
RunResult run_pass(models::Model& model,
                   std::span<const Part> parts,
                   const RunOptions& options = {});

// `count` ids below the model's vocabulary, the same for every run.
std::vector<int32_t> random_ids(const models::Model& model, int32_t count, uint32_t seed);

// The first tokens of the long text among tiny-v4's stored prompts.
std::vector<int32_t> prose_ids(int32_t count);

int32_t argmax(std::span<const float> row);
// Largest minus second largest.
float top_margin(std::span<const float> row);
float max_difference(std::span<const float> a, std::span<const float> b);

// A run of the reference mode with every decision of a device replayed: what the two-part test
// compares it with. The device itself took `decisions` of a free run of the reference, as far as
// those are experts and selections, and rounds to FP8 as it likes: where its value lies between two
// FP8 numbers is a discrete choice, too, and a changed last bit upstream changes it.
struct Replayed {
  RunResult reference;
  RunResult device;
  // The share of roundings in which the reference, on the same decisions so far, would not choose
  // the device's value.
  double other_roundings = 0;
};
// The most of them in a sound step: docs/testing.md. Rounding in a wrong direction gives a half.
constexpr double max_other_roundings(models::KvDtype kv_dtype) {
  return kv_dtype == models::KvDtype::kFp8 ? 0.2 : 0.15;
}
Replayed replay_on(models::Model& device,
                   models::Model& reference,
                   const models::Decisions& decisions,
                   std::span<const int32_t> ids,
                   RunOptions options);

// How far logits are from those of the reference mode: the two-part test that serves every backend.
// With the reference's decisions imposed, logits are close one by one; running free, distributions
// are.
struct Distance {
  double max = 0;
  double rms = 0;
  double mean_kl = 0;
  double argmax_agreement = 0;
  int32_t clear_flips = 0;  // argmax differs although the reference's margin is above 1
};
Distance distance_between(const Rows& expected, const Rows& logits);

// Named tensors of a safetensors file.
class Vectors final {
 public:
  explicit Vectors(const Path& file);
  bool has(const std::string& name) const;
  Rows rows(const std::string& name) const;  // a vector is one row
  std::vector<int32_t> ids(const std::string& name) const;

 private:
  std::string bytes_;
  std::vector<std::pair<std::string, TensorView>> tensors_;
};

}  // namespace nibble::golden
