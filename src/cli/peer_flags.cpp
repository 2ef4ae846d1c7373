#include "cli/peer_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace nibble::cli {
namespace {

using enum PeerEffect;

constexpr std::string_view kOneDevice = "one process serves on one device";
constexpr std::string_view kOneHost = "one process serves on one host";
constexpr std::string_view kKernels =
    "kernels are chosen by a table; nibble plan shows them, --kernel narrows the choice";
constexpr std::string_view kNoGraphs = "the CPU has no graphs to capture";
constexpr std::string_view kNoDraft = "drafts are not used yet";
constexpr std::string_view kDetected = "formats are read from the checkpoint; see nibble plan";
constexpr std::string_view kNoTls = "put a TLS proxy in front";
constexpr std::string_view kPrivacy = "prompts are never logged";

// clang-format off
constexpr PeerFlag kTable[] = {
    // Model
    {"--model-path --model", kApplied, true, {}, "MODEL"},
    {"--tokenizer-path --tokenizer", kRefused, true, {}, {}, "the tokenizer is the checkpoint's"},
    {"--tokenizer-mode", kHarmless, true, "auto deepseek_v4", {}, "the tokenizer is the checkpoint's"},
    {"--revision", kRefused, true, {}, {}, "serve reads a directory; nibble pull ORG/NAME@REVISION pins one"},
    {"--download-dir", kRefused, true, {}, {}, "serve downloads nothing; see nibble pull --cache-dir"},
    {"--load-format", kApplied, true, "auto safetensors", "--load-format checkpoint"},
    {"--load-format", kApplied, true, {}, "--load-format"},
    {"--trust-remote-code", kHarmless, false, {}, {}, "no code of a checkpoint is ever run"},
    {"--quantization -q", kRefused, true, {}, {}, kDetected},
    {"--dtype", kHarmless, true, "auto bfloat16", {}, kDetected},
    {"--context-length --max-model-len", kApplied, true, {}, "--max-context"},
    // Network
    {"--api-key", kRefused, true, {}, {}, "others can see a command line; put keys into a file: --api-key-file"},
    {"--admin-api-key", kRefused, true, {}, {}, "others can see a command line; put keys into a file: --admin-api-key-file"},
    {"--ssl-keyfile --ssl-certfile --ssl-ca-certs", kRefused, true, {}, {}, kNoTls},
    {"--shutdown-timeout", kApplied, true, {}, "--shutdown-seconds"},
    // Parallelism
    {"--tp --tp-size -tp --tensor-parallel-size", kHarmless, true, "1", {}, kOneDevice},
    {"--pp --pp-size -pp --pipeline-parallel-size", kHarmless, true, "1", {}, kOneDevice},
    {"--dp --dp-size -dp --data-parallel-size", kHarmless, true, "1", {}, kOneDevice},
    {"--ep --ep-size", kHarmless, true, "1", {}, kOneDevice},
    {"--enable-dp-attention --enable-dp-lm-head --enable-expert-parallel", kHarmless, false, {}, {}, kOneDevice},
    {"--moe-a2a-backend --all2all-backend", kHarmless, true, "none", {}, kOneDevice},
    {"--disable-custom-all-reduce", kHarmless, false, {}, {}, kOneDevice},
    {"--nnodes", kHarmless, true, "1", {}, kOneHost},
    {"--node-rank", kHarmless, true, "0", {}, kOneHost},
    {"--dist-init-addr --master-addr --master-port", kRefused, true, {}, {}, kOneHost},
    // Memory and scheduling
    {"--mem-fraction-static", kApplied, true, {}, "--gpu-memory-utilization"},
    {"--num-gpu-blocks-override", kRefused, true, {}, {}, "pages have 256 tokens here: --max-total-tokens"},
    {"--max-num-seqs", kApplied, true, {}, "--max-running-requests"},
    {"--max-num-queued-reqs", kApplied, true, {}, "--max-queued-requests"},
    {"--max-num-queued-tokens", kRefused, true, {}, {}, "the queue is bounded by --max-queued-requests"},
    {"--chunked-prefill-size --max-num-batched-tokens", kApplied, true, {}, "--prefill-chunk-tokens"},
    {"--max-prefill-tokens --long-prefill-token-threshold", kRefused, true, {}, {}, "a step is bounded by --prefill-chunk-tokens"},
    {"--enable-chunked-prefill", kHarmless, false, {}, {}, "prompts are always computed in chunks"},
    {"--prefill-decode-interval", kHarmless, true, "0", {}, "--max-itl-ms protects streams from prompts"},
    {"--enable-prefill-delayer", kRefused, false, {}, {}, "--max-itl-ms protects streams from prompts"},
    {"--schedule-policy", kHarmless, true, "fcfs", {}, "requests start in order of arrival and priority"},
    {"--scheduling-policy", kHarmless, true, "fcfs priority", {}, "requests start in order of arrival and priority"},
    {"--schedule-conservativeness", kHarmless, true, "1 1.0", {}, "admission can never overrun the memory"},
    {"--page-size --block-size", kHarmless, true, "256", {}, "the model's attention wants pages of 256 tokens"},
    {"--kv-cache-dtype", kApplied, true, "auto", "--kv-cache-dtype auto"},
    {"--kv-cache-dtype", kApplied, true, "bf16 bfloat16", "--kv-cache-dtype bf16"},
    {"--kv-cache-dtype", kApplied, true, "fp8 fp8_e4m3 fp8_ds_mla", "--kv-cache-dtype fp8"},
    {"--kv-cache-dtype", kRefused, true, {}, {}, "keys are cached as auto, bf16 or fp8 (E4M3); two mantissa bits (E5M2) and FP4 lose too much of the vectors, float16 their range"},
    {"--swa-full-tokens-ratio", kHarmless, true, {}, {}, "computed from the model"},
    {"--disable-overlap-schedule --async-scheduling", kHarmless, false, {}, {}, "with one device there is nothing to overlap"},
    {"--stream-interval", kHarmless, true, "1", {}, "every token is sent when it is there"},
    {"--sleep-on-idle", kHarmless, false, {}, {}, "an idle engine always sleeps"},
    // Prefix cache
    {"--enable-prefix-caching", kHarmless, false, {}, {}, "on unless --no-prefix-cache"},
    {"--disable-radix-cache --no-enable-prefix-caching", kApplied, false, {}, "--no-prefix-cache"},
    {"--radix-eviction-policy", kHarmless, true, "lru", {}, "least recently used first"},
    {"--prefix-cache-retention-interval", kRefused, true, {}, {}, "least recently used first"},
    {"--enable-hierarchical-cache", kRefused, false, {}, {}, "see --kv-host-mb and --kv-disk-dir"},
    {"--hicache-ratio --hicache-size --hicache-write-policy --hicache-storage-backend --kv-offloading-size", kRefused, true, {}, {}, "see --kv-host-mb and --kv-disk-dir"},
    // Kernels
    {"--moe-runner-backend --moe-backend --fp8-gemm-backend --fp4-gemm-backend --linear-backend", kHarmless, true, "auto", {}, kKernels},
    {"--attention-backend --prefill-attention-backend --decode-attention-backend", kHarmless, true, "auto", {}, kKernels},
    {"--disable-cuda-graph --enforce-eager", kHarmless, false, {}, {}, kNoGraphs},
    {"--cuda-graph-max-bs --max-cudagraph-capture-size", kHarmless, true, {}, {}, kNoGraphs},
    {"--disable-flashinfer-autotune", kHarmless, false, {}, {}, kKernels},
    {"--compilation-config", kRefused, true, {}, {}, kNoGraphs},
    // Speculation
    {"--speculative-algorithm --speculative-config", kRefused, true, {}, {}, kNoDraft},
    {"--speculative-draft-model-path --speculative-num-steps --speculative-eagle-topk --speculative-num-draft-tokens --speculative-dspark-block-size --speculative-dspark-sps-table-path", kRefused, true, {}, {}, kNoDraft},
    // Disaggregation
    {"--disaggregation-mode", kHarmless, true, "null", {}, kOneHost},
    {"--disaggregation-transfer-backend --disaggregation-ib-device --disaggregation-bootstrap-port --kv-transfer-config --kv-events-config", kRefused, true, {}, {}, kOneHost},
    // Protocol
    {"--reasoning-parser", kHarmless, true, "deepseek-v4 deepseek_v4", {}, "the checkpoint's format is always parsed"},
    {"--tool-call-parser", kHarmless, true, "deepseekv4 deepseek_v4", {}, "the checkpoint's format is always parsed"},
    {"--enable-auto-tool-choice", kHarmless, false, {}, {}, "tools are always on"},
    {"--chat-template", kRefused, true, {}, {}, "the model's chat format is built in"},
    {"--default-chat-template-kwargs", kApplied, true, R"({"thinking":true} {"enable_thinking":true})", "--think"},
    {"--default-chat-template-kwargs", kHarmless, true, R"({"thinking":false} {"enable_thinking":false})", {}, "as without --think; other keys are refused"},
    {"--grammar-backend", kHarmless, true, "auto", {}, "one implementation is built in"},
    {"--structured-outputs-config", kRefused, true, {}, {}, "one implementation is built in"},
    {"--sampling-defaults", kHarmless, true, "model", {}, "generation_config.json is the default"},
    {"--sampling-defaults", kApplied, true, "openai", "--temperature 1 --top-p 1"},
    {"--generation-config", kHarmless, true, "auto", {}, "generation_config.json is the default"},
    {"--generation-config", kApplied, true, "vllm", "--temperature 1 --top-p 1"},
    {"--random-seed --seed", kRefused, true, {}, {}, "requests choose their seed; without one it is random"},
    // Observation
    {"--enable-metrics --enable-cache-report", kHarmless, false, {}, {}, "always on"},
    {"--log-requests --enable-log-requests", kApplied, false, {}, "--log-level info"},
    {"--log-requests-level", kHarmless, true, "0 1", {}, kPrivacy},
    {"--log-requests-format", kHarmless, true, "json", {}, "one line of JSON per request"},
    {"--decode-log-interval", kHarmless, true, {}, {}, "see /metrics"},
    {"--disable-uvicorn-access-log --disable-log-stats --no-enable-log-requests --disable-log-requests", kHarmless, false, {}, {}, "only --log-level decides what is logged"},
    {"--enable-trace", kRefused, false, {}, {}, "traces are not exported"},
    {"--otlp-traces-endpoint", kRefused, true, {}, {}, "traces are not exported"},
    // Start
    {"--skip-server-warmup", kHarmless, false, {}, {}, "there is no warm-up"},
    {"--warmups", kRefused, true, {}, {}, "there is no warm-up"},
};
// clang-format on

// The parts of `text` between blanks.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

bool has_word(std::string_view words, std::string_view word) {
  const std::vector<std::string_view> parts = split(words);
  return std::find(parts.begin(), parts.end(), word) != parts.end();
}

// JSON is compared without its blanks.
std::string without_blanks(std::string_view text) {
  std::string out(text);
  out.erase(std::remove(out.begin(), out.end(), ' '), out.end());
  return out;
}

// "--name" or "-n" of an argument, with '-' for '_' in long ones.
std::string flag_name(std::string_view argument) {
  std::string name(argument.substr(0, argument.find('=')));
  if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// All rows of a flag, in the table's order.
std::vector<const PeerFlag*> rows_of(std::string_view name) {
  std::vector<const PeerFlag*> rows;
  for (const PeerFlag& row : kTable) {
    if (has_word(row.spellings, name)) rows.push_back(&row);
  }
  return rows;
}

// Shows the value only where others would do: it may be a secret.
Error refusal(std::string_view name, std::string_view value, const PeerFlag& row) {
  if (row.values.empty()) {
    return invalid_argument(fmt::format("{} cannot take effect here: {}", name, row.note));
  }
  const std::string_view why = row.note.empty() ? "the value is unknown" : row.note;
  return invalid_argument(fmt::format(
      "{} {} cannot take effect here: {} (understood: {})", name, value, why, row.values));
}

class Translator final {
 public:
  Result<TranslatedArguments> translate(std::span<const std::string> arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& argument = arguments[i];
      const std::string name = flag_name(argument);
      const std::vector<const PeerFlag*> rows =
          argument.starts_with('-') ? rows_of(name) : std::vector<const PeerFlag*>();
      if (rows.empty()) {
        result_.arguments.push_back(argument);
        continue;
      }
      std::string value;
      if (rows.front()->takes_value) {
        const size_t equals = argument.find('=');
        if (equals == std::string::npos && i + 1 == arguments.size()) {
          return invalid_argument(fmt::format("{} needs a value", name));
        }
        value = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
      }
      TRY(apply(name, value, rows));
    }
    return std::move(result_);
  }

 private:
  Result<void> apply(const std::string& name,
                     const std::string& value,
                     const std::vector<const PeerFlag*>& rows) {
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const PeerFlag* candidate) {
      return candidate->values.empty() || has_word(candidate->values, without_blanks(value));
    });
    if (row == rows.end()) return refusal(name, value, *rows.back());
    switch ((*row)->effect) {
      case kApplied:
        replace(name, value, **row);
        return {};
      case kHarmless:
        result_.notes.push_back(fmt::format("{}: nothing to do; {}", name, (*row)->note));
        return {};
      case kRefused:
        break;
    }
    return refusal(name, value, **row);
  }

  void replace(const std::string& name, const std::string& value, const PeerFlag& row) {
    std::vector<std::string>& out = result_.arguments;
    const bool is_positional = row.native == "MODEL";
    if (!is_positional) {
      for (const std::string_view part : split(row.native)) out.emplace_back(part);
    }
    if (row.takes_value && row.values.empty()) out.push_back(value);
    if (row.native == name) return;
    result_.notes.push_back(fmt::format("{}: here {}", name, row.native));
  }

  TranslatedArguments result_;
};

std::string_view effect_name(PeerEffect effect) {
  switch (effect) {
    case kApplied:
      return "applied";
    case kHarmless:
      return "harmless";
    case kRefused:
      return "refused";
  }
  return "refused";
}

// Breaks `words` into lines of at most 98 columns behind an indentation of two.
std::string wrap(const std::vector<std::string>& words) {
  constexpr size_t kColumns = 98;
  std::string text;
  std::string line = " ";
  for (const std::string& word : words) {
    if (line.size() + 1 + word.size() > kColumns) {
      text += line + "\n";
      line = " ";
    }
    line += " " + word;
  }
  return text + line + "\n";
}

std::string quoted(std::string_view words) {
  std::string text;
  for (const std::string_view word : split(words)) {
    fmt::format_to(std::back_inserter(text), "{}`{}`", text.empty() ? "" : ", ", word);
  }
  return text;
}

}  // namespace

std::span<const PeerFlag> peer_flags() { return kTable; }

Result<TranslatedArguments> translate_peer_flags(std::span<const std::string> arguments) {
  return Translator().translate(arguments);
}

std::string peer_flags_markdown() {
  std::string text =
      "# Flags of other servers\n\n"
      "`nibble serve` takes these spellings of SGLang and vLLM on the command line, besides its "
      "own "
      "flags.\nGenerated by `nibble flags --markdown`.\n\n"
      "* applied: acts as the flag of ours that is named; a note at start says so.\n"
      "* harmless: says what is so anyway; a note at start says so.\n"
      "* refused: cannot take effect, so the server does not start (exit code 2). Values that are "
      "not listed are\n  refused, too.\n\n"
      "| flag | values | here | |\n|---|---|---|---|\n";
  for (const PeerFlag& row : kTable) {
    const std::string values = !row.values.empty() ? quoted(row.values)
                               : row.takes_value   ? "any"
                                                   : "";
    const std::string native =
        row.effect == kApplied ? fmt::format("`{}`", row.native) : std::string(row.note);
    fmt::format_to(std::back_inserter(text),
                   "| {} | {} | {} | {} |\n",
                   quoted(row.spellings),
                   values,
                   effect_name(row.effect),
                   native);
  }
  return text;
}

std::string peer_flags_help() {
  std::string text = "Flags of SGLang and vLLM (docs/serve-flags.md has the values and reasons)\n";
  for (const PeerEffect effect : {kApplied, kHarmless, kRefused}) {
    std::vector<std::string> words;
    for (const PeerFlag& row : kTable) {
      if (row.effect != effect) continue;
      for (const std::string_view spelling : split(row.spellings)) {
        const bool is_known = std::find(words.begin(), words.end(), spelling) != words.end();
        if (!is_known) words.emplace_back(spelling);
      }
    }
    fmt::format_to(std::back_inserter(text), "{}:\n{}", effect_name(effect), wrap(words));
  }
  return text;
}

}  // namespace nibble::cli
