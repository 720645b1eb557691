// Stream: one connection to a peer, with the frames queued to go out and those expected to come in. Owned by its
// transport and used by the thread that drives it.
//
// Several frames travel in one system call, header and payload together, straight from and into the callers' memory. A
// read never asks for more than the posted receives want, so nothing is ever buffered here; it does fill the memory of
// a posted receive before the header in front of it was looked at, which is why a receive that ends as mismatched
// leaves its destination undefined. Receives with `apply` pass through a staging buffer small enough to stay in the
// cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "esp/net/socket.h"
#include "esp/net/tcp/frame.h"
#include "esp/net/tcp/tls.h"
#include "esp/net/transport.h"

namespace esp::net {

// One stripe of a posted transfer.
struct Piece {
  Transfer* transfer = nullptr;
  size_t offset = 0, bytes = 0;
  uint64_t number = 0;
  uint8_t num_stripes = 1;
  size_t summed = 0;  // bytes the checksum covers so far
  uint32_t crc = 0;
};

// First in, first out; grows when full and keeps its memory.
class PieceQueue {
 public:
  bool empty() const { return begin_ == end_; }
  size_t size() const { return end_ - begin_; }
  Piece& operator[](size_t i) { return slots_[(begin_ + i) % slots_.size()]; }
  void push(const Piece& piece);
  void pop() { ++begin_; }
  void clear() { begin_ = end_ = 0; }

 private:
  std::vector<Piece> slots_ = std::vector<Piece>(16);
  size_t begin_ = 0, end_ = 0;
};

class Stream {
 public:
  Stream(int index, int peer, bool checked) : index_(index), peer_(peer), checked_(checked) {}

  // `tls`, where the job is encrypted: everything goes through it.
  void attach(Socket socket, std::unique_ptr<Tls> tls = nullptr) {
    socket_ = std::move(socket);
    tls_ = std::move(tls);
  }
  bool attached() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.fd(); }
  bool idle() const { return outgoing.empty() && incoming.empty(); }

  // One system call each; true when bytes moved. Finished transfers are marked and counted. CommError(corrupt).
  bool push(Traffic& traffic);
  bool pull(Traffic& traffic, std::span<std::byte> staging);

  // The connection ended in a direction in which something is still queued.
  bool broken() const { return (out_closed_ && !outgoing.empty()) || (in_closed_ && !incoming.empty()); }
  void abandon();

  PieceQueue outgoing, incoming;

 private:
  static constexpr size_t kBatch = 8;                     // frames per system call
  static constexpr size_t kCallBytes = size_t{1} << 20;   // payload per system call
  static constexpr size_t kSumBytes = size_t{128} << 10;  // payload summed ahead of one send, while it stays in L2

  size_t frame_bytes(const Piece& piece) const;
  bool arrived(Traffic& traffic, size_t bytes);
  bool header_arrived(const Piece& piece, ConstFrameBytes wire);
  void payload_arrived(Piece& piece, size_t from, size_t bytes, std::byte* staged);
  void trailer_arrived(const Piece& piece, const std::byte* wire);

  const int index_;
  const int peer_;  // world rank, for messages
  const bool checked_;
  Socket socket_;
  std::unique_ptr<Tls> tls_;  // before the socket goes

  std::array<std::byte, kBatch * kFrameHeaderBytes> out_headers_, in_headers_;
  std::array<std::byte, kBatch * kFrameTrailerBytes> out_trailers_, in_trailers_;
  std::array<std::byte*, kBatch> staged_{};  // where this read put the payload of each frame; null: in place
  size_t out_at_ = 0, in_at_ = 0;            // bytes done of the first frame in the queue
  std::array<std::byte, 64> tail_;           // arrived, not yet applied: less than the 64 bytes apply is called with
  size_t tail_bytes_ = 0;
  bool out_closed_ = false, in_closed_ = false;
  bool ahead_ = false;  // a stripe of a later message than posted: connection 0 will tell the mismatch
};

}  // namespace esp::net
