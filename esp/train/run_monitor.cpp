#include "esp/train/run_monitor.h"

#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/train/metrics_log.h"
#include "esp/train/rank_identity.h"

namespace esp::train {
namespace {

using Kind = InjectedFault::Kind;

Json event_of(const char* name, const comm::Stall& stall) {
  // A stall without a call: ranks hang in a phase, for example while they wait for the files of a checkpoint.
  const auto op = stall.waiting.empty() ? std::nullopt : comm::op_of(stall.call);
  return {{"event", name},
          {"ranks", stall.ranks},
          {"waiting", stall.waiting},
          {"answers", !stall.silent},
          {"op", op ? comm::name_of(*op) : comm::name_of(stall.phase)},
          {"sequence", stall.call.sequence},
          {"group", fmt::format("{:x}", stall.group)},
          {"phase", comm::name_of(stall.phase)},
          {"step", stall.number},
          {"waited_s", std::chrono::duration<double>(stall.waited).count()},
          {"text", stall.text}};
}

}  // namespace

comm::StallDetector::Callbacks stall_callbacks(const Log& log, const std::string& folder, obs::FlightRecorder* flight) {
  comm::StallDetector::Callbacks listener;
  listener.stalled = [log, folder, flight](const comm::Stall& stall) {
    log.warn("stall: {}", stall.text);
    append_event(log, folder, event_of("stall", stall));
    if (!flight) return;
    obs::FlightEvent mark;
    mark.text = "stall";
    mark.group = stall.group;
    mark.sequence = stall.call.sequence;
    mark.peer = stall.ranks.front();
    flight->record(mark);
  };
  listener.resumed = [log, folder](const comm::Stall& stall) {
    log.warn("the stall of rank {1} is over after {0:.1f} s: the rank continues, or the run ends",
             std::chrono::duration<double>(stall.waited).count(), comm::format_ranks(stall.ranks));
    append_event(log, folder, event_of("stall_over", stall));
  };
  return listener;
}

RunMonitor::RunMonitor(Engine& engine, const RunConfig& config, const Log& log, const std::string& folder)
    : engine_(engine), config_(config), log_(log), folder_(folder), job_(engine.job()), replicas_(engine, config) {
  if (job_.stalls) job_.stalls->set_call_labeler(make_call_labeler(engine, config));
  if (job_.fault.kind != Kind::none && job_.rank() == 0) log_.warn("{}", describe(job_.fault));
}

RunMonitor::~RunMonitor() {
  // the labeler belongs to the engine's groups, so it must not outlive them
  if (job_.stalls) job_.stalls->set_call_labeler({});
}

bool RunMonitor::is_injected(Kind kind, int64_t step) const {
  return job_.fault.is(kind, job_.rank(), step);
}

void RunMonitor::begin_step() {
  const int64_t step = engine_.num_steps() + 1;
  begin(comm::Phase::step);
  if (job_.flight)
    job_.flight->record(
        {.kind = obs::FlightKind::step, .state = obs::FlightState::begun, .sequence = static_cast<uint64_t>(step)});
  if (is_injected(Kind::loop, step)) loop_forever();
  // In the first step the GEMMs are only counted. A later step then checks one of them, chosen at random.
  const int64_t every = config_.run.check_products_every;
  const bool wrong = is_injected(Kind::product, step);
  if (every <= 0 || (std::exchange(counted_, true) && step % every != 0 && !wrong)) return;
  products_.begin(static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(job_.rank()));
  if (wrong) products_.corrupt_next();
  scope_ = std::make_unique<kernel::GemmCheck::Scope>(&products_);
}

void RunMonitor::end_step(const StepResult& result, double seconds) {
  const int64_t step = engine_.num_steps();
  scope_.reset();
  if (job_.flight && std::exchange(num_checked_, products_.num_checked()) != products_.num_checked())
    job_.flight->record({.text = "product", .bytes = static_cast<uint64_t>(products_.last_ns())});
  if (job_.flight)
    job_.flight->record(
        {.kind = obs::FlightKind::step, .state = obs::FlightState::ended, .sequence = static_cast<uint64_t>(step)});
  if (products_.fault()) report_product();
  if (is_injected(Kind::flip, step)) replicas_.flip_bit(job_.fault.what);
  if (config_.run.check_replicas_every > 0 && step % config_.run.check_replicas_every == 0) compare();
  if (job_.rank() != 0 || job_.size() < 2) return;
  if (const auto found = straggler_.step(result.slowest_rank, result.waited_ms, seconds * 1e3)) {
    log_.warn(
        "rank {} is slower than the others: in the last {} steps, the others waited {:.1f} of {:.1f} ms per step for "
        "it",
        found->rank, found->num_steps, found->waited_ms, found->step_ms);
    append_event(log_, folder_,
                 {{"event", "straggler"},
                  {"ranks", {found->rank}},
                  {"step", step},
                  {"waited_ms", found->waited_ms},
                  {"step_ms", found->step_ms}});
  }
}

void RunMonitor::begin(comm::Phase phase) {
  const int64_t step = engine_.num_steps() + (phase == comm::Phase::step ? 1 : 0);
  if (job_.stalls)
    job_.stalls->begin(phase, step,
                       phase == comm::Phase::evaluation ? static_cast<double>(config_.train.eval_batches) : 0);
  if (phase == comm::Phase::evaluation && is_injected(Kind::evaluate, step)) loop_forever();
}

void RunMonitor::before_checkpoint() {
  begin(comm::Phase::checkpoint);
  if (config_.run.check_replicas_every > 0) compare();
}

void RunMonitor::compare() {
  if (!replicas_.applies() || std::exchange(compared_at_, engine_.num_steps()) == engine_.num_steps()) return;
  const auto mark = [this](obs::FlightState state) {
    if (job_.flight) job_.flight->record({.state = state, .text = "compare", .bytes = replicas_.bytes()});
  };
  try {
    mark(obs::FlightState::begun);
    replicas_.compare(engine_.num_steps());
    mark(obs::FlightState::ended);
  } catch (const CommError& error) {
    if (error.kind() == CommError::Kind::corrupt) fail_corrupt(error, "replica_differs");
    throw;
  }
}

void RunMonitor::report_product() {
  const kernel::GemmFault& fault = *products_.fault();
  fail_corrupt(
      CommError(
          CommError::Kind::corrupt, job_.rank(),
          fmt::format(
              "rank {} computed a wrong GEMM result in step {}: column {} of a {}x{} by {}x{} GEMM sums to "
              "{:g}; expected {:g} ± {:g}. The {} are not the cause: the check holds for any values, and they were "
              "equal on all ranks at the start. The cause is a hardware error or a bug. Resume from an earlier "
              "checkpoint (checkpoint.resume); if it happens again, exclude that machine",
              job_.rank(), engine_.num_steps(), fault.column, fault.m, fault.k, fault.k, fault.n, fault.got, fault.want,
              fault.allowed, kComparedByRanks)),
      "product_wrong");
}

// Call it on a rank that found corrupt data. Perhaps no other rank has found it, so this aborts the collectives: then
// all ranks report the same cause.
void RunMonitor::fail_corrupt(const CommError& cause, const char* event) {
  if (cause.peer() == job_.rank())
    append_event(log_, folder_,
                 {{"event", event}, {"ranks", {cause.peer()}}, {"step", engine_.num_steps()}, {"text", cause.what()}});
  if (job_.ranks) job_.ranks->abort(cause.what());
  throw CommError(cause);
}

}  // namespace esp::train
