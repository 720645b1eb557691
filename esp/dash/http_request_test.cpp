#include "esp/dash/http_request.h"

#include <gtest/gtest.h>

namespace esp::dash {
namespace {

int status_of(const std::string& head) {
  return parse_request(head).status;
}

std::string get(const std::string& target, const std::string& headers = "Host: localhost\r\n") {
  return "GET " + target + " HTTP/1.1\r\n" + headers + "\r\n";
}

TEST(HttpRequest, ParsesBrowserRequest) {
  const ParsedRequest parsed = parse_request(
      get("/t/api/series?run=a%20b%2Fc&keys=loss,lr&from=-1.5e3&flag", "HOST:  127.0.0.1:80 \r\nX-Odd: \t x\r\n"));
  ASSERT_EQ(parsed.status, 0);
  const Request& request = parsed.request;
  EXPECT_EQ(request.method, "GET");
  EXPECT_EQ(request.path, "/t/api/series");
  EXPECT_EQ(request.parameter("run"), "a b/c");
  EXPECT_EQ(request.parameter("keys"), "loss,lr");
  EXPECT_EQ(request.parameter("flag"), "");
  EXPECT_EQ(request.number("from", 7), -1500);
  EXPECT_EQ(request.number("keys", 7), 7);
  EXPECT_EQ(request.number("none", 7), 7);
  ASSERT_NE(request.header("host"), nullptr);
  EXPECT_EQ(*request.header("host"), "127.0.0.1:80");
  EXPECT_EQ(*request.header("x-odd"), "x");
  EXPECT_EQ(request.header("origin"), nullptr);
}

TEST(HttpRequest, RejectsOtherMethodsAndBodies) {
  EXPECT_EQ(status_of("HEAD / HTTP/1.0\r\n\r\n"), 0);
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "get"})
    EXPECT_EQ(status_of(std::string(method) + " / HTTP/1.1\r\nHost: a\r\n\r\n"), 405) << method;
  EXPECT_EQ(status_of(get("/", "Host: a\r\nContent-Length: 5\r\n")), 413);
  EXPECT_EQ(status_of(get("/", "Host: a\r\nTransfer-Encoding: chunked\r\n")), 413);
  EXPECT_EQ(status_of(get("/", "Host: a\r\nContent-Length: 0\r\n")), 0);
}

TEST(HttpRequest, AcceptsControlCharactersInQueryValue) {
  const ParsedRequest read = parse_request(get("/?run=two%0alines"));
  ASSERT_EQ(read.status, 0);
  EXPECT_EQ(read.request.parameter("run"), "two\nlines");
}

TEST(HttpRequest, RejectsMalformedRequests) {
  for (const std::string& bad : {get("http://evil/"),
                                 get("*"),
                                 get("/a b"),
                                 get("/#x"),
                                 get("/%"),
                                 get("/%4"),
                                 get("/%zz"),
                                 get("/%00"),
                                 get("/%0d%0aX: y"),
                                 get("/?run=%00"),
                                 get("/%ff"),
                                 get("/%c0%af"),
                                 get("/\x80"),
                                 get("/", "Host: a\r\nHost: b\r\n"),
                                 get("/", "Origin: a\r\nOrigin: b\r\n"),
                                 get("/", "Host : a\r\n"),
                                 get("/", " folded: a\r\n"),
                                 get("/", "no colon\r\n"),
                                 get("/", ": a\r\n"),
                                 get("/", "A: b\x01\r\n"),
                                 get("/", "A: b\rC: d\r\n"),
                                 std::string("GET / HTTP/1.1\nHost: a\n\n"),
                                 std::string("GET /\r\n\r\n"),
                                 std::string("\r\n\r\n"),
                                 std::string("GET / HTTP/1.1\r\n\r\nmore"),
                                 std::string(),
                                 std::string("GET / FTP/1.1\r\n\r\n")})
    EXPECT_EQ(status_of(bad), 400) << bad;
  EXPECT_EQ(status_of("GET / HTTP/2.0\r\n\r\n"), 505);
}

TEST(HttpRequest, RejectsTooLongRequests) {
  EXPECT_EQ(status_of(get("/" + std::string(kMaxRequestBytes, 'a'))), 431);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "a: b\r\n";
  EXPECT_EQ(status_of(get("/", many)), 431);
  std::string query = "/?";
  for (int i = 0; i < 100; ++i) query += "a=b&";
  EXPECT_EQ(status_of(get(query)), 400);
}

}  // namespace
}  // namespace esp::dash
