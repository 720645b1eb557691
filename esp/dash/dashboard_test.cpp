// End-to-end tests over sockets: run folders as input, HTTP responses as output, and clients that must be rejected.
#include "esp/dash/dashboard.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/dash/page.h"
#include "esp/obs/temporary_folder.h"

namespace esp::dash {
namespace {

constexpr const char* kEvil = "<script>alert(1)</script>";

class DashboardServer : public ::testing::Test {
 protected:
  DashboardServer() {
    for (const std::string& run : {std::string("one"), std::string(kEvil).substr(0, 7) + "x"}) {
      std::filesystem::create_directories(folder_ / run + "/ranks");
      std::ofstream(folder_ / run + "/metrics.jsonl") << "{\"step\":1,\"loss\":3.5,\"wall_s\":1}\n";
      std::ofstream(folder_ / run + "/run.toml") << "[run]\nname = \"" << kEvil << "\"\n\n[train]\nsteps = 7\n";
      std::ofstream(folder_ / run + "/ranks/rank-0.json") << R"({"rank":0,"comm":[]})";
    }
    dashboard_ = std::make_unique<Dashboard>(folder_.path(), DataProviders{});
    gate_ = std::make_unique<AccessGuard>("token", server_.port());
    server_.start(dashboard_->handlers(*gate_));
  }

  // Sends these bytes and returns the whole response.
  std::string raw(const std::string& bytes) const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    timeval limit{5, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) all.append(buffer, static_cast<size_t>(n));
    ::close(fd);
    return all;
  }
  std::string get(const std::string& path, const std::string& headers = "") const {
    return raw(fmt::format("GET {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{}\r\n", path, server_.port(), headers));
  }
  static int status(const std::string& answer) { return answer.size() > 12 ? std::stoi(answer.substr(9, 3)) : 0; }
  static nlohmann::json body(const std::string& answer) {
    return nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n") + 4));
  }

  obs::TemporaryFolder folder_;
  HttpServer server_{0};
  std::unique_ptr<Dashboard> dashboard_;
  std::unique_ptr<AccessGuard> gate_;
};

TEST_F(DashboardServer, ServesPrometheusMetricsOfAllRuns) {
  const std::string answer = get("/token/metrics");
  EXPECT_EQ(status(answer), 200);
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4; charset=utf-8"), std::string::npos) << answer;
  EXPECT_NE(answer.find("\nespalier_loss{run=\"one\"} 3.5\n"), std::string::npos) << answer;
  EXPECT_NE(answer.find("\nespalier_loss{run=\"<scriptx\"} 3.5\n"), std::string::npos) << answer;
  EXPECT_EQ(status(get("/metrics")), 403);
}

TEST_F(DashboardServer, ServesPageWithStrictContentSecurityPolicy) {
  const std::string page = get("/token/");
  EXPECT_EQ(status(page), 200);
  for (const char* wanted : {"Content-Security-Policy: default-src 'none'", "script-src 'self'",
                             "frame-ancestors 'none'", "X-Content-Type-Options: nosniff",
                             "Referrer-Policy: no-referrer", "Cross-Origin-Resource-Policy: same-origin", "text/html"})
    EXPECT_NE(page.find(wanted), std::string::npos) << wanted;
  EXPECT_EQ(page.find("unsafe"), std::string::npos);
  EXPECT_EQ(page.find("http://", page.find("<html")), std::string::npos);  // the page loads nothing from other servers
  EXPECT_NE(get("/token/app.js").find("text/javascript"), std::string::npos);
  EXPECT_NE(get("/token/style.css").find("text/css"), std::string::npos);
  EXPECT_EQ(status(get("/token/nothing")), 404);
}

TEST_F(DashboardServer, ServesRunsSeriesAndDetail) {
  const auto runs = body(get("/token/api/runs"));
  ASSERT_EQ(runs["runs"].size(), 2u);
  EXPECT_EQ(runs["runs"][1]["name"], "one");
  EXPECT_EQ(runs["runs"][1]["step"], 1);
  EXPECT_EQ(body(get("/token/api/series?run=one&keys=loss"))["keys"]["loss"]["mean"], nlohmann::json({3.5}));
  const auto detail = body(get("/token/api/run?run=one"));
  EXPECT_EQ(detail["steps"], 7);
  EXPECT_EQ(detail["ranks"].size(), 1u);
  // The run's log grows, and a new run appears in the folder.
  std::ofstream(folder_ / "one/metrics.jsonl", std::ios::app) << "{\"step\":2,\"loss\":2.5}\n";
  std::filesystem::create_directories(folder_ / "deeper/two");
  std::ofstream(folder_ / "deeper/two/metrics.jsonl") << "{\"step\":1,\"loss\":1}\n";
  EXPECT_EQ(body(get("/token/api/runs"))["runs"].size(), 3u);
  EXPECT_EQ(body(get("/token/api/series?run=one&keys=loss"))["last_step"], 2);
  EXPECT_EQ(status(get("/token/api/run?run=deeper%2Ftwo")), 200);
}

TEST_F(DashboardServer, RejectsRunsOutsideOfFolder) {
  for (const char* run : {"..", "../..", "%2Fetc", "one/../..", ""})
    EXPECT_EQ(status(get(std::string("/token/api/run?run=") + run)), 404) << run;
  EXPECT_NE(get("/token/api/timeline?run=one").find("log.trace"), std::string::npos);
}

TEST_F(DashboardServer, RejectsRequestsOfOtherHostsAndSites) {
  EXPECT_EQ(status(get("/")), 403);
  EXPECT_EQ(status(get("/wrong/api/runs")), 403);
  EXPECT_EQ(status(get("/token/api/runs", "Origin: http://evil.example\r\n")), 403);
  EXPECT_EQ(status(get("/token/api/runs", "Sec-Fetch-Site: cross-site\r\n")), 403);
  EXPECT_EQ(status(raw("GET /token/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")), 421);
  EXPECT_EQ(status(raw("POST /token/ HTTP/1.1\r\nHost: evil.example\r\n\r\n")), 405);
  EXPECT_EQ(status(raw("nonsense\r\n\r\n")), 400);
  EXPECT_EQ(status(raw("GET /" + std::string(9000, 'a'))), 431);
  EXPECT_EQ(get("/").find("token\""), std::string::npos);
}

TEST_F(DashboardServer, HeadResponseHasNoBody) {
  const std::string answer = raw(fmt::format("HEAD /token/ HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", server_.port()));
  EXPECT_EQ(status(answer), 200);
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
}

// HTML markup in run names and run files must stay inside the JSON data of a report.
TEST_F(DashboardServer, ReportEscapesRunData) {
  RunFolder run(folder_ / "one", kEvil);
  const std::string page = report_page({&run}, DataProviders{});
  EXPECT_EQ(page.find(kEvil), std::string::npos);
  EXPECT_NE(page.find("\\u003cscript"), std::string::npos);
  EXPECT_NE(page.find("script-src 'nonce-"), std::string::npos);
  const size_t begin = page.find("id=\"data\">") + 10;
  const auto data = nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data["runs"][0]["brief"]["name"], kEvil);
  EXPECT_NE(data["runs"][0]["detail"]["run_toml"].get<std::string>().find(kEvil), std::string::npos);
}

// Unreadable run folders, each with a different cause, beside one readable run.
class UnreadableRuns : public DashboardServer {
 protected:
  UnreadableRuns() {
    for (const char* name : {"closed", "closed_log", "cut_summary", "deep_run_file", "deep_rank", "folder_log",
                             "link_log", "odd_summary", "pipe_log", "pipe_only", "sparse_log"}) {
      std::filesystem::create_directories(at(name) + "/ranks");
      if (std::string(name) == "pipe_only") continue;
      std::ofstream(at(name) + "/metrics.jsonl") << "{\"step\":1,\"loss\":3.5,\"wall_s\":1}\n";
      std::ofstream(at(name) + "/run.toml") << "[train]\nsteps = 7\n";
    }
    for (const char* name : {"folder_log", "link_log", "pipe_log"})
      std::filesystem::remove(at(name) + "/metrics.jsonl");
    std::filesystem::create_directories(at("folder_log") + "/metrics.jsonl");
    std::filesystem::create_symlink("/nowhere/at/all", at("link_log") + "/metrics.jsonl");
    for (const char* name : {"pipe_log", "pipe_only"})
      EXPECT_EQ(::mkfifo((at(name) + "/metrics.jsonl").c_str(), 0644), 0);
    std::string deep, brackets(200'000, '[');
    for (int i = 0; i < 200'000; ++i) deep += "a.";
    std::ofstream(at("deep_run_file") + "/run.toml") << deep << "a = 1\nb = " << brackets << "\n";
    std::ofstream(at("deep_rank") + "/ranks/rank-0.json") << brackets;
    std::ofstream(at("cut_summary") + "/summary.json") << "{\"steps\":";
    std::ofstream(at("odd_summary") + "/summary.json") << R"({"error":5,"steps":"many","world":1e300,"layout":[]})";
    std::filesystem::resize_file(at("sparse_log") + "/metrics.jsonl", uint64_t{200} << 30);
    std::filesystem::permissions(at("closed_log") + "/metrics.jsonl", std::filesystem::perms::none);
    std::filesystem::permissions(at("closed"), std::filesystem::perms::none);
    // Root may read any file, so a test that runs as root continues as another user.
    std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
    if (::geteuid() == 0) {
      EXPECT_EQ(::seteuid(65534), 0);
    }
  }
  ~UnreadableRuns() override {
    if (::getuid() == 0) {
      EXPECT_EQ(::seteuid(0), 0);
    }
    std::filesystem::permissions(at("closed"), std::filesystem::perms::owner_all);
  }
  std::string at(const std::string& name) const { return folder_ / name; }
  static constexpr const char* kUnreadableOnes[] = {"closed",   "closed_log", "folder_log",
                                                    "link_log", "pipe_log",   "pipe_only"};
};

TEST_F(UnreadableRuns, ShowErrorsInTheirOwnRowsOnly) {
  const auto runs = body(get("/token/api/runs"))["runs"];
  ASSERT_EQ(runs.size(), 13u) << runs;
  std::map<std::string, nlohmann::json> by_name;
  for (const auto& run : runs) by_name[run["name"]] = run;
  for (const char* name : kUnreadableOnes) {
    EXPECT_EQ(by_name[name]["state"], kUnreadable) << name;
    EXPECT_NE(by_name[name]["row"]["error"].get<std::string>().find("metrics.jsonl: "), std::string::npos) << name;
    EXPECT_NE(get(std::string("/token/api/series?run=") + name).size(), 0u);
  }
  EXPECT_NE(by_name["closed"]["row"]["error"].get<std::string>().find("Permission denied"), std::string::npos);
  EXPECT_NE(by_name["pipe_log"]["row"]["error"].get<std::string>().find("got a pipe"), std::string::npos);
  EXPECT_NE(by_name["link_log"]["row"]["error"].get<std::string>().find("got a symbolic link"), std::string::npos);
  EXPECT_NE(by_name["cut_summary"]["row"]["error"].get<std::string>().find("summary.json"), std::string::npos);
  for (const char* name : {"one", "cut_summary", "deep_run_file", "deep_rank", "odd_summary"}) {
    EXPECT_EQ(by_name[name]["step"], 1) << name;
    EXPECT_EQ(body(get(std::string("/token/api/run?run=") + name))["name"], name);
    EXPECT_EQ(body(get(std::string("/token/api/series?keys=loss&run=") + name))["last_step"], 1) << name;
  }
  EXPECT_NE(body(get("/token/api/series?run=sparse_log"))["error"].get<std::string>().find("bytes"), std::string::npos);
  const std::string metrics = get("/token/metrics");
  EXPECT_NE(metrics.find("espalier_loss{run=\"one\"} 3.5"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("espalier_unreadable_files{run=\"pipe_log\"} 1"), std::string::npos) << metrics;
}

TEST_F(UnreadableRuns, AreOmittedFromReportCurves) {
  std::vector<std::unique_ptr<RunFolder>> runs;
  std::vector<RunFolder*> borrowed;
  for (const FoundRun& run : find_runs(folder_.path())) {
    runs.push_back(std::make_unique<RunFolder>(run.path, run.name));
    borrowed.push_back(runs.back().get());
  }
  const std::string page = report_page(borrowed, DataProviders{});
  const size_t begin = page.find("id=\"data\">") + 10;
  const auto data = nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  ASSERT_EQ(data["runs"].size(), 13u);
  for (const auto& run : data["runs"]) {
    const std::string name = run["brief"]["name"];
    const bool readable = run["brief"]["state"] != kUnreadable;
    EXPECT_EQ(run["series"].contains("keys"), readable) << name;
    if (name == "one") {
      EXPECT_EQ(run["series"]["keys"]["loss"]["mean"][0], 3.5);
    }
  }
}

TEST(DashboardFolder, RejectsMissingFolder) {
  EXPECT_THROW(Dashboard("/nowhere/at/all", {}), IoError);
}

TEST_F(DashboardServer, ReadsRankTracesUntilMergedTraceExists) {
  const auto write = [&](const std::string& file, int rank, int seconds_later) {
    const std::string path = folder_ / "one/" + file;
    std::ofstream(path) << fmt::format(
        R"({{"traceEvents":[{{"ph":"X","name":"forward","cat":"compute","pid":{},"tid":0,"ts":1,"dur":2}}]}})", rank);
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(seconds_later));
  };
  const auto ranks = [&] { return body(get("/token/api/timeline?run=one"))["ranks"].size(); };
  EXPECT_NE(get("/token/api/timeline?run=one").find("no trace"), std::string::npos);
  write("ranks/trace-0.json", 0, 1);
  write("ranks/trace-1.json", 1, 1);
  EXPECT_EQ(ranks(), 2u);
  write("trace.json", 0, 2);
  EXPECT_EQ(ranks(), 1u);
  write("ranks/trace-0.json", 0, 3);  // a new training run in the same folder
  EXPECT_EQ(ranks(), 2u);
}

}  // namespace
}  // namespace esp::dash
