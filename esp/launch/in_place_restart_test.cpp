// Tests InPlaceRestart. The ranks are shell scripts with a real control channel.
#include "esp/launch/in_place_restart.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/launch/agent.h"

namespace esp::launch {
namespace {

namespace fs = std::filesystem;

// Shell functions for all scripts. `receive` reads one message from the launcher. `wait_for_all` returns after every
// rank of the round has called it.
constexpr const char* kHead = R"sh(
say() { printf '%s %s' "$1" "$2" >&4; }
receive() { dd bs=4096 count=1 <&4 2>/dev/null; }
note() { echo "$1" >> $FOLDER/notes; }
mark() { echo $$ > $FOLDER/draft-$RANK; mv $FOLDER/draft-$RANK $FOLDER/$1-$RANK; }
marked() { until [ -e $FOLDER/$1 ]; do sleep 0.01; done; }
wait_for_all() { mark formed; for r in $(seq 0 $((WORLD_SIZE - 1))); do marked formed-$r; done; }
R=$ESPALIER_ROUND
say ready $R
)sh";

class InPlaceRestartTest : public testing::Test {
 protected:
  InPlaceRestartTest() {
    std::string pattern = (fs::temp_directory_path() / "espalier-restart-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~InPlaceRestartTest() override { fs::remove_all(folder_); }

  int run(const std::string& script, int ranks, int max_restarts = 3,
          Duration stall_timeout = std::chrono::seconds(10)) {
    AgentOptions options;
    options.per_node = ranks;
    options.max_restarts = max_restarts;
    options.in_place = true;
    options.in_place_timeout = stall_timeout;
    options.grace = std::chrono::milliseconds(100);
    options.command = {"bash", "-c", kHead + script};
    options.environment["FOLDER"] = folder_;
    return run_agent(options);
  }
  // The notes that the ranks have written. A multiset, because the ranks write concurrently, in any order.
  std::multiset<std::string> notes() const {
    std::ifstream file(folder_ + "/notes");
    std::multiset<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  }
  std::string folder_;
};

TEST_F(InPlaceRestartTest, KeepsSurvivorsAndReplacesKilledRanks) {
  const int code = run(R"sh(
    say formed $R
    [ $R = 0 ] && wait_for_all
    if [ $R = 0 ] && [ $RANK = 1 ]; then kill -9 $$; fi
    if [ $R = 0 ]; then
      say waiting 0
      case "$(receive)" in *'"round":1'*) note "survivor $RANK";; esac
      say formed 1; mark resumed
    else
      note "newcomer $RANK"; marked resumed-0
    fi)sh",
                       3);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(notes(), (std::multiset<std::string>{"newcomer 1", "survivor 0", "survivor 2"}));
}

TEST_F(InPlaceRestartTest, ReplacesTwoRanksKilledTogether) {
  const int code = run(R"sh(
    say formed $R
    [ $R = 0 ] && wait_for_all
    if [ $R = 0 ] && [ $RANK = 1 ]; then kill -9 $(cat $FOLDER/formed-2) $$; fi
    if [ $R = 0 ] && [ $RANK = 2 ]; then exec sleep 60; fi
    if [ $R = 0 ]; then
      say waiting 0; receive > /dev/null; note "survivor $RANK"; say formed 1; mark resumed
    else
      note "newcomer $RANK"; marked resumed-0
    fi)sh",
                       3);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(notes(), (std::multiset<std::string>{"newcomer 1", "newcomer 2", "survivor 0"}));
}

TEST_F(InPlaceRestartTest, KillsAndReplacesARankThatHangs) {
  const int code = run(R"sh(
    say formed $R
    [ $R = 0 ] && wait_for_all
    if [ $R = 0 ] && [ $RANK = 1 ]; then marked waiting-0; kill -9 $$; fi
    if [ $R = 0 ] && [ $RANK = 2 ]; then exec sleep 60; fi
    if [ $R = 0 ]; then
      say waiting 0; mark waiting; receive > /dev/null; note "survivor $RANK"; say formed 1; mark resumed
    else
      note "newcomer $RANK"; marked resumed-0
    fi)sh",
                       3, 3, std::chrono::seconds(3));
  EXPECT_EQ(code, 0);
  EXPECT_EQ(notes(), (std::multiset<std::string>{"newcomer 1", "newcomer 2", "survivor 0"}));
}

TEST_F(InPlaceRestartTest, RestartsAllWhenARankDiesWhileConnecting) {
  const int code = run(R"sh(
    say formed $R
    [ $R = 0 ] && wait_for_all
    if [ $R = 0 ] && [ $RANK = 1 ]; then kill -9 $$; fi
    if [ $R = 0 ]; then say waiting 0; receive > /dev/null; kill -9 $$; fi
    note "round $R rank $RANK")sh",
                       2);
  EXPECT_EQ(code, 0);
  // The replacement in the failed round may have written a note. Both ranks of the round after it have written one.
  std::multiset<std::string> all = notes();
  all.erase("round 1 rank 1");
  EXPECT_EQ(all.size(), 2u);
}

TEST_F(InPlaceRestartTest, ThrowsWhenNoRestartIsLeft) {
  EXPECT_THROW(run(R"sh(
    say formed $R
    if [ $RANK = 1 ]; then kill -9 $$; fi
    while :; do
      say waiting $R
      case "$(receive)" in *'"go_on":false'*) exit 3;; esac
      R=$((R + 1)); say formed $R
    done)sh",
                   2, 1),
               Error);
}

// A fake RankProcesses: starts no processes and records whether clear_failures() was called.
class RecordingProcesses final : public RankProcesses {
 public:
  bool any_finished() const override { return finished; }
  void send(int, const std::string&) override {}
  void kill(int) override {}
  bool respawn(int, const Environment&) override { return true; }
  void clear_failures() override { failures_cleared = true; }
  bool failures_cleared = false, finished = false;
};

TEST(InPlaceRestart, PrintsOneLinePerRecovery) {
  RecordingProcesses ranks;
  InPlaceRestart::Options options;
  options.num_ranks = 3;
  options.open_round = [](int round) { return InPlaceRestart::RoundSetup{{true, round, "job", "here"}, {}}; };
  options.may_restart = [] { return true; };
  Clock::time_point now{};
  options.now = [&now] { return now; };
  std::vector<std::string> lines;
  options.print_line = [&lines](const std::string& line) { lines.push_back(line); };
  InPlaceRestart restart(ranks, options);
  using Kind = RankMessage::Kind;
  for (int rank = 0; rank < 3; ++rank) restart.on_message(rank, {Kind::formed, 0});
  const auto recover = [&](int lost, int round) {
    restart.on_failure({lost, 137, "killed (SIGKILL)", ""});
    for (int rank = 0; rank < 3; ++rank)
      restart.on_message(rank, rank == lost ? RankMessage{Kind::ready, round} : RankMessage{Kind::waiting, round - 1});
    now += std::chrono::milliseconds(24);
    for (int rank = 0; rank < 3; ++rank) restart.on_message(rank, {Kind::formed, round});
  };
  recover(1, 1);
  EXPECT_TRUE(lines.empty());
  restart.on_message(0, {Kind::resumed, 1, "resumed at step 3517 from snapshot"});
  restart.on_message(0, {Kind::resumed, 1, "resumed at step 3517 from snapshot"});
  recover(2, 2);
  recover(0, 3);  // the line is not printed before the ranks have reported `resumed`
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "rank 1 killed (SIGKILL); recovered in 24 ms: 1 rank restarted, 2 kept; resumed at step 3517 "
                       "from snapshot",
                       "rank 2 killed (SIGKILL); recovered in 24 ms: 1 rank restarted, 2 kept"}));
}

// A rank is killed while the others complete the job: they exit and never report `waiting`.
TEST(InPlaceRestart, GivesUpAtOnceWhenOtherRanksFinishAfterTheFailure) {
  RecordingProcesses ranks;
  InPlaceRestart::Options options;
  options.num_ranks = 2;
  options.open_round = [](int round) { return InPlaceRestart::RoundSetup{{true, round, "job", "here"}, {}}; };
  options.may_restart = [] { return true; };
  options.print_line = [](const std::string&) {};
  InPlaceRestart restart(ranks, options);
  for (int rank = 0; rank < 2; ++rank) restart.on_message(rank, {RankMessage::Kind::formed, 0});
  EXPECT_EQ(restart.poll({}, {{1, 137, "was killed", ""}}, false), InPlaceRestart::Decision::proceed);
  ranks.finished = true;
  EXPECT_EQ(restart.poll({}, {}, false), InPlaceRestart::Decision::restart_all);
  EXPECT_EQ(restart.give_up_reason(), "some ranks have already finished");
}

// Regression test. The fault simulation found that the launcher ended with exit code 0 after this failure.
TEST(InPlaceRestart, ReportsFatalFailureThatArrivesWithLastConnection) {
  RecordingProcesses ranks;
  InPlaceRestart::Options options;
  options.num_ranks = 2;
  options.open_round = [](int round) { return InPlaceRestart::RoundSetup{{true, round, "job", "here"}, {}}; };
  options.may_restart = [] { return true; };
  options.print_line = [](const std::string&) {};
  InPlaceRestart restart(ranks, options);
  const auto word = [](int rank, RankMessage::Kind kind, int round) {
    return std::pair(rank, encode(RankMessage{kind, round}));
  };
  using Kind = RankMessage::Kind;
  EXPECT_EQ(restart.poll({word(0, Kind::formed, 0), word(1, Kind::formed, 0)}, {}, false),
            InPlaceRestart::Decision::proceed);
  EXPECT_EQ(restart.poll({}, {{1, 137, "was killed", ""}}, false), InPlaceRestart::Decision::proceed);
  EXPECT_EQ(restart.poll({word(0, Kind::waiting, 0), word(1, Kind::ready, 1)}, {}, false),
            InPlaceRestart::Decision::proceed);
  // Rank 0 connects and then fails with an error that would repeat, before rank 1 reports `formed`. The launcher
  // receives both events in one poll.
  EXPECT_EQ(
      restart.poll({word(0, Kind::formed, 1), word(1, Kind::formed, 1)}, {{0, 2, "exited with code 2", ""}}, false),
      InPlaceRestart::Decision::abort);
  EXPECT_TRUE(ranks.failures_cleared);
  ASSERT_TRUE(restart.fatal_failure());
  EXPECT_EQ(make_round_result(0, false, std::nullopt, restart).exit_code, 2);
  // Rank 1 was killed earlier, which alone would allow a restart. The round still ends with rank 0's fatal failure.
  EXPECT_EQ(make_round_result(0, false, Failure{1, 137, "was killed", ""}, restart).exit_code, 2);
}

TEST(ControlMessages, RoundTrip) {
  const auto from = parse_rank_message(encode(RankMessage{RankMessage::Kind::resumed, 3, "resumed at step 7"}));
  ASSERT_TRUE(from);
  EXPECT_EQ(from->text, "resumed at step 7");
  for (const auto kind :
       {RankMessage::Kind::waiting, RankMessage::Kind::ready, RankMessage::Kind::formed, RankMessage::Kind::resumed}) {
    const auto back = parse_rank_message(encode(RankMessage{kind, 12}));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->kind, kind);
    EXPECT_EQ(back->round, 12);
  }
  for (const char* text : {"", "waiting", "waiting ", "waiting x", "ready 1 2", "unknown 3"})
    EXPECT_FALSE(parse_rank_message(text));
  const NextRound next = parse_next_round(encode(NextRound{true, 4, "job", "tcp://127.0.0.1:5"}));
  EXPECT_EQ(next.round, 4);
  EXPECT_EQ(next.store, "tcp://127.0.0.1:5");
  EXPECT_THROW(parse_next_round("{}"), IoError);
  EXPECT_THROW(parse_next_round("no json"), IoError);
}

}  // namespace
}  // namespace esp::launch
