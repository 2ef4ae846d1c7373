#include "tensor/dtype.h"

#include "base/check.h"

namespace nibble {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int64_t size;
};

constexpr DTypeInfo kDTypes[] = {
    {DType::kBool, "BOOL", 1},
    {DType::kU8, "U8", 1},
    {DType::kI8, "I8", 1},
    {DType::kI16, "I16", 2},
    {DType::kU16, "U16", 2},
    {DType::kI32, "I32", 4},
    {DType::kU32, "U32", 4},
    {DType::kI64, "I64", 8},
    {DType::kU64, "U64", 8},
    {DType::kF16, "F16", 2},
    {DType::kBf16, "BF16", 2},
    {DType::kF32, "F32", 4},
    {DType::kF64, "F64", 8},
    {DType::kF8E4m3, "F8_E4M3", 1},
    {DType::kF8E5m2, "F8_E5M2", 1},
    {DType::kF8E8m0, "F8_E8M0", 1},
};

const DTypeInfo& info_of(DType dtype) {
  const DTypeInfo& info = kDTypes[static_cast<size_t>(dtype)];
  CHECK(info.dtype == dtype);
  return info;
}

}  // namespace

int64_t dtype_size(DType dtype) { return info_of(dtype).size; }

std::string_view dtype_name(DType dtype) { return info_of(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace nibble
