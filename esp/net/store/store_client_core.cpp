#include "esp/net/store/store_client_core.h"

#include <fmt/format.h>

namespace esp::net {

void StoreClientCore::received(std::string_view bytes) {
  try {
    reader_.append(bytes);
    while (auto frame = reader_.next()) deliver(*frame);
  } catch (const CommError& error) {
    closed(fmt::format("sent invalid data: {}", error.what()));
    corrupt_ = true;
  }
}

void StoreClientCore::deliver(const Frame& frame) {
  if (frame.kind == FrameKind::hub_info) {
    hub_info_ = decode_hub_info(frame.body);
    return;
  }
  StoreReply reply = decode_store_reply(frame.body);
  auto found = slots_.find(reply.request);
  if (found == slots_.end()) return;  // the request was cancelled: ignore its reply
  found->second->kind = frame.kind;
  found->second->rest = std::move(reply.rest);
  found->second->done = true;
}

void StoreClientCore::throw_closed() const {
  throw CommError(corrupt_ ? CommError::Kind::corrupt : CommError::Kind::lost, hub_info_.hub_rank,
                  fmt::format("{} {}", server_, how_));
}

}  // namespace esp::net
