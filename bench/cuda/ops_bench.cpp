// The small ops between the products of a DeepSeek-V4-Flash layer on a GPU: graphs of dependent
// launches, each after the one before it. Prints one JSON object per line.
//   usage: cuda_ops_bench [part of a measurement's name]...
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/cuda_bench.h"
#include "device/cuda.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/sm90/stream_turn/launch.h"
#include "kernels/work.h"
#include "quant/fp8_key.h"

namespace nibble {
namespace {

using namespace kernels;        // NOLINT: a program of its own
using namespace kernels::cuda;  // NOLINT
using cuda_bench::Run;

constexpr int32_t kHidden = 4096, kStreams = 4, kMix = (2 + kStreams) * kStreams, kParts = 64;
constexpr int32_t kHeads = 64, kHeadDim = 512, kRotary = 64, kRank = 1024, kExperts = 256;
constexpr int32_t kChoices = 6, kIndexHeads = 64, kIndexWidth = 128, kIntermediate = 2048;
constexpr int32_t kVocab = 129280, kWindow = 128, kRing = 256, kPageTokens = 256;
constexpr int32_t kChannels = 2 * kHeadDim, kIndexChannels = 2 * kIndexWidth;
constexpr int32_t kRingWidth = 2 * (kChannels + kIndexChannels);
constexpr int32_t kProjections = kRingWidth + kIndexHeads;
constexpr int32_t kMaxPages = 64;
constexpr int32_t kCount = 32;  // launches in a graph

// Parts of one zeroed buffer.
class Memory final {
 public:
  explicit Memory(device::Buffer buffer) : buffer_(std::move(buffer)) {}

  const device::Buffer& buffer() const { return buffer_; }
  void reset() { used_ = 0; }
  template <class T>
  T* take(int64_t count) {
    std::byte* const data = buffer_.data() + used_;
    used_ = round_up(used_ + count * static_cast<int64_t>(sizeof(T)), 256);
    CHECK(used_ <= buffer_.num_bytes()) << used_;
    return reinterpret_cast<T*>(data);
  }
  float* floats(int64_t count) { return take<float>(count); }
  ActivationForms fp8(int64_t m, int64_t k) {
    return {.fp8_blocks = take<std::byte>(fp8_blocks_bytes(m, k))};
  }

 private:
  device::Buffer buffer_;
  int64_t used_ = 0;
};

class Bench final {
 public:
  Bench(const Run& run, device::Stream& stream, Memory& memory)
      : run_(run), stream_(stream), memory_(memory) {}

  Result<void> all(int32_t m) {
    TRY(streams(m));
    TRY(attention(m));
    TRY(compressors(m));
    TRY(experts(m));
    return rest(m);
  }

 private:
  Result<void> measure(std::string_view what,
                       int64_t tokens,
                       int64_t bytes,
                       const std::function<Result<void>()>& launch) {
    if (!run_.wants(what)) return {};
    TRY_ASSIGN(const cuda_bench::Spread us,
               cuda_bench::time_graph_us(stream_, kCount, [&](int32_t) { return launch(); }));
    run_.print(what, tokens, bytes, us);
    return {};
  }

  Result<int32_t*> integers(int32_t count, const std::function<int32_t(int32_t)>& f) {
    std::vector<int32_t> values;
    for (int32_t i = 0; i < count; ++i) values.push_back(f(i));
    auto* const data = memory_.take<int32_t>(count);
    TRY(device::copy_to_device(data, values.data(), int64_t{count} * 4, stream_));
    TRY(device::synchronize(stream_));
    return data;
  }

  // A prompt of m tokens, all of whose entries lie in one page.
  Result<DeviceTokens> prompt(int32_t m, DeviceSequences* sequences) {
    TRY_ASSIGN(int32_t* const counting, integers(m, [](int32_t i) { return i; }));
    TRY_ASSIGN(int32_t* const zeros, integers(std::max(m, kMaxPages), [](int32_t) { return 0; }));
    TRY_ASSIGN(int32_t* const count, integers(1, [&](int32_t) { return m; }));
    *sequences = {.slots = zeros,
                  .row_begin = zeros,
                  .num_tokens = count,
                  .position_begin = zeros,
                  .window_begin = zeros,
                  .pages = zeros,
                  .max_pages = kMaxPages};
    return DeviceTokens{.ids = counting, .positions = counting, .sequences = zeros, .m = m};
  }

  // m sequences of one token each, at positions that close a block of `closing` tokens, if any.
  Result<DeviceTokens> tokens(int32_t m, int32_t closing, DeviceSequences* sequences) {
    const auto list = [&](const std::function<int32_t(int32_t)>& f) { return integers(m, f); };
    TRY_ASSIGN(int32_t* const counting, list([](int32_t i) { return i; }));
    TRY_ASSIGN(int32_t* const ones, list([](int32_t) { return 1; }));
    TRY_ASSIGN(int32_t* const positions, list([&](int32_t) { return 1024 + closing - 1; }));
    TRY_ASSIGN(int32_t* const pages, integers(m * kMaxPages, [](int32_t) { return 0; }));
    *sequences = {.slots = counting,
                  .row_begin = counting,
                  .num_tokens = ones,
                  .position_begin = positions,
                  .window_begin = memory_.take<int32_t>(m),
                  .pages = pages,
                  .max_pages = kMaxPages};
    return DeviceTokens{.ids = counting, .positions = positions, .sequences = counting, .m = m};
  }
  DeviceRotation rotation() {
    return {.freqs = memory_.floats(kRotary / 2), .num_rotary = kRotary};
  }

  Result<void> streams(int32_t m) {
    memory_.reset();
    const int64_t state = int64_t{m} * kStreams * kHidden;
    DeviceStreamUpdateArgs update{.y = {.data = memory_.floats(int64_t{m} * kHidden)},
                                  .pairs = memory_.floats(int64_t{m} * kChoices * kHidden),
                                  .choices = kChoices,
                                  .post = memory_.floats(m * kStreams),
                                  .comb = memory_.floats(m * kStreams * kStreams),
                                  .streams = memory_.floats(state),
                                  .hidden = kHidden,
                                  .hc_mult = kStreams,
                                  .m = m,
                                  .fn = memory_.floats(int64_t{kMix} * kStreams * kHidden),
                                  .num_mix = kMix,
                                  .parts = kParts,
                                  .partials = memory_.floats(int64_t{m} * kParts * (kMix + 1)),
                                  .is_dependent = true};
    const int64_t fn_bytes = int64_t{kMix} * kStreams * kHidden * 4;
    TRY(measure("stream_update of experts",
                m,
                fn_bytes + 8 * state + int64_t{4} * m * kHidden * (1 + kChoices),
                [&] { return launch_stream_update(update, stream_); }));
    const DeviceStreamMixArgs mix{.streams = update.streams,
                                  .partials = update.partials,
                                  .parts = kParts,
                                  .num_mix = kMix,
                                  .base = memory_.floats(kMix),
                                  .scale = memory_.floats(3),
                                  .hidden = kHidden,
                                  .hc_mult = kStreams,
                                  .sinkhorn_iters = 20,
                                  .hc_eps = 1e-6f,
                                  .norm_eps = 1e-6f,
                                  .gamma = memory_.floats(kHidden),
                                  .m = m,
                                  .x = memory_.fp8(m, kHidden),
                                  .post = memory_.floats(m * kStreams),
                                  .comb = memory_.floats(m * kStreams * kStreams),
                                  .is_dependent = true};
    TRY(measure("stream_mix", m, 4 * state + int64_t{m} * (kParts * (kMix + 1) * 4 + kHidden), [&] {
      return launch_stream_mix(mix, stream_);
    }));
    TRY(turn("stream_turn of experts", {.update = update, .mix = mix, .is_dependent = true}));
    update.pairs = nullptr;
    update.choices = 0;
    TRY(measure(
        "stream_update of attention", m, fn_bytes + 8 * state + int64_t{4} * m * kHidden, [&] {
          return launch_stream_update(update, stream_);
        }));
    return turn("stream_turn of attention", {.update = update, .mix = mix, .is_dependent = true});
  }
  // Both in one launch, of few tokens.
  Result<void> turn(std::string_view name, const DeviceStreamTurnArgs& args) {
    constexpr int32_t kMost = 8;  // as its record says
    if (args.update.m > kMost) return {};
    const auto bytes = static_cast<int64_t>(work_of(args, {}).bytes);
    return measure(
        name, args.update.m, bytes, [&] { return launch_stream_turn_sm90(args, stream_); });
  }

  Result<void> attention(int32_t m) {
    memory_.reset();
    DeviceSequences sequences;
    TRY_ASSIGN(const DeviceTokens rows, tokens(m, 1, &sequences));
    const quant::Fp8KeyLayout key{.num_codes = kHeadDim - kRotary, .num_rotary = kRotary};
    const DeviceLatentsArgs latents{
        .qr_kv = {.data = memory_.floats(int64_t{m} * (kRank + kHeadDim))},
        .tokens = rows,
        .q_rank = kRank,
        .head_dim = kHeadDim,
        .q_gamma = memory_.floats(kRank),
        .kv_gamma = memory_.floats(kHeadDim),
        .eps = 1e-6f,
        .rotation = rotation(),
        .q = memory_.fp8(m, kRank),
        .key_rows = sequences.slots,
        .window_pool = memory_.take<std::byte>(m * key.row_bytes()),
        .key_dtype = DType::kF8E4m3,
        .is_dependent = true};
    TRY(measure("latents", m, m * (int64_t{4} * (kRank + kHeadDim) + kRank + key.row_bytes()), [&] {
      return launch_latents(latents, stream_);
    }));
    const int64_t q_width = int64_t{kHeads} * kHeadDim, index_width = kIndexHeads * kIndexWidth;
    const DeviceQueriesArgs queries{
        .q_sums = {.data = memory_.floats(m * q_width)},
        .tokens = rows,
        .heads = kHeads,
        .head_dim = kHeadDim,
        .eps = 1e-6f,
        .rotation = rotation(),
        .q = memory_.take<uint16_t>(m * q_width),
        .index_sums = {.data = memory_.floats(m * index_width)},
        .index_heads = kIndexHeads,
        .index_width = kIndexWidth,
        .weights = {.projections = {.data = memory_.floats(int64_t{m} * kProjections)},
                    .row_width = kProjections,
                    .column = kRingWidth,
                    .scale = 0.01f},
        .index_q = memory_.take<uint16_t>(m * index_width),
        .head_weights = memory_.floats(m * kIndexHeads),
        .is_dependent = true};
    TRY(measure("queries", m, 6 * m * (q_width + index_width), [&] {
      return launch_queries(queries, stream_);
    }));
    const DeviceAttendedArgs attended{.x = queries.q,
                                      .tokens = rows,
                                      .heads = kHeads,
                                      .head_dim = kHeadDim,
                                      .rotation = queries.rotation,
                                      .y = memory_.fp8(m, q_width),
                                      .is_dependent = true};
    return measure(
        "attended", m, 3 * m * q_width, [&] { return launch_attended(attended, stream_); });
  }

  // The token of every sequence closes an entry, and the same for none; beyond 256 tokens, for
  // which rings do not fit, the entries of a prompt, and its ring rows.
  Result<void> compressors(int32_t m) {
    const bool is_prompt = m > 256;
    for (const int32_t ratio : {4, 128}) {
      for (const bool closes : {true, false}) {
        memory_.reset();
        DeviceSequences sequences;
        TRY_ASSIGN(const DeviceTokens rows,
                   is_prompt ? prompt(m, &sequences) : tokens(m, closes ? ratio : 1, &sequences));
        const bool has_index = ratio == 4;
        const int32_t channels = has_index ? kChannels : kHeadDim;
        const int32_t width = has_index ? kRingWidth : 2 * kHeadDim;
        const int32_t capacity = has_index ? 16 : kRing;
        DeviceLatentsArgs args{
            .tokens = rows,
            .eps = 1e-6f,
            .rotation = rotation(),
            .compression = {.projections = {.data = memory_.floats(int64_t{m} * kProjections)},
                            .row_width = has_index ? kProjections : width,
                            .sequences = sequences,
                            .ratio = ratio,
                            .page_tokens = kPageTokens,
                            .num_parts = has_index ? 2 : 1,
                            .ring = memory_.floats(int64_t{is_prompt ? 1 : m} * capacity * width),
                            .ring_capacity = capacity,
                            .ring_width = width,
                            .forms_entries = !is_prompt || closes,
                            .stores_rows = !is_prompt || !closes},
            .is_dependent = true};
        DeviceCompression& compression = args.compression;
        compression.parts[0] = {.gate_column = channels,
                                .width = kHeadDim,
                                .ape = memory_.floats(int64_t{ratio} * channels),
                                .gamma = memory_.floats(kHeadDim),
                                .entries = memory_.take<std::byte>(64 * 584),
                                .entry_dtype = DType::kF8E4m3};
        compression.parts[1] = {.value_column = 2 * kChannels,
                                .gate_column = 2 * kChannels + kIndexChannels,
                                .width = kIndexWidth,
                                .ape = memory_.floats(4 * kIndexChannels),
                                .gamma = memory_.floats(kIndexWidth),
                                .entries = memory_.take<std::byte>(64 * 132),
                                .entry_dtype = DType::kF8E4m3,
                                .is_index = true};
        const int64_t slots = has_index ? 8 : 128;
        const int64_t entry_bytes = 8 * slots * (kHeadDim + (has_index ? kIndexWidth : 0));
        const int64_t entries = closes ? (is_prompt ? m / ratio : m) : 0;
        const int64_t rows_stored = is_prompt ? (closes ? 0 : capacity) : m;
        TRY(measure("compress ratio " + std::to_string(ratio) + (closes ? " closing" : ""),
                    m,
                    rows_stored * 8 * int64_t{width} + entries * entry_bytes,
                    [&] { return launch_latents(args, stream_); }));
      }
    }
    return {};
  }

  Result<void> experts(int32_t m) {
    memory_.reset();
    DeviceSequences sequences;
    TRY_ASSIGN(const DeviceTokens rows, tokens(m, 1, &sequences));
    const int32_t pairs = m * kChoices;
    const int32_t splits = m <= 512 ? 16 : 1;
    const DeviceSelectExpertsArgs select{
        .logits = {.data = memory_.floats(int64_t{splits} * m * kExperts), .splits = splits},
        .tokens = rows,
        .num_experts = kExperts,
        .choices = kChoices,
        .bias = memory_.floats(kExperts),
        .routed_scaling_factor = 1.5f,
        .ids = memory_.take<int32_t>(pairs),
        .weights = memory_.floats(pairs),
        .shared = {.x = {.data = memory_.floats(int64_t{m} * 2 * kIntermediate)},
                   .m = m,
                   .n = kIntermediate,
                   .limit = 10,
                   .y = memory_.fp8(m, kIntermediate)},
        .is_dependent = true};
    const int64_t select_bytes =
        int64_t{4} * splits * m * kExperts + int64_t{9} * m * kIntermediate;
    TRY(measure(
        "select_experts", m, select_bytes, [&] { return launch_select_experts(select, stream_); }));
    const int32_t slots = max_slots(pairs, kExperts, 8);
    const DeviceMakeSlotsArgs make{.ids = select.ids,
                                   .num_pairs = pairs,
                                   .num_experts = kExperts,
                                   .rows = 8,
                                   .count = memory_.take<int32_t>(1),
                                   .experts = memory_.take<int32_t>(slots),
                                   .pairs = memory_.take<int32_t>(int64_t{slots} * 8),
                                   .is_dependent = true};
    TRY(measure("make_slots", m, int64_t{4} * pairs, [&] {
      return launch_make_expert_slots(make, stream_);
    }));
    const DeviceQuantizeArgs quantize{
        .x_bf16 = memory_.take<uint16_t>(int64_t{pairs} * kIntermediate),
        .m = pairs,
        .k = kIntermediate,
        .y = {.fp8 = memory_.take<std::byte>(int64_t{pairs} * kIntermediate),
              .fp8_scales = memory_.floats(int64_t{pairs} * kIntermediate / 128)},
        .is_dependent = true};
    return measure("quantize pairs", m, int64_t{3} * pairs * kIntermediate, [&] {
      return launch_quantize(quantize, stream_);
    });
  }

  Result<void> rest(int32_t m) {
    memory_.reset();
    DeviceSequences sequences;
    TRY_ASSIGN(const DeviceTokens rows, tokens(m, 1, &sequences));
    constexpr int32_t kRows128 = 512;
    const DevicePlanArgs plan{.tokens = rows,
                              .sequences = sequences,
                              .num_slots = m,
                              .window = kWindow,
                              .ring_capacity = kRing,
                              .direct_tokens = 128,
                              .page_tokens = kPageTokens,
                              .top_k = 512,
                              .key_rows = memory_.take<int32_t>(m),
                              .window_rows = memory_.take<int32_t>(int64_t{m} * kWindow),
                              .window_counts = memory_.take<int32_t>(m),
                              .token_pages = memory_.take<int32_t>(int64_t{m} * kMaxPages),
                              .counts_4 = memory_.take<int32_t>(m),
                              .selected_counts = memory_.take<int32_t>(m),
                              .counts_128 = memory_.take<int32_t>(m),
                              .rows_128 = memory_.take<int32_t>(int64_t{m} * kRows128),
                              .max_rows_128 = kRows128,
                              .is_dependent = true};
    TRY(measure("plan", m, int64_t{4} * m * (kWindow + 2 * kMaxPages + kRows128), [&] {
      return launch_plan(plan, stream_);
    }));
    const DeviceEmbedArgs embed{.table = memory_.take<uint16_t>(int64_t{m} * kHidden),
                                .hidden = kHidden,
                                .tokens = rows,
                                .copies = kStreams,
                                .out = memory_.floats(int64_t{m} * kStreams * kHidden),
                                .is_dependent = true};
    TRY(measure("embed", m, int64_t{m} * kHidden * (2 + 4 * kStreams), [&] {
      return launch_embed(embed, stream_);
    }));
    return m > 64 ? Result<void>() : sample_all(m);
  }

  // Logits as a trained model has them, more or less: normal, most tokens far from the best.
  Result<void> sample_all(int32_t m) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> host(static_cast<size_t>(m * kVocab));
    for (float& logit : host) logit = normal(random);
    float* const logits = memory_.floats(int64_t{m} * kVocab);
    TRY(device::copy_to_device(
        logits, host.data(), static_cast<int64_t>(host.size() * sizeof(float)), stream_));
    DeviceSampleArgs sample{.logits = {.data = logits},
                            .m = m,
                            .vocab = kVocab,
                            .ids = memory_.take<int32_t>(m),
                            .workspace = memory_.take<std::byte>(sample_workspace_bytes(m, kVocab)),
                            .is_dependent = true};
    TRY(measure("sample the largest", m, int64_t{4} * m * kVocab, [&] {
      return launch_sample(sample, stream_);
    }));
    const std::vector<float> temperatures(static_cast<size_t>(m), 1.0f),
        top_p(static_cast<size_t>(m), 0.95f);
    auto* const device_temperatures = memory_.floats(m);
    auto* const device_top_p = memory_.floats(m);
    TRY(device::copy_to_device(device_temperatures, temperatures.data(), int64_t{m} * 4, stream_));
    TRY(device::copy_to_device(device_top_p, top_p.data(), int64_t{m} * 4, stream_));
    TRY(device::synchronize(stream_));
    sample.temperatures = device_temperatures;
    sample.seeds = memory_.take<uint64_t>(m);
    sample.draws = memory_.take<uint64_t>(m);
    TRY(measure("sample by temperature", m, int64_t{4} * m * kVocab, [&] {
      return launch_sample(sample, stream_);
    }));
    sample.top_p = device_top_p;
    return measure("sample with top_p", m, int64_t{4} * m * kVocab, [&] {
      return launch_sample(sample, stream_);
    });
  }

  const Run& run_;
  device::Stream& stream_;
  Memory& memory_;
};

Result<void> run(std::vector<std::string> names) {
  TRY_ASSIGN(const std::unique_ptr<device::Device> device, device::make_cuda_device(0));
  TRY_ASSIGN(device::Buffer buffer, device->allocate(int64_t{1} << 30));
  Memory memory(std::move(buffer));
  TRY_ASSIGN(const Run run, Run::start(*device, memory.buffer(), std::move(names)));
  Bench bench(run, device->stream(), memory);
  for (const int32_t tokens : {1, 4, 16, 64, 256, 2048}) TRY(bench.all(tokens));
  return {};
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  return nibble::cuda_bench::exit_code(nibble::run({argv + 1, argv + argc}));
}
