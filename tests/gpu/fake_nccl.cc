// NCCL's operations on fake GPUs: the last of the devices that meet computes the result of all.

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "fake_gpu.h"
#include "tensorflow/core/framework/register_types.h"

namespace fake_gpu {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

struct Participant {
  OpKernel* kernel;
  OpKernelContext* context;
  AsyncOpKernel::DoneCallback done;
  std::string card;
};

// Each kind of meeting computes its outputs from all participants, in the order of their cards.
using Work = absl::Status (*)(const std::vector<Participant>&);

template <typename T>
void Combine(const std::string& reduction, const Tensor& more, Tensor* result) {
  auto values = result->flat<T>();
  const auto others = more.flat<T>();
  for (int64_t i = 0; i < values.size(); ++i) {
    if (reduction == "sum") values(i) = values(i) + others(i);
    else if (reduction == "prod") values(i) = values(i) * others(i);
    else if (reduction == "min") values(i) = std::min(values(i), others(i));
    else values(i) = std::max(values(i), others(i));
  }
}

absl::Status CombineTensors(const std::string& reduction, const Tensor& more, Tensor* result) {
  if (more.shape() != result->shape()) return absl::InvalidArgumentError("devices reduce tensors of unequal shapes");
  switch (more.dtype()) {
#define COMBINE(T)                       \
  case tensorflow::DataTypeToEnum<T>::v(): \
    Combine<T>(reduction, more, result); \
    return absl::OkStatus();
    COMBINE(float);
    COMBINE(double);
    COMBINE(Eigen::half);
    COMBINE(tensorflow::bfloat16);
    COMBINE(int32_t);
    COMBINE(int64_t);
#undef COMBINE
    default:
      return absl::UnimplementedError("NCCL has no reduction of " + TypeOf(more));
  }
}

void CopyTo(const Tensor& from, Tensor* to) {
  if (from.TotalBytes() > 0) {
    std::memcpy(const_cast<char*>(to->tensor_data().data()), from.tensor_data().data(), from.TotalBytes());
  }
}

// The sum of all inputs becomes the output of each participant that has one.
absl::Status Reduce(const std::vector<Participant>& participants) {
  std::string reduction;
  TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(participants[0].kernel->def(), "reduction", &reduction));
  const Tensor& first = participants[0].context->input(0);
  Tensor result(first.dtype(), first.shape());
  CopyTo(first, &result);
  for (size_t i = 1; i < participants.size(); ++i) {
    TF_RETURN_IF_ERROR(CombineTensors(reduction, participants[i].context->input(0), &result));
  }
  for (const Participant& participant : participants) {
    if (participant.context->num_outputs() == 0) continue;
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(participant.context->allocate_output(0, result.shape(), &output));
    CopyTo(result, output);
  }
  return absl::OkStatus();
}

// The input of the only participant without an output becomes the output of the others.
absl::Status Broadcast(const std::vector<Participant>& participants) {
  const Tensor* value = nullptr;
  for (const Participant& participant : participants) {
    if (participant.context->num_outputs() == 0) value = &participant.context->input(0);
  }
  if (value == nullptr) return absl::InvalidArgumentError("no device sends");
  for (const Participant& participant : participants) {
    if (participant.context->num_outputs() == 0) continue;
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(participant.context->allocate_output(0, value->shape(), &output));
    CopyTo(*value, output);
  }
  return absl::OkStatus();
}

// Wait for the other participants of the same call, then do the work for all of them.
void Meet(Work work, OpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done) {
  static std::mutex mutex;
  static auto* meetings = new std::map<std::string, std::vector<Participant>>;
  std::string name;
  int devices = 0;
  absl::Status status = tensorflow::GetNodeAttr(kernel->def(), "shared_name", &name);
  if (status.ok()) status = tensorflow::GetNodeAttr(kernel->def(), "num_devices", &devices);
  if (!status.ok()) {
    context->SetStatus(status);
    done();
    return;
  }
  const auto frame = context->frame_iter();
  const std::string key = name + ";" + std::to_string(context->step_id()) + ";" + std::to_string(frame.frame_id) + ":" +
                          std::to_string(frame.iter_id);
  const std::string card = CardOf(*context->device());
  const bool has_value = kernel->type_string() != "_NcclBroadcastRecv";
  const Tensor& value = context->input(0);
  Record("collective", {card, kernel->type_string(), has_value ? TypeOf(value) : "", has_value ? ShapeOf(value) : "", name},
         has_value ? value.TotalBytes() : 0);
  std::vector<Participant> participants;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto& waiting = (*meetings)[key];
    waiting.push_back({kernel, context, std::move(done), card});
    if (static_cast<int>(waiting.size()) < devices) return;
    participants = std::move(waiting);
    meetings->erase(key);
  }
  std::sort(participants.begin(), participants.end(), [](const Participant& a, const Participant& b) {
    return std::stoi(a.card) < std::stoi(b.card);
  });
  status = work(participants);
  for (Participant& participant : participants) {
    if (!status.ok()) participant.context->SetStatus(status);
    participant.done();
  }
}

Kernel Meeting(Work work) {
  return [work](OpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done) {
    Meet(work, kernel, context, std::move(done));
  };
}

const bool added = [] {
  for (const char* type : {"NcclAllReduce", "_NcclReduceSend", "_NcclReduceRecv"}) AddKernel(type, Meeting(Reduce));
  for (const char* type : {"_NcclBroadcastSend", "_NcclBroadcastRecv"}) AddKernel(type, Meeting(Broadcast));
  return true;
}();

}  // namespace
}  // namespace fake_gpu
