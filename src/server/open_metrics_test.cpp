#include "server/open_metrics.h"

#include <gtest/gtest.h>

namespace nibble::server {
namespace {

TEST(OpenMetrics, NamesCounterFamiliesWithoutTheirSuffix) {
  EXPECT_EQ(to_open_metrics("# HELP a_total Things.\n# TYPE a_total counter\na_total{x=\"1\"} 2\n"
                            "# HELP b Size.\n# TYPE b gauge\nb 3\n"),
            "# HELP a Things.\n# TYPE a counter\na_total{x=\"1\"} 2\n"
            "# HELP b Size.\n# TYPE b gauge\nb 3\n# EOF\n");
}

TEST(OpenMetrics, LeavesOtherNamesWithTheSuffixAlone) {
  EXPECT_EQ(to_open_metrics("# HELP memory_total Size.\n# TYPE memory_total gauge\n"),
            "# HELP memory_total Size.\n# TYPE memory_total gauge\n# EOF\n");
  EXPECT_EQ(to_open_metrics(""), "# EOF\n");
}

}  // namespace
}  // namespace nibble::server
