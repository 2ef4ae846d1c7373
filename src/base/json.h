// JSON documents of requests, prompts and configs: ordered, bounded, and printed the way the prompt
// format wants. Integral numbers keep their token verbatim; floats print by Python's repr rule.
// Parsing is simdjson's, in json.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace nibble::json {

class Value;
struct Member;
using Array = std::vector<Value>;

// Members in insertion order with look-up by hash. Keys are unique.
class Object final {
 public:
  Object();
  Object(const Object&);
  Object(Object&&) noexcept;
  Object& operator=(const Object&);
  Object& operator=(Object&&) noexcept;
  ~Object();

  // False (and nothing changes) when the key is already present.
  bool insert(std::string key, Value value);
  // Inserts or replaces, keeping the member's place.
  void set(std::string key, Value value);
  bool erase(std::string_view key);

  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);

  size_t size() const;
  bool empty() const { return size() == 0; }
  const Member* begin() const;
  const Member* end() const;

 private:
  void rebuild_index();
  size_t probe(std::string_view key) const;

  std::vector<Member> members_;
  // Open addressing, member index + 1; empty while the object is small.
  std::vector<uint32_t> index_;
};

// An integral number as written, e.g. "-12" or "184467440737095516150".
struct Integer {
  std::string token;
};

enum class Kind { kNull, kBool, kInteger, kFloat, kString, kArray, kObject };

class Value final {
 public:
  Value() = default;                                        // null
  Value(std::nullptr_t) {}                                  // NOLINT
  Value(bool v) : data_(v) {}                               // NOLINT
  Value(int32_t v) : data_(Integer{std::to_string(v)}) {}   // NOLINT
  Value(int64_t v) : data_(Integer{std::to_string(v)}) {}   // NOLINT
  Value(uint64_t v) : data_(Integer{std::to_string(v)}) {}  // NOLINT
  Value(double v) : data_(v) {}                             // NOLINT
  Value(Integer v) : data_(std::move(v)) {}                 // NOLINT
  Value(const char* v) : data_(std::string(v)) {}           // NOLINT
  Value(std::string_view v) : data_(std::string(v)) {}      // NOLINT
  Value(std::string v) : data_(std::move(v)) {}             // NOLINT
  Value(Array v) : data_(std::move(v)) {}                   // NOLINT
  Value(Object v) : data_(std::move(v)) {}                  // NOLINT

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  // "null", "boolean", "integer", "number", "string", "array", "object".
  const char* kind_name() const;
  bool is_null() const { return kind() == Kind::kNull; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_array() const { return kind() == Kind::kArray; }
  bool is_object() const { return kind() == Kind::kObject; }
  bool is_number() const { return kind() == Kind::kInteger || kind() == Kind::kFloat; }

  // Typed views; nullptr or nullopt when the kind (or an integer's range) does not fit.
  const bool* as_bool() const { return std::get_if<bool>(&data_); }
  const Integer* as_integer() const { return std::get_if<Integer>(&data_); }
  std::optional<int64_t> as_int64() const;
  std::optional<double> as_double() const;  // integers too
  const std::string* as_string() const { return std::get_if<std::string>(&data_); }
  const Array* as_array() const { return std::get_if<Array>(&data_); }
  Array* as_array() { return std::get_if<Array>(&data_); }
  const Object* as_object() const { return std::get_if<Object>(&data_); }
  Object* as_object() { return std::get_if<Object>(&data_); }

  // The member `key` of an object, or nullptr (also when this is not an object).
  const Value* find(std::string_view key) const;

 private:
  std::variant<std::monostate, bool, Integer, double, std::string, Array, Object> data_;
};

struct Member {
  std::string key;
  Value value;
};

// Builds an object literal: make_object({{"id", 1}, {"name", "x"}}). Keys must be distinct.
Object make_object(std::vector<Member> members);

struct Limits {
  int32_t max_depth = 64;
  int64_t max_nodes = 1'000'000;  // values, containers included
  int64_t max_bytes = 64 << 20;
};

// Parses one JSON text (RFC 8259, UTF-8). kInvalidArgument names the fault and its place: syntax,
// depth, node or byte cap, duplicate key, invalid UTF-8, a number outside the double range or with
// an exponent of more than 64 bits.
Result<Value> parse(std::string_view text, const Limits& limits = {});

enum class Style {
  kPython,  // ", " and ": ": the form of Python's json.dumps(ensure_ascii=False), which prompts use
  kCompact,  // "," and ":": HTTP bodies
};

std::string dump(const Value& value, Style style);
void dump_to(std::string& out, const Value& value, Style style);
// Appends `text` as a JSON string with quotes, or as the inside of one. Ill-formed UTF-8 becomes
// U+FFFD.
void append_quoted(std::string& out, std::string_view text);
void append_escaped(std::string& out, std::string_view text);
// Python's repr of a finite float: shortest round trip, "1.0", "1e-05", "1e+16".
std::string python_repr(double value);

}  // namespace nibble::json
