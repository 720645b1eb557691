// Ranks that are shell scripts: what they say on their line, and what becomes of them.
#include "esp/launch/reform.h"

#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/launch/agent.h"

namespace esp::launch {
namespace {

namespace fs = std::filesystem;

// What every script can do. `word` reads one message of the launcher's, whole; `met` returns once every rank of the
// round has said that it is there.
constexpr const char* kHead = R"sh(
say() { printf '%s %s' "$1" "$2" >&4; }
word() { dd bs=4096 count=1 <&4 2>/dev/null; }
note() { echo "$1" >> $FOLDER/notes; }
mark() { echo $$ > $FOLDER/draft-$RANK; mv $FOLDER/draft-$RANK $FOLDER/$1-$RANK; }
marked() { until [ -e $FOLDER/$1 ]; do sleep 0.01; done; }
met() { mark formed; for r in $(seq 0 $((WORLD_SIZE - 1))); do marked formed-$r; done; }
R=$ESPALIER_ROUND
say ready $R
)sh";

class Reforming : public testing::Test {
 protected:
  Reforming() {
    std::string pattern = (fs::temp_directory_path() / "espalier-reform-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Reforming() override { fs::remove_all(folder_); }

  int run(const std::string& script, int ranks, int max_restarts = 3, Duration patience = std::chrono::seconds(10)) {
    AgentOptions options;
    options.per_node = ranks;
    options.max_restarts = max_restarts;
    options.in_place = true;
    options.reform_patience = patience;
    options.grace = std::chrono::milliseconds(100);
    options.command = {"bash", "-c", kHead + script};
    options.environment["FOLDER"] = folder_;
    return run_agent(options);
  }
  // In no order: ranks write as they go.
  std::multiset<std::string> notes() const {
    std::ifstream file(folder_ + "/notes");
    std::multiset<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.insert(line);
    return lines;
  }
  std::string folder_;
};

TEST_F(Reforming, KeepsTheSurvivorsAndReplacesTheDead) {
  const int code = run(R"sh(
    say formed $R
    [ $R = 0 ] && met
    if [ $R = 0 ] && [ $RANK = 1 ]; then kill -9 $$; fi
    if [ $R = 0 ]; then
      say waiting 0
      case "$(word)" in *'"round":1'*) note "survivor $RANK";; esac
      say formed 1
    else
      note "newcomer $RANK"
    fi)sh",
                       3);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(notes(), (std::multiset<std::string>{"newcomer 1", "survivor 0", "survivor 2"}));
}

TEST_F(Reforming, TwoThatDieTogetherAreBothReplaced) {
  const int code = run(R"sh(
    say formed $R
    [ $R = 0 ] && met
    if [ $R = 0 ] && [ $RANK = 1 ]; then kill -9 $(cat $FOLDER/formed-2) $$; fi
    if [ $R = 0 ] && [ $RANK = 2 ]; then exec sleep 60; fi
    if [ $R = 0 ]; then
      say waiting 0; word > /dev/null; note "survivor $RANK"; say formed 1
    else
      note "newcomer $RANK"
    fi)sh",
                       3);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(notes(), (std::multiset<std::string>{"newcomer 1", "newcomer 2", "survivor 0"}));
}

TEST_F(Reforming, OneThatNeverNoticesIsKilledAndReplaced) {
  const int code = run(R"sh(
    say formed $R
    [ $R = 0 ] && met
    if [ $R = 0 ] && [ $RANK = 1 ]; then marked waiting-0; kill -9 $$; fi
    if [ $R = 0 ] && [ $RANK = 2 ]; then exec sleep 60; fi
    if [ $R = 0 ]; then
      say waiting 0; mark waiting; word > /dev/null; note "survivor $RANK"; say formed 1
    else
      note "newcomer $RANK"
    fi)sh",
                       3, 3, std::chrono::seconds(3));
  EXPECT_EQ(code, 0);
  EXPECT_EQ(notes(), (std::multiset<std::string>{"newcomer 1", "newcomer 2", "survivor 0"}));
}

TEST_F(Reforming, ADeathWhileTheyMeetStartsAllAgain) {
  const int code = run(R"sh(
    say formed $R
    [ $R = 0 ] && met
    if [ $R = 0 ] && [ $RANK = 1 ]; then kill -9 $$; fi
    if [ $R = 0 ]; then say waiting 0; word > /dev/null; kill -9 $$; fi
    note "round $R rank $RANK")sh",
                       2);
  EXPECT_EQ(code, 0);
  // The newcomer of the round that failed may have come so far; then both of the round after it.
  std::multiset<std::string> all = notes();
  all.erase("round 1 rank 1");
  EXPECT_EQ(all.size(), 2u);
}

TEST_F(Reforming, NoMoreOftenThanAllowed) {
  EXPECT_THROW(run(R"sh(
    say formed $R
    if [ $RANK = 1 ]; then kill -9 $$; fi
    while :; do
      say waiting $R
      case "$(word)" in *'"go_on":false'*) exit 3;; esac
      R=$((R + 1)); say formed $R
    done)sh",
                   2, 1),
               Error);
}

// Ranks that only take note of what is asked of them.
class Noted final : public Ranks {
 public:
  bool any_done() const override { return false; }
  void say(int, const std::string&) override {}
  void kill(int) override {}
  bool respawn(int, const Environment&) override { return true; }
  void forgive() override { forgiven = true; }
  bool forgiven = false;
};

TEST(Reform, TellsOnceWhatWasLostAndWhatTheRanksResumedFrom) {
  Noted ranks;
  Reform::Options options;
  options.num_ranks = 3;
  options.open = [](int round) { return Reform::Opened{{true, round, "job", "here"}, {}}; };
  options.may_begin = [] { return true; };
  Clock::time_point now{};
  options.now = [&now] { return now; };
  std::vector<std::string> told;
  options.tell = [&told](const std::string& line) { told.push_back(line); };
  Reform reform(ranks, options);
  using Kind = Word::Kind;
  for (int rank = 0; rank < 3; ++rank) reform.heard(rank, {Kind::formed, 0});
  const auto recover = [&](int lost, int round) {
    reform.lost({lost, 137, "killed (SIGKILL)", ""});
    for (int rank = 0; rank < 3; ++rank)
      reform.heard(rank, rank == lost ? Word{Kind::ready, round} : Word{Kind::waiting, round - 1});
    now += std::chrono::milliseconds(24);
    for (int rank = 0; rank < 3; ++rank) reform.heard(rank, {Kind::formed, round});
  };
  recover(1, 1);
  EXPECT_TRUE(told.empty());
  reform.heard(0, {Kind::resumed, 1, "resumed at step 3517 from snapshot"});
  reform.heard(0, {Kind::resumed, 1, "resumed at step 3517 from snapshot"});
  recover(2, 2);
  recover(0, 3);  // before the ranks have resumed
  EXPECT_EQ(told, (std::vector<std::string>{
                      "rank 1 killed (SIGKILL); recovered in 24 ms: 1 rank restarted, 2 kept; resumed at step 3517 "
                      "from snapshot",
                      "rank 2 killed (SIGKILL); recovered in 24 ms: 1 rank restarted, 2 kept"}));
}

// Found by the simulation of faults: the launcher then ended with 0.
TEST(Reform, RemembersAFailureForGoodThatComesWithTheLastOnesWord) {
  Noted ranks;
  Reform::Options options;
  options.num_ranks = 2;
  options.open = [](int round) { return Reform::Opened{{true, round, "job", "here"}, {}}; };
  options.may_begin = [] { return true; };
  options.tell = [](const std::string&) {};
  Reform reform(ranks, options);
  const auto word = [](int rank, Word::Kind kind, int round) { return std::pair(rank, text_of(Word{kind, round})); };
  using Kind = Word::Kind;
  EXPECT_EQ(reform.attend({word(0, Kind::formed, 0), word(1, Kind::formed, 0)}, {}, false), Reform::Verdict::go_on);
  EXPECT_EQ(reform.attend({}, {{1, 137, "was killed", ""}}, false), Reform::Verdict::go_on);
  EXPECT_EQ(reform.attend({word(0, Kind::waiting, 0), word(1, Kind::ready, 1)}, {}, false), Reform::Verdict::go_on);
  // Rank 0 has met and fails for good before rank 1 says that it has met too; the launcher hears of both at once.
  EXPECT_EQ(
      reform.attend({word(0, Kind::formed, 1), word(1, Kind::formed, 1)}, {{0, 2, "exited with code 2", ""}}, false),
      Reform::Verdict::for_good);
  EXPECT_TRUE(ranks.forgiven);
  ASSERT_TRUE(reform.condemned());
  EXPECT_EQ(end_of_round(0, false, std::nullopt, reform).exit_code, 2);
  // A rank that was killed before it is no reason to start all again.
  EXPECT_EQ(end_of_round(0, false, Failure{1, 137, "was killed", ""}, reform).exit_code, 2);
}

TEST(ControlWords, SurviveTheWay) {
  const auto from = word_of(text_of(Word{Word::Kind::resumed, 3, "resumed at step 7"}));
  ASSERT_TRUE(from);
  EXPECT_EQ(from->text, "resumed at step 7");
  for (const auto kind : {Word::Kind::waiting, Word::Kind::ready, Word::Kind::formed, Word::Kind::resumed}) {
    const auto back = word_of(text_of(Word{kind, 12}));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->kind, kind);
    EXPECT_EQ(back->round, 12);
  }
  for (const char* text : {"", "waiting", "waiting ", "waiting x", "ready 1 2", "unknown 3"})
    EXPECT_FALSE(word_of(text));
  const NextRound next = next_round_of(text_of(NextRound{true, 4, "job", "tcp://127.0.0.1:5"}));
  EXPECT_EQ(next.round, 4);
  EXPECT_EQ(next.store, "tcp://127.0.0.1:5");
  EXPECT_THROW(next_round_of("{}"), IoError);
  EXPECT_THROW(next_round_of("no json"), IoError);
}

}  // namespace
}  // namespace esp::launch
