#include "tests/faults/simulation/virtual_hub.h"

namespace esp::sim {
namespace {

// The kind of a frame, read at its offset in the header (net/store/frames.h).
net::FrameKind kind_of(const std::string& frame) {
  return static_cast<net::FrameKind>(frame[16]);
}

}  // namespace

VirtualHub::VirtualHub(Simulation& simulation, InvariantChecker& invariants, const ProcessPtr& process, int size,
                       const std::string& job, const InjectedBugs& bugs)
    : simulation_(simulation),
      invariants_(invariants),
      process_(process),
      job_(job),
      bugs_(bugs),
      core_(
          size, {job, -1}, Log(LogLevel::off, -1), [this](int id, std::string bytes) { send(id, bytes); },
          [this](int id) { pending_losses_.push_back(id); }) {}

VirtualHub::~VirtualHub() {
  *here_ = false;
  core_.announce_closing();
  for (const auto& [id, link] : links_) simulation_.close(link, 1);
}

void VirtualHub::accept(const LinkPtr& link, const net::HandshakeRequest& request) {
  const int id = next_id_++;
  links_[id] = link;
  Side& side = link->sides[1];
  side.on_bytes = [this, id, here = here_](std::string_view bytes) {
    if (*here) on_message(id, bytes);
  };
  side.on_closed = [this, id, here = here_] {
    if (*here) closed(id);
  };
  core_.opened(id, request);
  remove_lost_ranks();
}

void VirtualHub::on_message(int id, std::string_view bytes) {
  core_.received(id, bytes);
  remove_lost_ranks();
}

void VirtualHub::closed(int id) {
  closed_.insert(id);
  const Time late = bugs_.late_disconnect ? simulation_.random.between(0, kSecond) : 0;
  if (late == 0) {
    pending_losses_.push_back(id);
    return remove_lost_ranks();
  }
  simulation_.at(simulation_.now() + late, process_, [this, id, here = here_] {
    if (!*here) return;
    pending_losses_.push_back(id);
    remove_lost_ranks();
  });
}

void VirtualHub::send(int id, const std::string& bytes) {
  const auto at = links_.find(id);
  if (at == links_.end()) return;
  const net::FrameKind kind = kind_of(bytes);
  // The hub sends the table to its members one after the other. It must not know of any closed member connection.
  if (kind == net::FrameKind::table && closed_.contains(id))
    invariants_.violation("consistent table: {} contains a rank although its connection had closed before", job_);
  if (kind == net::FrameKind::lost || kind == net::FrameKind::left) {
    const std::string_view body = std::string_view(bytes).substr(net::kStoreHeaderBytes);
    const int rank = kind == net::FrameKind::lost ? net::decode_rank_failure(body).rank : net::decode_rank(body);
    const auto [entry, fresh] = sent_ends_.emplace(std::pair(id, rank), kind);
    if (!fresh && entry->second != kind)
      invariants_.violation("single verdict: {} reports rank {} both as lost and as left", job_, rank);
  }
  simulation_.send(at->second, 1, bytes);
}

// The real Hub's thread does the same at the end of an iteration.
void VirtualHub::remove_lost_ranks() {
  while (!pending_losses_.empty()) {
    const int id = pending_losses_.back();
    pending_losses_.pop_back();
    const auto link = links_.extract(id);
    if (link.empty()) continue;
    simulation_.close(link.mapped(), 1);
    core_.closed(id);
  }
}

}  // namespace esp::sim
