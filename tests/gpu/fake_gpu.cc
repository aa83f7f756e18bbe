// Devices of type GPU that compute with the kernels of the CPU, and count their copies and kernels.
//
// TensorFlow places, optimises and partitions a graph as for real GPUs, from the GPU kernels that its library registers
// and their memory types. Then each operation runs the kernel of the CPU, in ordinary memory. So the graph, its copies
// and its results are those of a GPU, while speed, rounding and the kernels themselves are not.
//
// Environment: FAKE_GPU_CARDS (number of cards, 1), FAKE_GPU_MEMORY (bytes of each card, 80 GiB), FAKE_GPU_CAPABILITY
// (9.0). CUDA_VISIBLE_DEVICES and `visible_device_list` select cards by number, as with CUDA.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tensorflow/core/common_runtime/copy_tensor.h"
#include "tensorflow/core/common_runtime/local_device.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_factory.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/public/version.h"

namespace fake_gpu {
namespace {

using tensorflow::Allocator;
using tensorflow::AllocatorAttributes;
using tensorflow::AsyncOpKernel;
using tensorflow::Device;
using tensorflow::DeviceContext;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::StatusCallback;
using tensorflow::Tensor;

constexpr char kGpu[] = "GPU";
constexpr int kPriority = 220;  // above the 210 of TensorFlow's own GPUs, which this library replaces

// ---- Counts ----

struct Count {
  int64_t times = 0;
  int64_t bytes = 0;
};

std::mutex counts_mutex;

std::map<std::string, Count>& Counts() {
  static auto* counts = new std::map<std::string, Count>;
  return *counts;
}

// Count one event of a kind. `fields` describe it, without tabs and line breaks; equal events are counted together.
void Record(const char* kind, const std::vector<std::string>& fields, int64_t bytes) {
  std::string key = kind;
  for (const std::string& field : fields) key += "\t" + field;
  std::lock_guard<std::mutex> lock(counts_mutex);
  Count& count = Counts()[key];
  ++count.times;
  count.bytes += bytes;
}

// ---- Cards ----

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

int64_t NumberFrom(const char* variable, int64_t standard) {
  const char* text = std::getenv(variable);
  return text == nullptr ? standard : std::atoll(text);
}

// The numbers of the cards that CUDA_VISIBLE_DEVICES leaves; as in CUDA, the first invalid number ends the list.
const std::vector<int>& VisibleCards() {
  static const auto* cards = [] {
    auto* visible = new std::vector<int>;
    const int present = NumberFrom("FAKE_GPU_CARDS", 1);
    const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES");
    if (chosen == nullptr) {
      for (int card = 0; card < present; ++card) visible->push_back(card);
      return visible;
    }
    for (const std::string& part : SplitAtCommas(chosen)) {
      char* end = nullptr;
      const long card = std::strtol(part.c_str(), &end, 10);
      if (end == part.c_str() || card < 0 || card >= present) break;
      visible->push_back(card);
    }
    return visible;
  }();
  return *cards;
}

// The memory of one card: the system's, counted and limited.
class CardMemory : public Allocator {
 public:
  explicit CardMemory(int card) : name_("fake_gpu_" + std::to_string(card)), limit_(NumberFrom("FAKE_GPU_MEMORY", int64_t{80} << 30)) {}

  std::string Name() override { return name_; }

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stats_.bytes_in_use + static_cast<int64_t>(bytes) > limit_) return nullptr;
    }
    void* memory = tensorflow::cpu_allocator()->AllocateRaw(alignment, bytes);
    std::lock_guard<std::mutex> lock(mutex_);
    sizes_[memory] = bytes;
    ++stats_.num_allocs;
    stats_.bytes_in_use += bytes;
    stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, stats_.bytes_in_use);
    stats_.largest_alloc_size = std::max<int64_t>(stats_.largest_alloc_size, bytes);
    return memory;
  }

  void DeallocateRaw(void* memory) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto size = sizes_.find(memory);
      stats_.bytes_in_use -= size->second;
      sizes_.erase(size);
    }
    tensorflow::cpu_allocator()->DeallocateRaw(memory);
  }

  std::optional<tsl::AllocatorStats> GetStats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    tsl::AllocatorStats stats = stats_;
    stats.bytes_limit = limit_;
    return stats;
  }

  bool ClearStats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.num_allocs = stats_.largest_alloc_size = 0;
    stats_.peak_bytes_in_use = stats_.bytes_in_use;
    return true;
  }

  tsl::AllocatorMemoryType GetMemoryType() const override { return tsl::AllocatorMemoryType::kDevice; }

 private:
  const std::string name_;
  const int64_t limit_;
  std::mutex mutex_;
  std::unordered_map<void*, size_t> sizes_;
  tsl::AllocatorStats stats_;
};

CardMemory* MemoryOf(int card) {
  static std::mutex mutex;
  static auto* memories = new std::map<int, std::unique_ptr<CardMemory>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto& memory = (*memories)[card];
  if (memory == nullptr) memory = std::make_unique<CardMemory>(card);
  return memory.get();
}

// ---- Copies ----

void CopyBytes(const Tensor& from, Tensor* to) {
  if (from.TotalBytes() == 0) return;
  std::memcpy(const_cast<char*>(to->tensor_data().data()), from.tensor_data().data(), from.TotalBytes());
}

void RecordCopy(const std::string& from, const std::string& to, const Tensor& tensor, const std::string& name) {
  Record("copy", {from, to, tensorflow::DataTypeString(tensor.dtype()), tensor.shape().DebugString(), name},
         tensor.TotalBytes());
}

constexpr char kHost[] = "host";

class FakeContext : public DeviceContext {
 public:
  explicit FakeContext(std::string card) : card_(std::move(card)) {}

  void CopyCPUTensorToDevice(const Tensor* from, Device*, Tensor* to, StatusCallback done, bool) const override {
    RecordCopy(kHost, card_, *from, "");
    CopyBytes(*from, to);
    done(absl::OkStatus());
  }

  void CopyDeviceTensorToCPU(const Tensor* from, absl::string_view name, Device*, Tensor* to,
                             StatusCallback done) override {
    RecordCopy(card_, kHost, *from, std::string(name));
    CopyBytes(*from, to);
    done(absl::OkStatus());
  }

  void CopyTensorInSameDevice(const Tensor* from, Device*, Tensor* to, StatusCallback done) const override {
    CopyBytes(*from, to);
    done(absl::OkStatus());
  }

 private:
  const std::string card_;
};

// ---- Kernels ----

// Operations whose GPU kernel works without a card: control flow, functions, transport, and changes of shape alone.
bool RunsAsItIs(const std::string& type) {
  static const auto* types = new std::set<std::string>{
      "ControlTrigger", "Enter", "Exit", "LoopCond", "Merge", "NextIteration", "NoOp", "RefEnter", "RefExit", "RefMerge",
      "RefNextIteration", "RefSwitch", "Switch", "_SwitchN",                                                // control
      "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessIf", "StatelessWhile", "While", "_Arg", "_Retval",
      "_HostRecv", "_HostSend", "_Recv", "_Send", "Stage", "StageSize", "Unstage",                          // transport
      "Const", "ReadVariableOp", "VarHandleOp", "VariableV2",                                               // values
      "ExpandDims", "Identity", "IdentityN", "Rank", "Reshape", "Shape", "ShapeN", "Size", "Squeeze", "StopGradient"};
  return types->count(type) > 0;
}

class FakeGpu : public tensorflow::LocalDevice {
 public:
  FakeGpu(const tensorflow::SessionOptions& options, const tensorflow::DeviceAttributes& attributes, int card)
      : LocalDevice(options, attributes), card_(card), context_(new FakeContext(std::to_string(card))) {}

  ~FakeGpu() override { context_->Unref(); }

  int card() const { return card_; }

  Allocator* GetAllocator(AllocatorAttributes attributes) override {
    if (attributes.on_host()) return tensorflow::cpu_allocator();
    return MemoryOf(card_);
  }

  absl::Status Sync() override { return absl::OkStatus(); }

  absl::Status TryGetDeviceContext(DeviceContext** context) override {
    context_->Ref();
    *context = context_;
    return absl::OkStatus();
  }

  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto, const AllocatorAttributes attributes,
                                   Tensor* tensor) override {
    Tensor parsed(proto.dtype());
    if (!parsed.FromProto(GetAllocator(attributes), proto)) {
      return absl::InvalidArgumentError("the value of a constant cannot be parsed");
    }
    *tensor = std::move(parsed);
    return absl::OkStatus();
  }

  void CopyTensorInSameDevice(const Tensor* from, Tensor* to, const DeviceContext*, StatusCallback done) override {
    CopyBytes(*from, to);
    done(absl::OkStatus());
  }

  void Compute(OpKernel* kernel, OpKernelContext* context) override {
    absl::Notification finished;
    Run(kernel, context, [&finished] { finished.Notify(); });
    finished.WaitForNotification();
  }

  void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done) override {
    Run(kernel, context, std::move(done));
  }

 private:
  void Run(OpKernel* kernel, OpKernelContext* context, AsyncOpKernel::DoneCallback done) {
    RecordKernel(*kernel);
    absl::Status status;
    OpKernel* used = RunsAsItIs(kernel->type_string()) ? kernel : OnCpu(kernel, &status);
    if (used == nullptr) {
      context->SetStatus(status);
      done();
    } else if (AsyncOpKernel* blocking = used->AsAsync()) {
      blocking->ComputeAsync(context, std::move(done));
    } else {
      used->Compute(context);
      done();
    }
  }

  void RecordKernel(const OpKernel& kernel) const {
    const auto& memory = kernel.output_memory_types();
    const bool on_host = !memory.empty() && std::all_of(memory.begin(), memory.end(), [](auto type) {
      return type == tensorflow::HOST_MEMORY;
    });
    std::string type = "";
    if (kernel.num_outputs() > 0) type = tensorflow::DataTypeString(kernel.output_type(0));
    else if (kernel.num_inputs() > 0) type = tensorflow::DataTypeString(kernel.input_type(0));
    Record("kernel", {std::to_string(card_), kernel.type_string(), type, on_host ? kHost : "device", kernel.name()}, 0);
  }

  // The CPU's kernel in place of a GPU's. TensorFlow deletes kernels and may build others at the same address.
  OpKernel* OnCpu(OpKernel* kernel, absl::Status* status) {
    std::lock_guard<std::mutex> lock(mutex_);
    Substitute& substitute = substitutes_[kernel];
    if (substitute.kernel != nullptr && substitute.definition == &kernel->def() && substitute.name == kernel->name() &&
        substitute.kernel->type_string() == kernel->type_string()) {
      return substitute.kernel.get();
    }
    if (substitute.kernel != nullptr) replaced_.push_back(std::move(substitute.kernel));
    substitute.definition = &kernel->def();
    substitute.name = kernel->name();
    substitute.kernel = tensorflow::CreateOpKernel(tensorflow::DeviceType(tensorflow::DEVICE_CPU), this,
                                                   GetAllocator({}), kernel->def(), TF_GRAPH_DEF_VERSION, status);
    if (!status->ok()) {
      substitute.kernel.reset();
      Record("missing", {std::to_string(card_), kernel->type_string(), kernel->name()}, 0);
    }
    return substitute.kernel.get();
  }

  struct Substitute {
    const tensorflow::NodeDef* definition = nullptr;
    std::string name;
    std::unique_ptr<OpKernel> kernel;
  };

  const int card_;
  FakeContext* const context_;
  std::mutex mutex_;
  std::unordered_map<OpKernel*, Substitute> substitutes_;
  std::vector<std::unique_ptr<OpKernel>> replaced_;  // another thread may still use one
};

void CopyBetweenCards(DeviceContext*, DeviceContext*, Device* from_device, Device* to_device, const AllocatorAttributes,
                      const AllocatorAttributes, const Tensor* from, Tensor* to, int, StatusCallback done) {
  const auto card = [](Device* device) { return std::to_string(static_cast<FakeGpu*>(device)->card()); };
  if (from_device != to_device) RecordCopy(card(from_device), card(to_device), *from, "");
  CopyBytes(*from, to);
  done(absl::OkStatus());
}

// ---- Factory ----

// CUDA's device i of this process is one card for ever; TensorFlow refuses to number its devices in two ways.
absl::Status Number(int device, int card) {
  static std::mutex mutex;
  static auto* cards = new std::map<int, int>;
  std::lock_guard<std::mutex> lock(mutex);
  const auto inserted = cards->emplace(device, card);
  if (inserted.first->second == card) return absl::OkStatus();
  return absl::AlreadyExistsError("TensorFlow device (GPU:" + std::to_string(device) + ") is being mapped to multiple "
                                  "devices (" + std::to_string(card) + " now, and " +
                                  std::to_string(inserted.first->second) + " previously), which is not supported.");
}

class FakeGpuFactory : public tensorflow::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    for (size_t i = 0; i < VisibleCards().size(); ++i) devices->push_back("/physical_device:GPU:" + std::to_string(i));
    return absl::OkStatus();
  }

  absl::Status GetDeviceDetails(int index, std::unordered_map<std::string, std::string>* details) override {
    (*details)["device_name"] = "fake GPU";
    (*details)["compute_capability"] = Capability();
    return absl::OkStatus();
  }

  absl::Status CreateDevices(const tensorflow::SessionOptions& options, const std::string& prefix,
                             std::vector<std::unique_ptr<Device>>* devices) override {
    std::vector<int> cards;
    const std::string& list = options.config.gpu_options().visible_device_list();
    for (const std::string& part : SplitAtCommas(list)) {
      const size_t index = std::atoll(part.c_str());
      if (index >= VisibleCards().size()) return absl::InvalidArgumentError("'visible_device_list' listed an invalid GPU id '" + part + "'");
      cards.push_back(VisibleCards()[index]);
    }
    if (list.empty()) cards = VisibleCards();
    const auto limit = options.config.device_count().find(kGpu);
    if (limit != options.config.device_count().end() && limit->second < static_cast<int>(cards.size())) {
      cards.resize(std::max(0, limit->second));
    }
    for (size_t i = 0; i < cards.size(); ++i) {
      TF_RETURN_IF_ERROR(Number(i, cards[i]));
      const std::string description = "device: " + std::to_string(i) + ", name: fake GPU, pci bus id: 0000:0" +
          std::to_string(cards[i]) + ":00.0, compute capability: " + Capability();
      devices->push_back(std::make_unique<FakeGpu>(
          options, Device::BuildDeviceAttributes(prefix + "/device:GPU:" + std::to_string(i), tensorflow::DeviceType(kGpu),
                                                 tensorflow::Bytes(MemoryOf(cards[i])->GetStats()->bytes_limit.value()),
                                                 tensorflow::DeviceLocality(), description), cards[i]));
    }
    return absl::OkStatus();
  }

 private:
  static std::string Capability() {
    const char* capability = std::getenv("FAKE_GPU_CAPABILITY");
    return capability == nullptr ? "9.0" : capability;
  }
};

// As a pluggable device, its copies between cards take precedence over those of TensorFlow's GPUs.
const bool registered = [] {
  tensorflow::DeviceFactory::Register(kGpu, std::make_unique<FakeGpuFactory>(), kPriority, /*is_pluggable_device=*/true);
  TF_CHECK_OK(tensorflow::CopyTensor::Register(tensorflow::DeviceType(kGpu), tensorflow::DeviceType(kGpu),
                                               CopyBetweenCards, /*is_pluggable_device=*/true));
  return true;
}();

}  // namespace

}  // namespace fake_gpu

// Forget all counts.
extern "C" void fake_gpu_reset() {
  std::lock_guard<std::mutex> lock(fake_gpu::counts_mutex);
  fake_gpu::Counts().clear();
}

// Write the counts as lines "kind, fields ..., times, bytes", separated by tabs, up to `size` bytes, and return the size
// of all of them.
extern "C" int64_t fake_gpu_counts(char* buffer, int64_t size) {
  std::string text;
  {
    std::lock_guard<std::mutex> lock(fake_gpu::counts_mutex);
    for (const auto& [key, count] : fake_gpu::Counts()) {
      text += key + "\t" + std::to_string(count.times) + "\t" + std::to_string(count.bytes) + "\n";
    }
  }
  if (size > 0) std::memcpy(buffer, text.data(), std::min<int64_t>(size, text.size()));
  return text.size();
}
