// Plays a policy exported by `rookery export` on an environment served by `rookery serve`.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "policy.hpp"
#include "session.hpp"

namespace {

constexpr char kUsage[] =
    "cpp_agent POLICY ADDRESS [options]\n"
    "\n"
    "  POLICY            folder that `rookery export` wrote\n"
    "  ADDRESS           of the served environment, such as tcp://127.0.0.1:5555\n"
    "  --episodes N      how many episodes, exactly (default 20)\n"
    "  --envs N          environments played at once (default 1)\n"
    "  --seed N          environment i is seeded with N + i (default 0)\n"
    "  --actions FILE    write the actions: lane,episode,step,action\n"
    "  --keys DIR        the client's keys, for a server that requires them\n";
constexpr int kTimeoutSeconds = 60;

struct Options {
  std::string policy, address, actions, keys;
  int episodes = 20;
  int envs = 1;
  int seed = 0;
};

int whole_number(const std::string& option, const std::string& value, int least) {
  std::size_t read = 0;
  int number = least - 1;
  try {
    number = std::stoi(value, &read);
  } catch (const std::exception&) {
    read = 0;
  }
  if (read == 0 || read != value.size() || number < least) {
    throw std::invalid_argument(option + " must be a whole number of at least " +
                                std::to_string(least) + ", got " + value);
  }
  return number;
}

Options parse(int count, char** words) {
  Options options;
  std::vector<std::string> names;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word.rfind("--", 0) != 0) {
      names.push_back(word);
      continue;
    }
    if (i + 1 == count) throw std::invalid_argument(word + " needs a value");
    const std::string value = words[++i];
    if (word == "--episodes") {
      options.episodes = whole_number(word, value, 1);
    } else if (word == "--envs") {
      options.envs = whole_number(word, value, 1);
    } else if (word == "--seed") {
      options.seed = whole_number(word, value, 0);
    } else if (word == "--actions") {
      options.actions = value;
    } else if (word == "--keys") {
      options.keys = value;
    } else {
      throw std::invalid_argument("no such option: " + word);
    }
  }
  if (names.size() != 2) throw std::invalid_argument("expected a policy's folder and an address");
  options.policy = names[0];
  options.address = names[1];
  return options;
}

// Writes a line for every action that was played.
class ActionLog {
 public:
  explicit ActionLog(const std::string& path) {
    if (path.empty()) return;
    file_.open(path);
    if (!file_) throw std::runtime_error(path + " cannot be written");
    file_ << "lane,episode,step,action\n";
  }

  void write(std::size_t lane, int episode, int step, const rookery::Array& actions) {
    if (!file_.is_open()) return;
    file_ << lane << ',' << episode << ',' << step << ',';
    const auto each = actions.size() / static_cast<std::size_t>(actions.shape[0]);
    for (std::size_t i = 0; i < each; ++i) file_ << (i ? " " : "") << text(actions, lane * each + i);
    file_ << '\n';
  }

 private:
  static std::string text(const rookery::Array& array, std::size_t index) {
    if (array.dtype == "<i8") return std::to_string(array.at<std::int64_t>(index));
    if (array.dtype == "<i4") return std::to_string(array.at<std::int32_t>(index));
    if (array.dtype == "|i1") return std::to_string(array.at<std::int8_t>(index));
    if (array.dtype == "<f8") return nlohmann::json(array.at<double>(index)).dump();
    if (array.dtype == "<f4") return nlohmann::json(array.at<float>(index)).dump();
    throw std::runtime_error("actions of type " + array.dtype + " cannot be written");
  }

  std::ofstream file_;
};

// Plays exactly options.episodes episodes, a fixed number in each lane: counting whichever end
// first would favour short ones. Returns the episodes' returns in the order in which they end.
std::vector<double> play(const Options& options) {
  rookery::Session session(options.address, options.keys, options.envs, kTimeoutSeconds);
  rookery::Policy policy(options.policy, options.envs);
  policy.check(session.observation_leaves(), session.action_space());
  ActionLog log(options.actions);

  const auto lanes = static_cast<std::size_t>(options.envs);
  std::vector<int> share(lanes), episode(lanes), length(lanes);
  std::vector<double> total(lanes), returns;
  for (std::size_t i = 0; i < lanes; ++i) {
    share[i] = options.episodes / options.envs + (int(i) < options.episodes % options.envs);
  }
  auto obs = session.reset(options.seed);
  rookery::Array reward{"<f8", {options.envs}, std::vector<std::uint8_t>(8 * lanes)};
  rookery::Array first{"|b1", {options.envs}, std::vector<std::uint8_t>(lanes, 1)};
  std::vector<std::uint8_t> resetting(lanes);  // the episode ended with the step before

  while (returns.size() < static_cast<std::size_t>(options.episodes)) {
    const auto action = policy.act(obs, reward, first);
    auto now = session.step(action);
    for (std::size_t i = 0; i < lanes; ++i) {
      const bool ended = now.terminated.bytes[i] || now.truncated.bytes[i];
      if (!resetting[i] && episode[i] < share[i]) {
        log.write(i, episode[i], length[i], action);
        total[i] += now.reward.at<double>(i);
        ++length[i];
        if (ended) {
          returns.push_back(total[i]);
          std::printf("episode %zu: return %g, length %d, lane %zu\n", returns.size(), total[i],
                      length[i], i);
          ++episode[i];
          total[i] = length[i] = 0;
        }
      }
      first.bytes[i] = resetting[i];
      resetting[i] = ended;
    }
    obs = std::move(now.obs);
    reward = std::move(now.reward);
  }
  return returns;
}

}  // namespace

int main(int count, char** words) {
  if (count == 2 && (std::string(words[1]) == "--help" || std::string(words[1]) == "-h")) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  try {
    const auto options = parse(count, words);
    const c10::InferenceMode no_gradients;
    at::set_num_threads(1);  // threads make small networks slower
    const auto returns = play(options);
    const double sum = std::accumulate(returns.begin(), returns.end(), 0.0);
    std::printf("mean return %g of %zu episodes\n", sum / double(returns.size()), returns.size());
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "cpp_agent: %s\n\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpp_agent: %s\n", error.what());
    return 1;
  }
}
