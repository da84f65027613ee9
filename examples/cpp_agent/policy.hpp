// A policy exported by `rookery export`: policy.json lists inputs and outputs of policy.pt2.
#pragma once

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "session.hpp"

namespace rookery {

inline at::ScalarType scalar_type(const std::string& dtype) {
  static const std::map<std::string, at::ScalarType> known = {
      {"|b1", at::kBool},   {"|i1", at::kChar},   {"|u1", at::kByte},  {"<i2", at::kShort},
      {"<u2", at::kUInt16}, {"<i4", at::kInt},    {"<u4", at::kUInt32}, {"<i8", at::kLong},
      {"<u8", at::kUInt64}, {"<f2", at::kHalf},   {"<f4", at::kFloat}, {"<f8", at::kDouble}};
  const auto found = known.find(dtype);
  if (found == known.end()) throw std::runtime_error("dtype " + dtype + " is not supported");
  return found->second;
}

// A tensor on the array's memory, which must outlive it.
inline at::Tensor tensor_of(Array& array) {
  return at::from_blob(array.bytes.data(), array.shape, scalar_type(array.dtype));
}

inline json read_json(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + " cannot be read");
  return json::parse(file);
}

class Policy {
 public:
  Policy(const std::string& folder, std::int64_t lanes)
      : described_(read_json(folder + "/policy.json")),
        model_(folder + "/" + described_.at("files").at("libtorch").get<std::string>(), "model",
               /*run_single_threaded=*/true) {
    std::map<std::string, std::size_t> places;
    const auto& outputs = described_.at("outputs");
    for (std::size_t i = 0; i < outputs.size(); ++i) places[outputs[i].at("name")] = i;
    for (const auto& input : described_.at("inputs")) {
      if (input.at("role") == "observation") observations_.push_back(input);
      if (input.at("role") != "state") continue;
      // The first step clears the state, so its initial value does not matter.
      state_.push_back(at::zeros(with_batch(input, lanes), scalar_type(input.at("dtype"))));
      next_.push_back(places.at(input.at("next")));
    }
  }

  // Throws if the environment's observations or actions are not those of the policy.
  void check(const std::vector<json>& observation_leaves, const json& action_space) const {
    if (observation_leaves.size() != observations_.size()) {
      throw std::runtime_error("observations have " + std::to_string(observation_leaves.size()) +
                               " arrays, those of the policy " +
                               std::to_string(observations_.size()));
    }
    for (std::size_t i = 0; i < observations_.size(); ++i) {
      check_kind(observation_leaves[i], observations_[i]);
    }
    check_kind(action_space, described_.at("outputs").at(0));
  }

  // Returns the greedy actions. `first` marks the lanes where an episode begins; `reward` is that
  // of the previous step and is ignored in these lanes.
  Array act(std::vector<Array>& obs, Array& reward, Array& first) {
    std::vector<at::Tensor> inputs;
    for (auto& leaf : obs) inputs.push_back(tensor_of(leaf));
    inputs.push_back(tensor_of(reward));
    inputs.push_back(tensor_of(first));
    inputs.insert(inputs.end(), state_.begin(), state_.end());
    auto outputs = model_.run(inputs);
    for (std::size_t i = 0; i < next_.size(); ++i) state_[i] = outputs[next_[i]].contiguous();
    const auto action = outputs[0].contiguous();
    const auto* data = static_cast<const std::uint8_t*>(action.data_ptr());
    return {described_.at("outputs").at(0).at("dtype"), action.sizes().vec(),
            {data, data + action.nbytes()}};
  }

 private:
  static std::vector<std::int64_t> with_batch(const json& port, std::int64_t lanes) {
    std::vector<std::int64_t> shape{lanes};
    for (std::size_t i = 1; i < port.at("shape").size(); ++i) shape.push_back(port["shape"][i]);
    return shape;
  }

  // Throws unless a space [...] and an input or output [batch, ...] agree.
  static void check_kind(const json& space, const json& port) {
    json shape = port.at("shape");
    shape.erase(0);
    const json served{space.value("dtype", ""), space.value("shape", json())};
    const json wanted{port.at("dtype"), shape};
    if (served == wanted) return;
    throw std::runtime_error("the environment's " + port.at("name").get<std::string>() + " is " +
                             served.dump() + ", the policy's " + wanted.dump() +
                             ": serve it with the options that policy.json lists");
  }

  json described_;
  torch::inductor::AOTIModelPackageLoader model_;
  std::vector<json> observations_;
  std::vector<at::Tensor> state_;
  std::vector<std::size_t> next_;
};

}  // namespace rookery
