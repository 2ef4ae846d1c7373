#include "cli/transfer_display.h"

#include <gtest/gtest.h>

namespace nibble::cli {
namespace {

TEST(ProgressText, SaysHowFarHowFastAndHowLong) {
  hub::RateMeter meter;
  const hub::TransferProgress progress{.total_bytes = 27'000'000'000,
                                       .done_bytes = 12'300'000'000,
                                       .received_bytes = 0,
                                       .num_files = 46,
                                       .num_files_done = 3};
  EXPECT_EQ(progress_text(progress, meter), "45% 12.3 GB of 27.0 GB, 3 of 46 files");
  meter.add(TimePoint{}, 0);
  meter.add(TimePoint{} + std::chrono::seconds(10), 850'000'000);
  EXPECT_EQ(progress_text(progress, meter),
            "45% 12.3 GB of 27.0 GB, 85.0 MB/s, 2 min 52 s left, 3 of 46 files");
}

TEST(ProgressText, OfNothingIsComplete) {
  EXPECT_EQ(progress_text({}, {}), "100% 0 B of 0 B, 0 of 0 files");
}

}  // namespace
}  // namespace nibble::cli
