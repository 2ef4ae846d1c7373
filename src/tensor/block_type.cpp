#include "tensor/block_type.h"

#include <array>

namespace nibble {
namespace {

constexpr std::array kTypes = std::to_array<BlockType>({
    {0, "f32", 1, 4, false},       {1, "f16", 1, 2, false},        {30, "bf16", 1, 2, false},
    {24, "i8", 1, 1, false},       {25, "i16", 1, 2, false},       {26, "i32", 1, 4, false},
    {27, "i64", 1, 8, false},      {28, "f64", 1, 8, false},       {2, "q4_0", 32, 18, true},
    {3, "q4_1", 32, 20, true},     {6, "q5_0", 32, 22, true},      {7, "q5_1", 32, 24, true},
    {8, "q8_0", 32, 34, true},     {9, "q8_1", 32, 36, true},      {10, "q2_k", 256, 84, true},
    {11, "q3_k", 256, 110, true},  {12, "q4_k", 256, 144, true},   {13, "q5_k", 256, 176, true},
    {14, "q6_k", 256, 210, true},  {15, "q8_k", 256, 292, true},   {16, "iq2_xxs", 256, 66, true},
    {17, "iq2_xs", 256, 74, true}, {22, "iq2_s", 256, 82, true},   {18, "iq3_xxs", 256, 98, true},
    {21, "iq3_s", 256, 110, true}, {19, "iq1_s", 256, 50, true},   {29, "iq1_m", 256, 56, true},
    {20, "iq4_nl", 32, 18, true},  {23, "iq4_xs", 256, 136, true}, {34, "tq1_0", 256, 54, true},
    {35, "tq2_0", 256, 66, true},  {39, "mxfp4", 32, 17, true},    {40, "nvfp4", 64, 36, true},
});

}  // namespace

std::span<const BlockType> block_types() { return kTypes; }

const BlockType* find_block_type(int64_t id) {
  for (const BlockType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

}  // namespace nibble
