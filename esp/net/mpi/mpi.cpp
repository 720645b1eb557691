// Wire format, per message and in order: one MPI message on the group's first tag carries the header of net/tcp/frame.h
// and, if both fit in 4 KiB, the payload. Otherwise the payload follows on the group's second tag in slices of 256 KiB,
// so that one slice is applied while the next arrives. Both sides derive the slices from the length. The two tags of a
// group come from a counter in the store and are never reused, so groups cannot receive each other's messages.
//
// All data is staged in buffers of this transport. MPI cannot always release a buffer (a send to a lost peer), and
// memory that it may access after abandon() must not belong to the caller.
#include "esp/net/mpi/mpi.h"

#include <array>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/net/futex_event.h"
#include "esp/net/mpi/library.h"
#include "esp/net/queued_transport.h"
#include "esp/net/tcp/frame.h"

namespace esp::net {
namespace {

// size limit of a message's first MPI message: the header, and the payload if both fit
constexpr size_t kFirstBytes = 4096;
constexpr size_t kInlineBytes = kFirstBytes - kFrameHeaderBytes;
constexpr size_t kSliceBytes = size_t{256} << 10;
constexpr size_t kWindow = 4;  // maximum of slices in progress per peer and direction
constexpr auto kLongestNap = std::chrono::milliseconds(1);
constexpr auto kCancelTimeout = std::chrono::milliseconds(50);

struct Slice {
  EspMpiRequest request = nullptr;
  size_t bytes = 0;
};

// One direction to one peer: the queue of transfers, and the progress of the message at the front of the queue.
struct Lane {
  TransferQueue queue;
  uint64_t number = 0;  // sequence number of the message at the front of the queue
  bool begun = false;   // the first MPI message of the front message has been started
  bool opened = false;  // incoming: the header was read; outgoing: the first MPI message has been sent
  EspMpiRequest first_request = nullptr;
  std::array<std::byte, kFirstBytes> first;
  size_t issued = 0;                  // payload bytes that were passed to MPI so far
  std::array<Slice, kWindow> window;  // ring buffer of slices in progress; they finish in order
  size_t oldest = 0, num_slices = 0;
  std::vector<std::byte> staging;  // staging memory of the kWindow slices

  void next() {
    ++number;
    begun = opened = false;
    issued = 0;
  }
};

class Mpi final : public Transport {
 public:
  Mpi(const World& world, const Group& group);
  ~Mpi() override;

  std::string_view name() const override { return "mpi"; }
  void send(Transfer& transfer) override { post(out_, transfer); }
  void receive(Transfer& transfer) override { post(in_, transfer); }
  bool poll() override;
  void sleep(Deadline deadline) override;
  void abandon() noexcept override;

 private:
  using Lanes = std::vector<std::unique_ptr<Lane>>;

  void post(Lanes& lanes, Transfer& transfer);
  bool push(int peer, Lane& lane);
  bool pull(int peer, Lane& lane);
  bool issue_slices(int peer, Lane& lane, bool out);
  bool finish_slices(int peer, Lane& lane, bool out);
  bool read_header(int peer, Lane& lane, size_t bytes);
  bool test(EspMpiRequest& request, int peer, size_t& bytes);
  int world_rank(int peer) const { return group_.members[static_cast<size_t>(peer)]; }
  void cancel_request(EspMpiRequest& request, Deadline deadline, int& stuck) noexcept;

  MpiLibrary& library_;
  const EspMpiTable& mpi_;
  int tag_ = 0;     // the group uses tag_ and tag_ + 1
  Lanes out_, in_;  // index: peer; a lane is created on first use
  SpinWait spin_;
  Duration nap_{};
};

int ranks_here(const World& world) {
  int count = 0;
  for (int rank = 0; rank < world.size; ++rank) count += world.same_host(rank, world.rank);
  return count;
}

Mpi::Mpi(const World& world, const Group& group)
    : Transport(world, group),
      library_(*world.mpi),
      mpi_(library_.table()),
      out_(group.members.size()),
      in_(group.members.size()),
      spin_(ranks_here(world)) {
  // A group may be opened several times. Every member counts its openings, so that members join the same opening.
  int64_t opening = world.store->add(fmt::format("mpi/opened/{:x}/{}", group.id, group.rank), 1);
  std::string key = fmt::format("mpi/tag/{:x}/{}", group.id, opening);
  if (group.rank == 0) world.store->set(key, std::to_string(world.store->add("mpi/tags", 1)));
  int64_t place =
      std::stoll(wait_for_key(world, group, key, group.members[0], Deadline::after(world.options.start_timeout)));
  if (2 * place + 1 > mpi_.tag_limit())
    throw CommError(CommError::Kind::refused, -1,
                    fmt::format("{}: no tags are left for another group; the maximum is {} groups", mpi_.library,
                                mpi_.tag_limit() / 2));
  tag_ = static_cast<int>(2 * place);
}

Mpi::~Mpi() {
  abandon();
}

void Mpi::post(Lanes& lanes, Transfer& transfer) {
  ESP_CHECK(transfer.peer >= 0 && transfer.peer < size() && transfer.peer != rank(),
            "peer: got {}; expected another rank of the group", transfer.peer);
  if (transfer.bytes > kMaxMessageBytes)
    throw UsageError(fmt::format("message: got {} bytes; expected at most {}", transfer.bytes, kMaxMessageBytes));
  auto& lane = lanes[static_cast<size_t>(transfer.peer)];
  if (!lane) lane = std::make_unique<Lane>();
  transfer.state = Transfer::State::posted;
  transfer.moved = 0;
  lane->queue.push(transfer);
  spin_.reset();
}

bool Mpi::poll() {
  check_peer_status();
  bool moved = false;
  try {
    for (int peer = 0; peer < size(); ++peer) {
      if (auto& lane = out_[static_cast<size_t>(peer)]; lane && !lane->queue.empty()) moved |= push(peer, *lane);
      if (auto& lane = in_[static_cast<size_t>(peer)]; lane && !lane->queue.empty()) moved |= pull(peer, *lane);
    }
  } catch (...) {
    abandon();
    throw;
  }
  if (moved) spin_.reset();
  if (moved) nap_ = {};
  return moved;
}

bool Mpi::test(EspMpiRequest& request, int peer, size_t& bytes) {
  int done = 0, got = 0;
  library_.check(mpi_.test(&request, &done, &got), "MPI_Test", world_rank(peer));
  bytes = static_cast<size_t>(got);
  return done != 0;
}

bool Mpi::push(int peer, Lane& lane) {
  Transfer& transfer = *lane.queue.first;
  Traffic& traffic = traffic_[static_cast<size_t>(peer)];
  bool moved = false;
  bool fits = transfer.bytes <= kInlineBytes;
  if (!lane.begun) {
    encode_frame({transfer.tag, transfer.bytes, lane.number, 0, 1, false},
                 FrameBytes(lane.first.data(), kFrameHeaderBytes));
    size_t bytes = kFrameHeaderBytes;
    if (fits && transfer.bytes > 0) std::memcpy(&lane.first[kFrameHeaderBytes], transfer.data, transfer.bytes);
    if (fits) bytes += transfer.bytes;
    library_.check(mpi_.isend(lane.first.data(), static_cast<int>(bytes), world_rank(peer), tag_, &lane.first_request),
                   "MPI_Isend", world_rank(peer));
    lane.begun = moved = true;
  }
  if (!fits) moved |= issue_slices(peer, lane, true);
  if (!fits) moved |= finish_slices(peer, lane, true);
  size_t ignored;
  if (lane.first_request && test(lane.first_request, peer, ignored)) moved = true;
  if (lane.first_request || (!fits && transfer.moved < transfer.bytes)) return moved;

  traffic.bytes_sent += transfer.bytes;
  traffic.header_bytes_sent += kFrameHeaderBytes;
  ++traffic.messages_sent;
  lane.queue.pop().state = Transfer::State::done;
  lane.next();
  return true;
}

bool Mpi::pull(int peer, Lane& lane) {
  Transfer& transfer = *lane.queue.first;
  Traffic& traffic = traffic_[static_cast<size_t>(peer)];
  bool moved = false;
  if (!lane.begun) {
    library_.check(mpi_.irecv(lane.first.data(), kFirstBytes, world_rank(peer), tag_, &lane.first_request), "MPI_Irecv",
                   world_rank(peer));
    lane.begun = true;
  }
  if (!lane.opened) {
    size_t bytes = 0;
    if (!test(lane.first_request, peer, bytes)) return false;
    if (!read_header(peer, lane, bytes)) return true;
    lane.opened = moved = true;
  }
  if (transfer.bytes > kInlineBytes) {
    moved |= issue_slices(peer, lane, false);
    moved |= finish_slices(peer, lane, false);
    if (transfer.moved < transfer.bytes) return moved;
  }
  traffic.bytes_received += transfer.bytes;
  ++traffic.messages_received;
  lane.queue.pop().state = Transfer::State::done;
  lane.next();
  return true;
}

// Returns false if the received message does not match the posted receive.
bool Mpi::read_header(int peer, Lane& lane, size_t bytes) {
  Transfer& transfer = *lane.queue.first;
  FrameHeader header = decode_frame(ConstFrameBytes(lane.first.data(), kFrameHeaderBytes), world_rank(peer));
  if (header.tag != transfer.tag || header.message_bytes != transfer.bytes) {
    transfer.got = header.tag;
    transfer.got_bytes = header.message_bytes;
    transfer.state = Transfer::State::mismatched;
    lane.queue.pop();
    return false;
  }
  size_t expected = kFrameHeaderBytes + (transfer.bytes <= kInlineBytes ? transfer.bytes : 0);
  if (header.number != lane.number || bytes != expected)
    throw CommError(CommError::Kind::corrupt, world_rank(peer),
                    fmt::format("rank {}: got message {} with {} bytes; expected message {} with {} bytes",
                                world_rank(peer), header.number, bytes, lane.number, expected));
  if (transfer.bytes <= kInlineBytes && transfer.bytes > 0)
    deliver(transfer, &lane.first[kFrameHeaderBytes], transfer.bytes);
  return true;
}

bool Mpi::issue_slices(int peer, Lane& lane, bool out) {
  Transfer& transfer = *lane.queue.first;
  if (lane.staging.empty()) lane.staging.resize(kWindow * kSliceBytes);
  bool issued = false;
  while (lane.num_slices < kWindow && lane.issued < transfer.bytes) {
    size_t place = (lane.oldest + lane.num_slices) % kWindow;
    Slice& slice = lane.window[place];
    slice.bytes = std::min(kSliceBytes, transfer.bytes - lane.issued);
    std::byte* data = &lane.staging[place * kSliceBytes];
    int bytes = static_cast<int>(slice.bytes), other = world_rank(peer);
    if (out) {
      std::memcpy(data, transfer.data + lane.issued, slice.bytes);
      library_.check(mpi_.isend(data, bytes, other, tag_ + 1, &slice.request), "MPI_Isend", other);
    } else {
      library_.check(mpi_.irecv(data, bytes, other, tag_ + 1, &slice.request), "MPI_Irecv", other);
    }
    lane.issued += slice.bytes;
    ++lane.num_slices;
    issued = true;
  }
  return issued;
}

bool Mpi::finish_slices(int peer, Lane& lane, bool out) {
  Transfer& transfer = *lane.queue.first;
  bool finished = false;
  while (lane.num_slices > 0) {
    Slice& slice = lane.window[lane.oldest];
    size_t bytes = 0;
    if (!test(slice.request, peer, bytes)) break;
    if (!out && bytes != slice.bytes)
      throw CommError(CommError::Kind::corrupt, world_rank(peer),
                      fmt::format("slice of rank {}: got {} bytes; expected {}", world_rank(peer), bytes, slice.bytes));
    if (out)
      transfer.moved += slice.bytes;
    else
      deliver(transfer, &lane.staging[lane.oldest * kSliceBytes], slice.bytes);
    lane.oldest = (lane.oldest + 1) % kWindow;
    --lane.num_slices;
    finished = true;
    issue_slices(peer, lane, out);
  }
  return finished;
}

void Mpi::sleep(Deadline deadline) {
  if (spin_.spin_once()) return;
  nap_ = std::min<Duration>(kLongestNap, nap_ + std::max<Duration>(nap_, std::chrono::microseconds(20)));
  std::this_thread::sleep_for(std::min(nap_, deadline.left()));
}

void Mpi::cancel_request(EspMpiRequest& request, Deadline deadline, int& stuck) noexcept {
  if (!request) return;
  int done = 0, bytes = 0;
  if (mpi_.test(&request, &done, &bytes) != 0 || done) return;
  mpi_.cancel(request);
  while (mpi_.test(&request, &done, &bytes) == 0 && !done) {
    if (deadline.passed()) {
      ++stuck;
      return;
    }
    std::this_thread::yield();
  }
}

void Mpi::abandon() noexcept {
  Deadline deadline = Deadline::after(kCancelTimeout);
  int stuck = 0;
  for (Lanes* lanes : {&out_, &in_})
    for (auto& lane : *lanes) {
      if (!lane) continue;
      cancel_request(lane->first_request, deadline, stuck);
      for (Slice& slice : lane->window) cancel_request(slice.request, deadline, stuck);
      // MPI may still access this memory, so it is leaked on purpose.
      if (stuck > 0) (void)lane.release();
      lane.reset();
    }
  if (stuck > 0)
    world_.log.debug("closing a group: {} transfers could not be cancelled in {}; their buffers are leaked", stuck,
                     mpi_.library);
}

}  // namespace

bool mpi_reaches(const World& world, int, int) {
  return world.mpi != nullptr;
}

std::unique_ptr<Transport> open_mpi(const World& world, const Group& group) {
  return std::make_unique<Mpi>(world, group);
}

}  // namespace esp::net
