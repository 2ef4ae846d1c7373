#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/checked_math.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/session.h"
#include "comm/communicator.h"
#include "models/deepseek_v4/row_check.h"
#include "quant/numeric.h"

namespace nibble::cli {
namespace {

// Elements decoded per tensor: all of the small ones, evenly spaced ones of the others.
constexpr int64_t kMaxSamples = 65'536;
constexpr size_t kMaxReportedFaults = 10;
// Rounding of activations stays an order of magnitude below these; a scale that is dropped, doubled
// or shifted by a row is far above.
constexpr double kMaxMeanKl = 0.05;
constexpr double kMinArgmaxAgreement = 0.9;
// ln 2: a token that f32 arithmetic finds at least half as probable as the best is as good a
// choice. Random weights, whose logits are flat, would fail otherwise.
constexpr float kMaxMargin = 0.693F;

constexpr std::string_view kPrompts[] = {
    "The quick brown fox jumps over the lazy dog, and then",
    "Question: What is the capital of France?\nAnswer:",
    "1, 2, 3, 4, 5, 6, 7,",
};
constexpr int32_t kPromptTokensWithoutTokenizer = 16;
constexpr int64_t kMaxPromptTokens = 64;
// Models up to this size run on scalar kernels as a whole; of others rows are sampled.
constexpr int64_t kMaxScalarBytes = 256'000'000;

// The stored value of one element, or nullopt for dtypes without NaN or infinity.
std::optional<float> decode_element(TensorView tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kF32:
      return tensor.as<float>()[i];
    case DType::kBf16:
      return quant::bf16_to_f32(tensor.as<uint16_t>()[i]);
    case DType::kF16:
      return quant::f16_to_f32(tensor.as<uint16_t>()[i]);
    case DType::kF8E4m3:
      return quant::e4m3_to_f32(tensor.as<uint8_t>()[i]);
    case DType::kF8E8m0:
      return quant::e8m0_to_f32(tensor.as<uint8_t>()[i]);
    default:
      return std::nullopt;
  }
}

struct Samples {
  int64_t num_decoded = 0;
  std::vector<std::string> faults;  // at most kMaxReportedFaults, one per tensor
};

void sample_tensor(const std::string& name, TensorView tensor, Samples& samples) {
  const int64_t count = tensor.shape.num_elements();
  const int64_t step = std::max<int64_t>(1, ceil_div(count, kMaxSamples));
  for (int64_t i = 0; i < count; i += step) {
    const std::optional<float> value = decode_element(tensor, i);
    if (!value) return;
    ++samples.num_decoded;
    if (std::isfinite(*value)) continue;
    if (samples.faults.size() < kMaxReportedFaults) {
      samples.faults.push_back(fmt::format("tensor {}: element {} of {} {} is {}",
                                           name,
                                           i,
                                           dtype_name(tensor.dtype),
                                           tensor.shape.to_string(),
                                           std::isnan(*value) ? "NaN" : "infinite"));
    }
    return;
  }
}

Result<void> check_samples(const checkpoint::Checkpoint& checkpoint) {
  Samples samples;
  for (const TensorMeta& meta : checkpoint.tensors()) {
    TRY_ASSIGN(const TensorView tensor, checkpoint.tensor(meta.name));
    sample_tensor(meta.name, tensor, samples);
  }
  checkpoint.drop_resident();
  for (const std::string& fault : samples.faults) print_note(fault);
  if (!samples.faults.empty()) {
    return data_loss(fmt::format("{}: {}; the file is damaged or was converted wrongly",
                                 checkpoint.dir().string(),
                                 samples.faults.front()));
  }
  return write_output(fmt::format("weights  {} values decoded, all finite\n", samples.num_decoded));
}

// Tokens of the longest prompt.
Result<int32_t> prompt_context(const checkpoint::Checkpoint& checkpoint) {
  TRY_ASSIGN(const checkpoint::ConfigReader config, checkpoint.read_config());
  TRY_ASSIGN(const int64_t limit,
             config.integer_or({"max_position_embeddings"}, {1, INT32_MAX}, kMaxPromptTokens));
  return static_cast<int32_t>(std::min(limit, kMaxPromptTokens));
}

// The prompts as ids, cut to `max_context` tokens; made-up ids where the directory holds no
// tokenizer.
Result<std::vector<std::vector<int32_t>>> prompt_ids(const Path& dir,
                                                     int32_t vocab_size,
                                                     size_t max_context) {
  std::vector<std::vector<int32_t>> prompts;
  std::error_code ignored;
  if (!std::filesystem::exists(dir / "tokenizer.json", ignored)) {
    for (int32_t i = 0; i < static_cast<int32_t>(std::size(kPrompts)); ++i) {
      std::vector<int32_t>& ids = prompts.emplace_back();
      for (int32_t j = 0; j < kPromptTokensWithoutTokenizer; ++j) {
        ids.push_back((i * 31 + j * 7919) % vocab_size);
      }
      ids.resize(std::min(ids.size(), max_context));
    }
    return prompts;
  }
  TRY_ASSIGN(const auto tokenizer, text::load_tokenizer(dir));
  for (const std::string_view prompt : kPrompts) {
    TRY_ASSIGN(auto ids, tokenizer->encode(prompt, {}));
    ids.resize(std::min(ids.size(), max_context));
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

// Logits of every position of every prompt: [positions, vocab_size], one prompt after the other.
Result<std::vector<float>> compute_logits(LoadedModel& loaded,
                                          const std::vector<std::vector<int32_t>>& prompts) {
  models::Model& model = *loaded.model;
  const models::StateOptions state = engine::planned_state(loaded.plan);
  TRY(model.reserve_state(state));
  std::vector<PageId> pages(static_cast<size_t>(state.num_pages));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = PageId{static_cast<int32_t>(i)};
  const auto communicator = comm::make_local_communicator();
  std::vector<float> logits;
  for (const std::vector<int32_t>& ids : prompts) {
    const SlotId slots[] = {SlotId{0}};
    model.reset_slot(slots[0]);
    std::vector<int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    const int32_t cu_seqlens[] = {0, static_cast<int32_t>(ids.size())};
    const std::span<const PageId> block_tables[] = {pages};
    const models::ForwardInput input{.token_ids = ids,
                                     .positions = positions,
                                     .cu_seqlens = cu_seqlens,
                                     .slots = slots,
                                     .block_tables = block_tables,
                                     .logits_rows = positions,
                                     .communicator = communicator.get()};
    models::ForwardOutput output;
    TRY(model.forward(input, output));
    for (int64_t i = 0; i < output.logits.num_rows(); ++i) {
      const float* row = output.logits.row<float>(i);
      logits.insert(logits.end(), row, row + output.logits.shape[1]);
    }
  }
  return logits;
}

struct Comparison {
  int64_t num_positions = 0;
  double mean_kl = 0;  // of `found` from `expected`
  double argmax_agreement = 0;
  double largest_difference = 0;
};

double log_sum_exp(std::span<const float> row) {
  const float max = *std::max_element(row.begin(), row.end());
  double total = 0;
  for (const float x : row) total += std::exp(static_cast<double>(x) - static_cast<double>(max));
  return static_cast<double>(max) + std::log(total);
}

Comparison compare(std::span<const float> expected,
                   std::span<const float> found,
                   size_t vocab_size) {
  Comparison result;
  int64_t num_equal = 0;
  for (size_t begin = 0; begin < expected.size(); begin += vocab_size) {
    const auto e = expected.subspan(begin, vocab_size);
    const auto f = found.subspan(begin, vocab_size);
    const double e_norm = log_sum_exp(e);
    const double f_norm = log_sum_exp(f);
    for (size_t i = 0; i < vocab_size; ++i) {
      const double difference = static_cast<double>(e[i]) - static_cast<double>(f[i]);
      result.largest_difference = std::max(result.largest_difference, std::abs(difference));
      const double log_p = static_cast<double>(e[i]) - e_norm;
      result.mean_kl += std::exp(log_p) * (log_p - static_cast<double>(f[i]) + f_norm);
    }
    const auto found_best = std::max_element(f.begin(), f.end()) - f.begin();
    const float margin = *std::max_element(e.begin(), e.end()) - e[static_cast<size_t>(found_best)];
    num_equal += margin <= kMaxMargin ? 1 : 0;
    ++result.num_positions;
  }
  result.mean_kl /= static_cast<double>(result.num_positions);
  result.argmax_agreement =
      static_cast<double>(num_equal) / static_cast<double>(result.num_positions);
  return result;
}

// Bytes in memory beside those of the plan.
Result<void> report_memory(const LoadedModel& loaded) {
  const engine::PlanMemory& memory = *loaded.plan.memory;
  const auto side_by_side = [](int64_t found, int64_t planned) {
    return fmt::format("{:.1f} MB, planned {:.1f} ({:+.2f}%)",
                       static_cast<double>(found) / 1e6,
                       static_cast<double>(planned) / 1e6,
                       (static_cast<double>(planned) / static_cast<double>(found) - 1) * 100);
  };
  const int64_t state =
      memory.kv() + memory.compressor_state + memory.draft_state + memory.workspace;
  return write_output(fmt::format("memory   weights {}; state and workspace {}\n",
                                  side_by_side(loaded.model->weights_bytes(), memory.weights),
                                  side_by_side(loaded.model->state_bytes(), state)));
}

// Sampled rows of every kind of weight on the kernels that serve, against the scalar reference.
Result<void> check_kernels(const checkpoint::Checkpoint& checkpoint, const ModelFlags& flags) {
  TRY_ASSIGN(const std::unique_ptr<device::Device> device,
             open_device(flags.device, {.num_threads = flags.threads, .isa = flags.isa}));
  TRY_ASSIGN(const auto comparisons,
             models::deepseek_v4::check_rows(checkpoint, *device, load_options(flags)));
  int64_t num_rows = 0;
  const auto* worst = &comparisons.front();
  for (const auto& comparison : comparisons) {
    num_rows += comparison.num_rows;
    if (comparison.cosine < worst->cosine) worst = &comparison;
  }
  return write_output(fmt::format(
      "kernels  {} rows of {} kinds of weights against the scalar reference: least cosine {:.6f} "
      "({} on {})\n",
      num_rows,
      comparisons.size(),
      worst->cosine,
      worst->module,
      worst->kernel));
}

// The path that serves, against f32 arithmetic: in scalar kernels where the model is small, in
// those that serve where scalar ones would take hours. One model at a time is in memory.
Result<void> check_logits(const checkpoint::Checkpoint& checkpoint, const ModelFlags& flags) {
  ModelFlags reference_flags = flags;
  reference_flags.device = {.kind = DeviceChoice::Kind::kCpu};
  reference_flags.gpu_memory_share = 0;
  reference_flags.precision = models::Precision::kReference;
  reference_flags.kernel.clear();
  reference_flags.checks.without_kernel.clear();
  const bool is_small = checkpoint.data_bytes() <= kMaxScalarBytes;
  if (is_small) {
    reference_flags.isa = device::IsaLevel::kScalar;
    reference_flags.checks.allow_reference = true;
  }
  TRY_ASSIGN(const int32_t context, prompt_context(checkpoint));
  std::vector<std::vector<int32_t>> prompts;
  std::vector<float> expected;
  {
    TRY_ASSIGN(LoadedModel reference,
               load_model(checkpoint,
                          reference_flags,
                          {.context = context, .pass_tokens = context},
                          Report::kNothing));
    TRY_ASSIGN(
        prompts,
        prompt_ids(flags.model, reference.model->info().vocab_size, static_cast<size_t>(context)));
    TRY_ASSIGN(expected, compute_logits(reference, prompts));
  }
  TRY_ASSIGN(LoadedModel loaded,
             load_model(checkpoint,
                        flags,
                        {.context = context, .pass_tokens = context, .needs_draft = true},
                        Report::kPlan));
  TRY_ASSIGN(const std::vector<float> found, compute_logits(loaded, prompts));
  const auto is_finite = [](float x) { return std::isfinite(x); };
  if (!std::all_of(expected.begin(), expected.end(), is_finite) ||
      !std::all_of(found.begin(), found.end(), is_finite)) {
    return data_loss(
        fmt::format("{}: the model gives logits that are not finite", checkpoint.dir().string()));
  }
  const auto vocab_size = static_cast<size_t>(loaded.model->info().vocab_size);
  const Comparison result = compare(expected, found, vocab_size);
  const std::string summary = fmt::format(
      "{} positions of {} prompts against f32 arithmetic in {}: mean KL {:.2g}, argmax "
      "as good at {:.1f}%, largest difference {:.2g}",
      result.num_positions,
      prompts.size(),
      is_small ? "scalar kernels" : "the kernels that serve",
      result.mean_kl,
      100 * result.argmax_agreement,
      result.largest_difference);
  if (!(result.mean_kl <= kMaxMeanKl) || result.argmax_agreement < kMinArgmaxAgreement) {
    Error error = data_loss(fmt::format("{}: {}; expected mean KL up to {} and {:.0f}%",
                                        checkpoint.dir().string(),
                                        summary,
                                        kMaxMeanKl,
                                        100 * kMinArgmaxAgreement));
    error.reason = "Q-K3";
    return error;
  }
  TRY(write_output(fmt::format("logits   {}\n", summary)));
  return report_memory(loaded);
}

}  // namespace

Result<void> run_check(const CheckFlags& flags) {
  TRY_ASSIGN(const checkpoint::Checkpoint checkpoint, open_model(flags.model));
  TRY(read_defaults(flags.model.model));  // what generate and serve read, too
  TRY(write_output(
      fmt::format("files    {} of {:.1f} MB with {} tensors: headers and sizes agree\n",
                  checkpoint.shard_names().size(),
                  static_cast<double>(checkpoint.data_bytes()) / 1e6,
                  checkpoint.tensors().size())));
  for (const std::string& warning : checkpoint.warnings()) print_note(warning);
  TRY(check_samples(checkpoint));
  TRY(check_logits(checkpoint, flags.model));
  return check_kernels(checkpoint, flags.model);
}

}  // namespace nibble::cli
