// Instruction sets of the host CPU: what the processor has and the system saves on a context
// switch. Source: Intel SDM volume 1 chapter 14.3 and 15.2 (detection), AMD64 APM volume 3 appendix
// E (leaf numbers).
#include <cpuid.h>
#include <immintrin.h>

#include <string>
#include <utility>

#include "device/device.h"

namespace nibble::device {
namespace {

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
  Cpuid result;
  __get_cpuid_count(leaf, subleaf, &result.eax, &result.ebx, &result.ecx, &result.edx);
  return result;
}

constexpr bool has_bits(uint64_t word, uint64_t bits) { return (word & bits) == bits; }
constexpr uint32_t bit(int index) { return 1U << index; }

// The register states that the system saves (XCR0).
__attribute__((target("xsave"))) uint64_t read_xcr0() { return _xgetbv(0); }

constexpr uint64_t kXcr0Ymm = 0x06;  // SSE, AVX
constexpr uint64_t kXcr0Zmm = 0xE6;  // and opmask, upper halves, upper registers

constexpr int kOsxsave = 27, kFma = 12, kF16c = 29;  // leaf 1, ecx
constexpr int kAvx2 = 5, kAvx512F = 16, kAvx512Dq = 17, kAvx512Bw = 30,
              kAvx512Vl = 31;                     // leaf 7, ebx
constexpr int kAvx512Vbmi = 1, kAvx512Vnni = 11;  // leaf 7, ecx
constexpr int kAvx512Bf16 = 5;                    // leaf 7 subleaf 1, eax

}  // namespace

IsaSet detect_isa() {
  const Cpuid basic = cpuid(1, 0);
  if (!has_bits(basic.ecx, bit(kOsxsave))) return 0;
  const uint64_t xcr0 = read_xcr0();
  const Cpuid extended = cpuid(7, 0);
  if (!has_bits(xcr0, kXcr0Ymm) || !has_bits(basic.ecx, bit(kFma) | bit(kF16c)) ||
      !has_bits(extended.ebx, bit(kAvx2))) {
    return 0;
  }
  IsaSet isa = kIsaAvx2;
  const uint32_t avx512 = bit(kAvx512F) | bit(kAvx512Dq) | bit(kAvx512Bw) | bit(kAvx512Vl);
  if (!has_bits(xcr0, kXcr0Zmm) || !has_bits(extended.ebx, avx512) ||
      !has_bits(extended.ecx, bit(kAvx512Vbmi))) {
    return isa;
  }
  isa |= kIsaAvx512;
  if (has_bits(extended.ecx, bit(kAvx512Vnni))) isa |= kIsaAvx512Vnni;
  if (extended.eax >= 1 && has_bits(cpuid(7, 1).eax, bit(kAvx512Bf16))) isa |= kIsaAvx512Bf16;
  return isa;
}

std::optional<IsaLevel> isa_level_from_name(std::string_view name) {
  if (name == "scalar") return IsaLevel::kScalar;
  if (name == "avx2") return IsaLevel::kAvx2;
  if (name == "avx512") return IsaLevel::kAvx512;
  if (name == "native") return IsaLevel::kNative;
  return std::nullopt;
}

std::string isa_set_name(IsaSet isa) {
  constexpr std::pair<IsaBit, std::string_view> kNames[] = {
      {kIsaAvx2, "avx2"},
      {kIsaAvx512, "avx512"},
      {kIsaAvx512Bf16, "avx512_bf16"},
      {kIsaAvx512Vnni, "avx512_vnni"},
  };
  std::string result;
  for (const auto& [isa_bit, name] : kNames) {
    if ((isa & isa_bit) == 0) continue;
    if (!result.empty()) result += '+';
    result += name;
  }
  return result.empty() ? "scalar" : result;
}

}  // namespace nibble::device
