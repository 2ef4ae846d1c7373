// CPU time of the server per generated token, with a model that answers at once: HTTP, chat
// rendering, tokenizer, scheduling, sampling, detokenizing and SSE for a number of streams at a
// time. The client is a process of its own, so that its time does not count. Shown as a whole and
// by thread (the engine's schedules, samples and detokenizes, the others do the rest), and beside
// it the engine given the same requests without a server.
// A model that answers at once lets several tokens of a stream gather before they are sent; with
// STEP_US each step waits, without using the processor, so that every token is sent alone.
//   server_bench [STREAMS] [TOKENS] [ROUNDS] [STEP_US]
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "server/server.h"
#include "text/tokenizer.h"

namespace nibble::server {
namespace {

constexpr int32_t kVocabSize = 4096;
constexpr int32_t kMaxContext = 8192;
constexpr int32_t kPageSize = 256;

struct Load {
  int32_t num_streams = 64;
  int32_t num_tokens = 512;  // per stream
  Duration step_time{};
};

// Always the same token, computed by waiting.
class IdleModelRunner final : public engine::ModelRunner {
 public:
  IdleModelRunner(const Load& load, int32_t token_id)
      : num_slots_(load.num_streams), step_time_(load.step_time) {
    const int32_t num_slots = num_slots_;
    info_.vocab_size = kVocabSize;
    info_.max_position_embeddings = kMaxContext;
    info_.page_size = kPageSize;
    logits_.assign(static_cast<size_t>(num_slots) * kVocabSize, 0.0F);
    for (size_t row = 0; row < static_cast<size_t>(num_slots); ++row) {
      logits_[row * kVocabSize + static_cast<size_t>(token_id)] = 10.0F;
    }
  }

  const models::ModelInfo& info() const override { return info_; }
  const std::vector<models::RoutedModule>& routed_modules() const override { return modules_; }
  int32_t num_slots() const override { return num_slots_; }
  int32_t num_pages() const override { return num_slots_ * (kMaxContext / kPageSize); }
  int32_t max_tokens_per_step() const override { return 4096; }
  int64_t memory_bytes() const override { return 0; }
  void reset_slot(SlotId) override {}
  Result<void> truncate(SlotId, int32_t) override { return {}; }
  int32_t num_snapshots() const override { return 0; }
  Result<void> save_slot(SlotId, cache::SnapshotId) override { return {}; }
  Result<void> restore_slot(SlotId, cache::SnapshotId) override { return {}; }
  std::span<const std::byte> snapshot(cache::SnapshotId) const override { return {}; }
  Result<void> set_snapshot(cache::SnapshotId, std::span<const std::byte>) override { return {}; }
  Result<void> save_page(PageId, std::span<std::byte>) override { return {}; }
  Result<void> restore_page(PageId, std::span<const std::byte>) override { return {}; }

  Result<engine::StepResult> step(const engine::Batch& batch) override {
    if (step_time_ > Duration::zero()) std::this_thread::sleep_for(step_time_);
    int64_t num_rows = 0;
    for (const engine::BatchItem& item : batch.items) num_rows += item.wants_logits ? 1 : 0;
    return engine::StepResult{
        TensorView::contiguous(logits_.data(), DType::kF32, {num_rows, kVocabSize})};
  }

 private:
  const int32_t num_slots_;
  const Duration step_time_;
  models::ModelInfo info_;
  std::vector<models::RoutedModule> modules_;
  std::vector<float> logits_;  // [num_slots, vocab_size]
};

double cpu_seconds() {
  rusage usage = {};
  CHECK(::getrusage(RUSAGE_SELF, &usage) == 0);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// CPU time of the threads of this process by their names, in seconds.
std::map<std::string, double> cpu_by_thread() {
  std::map<std::string, double> seconds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    double nanoseconds = 0;
    std::ifstream(entry.path() / "schedstat") >> nanoseconds;
    seconds[name] += nanoseconds * 1e-9;
  }
  return seconds;
}

// --- the client process

int connect_to(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

std::string stream_request(const Load& load) {
  const std::string body =
      fmt::format(R"({{"messages":[{{"role":"user","content":"Tell me a story."}}],"stream":true,)"
                  R"("temperature":0,"ignore_eos":true,"max_tokens":{}}})",
                  load.num_tokens);
  return fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      body.size(),
      body);
}

// Reads all streams to their ends.
void run_streams(uint16_t port, const Load& load) {
  const std::string request = stream_request(load);
  std::vector<pollfd> streams;
  for (int32_t i = 0; i < load.num_streams; ++i) {
    streams.push_back({.fd = connect_to(port), .events = POLLIN, .revents = 0});
    CHECK(::send(streams.back().fd, request.data(), request.size(), 0) ==
          static_cast<ssize_t>(request.size()));
  }
  std::vector<char> buffer(64 << 10);
  while (!streams.empty()) {
    CHECK(::poll(streams.data(), streams.size(), -1) > 0);
    for (pollfd& stream : streams) {
      if (stream.revents == 0) continue;
      if (::recv(stream.fd, buffer.data(), buffer.size(), 0) > 0) continue;
      ::close(stream.fd);
      stream.fd = -1;
    }
    std::erase_if(streams, [](const pollfd& stream) { return stream.fd < 0; });
  }
}

// Serves one round for each port number that it reads; 0 ends it.
[[noreturn]] void run_client(int orders, int answers, const Load& load) {
  uint16_t port = 0;
  while (::read(orders, &port, sizeof(port)) == sizeof(port) && port != 0) {
    run_streams(port, load);
    CHECK(::write(answers, &port, sizeof(port)) == sizeof(port));
  }
  ::_exit(0);
}

class Client final {
 public:
  explicit Client(const Load& load) {
    int orders[2];
    int answers[2];
    CHECK(::pipe(orders) == 0 && ::pipe(answers) == 0);
    pid_ = ::fork();
    if (pid_ == 0) run_client(orders[0], answers[1], load);
    orders_ = orders[1];
    answers_ = answers[0];
  }
  ~Client() {
    order(0);
    ::waitpid(pid_, nullptr, 0);
  }
  void run(uint16_t port) {
    order(port);
    CHECK(::read(answers_, &port, sizeof(port)) == sizeof(port));
  }

 private:
  void order(uint16_t port) { CHECK(::write(orders_, &port, sizeof(port)) == sizeof(port)); }

  pid_t pid_ = 0;
  int orders_ = -1;
  int answers_ = -1;
};

// --- the server process

std::unique_ptr<engine::Engine> make_engine(const Load& load,
                                            const text::Tokenizer& tokenizer,
                                            const Clock& clock) {
  const int32_t token_id = tokenizer.encode(" the", {}).value().front();
  return engine::Engine::create({.max_queued_requests = 1024,
                                 .max_running_requests = load.num_streams,
                                 .prefill_chunk_tokens = 4096,
                                 .eos_token_ids = {1}},
                                std::make_unique<IdleModelRunner>(load, token_id),
                                tokenizer,
                                clock)
      .value();
}

// The same requests without HTTP; returns when all have ended.
void run_engine_alone(engine::Engine& engine, const Load& load, const std::vector<int32_t>& ids) {
  std::mutex mutex;
  std::condition_variable done;
  int32_t num_left = load.num_streams;
  for (int32_t i = 0; i < load.num_streams; ++i) {
    engine::Request request;
    request.id = fmt::format("r{}", i);
    request.prompt_ids = ids;
    request.sampling = {.temperature = 0, .max_tokens = load.num_tokens, .ignore_eos = true};
    const auto submitted = engine.submit(std::move(request), [&](engine::Output&& output) {
      if (!output.finish) return;
      const std::lock_guard lock(mutex);
      if (--num_left == 0) done.notify_one();
    });
    CHECK(submitted.ok()) << submitted.error().message;
  }
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return num_left == 0; });
}

struct Spread {
  std::vector<double> values;
  double min() const { return *std::min_element(values.begin(), values.end()); }
  double max() const { return *std::max_element(values.begin(), values.end()); }
};

int run(const Load& load, int32_t num_rounds) {
  Client client(load);  // before any thread
  const auto tokenizer = text::load_tokenizer(Path(NIBBLE_SOURCE_DIR) / "models/tiny-v4").value();
  const SteadyClock clock;
  const auto engine = make_engine(load, *tokenizer, clock);
  const auto server = Server::listen({.http = {.port = 0}, .handles_signals = false}).value();
  server->attach({.served_names = {"bench"}}, *engine, *tokenizer);
  server->start();
  const std::vector<int32_t> ids = tokenizer->encode("Tell me a story.", {}).value();

  const double num_tokens = 1.0 * load.num_tokens * load.num_streams;
  Spread whole;
  Spread alone;
  std::map<std::string, Spread> threads;
  for (int32_t round = 0; round < num_rounds; ++round) {
    auto threads_before = cpu_by_thread();
    const double start = cpu_seconds();
    client.run(server->port());
    const double middle = cpu_seconds();
    for (const auto& [name, seconds] : cpu_by_thread()) {
      threads[name].values.push_back((seconds - threads_before[name]) / num_tokens * 1e6);
    }
    const double begin_alone = cpu_seconds();
    run_engine_alone(*engine, load, ids);
    whole.values.push_back((middle - start) / num_tokens * 1e6);
    alone.values.push_back((cpu_seconds() - begin_alone) / num_tokens * 1e6);
  }
  fmt::print("{} streams of {} tokens, {} rounds; microseconds of CPU per token\n",
             load.num_streams,
             load.num_tokens,
             num_rounds);
  fmt::print("  whole server        {:6.2f} to {:6.2f}\n", whole.min(), whole.max());
  for (const auto& [name, spread] : threads) {
    if (spread.max() < 0.01) continue;
    fmt::print("    {:<18}{:6.2f} to {:6.2f}\n", name, spread.min(), spread.max());
  }
  fmt::print("  engine alone        {:6.2f} to {:6.2f}\n", alone.min(), alone.max());
  fmt::print("  HTTP and SSE        {:6.2f} (difference of the least)\n",
             whole.min() - alone.min());
  return 0;
}

}  // namespace
}  // namespace nibble::server

int main(int argc, char** argv) {
  const auto number = [&](int index, int32_t fallback) {
    return argc > index ? std::max(std::atoi(argv[index]), 0) : fallback;
  };
  return nibble::server::run({.num_streams = number(1, 64),
                              .num_tokens = number(2, 512),
                              .step_time = std::chrono::microseconds(number(4, 0))},
                             number(3, 5));
}
