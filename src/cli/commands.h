// The subcommands: each takes its flags, does its work, prints, and reports what went wrong.
#pragma once

#include "base/result.h"
#include "cli/flags.h"

namespace nibble::cli {

// Runs the program; returns its exit code.
int run(int argc, const char* const* argv);

Result<void> run_generate(const GenerateFlags& flags);
Result<void> run_chat(const ChatFlags& flags);
Result<void> run_serve(const ServeFlags& flags);
Result<void> run_tokenize(const TokenizeFlags& flags);
Result<void> run_logits(const LogitsFlags& flags);
Result<void> run_check(const CheckFlags& flags);
Result<void> run_pull(const PullFlags& flags);
Result<void> run_convert(const ConvertFlags& flags);
Result<void> run_synth(const SynthFlags& flags);
// Prints the plan; kUnsupported with its first error when it has any.
Result<void> run_plan(const PlanFlags& flags);
Result<void> run_kernels(const KernelsFlags& flags);
Result<void> run_bench_serve(const BenchServeFlags& flags);
Result<void> run_bench_decode(const BenchDecodeFlags& flags);
Result<void> run_bench_prefill(const BenchPrefillFlags& flags);
Result<void> run_bench_kernels(const BenchKernelsFlags& flags);
Result<void> run_profile(const ProfileFlags& flags);
Result<void> run_peer_flags(const PeerFlagsFlags& flags);
Result<void> run_demo(const DemoFlags& flags);

}  // namespace nibble::cli
