// The indexer's scores and selection on a GPU against the scalar reference.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "cuda/cuda_testing.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/sm90/indexer/launch.h"
#include "kernels/cuda/sm90/top_k/launch.h"
#include "kernels/kernel.h"
#include "quant/numeric.h"

namespace nibble::kernels::cuda {
namespace {

using cuda_testing::CudaTest;
using cuda_testing::DeviceArray;
using cuda_testing::gpu;

template <class Args>
Launcher<Args> reference_launcher(Op op) {
  for (const KernelInfo* kernel : all_kernels()) {
    if (kernel->op == op && is_reference(*kernel)) return std::get<Launcher<Args>>(kernel->launch);
  }
  return nullptr;
}

// --- scores ---

constexpr int64_t kHeads = 64, kWidth = 128;

std::vector<float> random_bf16(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (size_t i = 0; i < size; ++i) {
    values.push_back(quant::bf16_to_f32(quant::f32_to_bf16(normal(random))));
  }
  return values;
}

std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> rounded;
  for (const float value : values) rounded.push_back(quant::f32_to_bf16(value));
  return rounded;
}

// Tokens of one launch over shuffled pages of one pool.
struct ScoreCase {
  static constexpr int32_t kEntriesPerPage = 16;
  std::vector<int32_t> counts;
  int32_t max_pages;
  int64_t columns;
  std::vector<float> q, weights, keys;
  std::vector<int32_t> pages;

  ScoreCase(std::vector<int32_t> entry_counts, uint32_t seed) : counts(std::move(entry_counts)) {
    const int32_t most = *std::max_element(counts.begin(), counts.end());
    max_pages = (most + kEntriesPerPage - 1) / kEntriesPerPage;
    columns = int64_t{max_pages} * kEntriesPerPage;
    q = random_bf16(counts.size() * kHeads * kWidth, seed);
    weights = random_bf16(counts.size() * kHeads, seed + 1);
    const int32_t pool = max_pages + 3;
    keys = random_bf16(static_cast<size_t>(pool) * kEntriesPerPage * kWidth, seed + 2);
    std::mt19937 random(seed + 3);
    std::vector<int32_t> order(static_cast<size_t>(pool));
    std::iota(order.begin(), order.end(), 0);
    for (size_t t = 0; t < counts.size(); ++t) {
      std::shuffle(order.begin(), order.end(), random);
      pages.insert(pages.end(), order.begin(), order.begin() + max_pages);
    }
  }

  std::vector<float> on_device(int32_t unscored_count = 0) const;

  // The reference's scores, or with absolute values the sizes of what they add.
  std::vector<float> reference(bool is_absolute) const {
    std::vector<float> scores(counts.size() * static_cast<size_t>(columns));
    std::vector<float> own_q = q, own_weights = weights, own_keys = keys;
    if (is_absolute) {
      for (std::vector<float>* values : {&own_q, &own_weights, &own_keys}) {
        for (float& value : *values) value = std::abs(value);
      }
    }
    std::vector<PageId> ids;
    for (const int32_t page : pages) ids.push_back(PageId{page});
    std::vector<PagedRows> rows;
    for (size_t t = 0; t < counts.size(); ++t) {
      rows.push_back({.base = own_keys.data(),
                      .pages = std::span(ids).subspan(t * static_cast<size_t>(max_pages),
                                                      static_cast<size_t>(max_pages)),
                      .entries_per_page = kEntriesPerPage,
                      .count = counts[t]});
    }
    const auto tokens = static_cast<int64_t>(counts.size());
    const IndexerScoreArgs args{
        .q = TensorView::contiguous(own_q.data(), DType::kF32, {tokens, kHeads, kWidth}),
        .head_weights = TensorView::contiguous(own_weights.data(), DType::kF32, {tokens, kHeads}),
        .keys = rows,
        .key_dtype = DType::kF32,
        .scores = TensorView::contiguous(scores.data(), DType::kF32, {tokens, columns})};
    device::Stream stream;
    reference_launcher<IndexerScoreArgs>(Op::kIndexerScore)(args, stream).value();
    return scores;
  }
};

// A case in device memory.
struct DeviceScoreCase {
  explicit DeviceScoreCase(const ScoreCase& on_host)
      : inputs(on_host),
        q(to_bf16(inputs.q)),
        keys(to_bf16(inputs.keys)),
        weights(inputs.weights),
        pages(inputs.pages),
        counts(inputs.counts) {}

  DeviceIndexerScoreArgs args(float* scores) const {
    return {.q = q.data(),
            .head_weights = weights.data(),
            .keys = {.pool = keys.data(),
                     .pages = pages.data(),
                     .counts = counts.data(),
                     .max_pages = inputs.max_pages,
                     .entries_per_page = ScoreCase::kEntriesPerPage},
            .scores = scores,
            .columns = inputs.columns,
            .m = static_cast<int32_t>(inputs.counts.size()),
            .heads = kHeads,
            .num_units = gpu()->info().num_units};
  }

  const ScoreCase& inputs;
  DeviceArray<uint16_t> q, keys;
  DeviceArray<float> weights;
  DeviceArray<int32_t> pages, counts;
};

std::vector<float> ScoreCase::on_device(int32_t unscored_count) const {
  const DeviceScoreCase on_gpu(*this);
  const DeviceArray<float> scores(counts.size() * static_cast<size_t>(columns));
  DeviceIndexerScoreArgs args = on_gpu.args(scores.data());
  args.unscored_count = unscored_count;
  launch_indexer_score_sm90(args, gpu()->stream()).value();
  return scores.to_host();
}

using IndexerScore = CudaTest;

// Bit for bit what the op of its own makes of them, attention's beside them: two of a warp, as a
// token has two tiles at most.
TEST_F(IndexerScore, MakesQueriesOfSumsOfFewEntries) {
  constexpr int32_t kTokens = 4, kRowWidth = 150, kWeightsColumn = kRowWidth - kHeads;
  constexpr int32_t kQueryHeads = 64, kHeadDim = 512, kUnscored = 8;
  const ScoreCase inputs({70, 33, 0, 5}, 5);
  const DeviceScoreCase on_gpu(inputs);
  const DeviceArray<float> sums(random_bf16(2 * kTokens * kHeads * kWidth, 6)),
      projections(random_bf16(2 * kTokens * kRowWidth, 7)),
      q_sums(random_bf16(2 * kTokens * kQueryHeads * kHeadDim, 8));
  const DeviceArray<float> freqs(std::vector<float>(32, 0.37f));
  const DeviceArray<int32_t> positions(std::vector<int32_t>{5000, 3, 77, 0});
  const DeviceArray<uint16_t> index_q(kTokens * kHeads * kWidth);
  const DeviceArray<uint16_t> expected_q(kTokens * kQueryHeads * kHeadDim),
      q(kTokens * kQueryHeads * kHeadDim);
  const DeviceArray<float> weights(kTokens * kHeads);
  const DeviceQueriesArgs queries{
      .q_sums = {.data = q_sums.data(), .splits = 2},
      .tokens = {.positions = positions.data(), .m = kTokens},
      .heads = kQueryHeads,
      .head_dim = kHeadDim,
      .eps = 1e-6f,
      .rotation = {.freqs = freqs.data(), .num_rotary = 64},
      .q = expected_q.data(),
      .index_sums = {.data = sums.data(), .splits = 2},
      .index_heads = kHeads,
      .index_width = kWidth,
      .weights = {.projections = {.data = projections.data(), .splits = 2},
                  .row_width = kRowWidth,
                  .column = kWeightsColumn,
                  .scale = 0.25f},
      .index_q = index_q.data(),
      .head_weights = weights.data()};
  launch_queries(queries, gpu()->stream()).value();
  const size_t size = kTokens * static_cast<size_t>(inputs.columns);
  const DeviceArray<float> expected(size), scores(size);
  DeviceIndexerScoreArgs args = on_gpu.args(expected.data());
  args.unscored_count = kUnscored;
  args.q = index_q.data();
  args.head_weights = weights.data();
  launch_indexer_score_sm90(args, gpu()->stream()).value();
  args.q = nullptr;
  args.q_sums = queries.index_sums;
  args.weights = queries.weights;
  args.positions = positions.data();
  args.rotation = queries.rotation;
  args.beside = {.sums = queries.q_sums,
                 .heads = kQueryHeads,
                 .head_dim = kHeadDim,
                 .eps = queries.eps,
                 .q = q.data()};
  args.scores = scores.data();
  launch_indexer_score_sm90(args, gpu()->stream()).value();
  EXPECT_EQ(q.to_host(), expected_q.to_host());
  const std::vector<float> found = scores.to_host(), wanted = expected.to_host();
  for (int32_t t = 0; t < kTokens; ++t) {
    const int32_t count = inputs.counts[static_cast<size_t>(t)];
    for (int32_t c = 0; c < count && count > kUnscored; ++c) {
      const auto i = static_cast<size_t>(t * inputs.columns + c);
      ASSERT_EQ(found[i], wanted[i]) << t << " " << c;
    }
  }
}

TEST_F(IndexerScore, EqualsTheReference) {
  // Products are exact; the tensor cores add with 23 bits below the largest term (spec
  // "h200-facts" 3), the heads are added in f32.
  constexpr double kTolerance = 0x1p-18;
  const ScoreCase inputs({1, 16, 63, 64, 65, 1000, 4101}, 1);
  const std::vector<float> found = inputs.on_device();
  const std::vector<float> expected = inputs.reference(false), sizes = inputs.reference(true);
  for (size_t t = 0; t < inputs.counts.size(); ++t) {
    for (int64_t c = 0; c < inputs.columns; ++c) {
      const size_t i = t * static_cast<size_t>(inputs.columns) + static_cast<size_t>(c);
      if (c < inputs.counts[t]) {
        ASSERT_NEAR(found[i], expected[i], kTolerance * static_cast<double>(sizes[i]))
            << t << " " << c;
      } else {
        ASSERT_TRUE(std::isnan(found[i])) << "written beyond the count " << t << " " << c;
      }
    }
  }
}

TEST_F(IndexerScore, TokensDoNotDependOnTheirNeighbours) {
  ScoreCase inputs({300, 1000, 70}, 2);
  const std::vector<float> all = inputs.on_device();
  ScoreCase alone = inputs;
  alone.counts = {inputs.counts[1]};
  alone.q = {inputs.q.begin() + kHeads * kWidth, inputs.q.begin() + 2 * kHeads * kWidth};
  alone.weights = {inputs.weights.begin() + kHeads, inputs.weights.begin() + 2 * kHeads};
  alone.pages = {inputs.pages.begin() + inputs.max_pages,
                 inputs.pages.begin() + 2 * inputs.max_pages};
  const std::vector<float> found = alone.on_device();
  for (size_t c = 0; c < 1000; ++c) {
    ASSERT_EQ(found[c], all[static_cast<size_t>(inputs.columns) + c]) << c;
  }
}

TEST_F(IndexerScore, SkipsTokensThatKeepAll) {
  const ScoreCase inputs({64, 65}, 3);
  const std::vector<float> found = inputs.on_device(64);
  EXPECT_TRUE(std::isnan(found[0]));
  EXPECT_FALSE(std::isnan(found[static_cast<size_t>(inputs.columns)]));
}

TEST_F(IndexerScore, ZeroIsPositiveAndNanStays) {
  ScoreCase inputs({40}, 4);
  std::fill(inputs.weights.begin(), inputs.weights.end(), -1.0f);
  const auto page = static_cast<size_t>(inputs.pages[0]);
  const auto row =
      inputs.keys.begin() + static_cast<ptrdiff_t>(page * ScoreCase::kEntriesPerPage * kWidth);
  std::fill(row, row + kWidth, 0.0f);
  *(row + kWidth + 5) = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> found = inputs.on_device();
  EXPECT_EQ(found[0], 0.0f);
  EXPECT_FALSE(std::signbit(found[0]));
  EXPECT_TRUE(std::isnan(found[1]));
  EXPECT_FALSE(std::isnan(found[2]));
}

// --- selection ---

struct Selection {
  std::vector<int32_t> indices, counts;
};

Selection select(const std::vector<float>& scores,
                 int64_t columns,
                 const std::vector<int32_t>& counts,
                 int32_t k) {
  const auto m = static_cast<int32_t>(counts.size());
  const DeviceArray<float> device_scores(scores);
  const DeviceArray<int32_t> device_counts(counts);
  const DeviceArray<int32_t> indices(counts.size() * static_cast<size_t>(k)),
      selected(counts.size());
  const DeviceArray<std::byte> workspace(
      static_cast<size_t>(std::max(int64_t{16}, top_k_workspace_bytes(m, k, columns))));
  launch_top_k({.scores = device_scores.data(),
                .counts = device_counts.data(),
                .columns = columns,
                .m = m,
                .k = k,
                .indices = indices.data(),
                .num_selected = selected.data(),
                .workspace = workspace.data()},
               gpu()->stream())
      .value();
  return {indices.to_host(), selected.to_host()};
}

Selection select_by_reference(std::vector<float> scores,
                              int64_t columns,
                              const std::vector<int32_t>& counts,
                              int32_t k) {
  const auto m = static_cast<int64_t>(counts.size());
  Selection selection{std::vector<int32_t>(counts.size() * static_cast<size_t>(k), -1),
                      std::vector<int32_t>(counts.size())};
  const TopKArgs args{
      .scores = TensorView::contiguous(scores.data(), DType::kF32, {m, columns}),
      .counts = counts,
      .k = k,
      .indices = TensorView::contiguous(selection.indices.data(), DType::kI32, {m, k}),
      .num_selected = selection.counts};
  device::Stream stream;
  reference_launcher<TopKArgs>(Op::kTopK)(args, stream).value();
  return selection;
}

enum class Scores { kNormal, kEqual, kZeros, kFew, kClose, kSpecial };

std::vector<float> make_scores(Scores kind, size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> scores;
  for (size_t i = 0; i < size; ++i) {
    switch (kind) {
      case Scores::kNormal:
        scores.push_back(normal(random));
        break;
      case Scores::kEqual:
        scores.push_back(1.5f);
        break;
      case Scores::kZeros:  // of both signs
        scores.push_back(random() % 300 == 0 ? 1.0f : (random() % 2 == 0 ? 0.0f : -0.0f));
        break;
      case Scores::kFew:
        scores.push_back(static_cast<float>(random() % 7) - 3.0f);
        break;
      case Scores::kClose:  // the same first 11 bits, and mostly the same first 22
        scores.push_back(1.0f + static_cast<float>(random() % 1000) * 0x1p-23f);
        break;
      case Scores::kSpecial: {
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        const float special[] = {std::numeric_limits<float>::quiet_NaN(),
                                 kInfinity,
                                 -kInfinity,
                                 -std::numeric_limits<float>::quiet_NaN(),
                                 0.0f,
                                 -2.0f};
        scores.push_back(random() % 200 == 0 ? normal(random) : special[random() % 6]);
        break;
      }
    }
  }
  return scores;
}

constexpr Scores kAllScores[] = {Scores::kNormal,
                                 Scores::kEqual,
                                 Scores::kZeros,
                                 Scores::kFew,
                                 Scores::kClose,
                                 Scores::kSpecial};

void expect_reference_selection(const std::vector<int32_t>& counts,
                                int64_t columns,
                                int32_t k,
                                std::span<const Scores> kinds = kAllScores) {
  uint32_t seed = static_cast<uint32_t>(columns + k);
  for (const Scores kind : kinds) {
    const std::vector<float> scores =
        make_scores(kind, counts.size() * static_cast<size_t>(columns), ++seed);
    const Selection found = select(scores, columns, counts, k);
    const Selection expected = select_by_reference(scores, columns, counts, k);
    EXPECT_EQ(found.counts, expected.counts);
    ASSERT_EQ(found.indices, expected.indices)
        << "scores " << static_cast<int>(kind) << " columns " << columns << " k " << k;
  }
}

using TopK = CudaTest;

TEST_F(TopK, EqualsTheReferenceInOneBlock) {
  for (const int32_t k : {4, 512, 1024}) {
    expect_reference_selection(
        {0, 1, k - 1, k, k + 1, 4095, 4096, 4097, 8191, 8192, 8193, 16384}, 16384, k);
  }
}

TEST_F(TopK, EqualsTheReferenceInACluster) {
  for (const int32_t k : {4, 512, 1024}) {
    expect_reference_selection({3, 5000, 16384, 16385, 65535, 65536, 65537}, 70000, k);
  }
  expect_reference_selection({131072, 200001, 262144}, 262144, 512);
  expect_reference_selection({262143}, 262144, 1024);
}

// The shape that compute-sanitizer sees.
TEST_F(TopK, EqualsTheReferenceOnFewScores) {
  const std::vector<float> scores = make_scores(Scores::kFew, 2 * 600, 1);
  EXPECT_EQ(select(scores, 600, {600, 20}, 64).indices,
            select_by_reference(scores, 600, {600, 20}, 64).indices);
}

// As few as a cluster takes. Of the first the bound of all parts leaves few; of the second every
// part hands over k, or all that it has.
TEST_F(TopK, EqualsTheReferenceInAClusterOnFewScores) {
  constexpr Scores kKinds[] = {Scores::kNormal};
  expect_reference_selection({16388}, 16388, 512, kKinds);
}

TEST_F(TopK, EqualsTheReferenceInAClusterOnFewScoresThatAreEqual) {
  constexpr Scores kKinds[] = {Scores::kEqual};
  expect_reference_selection({16388}, 16388, 1024, kKinds);
}

TEST_F(TopK, TranslatesToPoolRows) {
  constexpr int32_t kPerPage = 4, kMaxPages = 10, kK = 8;
  const std::vector<float> scores = make_scores(Scores::kNormal, 40, 2);
  const std::vector<int32_t> counts = {37};
  std::vector<int32_t> pages(kMaxPages);
  for (int32_t i = 0; i < kMaxPages; ++i) pages[static_cast<size_t>(i)] = 100 - 7 * i;
  const DeviceArray<float> device_scores(scores);
  const DeviceArray<int32_t> device_counts(counts), device_pages(pages), indices(size_t{kK});
  launch_top_k({.scores = device_scores.data(),
                .counts = device_counts.data(),
                .columns = 40,
                .m = 1,
                .k = kK,
                .pages = device_pages.data(),
                .max_pages = kMaxPages,
                .entries_per_page = kPerPage,
                .indices = indices.data()},
               gpu()->stream())
      .value();
  std::vector<int32_t> expected = select_by_reference(scores, 40, counts, kK).indices;
  for (int32_t& index : expected) {
    index = pages[static_cast<size_t>(index / kPerPage)] * kPerPage + index % kPerPage;
  }
  EXPECT_EQ(indices.to_host(), expected);
}

// --- both in one launch ---

constexpr int32_t kNotWritten = -7;

// What `inputs` select, by the launch that scores or by one of its own.
//   num_units: of the GPU, or 0
std::vector<int32_t> selected_rows(const ScoreCase& inputs,
                                   int32_t k,
                                   bool in_one_launch,
                                   int32_t num_units = 0) {
  const DeviceScoreCase on_gpu(inputs);
  const DeviceArray<float> scores(inputs.counts.size() * static_cast<size_t>(inputs.columns));
  const DeviceArray<int32_t> indices(
      std::vector<int32_t>(inputs.counts.size() * static_cast<size_t>(k), kNotWritten));
  const DeviceArray<int32_t> counters(std::vector<int32_t>(inputs.counts.size(), 0));
  DeviceIndexerScoreArgs args = on_gpu.args(scores.data());
  args.unscored_count = k;
  if (num_units > 0) args.num_units = num_units;
  if (in_one_launch) {
    args.selection = {.k = k, .indices = indices.data(), .counters = counters.data()};
    // Twice: launches leave the counters as they need them.
    launch_indexer_score_sm90(args, gpu()->stream()).value();
    launch_indexer_score_sm90(args, gpu()->stream()).value();
    EXPECT_EQ(counters.to_host(), std::vector<int32_t>(inputs.counts.size(), 0));
    return indices.to_host();
  }
  launch_indexer_score_sm90(args, gpu()->stream()).value();
  launch_top_k({.scores = scores.data(),
                .counts = on_gpu.counts.data(),
                .columns = inputs.columns,
                .m = args.m,
                .k = k,
                .pages = on_gpu.pages.data(),
                .max_pages = inputs.max_pages,
                .entries_per_page = ScoreCase::kEntriesPerPage,
                .indices = indices.data(),
                .skips_short_rows = true},
               gpu()->stream())
      .value();
  return indices.to_host();
}

using IndexerSelection = CudaTest;

TEST_F(IndexerSelection, EqualsSelectionInALaunchOfItsOwn) {
  for (const int32_t k : {8, 512, 1024}) {
    const ScoreCase inputs({0, k - 1, k, k + 1, 1100, 2048, 2049, 4096, 4500, 8200, 16384},
                           static_cast<uint32_t>(k));
    EXPECT_EQ(selected_rows(inputs, k, true), selected_rows(inputs, k, false)) << k;
  }
}

// Weights of zero: only the order of the entries decides.
TEST_F(IndexerSelection, TiesGoToTheLowerIndex) {
  ScoreCase inputs({600, 3000, 9000, 16384}, 6);
  std::fill(inputs.weights.begin(), inputs.weights.end(), 0.0f);
  const std::vector<int32_t> found = selected_rows(inputs, 512, true);
  EXPECT_EQ(found, selected_rows(inputs, 512, false));
  EXPECT_EQ(found[17], inputs.pages[1] * ScoreCase::kEntriesPerPage + 1);
}

TEST_F(IndexerSelection, TokensDoNotDependOnTheirNeighbours) {
  constexpr int32_t kSelected = 64;
  const ScoreCase inputs({300, 3000, 70}, 7);
  const std::vector<int32_t> all = selected_rows(inputs, kSelected, true);
  ScoreCase alone = inputs;
  alone.counts = {inputs.counts[1]};
  alone.q = {inputs.q.begin() + kHeads * kWidth, inputs.q.begin() + 2 * kHeads * kWidth};
  alone.weights = {inputs.weights.begin() + kHeads, inputs.weights.begin() + 2 * kHeads};
  alone.pages = {inputs.pages.begin() + inputs.max_pages,
                 inputs.pages.begin() + 2 * inputs.max_pages};
  EXPECT_EQ(selected_rows(alone, kSelected, true),
            std::vector<int32_t>(all.begin() + kSelected, all.begin() + 2 * kSelected));
}

// The shape that compute-sanitizer sees.
TEST_F(IndexerSelection, EqualsSelectionInALaunchOfItsOwnOfFewEntries) {
  const ScoreCase inputs({130, 12, 70}, 8);
  EXPECT_EQ(selected_rows(inputs, 16, true), selected_rows(inputs, 16, false));
}

// Every warpgroup has as many tiles as its neighbours, so that warps pass equal numbers of
// barriers.
TEST_F(IndexerSelection, EqualsSelectionInALaunchOfItsOwnOfFullTiles) {
  const ScoreCase two_tokens({512, 256}, 8), two_blocks({512}, 9);
  EXPECT_EQ(selected_rows(two_tokens, 16, true, 1), selected_rows(two_tokens, 16, false, 1));
  EXPECT_EQ(selected_rows(two_blocks, 16, true, 2), selected_rows(two_blocks, 16, false, 2));
}

}  // namespace
}  // namespace nibble::kernels::cuda
