// Runs the program under test.
#pragma once

#include <string>
#include <vector>

namespace nibble::testing {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal number when a signal ended it
  std::string output;
  std::string errors;
};

struct ProcessOptions {
  std::string input;
  // Sent to the process as soon as it has written something to its output; 0: none.
  int signal_after_output = 0;
};

// Runs `nibble ARGUMENTS` to its end.
ProcessResult run_nibble(const std::vector<std::string>& arguments,
                         const ProcessOptions& options = {});

}  // namespace nibble::testing
