#include "kernels/reference/forms.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "quant/activation.h"
#include "quant/numeric.h"

namespace nibble::kernels::reference {
namespace {

constexpr int64_t kGroup = 128;
constexpr int64_t kRun = 16;  // codes of one row that lie side by side in a block

std::byte* block_of(const ActivationForms& forms, int64_t m, int64_t column) {
  return forms.fp8_blocks + column / kGroup * fp8_block_bytes(m);
}

int64_t code_in_block(int64_t m, int64_t row, int64_t column) {
  const int64_t in_group = column % kGroup;
  return (in_group / kRun * m + row) * kRun + in_group % kRun;
}

void write_fp8(const ActivationForms& forms,
               int64_t m,
               int64_t row,
               std::span<const float> values) {
  const auto k = static_cast<int64_t>(values.size());
  std::vector<uint8_t> codes(values.size());
  std::vector<float> scales(values.size() / kGroup);
  quant::quantize_fp8(values, kGroup, codes, scales);
  if (forms.fp8 != nullptr) {
    std::memcpy(forms.fp8 + row * k, codes.data(), codes.size());
    std::copy(scales.begin(), scales.end(), forms.fp8_scales + row * k / kGroup);
  }
  if (forms.fp8_blocks == nullptr) return;
  for (int64_t j = 0; j < k; ++j) {
    block_of(forms, m, j)[code_in_block(m, row, j)] =
        static_cast<std::byte>(codes[static_cast<size_t>(j)]);
  }
  for (int64_t group = 0; group < k / kGroup; ++group) {
    std::byte* const block = block_of(forms, m, group * kGroup);
    std::memcpy(block + m * kGroup + row * 4, &scales[static_cast<size_t>(group)], 4);
  }
}

void read_fp8(const ActivationForms& forms,
              ActivationForm form,
              int64_t m,
              int64_t k,
              int64_t row,
              int64_t column,
              std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t j = column + static_cast<int64_t>(i);
    uint8_t code = 0;
    float scale = 0;
    if (form == ActivationForm::kFp8Rows) {
      code = static_cast<uint8_t>(forms.fp8[row * k + j]);
      scale = forms.fp8_scales[row * (k / kGroup) + j / kGroup];
    } else {
      const std::byte* const block = block_of(forms, m, j);
      code = static_cast<uint8_t>(block[code_in_block(m, row, j)]);
      std::memcpy(&scale, block + m * kGroup + row * 4, 4);
    }
    out[i] = quant::e4m3_to_f32(code) * scale;
  }
}

}  // namespace

void write_forms(const ActivationForms& forms,
                 int64_t m,
                 int64_t row,
                 std::span<const float> values) {
  const auto k = static_cast<int64_t>(values.size());
  if (forms.f32 != nullptr) std::copy(values.begin(), values.end(), forms.f32 + row * k);
  if (forms.bf16 != nullptr) {
    auto* const out = static_cast<uint16_t*>(forms.bf16) + row * k;
    std::transform(values.begin(), values.end(), out, quant::f32_to_bf16);
  }
  if (forms.fp8 != nullptr || forms.fp8_blocks != nullptr) write_fp8(forms, m, row, values);
}

void read_form(const ActivationForms& forms,
               ActivationForm form,
               int64_t m,
               int64_t k,
               int64_t row,
               int64_t column,
               std::span<float> out) {
  switch (form) {
    case ActivationForm::kF32: {
      const float* const from = forms.f32 + row * k + column;
      std::copy(from, from + out.size(), out.begin());
      return;
    }
    case ActivationForm::kBf16: {
      const auto* const from = static_cast<const uint16_t*>(forms.bf16) + row * k + column;
      std::transform(from, from + out.size(), out.begin(), quant::bf16_to_f32);
      return;
    }
    case ActivationForm::kFp8Rows:
    case ActivationForm::kFp8Blocks:
      read_fp8(forms, form, m, k, row, column, out);
      return;
  }
}

}  // namespace nibble::kernels::reference
