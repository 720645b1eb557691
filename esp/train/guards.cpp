#include "esp/train/guards.h"

#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/train/metrics_log.h"

namespace esp::train {
namespace {

using Kind = InjectedFault::Kind;

Json event_of(const char* name, const comm::Stall& stall) {
  // Without a call it is the phase that nobody gets through: a checkpoint's files are waited for, say.
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

comm::StallDetector::Callbacks stall_listener(const Log& log, const std::string& folder, obs::FlightRecorder* flight) {
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
  listener.went_on = [log, folder](const comm::Stall& stall) {
    log.warn("the stall is over after {:.1f} s: rank {} goes on, or the run ends",
             std::chrono::duration<double>(stall.waited).count(), comm::name_ranks(stall.ranks));
    append_event(log, folder, event_of("stall_over", stall));
  };
  return listener;
}

Guards::Guards(Engine& engine, const RunConfig& config, const Log& log, const std::string& folder)
    : engine_(engine),
      config_(config),
      log_(log),
      folder_(folder),
      standing_(engine.standing()),
      replicas_(engine, config) {
  if (standing_.stalls) standing_.stalls->set_call_labeler(purposes_of(engine, config));
  if (standing_.fault.kind != Kind::none && standing_.rank() == 0) log_.warn("{}", describe(standing_.fault));
}

Guards::~Guards() {
  if (standing_.stalls) standing_.stalls->set_call_labeler({});  // it knows the engine's groups
}

bool Guards::is_injected(Kind kind, int64_t step) const {
  return standing_.fault.is(kind, standing_.rank(), step);
}

void Guards::begin_step() {
  const int64_t step = engine_.num_steps() + 1;
  begin(comm::Phase::step);
  if (standing_.flight)
    standing_.flight->record(
        {.kind = obs::FlightKind::step, .state = obs::FlightState::begun, .sequence = static_cast<uint64_t>(step)});
  if (is_injected(Kind::loop, step)) loop_forever();
  // The first step is counted, so that one product of a later one can be drawn among as many.
  const int64_t every = config_.run.check_products_every;
  const bool wrong = is_injected(Kind::product, step);
  if (every <= 0 || (std::exchange(counted_, true) && step % every != 0 && !wrong)) return;
  products_.begin(static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(standing_.rank()));
  if (wrong) products_.corrupt_next();
  scope_ = std::make_unique<kernel::GemmCheck::Scope>(&products_);
}

void Guards::end_step(const StepResult& result, double seconds) {
  const int64_t step = engine_.num_steps();
  scope_.reset();
  if (standing_.flight && std::exchange(num_checked_, products_.num_checked()) != products_.num_checked())
    standing_.flight->record({.text = "product", .bytes = static_cast<uint64_t>(products_.last_ns())});
  if (standing_.flight)
    standing_.flight->record(
        {.kind = obs::FlightKind::step, .state = obs::FlightState::ended, .sequence = static_cast<uint64_t>(step)});
  if (products_.fault()) report_product();
  if (is_injected(Kind::flip, step)) replicas_.flip(standing_.fault.what);
  if (config_.run.check_replicas_every > 0 && step % config_.run.check_replicas_every == 0) compare();
  if (standing_.rank() != 0 || standing_.size() < 2) return;
  if (const auto found = straggler_.step(result.slowest_rank, result.waited_ms, seconds * 1e3)) {
    log_.warn("rank {} is slower than the others: in the last {} steps they waited {:.1f} of {:.1f} ms for it",
              found->rank, found->num_steps, found->waited_ms, found->step_ms);
    append_event(log_, folder_,
                 {{"event", "straggler"},
                  {"ranks", {found->rank}},
                  {"step", step},
                  {"waited_ms", found->waited_ms},
                  {"step_ms", found->step_ms}});
  }
}

void Guards::begin(comm::Phase phase) {
  const int64_t step = engine_.num_steps() + (phase == comm::Phase::step ? 1 : 0);
  if (standing_.stalls)
    standing_.stalls->begin(phase, step,
                            phase == comm::Phase::evaluation ? static_cast<double>(config_.train.eval_batches) : 0);
  if (phase == comm::Phase::evaluation && is_injected(Kind::evaluate, step)) loop_forever();
}

void Guards::before_checkpoint() {
  begin(comm::Phase::checkpoint);
  if (config_.run.check_replicas_every > 0) compare();
}

void Guards::compare() {
  if (!replicas_.applies() || std::exchange(compared_at_, engine_.num_steps()) == engine_.num_steps()) return;
  const auto mark = [this](obs::FlightState state) {
    if (standing_.flight) standing_.flight->record({.state = state, .text = "compare", .bytes = replicas_.bytes()});
  };
  try {
    mark(obs::FlightState::begun);
    replicas_.compare(engine_.num_steps());
    mark(obs::FlightState::ended);
  } catch (const CommError& error) {
    if (error.kind() == CommError::Kind::corrupt) condemn(error, "replica_differs");
    throw;
  }
}

void Guards::report_product() {
  const kernel::GemmFault& fault = *products_.fault();
  condemn(
      CommError(CommError::Kind::corrupt, standing_.rank(),
                fmt::format("rank {} multiplied wrong in step {}: column {} of a {}x{} by {}x{} product sums to {:g} "
                            "where {:g} ± {:g} is right; do not trust this machine's processor",
                            standing_.rank(), engine_.num_steps(), fault.column, fault.m, fault.k, fault.k, fault.n,
                            fault.got, fault.want, fault.allowed)),
      "product_wrong");
}

// Found by one rank or by some: all are to hear the same cause.
void Guards::condemn(const CommError& cause, const char* event) {
  if (cause.peer() == standing_.rank())
    append_event(log_, folder_,
                 {{"event", event}, {"ranks", {cause.peer()}}, {"step", engine_.num_steps()}, {"text", cause.what()}});
  if (standing_.ranks) standing_.ranks->abort(cause.what());
  throw CommError(cause);
}

}  // namespace esp::train
