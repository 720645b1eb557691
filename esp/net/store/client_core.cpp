#include "esp/net/store/client_core.h"

#include <fmt/format.h>

namespace esp::net {

void ClientCore::received(std::string_view bytes) {
  try {
    reader_.append(bytes);
    while (auto frame = reader_.next()) deliver(*frame);
  } catch (const CommError& error) {
    closed(fmt::format("sent what cannot be read: {}", error.what()));
    garbled_ = true;
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
  throw CommError(garbled_ ? CommError::Kind::corrupt : CommError::Kind::lost, welcome_.hub_rank,
                  fmt::format("{} {}", server_, how_));
}

}  // namespace esp::net
