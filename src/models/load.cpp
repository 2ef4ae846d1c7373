// Which architecture a config names.
#include <fmt/format.h>

#include "base/utf8.h"
#include "checkpoint/config_reader.h"
#include "models/deepseek_v4/model.h"
#include "models/model.h"

namespace nibble::models {

Result<std::unique_ptr<Model>> load_model(const checkpoint::Checkpoint& checkpoint,
                                          device::Device& device,
                                          const LoadOptions& options) {
  TRY_ASSIGN(const checkpoint::ConfigReader config, checkpoint.read_config());
  // The original inference config of DeepSeek-V4 names no type.
  TRY_ASSIGN(const std::string model_type, config.string_or({"model_type"}, "deepseek_v4"));
  if (model_type == "deepseek_v4") return deepseek_v4::load(config, checkpoint, device, options);
  return unsupported(fmt::format("{}: model_type {}, expected deepseek_v4",
                                 config.file_name(),
                                 escape_for_display(model_type)));
}

}  // namespace nibble::models
