// Converting checkpoints in tests and comparing what comes out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tools/convert/convert.h"

namespace nibble::tools {

struct Converted {
  std::vector<std::string> notes;
  JobResult result;
};
Result<Converted> convert(const Path& in, const ConvertOptions& options);
// Stops the test on failure.
Converted convert_ok(const Path& in, const ConvertOptions& options);

// Names of tensors that differ between two checkpoints in dtype, shape or bytes, or are in one
// only.
std::vector<std::string> differences(const checkpoint::Checkpoint& a,
                                     const checkpoint::Checkpoint& b);
std::vector<std::string> differences(const Path& a, const Path& b);

json::Value read_json(const Path& path);
std::string text_of(const json::Value* value);  // "missing" for nullptr

// Logits of 40 fixed tokens in reference precision, drafts' behind them.
std::vector<float> logits_of(const Path& dir);
// The kernel that a module class got, empty for none.
std::string kernel_of(const Path& dir, std::string_view module);

}  // namespace nibble::tools
