#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "cli/process_testing.h"

namespace nibble {
namespace {

using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProcessResult;
using testing::run_nibble;
using ::testing::StartsWith;

const std::string kModel = NIBBLE_SOURCE_DIR "/models/tiny-v4";

// A new empty directory for the running test.
Path make_directory() {
  const Path dir = ::testing::TempDir() + "nibble_cli_" +
                   ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  return dir;
}

std::string dump(const json::Value& value) { return json::dump(value, json::Style::kPython); }

json::Value read_json(const Path& path) {
  auto value = json::parse(*read_file(path, 1 << 26));
  EXPECT_TRUE(value.ok());
  return std::move(*value);
}

// The elements of an F32 or I32 tensor, and its shape.
template <class T>
std::pair<Shape, std::vector<T>> read_tensor(const Path& path, std::string_view name) {
  auto file = MappedFile::open(path);
  EXPECT_TRUE(file.ok());
  const auto bytes = file->bytes();
  const auto header = checkpoint::parse_safetensors_header(
      bytes, static_cast<int64_t>(bytes.size()), path.string());
  EXPECT_TRUE(header.ok());
  for (const checkpoint::StoredTensor& tensor : header->tensors) {
    if (tensor.meta.name != name) continue;
    std::vector<T> elements(static_cast<size_t>(tensor.end - tensor.begin) / sizeof(T));
    const auto data = bytes.subspan(static_cast<size_t>(tensor.begin));
    std::copy_n(
        data.begin(), elements.size() * sizeof(T), reinterpret_cast<std::byte*>(elements.data()));
    return {tensor.meta.shape, std::move(elements)};
  }
  ADD_FAILURE() << name << " is not in " << path;
  return {};
}

// Fills the data of a tensor with one byte.
void overwrite_tensor(const Path& path, std::string_view name, char byte) {
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  const auto header = checkpoint::parse_safetensors_header(
      file->bytes(), static_cast<int64_t>(file->bytes().size()), path.string());
  ASSERT_TRUE(header.ok());
  for (const checkpoint::StoredTensor& tensor : header->tensors) {
    if (tensor.meta.name != name) continue;
    std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(tensor.begin);
    out << std::string(static_cast<size_t>(tensor.end - tensor.begin), byte);
    return;
  }
  FAIL() << name << " is not in " << path;
}

// One line that begins as every error does, after at most the plan, and the exit code.
void expect_error(const ProcessResult& result, int exit_code, const std::string& text) {
  EXPECT_EQ(result.exit_code, exit_code) << result.errors;
  const size_t begin = result.errors.rfind("nibble: error");
  ASSERT_NE(begin, std::string::npos) << result.errors;
  EXPECT_THAT(result.errors.substr(begin),
              AnyOf(StartsWith("nibble: error: "), StartsWith("nibble: error[Q-")));
  EXPECT_THAT(result.errors, Not(HasSubstr("error: error")));
  EXPECT_THAT(result.errors.substr(0, begin), AnyOf("", StartsWith("plan: ")));
  const std::string error = result.errors.substr(begin);
  EXPECT_THAT(error, HasSubstr(text));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << result.errors;
  EXPECT_EQ(result.output, "");
}

TEST(Cli, PrintsItsVersionAndHelp) {
  const std::string version = run_nibble({"--version"}).output;
  EXPECT_THAT(version, StartsWith("nibble 0."));
  EXPECT_THAT(run_nibble({"version"}).output, StartsWith(version)) << "then the GPUs";
  const ProcessResult help = run_nibble({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, HasSubstr("Exit codes:"));
}

TEST(Cli, MapsFaultsToExitCodes) {
  expect_error(run_nibble({"generate", kModel, "--no-such-flag"}), 2, "--no-such-flag");
  expect_error(run_nibble({"generate", "owner/model"}), 4, "`nibble pull owner/model`");
  expect_error(run_nibble({"generate", "/no/such/dir"}), 4, "/no/such/dir");
  expect_error(run_nibble({"tokenize", "/no/such/dir"}), 4, "/no/such/dir");
}

// Spec "quantization" 3.7: every kind of weight on the kernel that it got, before anything runs.
TEST(Cli, TestsItsKernelsBeforeItAnswers) {
  const ProcessResult answer = run_nibble({"--log-level",
                                           "info",
                                           "generate",
                                           kModel,
                                           "The",
                                           "--max-tokens",
                                           "1",
                                           "--device",
                                           "cpu",
                                           "--nan-check"});
  EXPECT_EQ(answer.exit_code, 0) << answer.errors;
  EXPECT_THAT(answer.errors, HasSubstr("self-test of 33 kinds of weights passed"));
  EXPECT_THAT(answer.errors, HasSubstr("ready in "));
}

// The step of a GPU, on kernels that were tested like those of a CPU.
TEST(Cli, AnswersOnAnEmulatedGpu) {
  const ProcessResult answer = run_nibble({"--log-level",
                                           "info",
                                           "generate",
                                           kModel,
                                           "Hi",
                                           "--max-tokens",
                                           "4",
                                           "--device",
                                           "emulated",
                                           "--allow-reference"});
  EXPECT_EQ(answer.exit_code, 0) << answer.errors;
  EXPECT_EQ(answer.output,
            run_nibble({"generate", kModel, "Hi", "--max-tokens", "4", "--device", "cpu"}).output);
  EXPECT_THAT(answer.errors, HasSubstr("self-test of 33 kinds of weights passed"));
}

TEST(Cli, EscapesTextFromOutside) {
  expect_error(run_nibble({"generate", "/no/\x1b[2Jsuch\ndir"}), 4, "/no/\\x1b[2Jsuch\\x0adir");
}

TEST(Cli, TokenizesEveryVectorBothWays) {
  const Path dir = make_directory();  // tokenizer.json alone is enough
  std::filesystem::copy_file(kModel + "/tokenizer.json", dir / "tokenizer.json");
  const json::Value cases = read_json(NIBBLE_BINARY_DIR "/testdata/tokenizer/tiny_v4.json");
  json::Array texts;
  json::Array ids;
  json::Array decoded;
  for (const json::Value& element : *cases.as_array()) {
    texts.push_back(*element.find("text"));
    ids.push_back(*element.find("ids"));
    decoded.push_back(*element.find("decoded"));
  }
  ASSERT_GT(texts.size(), 100U);
  const ProcessResult encode = run_nibble({"tokenize", dir, "--json"}, {.input = dump(texts)});
  EXPECT_EQ(encode.output, dump(ids) + "\n");
  const ProcessResult decode =
      run_nibble({"tokenize", dir, "--json", "--decode"}, {.input = dump(ids)});
  EXPECT_EQ(decode.output, dump(decoded) + "\n");
}

TEST(Cli, TokenizeTreatsSpecialsAsTextWhenAsked) {
  const std::string input = "[\"<think>\"]";
  EXPECT_EQ(run_nibble({"tokenize", kModel, "--json"}, {.input = input}).output, "[[5]]\n");
  const ProcessResult plain =
      run_nibble({"tokenize", kModel, "--json", "--no-special"}, {.input = input});
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_NE(plain.output, "[[5]]\n");
  const ProcessResult back =
      run_nibble({"tokenize", kModel, "--json", "--decode"}, {.input = plain.output});
  EXPECT_EQ(back.output, input + "\n");
  EXPECT_EQ(
      run_nibble({"tokenize", kModel, "--json", "--decode", "--no-special"}, {.input = "[[5]]"})
          .output,
      "[\"\"]\n");
}

TEST(Cli, TokenizeNamesTheBadElement) {
  expect_error(run_nibble({"tokenize", kModel, "--json"}, {.input = "[\"a\", 5]"}), 2, "element 1");
  expect_error(run_nibble({"tokenize", kModel, "--json"}, {.input = "{}"}), 2, "expected an array");
  expect_error(
      run_nibble({"tokenize", kModel, "--json", "--decode"}, {.input = "[[4096]]"}), 2, "4096");
  expect_error(
      run_nibble({"tokenize", kModel, "--json", "--decode"}, {.input = "[[-1]]"}), 2, "element 0");
}

TEST(Cli, TokenizesPlainText) {
  const ProcessResult ids = run_nibble({"tokenize", kModel}, {.input = "Hello there"});
  EXPECT_EQ(run_nibble({"tokenize", kModel, "--decode"}, {.input = ids.output}).output,
            "Hello there");
}

TEST(Cli, WritesLogitsOfAllOrTheLastPositions) {
  const Path dir = make_directory();
  std::ofstream(dir / "ids.json") << "[0, 2850, 358, 2777, 292]";
  const std::vector<std::string> all = {
      "logits", kModel, "--ids", "0,2850,358,2777,292", "--mtp", "--output", dir / "all"};
  const std::vector<std::string> last = {"logits",
                                         kModel,
                                         "--ids-file",
                                         dir / "ids.json",
                                         "--last",
                                         "2",
                                         "--chunk",
                                         "2",
                                         "--output",
                                         dir / "last"};
  const ProcessResult first = run_nibble(all);
  ASSERT_EQ(first.exit_code, 0) << first.errors;
  ASSERT_EQ(run_nibble(last).exit_code, 0);
  const auto [shape, logits] = read_tensor<float>(dir / "all", "logits");
  EXPECT_EQ(shape, (Shape{5, 4096}));
  EXPECT_EQ(read_tensor<float>(dir / "all", "mtp_logits").first, (Shape{4, 4096}));
  const auto tail = read_tensor<float>(dir / "last", "logits");
  EXPECT_EQ(tail.first, (Shape{2, 4096}));
  EXPECT_TRUE(std::equal(tail.second.begin(), tail.second.end(), logits.end() - 2 * 4096));
}

TEST(Cli, ReplaysTheDecisionsThatItRecorded) {
  const Path dir = make_directory();
  const std::vector<std::string> common = {
      "logits", kModel, "--ids", "0,2850,358,2777,292,774,617", "--mtp"};
  auto record = common;
  record.insert(record.end(), {"--record", dir / "decisions", "--output", dir / "a"});
  auto replay = common;
  replay.insert(replay.end(), {"--replay", dir / "decisions", "--output", dir / "b"});
  ASSERT_EQ(run_nibble(record).exit_code, 0);
  ASSERT_EQ(run_nibble(replay).exit_code, 0);
  EXPECT_EQ(read_tensor<int32_t>(dir / "decisions", "layers.0.experts").first, (Shape{7, 6}));
  const auto selected = read_tensor<int32_t>(dir / "decisions", "layers.2.selected");
  EXPECT_EQ(selected.first[0], 7);
  EXPECT_EQ(selected.second.front(), -1) << "position 0 sees no entry";
  EXPECT_EQ(read_file(dir / "a", 1 << 26).value(), read_file(dir / "b", 1 << 26).value());
  expect_error(
      run_nibble({"logits", kModel, "--ids", "1", "--replay", dir / "a", "--output", dir / "c"}),
      5,
      "not written by --record");
}

TEST(Cli, LogitsRefusesBadIds) {
  const Path dir = make_directory();
  std::ofstream(dir / "bad.json") << "[1, \"2\"]";
  std::ofstream(dir / "object.json") << "{\"ids\": [1]}";
  const std::string out = dir / "out";
  expect_error(run_nibble({"logits", kModel, "--output", out}), 2, "--ids");
  expect_error(run_nibble({"logits", kModel, "--ids", "4096", "--output", out}), 2, "4096");
  expect_error(run_nibble({"logits", kModel, "--ids", "1,x", "--output", out}), 2, "--ids");
  expect_error(run_nibble({"logits", kModel, "--ids-file", dir / "bad.json", "--output", out}),
               2,
               "element 1");
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_EQ(
      run_nibble({"logits", kModel, "--ids-file", dir / "object.json", "--output", out}).exit_code,
      0);
}

TEST(Cli, GeneratesTheGoldenContinuation) {
  const ProcessResult result = run_nibble({"generate",
                                           kModel,
                                           "Alice was beginning to get very tired of",
                                           "--raw",
                                           "--precision",
                                           "reference",
                                           "--temperature",
                                           "0",
                                           "--max-tokens",
                                           "8"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const json::Value cases = read_json(NIBBLE_BINARY_DIR "/testdata/golden/tiny_v4/native.json");
  const std::string& expected = *cases.as_array()->front().find("greedy_text")->as_string();
  EXPECT_TRUE(expected.starts_with(result.output.substr(0, result.output.size() - 1)))
      << result.output;
  EXPECT_GT(result.output.size(), 20U);
  EXPECT_THAT(result.errors, HasSubstr("8 generated tokens at "));
  EXPECT_THAT(result.errors, HasSubstr("kernels: matmul."));
}

TEST(Cli, ReadsThePromptFromArgumentFileAndInput) {
  const Path dir = make_directory();
  const std::string question = "What is the capital of France?";
  std::ofstream(dir / "prompt") << question;
  const std::string answer = "The capital of France is Paris.\n";
  EXPECT_EQ(run_nibble({"generate", kModel, question, "--temperature", "0"}).output, answer);
  EXPECT_EQ(run_nibble({"generate", kModel, "--temperature", "0", "--prompt-file", dir / "prompt"})
                .output,
            answer);
  EXPECT_EQ(run_nibble({"generate", kModel, "--temperature", "0"}, {.input = question}).output,
            answer);
}

TEST(Cli, SameSeedSameText) {
  const std::vector<std::string> arguments = {
      "generate", kModel, "Tell me", "--temperature", "1.5", "--seed", "7", "--max-tokens", "12"};
  EXPECT_EQ(run_nibble(arguments).output, run_nibble(arguments).output);
}

TEST(Cli, StopsAtAStopString) {
  const ProcessResult result = run_nibble({"generate",
                                           kModel,
                                           "What is the capital of France?",
                                           "--temperature",
                                           "0",
                                           "--stop",
                                           " is Pa"});
  EXPECT_EQ(result.output, "The capital of France\n");
}

TEST(Cli, RefusesAPromptThatIsTooLong) {
  const ProcessResult result =
      run_nibble({"generate", kModel, "--max-context", "8"}, {.input = "one two three four five"});
  expect_error(result, 2, "context holds 8");
}

TEST(Cli, InterruptEndsAnAnswerCleanly) {
  const ProcessResult result =
      run_nibble({"generate", kModel, "Hi", "--ignore-eos", "--temperature", "0"},
                 {.signal = SIGINT, .signal_when = "Hi!"});
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_THAT(result.errors, EndsWith("nibble: error: interrupted\n"));
}

TEST(Cli, ChatsLineByLine) {
  const ProcessResult result = run_nibble(
      {"chat", kModel, "--temperature", "0"},
      {.input = "/help\nWhat is the capital of France?\n/reset\n/nonsense\n\n/quit\nnever read\n"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, StartsWith("/think "));
  EXPECT_THAT(result.output, EndsWith("The capital of France is Paris.\n"));
  EXPECT_THAT(result.errors, HasSubstr("unknown command"));
}

TEST(Cli, ShowsReasoningApart) {
  const ProcessResult result =
      run_nibble({"chat", kModel, "--temperature", "0", "--max-tokens", "200"},
                 {.input = "/think\nWhat is 47 + 38?\n"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, StartsWith("<think>"));
  EXPECT_THAT(result.output, HasSubstr("</think>\n"));
}

TEST(Cli, ChecksTheBundledModel) {
  const ProcessResult result = run_nibble({"check", kModel});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("headers and sizes agree"));
  EXPECT_THAT(result.output, HasSubstr("all finite"));
  EXPECT_THAT(result.output, HasSubstr("mean KL"));
  EXPECT_THAT(result.output, HasSubstr("against f32 arithmetic in scalar kernels"));
  EXPECT_THAT(result.output, HasSubstr("kinds of weights against the scalar reference"));
  EXPECT_THAT(result.output, HasSubstr("memory   weights "));
}

TEST(Cli, LogitsThatAreNotFiniteNameTheirPosition) {
  const Path dir = make_directory();
  std::filesystem::copy(kModel, dir, std::filesystem::copy_options::recursive);
  // The largest BF16 values: their sums overflow.
  overwrite_tensor(dir / "model-00001-of-00003.safetensors", "head.weight", '\x7F');
  const std::vector<std::string> logits = {"logits", dir, "--ids", "1,2,3", "--output", dir / "o"};
  expect_error(run_nibble(logits), 5, "logits of position 0: token 0 has ");
  std::vector<std::string> last = logits;
  last.insert(last.end(), {"--last", "1"});
  expect_error(run_nibble(last), 5, "logits of position 2: token 0 has ");
  EXPECT_FALSE(std::filesystem::exists(dir / "o"));
}

TEST(Cli, CheckFindsDamage) {
  const Path dir = make_directory();
  std::filesystem::copy(kModel, dir, std::filesystem::copy_options::recursive);
  const Path shard = dir / "model-00003-of-00003.safetensors";
  overwrite_tensor(shard, "norm.weight", '\xFF');  // NaN, as BF16
  const ProcessResult nan = run_nibble({"check", dir});
  EXPECT_EQ(nan.exit_code, 5) << nan.output << nan.errors;
  EXPECT_THAT(nan.errors, HasSubstr("tensor norm.weight: element 0 of BF16 [256] is NaN"));
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  expect_error(run_nibble({"check", dir}), 5, "model-00003-of-00003.safetensors");
}

TEST(Cli, CheckReadsTheGenerationConfig) {
  const Path dir = make_directory();
  std::filesystem::copy(kModel, dir, std::filesystem::copy_options::recursive);
  std::ofstream(dir / "generation_config.json") << "{";
  expect_error(run_nibble({"check", dir}), 5, "generation_config.json");
}

TEST(Cli, ChecksModelsOfAShortContext) {
  const Path dir = make_directory();
  std::filesystem::copy(kModel, dir, std::filesystem::copy_options::recursive);
  std::string config = *read_file(dir / "config.json", 1 << 20);
  const std::string_view key = "\"max_position_embeddings\": 16384";
  ASSERT_NE(config.find(key), std::string::npos);
  config.replace(config.find(key), key.size(), "\"max_position_embeddings\": 7");
  std::ofstream(dir / "config.json") << config;
  const ProcessResult result = run_nibble({"check", dir});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  expect_error(run_nibble({"logits", dir, "--ids", "1,2,3,4,5,6,7,8", "--output", dir / "o"}),
               3,
               "Q-M2] a context of 8 tokens was asked for; expected at most 7");
}

TEST(Cli, FindsPipesInPlaceOfFiles) {
  for (const char* name : {"config.json", "tokenizer.json", "model-00002-of-00003.safetensors"}) {
    const Path dir = make_directory();
    std::filesystem::copy(kModel, dir, std::filesystem::copy_options::recursive);
    std::filesystem::remove(dir / name);
    ASSERT_EQ(::mkfifo((dir / name).c_str(), 0600), 0);
    const ProcessResult result = run_nibble({"generate", dir, "Hello"});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_THAT(result.errors, HasSubstr(std::string(name) + ": is not a regular file"));
  }
}

TEST(Cli, RefusesOutputsBeforeItLoads) {
  const Path dir = make_directory();
  expect_error(run_nibble({"logits", "/no/model", "--ids", "1", "--output", dir}),
               2,
               "a directory or device");
  expect_error(run_nibble({"logits", "/no/model", "--ids", "1", "--output", dir / "no" / "o"}),
               4,
               "cannot create");
}

TEST(Cli, NamesTheSourceOfBadJson) {
  const Path dir = make_directory();
  std::ofstream(dir / "ids.json") << "[1,";
  expect_error(
      run_nibble({"logits", kModel, "--ids-file", dir / "ids.json", "--output", dir / "o"}),
      2,
      "ids.json: JSON: ");
  expect_error(
      run_nibble({"tokenize", kModel, "--json"}, {.input = "["}), 2, "standard input: JSON: ");
}

TEST(Cli, ChatTakesLinesThatEndLikeThoseOfWindows) {
  const ProcessResult result = run_nibble({"chat", kModel}, {.input = "/reset\r\n/quit\r\n"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.errors, Not(HasSubstr("unknown command")));
}

TEST(Cli, ServesUntilSigterm) {
  const ProcessResult result =
      run_nibble({"serve", kModel, "--port", "0"},
                 {.signal = SIGTERM, .signal_when = "listening on 127.0.0.1:"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
}

TEST(Cli, ServesOtherAddressesWithKeysOnly) {
  // Told before the model is looked at.
  expect_error(run_nibble({"serve", "/no/model", "--host", "0.0.0.0"}), 2, "--api-key-file");
  expect_error(run_nibble({"serve", "/no/model", "--api-key-file", "/no/keys"}), 4, "/no/keys");
}

TEST(Cli, ShowsTheDemo) {
  const ProcessResult result = run_nibble({"demo", kModel});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("The capital of France is Paris."));
  EXPECT_THAT(result.output, HasSubstr("tok/s"));
  EXPECT_THAT(result.output, HasSubstr("kernels: "));
}

}  // namespace
}  // namespace nibble
