// Checkpoints that contradict their config or carry damaged values: each names its tensor and is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "golden/editable_model.h"
#include "golden/golden_testing.h"

namespace nibble::golden {
namespace {

using testing::HasSubstr;

Result<std::unique_ptr<models::Model>> try_load(EditableModel& model,
                                                device::Device& device,
                                                models::Precision precision,
                                                bool check_finite = false) {
  TRY_ASSIGN(const checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::open(model.write()));
  models::LoadOptions options;
  options.precision = precision;
  options.check_finite = check_finite;
  return models::load_model(checkpoint, device, options);
}

struct Fault {
  const char* name;
  std::function<void(EditableModel&)> damage;
  Errc code;
  const char* message;
};

void resize(OwnedTensor& tensor, Shape shape) {
  tensor.shape = shape;
  tensor.bytes.resize(static_cast<size_t>(tensor.view().num_bytes()));
}

const Fault kFaults[] = {
    {"missing_embedding",
     [](auto& m) { m.erase("embed.weight"); },
     Errc::kNotFound,
     "embed.weight is missing, expected shape [320, 64]"},
    {"missing_head",
     [](auto& m) { m.erase("head.weight"); },
     Errc::kNotFound,
     "head.weight is missing"},
    {"missing_norm",
     [](auto& m) { m.erase("layers.3.attn_norm.weight"); },
     Errc::kNotFound,
     "layers.3.attn_norm.weight is missing, expected shape [64]"},
    {"missing_gate_bias",
     [](auto& m) { m.erase("layers.3.ffn.gate.bias"); },
     Errc::kNotFound,
     "layers.3.ffn.gate.bias is missing, expected shape [12]"},
    {"missing_hash_table",
     [](auto& m) { m.erase("layers.1.ffn.gate.tid2eid"); },
     Errc::kNotFound,
     "layers.1.ffn.gate.tid2eid is missing, expected shape [320, 6]"},
    {"missing_expert",
     [](auto& m) { m.erase("layers.4.ffn.experts.11.w3.weight"); },
     Errc::kNotFound,
     "layers.4.ffn.experts.11.w3.weight is missing, expected a weight of logical shape [32, 64]"},
    {"missing_indexer",
     [](auto& m) { m.erase("layers.2.attn.indexer.weights_proj.weight"); },
     Errc::kNotFound,
     "layers.2.attn.indexer.weights_proj.weight is missing"},
    {"missing_compressor_bias",
     [](auto& m) { m.erase("layers.5.attn.compressor.ape"); },
     Errc::kNotFound,
     "layers.5.attn.compressor.ape is missing, expected shape [128, 64]"},
    {"missing_hyper_connection",
     [](auto& m) { m.erase("layers.0.hc_ffn_fn"); },
     Errc::kNotFound,
     "layers.0.hc_ffn_fn is missing, expected shape [24, 256]"},
    {"short_embedding",
     [](auto& m) {
       resize(m.at("embed.weight"), {319, 64});
     },
     Errc::kDataLoss,
     "embed.weight: shape [319, 64], expected [320, 64]"},
    {"wide_norm",
     [](auto& m) { resize(m.at("layers.0.attn.q_norm.weight"), {33}); },
     Errc::kDataLoss,
     "q_norm.weight: shape [33], expected [32]"},
    {"wrong_matrix",
     [](auto& m) {
       resize(m.at("layers.0.attn.wo_b.weight"), {64, 64});
     },
     Errc::kDataLoss,
     "layers.0.attn.wo_b.weight: logical shape [64, 64] (bf16), expected [64, 128]"},
    {"transposed_matrix",
     [](auto& m) {
       resize(m.at("layers.0.attn.wq_b.weight"), {32, 512});
     },
     Errc::kDataLoss,
     "expected [512, 32]"},
    {"flat_matrix",
     [](auto& m) { resize(m.at("layers.0.attn.wq_b.weight"), {512 * 32}); },
     Errc::kDataLoss,
     "expected a matrix"},
    {"integer_matrix",
     [](auto& m) { m.at("layers.0.attn.wkv.weight").dtype = DType::kI16; },
     Errc::kUnsupported,
     "dtype I16 is no weight format"},
    {"codes_without_scale",
     [](auto& m) {
       auto& w = m.at("layers.0.attn.wkv.weight");
       w.dtype = DType::kF8E4m3;
       resize(w, {64, 64});
     },
     Errc::kDataLoss,
     "layers.0.attn.wkv.scale"},
    {"scale_of_wrong_shape",
     [](auto& m) {
       auto& w = m.at("layers.0.attn.wkv.weight");
       w.dtype = DType::kF8E4m3;
       resize(w, {64, 64});
       m.tensors["layers.0.attn.wkv.scale"] = {
           .dtype = DType::kF8E8m0, .shape = {1, 2}, .bytes = std::vector<std::byte>(2)};
     },
     Errc::kDataLoss,
     "layers.0.attn.wkv.scale: F8_E8M0 [1, 2], expected shape [1, 1]"},
    {"nan_scale",
     [](auto& m) {
       m.quantize([](const std::string& module) { return module == "layers.3.attn.wo_b"; },
                  quant::Format::kFp8E4m3Block128x128,
                  DType::kF8E8m0);
       m.at("layers.3.attn.wo_b.scale").bytes[0] = std::byte{0xFF};
     },
     Errc::kDataLoss,
     "layers.3.attn.wo_b.scale: 1 of 1 scales are NaN"},
    {"nan_parameter",
     [](auto& m) {
       m.at("layers.6.hc_attn_fn").template as<float>()[7] =
           std::numeric_limits<float>::quiet_NaN();
     },
     Errc::kDataLoss,
     "layers.6.hc_attn_fn: element 7 is nan"},
    {"infinite_sink",
     [](auto& m) {
       m.at("layers.6.attn.attn_sink").template as<float>()[0] =
           std::numeric_limits<float>::infinity();
     },
     Errc::kDataLoss,
     "layers.6.attn.attn_sink: element 0 is inf"},
    {"expert_id_too_large",
     [](auto& m) { m.at("layers.0.ffn.gate.tid2eid").template as<int64_t>()[5] = 12; },
     Errc::kDataLoss,
     "layers.0.ffn.gate.tid2eid: element 5 is 12, expected 0 to 11"},
    {"expert_id_negative",
     [](auto& m) { m.at("layers.0.ffn.gate.tid2eid").template as<int64_t>()[0] = -1; },
     Errc::kDataLoss,
     "element 0 is -1"},
    {"expert_id_huge",
     [](auto& m) {
       m.at("layers.2.ffn.gate.tid2eid").template as<int64_t>()[1] = int64_t{1} << 40;
     },
     Errc::kDataLoss,
     "element 1 is 1099511627776"},
    {"expert_twice",
     [](auto& m) {
       auto* ids = m.at("layers.1.ffn.gate.tid2eid").template as<int64_t>();
       ids[6 * 9 + 3] = ids[6 * 9];
     },
     Errc::kDataLoss,
     "layers.1.ffn.gate.tid2eid: row 9 names expert"},
    {"float_hash_table",
     [](auto& m) { m.at("layers.1.ffn.gate.tid2eid").dtype = DType::kF64; },
     Errc::kUnsupported,
     "dtype F64, expected I64 or I32"},
    {"integer_norm",
     [](auto& m) { m.at("norm.weight").dtype = DType::kI16; },
     Errc::kUnsupported,
     "norm.weight: dtype I16, expected F32, BF16 or F16"},
    {"same_tensor_twice",
     [](auto& m) { m.tensors["lm_head.weight"] = m.at("head.weight"); },
     Errc::kDataLoss,
     "both mean head.weight"},
    {"flat_fused_experts",
     [](auto& m) { m.tensors["model.layers.0.mlp.experts.down_proj"] = m.at("head.weight"); },
     Errc::kDataLoss,
     "expected [n_routed_experts, rows, columns]"},
    {"experts_of_two_formats",
     [](auto& m) {
       m.quantize([](const std::string& module) { return module == "layers.3.ffn.experts.5.w2"; },
                  quant::Format::kMxfp4,
                  DType::kF8E8m0);
     },
     Errc::kDataLoss,
     "layers.3.ffn.experts.*.w2: group 5: format mxfp4, expected bf16"},
    {"more_layers_than_tensors",
     [](auto& m) {
       m.config.set("num_hidden_layers", 8);
       m.config.set("compress_ratios", json::Array{0, 0, 4, 128, 4, 128, 4, 0, 0});
     },
     Errc::kNotFound,
     "layers.7."},
    {"more_experts_than_tensors",
     [](auto& m) { m.config.set("n_routed_experts", 13); },
     Errc::kDataLoss,
     "[12, 64]"},
    {"other_ratios",
     [](auto& m) {
       m.config.set("compress_ratios", json::Array{0, 4, 4, 128, 4, 128, 4, 0});
     },
     Errc::kNotFound,
     "layers.1.attn.compressor.ape is missing"},
    {"other_architecture",
     [](auto& m) { m.config.set("model_type", "deepseek_v41"); },
     Errc::kUnsupported,
     "model_type deepseek_v41, expected deepseek_v4"},
};

class MalformedModel : public testing::TestWithParam<Fault> {};

TEST_P(MalformedModel, IsRefusedByName) {
  EditableModel model = EditableModel::read(golden_dir("flash_like"));
  GetParam().damage(model);
  const auto device = device::make_host_device({.num_threads = 1}).value();
  const auto loaded = try_load(model, *device, models::Precision::kReference);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, GetParam().code) << loaded.error().message;
  EXPECT_THAT(loaded.error().message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Faults, MalformedModel, testing::ValuesIn(kFaults), [](const auto& param) {
  return std::string(param.param.name);
});

TEST(MalformedModel, UnknownTensorsAreNoFault) {
  EditableModel model = EditableModel::read(golden_dir("flash_like"));
  model.tensors["vision.tower.weight"] = model.at("head.weight");
  const auto device = device::make_host_device({.num_threads = 1}).value();
  EXPECT_TRUE(try_load(model, *device, models::Precision::kReference).ok());
}

TEST(MalformedModel, FaithfulPrecisionNamesTheSizeThatDoesNotFit) {
  EditableModel model = EditableModel::read(golden_dir("flash_like"));
  const auto device = device::make_host_device({.num_threads = 1}).value();
  const auto loaded = try_load(model, *device, models::Precision::kFaithful);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, Errc::kUnsupported);
  EXPECT_THAT(loaded.error().message, HasSubstr("head_dim - qk_rope_head_dim 48"));
}

// Q-R1 with --nan-check: finite weights whose products are not.
TEST(OverflowingModel, NamesTheFirstLayerWhoseOutputIsNotFinite) {
  EditableModel editable = EditableModel::read(golden_dir("flash_like"));
  OwnedTensor& gamma = editable.at("layers.3.ffn_norm.weight");
  ASSERT_EQ(gamma.dtype, DType::kBf16);
  constexpr uint16_t kLargestBf16 = 0x7F7F;
  for (int64_t i = 0; i < gamma.shape[0]; ++i) gamma.as<uint16_t>()[i] = kLargestBf16;
  const auto device = device::make_host_device({.num_threads = 1}).value();
  for (const bool check : {true, false}) {
    const auto model = try_load(editable, *device, models::Precision::kReference, check).value();
    ASSERT_TRUE(model->reserve_state({}).ok());
    const int32_t ids[] = {1, 2, 3}, positions[] = {0, 1, 2}, cu_seqlens[] = {0, 3}, rows[] = {2};
    const SlotId slots[] = {SlotId{0}};
    const PageId pages[] = {PageId{0}};
    const std::span<const PageId> tables[] = {pages};
    models::ForwardOutput output;
    const Result<void> done = model->forward({.token_ids = ids,
                                              .positions = positions,
                                              .cu_seqlens = cu_seqlens,
                                              .slots = slots,
                                              .block_tables = tables,
                                              .logits_rows = rows},
                                             output);
    ASSERT_EQ(done.ok(), !check);
    if (!check) continue;
    EXPECT_EQ(done.error().reason, "Q-R1");
    EXPECT_THAT(done.error().message, HasSubstr("layers.3.ffn: output element "));
    EXPECT_THAT(done.error().message, HasSubstr("of token 0 of the pass is "));
  }
}

}  // namespace
}  // namespace nibble::golden
