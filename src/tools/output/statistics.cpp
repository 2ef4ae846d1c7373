#include "tools/output/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace nibble::tools {

void ErrorStatistics::add(std::span<const float> input, std::span<const float> output) {
  CHECK(input.size() == output.size()) << input.size() << " " << output.size();
  num_elements += static_cast<int64_t>(input.size());
  for (size_t i = 0; i < input.size(); ++i) {
    const double a = input[i];
    const double b = output[i];
    const double error = a - b;
    max_error = std::max(max_error, std::fabs(error));
    sum_error2 += error * error;
    sum_input2 += a * a;
    sum_output2 += b * b;
    sum_product += a * b;
  }
}

void ErrorStatistics::merge(const ErrorStatistics& other) {
  num_exact_tensors += other.num_exact_tensors;
  num_changed_tensors += other.num_changed_tensors;
  num_elements += other.num_elements;
  max_error = std::max(max_error, other.max_error);
  sum_error2 += other.sum_error2;
  sum_input2 += other.sum_input2;
  sum_output2 += other.sum_output2;
  sum_product += other.sum_product;
}

double ErrorStatistics::rms() const {
  return num_elements == 0 ? 0 : std::sqrt(sum_error2 / static_cast<double>(num_elements));
}

double ErrorStatistics::relative_rms() const {
  return sum_input2 == 0 ? 0 : std::sqrt(sum_error2 / sum_input2);
}

double ErrorStatistics::cosine() const {
  const double norm = std::sqrt(sum_input2) * std::sqrt(sum_output2);
  return norm == 0 ? 1 : sum_product / norm;
}

json::Object ErrorStatistics::to_json() const {
  return json::make_object({{"exact_tensors", num_exact_tensors},
                            {"changed_tensors", num_changed_tensors},
                            {"elements", num_elements},
                            {"max_error", max_error},
                            {"sum_error2", sum_error2},
                            {"sum_input2", sum_input2},
                            {"sum_output2", sum_output2},
                            {"sum_product", sum_product}});
}

Result<ErrorStatistics> ErrorStatistics::from_json(const json::Value& value) {
  const auto integer = [&](std::string_view key) -> std::optional<int64_t> {
    const json::Value* member = value.find(key);
    return member == nullptr ? std::nullopt : member->as_int64();
  };
  const auto number = [&](std::string_view key) -> std::optional<double> {
    const json::Value* member = value.find(key);
    return member == nullptr ? std::nullopt : member->as_double();
  };
  const auto exact = integer("exact_tensors"), changed = integer("changed_tensors"),
             elements = integer("elements");
  const auto max = number("max_error"), error2 = number("sum_error2"),
             input2 = number("sum_input2"), output2 = number("sum_output2"),
             product = number("sum_product");
  if (!exact || !changed || !elements || !max || !error2 || !input2 || !output2 || !product) {
    return data_loss("statistics: a member is missing or no number");
  }
  return ErrorStatistics{.num_exact_tensors = *exact,
                         .num_changed_tensors = *changed,
                         .num_elements = *elements,
                         .max_error = *max,
                         .sum_error2 = *error2,
                         .sum_input2 = *input2,
                         .sum_output2 = *output2,
                         .sum_product = *product};
}

}  // namespace nibble::tools
