#include "tools/synth/synth.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/checked_math.h"
#include "base/utf8.h"
#include "checkpoint/config_reader.h"
#include "device/buffer.h"
#include "models/deepseek_v4/config.h"
#include "quant/numeric.h"
#include "tools/convert/cast.h"
#include "tools/convert/input_scale.h"
#include "tools/convert/stored_weight.h"
#include "tools/synth/inventory.h"
#include "tools/synth/presets.h"
#include "tools/synth/random_weights.h"

namespace nibble::tools {
namespace {

using checkpoint::ConfigReader;
using quant::Format;
using quant::QuantizedWeight;

constexpr std::string_view kRecordName = "nibble_synth.json";
constexpr int64_t kSlabRows = 128;                       // a multiple of every block_shape.n
constexpr int64_t kChunkElements = int64_t{256} * 1024;  // of tensors without format

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// --- tensors without format ---

template <class T>
T stored_value(float value);
template <>
float stored_value<float>(float value) {
  return value;
}
template <>
uint16_t stored_value<uint16_t>(float value) {
  return quant::f32_to_bf16(value);
}

float normal_value(const InventoryEntry& entry, uint64_t seed, int64_t position) {
  return entry.mean + entry.deviation * random_normal(seed, static_cast<uint64_t>(position));
}

template <class T>
Result<void> make_normal(const InventoryEntry& entry, uint64_t seed, const WriteBytes& write) {
  const int64_t count = entry.shape.num_elements();
  std::vector<T> values;
  for (int64_t begin = 0; begin < count; begin += kChunkElements) {
    values.resize(static_cast<size_t>(std::min(kChunkElements, count - begin)));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = stored_value<T>(normal_value(entry, seed, begin + static_cast<int64_t>(i)));
    }
    TRY(write(0, begin * static_cast<int64_t>(sizeof(T)), bytes_of(values)));
  }
  return {};
}

// Rows of distinct experts.
Result<void> make_expert_table(const InventoryEntry& entry,
                               int64_t num_experts,
                               uint64_t seed,
                               const WriteBytes& write) {
  const int64_t width = entry.shape[1];
  std::vector<int64_t> ids(static_cast<size_t>(entry.shape.num_elements()));
  for (int64_t row = 0; row < entry.shape[0]; ++row) {
    const auto out =
        std::span(ids).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
    fill_expert_ids(seed, num_experts, row, out);
  }
  return write(0, 0, bytes_of(ids));
}

Piece tensor_piece(const InventoryEntry& entry, int64_t num_experts, uint64_t seed) {
  return {.module_class = module_class(entry.name),
          .tensors = {{entry.name, entry.dtype, entry.shape}},
          .make = [entry, num_experts, seed](const WriteBytes& write) -> Result<ErrorStatistics> {
            const uint64_t own_seed = tensor_seed(seed, entry.name);
            switch (entry.dtype) {
              case DType::kF32:
                TRY(make_normal<float>(entry, own_seed, write));
                break;
              case DType::kBf16:
                TRY(make_normal<uint16_t>(entry, own_seed, write));
                break;
              default:
                TRY(make_expert_table(entry, num_experts, own_seed, write));
            }
            return ErrorStatistics{.num_exact_tensors = 1};
          }};
}

// --- weights ---

Format native_format(WeightRole role) {
  return role == WeightRole::kRoutedExpert ? Format::kMxfp4 : Format::kFp8E4m3Block128x128;
}

Format stored_format(const InventoryEntry& entry, CheckpointFormat format) {
  const bool is_main_expert = entry.role == WeightRole::kRoutedExpert && !is_draft(entry.name);
  switch (format) {
    case CheckpointFormat::kNative:
      return native_format(entry.role);
    case CheckpointFormat::kNvfp4:
      return is_main_expert ? Format::kNvfp4 : native_format(entry.role);
    case CheckpointFormat::kInt4:
      return is_main_expert ? Format::kInt4Group32 : Format::kBf16;
    case CheckpointFormat::kBf16:
      break;
  }
  return Format::kBf16;
}

// Weights that are made together: w1 and w3 of an expert share their global scale in NVFP4.
struct SynthGroup {
  std::vector<InventoryEntry> weights;
  Format format = Format::kBf16;
  uint64_t seed = 0;
  std::optional<float> input_scale;
};

int32_t shared_global_exponent(const SynthGroup& group) {
  uint8_t largest = 0;
  for (const InventoryEntry& entry : group.weights) {
    const int64_t n = entry.shape[0], k = entry.shape[1];
    std::vector<uint8_t> scales(
        static_cast<size_t>(quant::scale_shape(Format::kMxfp4, n, k).num_elements()));
    fill_mxfp4_scales(tensor_seed(group.seed, entry.name), n, k, scales);
    largest = std::max(largest, *std::max_element(scales.begin(), scales.end()));
  }
  return nvfp4_global_exponent(largest);
}

// Appends slabs of rows to the tensors of one weight.
class WeightWriter final {
 public:
  WeightWriter(Format format, int32_t global_exponent, size_t first_tensor, const WriteBytes& write)
      : format_(format),
        global_exponent_(global_exponent),
        first_tensor_(first_tensor),
        write_(write) {}

  Result<void> append(const QuantizedWeight& native) {
    if (format_ == native.format) return append_parts(native.codes, native.scales);
    if (format_ == Format::kNvfp4) {
      nvfp4_scales_.resize(2 * native.scales.size());
      cast_scales_to_nvfp4(native.view(), global_exponent_, nvfp4_scales_);
      return append_parts(native.codes, bytes_of(nvfp4_scales_));
    }
    values_.resize(static_cast<size_t>(native.n * native.k));
    quant::dequantize(native.view(), values_);
    const QuantizedWeight stored = quant::quantize(format_, values_, native.n, native.k);
    return append_parts(stored.codes, stored.scales);
  }

  // What comes once per weight.
  Result<void> finish(int64_t n, int64_t k) {
    if (format_ == Format::kNvfp4) {
      const float scale = quant::exp2_int(global_exponent_);
      return write_(first_tensor_ + kGlobalScaleIndex, 0, std::as_bytes(std::span(&scale, 1)));
    }
    if (format_ == Format::kInt4Group32) {
      const int64_t shape[] = {n, k};
      return write_(first_tensor_ + kShapeIndex, 0, std::as_bytes(std::span(shape)));
    }
    return {};
  }

 private:
  Result<void> append_parts(std::span<const std::byte> codes, std::span<const std::byte> scales) {
    TRY(write_(first_tensor_ + kCodesIndex, codes_at_, codes));
    codes_at_ += static_cast<int64_t>(codes.size());
    if (scales.empty()) return {};
    TRY(write_(first_tensor_ + kScalesIndex, scales_at_, scales));
    scales_at_ += static_cast<int64_t>(scales.size());
    return {};
  }

  Format format_;
  int32_t global_exponent_;
  size_t first_tensor_;
  const WriteBytes& write_;
  int64_t codes_at_ = 0;
  int64_t scales_at_ = 0;
  std::vector<uint8_t> nvfp4_scales_;
  std::vector<float> values_;
};

Result<ErrorStatistics> make_weights(const SynthGroup& group, const WriteBytes& write) {
  const int32_t exponent = group.format == Format::kNvfp4 ? shared_global_exponent(group) : 0;
  size_t first_tensor = 0;
  for (const InventoryEntry& entry : group.weights) {
    const int64_t n = entry.shape[0], k = entry.shape[1];
    const uint64_t seed = tensor_seed(group.seed, entry.name);
    WeightWriter writer(group.format, exponent, first_tensor, write);
    for (int64_t begin = 0; begin < n; begin += kSlabRows) {
      const int64_t rows = std::min(kSlabRows, n - begin);
      TRY(writer.append(entry.role == WeightRole::kRoutedExpert
                            ? random_mxfp4_rows(seed, k, begin, rows)
                            : random_fp8_rows(seed, k, begin, rows)));
    }
    TRY(writer.finish(n, k));
    first_tensor += stored_tensors(entry.name, group.format, n, k).size();
  }
  return ErrorStatistics{.num_exact_tensors = static_cast<int64_t>(group.weights.size())};
}

Piece weight_piece(SynthGroup group) {
  Piece piece{.module_class = module_class(group.weights.front().name)};
  std::vector<std::string> names;
  for (const InventoryEntry& entry : group.weights) {
    for (TensorMeta& meta :
         stored_tensors(entry.name, group.format, entry.shape[0], entry.shape[1])) {
      piece.tensors.push_back(std::move(meta));
    }
    names.push_back(entry.name);
  }
  const size_t first_input_scale = piece.tensors.size();
  if (group.input_scale) append_input_scales(names, piece.tensors);
  piece.make = [group = std::move(group),
                first_input_scale](const WriteBytes& write) -> Result<ErrorStatistics> {
    if (group.input_scale) {
      TRY(write_input_scales(*group.input_scale, first_input_scale, group.weights.size(), write));
    }
    return make_weights(group, write);
  };
  return piece;
}

Result<void> check_widths(const std::vector<InventoryEntry>& inventory, CheckpointFormat format) {
  for (const InventoryEntry& entry : inventory) {
    if (entry.role == WeightRole::kOther) continue;
    const int64_t multiple = std::max(quant::k_multiple(native_format(entry.role)),
                                      quant::k_multiple(stored_format(entry, format)));
    if (entry.shape[1] % multiple == 0) continue;
    return unsupported(fmt::format(
        "module {}: k {}, expected a multiple of {}", entry.name, entry.shape[1], multiple));
  }
  return {};
}

// The largest |gamma| of a norm in BF16, without writing it.
float gamma_amax(const InventoryEntry& norm, uint64_t seed) {
  const uint64_t own_seed = tensor_seed(seed, norm.name);
  float amax = 0;
  for (int64_t i = 0; i < norm.shape.num_elements(); ++i) {
    const uint16_t stored = stored_value<uint16_t>(normal_value(norm, own_seed, i));
    amax = std::max(amax, std::fabs(quant::bf16_to_f32(stored)));
  }
  return amax;
}

std::vector<Piece> make_pieces(const std::vector<InventoryEntry>& inventory,
                               const models::deepseek_v4::Config& config,
                               const SynthOptions& options) {
  std::vector<Piece> pieces;
  float gate_scale = 0;  // of the layer that the entries belong to; its norm comes first
  for (size_t i = 0; i < inventory.size(); ++i) {
    const InventoryEntry& entry = inventory[i];
    if (entry.role == WeightRole::kOther) {
      if (entry.name.ends_with(".ffn_norm.weight")) {
        gate_scale = gate_input_scale(config, gamma_amax(entry, options.seed));
      }
      pieces.push_back(tensor_piece(entry, config.n_routed_experts, options.seed));
      continue;
    }
    SynthGroup group{
        .weights = {entry}, .format = stored_format(entry, options.format), .seed = options.seed};
    if (group.format == Format::kNvfp4) {
      const std::optional<float> down = down_input_scale(config);
      group.input_scale = down && !entry.name.ends_with(".w2") ? std::optional(gate_scale) : down;
    }
    if (entry.name.ends_with(".w1")) group.weights.push_back(inventory[++i]);  // w3 comes next
    pieces.push_back(weight_piece(std::move(group)));
  }
  return pieces;
}

// The format that a config declares.
Result<CheckpointFormat> declared_format(const ConfigReader& config) {
  TRY_ASSIGN(const std::string method, config.string_or({"quantization_config.quant_method"}, ""));
  TRY_ASSIGN(const std::string expert_dtype, config.string_or({"expert_dtype"}, "fp4"));
  TRY_ASSIGN(const std::string moe, config.string_or({"quantization_config.moe_quant_algo"}, ""));
  if (method.empty()) return CheckpointFormat::kBf16;
  if (method == "fp8" && moe == "NVFP4") return CheckpointFormat::kNvfp4;
  if (method == "fp8" && moe.empty() && expert_dtype == "fp4") return CheckpointFormat::kNative;
  if (method == "compressed-tensors") return CheckpointFormat::kInt4;
  return unsupported(
      fmt::format("{}: dummy weights of quant_method {}, expert_dtype {}: expected the config of a "
                  "native, NVFP4, INT4 or BF16 checkpoint",
                  config.file_name(),
                  escape_for_display(method),
                  escape_for_display(expert_dtype)));
}

// For each piece the one whose bytes it has: its own, or an earlier one's of the same class and
// shape.
std::vector<size_t> choose_origins(const std::vector<Piece>& pieces, int32_t num_distinct) {
  std::map<std::string, std::vector<size_t>> made;
  std::vector<size_t> origins;
  for (size_t i = 0; i < pieces.size(); ++i) {
    origins.push_back(i);
    if (num_distinct == 0) continue;
    std::string shape = pieces[i].module_class;
    for (const TensorMeta& tensor : pieces[i].tensors) shape += " " + tensor.shape.to_string();
    std::vector<size_t>& equal = made[shape];
    if (equal.size() < static_cast<size_t>(num_distinct)) {
      equal.push_back(i);
    } else {
      origins.back() = equal[i % equal.size()];
    }
  }
  return origins;
}

}  // namespace

Result<Synthesis> synthesize(const json::Object& config, const SynthOptions& options) {
  TRY_ASSIGN(const ConfigReader reader, ConfigReader::parse(config_text(config), "config.json"));
  TRY_ASSIGN(const models::deepseek_v4::Config parsed, models::deepseek_v4::parse_config(reader));
  const std::vector<InventoryEntry> inventory = model_inventory(parsed);
  TRY(check_widths(inventory, options.format));
  const bool has_drafts = std::any_of(
      inventory.begin(), inventory.end(), [](const InventoryEntry& e) { return is_draft(e.name); });
  Declaration declaration = declare_format(config,
                                           {.format = options.format,
                                            .num_hidden_layers = parsed.num_hidden_layers,
                                            .drafts_differ = has_drafts});
  return Synthesis{.pieces = make_pieces(inventory, parsed, options),
                   .config = std::move(declaration.config),
                   .hf_quant = std::move(declaration.hf_quant)};
}

Result<Job> plan_synthesis(const SynthJobOptions& options) {
  std::optional<json::Object> config = preset_config(options.preset);
  if (!config) {
    return invalid_argument(fmt::format("preset {}: unknown, expected flash, pro or mini",
                                        escape_for_display(options.preset)));
  }
  if (options.num_layers > 0) {
    TRY_ASSIGN(config, keep_layers(*config, options.num_layers));
  }
  TRY_ASSIGN(Synthesis synthesis, synthesize(*config, options.synth));
  Job job;
  job.out = options.out;
  job.pieces = std::move(synthesis.pieces);
  job.texts.push_back({"config.json", config_text(synthesis.config)});
  if (synthesis.hf_quant) {
    job.texts.push_back({"hf_quant_config.json", config_text(*synthesis.hf_quant)});
  }
  job.identity = json::make_object({{"job", "synth"},
                                    {"preset", options.preset},
                                    {"layers", options.num_layers},
                                    {"format", checkpoint_format_name(options.synth.format)},
                                    {"seed", options.synth.seed}});
  job.record_name = kRecordName;
  job.resume = options.resume;
  job.shard_bytes = options.shard_bytes;
  return job;
}

Result<checkpoint::Checkpoint> make_dummy_checkpoint(const Path& dir,
                                                     const DummyOptions& options,
                                                     device::ThreadPool& pool) {
  TRY_ASSIGN(const ConfigReader reader, checkpoint::read_config(dir));
  json::Object config = reader.root();
  if (options.num_layers > 0) {
    TRY_ASSIGN(config, keep_layers(config, options.num_layers));
  }
  TRY_ASSIGN(const CheckpointFormat format, declared_format(reader));
  TRY_ASSIGN(const Synthesis synthesis,
             synthesize(config, {.format = format, .seed = options.seed}));

  constexpr int64_t kAlignment = 64;
  const std::vector<size_t> origins = choose_origins(synthesis.pieces, options.num_distinct);
  std::vector<checkpoint::StoredTensor> tensors;
  std::vector<size_t> first_tensor;  // of each piece
  int64_t num_bytes = 0;
  for (size_t i = 0; i < synthesis.pieces.size(); ++i) {
    first_tensor.push_back(tensors.size());
    size_t shared = first_tensor[origins[i]];
    for (const TensorMeta& meta : synthesis.pieces[i].tensors) {
      const int64_t size = meta.shape.num_elements() * dtype_size(meta.dtype);
      const int64_t begin = origins[i] == i ? num_bytes : tensors[shared++].begin;
      tensors.push_back({.meta = meta, .begin = begin, .end = begin + size});
      if (origins[i] == i) num_bytes = round_up(num_bytes + size, kAlignment);
    }
  }
  TRY_ASSIGN(device::Buffer buffer, device::Buffer::allocate(num_bytes));
  std::vector<Result<ErrorStatistics>> results(synthesis.pieces.size(), ErrorStatistics{});
  pool.parallel_for(static_cast<int64_t>(results.size()), [&](int64_t task) {
    const auto i = static_cast<size_t>(task);
    if (origins[i] != i) return;
    results[i] = synthesis.pieces[i].make(
        [&](size_t index, int64_t offset, std::span<const std::byte> bytes) -> Result<void> {
          const checkpoint::StoredTensor& place = tensors[first_tensor[i] + index];
          std::copy(bytes.begin(), bytes.end(), buffer.data() + place.begin + offset);
          return {};
        });
  });
  for (Result<ErrorStatistics>& result : results) TRY(std::move(result));
  const auto storage = std::make_shared<device::Buffer>(std::move(buffer));
  return checkpoint::Checkpoint::from_memory(
      dir,
      config_text(config),
      std::move(tensors),
      std::shared_ptr<const std::byte>(storage, storage->data()));
}

}  // namespace nibble::tools
