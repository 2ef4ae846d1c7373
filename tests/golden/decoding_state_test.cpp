// Decoding state (spec 3.8): whatever way the tokens of a sequence are cut into passes, mixed with
// others, drafted and taken back, or continued from a snapshot, the logits are the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "golden/golden_testing.h"

namespace nibble::golden {
namespace {

constexpr int32_t kPages = 16;  // of each sequence in these tests

// Rows [begin, begin + count) of `rows`.
std::span<const float> slice(const Rows& rows, int64_t begin, int64_t count) {
  return std::span(rows.values)
      .subspan(static_cast<size_t>(begin * rows.width), static_cast<size_t>(count * rows.width));
}

void expect_same_bits(std::span<const float> actual, std::span<const float> expected) {
  ASSERT_EQ(actual.size(), expected.size());
  EXPECT_TRUE(std::equal(actual.begin(), actual.end(), expected.begin()))
      << "largest difference " << max_difference(actual, expected);
}

Loaded load_for(std::string name) {
  const bool is_tiny = name.starts_with("tiny_v4");
  On device = On::kCpu;
  for (const auto& [suffix, on] : {std::pair{"_emulated", On::kEmulatedGpu}, {"_gpu", On::kGpu}}) {
    if (!name.ends_with(suffix)) continue;
    name.resize(name.size() - std::strlen(suffix));
    device = on;
  }
  return load(is_tiny ? tiny_v4_dir() : golden_dir(name),
              {.device = device,
               .kv_dtype = name == "tiny_v4_fp8" ? models::KvDtype::kFp8 : models::KvDtype::kAuto,
               .state = {.num_slots = 3, .num_pages = 3 * kPages, .max_context = kPages * 256},
               .is_deterministic = device == On::kGpu});
}

class DecodingState : public testing::TestWithParam<std::string> {
 protected:
  DecodingState() : loaded_(load_for(GetParam())), model_(*loaded_.model) {}

  bool has_mtp() const { return model_.info().has_mtp; }
  // tiny-v4 is larger: fewer tokens there.
  int32_t scaled(int32_t tokens) const { return has_mtp() ? tokens / 2 : tokens; }
  Sequence make_sequence(int32_t slot) {
    model_.reset_slot(SlotId{slot});
    return Sequence(model_, slot, slot * kPages);
  }

  Loaded loaded_;
  models::Model& model_;
};

TEST_P(DecodingState, DoesNotDependOnTheCutIntoPasses) {
  const std::vector<int32_t> ids = random_ids(model_, scaled(600), 1);
  const RunResult whole = make_sequence(0).run(ids, {.chunk = 512, .mtp = has_mtp()});
  std::mt19937 random(2);
  Sequence sequence = make_sequence(1);
  RunResult pieces;
  for (size_t begin = 0; begin < ids.size();) {
    const size_t count =
        std::min<size_t>(1 + random() % (random() % 4 == 0 ? 200 : 12), ids.size() - begin);
    const RunResult piece = sequence.run(std::span(ids).subspan(begin, count), {.mtp = has_mtp()});
    append(pieces.logits, piece.logits);
    append(pieces.mtp_logits, piece.mtp_logits);
    begin += count;
  }
  expect_same_bits(pieces.logits.values, whole.logits.values);
  expect_same_bits(pieces.mtp_logits.values, whole.mtp_logits.values);
}

TEST_P(DecodingState, DoesNotDependOnTheOtherSequencesOfAPass) {
  std::vector<std::vector<int32_t>> ids;
  std::vector<RunResult> alone;
  for (uint32_t s = 0; s < 3; ++s) {
    ids.push_back(random_ids(model_, scaled(260) + 30 * static_cast<int32_t>(s), 10 + s));
    alone.push_back(make_sequence(0).run(ids.back(), {.mtp = has_mtp()}));
  }
  std::vector<Sequence> sequences;
  for (int32_t s = 0; s < 3; ++s) sequences.push_back(make_sequence(s));
  std::vector<RunResult> together(3);
  std::vector<size_t> done(3, 0);
  std::mt19937 random(3);
  while (done[0] < ids[0].size() || done[1] < ids[1].size() || done[2] < ids[2].size()) {
    std::vector<Part> parts;
    std::vector<size_t> members;
    for (const size_t s : {2U, 0U, 1U}) {
      const size_t left = ids[s].size() - done[s];
      if (left == 0 || random() % 5 == 0) continue;
      const size_t count = std::min<size_t>(left, random() % 3 == 0 ? 1 + random() % 160 : 1);
      parts.push_back(
          {.sequence = &sequences[s], .ids = std::span(ids[s]).subspan(done[s], count)});
      members.push_back(s);
    }
    if (parts.empty()) continue;
    const RunResult pass = run_pass(model_, parts, {.mtp = has_mtp()});
    int64_t row = 0;
    int64_t mtp_row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      RunResult& result = together[members[i]];
      const auto count = static_cast<int64_t>(parts[i].ids.size());
      const auto part = slice(pass.logits, row, count);
      append(result.logits, {.width = pass.logits.width, .values = {part.begin(), part.end()}});
      row += count;
      if (has_mtp()) {
        const int64_t mtp_count = done[members[i]] == 0 ? count - 1 : count;
        const auto mtp_part = slice(pass.mtp_logits, mtp_row, mtp_count);
        append(result.mtp_logits,
               {.width = pass.logits.width, .values = {mtp_part.begin(), mtp_part.end()}});
        mtp_row += mtp_count;
      }
      done[members[i]] += parts[i].ids.size();
    }
  }
  for (size_t s = 0; s < 3; ++s) {
    expect_same_bits(together[s].logits.values, alone[s].logits.values);
    expect_same_bits(together[s].mtp_logits.values, alone[s].mtp_logits.values);
  }
}

TEST_P(DecodingState, ForgetsDraftsThatAreTakenBack) {
  const std::vector<int32_t> ids = random_ids(model_, scaled(560), 4);
  const RunResult straight = make_sequence(0).run(ids, {.mtp = has_mtp()});
  std::mt19937 random(5);
  Sequence sequence = make_sequence(1);
  size_t done = 0;
  while (done < ids.size()) {
    // Some tokens, then up to 8 wrong ones in one or two passes, which are taken back.
    const size_t count =
        std::min<size_t>(1 + random() % (random() % 3 == 0 ? 60 : 4), ids.size() - done);
    const RunResult piece = sequence.run(std::span(ids).subspan(done, count), {.mtp = has_mtp()});
    expect_same_bits(
        piece.logits.values,
        slice(straight.logits, static_cast<int64_t>(done), static_cast<int64_t>(count)));
    if (has_mtp()) {
      const int64_t first = done == 0 ? 0 : static_cast<int64_t>(done) - 1;
      expect_same_bits(piece.mtp_logits.values,
                       slice(straight.mtp_logits, first, piece.mtp_logits.size()));
    }
    done += count;
    const auto num_drafts = static_cast<int32_t>(random() % 9);
    const std::vector<int32_t> drafts = random_ids(model_, num_drafts, static_cast<uint32_t>(done));
    sequence.run(drafts, {.chunk = random() % 2 == 0 ? 8 : 3, .mtp = has_mtp()});
    sequence.truncate(static_cast<int32_t>(done));
    if (HasFailure()) return;
  }
}

TEST_P(DecodingState, ContinuesFromASnapshot) {
  const int32_t boundary = 512;
  const std::vector<int32_t> ids = random_ids(model_, boundary + scaled(300), 6);
  const auto head = std::span(ids).first(boundary);
  const auto tail = std::span(ids).subspan(boundary);
  Sequence original = make_sequence(0);
  original.run(head, {.chunk = 200, .mtp = has_mtp()});
  const std::vector<std::byte> snapshot = model_.save_slot(original.slot()).value();
  const RunResult expected = original.run(tail, {.chunk = 64, .mtp = has_mtp()});

  make_sequence(1).run(random_ids(model_, 300, 7));  // leaves other contents in the rings
  model_.reset_slot(SlotId{1});
  Sequence resumed(model_, 1, 0);  // the pages of the original
  model_.restore_slot(resumed.slot(), snapshot).value();
  EXPECT_EQ(resumed.length(), boundary);
  const RunResult actual = resumed.run(tail, {.chunk = 7, .mtp = has_mtp()});
  expect_same_bits(actual.logits.values, expected.logits.values);
  expect_same_bits(actual.mtp_logits.values, expected.mtp_logits.values);
}

TEST_P(DecodingState, RefusesDamagedAndForeignSnapshots) {
  Sequence sequence = make_sequence(0);
  sequence.run(random_ids(model_, 256, 8));
  const std::vector<std::byte> snapshot = model_.save_slot(sequence.slot()).value();
  std::mt19937 random(9);
  for (int32_t trial = 0; trial < 40; ++trial) {
    std::vector<std::byte> damaged = snapshot;
    const size_t place = trial < 20 ? random() % 64 : random() % damaged.size();
    damaged[place] ^= std::byte{static_cast<unsigned char>(1U << random() % 8)};
    const Result<void> restored = model_.restore_slot(SlotId{1}, damaged);
    ASSERT_FALSE(restored.ok()) << "byte " << place;
    EXPECT_EQ(restored.error().code, Errc::kDataLoss);
  }
  for (const size_t size : {size_t{0}, size_t{8}, snapshot.size() - 1}) {
    EXPECT_EQ(model_.restore_slot(SlotId{1}, std::span(snapshot).first(size)).error().code,
              Errc::kDataLoss);
  }
  EXPECT_EQ(model_.length(SlotId{1}), 0);

  const Loaded other = load_for(GetParam().starts_with("flash_like") ? "pro_like" : "flash_like");
  EXPECT_EQ(other.model->restore_slot(SlotId{0}, snapshot).error().code, Errc::kDataLoss);
  EXPECT_TRUE(model_.restore_slot(SlotId{1}, snapshot).ok());
}

TEST_P(DecodingState, TruncatesAtMostEightTokensBack) {
  Sequence sequence = make_sequence(0);
  sequence.run(random_ids(model_, 20, 11));
  EXPECT_EQ(model_.truncate(sequence.slot(), 11).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(model_.truncate(sequence.slot(), 21).error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(model_.truncate(sequence.slot(), 12).ok());
  EXPECT_EQ(model_.truncate(sequence.slot(), 11).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(sequence.length(), 12);
  EXPECT_EQ(model_.save_slot(sequence.slot()).error().code, Errc::kInvalidArgument);
}

TEST_P(DecodingState, ReplayOfOwnDecisionsChangesNothing) {
  const std::vector<int32_t> ids = random_ids(model_, scaled(400), 12);
  models::Decisions decisions;
  const RunResult recorded = make_sequence(0).run(ids, {.mtp = has_mtp(), .record = &decisions});
  const RunResult replayed =
      make_sequence(1).run(ids, {.chunk = 50, .mtp = has_mtp(), .replay = &decisions});
  expect_same_bits(replayed.logits.values, recorded.logits.values);
  expect_same_bits(replayed.mtp_logits.values, recorded.mtp_logits.values);

  const size_t layers = static_cast<size_t>(model_.info().num_hidden_layers) + (has_mtp() ? 1 : 0);
  ASSERT_EQ(decisions.expert_ids.size(), layers);
  EXPECT_EQ(decisions.expert_ids[0].size(), ids.size());
}

TEST_P(DecodingState, ReplayImposesExpertsAndEntries) {
  const std::vector<int32_t> ids = random_ids(model_, 300, 13);
  models::Decisions decisions;
  const RunResult recorded = make_sequence(0).run(ids, {.record = &decisions});
  for (auto& layer : decisions.selected_entries) {
    for (auto& entries : layer) {
      if (entries.size() > 1) entries.resize(1);
    }
  }
  models::Decisions imposed;
  const RunResult replayed = make_sequence(1).run(ids, {.record = &imposed, .replay = &decisions});
  EXPECT_EQ(imposed.selected_entries, decisions.selected_entries);
  EXPECT_EQ(imposed.expert_ids, decisions.expert_ids);
  EXPECT_GT(max_difference(replayed.logits.back(), recorded.logits.back()), 0.0f);
}

TEST(KvForms, DoNotReadOneAnothersState) {
  using models::KvDtype;
  const auto load_as = [](KvDtype kv_dtype) {
    return load(tiny_v4_dir(),
                {.kv_dtype = kv_dtype, .state = {.num_pages = 1, .max_context = 256}});
  };
  const Loaded plain = load_as(KvDtype::kBf16);
  const Loaded fp8 = load_as(KvDtype::kFp8);
  EXPECT_NE(plain.model->info().fingerprint, fp8.model->info().fingerprint);
  EXPECT_LT(fp8.model->info().page_bytes, plain.model->info().page_bytes * 6 / 10);
  EXPECT_LT(fp8.model->info().snapshot_bytes, plain.model->info().snapshot_bytes);

  Sequence sequence(*fp8.model);
  sequence.run(random_ids(*fp8.model, 256, 15));
  const std::vector<std::byte> snapshot = fp8.model->save_slot(sequence.slot()).value();
  const Result<void> restored = plain.model->restore_slot(SlotId{0}, snapshot);
  ASSERT_FALSE(restored.ok());
  EXPECT_EQ(restored.error().code, Errc::kDataLoss);
}

// Passes without compute_mtp leave the MTP ring behind: it starts anew, and a window later the gap
// is forgotten.
TEST(MtpState, RecoversFromPassesThatLeftItOut) {
  constexpr size_t kWindow = 128;
  const Loaded loaded = load(tiny_v4_dir());
  const std::vector<int32_t> ids = random_ids(*loaded.model, 400, 14);
  const RunResult straight = Sequence(*loaded.model).run(ids, {.mtp = true});

  loaded.model->reset_slot(SlotId{0});
  Sequence sequence(*loaded.model);
  const auto all = std::span(ids);
  sequence.run(all.first(60), {.mtp = true});
  sequence.run(all.subspan(60, 90));
  const RunResult after = sequence.run(all.subspan(150), {.chunk = 50, .mtp = true});
  ASSERT_EQ(after.mtp_logits.size(), 250);  // positions 149 to 398
  EXPECT_GT(max_difference(after.mtp_logits[0], straight.mtp_logits[149]), 0.0f);
  expect_same_bits(slice(after.mtp_logits, kWindow - 1, 250 - kWindow + 1),
                   slice(straight.mtp_logits, 149 + kWindow - 1, 250 - kWindow + 1));
  expect_same_bits(after.logits.values, slice(straight.logits, 150, 250));
}

INSTANTIATE_TEST_SUITE_P(Models,
                         DecodingState,
                         testing::ValuesIn(models_under_test()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace nibble::golden
