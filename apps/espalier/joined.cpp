#include "apps/espalier/joined.h"

#include "esp/base/error.h"
#include "esp/launch/world.h"
#include "esp/obs/flight_recorder.h"

namespace esp::app {
namespace {

// Longer than the launcher's patience, which kills those that do not come: whoever does come waits for its word.
constexpr Duration kWord = std::chrono::seconds(25);

}  // namespace

Joined::Joined(const launch::Environment& environment, comm::CommOptions communicating, const net::NetOptions& timeouts,
               comm::StallDetector::Callbacks listener, train::RankIdentity identity)
    : meeting_(launch::join_options(environment, communicating.transport == "mpi")),
      communicating_(std::move(communicating)),
      identity_(std::move(identity)),
      control_(launch::Control::from(environment)),
      listener_(std::move(listener)) {
  meeting_.net.timeout = timeouts.timeout;
  meeting_.net.start_timeout = timeouts.start_timeout;
  meeting_.net.link_timeout = timeouts.link_timeout;
  launch::read_timeouts(environment, meeting_.net);
  meeting_.timeout_option = "comm.start_timeout_s";
  // A sum made wrong on the way would be wrong for good.
  meeting_.net.payload_checksum = true;
  if (const auto at = environment.find("ESPALIER_FAULT"); at != environment.end())
    fault_ = train::parse_fault(at->second);
  if (const auto at = environment.find("ESPALIER_SNAPSHOTS"); at != environment.end()) snapshots_ = at->second;
  if (control_) control_->say(launch::Word::Kind::ready);
  meet(Deadline::after(meeting_.net.start_timeout));
}

void Joined::meet(Deadline deadline) {
  world_ = net::rendezvous(meeting_, deadline);
  train::check_same_run(*world_, identity_, deadline);
  stalls_ = std::make_unique<comm::StallDetector>(*world_, listener_);
  ranks_ = comm::make_communicator(*world_, world_->everyone(), communicating_);
  if (control_) control_->say(launch::Word::Kind::formed);
}

train::Standing Joined::standing() const {
  return {ranks_.get(), std::max(1, meeting_.local_size), communicating_.flight.get(), stalls_.get(), fault_};
}

std::optional<CommError> Joined::loss() const {
  constexpr uint64_t kNoGroup = ~uint64_t{0};  // that could have been aborted
  try {
    for (int rank = 0; rank < world_->size; ++rank)
      if (world_->fate->lost(rank)) world_->fate->check(kNoGroup, {rank});
  } catch (const CommError& error) {
    return error;
  }
  return std::nullopt;
}

std::optional<train::Standing> Joined::reform() {
  for (;;) {
    ranks_.reset();
    stalls_.reset();
    world_.reset();
    const auto next = control_->await(Deadline::after(kWord));
    if (!next) return std::nullopt;
    meeting_.job = next->job;
    meeting_.endpoint = next->store;
    try {
      meet(Deadline::after(meeting_.net.start_timeout));
      return standing();
    } catch (const CommError& error) {
      // One more was lost as they met: the launcher decides what comes next.
      meeting_.log.warn("the ranks did not meet: {}", error.what());
    }
  }
}

train::Recovery Joined::recovery() {
  train::Recovery recovery;
  recovery.snapshots = snapshots_;
  recovery.peer_lost = [this] { return world_ && loss(); };
  recovery.loss = [this] { return world_ ? loss() : std::nullopt; };
  if (!control_) return recovery;
  recovery.resumed = [this](const std::string& from) { control_->say(launch::Word::Kind::resumed, from); };
  recovery.reform = [this] { return reform(); };
  return recovery;
}

}  // namespace esp::app
