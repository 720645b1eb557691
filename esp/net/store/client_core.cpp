#include "esp/net/store/client_core.h"

#include <fmt/format.h>

namespace esp::net {

void ClientCore::received(std::string_view bytes) {
  try {
    reader_.append(bytes);
    while (auto frame = reader_.next()) deliver(*frame);
  } catch (const CommError& error) {
    broken_ = true;
    garbled_ = error.what();
  }
}

void ClientCore::deliver(const Frame& frame) {
  if (frame.kind == Kind::welcome) {
    welcome_ = decode_welcome(frame.body);
    return;
  }
  Reply reply = decode_reply(frame.body);
  auto found = slots_.find(reply.request);
  if (found == slots_.end()) return;  // nobody waits for it any longer
  found->second->kind = frame.kind;
  found->second->rest = std::move(reply.rest);
  found->second->done = true;
}

void ClientCore::throw_closed() const {
  int rank = welcome_.hub_rank;
  if (!garbled_.empty())
    throw CommError(CommError::Kind::corrupt, rank, fmt::format("what the hub sends cannot be read: {}", garbled_));
  throw CommError(CommError::Kind::lost, rank,
                  rank >= 0 ? fmt::format("rank {}, which hosts the hub, closed its connection", rank)
                            : "the hub (rank 0 or the launcher) closed its connection");
}

}  // namespace esp::net
