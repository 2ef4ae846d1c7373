#include "base/json.h"

#include <fmt/format.h>

// Without exceptions every result of simdjson must be looked at to compile.
#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>

#include "base/utf8.h"

namespace nibble::json {
namespace {

// Objects up to this size are searched linearly; it covers nearly all objects of requests.
constexpr size_t kLinearSearchMax = 8;

// Random per process, so that nobody can prepare colliding keys.
uint64_t hash_seed() {
  static const uint64_t seed = [] {
    std::random_device device;
    return (static_cast<uint64_t>(device()) << 32) ^ device();
  }();
  return seed;
}

size_t hash_key(std::string_view key) {
  return static_cast<size_t>(XXH3_64bits_withSeed(key.data(), key.size(), hash_seed()));
}

bool is_integral_token(std::string_view token) {
  if (!token.empty() && token.front() == '-') token.remove_prefix(1);
  if (token.empty() || (token.size() > 1 && token.front() == '0')) return false;
  return std::all_of(token.begin(), token.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// `byte` is a quote, a backslash or a control character below 0x20.
void append_escape(std::string& out, uint8_t byte) {
  constexpr std::string_view kByte = "\"\\\n\r\t\b\f";
  constexpr std::string_view kLetter = "\"\\nrtbf";
  const size_t at = kByte.find(static_cast<char>(byte));
  if (at == std::string_view::npos) {
    out += fmt::format("\\u{:04x}", byte);
  } else {
    out += '\\';
    out += kLetter[at];
  }
}

// Without the white space of JSON at its end.
std::string_view trim_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

// One pass over simdjson's on-demand iterator into our document.
class Builder final {
 public:
  explicit Builder(const Limits& limits) : limits_(limits) {}

  template <class Source>
  Result<Value> build(Source& source, int32_t depth) {
    if (++num_nodes_ > limits_.max_nodes) {
      return invalid_argument(fmt::format("JSON: more than {} values", limits_.max_nodes));
    }
    simdjson::ondemand::json_type type;
    if (const auto fault = source.type().get(type)) return syntax(fault);
    switch (type) {
      case simdjson::ondemand::json_type::object:
        return build_object(source, depth);
      case simdjson::ondemand::json_type::array:
        return build_array(source, depth);
      case simdjson::ondemand::json_type::string:
        return build_string(source);
      case simdjson::ondemand::json_type::number:
        return build_number(source);
      case simdjson::ondemand::json_type::boolean:
        return build_bool(source);
      case simdjson::ondemand::json_type::null:
        return build_null(source);
    }
    return syntax(simdjson::TAPE_ERROR);
  }

  static Error syntax(simdjson::error_code fault) {
    return invalid_argument(fmt::format("JSON: {}", simdjson::error_message(fault)));
  }

 private:
  Result<void> check_depth(int32_t depth) const {
    if (depth >= limits_.max_depth) {
      return invalid_argument(fmt::format("JSON: nested deeper than {} levels", limits_.max_depth));
    }
    return {};
  }

  template <class Source>
  Result<Value> build_object(Source& source, int32_t depth) {
    TRY(check_depth(depth));
    simdjson::ondemand::object object;
    if (const auto fault = source.get_object().get(object)) return syntax(fault);
    Object out;
    for (auto item : object) {
      if (item.error() != simdjson::SUCCESS) return syntax(item.error());
      simdjson::ondemand::field field = item.value_unsafe();
      std::string_view key;
      if (const auto fault = field.unescaped_key().get(key)) return syntax(fault);
      std::string owned_key(key);  // the view dies when the value is read
      TRY_ASSIGN(Value value, build(field.value(), depth + 1));
      if (!out.insert(owned_key, std::move(value))) {
        return invalid_argument(
            fmt::format("JSON: duplicate key \"{}\"", escape_for_display(owned_key)));
      }
    }
    return Value(std::move(out));
  }

  template <class Source>
  Result<Value> build_array(Source& source, int32_t depth) {
    TRY(check_depth(depth));
    simdjson::ondemand::array array;
    if (const auto fault = source.get_array().get(array)) return syntax(fault);
    Array out;
    for (auto item : array) {
      if (item.error() != simdjson::SUCCESS) return syntax(item.error());
      simdjson::ondemand::value element = item.value_unsafe();
      TRY_ASSIGN(Value value, build(element, depth + 1));
      out.push_back(std::move(value));
    }
    return Value(std::move(out));
  }

  template <class Source>
  Result<Value> build_string(Source& source) {
    std::string_view text;
    if (const auto fault = source.get_string().get(text)) return syntax(fault);
    return Value(text);
  }

  template <class Source>
  Result<Value> build_number(Source& source) {
    std::string token(scalar_token(source));
    double number = 0;  // read for integers too: that moves on, and any length of token is accepted
    if (const auto fault = source.get_double().get(number)) return syntax(fault);
    if (is_integral_token(token)) return Value(Integer{std::move(token)});
    if (!std::isfinite(number)) return syntax(simdjson::NUMBER_ERROR);
    return Value(number);
  }

  // Tokens are compared whole: simdjson 3.0 takes "null1" for null at the root.
  template <class Source>
  Result<Value> build_bool(Source& source) {
    const std::string_view token = scalar_token(source);
    if (token != "true" && token != "false") return unknown_literal();
    bool value = false;
    if (const auto fault = source.get_bool().get(value)) return syntax(fault);
    return Value(value);
  }

  template <class Source>
  Result<Value> build_null(Source& source) {
    if (scalar_token(source) != "null") return unknown_literal();
    bool is_null = false;  // asking moves on
    if (const auto fault = source.is_null().get(is_null)) return syntax(fault);
    return Value();
  }

  static Error unknown_literal() {
    return invalid_argument("JSON: unknown literal, expected true, false or null");
  }

  // The text up to the next structural character, less the white space at its end.
  template <class Source>
  static std::string_view scalar_token(Source& source) {
    return trim_end(raw_token(source));
  }

  static std::string_view raw_token(simdjson::ondemand::value& source) {
    return source.raw_json_token();
  }
  static std::string_view raw_token(simdjson::ondemand::document& source) {
    std::string_view token;
    return source.raw_json_token().get(token) ? std::string_view() : token;
  }

  const Limits& limits_;
  int64_t num_nodes_ = 0;
};

// Adds where the iterator stands: at the fault or at the token behind it.
Error located(Error error,
              simdjson::ondemand::document& document,
              const simdjson::padded_string& text) {
  const char* at = nullptr;
  if (document.current_location().get(at) != simdjson::SUCCESS) at = text.data() + text.size();
  const auto offset =
      std::clamp<ptrdiff_t>(at - text.data(), 0, static_cast<ptrdiff_t>(text.size()));
  error.message += fmt::format(", near byte {}", offset);
  return error;
}

}  // namespace

Object::Object() = default;
Object::Object(const Object&) = default;
Object::Object(Object&&) noexcept = default;
Object& Object::operator=(const Object&) = default;
Object& Object::operator=(Object&&) noexcept = default;
Object::~Object() = default;

size_t Object::size() const { return members_.size(); }
const Member* Object::begin() const { return members_.data(); }
const Member* Object::end() const { return members_.data() + members_.size(); }

bool Object::insert(std::string key, Value value) {
  if (find(key) != nullptr) return false;
  members_.push_back(Member{std::move(key), std::move(value)});
  if (members_.size() <= kLinearSearchMax) return true;
  if (members_.size() * 2 > index_.size()) {
    rebuild_index();
  } else {
    index_[probe(members_.back().key)] = static_cast<uint32_t>(members_.size());
  }
  return true;
}

void Object::set(std::string key, Value value) {
  if (Value* found = find(key)) {
    *found = std::move(value);
  } else {
    insert(std::move(key), std::move(value));
  }
}

bool Object::erase(std::string_view key) {
  const auto it =
      std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.key == key; });
  if (it == members_.end()) return false;
  members_.erase(it);
  rebuild_index();
  return true;
}

const Value* Object::find(std::string_view key) const {
  if (index_.empty()) {
    for (const Member& member : members_) {
      if (member.key == key) return &member.value;
    }
    return nullptr;
  }
  const uint32_t entry = index_[probe(key)];
  return entry == 0 ? nullptr : &members_[entry - 1].value;
}

Value* Object::find(std::string_view key) {
  return const_cast<Value*>(static_cast<const Object&>(*this).find(key));
}

void Object::rebuild_index() {
  index_.clear();
  if (members_.size() <= kLinearSearchMax) return;
  size_t capacity = 32;
  while (capacity < members_.size() * 4) capacity *= 2;
  index_.assign(capacity, 0);
  for (size_t i = 0; i < members_.size(); ++i)
    index_[probe(members_[i].key)] = static_cast<uint32_t>(i + 1);
}

// The slot that holds `key`, or the empty slot where it belongs. The table is at most half full.
size_t Object::probe(std::string_view key) const {
  const size_t mask = index_.size() - 1;
  size_t slot = hash_key(key) & mask;
  while (index_[slot] != 0 && members_[index_[slot] - 1].key != key) slot = (slot + 1) & mask;
  return slot;
}

const char* Value::kind_name() const {
  switch (kind()) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "boolean";
    case Kind::kInteger:
      return "integer";
    case Kind::kFloat:
      return "number";
    case Kind::kString:
      return "string";
    case Kind::kArray:
      return "array";
    case Kind::kObject:
      return "object";
  }
  return "unknown";
}

std::optional<int64_t> Value::as_int64() const {
  const Integer* integer = as_integer();
  if (integer == nullptr) return std::nullopt;
  const std::string& t = integer->token;
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(t.data(), t.data() + t.size(), value);
  if (fault != std::errc() || end != t.data() + t.size()) return std::nullopt;
  return value;
}

std::optional<double> Value::as_double() const {
  if (const double* number = std::get_if<double>(&data_)) return *number;
  const Integer* integer = as_integer();
  if (integer == nullptr) return std::nullopt;
  const std::string& t = integer->token;
  double value = 0;
  const auto [end, fault] = std::from_chars(t.data(), t.data() + t.size(), value);
  if (fault != std::errc() || end != t.data() + t.size()) return std::nullopt;
  return value;
}

const Value* Value::find(std::string_view key) const {
  const Object* object = as_object();
  return object == nullptr ? nullptr : object->find(key);
}

Object make_object(std::vector<Member> members) {
  Object out;
  for (Member& member : members) {
    const bool is_new = out.insert(std::move(member.key), std::move(member.value));
    CHECK(is_new) << "duplicate key in an object literal";
  }
  return out;
}

Result<Value> parse(std::string_view text, const Limits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return invalid_argument(
        fmt::format("JSON: {} bytes, expected at most {}", text.size(), limits.max_bytes));
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    return invalid_argument("JSON: starts with a byte order mark");
  }
  simdjson::ondemand::parser parser;
  // Our own depth check comes first; simdjson's array of open containers gets the same plus slack.
  if (const auto fault = parser.allocate(std::max<size_t>(text.size(), 64),
                                         static_cast<size_t>(limits.max_depth) + 8)) {
    return Builder::syntax(fault);
  }
  // Trimmed: simdjson 3.0 refuses some atoms at the root with white space behind them.
  const simdjson::padded_string padded(trim_end(text));
  simdjson::ondemand::document document;
  if (const auto fault = parser.iterate(padded).get(document)) return Builder::syntax(fault);
  Builder builder(limits);
  Result<Value> value = builder.build(document, 0);
  if (!value.ok()) {
    return located(std::move(value).error(), document, padded);
  }
  const char* rest = nullptr;  // a location exists only where text is left
  if (document.current_location().get(rest) == simdjson::SUCCESS) {
    return invalid_argument("JSON: text after the end of the document");
  }
  return value;
}

std::string python_repr(double value) {
  CHECK(std::isfinite(value));
  char buffer[64];
  const auto [end, fault] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  CHECK(fault == std::errc());
  std::string_view text(buffer, static_cast<size_t>(end - buffer));  // [-]d[.ddd]e[+-]xx
  std::string out;
  if (text.front() == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t mark = text.find('e');
  std::string digits(text.substr(0, mark));
  if (digits.size() > 1) digits.erase(1, 1);
  int exponent = 0;
  const size_t sign_skip = text[mark + 1] == '+' ? mark + 2 : mark + 1;
  std::from_chars(text.data() + sign_skip, text.data() + text.size(), exponent);
  // Python switches to the exponent form below 1e-4 and from 1e16 up.
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += '.' + digits.substr(1);
    out += fmt::format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out;
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto point = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= point) return out + digits + std::string(point - digits.size(), '0') + ".0";
  return out + digits.substr(0, point) + '.' + digits.substr(point);
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  append_escaped(out, text);
  out += '"';
}

void append_escaped(std::string& out, std::string_view text) {
  if (!is_valid_utf8(text)) return append_escaped(out, replace_invalid_utf8(text));
  size_t copied = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out += text.substr(copied, i - copied);
    append_escape(out, byte);
    copied = i + 1;
  }
  out += text.substr(copied);
}

void dump_to(std::string& out, const Value& value, Style style) {
  const std::string_view comma = style == Style::kPython ? ", " : ",";
  const std::string_view colon = style == Style::kPython ? ": " : ":";
  switch (value.kind()) {
    case Kind::kNull:
      out += "null";
      return;
    case Kind::kBool:
      out += *value.as_bool() ? "true" : "false";
      return;
    case Kind::kInteger:
      out += value.as_integer()->token;
      return;
    case Kind::kFloat:
      out += python_repr(*value.as_double());
      return;
    case Kind::kString:
      append_quoted(out, *value.as_string());
      return;
    case Kind::kArray: {
      out += '[';
      bool is_first = true;
      for (const Value& element : *value.as_array()) {
        if (!is_first) out += comma;
        is_first = false;
        dump_to(out, element, style);
      }
      out += ']';
      return;
    }
    case Kind::kObject: {
      out += '{';
      bool is_first = true;
      for (const Member& member : *value.as_object()) {
        if (!is_first) out += comma;
        is_first = false;
        append_quoted(out, member.key);
        out += colon;
        dump_to(out, member.value, style);
      }
      out += '}';
      return;
    }
  }
}

std::string dump(const Value& value, Style style) {
  std::string out;
  dump_to(out, value, style);
  return out;
}

}  // namespace nibble::json
