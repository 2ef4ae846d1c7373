#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/device_choice.h"
#include "cli/exit_codes.h"
#include "cli/version.h"

namespace nibble::cli {
namespace {

// One overload per command, for std::visit.
struct Runner {
  Result<void> operator()(const GenerateFlags& flags) const { return run_generate(flags); }
  Result<void> operator()(const ChatFlags& flags) const { return run_chat(flags); }
  Result<void> operator()(const ServeFlags& flags) const { return run_serve(flags); }
  Result<void> operator()(const TokenizeFlags& flags) const { return run_tokenize(flags); }
  Result<void> operator()(const LogitsFlags& flags) const { return run_logits(flags); }
  Result<void> operator()(const CheckFlags& flags) const { return run_check(flags); }
  Result<void> operator()(const PullFlags& flags) const { return run_pull(flags); }
  Result<void> operator()(const ConvertFlags& flags) const { return run_convert(flags); }
  Result<void> operator()(const SynthFlags& flags) const { return run_synth(flags); }
  Result<void> operator()(const PlanFlags& flags) const { return run_plan(flags); }
  Result<void> operator()(const KernelsFlags& flags) const { return run_kernels(flags); }
  Result<void> operator()(const BenchServeFlags& flags) const { return run_bench_serve(flags); }
  Result<void> operator()(const BenchDecodeFlags& flags) const { return run_bench_decode(flags); }
  Result<void> operator()(const BenchPrefillFlags& flags) const { return run_bench_prefill(flags); }
  Result<void> operator()(const BenchKernelsFlags& flags) const { return run_bench_kernels(flags); }
  Result<void> operator()(const ProfileFlags& flags) const { return run_profile(flags); }
  Result<void> operator()(const PeerFlagsFlags& flags) const { return run_peer_flags(flags); }
  Result<void> operator()(const DemoFlags& flags) const { return run_demo(flags); }
  Result<void> operator()(const VersionFlags&) const {
    return write_output(std::string(version_text()) + '\n' + describe_gpus() + '\n');
  }
};

Result<void> parse_and_run(int argc, const char* const* argv) {
  TRY_ASSIGN(const CommandLine line, parse_command_line(argc, argv));
  if (line.text) return write_output(*line.text);
  set_log_level(line.log_level);
  return std::visit(Runner{}, line.command);
}

}  // namespace

int run(int argc, const char* const* argv) {
  const Result<void> result = parse_and_run(argc, argv);
  if (result.ok()) return kExitOk;
  print_error(result.error());
  return exit_code(result.error());
}

}  // namespace nibble::cli
