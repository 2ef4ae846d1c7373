#include "engine/admission.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace nibble::engine {
namespace {

constexpr RequestLimits kLimits{.vocab_size = 10, .max_context = 8};

Request valid_request() {
  Request request;
  request.id = "r";
  request.prompt_ids = {1, 2, 3};
  return request;
}

// The fault's field, or "" for none.
std::string fault(const std::function<void(Request&)>& change) {
  Request request = valid_request();
  change(request);
  const Result<void> result = validate_request(request, kLimits);
  if (result.ok()) return "";
  EXPECT_EQ(result.error().code, Errc::kInvalidArgument);
  return result.error().param;
}

TEST(Admission, AcceptsTheLimits) {
  EXPECT_EQ(fault([](Request&) {}), "");
  EXPECT_EQ(fault([](Request& r) { r.sampling.max_tokens = 5; }), "");
  EXPECT_EQ(fault([](Request& r) { r.prompt_ids.assign(7, 9); }), "");
  EXPECT_EQ(fault([](Request& r) { r.sampling.top_logprobs = 20; }), "");
  EXPECT_EQ(fault([](Request& r) { r.sampling.logit_bias = {{9, -100.0F}}; }), "");
}

TEST(Admission, NamesTheFieldAtFault) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(fault([](Request& r) { r.id.clear(); }), "request_id");
  EXPECT_EQ(fault([](Request& r) { r.prompt_ids.clear(); }), "prompt");
  EXPECT_EQ(fault([](Request& r) { r.prompt_ids[1] = 10; }), "prompt");
  EXPECT_EQ(fault([](Request& r) { r.prompt_ids[1] = -1; }), "prompt");
  EXPECT_EQ(fault([&](Request& r) { r.sampling.temperature = nan; }), "temperature");
  EXPECT_EQ(fault([&](Request& r) { r.sampling.temperature = infinity; }), "temperature");
  EXPECT_EQ(fault([](Request& r) { r.sampling.temperature = -1; }), "temperature");
  EXPECT_EQ(fault([](Request& r) { r.sampling.top_p = 1.5F; }), "top_p");
  EXPECT_EQ(fault([](Request& r) { r.sampling.min_p = -0.1F; }), "min_p");
  EXPECT_EQ(fault([](Request& r) { r.sampling.top_k = -1; }), "top_k");
  EXPECT_EQ(fault([](Request& r) { r.sampling.presence_penalty = 2.1F; }), "presence_penalty");
  EXPECT_EQ(fault([](Request& r) { r.sampling.frequency_penalty = -3; }), "frequency_penalty");
  EXPECT_EQ(fault([](Request& r) { r.sampling.repetition_penalty = 0; }), "repetition_penalty");
  EXPECT_EQ(fault([](Request& r) { r.sampling.logit_bias = {{10, 0}}; }), "logit_bias");
  EXPECT_EQ(fault([&](Request& r) { r.sampling.logit_bias = {{1, nan}}; }), "logit_bias");
  EXPECT_EQ(fault([](Request& r) { r.sampling.max_tokens = -1; }), "max_tokens");
  EXPECT_EQ(fault([](Request& r) { r.sampling.min_tokens = 6; }), "min_tokens");
  EXPECT_EQ(fault([](Request& r) { r.sampling.top_logprobs = 21; }), "top_logprobs");
  EXPECT_EQ(fault([](Request& r) { r.sampling.prompt_logprobs = 21; }), "prompt_logprobs");
  EXPECT_EQ(fault([](Request& r) { r.reasoning_budget = {.num_tokens = -1, .end_token_id = 1}; }),
            "thinking_token_budget");
  EXPECT_EQ(
      fault([](Request& r) { r.reasoning_budget = {.num_tokens = 1, .end_token_id = 1 << 30}; }),
      "thinking_token_budget");
  EXPECT_EQ(fault([](Request& r) { r.sampling.stop = {""}; }), "stop");
  EXPECT_EQ(fault([](Request& r) { r.sampling.stop = {"\xFF"}; }), "stop");
  EXPECT_EQ(fault([](Request& r) { r.sampling.stop = {std::string(1025, 'x')}; }), "stop");
  EXPECT_EQ(fault([](Request& r) { r.sampling.stop.assign(65, "x"); }), "stop");
  EXPECT_EQ(fault([](Request& r) { r.sampling.stop_token_ids = {-1}; }), "stop_token_ids");
  EXPECT_EQ(fault([](Request& r) { r.sampling.stop_token_ids.assign(65, 1); }), "stop_token_ids");
}

TEST(Admission, ReportsTheContextWithItsNumbers) {
  Request request = valid_request();
  request.sampling.max_tokens = 6;
  const Result<void> result = validate_request(request, kLimits);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().reason, "context_length_exceeded");
  EXPECT_EQ(
      result.error().message,
      "prompt of 3 tokens and max_tokens 6 make 9, but the context holds 8; shorten the prompt "
      "or lower max_tokens");
  request.sampling.max_tokens = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(validate_request(request, kLimits).error().reason, "context_length_exceeded");
  request.sampling.max_tokens = 0;
  request.prompt_ids.assign(8, 1);
  EXPECT_EQ(validate_request(request, kLimits).error().reason, "context_length_exceeded");
}

TEST(Admission, ZeroMaxTokensMeansTheRestOfTheContext) {
  Request request = valid_request();
  EXPECT_EQ(resolved_max_tokens(request, kLimits), 5);
  request.sampling.max_tokens = 2;
  EXPECT_EQ(resolved_max_tokens(request, kLimits), 2);
}

}  // namespace
}  // namespace nibble::engine
