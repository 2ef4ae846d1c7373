#include "tools/measure/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/checked_math.h"
#include "device/cuda.h"
#include "device/graph.h"
#include "kernels/cuda/peers.h"

namespace nibble::tools {
namespace {

using device::ObservedLaunch;

constexpr int32_t kWarmUp = 3;

Spread spread_of(std::vector<double> times) {
  if (times.empty()) return {};
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

Spread scaled(Spread spread, double factor) {
  return {spread.median * factor, spread.low * factor, spread.high * factor};
}

// Device time of replays of a graph.
Result<Spread> time_graph(device::Stream& stream, const device::Graph& graph, int32_t repeats) {
  std::vector<double> times;
  for (int32_t i = 0; i < kWarmUp + repeats; ++i) {
    TRY_ASSIGN(const double us, device::elapsed_us(stream, [&] { return graph.launch(stream); }));
    if (i >= kWarmUp) times.push_back(us);
  }
  return spread_of(std::move(times));
}

json::Value spread_json(const Spread& spread) {
  return json::make_object({{"median", spread.median}, {"low", spread.low}, {"high", spread.high}});
}

json::Member roofs_member(const Roofs& roofs) {
  return {"roofs",
          json::make_object({{"read_bytes_per_s", roofs.read_bytes_per_s},
                             {"bf16_flops_per_s", roofs.bf16_flops_per_s},
                             {"bf16_note", roofs.bf16_note}})};
}

std::string read_text(const Roofs& roofs) {
  return fmt::format("read stream of this run: {:.1f} GB/s\n", roofs.read_bytes_per_s * 1e-9);
}

double floor_us(const Roofs& roofs, const DecodeRow& row) {
  return roofs.read_bytes_per_s > 0 ? row.step_bytes / roofs.read_bytes_per_s * 1e6 : 0;
}

double share_of_floor(const Roofs& roofs, const DecodeRow& row) {
  return row.us.median > 0 ? floor_us(roofs, row) / row.us.median : 0;
}

double mfu_of(const Roofs& roofs, const PrefillRow& row) {
  if (roofs.bf16_flops_per_s <= 0 || row.us.median <= 0) return 0;
  return row.flops / row.us.median * 1e6 / roofs.bf16_flops_per_s;
}

// --- kernels ---

// Launches of a pass that share kernel and shape.
struct KernelClass {
  std::vector<std::function<Result<void>()>> runs;  // on a GPU, to be run again
  std::vector<double> us;                           // on the host
  device::Work work;                                // of all together
};
using ClassKey = std::tuple<std::string, int64_t, int64_t>;

Result<double> host_us(const ObservedLaunch& launch) {
  const auto begin = std::chrono::steady_clock::now();
  TRY(launch.run());
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  return took.count();
}

// On the host, where arguments may be gone after a launch, each is repeated at once.
Result<std::map<ClassKey, KernelClass>> collect(device::Device& device,
                                                const Pass& pass,
                                                std::string_view only,
                                                int32_t repeats) {
  std::map<ClassKey, KernelClass> classes;
  const auto take = [&](const ObservedLaunch& launch) -> Result<void> {
    TRY(launch.run());
    if (launch.kernel.find(only) == std::string_view::npos) return {};
    const device::Work work = launch.work(int_reader(device));
    KernelClass& of = classes[{std::string(launch.kernel), work.n, work.k}];
    of.work.bytes += work.bytes;
    of.work.flops += work.flops;
    if (is_gpu(device)) {
      of.runs.push_back(launch.run);
      return {};
    }
    of.runs.emplace_back();
    for (int32_t i = 0; i < repeats; ++i) {
      TRY_ASSIGN(const double us, host_us(launch));
      of.us.push_back(us);
    }
    return {};
  };
  TRY(observe_launches(device, pass, take));
  return classes;
}

KernelRow row_of(const ClassKey& key, const KernelClass& of) {
  const auto count = static_cast<double>(of.runs.size());
  KernelRow row{.name = std::get<0>(key),
                .n = std::get<1>(key),
                .k = std::get<2>(key),
                .launches = static_cast<int64_t>(of.runs.size()),
                .bytes = of.work.bytes / count,
                .flops = of.work.flops / count,
                .is_cold = of.work.bytes > kColdBytes};
  if (row.n > 0 && row.k > 0) {
    row.m = std::llround(row.flops / 2 / static_cast<double>(row.n * row.k));
  }
  return row;
}

// --- peers ---

struct Peer {
  const char* name;
  kernels::cuda::BlasType type;
  int64_t bytes;  // of a weight
};
constexpr Peer kPeers[] = {{"cublasLt bf16", kernels::cuda::BlasType::kBf16, 2},
                           {"cublasLt fp8", kernels::cuda::BlasType::kFp8, 1},
                           {"cublasLt fp8 128x128", kernels::cuda::BlasType::kFp8Blocks, 1}};
constexpr int64_t kPeerBytes = int64_t{2400} << 20;  // of weights in turn
constexpr int64_t kMaxCopies = 32;

Result<KernelRow> bench_peer(device::Device& device,
                             const device::Buffer& memory,
                             const Peer& peer,
                             const KernelRow& ours,
                             int32_t repeats) {
  // FP8 takes rows by sixteen.
  const int64_t m = peer.bytes == 1 ? round_up(ours.m, int64_t{16}) : ours.m;
  const int64_t weight_bytes = ours.n * ours.k * peer.bytes;
  const int64_t x_bytes = round_up(m * ours.k * peer.bytes, int64_t{256});
  const int64_t y_bytes = round_up(m * ours.n * 2, int64_t{256});
  const int64_t room = memory.num_bytes() - x_bytes - y_bytes;
  const int64_t copies = std::min(kMaxCopies, room / weight_bytes);
  if (copies < 1) return unavailable("the product does not fit the benchmark's memory");
  TRY_ASSIGN(const auto product,
             kernels::cuda::BlasProduct::make(device, peer.type, m, ours.n, ours.k));
  std::byte* const x = memory.data();
  std::byte* const y = x + x_bytes;
  const auto enqueue = [&]() -> Result<void> {
    for (int64_t i = 0; i < copies; ++i) {
      TRY(product.launch(x, y + y_bytes + i * weight_bytes, y, device.stream()));
    }
    return {};
  };
  TRY_ASSIGN(const device::Graph graph, device::Graph::capture(device.stream(), enqueue));
  TRY_ASSIGN(const Spread all, time_graph(device.stream(), graph, repeats));
  KernelRow row{.name = peer.name,
                .m = m,
                .n = ours.n,
                .k = ours.k,
                .launches = copies,
                .us = scaled(all, 1.0 / static_cast<double>(copies)),
                .bytes = static_cast<double>(weight_bytes + x_bytes + y_bytes),
                .flops = ours.flops};
  row.is_cold = static_cast<double>(weight_bytes * copies) > kColdBytes;
  return row;
}

}  // namespace

Result<Spread> time_passes(const Pass& pass, int32_t repeats) {
  std::vector<double> times;
  for (int32_t i = 0; i < kWarmUp + repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    TRY(pass());  // done, or queued behind the one before that it waited for
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (i >= kWarmUp) times.push_back(took.count());
  }
  return spread_of(std::move(times));
}

std::string decode_text(const Roofs& roofs,
                        const models::RecordedGraphs& graphs,
                        const std::vector<DecodeRow>& rows) {
  std::string out = read_text(roofs);
  if (graphs.count > 0) {
    out += fmt::format("{} graphs recorded in {:.2f} s\n", graphs.count, graphs.seconds);
  }
  out += fmt::format("{:>6} {:>8} {:>28} {:>9} {:>9} {:>9} {:>6}\n",
                     "batch",
                     "context",
                     "ms a step (low to high)",
                     "tok/s",
                     "GB a step",
                     "floor ms",
                     "share");
  for (const DecodeRow& row : rows) {
    out += fmt::format("{:>6} {:>8} {:>28} {:>9.0f} {:>9.3f} {:>9.3f} {:>5.0f}%\n",
                       row.batch,
                       row.context,
                       fmt::format("{:.3f} ({:.3f} to {:.3f})",
                                   row.us.median * 1e-3,
                                   row.us.low * 1e-3,
                                   row.us.high * 1e-3),
                       row.tok_s(),
                       row.step_bytes * 1e-9,
                       floor_us(roofs, row) * 1e-3,
                       100 * share_of_floor(roofs, row));
  }
  return out;
}

json::Value decode_json(const Roofs& roofs,
                        const models::RecordedGraphs& graphs,
                        const std::vector<DecodeRow>& rows) {
  json::Array list;
  for (const DecodeRow& row : rows) {
    list.push_back(json::make_object({{"batch", row.batch},
                                      {"context", row.context},
                                      {"us", spread_json(row.us)},
                                      {"tok_s", row.tok_s()},
                                      {"step_bytes", row.step_bytes},
                                      {"floor_us", floor_us(roofs, row)},
                                      {"share_of_floor", share_of_floor(roofs, row)}}));
  }
  return json::make_object({{"bench", "decode"},
                            roofs_member(roofs),
                            {"graphs", graphs.count},
                            {"graphs_seconds", graphs.seconds},
                            {"rows", std::move(list)}});
}

std::string prefill_text(const Roofs& roofs, const PrefillRow& row) {
  const std::string peak =
      roofs.bf16_flops_per_s > 0
          ? fmt::format("{:.3g} TFLOP/s by {}", roofs.bf16_flops_per_s * 1e-12, roofs.bf16_note)
          : fmt::format("not measured: {}", roofs.bf16_note);
  return fmt::format(
      "prompt of {} tokens in passes of {}: {:.2f} ms ({:.2f} to {:.2f}), {:.0f} tok/s\n"
      "{:.3g} TFLOP by the records, {:.3g} TFLOP/s: {:.1f}% of the BF16 peak of this run ({})\n",
      row.prompt,
      row.chunk,
      row.us.median * 1e-3,
      row.us.low * 1e-3,
      row.us.high * 1e-3,
      row.tok_s(),
      row.flops * 1e-12,
      row.us.median > 0 ? row.flops / row.us.median * 1e-6 : 0,
      100 * mfu_of(roofs, row),
      peak);
}

json::Value prefill_json(const Roofs& roofs, const PrefillRow& row) {
  return json::make_object({{"bench", "prefill"},
                            roofs_member(roofs),
                            {"chunk", row.chunk},
                            {"prompt", row.prompt},
                            {"us", spread_json(row.us)},
                            {"tok_s", row.tok_s()},
                            {"flops", row.flops},
                            {"mfu", mfu_of(roofs, row)}});
}

Result<std::vector<KernelRow>> bench_kernels(device::Device& device,
                                             const Pass& pass,
                                             std::string_view only,
                                             int32_t repeats) {
  TRY_ASSIGN(auto classes, collect(device, pass, only, repeats));
  std::vector<KernelRow> rows;
  for (auto& [key, of] : classes) {
    KernelRow row = row_of(key, of);
    if (is_gpu(device)) {
      const auto enqueue = [&runs = of.runs]() -> Result<void> {
        for (const std::function<Result<void>()>& run : runs) TRY(run());
        return {};
      };
      TRY_ASSIGN(const device::Graph graph, device::Graph::capture(device.stream(), enqueue));
      TRY_ASSIGN(const Spread all, time_graph(device.stream(), graph, repeats));
      row.us = scaled(all, 1.0 / static_cast<double>(row.launches));
    } else {
      row.us = spread_of(of.us);
      row.is_cold = row.bytes > kColdBytes;  // each is repeated at once
    }
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const KernelRow& a, const KernelRow& b) {
    return a.us.median * static_cast<double>(a.launches) >
           b.us.median * static_cast<double>(b.launches);
  });
  return rows;
}

Result<std::vector<KernelRow>> bench_peers(device::Device& device,
                                           const std::vector<KernelRow>& ours,
                                           int32_t repeats) {
  std::vector<KernelRow> rows;
  if (!is_gpu(device)) return rows;
  TRY_ASSIGN(const device::Buffer memory, device.allocate(kPeerBytes));
  TRY(device::fill_device(memory.data(), 0x35, kPeerBytes, device.stream()));
  std::set<std::tuple<int64_t, int64_t, int64_t>> known;
  for (const KernelRow& row : ours) {
    const bool is_dense = row.n > 0 && row.name.rfind("matmul.", 0) == 0;
    if (!is_dense || !known.insert({row.m, row.n, row.k}).second) continue;
    for (const Peer& peer : kPeers) {
      Result<KernelRow> timed = bench_peer(device, memory, peer, row, repeats);
      if (timed.ok()) {
        rows.push_back(std::move(timed).value());
      } else {
        rows.push_back(
            {.name = peer.name, .m = row.m, .n = row.n, .k = row.k, .note = timed.error().message});
      }
    }
  }
  return rows;
}

std::string kernels_text(const Roofs& roofs, const std::vector<KernelRow>& rows) {
  std::string out = read_text(roofs);
  size_t width = 6;
  for (const KernelRow& row : rows) width = std::max(width, row.name.size());
  out += fmt::format("{:<{}}  {:>5} {:>13} {:>8} {:>26} {:>9} {:>9} {:>5} {:>5}\n",
                     "kernel",
                     width,
                     "m",
                     "n x k",
                     "launches",
                     "us (low to high)",
                     "GB/s",
                     "TFLOP/s",
                     "roof",
                     "cold");
  for (const KernelRow& row : rows) {
    const std::string shape = row.n == 0 ? "" : fmt::format("{} x {}", row.n, row.k);
    const std::string m = row.m == 0 ? "" : fmt::format("{}", row.m);
    if (!row.note.empty()) {
      out += fmt::format("{:<{}}  {:>5} {:>13} {}\n", row.name, width, m, shape, row.note);
      continue;
    }
    const double seconds = row.us.median * 1e-6;
    out += fmt::format(
        "{:<{}}  {:>5} {:>13} {:>8} {:>26} {:>9.1f} {:>9.3f} {:>4.0f}% {:>5}\n",
        row.name,
        width,
        m,
        shape,
        row.launches,
        fmt::format("{:.2f} ({:.2f} to {:.2f})", row.us.median, row.us.low, row.us.high),
        seconds > 0 ? row.bytes / seconds * 1e-9 : 0,
        seconds > 0 ? row.flops / seconds * 1e-12 : 0,
        100 * share_of_roof(roofs, row.bytes, row.flops, seconds),
        row.is_cold ? "yes" : "no");
  }
  return out;
}

json::Value kernels_json(const Roofs& roofs, const std::vector<KernelRow>& rows) {
  json::Array list;
  for (const KernelRow& row : rows) {
    list.push_back(json::make_object(
        {{"kernel", row.name},
         {"m", row.m},
         {"n", row.n},
         {"k", row.k},
         {"launches", row.launches},
         {"us", spread_json(row.us)},
         {"bytes", row.bytes},
         {"flops", row.flops},
         {"share_of_roof", share_of_roof(roofs, row.bytes, row.flops, row.us.median * 1e-6)},
         {"is_cold", row.is_cold},
         {"note", row.note}}));
  }
  return json::make_object({{"bench", "kernels"}, roofs_member(roofs), {"rows", std::move(list)}});
}

}  // namespace nibble::tools
