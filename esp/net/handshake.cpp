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

std::string encode_request(const HandshakeRequest& request) {
  return ByteWriter()
      .raw(kMagic)
      .put(kVersion)
      .put(static_cast<uint8_t>(request.role))
      .put(uint8_t{0})
      .put(static_cast<int32_t>(request.rank))
      .put(request.group)
      .put(request.stream)
      .put(uint32_t{0})
      .raw(sha256(request.job))
      .raw(random_bytes(kDigestBytes))
      .take();
}

}  // namespace

Handshake Handshake::make_caller(const Secret& secret, const HandshakeRequest& mine) {
  Handshake shake;
  shake.secret_ = secret;
  shake.request_ = mine;
  shake.job_ = mine.job;
  return shake;
}

Handshake Handshake::make_callee(const Secret& secret, const std::string& job) {
  Handshake shake;
  shake.state_ = State::want_request;
  shake.secret_ = secret;
  shake.job_ = job;
  return shake;
}

size_t Handshake::bytes_needed() const {
  size_t whole = 0;
  switch (state_) {
    case State::want_request:
      whole = kRequestBytes;
      break;
    case State::want_challenge:
      whole = kChallengeBytes;
      break;
    case State::want_proof:
      whole = kProofBytes;
      break;
    case State::want_confirmation:
      whole = kConfirmationBytes;
      break;
    default:
      return 0;
  }
  return whole - buffer_.size();
}

std::string Handshake::feed(std::string_view arrived) {
  if (state_ == State::refused || arrived.size() > bytes_needed()) refuse();
  buffer_.append(arrived);
  if (bytes_needed() > 0 || state_ == State::done) return {};
  return step();
}

// Processes one complete message and returns the reply. The caller's side makes its first call without a message.
std::string Handshake::step() {
  std::string message;
  buffer_.swap(message);
  switch (state_) {
    case State::send_request:
      state_ = State::want_challenge;
      transcript_ = encode_request(request_);
      return transcript_;
    case State::want_request: {
      read_request(message);
      state_ = State::want_proof;
      std::string challenge = random_bytes(kChallengeBytes);
      transcript_ = message + challenge;
      return challenge;
    }
    case State::want_challenge: {
      state_ = State::want_confirmation;
      transcript_ += message;
      std::string proof = proof_of(kCaller, transcript_);
      transcript_ += proof;
      return proof;
    }
    case State::want_proof: {
      bool equal = equal_in_constant_time(message, proof_of(kCaller, transcript_));
      std::string confirmation = proof_of(kCallee, transcript_ + message);
      if (!equal || !request_valid_) refuse();
      state_ = State::done;
      return confirmation;
    }
    case State::want_confirmation:
      if (!equal_in_constant_time(message, proof_of(kCallee, transcript_))) refuse();
      state_ = State::done;
      return {};
    default:
      refuse();
  }
}

void Handshake::read_request(std::string_view bytes) {
  ByteReader reader(bytes);
  bool magic = reader.raw(kMagic.size()) == kMagic;
  bool version = reader.get<uint16_t>() == kVersion;
  auto role = reader.get<uint8_t>();
  bool zeros = reader.get<uint8_t>() == 0;
  request_.role = static_cast<Role>(role);
  request_.rank = reader.get<int32_t>();
  request_.group = reader.get<uint64_t>();
  request_.stream = reader.get<uint32_t>();
  zeros &= reader.get<uint32_t>() == 0;
  bool job = equal_in_constant_time(reader.raw(kDigestBytes), sha256(job_));
  request_.job = job_;
  request_valid_ = magic && version && zeros && job && role >= 1 && role <= 3 && request_.rank >= -1;
}

std::string Handshake::proof_of(std::string_view direction, std::string_view transcript) const {
  std::string purpose(direction);
  purpose += static_cast<char>(request_.role);
  purpose += job_;
  std::string key = hkdf_sha256(secret_.bytes(), kSalt, purpose);
  std::string proof = hmac_sha256(key, transcript);
  wipe(key);
  return proof;
}

void Handshake::refuse() {
  state_ = State::refused;
  throw CommError(CommError::Kind::refused, -1,
                  "the handshake was refused: the other side has another secret, runs another job, or is not espalier");
}

}  // namespace esp::net
