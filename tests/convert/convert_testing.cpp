#include "convert/convert_testing.h"

#include <cstring>

#include "base/check.h"
#include "golden/golden_testing.h"

namespace nibble::tools {

using checkpoint::Checkpoint;

Result<Converted> convert(const Path& in, const ConvertOptions& options) {
  TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(in));
  TRY_ASSIGN(const ConvertPlan plan, plan_conversion(checkpoint, options));
  device::ThreadPool pool({.num_threads = 2});
  Converted converted{.notes = plan.notes};
  TRY_ASSIGN(
      converted.result,
      run_job(plan.job, {.pool = pool, .release_inputs = [&] { checkpoint.drop_resident(); }}));
  return converted;
}

Converted convert_ok(const Path& in, const ConvertOptions& options) {
  Result<Converted> converted = convert(in, options);
  CHECK(converted.ok()) << converted.error().message;
  return std::move(converted).value();
}

std::vector<std::string> differences(const Checkpoint& a, const Checkpoint& b) {
  std::vector<std::string> names;
  for (const TensorMeta& meta : a.tensors()) {
    const auto x = a.find(meta.name), y = b.find(meta.name);
    const bool is_same = y && x->dtype == y->dtype && x->shape == y->shape &&
                         std::memcmp(x->data, y->data, static_cast<size_t>(x->num_bytes())) == 0;
    if (!is_same) names.push_back(meta.name);
  }
  for (const TensorMeta& meta : b.tensors()) {
    if (a.find_meta(meta.name) == nullptr) names.push_back(meta.name);
  }
  return names;
}

std::vector<std::string> differences(const Path& a, const Path& b) {
  return differences(Checkpoint::open(a).value(), Checkpoint::open(b).value());
}

json::Value read_json(const Path& path) {
  return json::parse(read_file(path, 1 << 26).value()).value();
}

std::string text_of(const json::Value* value) {
  return value == nullptr ? "missing" : json::dump(*value, json::Style::kPython);
}

std::vector<float> logits_of(const Path& dir) {
  const golden::Loaded loaded = golden::load(dir);
  const auto ids = golden::random_ids(*loaded.model, 40, 1);
  golden::RunResult run =
      golden::Sequence(*loaded.model).run(ids, {.mtp = loaded.model->info().has_mtp});
  run.logits.values.insert(
      run.logits.values.end(), run.mtp_logits.values.begin(), run.mtp_logits.values.end());
  return run.logits.values;
}

std::string kernel_of(const Path& dir, std::string_view module) {
  const golden::Loaded loaded = golden::load(dir);
  for (const models::RoutedModule& routed : loaded.model->routed_modules()) {
    if (routed.module == module) return std::string(routed.route.kernel->name);
  }
  return "";
}

}  // namespace nibble::tools
