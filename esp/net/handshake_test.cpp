#include "esp/net/handshake.h"

#include <gtest/gtest.h>

#include "esp/net/crypto.h"

namespace esp::net {
namespace {

const Secret kSecret(std::string(32, 's'));

HandshakeRequest request(const std::string& job = "job", Role role = Role::data) {
  return {role, 3, job, 0x1122334455667788, 7};
}

// Transfers bytes between the two sides until both are done or one refuses.
void run(Handshake& caller, Handshake& callee) {
  std::string to_callee = caller.feed("");
  while (!to_callee.empty()) {
    std::string to_caller = callee.feed(to_callee);
    to_callee = caller.feed(to_caller);
  }
}

TEST(Crypto, MatchesPublishedVectors) {
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // RFC 4231, case 2.
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  // RFC 5869, case 1, its first 32 bytes.
  std::string salt, purpose;
  for (char c = 0; c <= 0x0c; ++c) salt += c;
  for (int c = 0xf0; c <= 0xf9; ++c) purpose += static_cast<char>(c);
  EXPECT_EQ(to_hex(hkdf_sha256(std::string(22, '\x0b'), salt, purpose)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
}

TEST(Handshake, CalleeReceivesRequestOfCaller) {
  auto caller = Handshake::make_caller(kSecret, request());
  auto callee = Handshake::make_callee(kSecret, "job");
  run(caller, callee);
  ASSERT_TRUE(caller.done());
  ASSERT_TRUE(callee.done());
  EXPECT_EQ(callee.request().role, Role::data);
  EXPECT_EQ(callee.request().rank, 3);
  EXPECT_EQ(callee.request().group, 0x1122334455667788u);
  EXPECT_EQ(callee.request().stream, 7u);
  EXPECT_EQ(callee.request().job, "job");
}

// The wire format is fixed: every release must produce these bytes from the same nonces.
TEST(Handshake, ProofMatchesSpecification) {
  auto caller = Handshake::make_caller(kSecret, request());
  std::string first = caller.feed("");
  ASSERT_EQ(first.size(), Handshake::kRequestBytes);
  EXPECT_EQ(first.substr(0, 8), "ESPALIER");
  EXPECT_EQ(to_hex(first.substr(8, 24)), "010003000300000088776655443322110700000000000000");
  EXPECT_EQ(first.substr(32, 32), sha256("job"));
  std::string challenge(32, 'c');
  std::string proof = caller.feed(challenge);
  std::string key = hkdf_sha256(kSecret.bytes(), "espalier handshake 1", "caller\x03job");
  EXPECT_EQ(proof, hmac_sha256(key, first + challenge));
  std::string callee_key = hkdf_sha256(kSecret.bytes(), "espalier handshake 1", "callee\x03job");
  caller.feed(hmac_sha256(callee_key, first + challenge + proof));
  EXPECT_TRUE(caller.done());
}

// Returns what a refused caller observes: the size of the reply to its request, and the error text.
std::string refusal_of(Handshake callee, const std::string& first, const std::string& proof) {
  std::string seen = std::to_string(callee.feed(first).size());
  try {
    callee.feed(proof);
  } catch (const CommError& error) {
    EXPECT_EQ(error.kind(), CommError::Kind::refused);
    return seen + error.what();
  }
  return "accepted";
}

TEST(Handshake, RefusalLooksSameForEveryCause) {
  auto accepting = [] { return Handshake::make_callee(kSecret, "job"); };
  auto honest = [&](const Secret& secret, const HandshakeRequest& mine) {
    auto caller = Handshake::make_caller(secret, mine);
    auto callee = accepting();
    std::string first = caller.feed("");
    std::string challenge = callee.feed(first);
    try {
      callee.feed(caller.feed(challenge));
    } catch (const CommError& error) {
      return std::to_string(challenge.size()) + error.what();
    }
    return std::string("accepted");
  };
  std::string wrong_secret = honest(Secret(std::string(32, 't')), request());
  EXPECT_NE(wrong_secret, "accepted");
  EXPECT_EQ(honest(kSecret, request("other job")), wrong_secret);
  EXPECT_EQ(refusal_of(accepting(), std::string(96, '\xff'), std::string(32, 'x')), wrong_secret);
  EXPECT_EQ(refusal_of(accepting(), std::string(96, '\0'), std::string(32, '\0')), wrong_secret);
}

TEST(Handshake, RejectsKeyOfAnotherRole) {
  auto caller = Handshake::make_caller(kSecret, request("job", Role::store));
  auto callee = Handshake::make_callee(kSecret, "job");
  std::string first = caller.feed("");
  // tampering on the wire: the store role becomes the failure detector role
  first[10] = static_cast<char>(Role::failure_detector);
  std::string challenge = callee.feed(first);
  EXPECT_THROW(callee.feed(caller.feed(challenge)), CommError);
}

TEST(Handshake, RejectsReflectedMessages) {
  auto caller = Handshake::make_caller(kSecret, request());
  std::string first = caller.feed("");
  std::string proof = caller.feed(first.substr(0, 32));
  EXPECT_THROW(caller.feed(proof), CommError);
}

TEST(Handshake, ConsumesExactlyNeededBytesForAnySplit) {
  auto caller = Handshake::make_caller(kSecret, request());
  auto callee = Handshake::make_callee(kSecret, "job");
  std::string first = caller.feed("");
  for (size_t i = 0; i + 1 < first.size(); ++i) {
    EXPECT_EQ(callee.bytes_needed(), first.size() - i);
    EXPECT_EQ(callee.feed(first.substr(i, 1)), "");
  }
  std::string challenge = callee.feed(first.substr(first.size() - 1));
  std::string proof = caller.feed(challenge);
  EXPECT_FALSE(callee.done());
  EXPECT_THROW(callee.feed(proof + "x"), CommError);
  EXPECT_THROW(callee.feed(""), CommError) << "a refused handshake must stay refused";
}

TEST(Handshake, RejectsReplayedProof) {
  auto caller = Handshake::make_caller(kSecret, request());
  auto callee = Handshake::make_callee(kSecret, "job");
  std::string first = caller.feed("");
  std::string proof = caller.feed(callee.feed(first));
  EXPECT_EQ(callee.feed(proof).size(), Handshake::kConfirmationBytes);
  auto again = Handshake::make_callee(kSecret, "job");
  again.feed(first);
  EXPECT_THROW(again.feed(proof), CommError);
}

}  // namespace
}  // namespace esp::net
