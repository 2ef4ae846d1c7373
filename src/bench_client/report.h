// A run as the table that people know, and as a line of JSON that holds everything needed to judge
// and repeat it.
#pragma once

#include <string>

#include "bench_client/benchmark.h"

namespace nibble::bench_client {

// Who measured, and where.
struct Provenance {
  std::string version;  // of this program
  std::string commit;
  std::string machine;  // of the client: processor, cores, memory, load
};

// The rows and their names are those of vLLM's and SGLang's tables, so that parsers of those work.
std::string render_table(const BenchmarkOptions& options, const RunReport& report);

enum class Detail { kSummary, kRequests };  // kRequests: times and lengths of each request, no text

// One line without its end. Keys as in vLLM's result files where those have one.
std::string render_json(const BenchmarkOptions& options,
                        const RunReport& report,
                        const Provenance& provenance,
                        Detail detail);

}  // namespace nibble::bench_client
