#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_set>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"
#include "text/pre_tokenizer.h"

namespace nibble::text {
namespace {

using json::Value;

// The largest published files have 9 MB and 0.6 million JSON values.
constexpr json::Limits kJsonLimits = {
    .max_depth = 16, .max_nodes = int64_t{4} * kTokenIdLimit, .max_bytes = 64 << 20};

constexpr size_t kShownBytesMax = 100;

std::string shown(std::string_view text) {
  std::string out = escape_for_display(text.substr(0, kShownBytesMax));
  if (text.size() > kShownBytesMax) out += "...";
  return out;
}

std::string shown(const Value* value) {
  return value == nullptr ? "nothing" : shown(json::dump(*value, json::Style::kCompact));
}

// A member of the document that decides how text is tokenized, and the only value we implement.
struct Requirement {
  std::string_view key;
  std::string_view expected;  // compact JSON
  bool may_be_absent = false;
};

constexpr Requirement kModelRequirements[] = {
    {.key = "type", .expected = R"("BPE")"},
    {.key = "dropout", .expected = "null", .may_be_absent = true},
    {.key = "unk_token", .expected = "null", .may_be_absent = true},
    {.key = "continuing_subword_prefix", .expected = "null", .may_be_absent = true},
    {.key = "end_of_word_suffix", .expected = "null", .may_be_absent = true},
    {.key = "byte_fallback", .expected = "false", .may_be_absent = true},
    {.key = "ignore_merges", .expected = "false", .may_be_absent = true},
};

constexpr Requirement kSplitRequirements[] = {
    {.key = "type", .expected = R"("Split")"},
    {.key = "behavior", .expected = R"("Isolated")"},
    {.key = "invert", .expected = "false"},
};

constexpr Requirement kByteLevelRequirements[] = {
    {.key = "type", .expected = R"("ByteLevel")"},
    {.key = "add_prefix_space", .expected = "false"},
    {.key = "use_regex", .expected = "false"},
};

constexpr Requirement kAddedTokenRequirements[] = {
    {.key = "single_word", .expected = "false", .may_be_absent = true},
    {.key = "lstrip", .expected = "false", .may_be_absent = true},
    {.key = "rstrip", .expected = "false", .may_be_absent = true},
};

class Reader final {
 public:
  explicit Reader(std::string_view file_name) : file_name_(file_name) {}

  Result<TokenizerSpec> read(const Value& root) {
    if (!root.is_object()) return invalid("document", shown(&root), "an object");
    TRY(check_normalizer(root.find("normalizer")));
    TRY(check_pre_tokenizer(root.find("pre_tokenizer")));
    TRY(check_requirement(
        root.find("decoder"), "decoder", {.key = "type", .expected = R"("ByteLevel")"}));
    const Value* model = root.find("model");
    TRY(check_requirements(model, "model", kModelRequirements));
    TRY(read_vocabulary(model->find("vocab")));
    TRY(read_byte_tokens());
    TRY(read_merges(model->find("merges")));
    TRY(read_added_tokens(root.find("added_tokens")));
    return std::move(spec_);
  }

 private:
  Error invalid(std::string_view path, std::string_view found, std::string_view expected) const {
    return data_loss(fmt::format(
        "{}: {}: found {}, expected {}. Fetch the file again.", file_name_, path, found, expected));
  }

  Error not_implemented(std::string_view path,
                        const Value* found,
                        std::string_view expected) const {
    return unsupported(
        fmt::format("{}: {}: found {}, expected {}. This tokenizer works in a way that is not "
                    "implemented; its token ids would be wrong",
                    file_name_,
                    path,
                    shown(found),
                    expected));
  }

  Result<void> check_requirement(const Value* parent,
                                 std::string_view path,
                                 const Requirement& wanted) const {
    const Value* found = parent == nullptr ? nullptr : parent->find(wanted.key);
    if (found == nullptr && wanted.may_be_absent) return {};
    if (found != nullptr && json::dump(*found, json::Style::kCompact) == wanted.expected) return {};
    return not_implemented(fmt::format("{}.{}", path, wanted.key), found, wanted.expected);
  }

  Result<void> check_requirements(const Value* parent,
                                  std::string_view path,
                                  std::span<const Requirement> wanted) const {
    for (const Requirement& requirement : wanted) TRY(check_requirement(parent, path, requirement));
    return {};
  }

  // Null, or a sequence of no normalizers.
  Result<void> check_normalizer(const Value* normalizer) const {
    if (normalizer == nullptr || normalizer->is_null()) return {};
    const Value* steps = normalizer->find("normalizers");
    if (steps != nullptr && steps->is_array() && steps->as_array()->empty()) return {};
    return not_implemented("normalizer", normalizer, "null");
  }

  Result<void> check_pre_tokenizer(const Value* pre_tokenizer) const {
    constexpr Requirement kSequence = {.key = "type", .expected = R"("Sequence")"};
    TRY(check_requirement(pre_tokenizer, "pre_tokenizer", kSequence));
    const Value* steps = pre_tokenizer->find("pretokenizers");
    constexpr size_t kNumSplits = kNumPreTokenizerPatterns;
    if (steps == nullptr || !steps->is_array() || steps->as_array()->size() != kNumSplits + 1) {
      return not_implemented(
          "pre_tokenizer.pretokenizers", steps, "three Split steps and a ByteLevel step");
    }
    for (size_t i = 0; i < kNumSplits; ++i) {
      TRY(check_split((*steps->as_array())[i],
                      fmt::format("pre_tokenizer.pretokenizers[{}]", i),
                      kPreTokenizerPatterns[i]));
    }
    return check_requirements(&steps->as_array()->back(),
                              fmt::format("pre_tokenizer.pretokenizers[{}]", kNumSplits),
                              kByteLevelRequirements);
  }

  Result<void> check_split(const Value& step,
                           const std::string& path,
                           std::string_view regex) const {
    TRY(check_requirements(&step, path, kSplitRequirements));
    const Value* pattern = step.find("pattern");
    const Value* found = pattern == nullptr ? nullptr : pattern->find("Regex");
    if (found != nullptr && found->is_string() && *found->as_string() == regex) return {};
    return not_implemented(
        path + ".pattern.Regex", found, json::dump(Value(regex), json::Style::kCompact));
  }

  Result<int32_t> read_id(const Value* value, std::string_view path) const {
    const std::optional<int64_t> id = value == nullptr ? std::nullopt : value->as_int64();
    if (!id || *id < 0 || *id >= kTokenIdLimit) {
      return invalid(path, shown(value), fmt::format("a token id of 0 to {}", kTokenIdLimit - 1));
    }
    return static_cast<int32_t>(*id);
  }

  std::string& bytes_slot(int32_t id) {
    const auto index = static_cast<size_t>(id);
    if (index >= spec_.token_bytes.size()) spec_.token_bytes.resize(index + 1);
    return spec_.token_bytes[index];
  }

  Result<void> read_vocabulary(const Value* vocabulary) {
    if (vocabulary == nullptr || !vocabulary->is_object()) {
      return invalid("model.vocab", shown(vocabulary), "an object");
    }
    vocabulary_ = vocabulary->as_object();
    for (const json::Member& entry : *vocabulary_) {
      const std::string path = fmt::format("model.vocab[\"{}\"]", shown(entry.key));
      TRY_ASSIGN(const int32_t id, read_id(&entry.value, path));
      if (entry.key.empty()) return invalid(path, "an empty token", "at least one character");
      std::string& bytes = bytes_slot(id);
      if (!bytes.empty())
        return invalid(path, fmt::format("id {} a second time", id), "distinct ids");
      // Entries outside the alphabet, such as turn markers, are their own text; no merge can reach
      // them.
      bytes = bytes_from_alphabet(entry.key).value_or(entry.key);
    }
    return {};
  }

  // The id of a vocabulary entry, or -1.
  int32_t find_entry(std::string_view spelling) const {
    const Value* id = vocabulary_->find(spelling);
    return id == nullptr ? -1 : static_cast<int32_t>(*id->as_int64());
  }

  Result<void> read_byte_tokens() {
    for (size_t byte = 0; byte < spec_.byte_tokens.size(); ++byte) {
      std::string spelling;
      append_utf8(spelling, alphabet_char(static_cast<uint8_t>(byte)));
      spec_.byte_tokens[byte] = find_entry(spelling);
      if (spec_.byte_tokens[byte] < 0) {
        return invalid(
            fmt::format("model.vocab[\"{}\"]", spelling),
            "nothing",
            fmt::format("the token of byte {:#04x}: byte-level BPE needs all 256", byte));
      }
    }
    return {};
  }

  Result<void> read_merges(const Value* merges) {
    if (merges == nullptr || !merges->is_array())
      return invalid("model.merges", shown(merges), "an array");
    const json::Array& entries = *merges->as_array();
    spec_.merges.reserve(entries.size());
    std::unordered_set<uint64_t> pairs;
    pairs.reserve(entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      TRY_ASSIGN(const Merge merge, read_merge(entries[i], i));
      const uint64_t pair =
          (static_cast<uint64_t>(merge.left) << 32) | static_cast<uint64_t>(merge.right);
      if (!pairs.insert(pair).second) {
        return invalid(merge_path(i), shown(&entries[i]) + " a second time", "distinct pairs");
      }
      spec_.merges.push_back(merge);
    }
    return {};
  }

  static std::string merge_path(size_t index) { return fmt::format("model.merges[{}]", index); }

  Result<Merge> read_merge(const Value& entry, size_t index) const {
    const auto parts = merge_parts(entry);
    if (!parts) {
      return invalid(merge_path(index), shown(&entry), R"("left right" or ["left", "right"])");
    }
    const Merge merge = {.left = find_entry(parts->first),
                         .right = find_entry(parts->second),
                         .result = find_entry(std::string(parts->first).append(parts->second))};
    if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
      return invalid(
          merge_path(index), shown(&entry), "both parts and the joined token in model.vocab");
    }
    return merge;
  }

  // Older files write "left right", newer ones ["left", "right"].
  static std::optional<std::pair<std::string_view, std::string_view>> merge_parts(
      const Value& entry) {
    if (const json::Array* list = entry.as_array()) {
      if (list->size() != 2 || !(*list)[0].is_string() || !(*list)[1].is_string())
        return std::nullopt;
      return std::pair<std::string_view, std::string_view>(*(*list)[0].as_string(),
                                                           *(*list)[1].as_string());
    }
    if (!entry.is_string()) return std::nullopt;
    const std::string_view text = *entry.as_string();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return std::nullopt;
    }
    return std::pair(text.substr(0, space), text.substr(space + 1));
  }

  Result<void> read_added_tokens(const Value* added_tokens) {
    if (added_tokens == nullptr) return {};
    if (!added_tokens->is_array()) return invalid("added_tokens", shown(added_tokens), "an array");
    std::unordered_set<std::string_view> contents;
    std::unordered_set<int32_t> ids;
    for (const Value& entry : *added_tokens->as_array()) {
      const std::string path = fmt::format("added_tokens[{}]", spec_.added_tokens.size());
      TRY_ASSIGN(AddedToken token, read_added_token(entry, path));
      if (!contents.insert(*entry.find("content")->as_string()).second ||
          !ids.insert(token.id).second) {
        return invalid(path, shown(&entry), "distinct contents and ids");
      }
      TRY(place_added_token(token, path));
      spec_.added_tokens.push_back(std::move(token));
    }
    return {};
  }

  Result<AddedToken> read_added_token(const Value& entry, const std::string& path) const {
    const Value* content = entry.find("content");
    if (content == nullptr || !content->is_string() || content->as_string()->empty() ||
        content->as_string()->size() > kAddedTokenBytesMax) {
      return invalid(path + ".content",
                     shown(content),
                     fmt::format("a string of 1 to {} bytes", kAddedTokenBytesMax));
    }
    AddedToken token = {.content = *content->as_string()};
    TRY_ASSIGN(token.id, read_id(entry.find("id"), path + ".id"));
    TRY_ASSIGN(token.is_special, read_flag(entry, path, "special"));
    TRY_ASSIGN(token.is_normalized, read_flag(entry, path, "normalized"));
    TRY(check_requirements(&entry, path, kAddedTokenRequirements));
    return token;
  }

  Result<bool> read_flag(const Value& entry, std::string_view path, std::string_view key) const {
    const Value* value = entry.find(key);
    if (value == nullptr) return false;
    if (value->as_bool() == nullptr)
      return invalid(fmt::format("{}.{}", path, key), shown(value), "true or false");
    return *value->as_bool();
  }

  // An added token may repeat a vocabulary entry of the same text and id, or bring an id of its
  // own.
  Result<void> place_added_token(const AddedToken& token, const std::string& path) {
    const int32_t entry_id = find_entry(token.content);
    if (entry_id >= 0 && entry_id != token.id) {
      return invalid(
          path + ".id", fmt::to_string(token.id), fmt::format("{} as in model.vocab", entry_id));
    }
    std::string& bytes = bytes_slot(token.id);
    if (entry_id < 0 && !bytes.empty()) {
      return invalid(
          path + ".id", fmt::format("{}, the id of another token", token.id), "a free id");
    }
    bytes = token.content;
    return {};
  }

  std::string_view file_name_;
  const json::Object* vocabulary_ = nullptr;
  TokenizerSpec spec_;
};

}  // namespace

Result<TokenizerSpec> parse_tokenizer_json(std::string_view json, std::string_view file_name) {
  auto document = json::parse(json, kJsonLimits);
  if (!document.ok()) {
    return data_loss(fmt::format("{}: {}, expected the JSON of a tokenizer. Fetch the file again.",
                                 file_name,
                                 document.error().message));
  }
  return Reader(file_name).read(*document);
}

}  // namespace nibble::text
