#include "tests/faults/simulation/virtual_hub.h"

namespace esp::sim {
namespace {

// Where a frame says its kind (net/store/frames.h).
net::Kind kind_of(const std::string& frame) {
  return static_cast<net::Kind>(frame[16]);
}

}  // namespace

VirtualHub::VirtualHub(Simulation& simulation, Truth& truth, const ProcessPtr& process, int size,
                       const std::string& job, const Broken& broken)
    : simulation_(simulation),
      truth_(truth),
      process_(process),
      job_(job),
      broken_(broken),
      core_(
          size, {job, -1}, Log(LogLevel::off, -1), [this](int id, std::string bytes) { send(id, bytes); },
          [this](int id) { doomed_.push_back(id); }) {}

VirtualHub::~VirtualHub() {
  *here_ = false;
  core_.announce_closing();
  for (const auto& [id, link] : links_) simulation_.close(link, 1);
}

void VirtualHub::accept(const LinkPtr& link, const net::Hello& hello) {
  const int id = next_id_++;
  links_[id] = link;
  Side& side = link->sides[1];
  side.on_bytes = [this, id, here = here_](std::string_view bytes) {
    if (*here) heard(id, bytes);
  };
  side.on_closed = [this, id, here = here_] {
    if (*here) closed(id);
  };
  core_.opened(id, hello);
  bury();
}

void VirtualHub::heard(int id, std::string_view bytes) {
  core_.received(id, bytes);
  bury();
}

void VirtualHub::closed(int id) {
  closed_.insert(id);
  const Time late = broken_.slow_to_bury ? simulation_.random.between(0, kSecond) : 0;
  if (late == 0) {
    doomed_.push_back(id);
    return bury();
  }
  simulation_.at(simulation_.now() + late, process_, [this, id, here = here_] {
    if (!*here) return;
    doomed_.push_back(id);
    bury();
  });
}

void VirtualHub::send(int id, const std::string& bytes) {
  const auto at = links_.find(id);
  if (at == links_.end()) return;
  const net::Kind kind = kind_of(bytes);
  // Sent to whoever is in it, one after the other.
  if (kind == net::Kind::table && closed_.contains(id))
    truth_.broken("one table: {} is complete with one whose connection had closed before", job_);
  if (kind == net::Kind::lost || kind == net::Kind::left) {
    const std::string_view body = std::string_view(bytes).substr(net::kStoreHeaderBytes);
    const int rank = kind == net::Kind::lost ? net::decode_loss(body).rank : net::decode_rank(body);
    const auto [told, fresh] = told_.emplace(std::pair(id, rank), kind);
    if (!fresh && told->second != kind)
      truth_.broken("one word: {} says of rank {} both that it was lost and that it has left", job_, rank);
  }
  simulation_.send(at->second, 1, bytes);
}

// As the Hub's own thread does at the end of a turn.
void VirtualHub::bury() {
  while (!doomed_.empty()) {
    const int id = doomed_.back();
    doomed_.pop_back();
    const auto link = links_.extract(id);
    if (link.empty()) continue;
    simulation_.close(link.mapped(), 1);
    core_.closed(id);
  }
}

}  // namespace esp::sim
