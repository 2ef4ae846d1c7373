#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "text/detokenizer.h"

namespace nibble::text {
namespace {

const Path kSourceDir = NIBBLE_SOURCE_DIR;
const Path kUnpackedDir = Path(NIBBLE_BINARY_DIR) / "testdata/tokenizer";

std::string read_text(const Path& path) {
  auto text = read_file(path, 64 << 20);
  CHECK(text.ok()) << text.error().message;
  return *std::move(text);
}

std::unique_ptr<Tokenizer> parse_or_die(const Path& path) {
  auto tokenizer = parse_tokenizer(read_text(path), path.filename().string());
  CHECK(tokenizer.ok()) << tokenizer.error().message;
  return *std::move(tokenizer);
}

const Tokenizer& tiny_v4() {
  static const auto tokenizer = parse_or_die(kSourceDir / "models/tiny-v4/tokenizer.json");
  return *tokenizer;
}

const Tokenizer& deepseek_v3() {
  static const auto tokenizer = parse_or_die(kUnpackedDir / "deepseek_v3_tokenizer.json");
  return *tokenizer;
}

struct Vector {
  std::string text;
  std::vector<int32_t> ids;
  std::string decoded;
};

std::vector<Vector> read_vectors(std::string_view name) {
  auto document = json::parse(read_text(kSourceDir / "tests/data/tokenizer" / name));
  CHECK(document.ok()) << document.error().message;
  std::vector<Vector> vectors;
  for (const json::Value& entry : *document->as_array()) {
    Vector& v = vectors.emplace_back();
    v.text = *entry.find("text")->as_string();
    v.decoded = *entry.find("decoded")->as_string();
    for (const json::Value& id : *entry.find("ids")->as_array()) {
      v.ids.push_back(static_cast<int32_t>(*id.as_int64()));
    }
  }
  return vectors;
}

void expect_vectors(const Tokenizer& tokenizer, std::string_view name) {
  const auto vectors = read_vectors(name);
  EXPECT_GE(vectors.size(), 390U);
  for (const Vector& v : vectors) {
    const auto ids = tokenizer.encode_with_specials(v.text);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, v.ids) << v.text;
    const auto decoded = tokenizer.decode(v.ids);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(*decoded, v.decoded);
  }
}

TEST(Tokenizer, EncodesAndDecodesEveryTinyV4Vector) { expect_vectors(tiny_v4(), "tiny_v4.json"); }

TEST(Tokenizer, EncodesAndDecodesEveryDeepSeekV3Vector) {
  expect_vectors(deepseek_v3(), "deepseek_v3.json");
}

}  // namespace
}  // namespace nibble::text
