#include "esp/dash/access_guard.h"

#include <set>

#include <gtest/gtest.h>

namespace esp::dash {
namespace {

Request request(const std::string& path, std::vector<std::pair<std::string, std::string>> headers) {
  return {"GET", path, {}, std::move(headers)};
}

TEST(AccessGuard, AcceptsRequestsWithToken) {
  const AccessGuard guard("secret", 8080);
  std::string path;
  for (const char* host : {"127.0.0.1:8080", "localhost:8080", "[::1]:8080"})
    EXPECT_FALSE(guard.check(request("/secret/api/runs", {{"host", host}}), path)) << host;
  EXPECT_EQ(path, "/api/runs");
  EXPECT_FALSE(guard.check(
      request("/secret/",
              {{"host", "localhost:8080"}, {"origin", "http://localhost:8080"}, {"sec-fetch-site", "same-origin"}}),
      path));
  EXPECT_EQ(path, "/");
  EXPECT_FALSE(guard.check(request("/secret/", {{"host", "localhost:8080"}, {"sec-fetch-site", "none"}}), path));
}

// DNS rebinding: a foreign host name that resolves to this machine.
TEST(AccessGuard, RejectsDnsRebindingByHost) {
  const AccessGuard guard("secret", 8080);
  std::string path;
  for (const char* host : {"evil.example:8080", "evil.example", "127.0.0.1", "127.0.0.1:81", "127.0.0.1:80801",
                           "127.0.0.1.evil.example:8080", "localhost.:8080", "0.0.0.0:8080", ""}) {
    const auto denial = guard.check(request("/secret/", {{"host", host}}), path);
    ASSERT_TRUE(denial) << host;
    EXPECT_EQ(denial->status, 421);
  }
  EXPECT_TRUE(guard.check(request("/secret/", {}), path));
}

TEST(AccessGuard, RejectsOtherOriginsAndSites) {
  const AccessGuard guard("secret", 8080);
  std::string path;
  for (const char* origin : {"http://evil.example", "https://localhost:8080", "null", "http://localhost", "",
                             "http://localhost:8080.evil.example", "file://"})
    EXPECT_TRUE(guard.check(request("/secret/", {{"host", "localhost:8080"}, {"origin", origin}}), path)) << origin;
  for (const char* site : {"cross-site", "same-site", "anything"})
    EXPECT_TRUE(guard.check(request("/secret/", {{"host", "localhost:8080"}, {"sec-fetch-site", site}}), path)) << site;
}

TEST(AccessGuard, RejectsMissingOrWrongToken) {
  const AccessGuard guard("secret", 8080);
  std::string path;
  for (const char* wrong : {"/", "/secret", "/secre/", "/secrets/", "/Secret/", "/api/runs", "//secret/", ""})
    EXPECT_TRUE(guard.check(request(wrong, {{"host", "localhost:8080"}}), path)) << wrong;
}

TEST(AccessGuard, GeneratesLongUniqueTokens) {
  std::set<std::string> tokens;
  for (int i = 0; i < 100; ++i) tokens.insert(random_token());
  EXPECT_EQ(tokens.size(), 100u);
  EXPECT_GE(tokens.begin()->size(), 32u);
}

}  // namespace
}  // namespace esp::dash
