#include "cli/command_line.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/bench_flags.h"
#include "cli/exit_codes.h"
#include "cli/peer_flags.h"
#include "cli/version.h"

namespace nibble::cli {
namespace {

constexpr int32_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxConfigBytes = 1 << 20;

template <class T>
struct Named {
  std::string_view name;
  T value;
};

constexpr Named<models::Precision> kPrecisions[] = {
    {"default", models::Precision::kDefault},
    {"reference", models::Precision::kReference},
    {"faithful", models::Precision::kFaithful},
};
constexpr Named<models::KvDtype> kKvDtypes[] = {
    {"auto", models::KvDtype::kAuto},
    {"bf16", models::KvDtype::kBf16},
    {"bfloat16", models::KvDtype::kBf16},
    {"fp8", models::KvDtype::kFp8},
    {"fp8_e4m3", models::KvDtype::kFp8},
    {"fp8_ds_mla", models::KvDtype::kFp8},
};
constexpr Named<Prefault> kPrefaults[] = {
    {"auto", Prefault::kAuto},
    {"on", Prefault::kOn},
    {"off", Prefault::kOff},
};
constexpr Named<device::IsaLevel> kIsaLevels[] = {
    {"native", device::IsaLevel::kNative},
    {"scalar", device::IsaLevel::kScalar},
    {"avx2", device::IsaLevel::kAvx2},
    {"avx512", device::IsaLevel::kAvx512},
};
constexpr Named<tools::CheckpointFormat> kConvertFormats[] = {
    {"native", tools::CheckpointFormat::kNative},
    {"nvfp4", tools::CheckpointFormat::kNvfp4},
    {"int4", tools::CheckpointFormat::kInt4},
};
constexpr Named<tools::CheckpointFormat> kSynthFormats[] = {
    {"native", tools::CheckpointFormat::kNative},
    {"nvfp4", tools::CheckpointFormat::kNvfp4},
    {"int4", tools::CheckpointFormat::kInt4},
    {"bf16", tools::CheckpointFormat::kBf16},
};
constexpr Named<LoadFormat> kLoadFormats[] = {
    {"checkpoint", LoadFormat::kCheckpoint},
    {"dummy", LoadFormat::kDummy},
};
constexpr Named<engine::Goal> kGoals[] = {
    {"latency", engine::Goal::kLatency},
    {"throughput", engine::Goal::kThroughput},
};
constexpr Named<bool> kActivationScales[] = {{"stored", false}, {"dynamic", true}};
constexpr Named<quant::ExpertDtype> kExpertDtypes[] = {
    {"stored", quant::ExpertDtype::kAsStored},
    {"fp4", quant::ExpertDtype::kFp4},
    {"fp8", quant::ExpertDtype::kFp8},
};
constexpr Named<LogLevel> kLogLevels[] = {
    {"warning", LogLevel::kWarning},
    {"debug", LogLevel::kDebug},
    {"info", LogLevel::kInfo},
    {"error", LogLevel::kError},
    {"off", LogLevel::kOff},
};

template <class T, size_t kSize>
const Named<T>* find_choice(const Named<T> (&choices)[kSize], std::string_view name) {
  const auto* found = std::find_if(std::begin(choices),
                                   std::end(choices),
                                   [&](const Named<T>& choice) { return choice.name == name; });
  return found == std::end(choices) ? nullptr : found;
}

// A flag whose value is one of a table's names. Its default is the table's first entry.
template <class T, size_t kSize>
CLI::Option* add_choice(CLI::App& app,
                        const std::string& flag,
                        T& target,
                        const Named<T> (&choices)[kSize],
                        const std::string& help) {
  std::string names;
  for (const Named<T>& choice : choices) {
    names += names.empty() ? "" : "|";
    names += choice.name;
  }
  const auto check = [&choices, names](const std::string& text) {
    if (find_choice(choices, text) != nullptr) return std::string();
    return fmt::format("\"{}\" is none of {}", text, names);
  };
  const auto assign = [&choices, &target](const std::string& text) {
    target = find_choice(choices, text)->value;
  };
  return app.add_option_function<std::string>(flag, assign, help)
      ->check(check)
      ->type_name(names)
      ->default_str(std::string(choices[0].name));
}

// CLI::Range without its text in the help.
CLI::Validator range(int32_t min, int32_t max) { return CLI::Range(min, max).description(""); }

// Parses all of `text`.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The whole text is a number. The library alone takes "" for 0.
template <class T>
CLI::Validator number() {
  const auto check = [](const std::string& text) {
    return parse_number<T>(text) ? std::string() : fmt::format("\"{}\" is no number", text);
  };
  return CLI::Validator(check, "");
}

// The library's ranges let NaN through.
CLI::Validator number_within(float min, float max) {
  const auto check = [min, max](const std::string& text) {
    const std::optional<float> value = parse_number<float>(text);
    if (value && *value >= min && *value <= max) return std::string();
    return fmt::format("\"{}\" is no number from {} to {}", text, min, max);
  };
  return CLI::Validator(check, "");
}

CLI::Validator not_empty() {
  const auto check = [](const std::string& text) {
    return text.empty() ? std::string("the text is empty") : std::string();
  };
  return CLI::Validator(check, "");
}

// "1,2,3"
std::optional<std::vector<int32_t>> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  while (true) {
    const size_t comma = text.find(',');
    const auto id = parse_number<int32_t>(text.substr(0, comma));
    if (!id) return std::nullopt;
    ids.push_back(*id);
    if (comma == std::string_view::npos) return ids;
    text.remove_prefix(comma + 1);
  }
}

// "ID:BIAS"
std::optional<std::pair<int32_t, float>> parse_logit_bias(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto token_id = parse_number<int32_t>(text.substr(0, colon));
  const auto bias = parse_number<float>(text.substr(colon + 1));
  if (!token_id || !bias) return std::nullopt;
  return std::pair(*token_id, *bias);
}

void add_checks(CLI::App& app, PlanChecks& flags) {
  const char* group = "Checks";
  app.add_flag("--strict", flags.strict, "Overruled declarations and unmatched patterns are errors")
      ->group(group);
  app.add_flag("--trust-headers",
               flags.trust_headers,
               "Warn instead of stopping where files contradict the stored bytes")
      ->group(group);
  add_choice(app,
             "--act-scale",
             flags.dynamic_activation_scales,
             kActivationScales,
             "Scales of NVFP4 activations")
      ->group(group);
  add_choice(app,
             "--expert-dtype",
             flags.expert_dtype,
             kExpertDtypes,
             "What routed experts must be; refused where they are stored otherwise")
      ->group(group);
  app.add_option("--allow-slow", flags.allow_slow, "Module class that may run on a slower kernel")
      ->check(not_empty())
      ->type_name("CLASS")
      ->allow_extra_args(false)
      ->group(group);
  app.add_flag("--allow-reference",
               flags.allow_reference,
               "Run on the scalar reference where nothing else takes the work: very slow")
      ->group(group);
  app.add_option("--without-kernel",
                 flags.without_kernel,
                 "As if no kernel whose name contains TEXT were built")
      ->check(not_empty())
      ->type_name("TEXT")
      ->group(group);
}

void add_isa(CLI::App& app, device::IsaLevel& isa, const char* group) {
  add_choice(app, "--isa", isa, kIsaLevels, "Highest CPU instruction set that kernels may use")
      ->group(group);
}

void add_kv_dtype(CLI::App& app, models::KvDtype& kv_dtype, const char* group) {
  add_choice(app,
             "--kv-cache-dtype",
             kv_dtype,
             kKvDtypes,
             "How keys are cached; fp8 takes about half the memory of bf16")
      ->group(group);
}

void add_device(CLI::App& app, ModelFlags& flags, const char* group) {
  static constexpr const char* kDevices = "auto|cpu|cuda[:N]|emulated";
  const auto check = [](const std::string& text) {
    if (parse_device_choice(text)) return std::string();
    return fmt::format("\"{}\" is none of {}", text, kDevices);
  };
  const auto assign = [&flags](const std::string& text) {
    flags.device = *parse_device_choice(text);
  };
  app.add_option_function<std::string>(
         "--device",
         assign,
         "Where the model runs; auto: a GPU where there is one; emulated: a GPU's step on the CPU, "
         "for tests, with --allow-reference")
      ->check(check)
      ->type_name(kDevices)
      ->default_str("auto")
      ->group(group);
  app.add_option("--gpu-memory-utilization",
                 flags.gpu_memory_share,
                 "Most of the GPU's memory to use, weights included; absent: what is free")
      ->check(number<double>())
      ->type_name("X")
      ->group(group);
}

void add_model(CLI::App& app, ModelFlags& flags) {
  app.add_option("model", flags.model, "Directory of a checkpoint")->required()->type_name("MODEL");
  const char* group = "Model";
  add_device(app, flags, group);
  app.add_option("--threads", flags.threads, "CPU threads; 0: one per physical core")
      ->check(range(0, 1024))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  CLI::Option* load_format =
      add_choice(app,
                 "--load-format",
                 flags.load_format,
                 kLoadFormats,
                 "dummy: random weights of the shapes in MODEL/config.json, for measuring")
          ->group(group);
  app.add_option(
         "--num-layers-override", flags.num_layers_override, "Layers of dummy weights; 0: all")
      ->check(range(0, kMaxInt32))
      ->type_name("N")
      ->needs(load_format)
      ->group(group);
  add_isa(app, flags.isa, group);
  add_choice(app, "--precision", flags.precision, kPrecisions, "Arithmetic of activations and KV")
      ->group(group);
  add_kv_dtype(app, flags.kv_dtype, group);
  app.add_flag("--deterministic",
               flags.deterministic,
               "Only kernels whose results do not depend on batch neighbours")
      ->group(group);
  app.add_option("--kernel", flags.kernel, "Only kernels whose name contains TEXT")
      ->type_name("TEXT")
      ->group(group);
  app.add_flag("--nan-check",
               flags.nan_check,
               "Stop at the first layer whose output is not finite, name it: slower, CPU only")
      ->group(group);
  add_checks(app, flags.checks);
}

void add_context(CLI::App& app, ModelFlags& flags) {
  app.add_option(
         "--max-context", flags.max_context, "Tokens per sequence; 0: what model and memory allow")
      ->check(range(0, kMaxInt32))
      ->type_name("N")
      ->capture_default_str()
      ->group("Model");
}

void add_sampling(CLI::App& app, SamplingFlags& flags) {
  const char* group = "Sampling (defaults: the model's generation_config.json)";
  app.add_option("--temperature", flags.temperature, "0: always the most probable token")
      ->check(number<float>())
      ->type_name("X")
      ->group(group);
  app.add_option("--top-p", flags.top_p, "Keep the smallest set of tokens with this share")
      ->check(number<float>())
      ->type_name("X")
      ->group(group);
  app.add_option("--top-k", flags.top_k, "Keep the N most probable tokens; 0: all")
      ->check(number<int32_t>())
      ->type_name("N")
      ->group(group);
  app.add_option("--min-p", flags.min_p, "Drop tokens below X times the most probable one")
      ->check(number<float>())
      ->type_name("X")
      ->group(group);
  app.add_option(
         "--presence-penalty", flags.presence_penalty, "Subtracted once for tokens in the output")
      ->check(number<float>())
      ->type_name("X")
      ->group(group);
  app.add_option(
         "--frequency-penalty", flags.frequency_penalty, "Subtracted per occurrence in the output")
      ->check(number<float>())
      ->type_name("X")
      ->group(group);
  app.add_option("--repetition-penalty",
                 flags.repetition_penalty,
                 "Divides positive logits of tokens in prompt and output")
      ->check(number<float>())
      ->type_name("X")
      ->group(group);
  const auto check_bias = [](const std::string& text) {
    return parse_logit_bias(text) ? std::string() : "\"" + text + "\" is not ID:BIAS";
  };
  const auto add_biases = [&flags](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) flags.logit_bias.push_back(*parse_logit_bias(text));
  };
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias", add_biases, "Added to the logit of a token; may be repeated")
      ->check(check_bias)
      ->allow_extra_args(false)
      ->type_name("ID:BIAS")
      ->group(group);
  const auto check_seed = [](const std::string& text) {
    return parse_number<uint64_t>(text) ? std::string() : "\"" + text + "\" is not in [0, 2^64)";
  };
  app.add_option("--seed", flags.seed, "Same seed, prompt and flags: same tokens")
      ->check(check_seed)
      ->type_name("N")
      ->group(group);
  app.add_option("--max-tokens", flags.max_tokens, "Tokens to generate; 0: up to the context")
      ->check(range(0, kMaxInt32))
      ->type_name("N")
      ->group(group);
  app.add_option("--min-tokens", flags.min_tokens, "No stop before this many tokens")
      ->check(range(0, kMaxInt32))
      ->type_name("N")
      ->group(group);
  app.add_flag("--ignore-eos", flags.ignore_eos, "Go on after the end-of-text token")->group(group);
  app.add_option("--stop", flags.stop, "Stop before this text; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--stop-token-id", flags.stop_token_ids, "Stop at this token; may be repeated")
      ->check(number<int32_t>())
      ->type_name("ID")
      ->allow_extra_args(false)
      ->group(group);
}

void add_generate(CLI::App& root, GenerateFlags& flags) {
  CLI::App& app =
      *root.add_subcommand("generate", "Answer one prompt, streaming to standard output");
  add_model(app, flags.model);
  app.add_option("prompt", flags.prompt, "The prompt; read from standard input when absent")
      ->type_name("TEXT");
  app.add_option("--prompt-file", flags.prompt_file, "Read the prompt from a file")
      ->type_name("FILE")
      ->excludes("prompt");
  app.add_flag(
      "--raw",
      flags.raw,
      "The prompt is the model's input itself, without chat template; special tokens count");
  app.add_option("--system", flags.system, "System message")->type_name("TEXT");
  app.add_flag("--think", flags.think, "Let the model reason before it answers");
  add_context(app, flags.model);
  add_sampling(app, flags.sampling);
}

void add_chat(CLI::App& root, ChatFlags& flags) {
  CLI::App& app = *root.add_subcommand("chat", "Talk with a model: /help lists the commands");
  add_model(app, flags.model);
  app.add_option("--system", flags.system, "System message")->type_name("TEXT");
  app.add_flag("--think", flags.think, "Start with reasoning on (/think, /nothink)");
  add_context(app, flags.model);
  add_sampling(app, flags.sampling);
}

void add_network(CLI::App& app, ServeFlags& flags) {
  const char* group = "Network";
  app.add_option("--host", flags.host, "Address to listen on; others than loopback need keys")
      ->type_name("ADDRESS")
      ->capture_default_str()
      ->group(group);
  app.add_option("--port", flags.port, "Port to listen on; 0: any free one")
      ->check(range(0, 65'535))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--api-key-file", flags.api_key_file, "File of accepted keys, one per line")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--admin-port", flags.admin_port, "A port of their own for admin routes")
      ->check(range(0, 65'535))
      ->type_name("N")
      ->group(group);
  app.add_option("--admin-host", flags.admin_host, "Address of the admin port")
      ->type_name("ADDRESS")
      ->capture_default_str()
      ->group(group);
  app.add_option("--admin-api-key-file", flags.admin_api_key_file, "File of keys for admin routes")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--allowed-host", flags.allowed_hosts, "Further Host name of a keyless server")
      ->check(not_empty())
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option(
         "--served-model-name", flags.served_model_names, "Name in the API; may be repeated")
      ->check(not_empty())
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--max-connections", flags.max_connections, "Connections at a time")
      ->check(range(1, 65'536))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--body-memory-mb",
                 flags.body_memory_megabytes,
                 "10^6 bytes of request bodies at a time before 429")
      ->check(range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--request-timeout",
                 flags.request_timeout_seconds,
                 "Seconds that a completion may take in all; 0: any time")
      ->check(range(0, 86'400))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--queue-timeout",
                 flags.queue_timeout_seconds,
                 "Seconds that a completion may wait until it runs; 0: any time")
      ->check(range(0, 86'400))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--shutdown-seconds", flags.shutdown_seconds, "For accepted work after SIGTERM")
      ->check(range(0, 86'400))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
}

void add_scheduling(CLI::App& app, ServeFlags& flags) {
  const char* group = "Scheduling";
  app.add_option("--max-queued-requests", flags.max_queued_requests, "Waiting requests before 429")
      ->check(range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-queue-wait-ms",
                 flags.max_queue_wait_ms,
                 "Expected wait of a new request before 429; default: what a request takes; 0: any")
      ->check(range(0, 86'400'000))
      ->type_name("MS")
      ->group(group);
  app.add_option("--max-running-requests",
                 flags.max_running_requests,
                 "Requests computed at a time; 0: planned")
      ->check(range(0, 4096))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--prefill-chunk-tokens", flags.prefill_chunk_tokens, "Prompt tokens per step")
      ->check(range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-itl-ms",
                 flags.max_itl_ms,
                 "Longest wait of a stream for the prefill of others; 0: any")
      ->check(range(0, 3'600'000))
      ->type_name("MS")
      ->capture_default_str()
      ->group(group);
}

void add_observation(CLI::App& app, ServeFlags& flags) {
  const char* group = "Observation";
  app.add_option("--request-log", flags.request_log, "One line of JSON per request into a file")
      ->type_name("FILE")
      ->group(group);
  app.add_option(
         "--soft-watchdog-timeout",
         flags.soft_watchdog_seconds,
         "Seconds without a step, and ten times the usual one, before the engine's state is "
         "written down; 0: never")
      ->check(range(0, 86'400))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--watchdog-timeout",
                 flags.watchdog_seconds,
                 "Seconds without a step before the process ends; 0: never")
      ->check(range(0, 86'400))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--crash-dump-folder",
                 flags.crash_dump_dir,
                 "Where reports of crashes and stalls go; default: the temporary directory")
      ->check(CLI::ExistingDirectory.description(""))
      ->take_last()  // the service's unit gives one, which its operator may override
      ->type_name("DIR")
      ->group(group);
}

void add_kv(CLI::App& app, KvFlags& flags) {
  const char* group = "Memory";
  app.add_option("--kv-memory-mb",
                 flags.memory_mb,
                 "For requests and the prefix cache; 0: a quarter of what the weights leave")
      ->check(range(0, 1'000'000'000))
      ->type_name("MB")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-total-tokens",
                 flags.max_total_tokens,
                 "Tokens of all requests and the prefix cache; 0: what is sensible")
      ->check(range(0, 1'000'000'000))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  add_choice(app,
             "--prefault",
             flags.prefault,
             kPrefaults,
             "Make planned memory resident at start; auto: where one of the two above is given")
      ->group(group);
  app.add_option("--kv-host-mb", flags.host_mb, "Host memory for prefixes that are evicted")
      ->check(range(0, 1'000'000'000))
      ->type_name("MB")
      ->capture_default_str()
      ->group(group);
  app.add_option("--kv-disk-dir", flags.disk_dir, "Directory for them, kept over restarts")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--kv-disk-mb", flags.disk_mb, "Its largest size")
      ->check(range(1, 1'000'000'000))
      ->type_name("MB")
      ->capture_default_str()
      ->group(group);
  app.add_flag("!--no-prefix-cache", flags.prefix_cache, "Compute every prompt from its start")
      ->group(group);
}

void add_serve(CLI::App& root, ServeFlags& flags) {
  CLI::App& app = *root.add_subcommand("serve", "Serve the OpenAI and Anthropic APIs over HTTP");
  add_model(app, flags.model);
  add_context(app, flags.model);
  add_network(app, flags);
  add_scheduling(app, flags);
  add_kv(app, flags.kv);
  add_observation(app, flags);
  app.footer(peer_flags_help() + "\n--log-level and --config: see nibble --help");
  const char* group = "Where requests say nothing";
  app.add_option("--temperature", flags.temperature, "Default: generation_config.json")
      ->check(number_within(0, 100))
      ->type_name("X")
      ->group(group);
  app.add_option("--top-p", flags.top_p, "Default: generation_config.json")
      ->check(number_within(0, 1))
      ->type_name("X")
      ->group(group);
  app.add_flag("--think", flags.think, "Reason before answering")->group(group);
  app.add_option("--reasoning-field",
                 flags.reasoning_fields,
                 "What chat answers call their reasoning; may be given twice for both names")
      ->check(CLI::IsMember({"reasoning_content", "reasoning"}))
      ->allow_extra_args(false)
      ->type_name("NAME")
      ->capture_default_str();
}

void add_tokenize(CLI::App& root, TokenizeFlags& flags) {
  CLI::App& app = *root.add_subcommand(
      "tokenize", "Text on standard input to token ids, or back; needs only tokenizer.json");
  app.add_option("dir", flags.dir, "Directory that holds tokenizer.json")
      ->required()
      ->type_name("DIR");
  app.add_flag(
      "--json", flags.json, "Input and output are JSON arrays: of strings, and of arrays of ids");
  app.add_flag(
      "--no-special", flags.no_special, "Special tokens are ordinary text, and not decoded");
  app.add_flag("--decode", flags.decode, "From ids to text");
}

void add_logits(CLI::App& root, LogitsFlags& flags) {
  CLI::App& app = *root.add_subcommand("logits", "Write the logits of a token sequence to a file");
  add_model(app, flags.model);
  const auto check_ids = [](const std::string& text) {
    return parse_ids(text) ? std::string() : "\"" + text + "\" is no list of token ids";
  };
  const auto add_ids = [&flags](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      const std::vector<int32_t> ids = *parse_ids(text);
      flags.ids.insert(flags.ids.end(), ids.begin(), ids.end());
    }
  };
  CLI::Option* ids =
      app.add_option_function<std::vector<std::string>>("--ids", add_ids, "Token ids")
          ->check(check_ids)
          ->type_name("1,2,3");
  app.add_option("--ids-file", flags.ids_file, "JSON file: an array of token ids")
      ->type_name("FILE")
      ->excludes(ids);
  app.add_option("--last", flags.last, "Only the last N positions; 0: all")
      ->check(range(0, kMaxInt32))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--chunk", flags.chunk, "Compute N tokens at a time; 0: automatic")
      ->check(range(0, kMaxInt32))
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--mtp", flags.mtp, "Also write the logits of the MTP layer");
  CLI::Option* record =
      app.add_option("--record", flags.record, "Write expert ids and indexer selections to a file")
          ->type_name("FILE");
  app.add_option("--replay", flags.replay, "Impose the decisions of a file that --record wrote")
      ->type_name("FILE")
      ->excludes(record);
  app.add_option("--output", flags.output, "The safetensors file to write")
      ->required()
      ->type_name("FILE");
}

void add_check(CLI::App& root, CheckFlags& flags) {
  CLI::App& app = *root.add_subcommand(
      "check", "Verify a checkpoint: headers, sizes, samples of all weights, logits");
  add_model(app, flags.model);
}

void add_pull(CLI::App& root, PullFlags& flags) {
  CLI::App& app = *root.add_subcommand(
      "pull", "Download a model into the hub cache, verified and resumable; prints its directory");
  app.add_option("repo", flags.repo, "org/name[@revision] or a URL")->required()->type_name("REPO");
  app.add_option("--include", flags.include, "Only files that match; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  app.add_option("--exclude", flags.exclude, "No files that match; may be repeated")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  app.add_flag(
      "--verify", flags.verify, "Read what is in the cache already, and repair what is damaged");
  app.add_option("--cache-dir", flags.cache_dir, "The cache; default: HF_HUB_CACHE, HF_HOME/hub")
      ->type_name("DIR");
  app.add_flag("--plan,!--no-plan",
               flags.plan,
               "Print the plan for this machine afterwards; default: on a terminal");
  const char* group = "Network";
  app.add_option("--connections", flags.connections, "Ranges fetched at a time")
      ->check(range(1, 64))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--attempts", flags.attempts, "Attempts in a row that may bring nothing")
      ->check(range(1, 1000))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--retry-delay-ms", flags.retry_delay_ms, "First wait between attempts; doubles")
      ->check(range(0, 60'000))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--stall-timeout",
         flags.stall_timeout,
         "Seconds below 1 kB/s before a connection is cut; default: HF_HUB_DOWNLOAD_TIMEOUT, 30")
      ->check(range(1, 86'400))
      ->type_name("N")
      ->group(group);
}

// How a checkpoint is written.
void add_output(CLI::App& app, int64_t& shard_megabytes, int32_t& threads, bool& resume) {
  app.add_flag("--resume", resume, "Continue an interrupted run of the same command");
  app.add_option("--shard-mb", shard_megabytes, "Size of an output file, in 10^6 bytes")
      ->check(range(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--threads", threads, "CPU threads; 0: one per physical core")
      ->check(range(0, 1024))
      ->type_name("N")
      ->capture_default_str();
}

void add_convert(CLI::App& root, ConvertFlags& flags) {
  CLI::App& app =
      *root.add_subcommand("convert", "Write a checkpoint again in another weight format");
  app.add_option("in", flags.in, "Directory of a checkpoint; never written to")
      ->required()
      ->type_name("IN");
  app.add_option("out", flags.out, "Directory to make")->required()->type_name("OUT");
  add_choice(app, "--to", flags.format, kConvertFormats, "Format of the new checkpoint")
      ->required();
  app.add_flag("--convert-drafts",
               flags.convert_drafts,
               "Also convert mtp.*, which otherwise keeps its format");
  app.add_flag("--allow-rounding",
               flags.allow_rounding,
               "Round where a cast between MXFP4 and NVFP4 is not exact, instead of refusing");
  add_output(app, flags.shard_megabytes, flags.threads, flags.resume);
}

void add_synth(CLI::App& root, SynthFlags& flags) {
  CLI::App& app = *root.add_subcommand("synth", "Write a random checkpoint of a given shape");
  app.add_option("out", flags.out, "Directory to make")->required()->type_name("OUT");
  app.add_option("--preset", flags.preset, "Shape of the model")
      ->required()
      ->check(CLI::IsMember({"flash", "pro", "mini"}).description(""))
      ->type_name("flash|pro|mini");
  add_choice(app, "--format", flags.format, kSynthFormats, "Format of the weights");
  app.add_option("--layers", flags.layers, "Only the first N layers; 0: all")
      ->check(range(0, kMaxInt32))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "Same seed: same bytes")
      ->type_name("N")
      ->capture_default_str();
  app.add_flag(
      "--config-only", flags.config_only, "Write no weights: the shapes for --load-format dummy");
  add_output(app, flags.shard_megabytes, flags.threads, flags.resume);
}

void add_plan(CLI::App& root, PlanFlags& flags) {
  CLI::App& app = *root.add_subcommand(
      "plan", "Say what a model is and what it would run on, before any weight is fetched");
  app.add_option("targets", flags.targets, "Directory, org/name[@revision] or URL; several compare")
      ->required()
      ->type_name("TARGET...");
  const char* machine = "Machine";
  app.add_option("--gpu",
                 flags.gpus,
                 "rtx-pro-6000, rtx-5090, h100, h200, b200, b300, a100, l40s, gb10, cpu or local "
                 "(default); xN behind it for N; may be repeated")
      ->type_name("NAME[xN]")
      ->allow_extra_args(false)
      ->group(machine);
  app.add_option("--tp", flags.tp, "Devices that share each matrix; 0: all")
      ->check(range(0, 1024))
      ->type_name("N")
      ->capture_default_str()
      ->group(machine);
  app.add_option("--ep", flags.ep, "Devices that share the routed experts by id")
      ->check(range(1, 1024))
      ->type_name("N")
      ->capture_default_str()
      ->group(machine);
  add_isa(app, flags.isa, machine);
  const char* work = "Work";
  app.add_option("--context", flags.context, "Tokens per sequence; 0: 32768 or the model's limit")
      ->check(range(0, kMaxInt32))
      ->type_name("N")
      ->capture_default_str()
      ->group(work);
  app.add_option("--concurrency", flags.concurrency, "Sequences at a time; 0: by the goal, 1 or 64")
      ->check(range(0, 1 << 20))
      ->type_name("N")
      ->capture_default_str()
      ->group(work);
  add_choice(app, "--goal", flags.goal, kGoals, "What the kernels are chosen for")->group(work);
  add_kv_dtype(app, flags.kv_dtype, work);
  app.add_flag("--json", flags.json, "For programs");
  app.add_option("--explain", flags.explain, "Only the evidence for one module, all of it")
      ->type_name("MODULE");
  add_checks(app, flags.checks);
  const char* checks = "Checks";
  app.add_option("--kernel", flags.kernel, "Only kernels whose name contains TEXT")
      ->type_name("TEXT")
      ->group(checks);
  app.add_flag("--pad-fp8-blocks",
               flags.pad_fp8_blocks,
               "Tensor-parallel shards may cut FP8 blocks; both sides keep the scale")
      ->group(checks);
  app.add_option("--connections", flags.connections, "Headers fetched at a time")
      ->check(range(1, 64))
      ->type_name("N")
      ->capture_default_str();
}

void add_kernels(CLI::App& root, KernelsFlags& flags) {
  CLI::App& app = *root.add_subcommand("kernels", "List every kernel, written or planned");
  app.add_flag("--markdown", flags.markdown, "As docs/kernel-table.md");
}

void add_peer_flags(CLI::App& root, PeerFlagsFlags& flags) {
  CLI::App& app =
      *root.add_subcommand("flags", "List the flags of SGLang and vLLM that serve understands");
  app.add_flag("--markdown", flags.markdown, "As docs/serve-flags.md");
}

// What all measurements of a model take.
void add_measurement(CLI::App& app, ModelFlags& model, int32_t& repeats, bool& as_json) {
  add_model(app, model);
  app.add_option("--repeats", repeats, "Timed passes; the median counts")
      ->check(range(1, 100'000))
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--json", as_json, "For programs");
}

void add_count(CLI::App& app, const std::string& flag, int32_t& count, const std::string& help) {
  app.add_option(flag, count, help)
      ->check(range(1, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
}

constexpr const char* kChunkHelp = "Tokens of a prefill pass";
constexpr const char* kContextHelp = "Tokens of each sequence before the first step";

void add_bench_decode(CLI::App& bench, BenchDecodeFlags& flags) {
  CLI::App& app = *bench.add_subcommand(
      "decode", "Time decode steps and compare them with the bytes that they must read");
  add_measurement(app, flags.model, flags.repeats, flags.json);
  app.add_option("--batch", flags.batches, "Sequences of a step; several make a table")
      ->check(range(1, 1 << 16))
      ->delimiter(',')
      ->type_name("1,16,64")
      ->capture_default_str();
  add_count(app, "--context", flags.context, kContextHelp);
  add_count(app, "--chunk", flags.chunk, kChunkHelp);
}

void add_bench_prefill(CLI::App& bench, BenchPrefillFlags& flags) {
  CLI::App& app = *bench.add_subcommand(
      "prefill", "Time a prompt and compare its products with the BF16 peak of the same run");
  add_measurement(app, flags.model, flags.repeats, flags.json);
  add_count(app, "--chunk", flags.chunk, kChunkHelp);
  add_count(app, "--prompt", flags.prompt, "Tokens of the prompt");
}

void add_bench_kernels(CLI::App& bench, BenchKernelsFlags& flags) {
  CLI::App& app =
      *bench.add_subcommand("kernels", "Time every kernel of a decode step alone, with peers");
  add_measurement(app, flags.model, flags.repeats, flags.json);
  add_count(app, "--batch", flags.batch, "Sequences of the step");
  add_count(app, "--context", flags.context, kContextHelp);
  add_count(app, "--chunk", flags.chunk, kChunkHelp);
  app.add_option("--only", flags.only, "Time only kernels whose name contains TEXT")
      ->type_name("TEXT");
}

void add_profile(CLI::App& root, ProfileFlags& flags) {
  CLI::App& app = *root.add_subcommand(
      "profile", "Say where the time of a step goes: kernels, their roofs, what is slow");
  add_measurement(app, flags.model, flags.repeats, flags.json);
  add_count(app, "--batch", flags.batch, "Sequences of the step");
  add_count(app, "--context", flags.context, "Tokens of each sequence, or of the prompt");
  add_count(app, "--chunk", flags.chunk, kChunkHelp);
  app.add_flag("--prefill", flags.prefill, "Profile a prompt instead of a decode step");
}

void add_demo(CLI::App& root, DemoFlags& flags) {
  CLI::App& app = *root.add_subcommand("demo", "Show a short chat with the bundled model");
  app.group("");  // not listed: `make demo` runs it
  add_model(app, flags.model);
}

std::string help_footer() {
  std::string text = "Exit codes:\n";
  for (const ExitCode& entry : kExitCodes)
    text += fmt::format("  {:<4}{}\n", entry.code, entry.meaning);
  return text;
}

// The flags of every subcommand; the one that was named becomes the Command.
struct AllFlags {
  GenerateFlags generate;
  ChatFlags chat;
  ServeFlags serve;
  TokenizeFlags tokenize;
  LogitsFlags logits;
  CheckFlags check;
  PullFlags pull;
  ConvertFlags convert;
  SynthFlags synth;
  PlanFlags plan;
  KernelsFlags kernels;
  BenchServeFlags bench_serve;
  BenchDecodeFlags bench_decode;
  BenchPrefillFlags bench_prefill;
  BenchKernelsFlags bench_kernels;
  ProfileFlags profile;
  PeerFlagsFlags peer_flags;
  DemoFlags demo;
};

Command chosen_benchmark(const CLI::App& bench, const AllFlags& flags) {
  if (bench.got_subcommand("decode")) return flags.bench_decode;
  if (bench.got_subcommand("prefill")) return flags.bench_prefill;
  if (bench.got_subcommand("kernels")) return flags.bench_kernels;
  return flags.bench_serve;
}

Command chosen_command(const CLI::App& app, const AllFlags& flags) {
  if (app.got_subcommand("generate")) return flags.generate;
  if (app.got_subcommand("chat")) return flags.chat;
  if (app.got_subcommand("serve")) return flags.serve;
  if (app.got_subcommand("tokenize")) return flags.tokenize;
  if (app.got_subcommand("logits")) return flags.logits;
  if (app.got_subcommand("check")) return flags.check;
  if (app.got_subcommand("pull")) return flags.pull;
  if (app.got_subcommand("convert")) return flags.convert;
  if (app.got_subcommand("synth")) return flags.synth;
  if (app.got_subcommand("plan")) return flags.plan;
  if (app.got_subcommand("kernels")) return flags.kernels;
  if (app.got_subcommand("bench")) return chosen_benchmark(*app.get_subcommand("bench"), flags);
  if (app.got_subcommand("profile")) return flags.profile;
  if (app.got_subcommand("flags")) return flags.peer_flags;
  if (app.got_subcommand("demo")) return flags.demo;
  return VersionFlags{};
}

// The index of the subcommand, or the number of arguments.
size_t find_command(const std::vector<std::string>& arguments) {
  size_t i = 1;
  while (i < arguments.size() && arguments[i].starts_with('-')) {
    const bool takes_value = arguments[i] == "--log-level" || arguments[i] == "--config";
    i += takes_value ? 2 : 1;
  }
  return std::min(i, arguments.size());
}

// Arguments of `serve` may be in the spelling of other servers.
Result<TranslatedArguments> in_our_spelling(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv, argv + argc);
  const size_t command = find_command(arguments);
  if (command == arguments.size() || arguments[command] != "serve") {
    return TranslatedArguments{.arguments = std::move(arguments)};
  }
  const auto first = arguments.begin() + static_cast<ptrdiff_t>(command) + 1;
  const std::vector<std::string> own(first, arguments.end());
  TRY_ASSIGN(TranslatedArguments result, translate_peer_flags(own));
  result.arguments.insert(result.arguments.begin(), arguments.begin(), first);
  return result;
}

Error usage_error(std::string_view fault) {
  return invalid_argument(fmt::format("{} (see nibble --help)", fault));
}

// The library's words for unknown keys are "INI was not able to parse serve.prot"; an unknown
// section shows up as the key "++".
Error config_error(std::string_view fault) {
  std::string_view key = fault.substr(fault.rfind(' ') + 1);
  if (key.ends_with(".++")) key.remove_suffix(3);
  return usage_error(fmt::format("configuration file: unknown section or key \"{}\"", key));
}

}  // namespace

Result<CommandLine> parse_command_line(int argc, const char* const* argv) {
  CommandLine result;
  AllFlags flags;
  TRY_ASSIGN(const TranslatedArguments given, in_our_spelling(argc, argv));
  flags.serve.notes = given.notes;
  CLI::App app("Nibble, a serving engine for DeepSeek-V4.", "nibble");
  app.require_subcommand(1);
  app.fallthrough();
  app.footer("--log-level and --config: see nibble --help");  // the subcommands inherit it
  app.set_version_flag("--version", std::string(version_text()));
  add_choice(
      app, "--log-level", result.log_level, kLogLevels, "Least severe messages on standard error");
  std::optional<Error> config_fault;
  const auto check_config = [&config_fault](const std::string& path) {
    const Result<std::string> text = read_file(path, kMaxConfigBytes);
    if (!text.ok()) config_fault = text.error();
    return text.ok() ? std::string() : text.error().message;
  };
  app.set_config("--config", "", "TOML or INI file: a [section] per command; flags win over it")
      ->check(check_config)
      ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);

  add_generate(app, flags.generate);
  add_chat(app, flags.chat);
  add_serve(app, flags.serve);
  add_tokenize(app, flags.tokenize);
  add_logits(app, flags.logits);
  add_check(app, flags.check);
  add_pull(app, flags.pull);
  add_convert(app, flags.convert);
  add_synth(app, flags.synth);
  add_plan(app, flags.plan);
  add_kernels(app, flags.kernels);
  CLI::App& bench = add_bench(app, flags.bench_serve);
  add_bench_decode(bench, flags.bench_decode);
  add_bench_prefill(bench, flags.bench_prefill);
  add_bench_kernels(bench, flags.bench_kernels);
  add_profile(app, flags.profile);
  add_peer_flags(app, flags.peer_flags);
  add_demo(app, flags.demo);
  app.add_subcommand("version", "Print the version and the GPUs");
  app.footer(help_footer());
  std::vector<const char*> arguments;
  for (const std::string& argument : given.arguments) arguments.push_back(argument.c_str());
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::CallForHelp&) {
    result.text = app.help();  // of the subcommand that was named
    return result;
  } catch (const CLI::CallForVersion& version) {
    result.text = std::string(version.what()) + '\n';
    return result;
  } catch (const CLI::ConfigError& fault) {
    return config_fault ? *config_fault : config_error(fault.what());
  } catch (const CLI::ParseError& fault) {
    if (config_fault) return *config_fault;
    const std::vector<std::string> unknown = app.remaining();
    const bool has_command = !app.get_subcommands().empty();
    if (has_command || unknown.empty()) return usage_error(fault.what());
    return usage_error(fmt::format("unknown command or flag \"{}\"", unknown.front()));
  }
  result.command = chosen_command(app, flags);
  return result;
}

}  // namespace nibble::cli
