// Safetensors headers as hostile input. The first byte chooses: even, the rest is a whole file;
// odd, two bytes give the size of the data and the rest is the header's JSON, so that mutations
// reach past the length field.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace {

using nibble::checkpoint::SafetensorsHeader;
using nibble::checkpoint::StoredTensor;

std::string file_with_header(std::string_view input) {
  if (input.size() < 2) return {};
  const size_t data_bytes =
      static_cast<uint8_t>(input[0]) * size_t{256} + static_cast<uint8_t>(input[1]);
  const std::string_view header = input.substr(2);
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  file += header;
  return file.append(data_bytes, '\0');
}

// What a header that was accepted promises: every byte of the data belongs to exactly one tensor.
void check_promises(const SafetensorsHeader& header, int64_t file_size) {
  int64_t expected = header.data_begin;
  for (const StoredTensor& tensor : header.tensors) {
    CHECK(tensor.begin == expected) << tensor.begin;
    const int64_t element_size = nibble::dtype_size(tensor.meta.dtype);
    CHECK(tensor.end - tensor.begin == tensor.meta.shape.num_elements() * element_size)
        << tensor.end;
    CHECK(tensor.begin == tensor.end || tensor.begin % element_size == 0) << tensor.begin;
    expected = tensor.end;
  }
  CHECK(expected == file_size) << expected;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string file = data[0] % 2 == 0 ? std::string(input) : file_with_header(input);
  const auto file_size = static_cast<int64_t>(file.size());
  const auto header = nibble::checkpoint::parse_safetensors_header(
      std::as_bytes(std::span(file)), file_size, "model.safetensors");
  if (header.ok()) {
    check_promises(*header, file_size);
  } else {
    const std::string& message = header.error().message;
    CHECK(message.starts_with("model.safetensors: ") && message.ends_with('.')) << message;
    CHECK(message.find('\n') == std::string::npos && message.size() < 2000) << message;
  }
  return 0;
}
