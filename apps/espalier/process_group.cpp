#include "apps/espalier/process_group.h"

#include "esp/base/error.h"
#include "esp/launch/world.h"
#include "esp/obs/flight_recorder.h"

namespace esp::app {
namespace {

// How long a rank waits for the launcher's message. Longer than the time after which the launcher kills ranks that do
// not respond.
constexpr Duration kControlTimeout = std::chrono::seconds(25);

}  // namespace

ProcessGroup::ProcessGroup(const launch::Environment& environment, comm::CommOptions comm_options,
                           const net::NetOptions& timeouts, comm::StallDetector::Callbacks listener,
                           train::RankIdentity identity)
    : rendezvous_(launch::join_options(environment, comm_options.transport == "mpi")),
      comm_options_(std::move(comm_options)),
      identity_(std::move(identity)),
      control_(launch::ControlChannel::from(environment)),
      listener_(std::move(listener)) {
  rendezvous_.net.timeout = timeouts.timeout;
  rendezvous_.net.start_timeout = timeouts.start_timeout;
  rendezvous_.net.link_timeout = timeouts.link_timeout;
  launch::read_timeouts(environment, rendezvous_.net);
  rendezvous_.timeout_option = "comm.start_timeout_s";
  // Enables checksums: one corrupted gradient would corrupt the weights permanently.
  rendezvous_.net.payload_checksum = true;
  if (const auto at = environment.find("ESPALIER_FAULT"); at != environment.end())
    fault_ = train::parse_fault(at->second);
  if (const auto at = environment.find("ESPALIER_SNAPSHOTS"); at != environment.end()) snapshots_ = at->second;
  if (control_) control_->send(launch::RankMessage::Kind::ready);
  connect(Deadline::after(rendezvous_.net.start_timeout));
}

void ProcessGroup::connect(Deadline deadline) {
  world_ = net::rendezvous(rendezvous_, deadline);
  train::check_same_run(*world_, identity_, deadline);
  stalls_ = std::make_unique<comm::StallDetector>(*world_, listener_);
  ranks_ = comm::make_communicator(*world_, world_->world_group(), comm_options_);
  if (control_) control_->send(launch::RankMessage::Kind::formed);
}

train::JobContext ProcessGroup::context() const {
  return {ranks_.get(), std::max(1, rendezvous_.local_size), comm_options_.flight.get(), stalls_.get(), fault_};
}

std::optional<CommError> ProcessGroup::peer_failure() const {
  constexpr uint64_t kNoGroup = ~uint64_t{0};  // no group has this id, so no abort matches it
  try {
    for (int rank = 0; rank < world_->size; ++rank)
      if (world_->peer_status->is_lost(rank)) world_->peer_status->check(kNoGroup, {rank});
  } catch (const CommError& error) {
    return error;
  }
  return std::nullopt;
}

std::optional<train::JobContext> ProcessGroup::reconnect() {
  for (;;) {
    ranks_.reset();
    stalls_.reset();
    world_.reset();
    const auto next = control_->await_next_round(Deadline::after(kControlTimeout));
    if (!next) return std::nullopt;
    rendezvous_.job = next->job;
    rendezvous_.endpoint = next->store;
    try {
      connect(Deadline::after(rendezvous_.net.start_timeout));
      return context();
    } catch (const CommError& error) {
      // Another rank failed during the rendezvous. The loop waits for the launcher's next message.
      rendezvous_.log.warn("rendezvous failed: {}", error.what());
    }
  }
}

train::RecoveryOptions ProcessGroup::recovery() {
  train::RecoveryOptions recovery;
  recovery.snapshot_folder = snapshots_;
  recovery.peer_lost = [this] { return world_ && peer_failure(); };
  recovery.peer_loss = [this] { return world_ ? peer_failure() : std::nullopt; };
  if (!control_) return recovery;
  recovery.on_resumed = [this](const std::string& from) { control_->send(launch::RankMessage::Kind::resumed, from); };
  recovery.restart_in_place = [this] { return reconnect(); };
  return recovery;
}

}  // namespace esp::app
