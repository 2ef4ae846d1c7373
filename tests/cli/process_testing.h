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
  // Sent to the process once `signal_when` is in its output or its errors; 0: none.
  int signal = 0;
  std::string signal_when;
};

// Runs `nibble ARGUMENTS` to its end.
ProcessResult run_nibble(const std::vector<std::string>& arguments,
                         const ProcessOptions& options = {});

}  // namespace nibble::testing
