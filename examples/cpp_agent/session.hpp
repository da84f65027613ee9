// A session with a served environment: the client's side of docs/protocol.md, version 1.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

namespace rookery {

using nlohmann::json;

// An array in a message: a dtype such as "<f4", a shape, and bytes in C order.
struct Array {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;

  std::size_t size() const {
    std::size_t count = 1;
    for (auto length : shape) count *= static_cast<std::size_t>(length);
    return count;
  }

  template <typename T>
  T at(std::size_t index) const {
    T value;
    std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
    return value;
  }
};

// Returns the size in bytes of one number of a dtype: the digits at its end.
inline std::size_t item_size(const std::string& dtype) {
  return std::stoul(dtype.substr(2));
}

struct Reply {
  json header;
  std::vector<Array> arrays;
};

// The result of one step of all environments.
struct Transition {
  Array reward;      // <f8 [n]
  Array terminated;  // |b1 [n]
  Array truncated;   // |b1 [n]
  std::vector<Array> obs;
};

// Returns the leaves of a space in the order in which their arrays are sent.
inline void append_leaves(const json& space, std::vector<json>& found) {
  const auto parts = space.find("parts");
  if (parts == space.end()) {
    found.push_back(space);
    return;
  }
  for (const auto& part : *parts) append_leaves(part, found);
}

inline std::vector<json> leaves(const json& space) {
  std::vector<json> found;
  append_leaves(space, found);
  return found;
}

// Returns the quoted text after `name = ` in a key file of ZeroMQ.
inline std::string read_key(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto place = line.find(name + " = \"");
    if (place == std::string::npos) continue;
    const auto start = line.find('"', place) + 1;
    return line.substr(start, line.find('"', start) - start);
  }
  throw std::runtime_error(path + " does not contain " + name);
}

class Session {
 public:
  // `keys` is the client folder written by `rookery serve --make-keys`; empty: no encryption.
  Session(const std::string& address, const std::string& keys, int envs, int timeout_seconds)
      : address_(address), socket_(context_, zmq::socket_type::dealer), id_(random_id()) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, timeout_seconds * 1000);
    if (!keys.empty()) {
      const auto own = keys + "/client.key_secret";
      socket_.set(zmq::sockopt::curve_serverkey, read_key(keys + "/server.key", "public-key"));
      socket_.set(zmq::sockopt::curve_publickey, read_key(own, "public-key"));
      socket_.set(zmq::sockopt::curve_secretkey, read_key(own, "secret-key"));
    }
    socket_.connect(address);
    spaces_ = request("hello", {{"protocol", 1}, {"envs", envs}}).header;
  }

  ~Session() {
    try {
      request("close", json::object());
    } catch (const std::exception&) {
      // The server also ends sessions whose clients are gone.
    }
  }

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  std::vector<json> observation_leaves() const { return leaves(spaces_.at("observation")); }
  json action_space() const { return spaces_.at("action"); }

  std::vector<Array> reset(int seed) {
    return request("reset", {{"seed", seed}}).arrays;
  }

  Transition step(Array action) {
    std::vector<Array> actions;
    actions.push_back(std::move(action));
    auto arrays = request("step", json::object(), actions).arrays;
    if (arrays.size() < 4) throw std::runtime_error("the reply to step has too few arrays");
    Transition transition{std::move(arrays[0]), std::move(arrays[1]), std::move(arrays[2]), {}};
    for (std::size_t i = 3; i < arrays.size(); ++i) transition.obs.push_back(std::move(arrays[i]));
    return transition;
  }

 private:
  Reply request(const std::string& op, json header, const std::vector<Array>& arrays = {}) {
    header["op"] = op;
    header["session"] = json::binary(id_);
    header["seq"] = next_++;
    header["arrays"] = json::array();
    for (const auto& array : arrays) header["arrays"].push_back({array.dtype, array.shape});
    const auto packed = json::to_msgpack(header);
    send(packed, arrays.empty());
    for (std::size_t i = 0; i < arrays.size(); ++i) send(arrays[i].bytes, i + 1 == arrays.size());
    auto reply = receive();
    if (reply.header.at("op") == "error") {
      throw std::runtime_error(address_ + ": " + reply.header.at("text").get<std::string>());
    }
    if (reply.header.at("op") != op || reply.header.at("seq") != header["seq"]) {
      throw std::runtime_error(address_ + ": the reply does not match the request " + op);
    }
    return reply;
  }

  void send(const std::vector<std::uint8_t>& bytes, bool last) {
    const auto flags = last ? zmq::send_flags::none : zmq::send_flags::sndmore;
    socket_.send(zmq::buffer(bytes), flags);
  }

  Reply receive() {
    std::vector<zmq::message_t> frames;
    do {
      frames.emplace_back();
      if (!socket_.recv(frames.back())) {
        throw std::runtime_error(address_ + ": timed out waiting for a reply");
      }
    } while (frames.back().more());
    const auto* first = frames[0].data<std::uint8_t>();
    Reply reply{json::from_msgpack(first, first + frames[0].size()), {}};
    const auto& described = reply.header.at("arrays");
    if (described.size() != frames.size() - 1) {
      throw std::runtime_error(address_ + ": the reply's number of arrays contradicts its header");
    }
    for (std::size_t i = 0; i < described.size(); ++i) {
      const auto* data = frames[i + 1].data<std::uint8_t>();
      Array array{described[i].at(0), described[i].at(1), {data, data + frames[i + 1].size()}};
      if (array.bytes.size() != array.size() * item_size(array.dtype)) {
        throw std::runtime_error(address_ + ": an array's length contradicts its shape");
      }
      reply.arrays.push_back(std::move(array));
    }
    return reply;
  }

  static std::vector<std::uint8_t> random_id() {
    std::random_device random;
    std::vector<std::uint8_t> id(16);
    for (auto& byte : id) byte = static_cast<std::uint8_t>(random());
    return id;
  }

  std::string address_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::vector<std::uint8_t> id_;
  std::uint64_t next_ = 0;
  json spaces_;
};

}  // namespace rookery
