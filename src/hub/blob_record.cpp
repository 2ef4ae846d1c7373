#include "hub/blob_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/checked_math.h"
#include "base/json.h"
#include "hub/errors.h"
#include "hub/header_length.h"

namespace nibble::hub {
namespace {

constexpr int64_t kFormat = 1;
constexpr size_t kHashDigits = 16;
constexpr json::Limits kRecordLimits{
    .max_depth = 8, .max_nodes = 4'000'000, .max_bytes = 256 << 20};
constexpr json::Limits kHeaderLimits{
    .max_depth = 16, .max_nodes = 8'000'000, .max_bytes = kMaxHeaderBytes};

std::optional<uint64_t> parse_hash(std::string_view text) {
  uint64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != kHashDigits || fault != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

bool parse_blocks(const json::Value& document, BlobRecord& record) {
  const json::Value* member = document.find("blocks");
  const std::string* text = member == nullptr ? nullptr : member->as_string();
  if (text == nullptr) return false;
  const auto count = static_cast<size_t>(num_blocks(record.size));
  if (text->size() / kHashDigits != count || text->size() % kHashDigits != 0) return false;
  record.blocks.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const std::optional<uint64_t> hash =
        parse_hash(std::string_view(*text).substr(i * kHashDigits, kHashDigits));
    if (!hash) return false;
    record.blocks.push_back(*hash);
  }
  return true;
}

bool parse_tensors(const json::Value& document, BlobRecord& record) {
  const json::Value* member = document.find("tensors");
  const json::Object* tensors = member == nullptr ? nullptr : member->as_object();
  if (tensors == nullptr) return false;
  for (const json::Member& tensor : *tensors) {
    const std::string* text = tensor.value.as_string();
    const std::optional<uint64_t> hash = text == nullptr ? std::nullopt : parse_hash(*text);
    if (!hash) return false;
    record.tensors.push_back({tensor.key, *hash});
  }
  return true;
}

std::optional<int64_t> integer_member(const json::Value& document, std::string_view key) {
  const json::Value* member = document.find(key);
  return member == nullptr ? std::nullopt : member->as_int64();
}

// {begin, end} of a "data_offsets" member.
std::optional<std::pair<int64_t, int64_t>> parse_offsets(const json::Value& tensor) {
  const json::Value* member = tensor.find("data_offsets");
  const json::Array* offsets = member == nullptr ? nullptr : member->as_array();
  if (offsets == nullptr || offsets->size() != 2) return std::nullopt;
  const std::optional<int64_t> begin = (*offsets)[0].as_int64();
  const std::optional<int64_t> end = (*offsets)[1].as_int64();
  if (!begin || !end || *begin < 0 || *end < *begin) return std::nullopt;
  return std::pair(*begin, *end);
}

}  // namespace

int64_t num_blocks(int64_t file_bytes) { return ceil_div(file_bytes, kBlockBytes); }

int64_t block_bytes(int64_t file_bytes, int64_t block) {
  return std::min(kBlockBytes, file_bytes - block * kBlockBytes);
}

std::string BlobRecord::to_json() const {
  std::string text_of_blocks;
  text_of_blocks.reserve(blocks.size() * kHashDigits);
  for (const uint64_t hash : blocks) text_of_blocks += fmt::format("{:016x}", hash);
  json::Object hashes;
  for (const TensorHash& tensor : tensors) {
    hashes.insert(tensor.name, fmt::format("{:016x}", tensor.xxh3));
  }
  json::Object document;
  document.insert("format", kFormat);
  document.insert("etag", etag);
  document.insert("size", size);
  document.insert("block_bytes", kBlockBytes);
  document.insert("blocks", std::move(text_of_blocks));
  document.insert("tensors", std::move(hashes));
  return json::dump(json::Value(std::move(document)), json::Style::kPython) + '\n';
}

Result<BlobRecord> BlobRecord::parse(std::string_view json_text) {
  Result<json::Value> document = json::parse(json_text, kRecordLimits);
  if (!document.ok()) return integrity_error("blob record: " + document.error().message);
  const json::Value* etag_value = document->find("etag");
  const std::string* etag = etag_value == nullptr ? nullptr : etag_value->as_string();
  const std::optional<int64_t> size = integer_member(*document, "size");
  const bool is_known = integer_member(*document, "format") == kFormat &&
                        integer_member(*document, "block_bytes") == kBlockBytes;
  BlobRecord record;
  if (is_known && etag != nullptr && is_blob_name(*etag) && size && *size >= 0) {
    record.etag = *etag;
    record.size = *size;
    if (parse_blocks(*document, record) && parse_tensors(*document, record)) return record;
  }
  return integrity_error("blob record: is not of format 1, or contradicts itself");
}

Result<BlobRecord> read_record(const Path& path) {
  TRY_ASSIGN(const std::string text, read_file(path, kRecordLimits.max_bytes));
  return BlobRecord::parse(text);
}

void TensorHasher::update(std::span<const std::byte> bytes) {
  if (!has_header_ && is_valid_) collect_header(bytes);
  if (!is_valid_ || !has_header_) return;
  hash_tensors(bytes);
}

// Takes header bytes off the front of `bytes`.
void TensorHasher::collect_header(std::span<const std::byte>& bytes) {
  const auto take = [&](int64_t target) {
    const size_t count = std::min(bytes.size(), static_cast<size_t>(target) - header_.size());
    header_.append(reinterpret_cast<const char*>(bytes.data()), count);
    bytes = bytes.subspan(count);
    return static_cast<int64_t>(header_.size()) == target;
  };
  if (static_cast<int64_t>(header_.size()) < kHeaderLengthBytes && !take(kHeaderLengthBytes))
    return;
  const int64_t length = read_header_length(header_);
  if (length > kMaxHeaderBytes || length > file_bytes_ - kHeaderLengthBytes) {
    is_valid_ = false;
  } else if (take(kHeaderLengthBytes + length)) {
    parse_header();
  }
}

void TensorHasher::parse_header() {
  has_header_ = true;
  position_ = static_cast<int64_t>(header_.size());
  const Result<json::Value> document =
      json::parse(std::string_view(header_).substr(kHeaderLengthBytes), kHeaderLimits);
  const json::Object* tensors = document.ok() ? document->as_object() : nullptr;
  is_valid_ = tensors != nullptr;
  if (!is_valid_) return;
  for (const json::Member& tensor : *tensors) {
    if (tensor.key == "__metadata__") continue;
    const auto offsets = parse_offsets(tensor.value);
    if (!offsets || offsets->second > file_bytes_ - position_) {
      is_valid_ = false;
      return;
    }
    extents_.push_back({tensor.key, position_ + offsets->first, position_ + offsets->second});
  }
  std::sort(extents_.begin(), extents_.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  for (size_t i = 1; i < extents_.size(); ++i) {
    is_valid_ = is_valid_ && extents_[i - 1].end <= extents_[i].begin;
  }
  header_ = {};
  close_finished();
}

void TensorHasher::hash_tensors(std::span<const std::byte> bytes) {
  while (!bytes.empty() && current_ < extents_.size()) {
    const Extent& extent = extents_[current_];
    const int64_t stop = position_ < extent.begin ? extent.begin : extent.end;
    const auto count =
        static_cast<size_t>(std::min(stop - position_, static_cast<int64_t>(bytes.size())));
    if (position_ >= extent.begin) hash_.update(bytes.first(count));
    position_ += static_cast<int64_t>(count);
    bytes = bytes.subspan(count);
    close_finished();
  }
}

// Emits the hashes of all tensors that end where we are, those without bytes included.
void TensorHasher::close_finished() {
  while (current_ < extents_.size() && extents_[current_].end <= position_) {
    hashes_.push_back({std::move(extents_[current_].name), hash_.digest()});
    hash_.reset();
    ++current_;
  }
}

std::vector<TensorHash> TensorHasher::finish() {
  const bool is_complete = is_valid_ && has_header_ && current_ == extents_.size();
  return is_complete ? std::move(hashes_) : std::vector<TensorHash>();
}

BlobHasher::BlobHasher(std::string etag, int64_t size, Content content)
    : digest_(Digest::for_name(etag, size)), content_(content), tensors_(size) {
  record_.etag = std::move(etag);
  record_.size = size;
  record_.blocks.reserve(static_cast<size_t>(num_blocks(size)));
}

uint64_t BlobHasher::update(std::span<const std::byte> block) {
  const uint64_t hash = hash_bytes(block);
  update(block, hash);
  return hash;
}

void BlobHasher::update(std::span<const std::byte> block, uint64_t hash) {
  record_.blocks.push_back(hash);
  digest_.update(block);
  if (content_ == Content::kSafetensors) tensors_.update(block);
}

BlobHasher::Finished BlobHasher::finish() {
  Finished finished{digest_.finish_hex(), std::move(record_)};
  if (content_ == Content::kSafetensors) finished.record.tensors = tensors_.finish();
  return finished;
}

BlobHasher::Content content_of(std::string_view path) {
  constexpr std::string_view kSuffix = ".safetensors";
  const bool is_safetensors =
      path.size() >= kSuffix.size() && path.substr(path.size() - kSuffix.size()) == kSuffix;
  return is_safetensors ? BlobHasher::Content::kSafetensors : BlobHasher::Content::kOther;
}

}  // namespace nibble::hub
