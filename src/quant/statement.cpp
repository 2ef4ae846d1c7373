#include "quant/statement.h"

namespace nibble::quant {

bool agrees(const Statement& statement, const Scheme& scheme) {
  if (statement.is_dense) return !scheme.is_quantized();
  if (statement.kind != scheme.kind) return false;
  if (statement.block.n > 0 && statement.block.n != scheme.block.n) return false;
  if (statement.block.k > 0 && statement.block.k != scheme.block.k) return false;
  return statement.bits == 0 || scheme.bits == 0 || statement.bits == scheme.bits;
}

}  // namespace nibble::quant
