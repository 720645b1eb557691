#include "esp/net/store/messages.h"

#include "esp/net/bytes.h"
#include "esp/net/store/frames.h"

namespace esp::net {
namespace {

constexpr size_t kMaxNameBytes = 256;  // of a host, an address, a job

[[noreturn]] void corrupt(const char* what) {
  throw CommError(CommError::Kind::corrupt, -1, what);
}

int take_rank(ByteReader& reader, int least = 0) {
  auto rank = reader.get<int32_t>();
  if (rank < least || rank >= kMaxWorldSize) corrupt("a message names a rank that cannot be");
  return rank;
}

void put_members(ByteWriter& writer, const std::vector<int>& members) {
  writer.put(static_cast<uint32_t>(members.size()));
  for (int member : members) writer.put(static_cast<int32_t>(member));
}

std::vector<int> take_members(ByteReader& reader) {
  auto count = reader.get<uint32_t>();
  if (count > reader.left() / sizeof(int32_t)) corrupt("a message names more members than it holds");
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
  if (key.empty()) corrupt("a message with an empty key");
  return std::string(key);
}

// Words for people; a zero in them would cut them short on their way through an exception.
std::string take_words(ByteReader& reader) {
  auto words = reader.text(kMaxTextBytes);
  if (words.find('\0') != std::string_view::npos) corrupt("a message with a zero in its text");
  return std::string(words);
}

bool take_bool(ByteReader& reader) {
  auto byte = reader.get<uint8_t>();
  if (byte > 1) corrupt("a message with a truth value that is neither");
  return byte == 1;
}

// Runs a decoder over a body and insists that it used all of it.
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

std::string encode_addition(std::string_view key, int64_t delta) {
  return ByteWriter().text(key).put(delta).take();
}

Addition decode_addition(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    Addition addition;
    addition.key = take_key(reader);
    addition.delta = reader.get<int64_t>();
    return addition;
  });
}

std::string encode_reply(uint64_t request, std::string_view rest) {
  return ByteWriter().put(request).raw(rest).take();
}

Reply decode_reply(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    Reply reply;
    reply.request = reader.get<uint64_t>();
    reply.rest = reader.rest();
    return reply;
  });
}

std::string encode_refusal(const Refusal& refusal) {
  return ByteWriter().put(uint8_t{refusal.usage}).text(refusal.text.substr(0, kMaxTextBytes)).take();
}

Refusal decode_refusal(std::string_view rest) {
  return whole(rest, [](ByteReader& reader) {
    bool usage = take_bool(reader);
    return Refusal{usage, take_words(reader)};
  });
}

std::string encode_join(const Join& join) {
  ByteWriter writer;
  writer.put(static_cast<int32_t>(join.rank)).put(static_cast<int32_t>(join.size));
  put_peer(writer, join.peer);
  return writer.take();
}

Join decode_join(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    Join join;
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
    if (count > static_cast<uint32_t>(kMaxWorldSize)) corrupt("a table of more ranks than can be");
    std::vector<Peer> peers;
    for (uint32_t i = 0; i < count; ++i) peers.push_back(take_peer(reader));
    return peers;
  });
}

std::string encode_welcome(const Welcome& welcome) {
  return ByteWriter().text(welcome.job).put(static_cast<int32_t>(welcome.hub_rank)).take();
}

Welcome decode_welcome(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    std::string job(reader.text(kMaxNameBytes));
    return Welcome{job, take_rank(reader, -1)};
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
  if (number >= static_cast<uint64_t>(kMaxWorldSize)) corrupt("a message names a rank that cannot be");
  return static_cast<int>(number);
}

std::string encode_loss(const Loss& loss) {
  return ByteWriter().put(static_cast<int32_t>(loss.rank)).text(loss.how.substr(0, kMaxTextBytes)).take();
}

Loss decode_loss(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    int rank = take_rank(reader);
    return Loss{rank, take_words(reader)};
  });
}

std::string encode_abort(const Abort& abort) {
  ByteWriter writer;
  writer.put(abort.group).put(static_cast<uint8_t>(abort.cause.kind())).put(static_cast<int32_t>(abort.cause.peer()));
  writer.text(std::string_view(abort.cause.what()).substr(0, kMaxTextBytes));
  put_members(writer, abort.members);
  return writer.take();
}

Abort decode_abort(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    Abort abort;
    abort.group = reader.get<uint64_t>();
    auto kind = reader.get<uint8_t>();
    if (kind > static_cast<uint8_t>(CommError::Kind::aborted)) corrupt("an abort of no known kind");
    int peer = take_rank(reader, -1);
    std::string text = take_words(reader);
    abort.cause = CommError(static_cast<CommError::Kind>(kind), peer, text);
    abort.members = take_members(reader);
    return abort;
  });
}

std::string encode_ask(const Ask& ask) {
  ByteWriter writer;
  writer.put(ask.id).put(ask.group);
  put_members(writer, ask.members);
  return writer.take();
}

Ask decode_ask(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    Ask ask;
    ask.id = reader.get<uint64_t>();
    ask.group = reader.get<uint64_t>();
    ask.members = take_members(reader);
    return ask;
  });
}

std::string encode_report(const Report& report) {
  const Standing& standing = report.standing;
  ByteWriter writer;
  writer.put(report.id).put(report.group).put(static_cast<int32_t>(report.rank));
  writer.put(uint8_t{standing.answered}).put(uint8_t{standing.inside});
  writer.put(standing.entered.sequence).put(standing.entered.what).put(standing.entered.count);
  writer.put(standing.entered.schedule);
  return writer.take();
}

Report decode_report(std::string_view body) {
  return whole(body, [](ByteReader& reader) {
    Report report;
    report.id = reader.get<uint64_t>();
    report.group = reader.get<uint64_t>();
    report.rank = take_rank(reader);
    report.standing.answered = take_bool(reader);
    report.standing.inside = take_bool(reader);
    report.standing.entered.sequence = reader.get<uint64_t>();
    report.standing.entered.what = reader.get<uint64_t>();
    report.standing.entered.count = reader.get<uint64_t>();
    report.standing.entered.schedule = reader.get<uint32_t>();
    return report;
  });
}

}  // namespace esp::net
