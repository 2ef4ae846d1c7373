#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/json.h"
#include "checkpoint/display.h"
#include "checkpoint/safetensors.h"

namespace nibble::checkpoint {
namespace {

// An output file that removes itself unless it was committed.
class PendingFile final {
 public:
  explicit PendingFile(Path path) : path_(std::move(path)), temporary_(path_) {
    temporary_ += fmt::format(".{}.tmp", ::getpid());
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }

  Result<void> write(const void* data, size_t size) {
    if (fd_ < 0) return fault("create");
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t n = ::write(fd_, at, size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return fault("write");
      at += n;
      size -= static_cast<size_t>(n);
    }
    return {};
  }

  Result<void> commit() {
    if (::fsync(fd_) != 0) return fault("sync");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return fault("rename");
    ::close(std::exchange(fd_, -1));
    return {};
  }

 private:
  Error fault(const char* action) const {
    const int saved = errno;
    std::string text = fmt::format(
        "{}: cannot {}: {}", display_name(path_.string()), action, std::strerror(saved));
    if (saved == ENOSPC || saved == EDQUOT) return exhausted(std::move(text));
    return saved == ENOENT ? not_found(std::move(text)) : invalid_argument(std::move(text));
  }

  Path path_;
  Path temporary_;
  int fd_ = -1;
};

Result<void> check_names(const Path& path, std::span<const NamedTensor* const> sorted_by_name) {
  for (size_t i = 0; i < sorted_by_name.size(); ++i) {
    const std::string& name = sorted_by_name[i]->name;
    const bool is_duplicate = i > 0 && sorted_by_name[i - 1]->name == name;
    if (name != "__metadata__" && !is_duplicate) continue;
    return invalid_argument(fmt::format("{}: tensor {}: the name is {}, expected a unique one.",
                                        display_name(path.string()),
                                        display_name(name),
                                        is_duplicate ? "used twice" : "reserved"));
  }
  return {};
}

std::string make_header(std::span<const NamedTensor* const> tensors,
                        std::span<const std::pair<std::string, std::string>> metadata) {
  json::Object header;
  if (!metadata.empty()) {
    json::Object object;
    for (const auto& [key, text] : metadata) object.set(key, text);
    header.insert("__metadata__", std::move(object));
  }
  int64_t offset = 0;
  for (const NamedTensor* tensor : tensors) {
    json::Array shape;
    for (const int64_t dim : tensor->view.shape.dims()) shape.emplace_back(dim);
    const int64_t end = offset + tensor->view.num_bytes();
    header.insert(tensor->name,
                  json::make_object({{"dtype", dtype_name(tensor->view.dtype)},
                                     {"shape", std::move(shape)},
                                     {"data_offsets", json::Array{offset, end}}}));
    offset = end;
  }
  std::string text = json::dump(header, json::Style::kCompact);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts aligned for every dtype
  return text;
}

}  // namespace

Result<void> write_safetensors(const Path& path,
                               std::span<const NamedTensor> tensors,
                               std::span<const std::pair<std::string, std::string>> metadata) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) {
    CHECK(tensor.view.is_contiguous() && tensor.view.memory == MemoryKind::kHost) << tensor.name;
    order.push_back(&tensor);
  }
  std::sort(
      order.begin(), order.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  TRY(check_names(path, order));
  // Wide dtypes first keeps every tensor aligned to its own size.
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return dtype_size(a->view.dtype) > dtype_size(b->view.dtype);
  });
  const std::string header = make_header(order, metadata);
  const uint64_t length = header.size();
  char length_bytes[8];
  for (size_t i = 0; i < sizeof length_bytes; ++i)
    length_bytes[i] = static_cast<char>(length >> (8 * i));
  PendingFile file(path);
  TRY(file.write(length_bytes, sizeof length_bytes));
  TRY(file.write(header.data(), header.size()));
  for (const NamedTensor* tensor : order) {
    TRY(file.write(tensor->view.data, static_cast<size_t>(tensor->view.num_bytes())));
  }
  return file.commit();
}

}  // namespace nibble::checkpoint
