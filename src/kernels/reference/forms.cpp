#include "kernels/reference/forms.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "quant/activation.h"
#include "quant/numeric.h"

namespace nibble::kernels::reference {
namespace {

constexpr int64_t kGroup = 128;

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
  for (int64_t group = 0; group < k / kGroup; ++group) {
    const Fp8BlockPlace place = fp8_block_place(m, k, row, group * kGroup);
    for (int64_t j = group * kGroup; j < (group + 1) * kGroup; ++j) {
      forms.fp8_blocks[place.code(j)] = static_cast<std::byte>(codes[static_cast<size_t>(j)]);
    }
    std::memcpy(forms.fp8_blocks + place.scale(), &scales[static_cast<size_t>(group)], 4);
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
      const Fp8BlockPlace place = fp8_block_place(m, k, row, j);
      code = static_cast<uint8_t>(forms.fp8_blocks[place.code(j)]);
      std::memcpy(&scale, forms.fp8_blocks + place.scale(), 4);
    }
    out[i] = quant::e4m3_to_f32(code) * scale;
  }
}

void write_blocks(
    std::byte* blocks, int64_t terms, int64_t m, int64_t row, std::span<const float> values) {
  const auto k = static_cast<int64_t>(values.size());
  for (int64_t column = 0; column < k; ++column) {
    float rest = values[static_cast<size_t>(column)];
    for (int64_t term = 0; term < terms; ++term) {
      const uint16_t code = quant::f32_to_bf16(rest);
      std::memcpy(blocks + bf16_block_offset(m, k, row, column, term, terms), &code, sizeof(code));
      rest -= quant::bf16_to_f32(code);
    }
  }
}

// Sums of three terms are exact in f32, from the last on.
float read_blocks(
    const std::byte* blocks, int64_t terms, int64_t m, int64_t k, int64_t row, int64_t column) {
  float sum = 0;
  for (int64_t term = terms; term-- > 0;) {
    uint16_t code = 0;
    std::memcpy(&code, blocks + bf16_block_offset(m, k, row, column, term, terms), sizeof(code));
    sum += quant::bf16_to_f32(code);
  }
  return sum;
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
  if (forms.bf16_blocks != nullptr) write_blocks(forms.bf16_blocks, 1, m, row, values);
  if (forms.bf16_terms != nullptr) write_blocks(forms.bf16_terms, kBf16Terms, m, row, values);
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
    case ActivationForm::kBf16Blocks:
    case ActivationForm::kBf16Terms: {
      const bool has_terms = form == ActivationForm::kBf16Terms;
      const std::byte* const blocks = has_terms ? forms.bf16_terms : forms.bf16_blocks;
      for (size_t i = 0; i < out.size(); ++i) {
        const int64_t at = column + static_cast<int64_t>(i);
        out[i] = read_blocks(blocks, has_terms ? kBf16Terms : 1, m, k, row, at);
      }
      return;
    }
  }
}

}  // namespace nibble::kernels::reference
