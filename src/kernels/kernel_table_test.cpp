#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "kernels/registry.h"

namespace nibble::kernels {
namespace {

using ::testing::HasSubstr;

TEST(KernelTable, ShowsWhatARecordStates) {
  EXPECT_THAT(
      kernel_table_markdown(),
      HasSubstr("| `matmul.mxfp4.f32.cpu.scalar` | matmul | mxfp4 | f32 | scalar | cpu | none | "
                "row_major | runs | AMD EPYC (Zen 5), 2026-11-29 |"));
}

// Writes the current table beside the test's output, so that updating the document is one copy.
TEST(KernelTable, DocumentIsUpToDate) {
  const std::string generated = ::testing::TempDir() + "kernel-table.md";
  std::ofstream(generated) << kernel_table_markdown();
  const Result<std::string> document =
      read_file(Path(NIBBLE_SOURCE_DIR) / "docs/kernel-table.md", 1 << 20);
  ASSERT_TRUE(document.ok()) << document.error().message;
  EXPECT_EQ(*document, kernel_table_markdown())
      << "copy " << generated << " to docs/kernel-table.md";
}

}  // namespace
}  // namespace nibble::kernels
