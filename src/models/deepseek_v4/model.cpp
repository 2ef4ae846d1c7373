#include "models/deepseek_v4/model.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "models/deepseek_v4/batch.h"
#include "models/deepseek_v4/gpu/model.h"
#include "models/deepseek_v4/model_info.h"
#include "models/deepseek_v4/pass.h"

namespace nibble::models::deepseek_v4 {
namespace {

class DeepseekV4 final : public Model {
 public:
  DeepseekV4(Config config,
             Numerics numerics,
             Weights weights,
             Ops ops,
             device::Device& device,
             bool check_finite)
      : config_(std::move(config)),
        numerics_(numerics),
        weights_(std::move(weights)),
        ops_(std::move(ops)),
        device_(device),
        check_finite_(check_finite),
        frequencies_(make_rope_frequencies(config_)),
        info_(model_info(config_,
                         numerics_,
                         weights_.mtp.has_value(),
                         weights_.fingerprint,
                         deepseek_v4::state_bytes(config_, numerics_, weights_.mtp.has_value()))),
        fingerprint_(info_.fingerprint) {}

  const ModelInfo& info() const override { return info_; }
  const std::vector<RoutedModule>& routed_modules() const override { return weights_.modules; }
  int64_t weights_bytes() const override { return weights_.num_bytes; }
  int64_t state_bytes() const override {
    return state_ ? state_->num_bytes() + workspace_->storage.num_bytes() : 0;
  }

  Result<void> reserve_state(const StateOptions& options) override;

  void reset_slot(SlotId slot) override { checked_status(slot) = {}; }
  int32_t length(SlotId slot) const override {
    CHECK(state_ && state_->slots().has(slot)) << slot.value;
    return state_->status(slot).length;
  }
  Result<void> truncate(SlotId slot, int32_t length) override {
    TRY(require_slot(slot));
    return state_->slots().truncate(slot, length);
  }
  Result<std::vector<std::byte>> save_slot(SlotId slot) const override {
    TRY(require_slot(slot));
    return state_->save(slot, fingerprint_);
  }
  Result<void> restore_slot(SlotId slot, std::span<const std::byte> snapshot) override {
    TRY(require_slot(slot));
    return state_->restore(slot, snapshot, fingerprint_);
  }

  Result<void> save_page(PageId page, std::span<std::byte> out) const override {
    TRY(require_page(page, static_cast<int64_t>(out.size())));
    state_->save_page(page, out);
    return {};
  }
  Result<void> restore_page(PageId page, std::span<const std::byte> entries) override {
    TRY(require_page(page, static_cast<int64_t>(entries.size())));
    state_->restore_page(page, entries);
    return {};
  }

  Result<void> forward(const ForwardInput& input, ForwardOutput& output) override;

 private:
  SlotStatus& checked_status(SlotId slot) {
    CHECK(state_ && state_->slots().has(slot)) << slot.value;
    return state_->status(slot);
  }
  Result<void> require_slot(SlotId slot) const;
  Result<void> require_page(PageId page, int64_t num_bytes) const;
  Result<void> run_layers(Pass& pass, const TensorView& streams);
  Result<void> compute_logits(Pass& pass,
                              const ForwardInput& input,
                              const TensorView& streams,
                              ForwardOutput& output);
  Result<void> compute_mtp(Pass& pass, const TensorView& streams, ForwardOutput& output);
  void advance_lengths();

  Config config_;
  Numerics numerics_;
  Weights weights_;
  Ops ops_;
  device::Device& device_;
  bool check_finite_;
  RopeFrequencies frequencies_;
  ModelInfo info_;
  uint64_t fingerprint_;

  std::optional<DecodingState> state_;  // with workspace_: set by reserve_state()
  std::optional<Workspace> workspace_;
  Batch batch_;
  Batch mtp_batch_;
};

Result<void> DeepseekV4::require_slot(SlotId slot) const {
  if (!state_) return unavailable("decoding state is not reserved; call reserve_state() first");
  return state_->slots().require_slot(slot);
}

Result<void> DeepseekV4::require_page(PageId page, int64_t num_bytes) const {
  if (!state_) return unavailable("decoding state is not reserved; call reserve_state() first");
  return state_->slots().require_page(page, num_bytes, info_.page_bytes);
}

Result<void> DeepseekV4::reserve_state(const StateOptions& requested) {
  TRY_ASSIGN(const StateOptions options,
             resolve_state_options(requested, config_.max_position_embeddings));
  state_.reset();
  workspace_.reset();
  TRY_ASSIGN(DecodingState state,
             DecodingState::make(config_, numerics_, info_.has_mtp, options, device_));
  TRY_ASSIGN(Workspace workspace, Workspace::make(config_, info_.has_mtp, options, device_));
  batch_.reserve(config_, options);
  mtp_batch_.reserve(config_, options);
  state_.emplace(std::move(state));
  workspace_.emplace(std::move(workspace));
  return {};
}

Result<void> DeepseekV4::run_layers(Pass& pass, const TensorView& streams) {
  TRY(ops_.embed.launch(kernels::EmbedArgs{.table = weights_.embed.view,
                                           .ids = batch_.token_ids,
                                           .copies = config_.hc_mult,
                                           .out = streams},
                        pass.stream));
  for (int32_t l = 0; l < config_.num_hidden_layers; ++l) {
    TRY(run_block(pass, weights_.layers[static_cast<size_t>(l)], l, batch_, streams));
  }
  return {};
}

Result<void> DeepseekV4::compute_logits(Pass& pass,
                                        const ForwardInput& input,
                                        const TensorView& streams,
                                        ForwardOutput& output) {
  const auto rows = static_cast<int64_t>(input.logits_rows.size());
  output.logits = workspace_->logits.rows(0, rows);
  if (rows == 0) return {};
  const TensorView wanted = workspace_->head_streams.rows(0, rows);
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(wanted.row<float>(i),
                streams.row<float>(input.logits_rows[static_cast<size_t>(i)]),
                static_cast<size_t>(streams.shape[1]) * sizeof(float));
  }
  return run_head(
      pass, weights_.head, wanted, workspace_->head_hidden.rows(0, rows), output.logits);
}

Result<void> DeepseekV4::compute_mtp(Pass& pass, const TensorView& streams, ForwardOutput& output) {
  mtp_batch_.assign_mtp(config_, batch_, state_->slots());
  output.mtp_logits = workspace_->mtp_logits.rows(0, mtp_batch_.num_tokens());
  if (mtp_batch_.num_tokens() == 0) return {};
  return run_mtp(pass, batch_, streams, mtp_batch_, output.mtp_logits);
}

void DeepseekV4::advance_lengths() {
  for (const SequenceSpan& sequence : batch_.sequences) {
    state_->status(sequence.slot).advance(sequence.position_end());
  }
}

Result<void> DeepseekV4::forward(const ForwardInput& input, ForwardOutput& output) {
  if (!state_) return unavailable("decoding state is not reserved; call reserve_state() first");
  TRY(validate(input, config_, state_->slots()));
  if (input.compute_mtp && !info_.has_mtp) {
    return invalid_argument(
        "MTP logits asked for, but the model has no MTP layer or it was not loaded");
  }
  output = {};
  batch_.assign(config_, input);
  Pass pass{.config = config_,
            .numerics = numerics_,
            .weights = weights_,
            .ops = ops_,
            .frequencies = frequencies_,
            .state = *state_,
            .workspace = *workspace_,
            .stream = device_.stream(),
            .record = input.record,
            .replay = input.replay,
            .check_finite = check_finite_};
  const TensorView streams = workspace_->streams.rows(0, batch_.num_tokens());
  TRY(run_layers(pass, streams));
  TRY(compute_logits(pass, input, streams, output));
  if (input.compute_mtp) TRY(compute_mtp(pass, streams, output));
  if (info_.has_mtp) store_streams(pass, batch_, streams);
  advance_lengths();
  return {};
}

}  // namespace

Result<std::unique_ptr<Model>> load(const checkpoint::ConfigReader& reader,
                                    const checkpoint::Checkpoint& checkpoint,
                                    device::Device& device,
                                    const LoadOptions& options) {
  TRY_ASSIGN(Config config, parse_config(reader));
  if (device.info().kind == device::DeviceKind::kCuda) {
    return gpu::load(std::move(config), checkpoint, device, options);
  }
  const Numerics numerics = numerics_of(options.precision, options.kv_dtype);
  if (numerics.kv_dtype == DType::kF8E4m3) TRY(check_fp8_key_sizes(config));
  TRY_ASSIGN(Weights weights, load_weights(checkpoint, config, numerics, device.info(), options));
  TRY_ASSIGN(Ops ops, route_ops(config, numerics, device.info(), options.routing));
  return std::unique_ptr<Model>(std::make_unique<DeepseekV4>(std::move(config),
                                                             numerics,
                                                             std::move(weights),
                                                             std::move(ops),
                                                             device,
                                                             options.check_finite));
}

}  // namespace nibble::models::deepseek_v4
