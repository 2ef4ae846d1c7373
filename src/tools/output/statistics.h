// How far the weights of an output are from those of its input.
#pragma once

#include <cstdint>
#include <span>

#include "base/json.h"
#include "base/result.h"

namespace nibble::tools {

// Sums over weights; the figures people want follow from them.
struct ErrorStatistics {
  int64_t num_exact_tensors = 0;    // weights that keep every value by construction
  int64_t num_changed_tensors = 0;  // weights that were rounded; the sums below are over these
  int64_t num_elements = 0;
  double max_error = 0;    // max |a - b|
  double sum_error2 = 0;   // sum (a - b)^2
  double sum_input2 = 0;   // sum a^2
  double sum_output2 = 0;  // sum b^2
  double sum_product = 0;  // sum a * b

  // Compares as many values of `output` with `input`.
  void add(std::span<const float> input, std::span<const float> output);
  void merge(const ErrorStatistics& other);

  double rms() const;           // sqrt(mean (a - b)^2)
  double relative_rms() const;  // rms over the rms of the input; 0 without input
  double cosine() const;        // 1 where nothing was changed

  json::Object to_json() const;
  static Result<ErrorStatistics> from_json(const json::Value& value);

  friend bool operator==(const ErrorStatistics&, const ErrorStatistics&) = default;
};

}  // namespace nibble::tools
