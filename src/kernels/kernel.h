// A kernel is declared once, as a row of a constexpr table. The router, plan, the benchmarks, the
// differential test, docs/kernel-table.md and --kernel all read that row; nothing else states what
// a kernel can do.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "device/launch_observer.h"
#include "kernels/device_args.h"
#include "kernels/op_args.h"
#include "kernels/packed_weight.h"
#include "kernels/work.h"
#include "quant/format.h"

namespace nibble::kernels {

enum class Op : uint8_t {
  kMatMul,
  kMatMulPair,  // only on GPUs
  kGroupedMatMul,
  kSparseAttention,
  kIndexerScore,
  kTopK,
  kRmsNorm,
  kRope,
  kHyperPre,
  kHyperPost,
  kHyperHead,
  kCompress,
  kSelectExperts,
  kSwiglu,
  kCombineExperts,
  kEmbed,
  // Only on GPUs, where these parts of a step are one launch each: kernels/device_args.h.
  kPlan,
  kCopyRows,
  kMakeSlots,
  kStreamUpdate,
  kStreamMix,
  kStreamTurn,  // both; only on GPUs
  kLatents,
  kQueries,
  kAttended,
  kQuantize,
  kJoinMtp,
  kSample,
};
std::string_view op_name(Op op);

// What the kernel multiplies activations in, finest first. The tensors themselves are f32 on the
// CPU. kFp8: E4M3 with a power-of-two scale per token and 128 (or 32) channels; kInt8: one scale
// per token; kNvfp4: E2M1 in groups of 16.
enum class Activation : uint8_t { kF32, kBf16, kFp8, kInt8, kNvfp4 };
std::string_view activation_name(Activation activation);

// How the rows of key pools are stored: as f32 or bf16 elements, or in the FP8 forms of
// quant/fp8_key.h.
enum class KeyForm : uint8_t { kPlain, kFp8 };
std::string_view key_form_name(KeyForm form);

enum class ComputeUnit : uint8_t { kScalar, kSimd, kSimt, kTensorCore };
std::string_view unit_name(ComputeUnit unit);

struct Target {
  device::DeviceKind kind = device::DeviceKind::kCpu;
  device::IsaSet isa = 0;  // CPU: all of these bits are needed
  int32_t sm_min = 0;      // CUDA
  int32_t sm_max = 0;
};
std::string target_name(const Target& target);  // "cpu", "avx2", "sm_90"

// Zero means no limit.
struct Limits {
  int64_t m_max = 0;
  int64_t n_max = 0;
  int64_t n_multiple = 0;
  int64_t k_multiple = 0;
  int64_t k_max = 0;
  int64_t shared_bytes = 0;  // CUDA: shared memory that a block of threads needs
};

// The largest launches in which a kernel of scores also selects, see DeviceSelection.
struct SelectLimits {
  int64_t rows = 0;
  int64_t columns = 0;
};

// How a product on a GPU splits k so that every multiprocessor has work. Without rows it does not.
struct KSplits {
  int64_t rows = 0;  // of W that a multiprocessor takes at a time
  int64_t k = 0;     // of which a split holds a multiple
};

enum class Status : uint8_t { kRuns, kCompiled, kPlanned };
std::string_view status_name(Status status);

template <class Args>
using Launcher = Result<void> (*)(const Args& args, device::Stream& stream);

// One alternative per op, a second where GPUs take other arguments; monostate where this build
// lacks the backend.
using Launch = std::variant<std::monostate,
                            Launcher<MatMulArgs>,
                            Launcher<DeviceMatMulArgs>,
                            Launcher<DeviceMatMulPairArgs>,
                            Launcher<GroupedMatMulArgs>,
                            Launcher<DeviceGroupedMatMulArgs>,
                            Launcher<SparseAttentionArgs>,
                            Launcher<DeviceSparseAttentionArgs>,
                            Launcher<IndexerScoreArgs>,
                            Launcher<DeviceIndexerScoreArgs>,
                            Launcher<TopKArgs>,
                            Launcher<DeviceTopKArgs>,
                            Launcher<RmsNormArgs>,
                            Launcher<DeviceRmsNormArgs>,
                            Launcher<RopeArgs>,
                            Launcher<HyperPreArgs>,
                            Launcher<HyperPostArgs>,
                            Launcher<HyperHeadArgs>,
                            Launcher<CompressArgs>,
                            Launcher<SelectExpertsArgs>,
                            Launcher<DeviceSelectExpertsArgs>,
                            Launcher<SwigluArgs>,
                            Launcher<CombineExpertsArgs>,
                            Launcher<EmbedArgs>,
                            Launcher<DeviceEmbedArgs>,
                            Launcher<DevicePlanArgs>,
                            Launcher<DeviceCopyRowsArgs>,
                            Launcher<DeviceMakeSlotsArgs>,
                            Launcher<DeviceStreamUpdateArgs>,
                            Launcher<DeviceStreamMixArgs>,
                            Launcher<DeviceStreamTurnArgs>,
                            Launcher<DeviceLatentsArgs>,
                            Launcher<DeviceQueriesArgs>,
                            Launcher<DeviceAttendedArgs>,
                            Launcher<DeviceQuantizeArgs>,
                            Launcher<DeviceJoinMtpArgs>,
                            Launcher<DeviceSampleArgs>>;

// Where and when a kernel ran.
struct HardwareRun {
  std::string_view where = {};  // "NVIDIA H200, 2026-12-01"; empty: nowhere
  int32_t sm = 0;               // of a GPU
};

// How fast a kernel was in launches of kTimedTokens tokens, as shares of the read stream: bytes of
// packed weights over time, in DeepSeek-V4-Flash's shapes.
inline constexpr std::array<int32_t, 4> kTimedTokens = {1, 16, 64, 256};
struct Timing {
  HardwareRun on = {};
  std::array<double, 4> shares = {};
};

struct KernelInfo {
  std::string_view
      name;  // op.weight.activation.target.unit[.variant]; parts that do not apply are left out
  Op op = Op::kMatMul;
  bool has_weight = false;
  quant::Format weight = quant::Format::kF32;  // meaningful when has_weight
  Activation activation = Activation::kF32;
  KeyForm keys = KeyForm::kPlain;  // attention and the indexer's scores
  ComputeUnit unit = ComputeUnit::kScalar;
  Target target = {};
  Limits limits = {};
  PackedLayout layout = PackedLayout::kNone;
  ActivationForm x_form = ActivationForm::kF32;  // products on GPUs: what they read
  KSplits k_splits = {};     // products on GPUs: how they split k, see num_splits()
  bool gives_fp8 = false;    // products on GPUs: can give DeviceMatMulArgs::y_fp8
  bool gives_forms = false;  // attention on GPUs: gives f32, BF16 and FP8 forms, rotated back
  int64_t max_sum_rows = 0;  // attention and scores on GPUs: tokens up to which queries may be sums
  SelectLimits selects = {};  // scores on GPUs
  // Pairs of products: the rows whose products, bit for bit, they make in one launch, one of the
  // first row and one of either.
  std::array<std::string_view, 2> pair = {};
  // Grouped products on GPUs: the pairs per slot that the kernel is compiled for, ascending, then
  // zeros.
  std::array<int32_t, 6> slot_rows = {};
  bool joins_down = false;  // with slots of one row: takes DeviceGroupedMatMulArgs::down
  // Grouped products of FP8 rows: also take rows of bf16 alone, with the bits of the op quantize.
  bool quantizes = false;
  // With down: takes DeviceGroupedMatMulArgs::choice and beside, a product with the bits of the row
  // of this name. Empty: does not.
  std::string_view beside = {};
  // Each output depends only on its own inputs and on (op, format, k, ISA): not on m, neighbours,
  // chunks or threads.
  bool is_batch_invariant = true;
  bool has_clamp = true;  // SwiGLU and what is fused with it: honours swiglu_limit
  Status status = Status::kRuns;
  HardwareRun verified = {};
  Timing timed = {};  // for plans that force a row
  Launch launch = {};
};

// A row of the scalar reference: obviously right, and slow.
bool is_reference(const KernelInfo& kernel);

// What a plan for `device` shows behind a kernel that has not run on its generation: "not run on
// hardware", or, of one that ran elsewhere, "not run on hardware of sm_100, only on NVIDIA H200,
// 2026-12-01". Empty where it has; what ran on one CPU has run on all.
std::string hardware_mark(const KernelInfo& kernel, const device::DeviceInfo& device);

// The share that `kernel` has for `tokens` on the generation of `device`: the time of a byte
// is linear in tokens between those timed, and in proportion to them beyond. Nothing where it was
// not timed there.
std::optional<double> timed_share(const KernelInfo& kernel,
                                  const device::DeviceInfo& device,
                                  double tokens);

// What has to be computed. Ops without weights put their row width (norms: features, attention:
// head_dim, expert choice: experts) in k and how many rows belong together (attention: heads,
// hyper-connections: streams; expert choice on GPUs: choices of a token) in n.
struct Problem {
  Op op = Op::kMatMul;
  bool has_weight = false;
  quant::Format weight = quant::Format::kF32;
  Activation activation =
      Activation::kF32;  // the coarsest that is allowed: kBf16 also admits kF32 kernels
  KeyForm keys = KeyForm::kPlain;
  bool needs_clamp = false;
  int64_t m_max = 0;  // 0: any
  int64_t n = 0;
  int64_t k = 0;
};

// What a refusal is about.
enum class Cause : uint8_t {
  kProblem,       // another op, format or activation
  kTarget,        // another device
  kOption,        // what the caller restricts
  kClamp,         // no swiglu_limit
  kSize,          // m, n or k beyond a bound
  kAlignment,     // n or k is no multiple of what the kernel's tiles need
  kSharedMemory,  // a tile is larger than the device's shared memory
  kNotBuilt,      // in another build, or only planned
};

// Why a kernel does not take a problem, with values: "k 96, needs a multiple of 128".
struct Refusal {
  std::string_view kernel;
  std::string reason;
  Cause cause = Cause::kProblem;
};

struct Route {
  const KernelInfo* kernel = nullptr;
  std::vector<Refusal> refused;  // the rows of this op before it, most specialised first

  // Launches through the record; the args type must be the op's.
  template <class Args>
  Result<void> launch(const Args& args, device::Stream& stream) const {
    if (stream.observer == nullptr) return std::get<Launcher<Args>>(kernel->launch)(args, stream);
    return stream.observer->launch(
        {.kernel = kernel->name,
         .run = [kernel = kernel,
                 args,
                 &stream] { return std::get<Launcher<Args>>(kernel->launch)(args, stream); },
         .work = [args](const device::ReadInts& read) { return work_of(args, read); }});
  }
};

struct RouteOptions {
  bool deterministic = false;  // only batch-invariant kernels
  // Restricts to kernels whose name contains this text; ops without weights only where they have
  // one. Empty: no restriction.
  std::string_view only;
  std::string_view without;  // as if no kernel whose name contains this text were built; or empty
  // Also take rows that this build cannot launch: kCompiled elsewhere, or only kPlanned. For plans;
  // a Route found this way must not be launched unless its row has status kRuns.
  bool for_plan = false;
  // Also take the scalar reference rows. They are the oracle of tests, too slow to serve on, so
  // that nothing falls back to them by itself.
  bool allow_reference = false;
};

// All rows of every backend, most specialised first, reference rows last.
std::vector<const KernelInfo*> all_kernels();

// Nothing when `kernel` takes `problem` on `device`.
std::optional<Refusal> check(const KernelInfo& kernel,
                             const Problem& problem,
                             const device::DeviceInfo& device,
                             bool for_plan = false);

// The first row of the device's kind that accepts. kUnsupported lists every refusal; its
// Error::reason is the code of docs/plan.md: Q-K4 under RouteOptions::only; Q-K2, Q-K5, Q-K6 or
// Q-P4 where all rows for this device and format refuse for that cause; else Q-K1.
Result<Route> route(const Problem& problem,
                    const device::DeviceInfo& device,
                    const RouteOptions& options = {});

// A kernel for up to m_max rows; 0: any number.
struct RangedRoute {
  int64_t m_max = 0;
  Route route;
};

// Kernels that share one packed layout and together take any number of rows of `problem`, whose
// m_max is not read: ascending by m_max, the last without a bound. The layout is that of the most
// specialised row for which there is such a list. Errors of route().
Result<std::vector<RangedRoute>> route_by_rows(const Problem& problem,
                                               const device::DeviceInfo& device,
                                               const RouteOptions& options = {});
// The first that takes m rows.
const Route& route_for(std::span<const RangedRoute> routes, int64_t m);

// How many partial sums of k the kernel makes. Of the shape alone, so that sums do not depend on
// the load.
//   n: rows of W of all groups; k: of one group
int32_t num_splits(const KernelInfo& kernel, int64_t n, int64_t k, int32_t num_units);

// How the blocks of a launch divide two products.
struct MatMulPairPlan {
  std::array<int32_t, 2> splits = {1, 1};
  int32_t first_blocks = 0;
};
// The division with the least work of the busiest block, splits being worth some of it. Of shapes
// alone.
//   kernels: the rows that have the products alone
MatMulPairPlan plan_matmul_pair(const std::array<const KernelInfo*, 2>& kernels,
                                const std::array<const PackedWeight*, 2>& weights,
                                int32_t num_units);

// Pairs per slot for `num_pairs` choices of `num_experts`; 1 only for the choices of one token, and
// of few where the kernel makes both products in one launch (KernelInfo::joins_down).
int32_t choose_slot_rows(const KernelInfo& kernel,
                         int64_t num_tokens,
                         int32_t choices,
                         int32_t num_experts);

}  // namespace nibble::kernels
