#include "kernels/ops_testing.h"

#include "kernels/reference/ops_launchers.h"

namespace nibble::kernels {

std::vector<const KernelInfo*> runnable_rows(Op op) {
  std::vector<const KernelInfo*> rows;
  for (const KernelInfo& row : reference_ops_kernels()) {
    if (row.op == op) rows.push_back(&row);
  }
  return rows;
}

}  // namespace nibble::kernels
