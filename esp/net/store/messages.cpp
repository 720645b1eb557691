#include "esp/net/store/messages.h"

#include "esp/net/bytes.h"
#include "esp/net/store/frames.h"

namespace esp::net {
namespace {

constexpr size_t kMaxNameBytes = 256;  // name of a host, an address or a job

[[noreturn]] void corrupt(const char* what) {
  throw CommError(CommError::Kind::corrupt, -1, what);
}

int take_rank(ByteReader& reader, int least = 0) {
  auto rank = reader.get<int32_t>();
  if (rank < least || rank >= kMaxWorldSize) corrupt("wire message: contains an invalid rank");
  return rank;
}

void put_members(ByteWriter& writer, const std::vector<int>& members) {
  writer.put(static_cast<uint32_t>(members.size()));
  for (int member : members) writer.put(static_cast<int32_t>(member));
}

std::vector<int> take_members(ByteReader& reader) {
  auto count = reader.get<uint32_t>();
  if (count > reader.left() / sizeof(int32_t)) corrupt("wire message: has fewer members than its count");
  std::vector<int> members;
  members.reserve(count);
  for (uint32_t i = 0; i < count; ++i) members.push_back(take_rank(reader));
  return members;
}

void put_peer(ByteWriter& writer, const Peer& peer) {
  writer.text(peer.host).text(peer.address).put(static_cast<uint16_t>(peer.port));
  writer.put(static_cast<int32_t>(peer.pid)).put(peer.process);
}

Peer take_peer(ByteReader& reader) {
  Peer peer;
  peer.host = reader.text(kMaxNameBytes);
  peer.address = reader.text(kMaxNameBytes);
  peer.port = reader.get<uint16_t>();
  peer.pid = reader.get<int32_t>();
  peer.process = reader.get<uint64_t>();
  return peer;
}

std::string take_key(ByteReader& reader) {
  auto key = reader.text(kMaxKeyBytes);
  if (key.empty()) corrupt("wire message: its key is empty");
  return std::string(key);
}

// Reads human-readable text. A zero byte is refused, because it would truncate the what() of an exception.
std::string take_words(ByteReader& reader) {
  auto words = reader.text(kMaxTextBytes);
  if (words.find('\0') != std::string_view::npos) corrupt("wire message: its text contains a zero byte");
  return std::string(words);
}

bool take_bool(ByteReader& reader) {
  auto byte = reader.get<uint8_t>();
  if (byte > 1) corrupt("wire message: a boolean is neither 0 nor 1");
  return byte == 1;
}

// Runs a decoder over a body and checks that it consumed all bytes.
template <typename Decode>
auto whole(std::string_view body, Decode decode) {
  ByteReader reader(body);
  auto message = decode(reader);
  reader.finish();
  return message;
}

}  // namespace

std::string encode_key_value(std::string_view key, std::string_view value) {
  return ByteWriter().text(key).text(value).take();
}

KeyValue decode_key_value(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    KeyValue pair;
    pair.key = take_key(reader);
    pair.value = reader.text(kMaxValueBytes);
    return pair;
  });
}

std::string encode_key(std::string_view key) {
  return ByteWriter().text(key).take();
}
std::string decode_key(std::string_view body) {
  return whole(body, take_key);
}

std::string encode_add_request(std::string_view key, int64_t delta) {
  return ByteWriter().text(key).put(delta).take();
}

AddRequest decode_add_request(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    AddRequest add_request;
    add_request.key = take_key(reader);
    add_request.delta = reader.get<int64_t>();
    return add_request;
  });
}

std::string encode_store_reply(uint64_t request, std::string_view rest) {
  return ByteWriter().put(request).raw(rest).take();
}

StoreReply decode_store_reply(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    StoreReply reply;
    reply.request = reader.get<uint64_t>();
    reply.rest = reader.rest();
    return reply;
  });
}

std::string encode_request_error(const RequestError& error) {
  return ByteWriter().put(uint8_t{error.usage}).text(error.text.substr(0, kMaxTextBytes)).take();
}

RequestError decode_request_error(std::string_view rest) {
  return whole(rest, [](ByteReader& reader) {
    bool usage = take_bool(reader);
    return RequestError{usage, take_words(reader)};
  });
}

std::string encode_join_request(const JoinRequest& join) {
  ByteWriter writer;
  writer.put(static_cast<int32_t>(join.rank)).put(static_cast<int32_t>(join.size));
  put_peer(writer, join.peer);
  return writer.take();
}

JoinRequest decode_join_request(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    JoinRequest join;
    join.rank = take_rank(reader);
    join.size = reader.get<int32_t>();
    join.peer = take_peer(reader);
    return join;
  });
}

std::string encode_table(const std::vector<Peer>& peers) {
  ByteWriter writer;
  writer.put(static_cast<uint32_t>(peers.size()));
  for (const Peer& peer : peers) put_peer(writer, peer);
  return writer.take();
}

std::vector<Peer> decode_table(std::string_view rest) {
  return whole(rest, [](ByteReader& reader) {
    auto count = reader.get<uint32_t>();
    if (count > static_cast<uint32_t>(kMaxWorldSize))
      corrupt("wire message: its peer table exceeds the maximum world size");
    std::vector<Peer> peers;
    for (uint32_t i = 0; i < count; ++i) peers.push_back(take_peer(reader));
    return peers;
  });
}

std::string encode_hub_info(const HubInfo& hub_info) {
  return ByteWriter().text(hub_info.job).put(static_cast<int32_t>(hub_info.hub_rank)).take();
}

HubInfo decode_hub_info(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    std::string job(reader.text(kMaxNameBytes));
    return HubInfo{job, take_rank(reader, -1)};
  });
}

std::string encode_number(uint64_t number) {
  return ByteWriter().put(number).take();
}

uint64_t decode_number(std::string_view body) {
  return whole(body, [](ByteReader& reader) { return reader.get<uint64_t>(); });
}

int decode_rank(std::string_view body) {
  uint64_t number = decode_number(body);
  if (number >= static_cast<uint64_t>(kMaxWorldSize)) corrupt("wire message: contains an invalid rank");
  return static_cast<int>(number);
}

std::string encode_rank_failure(const RankFailure& failure) {
  return ByteWriter().put(static_cast<int32_t>(failure.rank)).text(failure.how.substr(0, kMaxTextBytes)).take();
}

RankFailure decode_rank_failure(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    int rank = take_rank(reader);
    return RankFailure{rank, take_words(reader)};
  });
}

std::string encode_abort(const AbortMessage& abort) {
  ByteWriter writer;
  writer.put(abort.group).put(static_cast<uint8_t>(abort.cause.kind())).put(static_cast<int32_t>(abort.cause.peer()));
  writer.text(std::string_view(abort.cause.what()).substr(0, kMaxTextBytes));
  put_members(writer, abort.members);
  return writer.take();
}

AbortMessage decode_abort(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    AbortMessage abort;
    abort.group = reader.get<uint64_t>();
    auto kind = reader.get<uint8_t>();
    if (kind > static_cast<uint8_t>(CommError::Kind::aborted))
      corrupt("wire message: an abort has an unknown kind of error");
    int peer = take_rank(reader, -1);
    std::string text = take_words(reader);
    abort.cause = CommError(static_cast<CommError::Kind>(kind), peer, text);
    abort.members = take_members(reader);
    return abort;
  });
}

std::string encode_position_query(const PositionQuery& query) {
  ByteWriter writer;
  writer.put(query.id).put(query.group);
  put_members(writer, query.members);
  return writer.take();
}

PositionQuery decode_position_query(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    PositionQuery query;
    query.id = reader.get<uint64_t>();
    query.group = reader.get<uint64_t>();
    query.members = take_members(reader);
    return query;
  });
}

std::string encode_position_report(const PositionReport& report) {
  const CallPosition& position = report.position;
  ByteWriter writer;
  writer.put(report.id).put(report.group).put(static_cast<int32_t>(report.rank));
  writer.put(uint8_t{position.answered}).put(uint8_t{position.inside});
  writer.put(position.entered.sequence).put(position.entered.what).put(position.entered.count);
  writer.put(position.entered.schedule);
  return writer.take();
}

PositionReport decode_position_report(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    PositionReport report;
    report.id = reader.get<uint64_t>();
    report.group = reader.get<uint64_t>();
    report.rank = take_rank(reader);
    report.position.answered = take_bool(reader);
    report.position.inside = take_bool(reader);
    report.position.entered.sequence = reader.get<uint64_t>();
    report.position.entered.what = reader.get<uint64_t>();
    report.position.entered.count = reader.get<uint64_t>();
    report.position.entered.schedule = reader.get<uint32_t>();
    return report;
  });
}

}  // namespace esp::net
