#include "engine/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/thread_name.h"
#include "engine/admission.h"
#include "engine/engine_core.h"
#include "engine/kv_tier.h"
#include "engine/model_runner.h"
#include "engine/queue_wait.h"

namespace nibble::engine {
namespace {

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

// The mailbox between callers and the engine thread. The mutex guards everything below it; the core
// belongs to the engine thread alone. The model runs on the engine thread, too: a CPU has nothing
// to overlap, a GPU is given steps ahead (DecodeQueue), and the ModelRunner seam leaves room for an
// executor thread per device.
class Engine::Impl final {
 public:
  Impl(const EngineConfig& config,
       EngineCore::Options options,
       std::unique_ptr<ModelRunner> runner,
       const text::Tokenizer& tokenizer,
       const Clock& clock,
       std::unique_ptr<KvTier> tier)
      : info_(runner->info()),
        request_limits_(options.requests),
        eos_token_ids_(options.eos_token_ids),
        max_queued_(config.max_queued_requests),
        clock_(clock),
        core_(std::move(options), std::move(runner), tokenizer, clock, std::move(tier)),
        queue_wait_(config.max_running_requests, config.max_queue_wait),
        stats_(core_.stats()),
        thread_([this] { run(); }) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      is_draining_ = true;
      is_stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  const models::ModelInfo& info() const { return info_; }
  int32_t max_context() const { return request_limits_.max_context; }
  const std::vector<int32_t>& eos_token_ids() const { return eos_token_ids_; }

  Result<void> submit(Request request, OutputSink sink) {
    TRY(validate_request(request, request_limits_));
    {
      const std::lock_guard lock(mutex_);
      if (is_draining_) return unavailable("the engine is shutting down");
      if (num_queued() >= max_queued_) {
        return exhausted(fmt::format("the queue is full: {} requests are waiting", max_queued_));
      }
      if (!request.joins_accepted) {
        TRY(queue_wait_.admit(queue_state(), waiting_request(request)));
      }
      if (!live_ids_.insert(request.id).second) {
        Error error = invalid_argument("request_id: another live request has the same id");
        error.param = "request_id";
        return error;
      }
      submissions_.push_back({std::move(request), std::move(sink), clock_.now()});
    }
    wake_.notify_one();
    return {};
  }

  void cancel(const std::string& request_id) {
    {
      const std::lock_guard lock(mutex_);
      if (!live_ids_.contains(request_id)) return;
      cancelled_ids_.insert(request_id);
    }
    wake_.notify_one();
  }

  EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    EngineStats stats = stats_;
    stats.num_queued = num_queued();
    constexpr WaitingRequest kBehindAll = {.priority = INT32_MIN};
    const std::optional<Duration> wait = queue_wait_.expected(queue_state(), kBehindAll);
    stats.expected_wait_seconds = wait ? to_seconds(*wait) : 0;
    return stats;
  }

  std::string dump_state() const {
    const std::lock_guard lock(mutex_);
    std::string text = fmt::format(
        "engine: {} steps, {} running, {} queued, {} of {} pages used, {} preemptions\n",
        stats_.steps_total,
        stats_.num_running,
        num_queued(),
        stats_.num_pages_used,
        stats_.num_pages_total,
        stats_.preemptions_total);
    const TimePoint now = clock_.now();
    for (const RequestState& state : states_) {
      text += fmt::format(
          "{}: {}, {} of {} prompt tokens computed, {} generated, {} steps queued, {} pages, "
          "{} preemptions, {:.3f} s old\n",
          state.id,
          state.is_running ? "running" : "waiting",
          std::min(state.num_computed, state.num_prompt),
          state.num_prompt,
          state.num_generated,
          state.num_queued,
          state.num_pages,
          state.num_preemptions,
          to_seconds(now - state.arrived));
    }
    return text;
  }

  void flush_cache() {
    {
      const std::lock_guard lock(mutex_);
      is_flush_wanted_ = true;
    }
    wake_.notify_one();
  }

  void drain(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    is_draining_ = true;
    const auto is_done = [this] { return live_ids_.empty() && !is_reporting_end_; };
    if (done_.wait_for(lock, deadline - clock_.now(), is_done)) return;
    cancelled_ids_.insert(live_ids_.begin(), live_ids_.end());
    wake_.notify_one();
    done_.wait(lock, is_done);
  }

 private:
  struct Submission {
    Request request;
    OutputSink sink;
    TimePoint arrived;
  };
  struct Mail {
    std::deque<Submission> submissions;
    std::unordered_set<std::string> cancelled_ids;
    bool is_flush_wanted = false;
    bool is_stopping = false;
  };

  int32_t num_queued() const { return static_cast<int32_t>(live_ids_.size()) - stats_.num_running; }

  int64_t work_of(const Request& request) const {
    return static_cast<int64_t>(request.prompt_ids.size()) +
           resolved_max_tokens(request, request_limits_);
  }

  WaitingRequest waiting_request(const Request& request) const {
    return {.owner = request.owner, .priority = request.priority, .work = work_of(request)};
  }

  // As of the last step, and what was submitted since. Valid until the lock is released.
  QueueState queue_state() const {
    waiting_.clear();
    for (const RequestState& state : states_) {
      if (state.is_running || !live_ids_.contains(state.id)) continue;
      waiting_.push_back({.owner = state.owner,
                          .priority = state.priority,
                          .work = int64_t{state.num_prompt} + state.max_tokens});
    }
    for (const Submission& submission : submissions_) {
      waiting_.push_back(waiting_request(submission.request));
    }
    return {.waiting = waiting_,
            .num_running = stats_.num_running,
            .is_short_of_memory = is_short_of_memory_};
  }

  void run() {
    name_this_thread("nibble-engine");
    while (true) {
      Mail mail = wait_for_mail();
      for (Submission& submission : mail.submissions) start(std::move(submission));
      for (const std::string& id : mail.cancelled_ids) core_.cancel(id);
      if (mail.is_stopping) break;
      if (mail.is_flush_wanted) core_.flush_cache();
      // Before the step as well: a dump then shows what a step that hangs was to compute.
      publish_states();
      core_.step();
      publish_stats();
    }
    core_.cancel_all();
    publish_stats();
    core_.close();
  }

  Mail wait_for_mail() {
    const bool is_idle = core_.is_idle();
    std::unique_lock lock(mutex_);
    if (is_idle) {
      wake_.wait(lock, [this] {
        return !submissions_.empty() || !cancelled_ids_.empty() || is_flush_wanted_ || is_stopping_;
      });
    }
    return {.submissions = std::exchange(submissions_, {}),
            .cancelled_ids = std::exchange(cancelled_ids_, {}),
            .is_flush_wanted = std::exchange(is_flush_wanted_, false),
            .is_stopping = is_stopping_};
  }

  // The id and its place are free again before the client hears of the end; drain() returns after
  // it heard.
  void start(Submission&& submission) {
    OutputSink sink = [this,
                       id = submission.request.id,
                       work = work_of(submission.request),
                       client = std::move(submission.sink)](Output&& output) {
      if (!output.finish) return client(std::move(output));
      {
        const std::lock_guard lock(mutex_);
        live_ids_.erase(id);
        stats_ = core_.stats();
        note_end(*output.finish, work);
        is_reporting_end_ = true;
      }
      client(std::move(output));
      const std::lock_guard lock(mutex_);
      is_reporting_end_ = false;
      if (live_ids_.empty()) done_.notify_all();
    };
    core_.add(std::move(submission.request), std::move(sink), submission.arrived);
  }

  void note_end(const Finish& end, int64_t work) {
    const std::chrono::duration<double> service(end.prefill_seconds + end.decode_seconds);
    if (service.count() <= 0) return;  // it never ran
    queue_wait_.observe({.service = std::chrono::duration_cast<Duration>(service),
                         .work = work,
                         .is_busy = num_queued() > 0});
  }

  void publish_stats() {
    const EngineStats stats = core_.stats();
    const std::lock_guard lock(mutex_);
    stats_ = stats;
    is_short_of_memory_ = core_.is_short_of_memory();
  }

  void publish_states() {
    core_.describe(described_);
    const std::lock_guard lock(mutex_);
    states_.swap(described_);
  }

  const models::ModelInfo info_;
  const RequestLimits request_limits_;
  const std::vector<int32_t> eos_token_ids_;
  const int32_t max_queued_;
  const Clock& clock_;
  EngineCore core_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;                   // the engine thread waits for mail
  std::condition_variable done_;                   // drain() waits for the last finish
  std::deque<Submission> submissions_;             // at most max_queued_
  std::unordered_set<std::string> cancelled_ids_;  // at most the live ids
  std::unordered_set<std::string> live_ids_;       // at most max_queued_ + running
  bool is_reporting_end_ = false;                  // a client hears of its end right now
  bool is_draining_ = false;
  bool is_stopping_ = false;
  bool is_flush_wanted_ = false;
  QueueWait queue_wait_;
  EngineStats stats_;
  bool is_short_of_memory_ = false;
  std::vector<RequestState> states_;             // of the live ids, as of the last step
  mutable std::vector<WaitingRequest> waiting_;  // scratch of queue_state()

  std::vector<RequestState> described_;  // the engine thread's

  std::thread thread_;  // last: starts when everything above exists
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const EngineConfig& config,
                                               std::unique_ptr<ModelRunner> runner,
                                               const text::Tokenizer& tokenizer,
                                               const Clock& clock) {
  TRY_ASSIGN(EngineCore::Options options, EngineCore::resolve(config, *runner, random_seed()));
  std::unique_ptr<KvTier> tier;
  if (!config.kv_disk_dir.empty() && config.kv_disk_bytes > 0) {
    TRY_ASSIGN(options.scheduling.kv.key, disk_tier_key(config.kv_disk_dir));
    TRY_ASSIGN(tier,
               make_disk_tier({.dir = config.kv_disk_dir,
                               .max_bytes = config.kv_disk_bytes,
                               .model = runner->info().fingerprint}));
  }
  if (config.kv_host_bytes > 0) tier = make_memory_tier(config.kv_host_bytes, std::move(tier));
  auto impl = std::make_unique<Impl>(
      config, std::move(options), std::move(runner), tokenizer, clock, std::move(tier));
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const models::ModelInfo& Engine::model_info() const { return impl_->info(); }
int32_t Engine::max_context() const { return impl_->max_context(); }
const std::vector<int32_t>& Engine::eos_token_ids() const { return impl_->eos_token_ids(); }
Result<void> Engine::submit(Request request, OutputSink sink) {
  return impl_->submit(std::move(request), std::move(sink));
}
void Engine::cancel(const std::string& request_id) { impl_->cancel(request_id); }
EngineStats Engine::stats() const { return impl_->stats(); }
std::string Engine::dump_state() const { return impl_->dump_state(); }
void Engine::flush_cache() { impl_->flush_cache(); }
void Engine::drain(TimePoint deadline) { impl_->drain(deadline); }

}  // namespace nibble::engine
