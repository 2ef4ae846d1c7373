#include "kernels/ops_testing.h"

namespace nibble::kernels {

std::vector<const KernelInfo*> runnable_rows(Op op, KeyForm keys) {
  const device::IsaSet isa = device::detect_isa();
  std::vector<const KernelInfo*> rows;
  for (const KernelInfo* row : all_kernels()) {
    const bool runs_here =
        row->target.kind == device::DeviceKind::kCpu && (row->target.isa & ~isa) == 0;
    if (row->op == op && row->keys == keys && runs_here) rows.push_back(row);
  }
  return rows;
}

}  // namespace nibble::kernels
