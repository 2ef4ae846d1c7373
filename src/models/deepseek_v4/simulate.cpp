#include "models/deepseek_v4/simulate.h"

#include <span>

#include "models/deepseek_v4/host_rows.h"
#include "quant/activation.h"
#include "quant/numeric.h"

namespace nibble::models::deepseek_v4 {
namespace {

constexpr int64_t kActivationBlock = 128;
constexpr int64_t kKvBlock = 64;
constexpr int64_t kIndexBlock = 32;

template <class F>
void transform_rows(const TensorView& x, device::Stream& stream, F&& f) {
  const int64_t width = x.num_rows() == 0 ? 0 : x.shape.num_elements() / x.num_rows();
  for_each_row(x.num_rows(), stream, [&](int64_t row) {
    f(std::span(x.row<float>(row), static_cast<size_t>(width)));
  });
}

void round_span(std::span<float> values) {
  for (float& value : values) value = quant::round_to_bf16(value);
}

}  // namespace

void round_bf16(const TensorView& x, device::Stream& stream) {
  transform_rows(x, stream, round_span);
}

void simulate_activation(const TensorView& x, device::Stream& stream) {
  transform_rows(
      x, stream, [](std::span<float> row) { quant::simulate_fp8(row, kActivationBlock); });
}

void simulate_kv(const TensorView& x, int64_t columns, device::Stream& stream) {
  transform_rows(x, stream, [columns](std::span<float> row) {
    quant::simulate_fp8(row.first(static_cast<size_t>(columns)), kKvBlock);
  });
}

void simulate_index(const TensorView& x, int64_t head_dim, device::Stream& stream) {
  const auto width = static_cast<size_t>(head_dim);
  transform_rows(x, stream, [width](std::span<float> row) {
    for (size_t begin = 0; begin < row.size(); begin += width) {
      const std::span<float> head = row.subspan(begin, width);
      quant::hadamard_transform(head);
      round_span(head);
      quant::simulate_fp4(head, kIndexBlock);
    }
  });
}

}  // namespace nibble::models::deepseek_v4
