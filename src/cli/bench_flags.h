// `nibble bench`: its flags. A further benchmark is a subcommand of "bench" with its own struct.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"
#include "bench_client/benchmark.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the flag library's
class App;
}  // namespace CLI

namespace nibble::cli {

struct BenchServeFlags {
  bench_client::BenchmarkOptions options;
  std::optional<Path> output_file;
  bool output_details = false;
  std::optional<Path> plot;

  // Other ways to say what `options` holds; settled there when all flags are read.
  std::string host;
  int32_t port = 0;
  int32_t question_len = 0;
  int32_t answer_len = 0;
  int32_t timeout_seconds = 3600;
};

// Adds "bench serve" and returns "bench", for further benchmarks.
CLI::App& add_bench(CLI::App& root, BenchServeFlags& flags);

}  // namespace nibble::cli
