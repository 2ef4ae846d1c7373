// Every row of the ops without weights against itself: alone or in a batch, on one thread or two,
// an item has the same bits.
#include <gtest/gtest.h>

#include "device/thread_pool.h"
#include "kernels/ops_cases_testing.h"
#include "kernels/ops_testing.h"

namespace nibble::kernels {
namespace {

constexpr Op kOps[] = {Op::kSparseAttention,
                       Op::kIndexerScore,
                       Op::kTopK,
                       Op::kRmsNorm,
                       Op::kRope,
                       Op::kHyperPre,
                       Op::kHyperPost,
                       Op::kHyperHead,
                       Op::kCompress,
                       Op::kSelectExperts,
                       Op::kSwiglu,
                       Op::kCombineExperts,
                       Op::kEmbed};

class OpsOf : public testing::TestWithParam<Op> {};

TEST_P(OpsOf, AnItemHasTheSameBitsAloneAndInABatch) {
  device::Stream stream;
  for (const OpCase& op_case : op_cases(GetParam())) {
    for (const KernelInfo* row : runnable_rows(GetParam(), op_case.keys)) {
      ASSERT_TRUE(row->is_batch_invariant);
      SCOPED_TRACE(std::string(row->name) + " " + op_case.name);
      const auto batch = op_case.run(*row, stream, 0, op_case.num_items);
      std::vector<std::vector<float>> alone(batch.size());
      for (int64_t item = 0; item < op_case.num_items; ++item) {
        const auto outputs = op_case.run(*row, stream, item, item + 1);
        for (size_t i = 0; i < outputs.size(); ++i) {
          alone[i].insert(alone[i].end(), outputs[i].values.begin(), outputs[i].values.end());
        }
      }
      for (size_t i = 0; i < batch.size(); ++i) EXPECT_EQ(alone[i], batch[i].values);
    }
  }
}

TEST_P(OpsOf, ThreadsChangeNoBit) {
  device::ThreadPool pool({.num_threads = 2});
  device::Stream one_thread;
  device::Stream two_threads{.pool = &pool};
  for (const OpCase& op_case : op_cases(GetParam())) {
    for (const KernelInfo* row : runnable_rows(GetParam(), op_case.keys)) {
      SCOPED_TRACE(std::string(row->name) + " " + op_case.name);
      const auto expected = op_case.run(*row, one_thread, 0, op_case.num_items);
      const auto got = op_case.run(*row, two_threads, 0, op_case.num_items);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].values, expected[i].values);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpsOf, testing::ValuesIn(kOps), [](const auto& param) {
  return std::string(op_name(param.param));
});

}  // namespace
}  // namespace nibble::kernels
