#include "esp/net/handshake.h"

#include "esp/base/check.h"
#include "esp/net/bytes.h"
#include "esp/net/crypto.h"

namespace esp::net {
namespace {

constexpr std::string_view kMagic = "ESPALIER";
constexpr uint16_t kVersion = 1;
constexpr std::string_view kSalt = "espalier handshake 1";
constexpr std::string_view kCaller = "caller", kCallee = "callee";

std::string encode_hello(const Hello& hello) {
  return ByteWriter()
      .raw(kMagic)
      .put(kVersion)
      .put(static_cast<uint8_t>(hello.role))
      .put(uint8_t{0})
      .put(static_cast<int32_t>(hello.rank))
      .put(hello.group)
      .put(hello.stream)
      .put(uint32_t{0})
      .raw(sha256(hello.job))
      .raw(random_bytes(kDigestBytes))
      .take();
}

}  // namespace

Handshake Handshake::connecting(const Secret& secret, const Hello& mine) {
  Handshake shake;
  shake.secret_ = secret;
  shake.hello_ = mine;
  shake.job_ = mine.job;
  return shake;
}

Handshake Handshake::accepting(const Secret& secret, const std::string& job) {
  Handshake shake;
  shake.state_ = State::want_hello;
  shake.secret_ = secret;
  shake.job_ = job;
  return shake;
}

size_t Handshake::wants() const {
  size_t whole = 0;
  switch (state_) {
    case State::want_hello:
      whole = kHelloBytes;
      break;
    case State::want_challenge:
      whole = kChallengeBytes;
      break;
    case State::want_proof:
      whole = kProofBytes;
      break;
    case State::want_verdict:
      whole = kVerdictBytes;
      break;
    default:
      return 0;
  }
  return whole - buffer_.size();
}

std::string Handshake::feed(std::string_view arrived) {
  if (state_ == State::refused || arrived.size() > wants()) refuse();
  buffer_.append(arrived);
  if (wants() > 0 || state_ == State::done) return {};
  return step();
}

// One message is complete (or, at the start of the connecting side, none is needed).
std::string Handshake::step() {
  std::string message;
  buffer_.swap(message);
  switch (state_) {
    case State::send_hello:
      state_ = State::want_challenge;
      transcript_ = encode_hello(hello_);
      return transcript_;
    case State::want_hello: {
      read_hello(message);
      state_ = State::want_proof;
      std::string challenge = random_bytes(kChallengeBytes);
      transcript_ = message + challenge;
      return challenge;
    }
    case State::want_challenge: {
      state_ = State::want_verdict;
      transcript_ += message;
      std::string proof = hmac_sha256(key(kCaller), transcript_);
      transcript_ += proof;
      return proof;
    }
    case State::want_proof: {
      bool equal = equal_in_constant_time(message, hmac_sha256(key(kCaller), transcript_));
      std::string verdict = hmac_sha256(key(kCallee), transcript_ + message);
      if (!equal || !sound_) refuse();
      state_ = State::done;
      return verdict;
    }
    case State::want_verdict:
      if (!equal_in_constant_time(message, hmac_sha256(key(kCallee), transcript_))) refuse();
      state_ = State::done;
      return {};
    default:
      refuse();
  }
}

void Handshake::read_hello(std::string_view bytes) {
  ByteReader reader(bytes);
  bool magic = reader.raw(kMagic.size()) == kMagic;
  bool version = reader.get<uint16_t>() == kVersion;
  auto role = reader.get<uint8_t>();
  bool zeros = reader.get<uint8_t>() == 0;
  hello_.role = static_cast<Role>(role);
  hello_.rank = reader.get<int32_t>();
  hello_.group = reader.get<uint64_t>();
  hello_.stream = reader.get<uint32_t>();
  zeros &= reader.get<uint32_t>() == 0;
  bool job = equal_in_constant_time(reader.raw(kDigestBytes), sha256(job_));
  hello_.job = job_;
  sound_ = magic && version && zeros && job && role >= 1 && role <= 3 && hello_.rank >= -1;
}

std::string Handshake::key(std::string_view direction) const {
  std::string purpose(direction);
  purpose += static_cast<char>(hello_.role);
  purpose += job_;
  return hkdf_sha256(secret_.bytes(), kSalt, purpose);
}

void Handshake::refuse() {
  state_ = State::refused;
  throw CommError(CommError::Kind::refused, -1,
                  "the handshake was refused: the other side has another secret, is of another job, or is no espalier");
}

}  // namespace esp::net
